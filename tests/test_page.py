"""The HTML page: complete, self-contained, and safe whatever the classes are called."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_helper import cifar, result

from treering.report import charts, figures, page, results

needs_browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser")
HOSTILE = "</script><img src=x onerror=alert(1)><!--"


class Document(HTMLParser):
    """The tags, the ids and the text of a page."""

    void = frozenset({"meta", "link", "br", "img", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif not self.open or self.open[-1] != "style":
            self.text += data + " "

    def all(self, attribute: str) -> list[str]:
        return [found for _, attrs in self.tags if (found := attrs.get(attribute)) is not None]


def made(*runs: dict[str, Any], drawn: bool = False) -> str:
    """The page of these runs; without `drawn` its figures are empty, which is quicker."""
    parts = charts.every_chart(runs)
    every = [chart for part in parts.values() for chart in part]
    empty = b'<svg width="1pt" viewBox="0 0 1 1"></svg>'
    return page.html(runs, parts, {chart.name: figures.render(chart)["svg"] if drawn else empty for chart in every})


def everything() -> list[dict[str, Any]]:
    """Runs in every section of the page."""
    none = {"kind": "total", "size": 0}
    vehicles = {"dataset": "cifar100-vehicles", "classes_per_step": 2, "memory": {"kind": "total", "size": 200}}
    runs = [cifar(63.0 + order, order=order) for order in range(2)]
    runs += [cifar(60.0 + 2 * order, order=order, method="icarl") for order in range(2)]
    runs += [cifar(40.0, method="lwf-mc", memory=none), cifar(50.0, method="eeil-base")]
    runs += [cifar(62.0, selection="random"), cifar(61.0, memory={"kind": "per-class", "size": 50})]
    runs += [
        cifar(60.0, method="gem", classes_per_step=5, memory={"kind": "per-step", "size": 20}, accuracy=[60.0] * 10)
    ]
    runs += [result(**vehicles), result(), result(method="finetune", memory=none)]
    return runs


def test_every_section_is_there_and_the_overview_comes_first() -> None:
    text = made(*everything())
    ids = Document(text).all("id")
    wanted = ["fixed-memory", "accuracy", "ablation", "budgets", "selection", "gem", "similar", "own", "p-values"]
    wanted += ["forgetting", "confusion", "runs", "not-run"]
    assert [name for name in ids if name in wanted] == wanted
    assert text.index('class="cards"') < text.index('id="fixed-memory"')


def test_ids_differ_and_links_lead_somewhere() -> None:
    document = Document(made(*everything(), drawn=True))
    ids = document.all("id")
    assert len(ids) == len(set(ids)) > 50
    assert {link[1:] for link in document.all("href") if link.startswith("#")} <= set(ids)


def test_every_figure_is_in_the_page_once() -> None:
    runs = everything()
    drawn = [chart for part in charts.every_chart(runs).values() for chart in part]
    assert made(*runs).count("<svg") == len(drawn) > 10


def test_nothing_is_loaded_from_anywhere() -> None:
    text = made(*everything(), drawn=True)
    document = Document(text)
    assert {link[:10] for link in document.all("href") if not link.startswith("#")} == {"data:,", "data:image"}
    assert document.all("src") == []
    assert re.findall(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|import\(|https?://", text) == []
    policy = next(attrs["content"] for _, attrs in document.tags if attrs.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'")


@pytest.mark.parametrize("key", ["class_order", "dataset", "method", "selection", "device", "commit"])
def test_hostile_names_are_text(key: str) -> None:
    changed: Any = [HOSTILE, "b", "c", "d", "e", "f"] if key == "class_order" else HOSTILE
    document = Document(made(result(**{key: changed}), drawn=True))
    assert [tag for tag, _ in document.tags].count("script") == len(document.scripts) == 1
    assert not any(tag == "img" for tag, _ in document.tags)
    assert all(not name.startswith("on") for _, attrs in document.tags for name in attrs)
    if key == "class_order":
        assert any(names.split("\n")[0] == HOSTILE for names in document.all("data-names"))


def cell_of(text: str, ours: str) -> str:
    """The words of the table cell that begins with this number."""
    cells = [" ".join(Document(f"<p>{cell}</p>").text.split()) for cell in re.findall(r"<td>(.*?)</td>", text)]
    return next(cell for cell in cells if cell.startswith(ours) and "paper" in cell)


def test_a_cell_has_ours_the_papers_and_the_difference() -> None:
    text = made(cifar(63.0), cifar(65.0, order=1))
    assert cell_of(text, "64.0") == "64.0 ± 1.4 +0.4 paper 63.6 ± 1.3 over 2 orders"
    assert "not run paper 60.5 ± 1.6" in " ".join(Document(text).text.split())


def test_differences_are_marked_and_every_mark_is_explained() -> None:
    runs = [cifar(63.0), cifar(64.0, method="icarl"), cifar(50.0, method="hybrid1"), cifar(62.0, selection="random")]
    text = made(*runs)
    found = {kind for kinds in Document(text).all("class") for kind in kinds.split() if kinds.startswith("difference")}
    assert found == {"difference", "agrees", "above", "below"}
    for word in ("grey", "green", "orange", "±", "standard deviation", "mark across", "one point"):
        assert word in Document(text).text, word


def test_methods_without_exemplars_are_marked_in_the_papers_tables() -> None:
    text = made(cifar(40.0, method="lwf-mc", memory={"kind": "total", "size": 0}))
    assert '<th scope="row">LwF.MC<small>no exemplars</small></th>' in text
    assert '<th scope="row">EEIL</th>' in text


def test_headlines_compare_eeil_and_icarl_with_the_paper() -> None:
    text = " ".join(Document(made(cifar(63.0), cifar(61.0, method="icarl"))).text.split())
    assert "EEIL, 10 classes per step 63.0 paper 63.6 ± 1.3, −0.6" in text  # noqa: RUF001
    assert "EEIL’s lead over iCaRL +2.0 points in 1 class order; paper +3.1" in text  # noqa: RUF001


def test_the_lead_is_that_in_the_class_orders_of_both() -> None:
    icarl = [cifar(average, method="icarl", order=order) for order, average in enumerate((61.0, 60.0, 50.0))]
    text = " ".join(Document(made(cifar(63.0), cifar(64.0, order=1), *icarl)).text.split())
    assert "EEIL’s lead over iCaRL +3.0 points in 2 class orders;" in text  # noqa: RUF001
    apart = made(cifar(63.0), cifar(61.0, method="icarl", order=1))
    assert "lead over iCaRL" not in Document(apart).text


def test_a_report_of_ones_own_dataset_has_the_papers_tables_out_of_the_way() -> None:
    text = made(result())
    assert "the best on birds" in text
    assert 'id="fixed-memory"' not in text
    assert text.index("<summary>Show the paper") < text.index("paper 63.6 ± 1.3")


def test_every_value_of_a_chart_is_in_a_table_as_well() -> None:
    text = made(result(accuracy=[91.3, 82.4, 73.5]))
    assert "<td>91.3</td><td>82.4</td><td>73.5</td>" in text


def test_device_time_counts_shared_devices_and_second_readouts_once() -> None:
    shared = result(seconds=400.0, runs_at_once=4)
    readout = shared | {"method": "hybrid1"}
    assert results.device_seconds([shared, readout, result(seconds=50.0)]) == [100.0, 50.0]


def test_the_page_is_the_same_whatever_the_order_of_the_files() -> None:
    assert made(*everything()) == made(*reversed(everything()))


def in_browser(page_text: str, folder: Path) -> str:
    """The page as a browser has it once loaded, whether or not a busy machine has come to showing a frame."""
    (folder / "index.html").write_text(page_text, encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'user'}"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    command += ["--enable-logging=stderr", "--window-size=390,900", "--dump-dom", (folder / "index.html").as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert "CONSOLE" not in ran.stderr, ran.stderr
    return ran.stdout


def with_script(text: str, script: str) -> str:
    return text.replace("</body>", f"<script>{script}</script></body>")


POINT_AT_ALL = """
const told = [];
for (const hot of document.querySelectorAll(".hot")) {
  for (let time = 0; time < 2; time++) hot.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
  told.push([...document.querySelector(".tip").children].map((line) => line.textContent).join("; "));
}
document.body.append(told.join(" | "), ` spots: ${document.querySelectorAll(".spot").length}`);
"""


@needs_browser
def test_a_browser_tells_the_values_of_every_chart_and_complains_of_nothing(tmp_path: Path) -> None:
    names = ["b", HOSTILE, "c", "d", "e", "f"]
    runs = [result(class_order=names), result(method="icarl", accuracy=[91.0, 81.0, 72.0], class_order=names)]
    shown = " ".join(Document(in_browser(with_script(made(*runs, drawn=True), POINT_AT_ALL), tmp_path)).text.split())
    assert "4 classes; EEIL: 80.0; iCaRL: 81.0 (+1.0)" in shown
    assert "Classes of step 1, after step 2; 80 %" in shown
    assert f"b; 2 of 10 taken for {HOSTILE}" in shown
    assert shown.endswith("spots: 5"), "one in each chart"


@needs_browser
def test_the_bars_of_a_browser_tell_ours_and_the_papers(tmp_path: Path) -> None:
    text = made(cifar(62.0, selection="random"), drawn=True)
    shown = " ".join(Document(in_browser(with_script(text, POINT_AT_ALL), tmp_path)).text.split())
    assert "random; EEIL: 62.0 −1.1 paper 63.1" in shown  # noqa: RUF001


POINT_AT_THE_MIDDLE = """
const hot = document.querySelector(".hot"), box = hot.firstElementChild.getBoundingClientRect();
const middle = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, pointerType: "mouse" };
hot.dispatchEvent(new PointerEvent("pointermove", middle));
document.body.append(`told: ${document.querySelector(".tip").firstElementChild.textContent}`);
hot.dispatchEvent(new PointerEvent("pointerleave", middle));
document.body.append(`, hidden: ${document.querySelector(".tip").hidden}`);
"""


@needs_browser
def test_the_pointer_is_told_what_it_points_at_until_it_leaves(tmp_path: Path) -> None:
    text = with_script(made(result(accuracy=[90.0, 80.0, 70.0]), drawn=True), POINT_AT_THE_MIDDLE)
    assert "told: 4 classes, hidden: true" in " ".join(Document(in_browser(text, tmp_path)).text.split())


@needs_browser
def test_a_key_hides_and_shows_its_line(tmp_path: Path) -> None:
    text = made(result(), result(method="icarl"), drawn=True)

    def hidden(clicks: int) -> int:
        script = "document.querySelector('[data-key=\"1\"]').dispatchEvent(new Event('click'));" * clicks
        return in_browser(with_script(text, script), tmp_path).count("visibility: hidden")

    assert hidden(0) == hidden(2) == 0 < hidden(1)


@needs_browser
def test_a_tab_that_is_chosen_shows_its_chart(tmp_path: Path) -> None:
    text = made(cifar(63.0), cifar(62.0, classes_per_step=20, accuracy=[62.0] * 5))

    def seen(page_text: str) -> list[str]:
        panels = re.findall(r'<div id="panel-accuracy-cifar100-(\d+)-[^>]*>', in_browser(page_text, tmp_path))
        tags = re.findall(r'<div id="panel-accuracy[^>]*>', in_browser(page_text, tmp_path))
        return [steps for steps, tag in zip(panels, tags, strict=True) if " hidden" not in tag]

    assert seen(text) == ["10"]
    choose = "document.querySelectorAll('[role=tab]').forEach((tab) => tab.click())"
    assert seen(with_script(text, choose)) == ["20"]


@needs_browser
def test_light_and_dark_change_places(tmp_path: Path) -> None:
    click = "document.querySelector('.theme').click();"
    pages = []
    for count in (1, 2):
        (tmp_path / str(count)).mkdir()
        pages.append(in_browser(with_script(made(result()), click * count), tmp_path / str(count)))
    themes = [re.search(r'data-theme="(\w+)"', text) for text in pages]
    assert {found[1] for found in themes if found} == {"light", "dark"}
