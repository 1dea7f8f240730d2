"""The page in a real browser: classes are taught, asked, joined by others, renamed, forgotten and undone.

The tests are skipped where there is no Chromium.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

sync_api = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
]
MILLISECONDS = 60_000
"""The longest that anything may take here, on a slow machine."""
PHOTOS = 8
SHOWN = 10
"""The photos of a class in the tray that are shown at first."""
MANY = 12
"""So many photos that what their class loses cannot be chance."""

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed, so the page is not tested"),
    pytest.mark.xdist_group("browser"),
]


def picture(kind: str, seed: int) -> Image.Image:
    """A picture of a kind: shifted, slanted and noisy, so that no two are the same."""
    random = np.random.RandomState(seed)
    y, x = np.mgrid[0:96, 0:96]
    shift, slant = random.randint(0, 24), random.uniform(-0.6, 0.6)
    x = (x + slant * y).astype(int)
    plain, colour = {
        "stripes": (255 * ((x + shift) // 8 % 2), (1.0, 0.6, 0.2)),
        "dots": (255 * (((x + shift) % 24 - 12) ** 2 + (y % 24 - 12) ** 2 < 40), (0.2, 0.5, 1.0)),
        "ramps": (2 * x + shift, (0.3, 1.0, 0.4)),
        "checks": (255 * (((x + shift) // 24 + y // 24) % 2), (1.0, 0.2, 0.8)),
    }[kind]
    pixels = plain[..., None] * np.array(colour) + random.normal(0, 12, (96, 96, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def pictures(folder: Path, kind: str, begin: int = 0, count: int = PHOTOS) -> list[str]:
    """Write pictures of a kind; return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{kind}-{number}.png" for number in range(begin, begin + count)]
    for number, file in enumerate(files, begin):
        picture(kind, number).save(file)
    return list(map(str, files))


