"""The page in a real browser: two classes are taught, asked, joined by a third, forgotten and undone.

The tests are skipped where there is no Chromium.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
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

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed, so the page is not tested"),
    pytest.mark.xdist_group("browser"),
]


def picture(kind: str, seed: int) -> Image.Image:
    """A picture of a kind: stripes, dots, or a ramp, with noise."""
    random = np.random.RandomState(seed)
    y, x = np.mgrid[0:96, 0:96]
    shift = random.randint(0, 24)
    stripes, dots = (x + shift) // 8 % 2, ((x + shift) % 24 - 12) ** 2 + (y % 24 - 12) ** 2 < 40
    plain = {"stripes": 255 * stripes, "dots": 255 * dots}.get(kind, 2 * x + random.randint(0, 40))
    colour = {"stripes": (1.0, 0.6, 0.2), "dots": (0.2, 0.5, 1.0)}.get(kind, (0.3, 1.0, 0.4))
    pixels = plain[..., None] * np.array(colour) + random.normal(0, 12, (96, 96, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def pictures(folder: Path, kind: str, begin: int = 0) -> list[str]:
    """Write pictures of a kind; return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{kind}-{number}.png" for number in range(begin, begin + PHOTOS)]
    for number, file in enumerate(files, begin):
        picture(kind, number).save(file)
    return list(map(str, files))


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
        before = self.view.locator("#tray section img").count()
        self.view.fill("#class-name", name)
        self.view.set_input_files("#teach-files", files)
        sync_api.expect(self.view.locator("#tray section img")).to_have_count(before + len(files), timeout=MILLISECONDS)

    def forget_last_job(self) -> None:
        """Have the page show no job that has ended."""
        if self.view.locator("#dismiss").is_visible():
            self.view.click("#dismiss")
            self.view.wait_for_selector("#job[data-state=none]", state="attached")

    def learnt(self) -> None:
        """Wait until the job is done."""
        self.view.wait_for_selector("#job[data-state=done]")

    def ask(self, file: str) -> str:
        """Ask about a photo; return the class of the longest bar."""
        with self.view.expect_response("**/predict?*"):
            self.view.set_input_files("#ask-files", file)
        self.view.wait_for_selector("#answer-bars li")
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
    page.put("stripes", pictures(tmp_path, "stripes"))
    page.put("dots", pictures(tmp_path, "dots"))
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    view.set_input_files("#teach-files", str(bad))
    view.wait_for_selector("#tray .reasons li")
    assert all("422" in error for error in page.errors), page.errors  # the browser notes that the file was refused
    page.errors.clear()
    view.reload()  # the tray is the server's
    view.wait_for_selector("body.ready")
    sync_api.expect(view.locator("#tray section img")).to_have_count(2 * PHOTOS)
    view.select_option("#effort", "fast")
    view.click("#learn")
    page.learnt()
    assert page.classes() == ["dots", "stripes"]
    test = pictures(tmp_path / "test", "dots", 100)[0]
    assert page.ask(test) == "dots"
    assert view.locator("#nearest figure").count() > 0
    noise = tmp_path / "noise.png"
    Image.fromarray(np.random.RandomState(0).randint(0, 256, (96, 96, 3)).astype(np.uint8)).save(noise)
    view.set_input_files("#ask-files", str(noise))
    view.wait_for_selector("#unknown:visible")

    page.put("lines", pictures(tmp_path, "stripes", 50))  # they look like the first class, which must suffer
    page.forget_last_job()
    view.select_option("#effort", "usual")
    view.click("#learn")
    view.wait_for_selector("#job[data-stage=training]")
    page.learnt()
    assert page.classes() == ["dots", "lines", "stripes"]
    assert view.locator("#step-list > li").count() == 2
    assert "stripes" in view.locator("#job").inner_text()

    view.locator("#class-list > li[data-class=lines] button").first.click()
    view.click("#forget")
    view.click("#confirm-no")
    view.click("#forget")
    view.click("#confirm-yes")
    sync_api.expect(view.locator("#class-list > li")).to_have_count(2, timeout=MILLISECONDS)
    assert page.classes() == ["dots", "stripes"]
    page.close()


def test_the_keyboard_alone_teaches_asks_renames_and_undoes(address: str, browser: Any, tmp_path: Path) -> None:
    page = Page(browser, address)
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

    if not page.classes():  # this test runs alone
        page.put("stripes", pictures(tmp_path, "stripes"))
        page.put("dots", pictures(tmp_path, "dots"))
        view.select_option("#effort", "fast")
        view.click("#learn")
        page.learnt()
    before = page.classes()
    page.forget_last_job()
    press("#class-name", "End")
    view.keyboard.type("ramps")
    with view.expect_file_chooser() as chooser:
        press("#teach-choose")
    chooser.value.set_files(pictures(tmp_path, "ramps"))
    sync_api.expect(view.locator("#tray section img")).to_have_count(PHOTOS, timeout=MILLISECONDS)
    view.select_option("#effort", "fast")
    press("#learn")
    page.learnt()
    assert page.classes() == sorted([*before, "ramps"])
    assert page.ask(pictures(tmp_path / "test", "ramps", 100)[0]) == "ramps"
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
    press("#undo")
    press("#confirm-yes")
    sync_api.expect(view.locator("#class-list > li")).to_have_count(len(before), timeout=MILLISECONDS)
    assert page.classes() == before
    page.close()


def test_a_camera_takes_a_burst_and_asks_live(address: str, browser: Any, tmp_path: Path) -> None:
    page = Page(browser, address, permissions=["camera"])
    view = page.view
    view.fill("#class-name", "screen")
    view.click("#teach-camera")
    view.wait_for_selector("#shutter:visible")
    view.focus("#shutter")
    view.keyboard.down(" ")
    sync_api.expect(view.locator("#tray section[data-class=screen] img").nth(2)).to_be_visible(timeout=MILLISECONDS)
    view.keyboard.up(" ")
    view.click("#teach-camera")
    if page.classes():
        with view.expect_response("**/predict?*"):
            view.click("#ask-camera")
        with view.expect_response("**/predict?*"):  # it asks again by itself
            view.wait_for_selector("#answer-bars li")
        view.click("#ask-camera")
    view.click("#clear-tray")
    if view.locator("#confirm-yes").is_visible():
        view.click("#confirm-yes")
    sync_api.expect(view.locator("#tray section")).to_have_count(0, timeout=MILLISECONDS)
    page.close()


LOOKS = [(1280, "light", "en-GB"), (360, "dark", "de-DE"), (375, "light", "es-ES"), (1280, "dark", "es-ES")]


@pytest.mark.parametrize(("width", "scheme", "language"), LOOKS)
def test_every_look_is_accessible_and_fits(address: str, browser: Any, width: int, scheme: str, language: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = Page(
        browser,
        address,
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
    if page.classes():
        view.locator("#class-list > li button").first.click()
        view.wait_for_selector("dialog#class[open]")
        require_accessible()
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