def noise(folder: Path) -> str:
    """Write a picture of nothing at all; return its file."""
    file = folder / "noise.png"
    Image.fromarray(np.random.RandomState(0).randint(0, 256, (96, 96, 3)).astype(np.uint8)).save(file)
    return str(file)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a server answers whose model has learnt nothing yet."""
    model = tmp_path_factory.mktemp("served") / "shapes"
    command = [sys.executable, "-m", "treering", "serve", str(model), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "200"})
    assert process.stdout
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found
    yield found[0]
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) in (0, -signal.SIGTERM)
    process.stdout.close()


def requested(url: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
    """Return what the server answers to a program."""
    request = urllib.request.Request(url, body, {"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=MILLISECONDS / 1000) as answer:
        content: bytes = answer.read()
    return content


@pytest.fixture
def taught(address: str) -> str:
    """Where a server answers whose model knows two classes or more, even if a test runs alone."""
    model = f"{address}api/models/shapes"
    if not json.loads(requested(model))["classes"]:
        for kind in ("stripes", "dots"):
            for number in range(PHOTOS):
                content = io.BytesIO()
                picture(kind, number).save(content, "png")
                requested(f"{model}/tray?class={kind}", content.getvalue(), "image/png")
        job = json.loads(requested(f"{model}/jobs", b'{"effort": "fast"}'))["id"]
        events = requested(f"{address}api/jobs/{job}/events").decode()  # they end when the job does
        assert json.loads(events.split("data: ")[-1])["state"] == "done"
    return address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


class Page:
    """The page in a window of its own, whose errors are collected."""

    def __init__(self, browser: Any, address: str, **look: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "locale": "en-GB", **look})
        self.context.set_default_timeout(MILLISECONDS)
        self.view = self.context.new_page()
        self.errors: list[str] = []
        self.view.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.view.on("pageerror", lambda error: self.errors.append(str(error)))
        self.view.goto(address)
        self.view.wait_for_selector("body.ready")

    def classes(self) -> list[str]:
        entries = self.view.locator("#class-list > li").all()
        return sorted(entry.get_attribute("data-class") for entry in entries)

    def put(self, name: str, files: list[str]) -> None:
        """Put photos of a class into the tray."""
        self.view.fill("#class-name", name)
        self.view.set_input_files("#teach-files", files)
        self.view.wait_for_selector(f"#tray section[data-class={name}] > .remove:visible")  # all have arrived
        shown = self.view.locator(f"#tray section[data-class={name}] img")
        sync_api.expect(shown).to_have_count(min(len(files), SHOWN), timeout=MILLISECONDS)

    def forget_last_job(self) -> None:
        """Have the page show no job that has ended."""
        if self.view.locator("#dismiss").is_visible():
            self.view.click("#dismiss")
            self.view.wait_for_selector("#job[data-state=none]", state="attached")

    def learnt(self) -> None:
        """Wait until the job is done."""
        self.view.wait_for_selector("#job[data-state=done]")

    def answered(self) -> str | None:
        """Return the class of the longest bar once the answer has come; None if the photo is unknown."""
        self.view.wait_for_selector("#ask:not(.thinking) #answer:visible")
        if self.view.locator("#unknown").is_visible():
            return None
        name: str = self.view.locator("#answer-bars li").first.get_attribute("data-class")
        return name

    def close(self) -> None:
        """Close the window; nothing may have gone wrong in it."""
        self.context.close()
        assert not self.errors, self.errors


def test_a_stranger_teaches_asks_forgets_and_undoes_by_clicking(address: str, browser: Any, tmp_path: Path) -> None:
    page = Page(browser, address)
    view = page.view
    assert view.locator("#learn").is_disabled()
    page.put("stripes", pictures(tmp_path, "stripes", count=MANY))
    page.put("dots", pictures(tmp_path, "dots"))
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    view.set_input_files("#teach-files", str(bad))
    view.wait_for_selector("#tray .reasons li")
    assert all("422" in error for error in page.errors), page.errors  # the browser notes that the file was refused
    page.errors.clear()
    view.reload()  # the tray is the server's
    view.wait_for_selector("body.ready")
    sync_api.expect(view.locator("#tray section img")).to_have_count(SHOWN + PHOTOS)
    assert view.locator("#effort").input_value() == "usual"
    view.click("#learn")
    view.wait_for_selector("#job[data-stage=training]")
    page.learnt()
    assert page.classes() == ["dots", "stripes"]
    view.set_input_files("#ask-files", pictures(tmp_path / "test", "dots", 100)[0])
    assert page.answered() == "dots"
    assert view.locator("#nearest figure").count() > 0
    view.set_input_files("#ask-files", noise(tmp_path))
    assert page.answered() is None

    page.put("lines", pictures(tmp_path, "stripes", 50, MANY))  # they look like the first class, which must suffer
    page.put("ramps", pictures(tmp_path, "ramps"))
    page.forget_last_job()
    view.select_option("#effort", "fast")
    view.click("#learn")
    page.learnt()
    assert page.classes() == ["dots", "lines", "ramps", "stripes"]
    assert view.locator("#step-list > li").count() == 2
    assert [one.get_attribute("data-lost") for one in view.locator("#job [data-lost]").all()] == ["stripes"]
    assert view.locator("#class-list [data-lost=stripes]").is_visible()

    view.locator("#class-list > li[data-class=ramps] button").first.click()
    view.click("#forget")
    view.click("#confirm-no")
    assert len(page.classes()) == 4
    view.click("#forget")
    view.click("#confirm-yes")
    sync_api.expect(view.locator("#class-list > li")).to_have_count(3, timeout=MILLISECONDS)
    assert page.classes() == ["dots", "lines", "stripes"]
    view.click("#undo")
    view.click("#confirm-no")
    assert len(page.classes()) == 3
    view.click("#undo")
    view.click("#confirm-yes")
    sync_api.expect(view.locator("#class-list > li")).to_have_count(2, timeout=MILLISECONDS)
    assert page.classes() == ["dots", "stripes"]
    assert view.locator("#step-list > li").count() == 1
    page.close()


def test_the_keyboard_alone_teaches_asks_renames_forgets_and_undoes(taught: str, browser: Any, tmp_path: Path) -> None:
    page = Page(browser, taught)
    view = page.view

    def press(selector: str, key: str = "Enter") -> None:
        """Walk to an element with the tabulator, and press a key there."""
        wanted = view.locator(selector).first.element_handle()
        for _ in range(200):
            if view.evaluate("one => document.activeElement === one", wanted):
                view.keyboard.press(key)
                return
            view.keyboard.press("Tab")
        raise AssertionError(f"the keyboard does not reach {selector}")

    def choose(selector: str, files: str | list[str]) -> None:
        """Press the button that opens the chooser of files, and choose some."""
        with view.expect_file_chooser() as chooser:
            press(selector)
        chooser.value.set_files(files)

    before = page.classes()
    page.forget_last_job()
    for waiting, name in enumerate(["ramps", "checks"], 1):
        press("#class-name", "Control+a")
        view.keyboard.type(name)
        choose("#teach-choose", pictures(tmp_path, name))
        sync_api.expect(view.locator("#tray section img")).to_have_count(waiting * PHOTOS, timeout=MILLISECONDS)
    press("#effort", "f")
    assert view.locator("#effort").input_value() == "fast"
    press("#learn")
    page.learnt()
    assert page.classes() == sorted([*before, "checks", "ramps"])
    choose("#ask-choose", pictures(tmp_path / "test", "ramps", 100)[0])
    assert page.answered() == "ramps"
    choose("#ask-choose", noise(tmp_path))
    assert page.answered() is None
    press("#class-list > li[data-class=ramps] button")
    view.wait_for_selector("dialog#class[open]")
    view.keyboard.press("Escape")
    view.wait_for_selector("dialog#class", state="hidden")
    press("#class-list > li[data-class=ramps] button")
    press("#new-name", "Control+a")
    view.keyboard.type("gradients")
    press("#rename")
    view.wait_for_selector("#class-list > li[data-class=gradients]")
    view.keyboard.press("Escape")
    press("#class-list > li[data-class=checks] button")
    press("#forget")
    press("#confirm-yes")
    sync_api.expect(view.locator("#class-list > li")).to_have_count(len(before) + 1, timeout=MILLISECONDS)
    assert page.classes() == sorted([*before, "gradients"])
    press("#undo")
    press("#confirm-yes")
    sync_api.expect(view.locator("#class-list > li")).to_have_count(len(before), timeout=MILLISECONDS)
    assert page.classes() == before
    page.close()


def test_a_camera_takes_a_burst_and_asks_live(taught: str, browser: Any) -> None:
    page = Page(browser, taught, permissions=["camera"])
    view = page.view
    view.fill("#class-name", "screen")
    view.click("#teach-camera")
    view.wait_for_selector("#shutter:visible")
    view.focus("#shutter")
    view.keyboard.down(" ")
    sync_api.expect(view.locator("#tray section[data-class=screen] img").nth(2)).to_be_visible(timeout=MILLISECONDS)
    view.keyboard.up(" ")
    view.click("#teach-camera")
    with view.expect_response("**/predict?nearest=0"):
        view.click("#ask-camera")
    with view.expect_response("**/predict?nearest=0"):  # it asks again by itself
        view.wait_for_selector("#answer-bars li")
    assert view.locator("#nearest figure").count() == 0
    view.click("#ask-camera")
    view.wait_for_selector("#nearest figure")  # the last picture is asked once more, and in full
    assert view.locator("#asked").is_visible()
    view.click("#clear-tray")
    view.click("#confirm-yes")
    sync_api.expect(view.locator("#tray section")).to_have_count(0, timeout=MILLISECONDS)
    page.close()


LOOKS = [(1280, "light", "en-GB"), (360, "dark", "de-DE"), (375, "light", "es-ES"), (1280, "dark", "es-ES")]


@pytest.mark.parametrize(("width", "scheme", "language"), LOOKS)
def test_every_look_is_accessible_and_fits(taught: str, browser: Any, width: int, scheme: str, language: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = Page(
        browser,
        taught,
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
        locale=language,
        bypass_csp=True,
    )
    view = page.view
    assert view.evaluate("document.documentElement.lang") == language[:2]
    assert view.evaluate("document.documentElement.scrollWidth") <= width

    def require_accessible() -> None:
        found = Axe().run(view).response["violations"]
        assert not [one["id"] for one in found if one["impact"] in ("serious", "critical")]

    require_accessible()
    view.locator("#class-list > li button").first.click()
    view.wait_for_selector("dialog#class[open]")
    require_accessible()
    page.close()


def test_the_page_finds_the_server_again_and_says_when_it_has_a_new_token(address: str, browser: Any) -> None:
    page = Page(browser, address)
    view = page.view

    def require(connection: str, is_told: bool) -> None:
        """Look after the model, as the page does now and then, and wait for what it thinks of the connection."""
        view.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        view.wait_for_selector(f"body[data-connection={connection}]")
        assert view.locator("#trouble").is_visible() == is_told

    anything = re.compile("/api/|/health")
    view.route(anything, lambda route: route.abort())
    require("lostConnection", True)
    view.unroute(anything)
    view.route(anything, lambda route: route.fulfill(status=401, json={"error": "it asks for its token"}))
    require("newToken", True)
    view.unroute(anything)
    require("connected", False)
    assert page.errors  # the browser notes what was not answered
    page.errors.clear()
    page.close()


def test_one_event_that_cannot_be_shown_does_not_freeze_the_job(taught: str, browser: Any) -> None:
    page = Page(browser, taught)
    begin = """async () => {
        const { follow } = await import("/page/job.js"), { shown } = await import("/page/model.js");
        const job = { id: "0", model: shown.name, state: "cancelled", stage: "ended", classes: {}, warnings: [] };
        follow({ ...job, warnings: null });
        follow(job);
    }"""
    page.view.evaluate(begin)
    page.view.wait_for_selector("#dismiss:visible")
    assert page.errors  # the first is told to who looks for it
    page.errors.clear()
    page.close()


def test_the_page_of_the_api_lists_every_operation(address: str, browser: Any) -> None:
    page = Page.__new__(Page)
    page.context = browser.new_context()
    page.view, page.errors = page.context.new_page(), []
    page.view.on("console", lambda said: page.errors.append(said.text) if said.type == "error" else None)
    page.view.goto(f"{address}api")
    page.view.wait_for_selector(".operation")
    described = page.view.request.get(f"{address}openapi.json").json()["paths"]
    assert page.view.locator(".operation").count() == sum(len(methods) for methods in described.values())
    page.close()
