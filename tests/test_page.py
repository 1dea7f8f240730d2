"""The HTML page: complete, self-contained, and safe whatever the classes are called."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_helper import cifar, result

from treering.report import charts, page

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


def made(*results: dict[str, Any]) -> str:
    return page.html(results, charts.every_chart(results))


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


def test_ids_differ_and_links_and_charts_lead_somewhere() -> None:
    document = Document(made(*everything()))
    ids = document.all("id")
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in document.all("href") if link.startswith("#")} <= set(ids)
    data = json.loads(document.scripts[0])
    assert set(document.all("data-chart")) == set(data)


def test_nothing_is_loaded_from_anywhere() -> None:
    text = made(*everything())
    document = Document(text)
    assert [link for link in document.all("href") if not link.startswith("#")] == ["data:,"]
    assert document.all("src") == []
    assert re.findall(r"@import|url\(|fetch\(|XMLHttpRequest|import\(", text) == []
    assert set(re.findall(r"https?://[^\"\s]+", text)) <= {"http://www.w3.org/2000/svg"}
    policy = next(attrs["content"] for _, attrs in document.tags if attrs.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'")


@pytest.mark.parametrize("key", ["class_order", "dataset", "method", "selection", "device", "commit"])
def test_hostile_names_are_text(key: str) -> None:
    changed: Any = [HOSTILE, "b", "c", "d", "e", "f"] if key == "class_order" else HOSTILE
    document = Document(made(result(**{key: changed})))
    assert [tag for tag, _ in document.tags].count("script") == 2
    assert not any(tag == "img" for tag, _ in document.tags)
    assert all(not name.startswith("on") for _, attrs in document.tags for name in attrs)
    assert len(document.scripts) == 2
    if key == "class_order":
        (matrix,) = json.loads(document.scripts[0])["confusion-birds-2-total60"]["matrices"]
        assert matrix["rows"][0] == HOSTILE


def test_a_cell_has_ours_the_papers_and_the_difference() -> None:
    text = made(cifar(63.0), cifar(65.0, order=1))
    cell = '<td><span class="ours">64.0 <small>± 1.4</small></span> <span class="difference close" title="agrees">+0.4'
    assert cell in text
    assert '<span class="paper">paper 63.6 ± 1.3</span><span class="paper">over 2 orders</span></td>' in text
    assert '<td class="missing">not run<span class="paper">paper 60.5 ± 1.6</span></td>' in text


@pytest.mark.parametrize(("average", "kind"), [(62.4, "close"), (65.0, "over"), (62.2, "under")])
def test_a_number_agrees_within_the_papers_deviation(average: float, kind: str) -> None:
    assert f'class="difference {kind}"' in made(cifar(average))  # the paper has 63.6 ± 1.3


def test_headlines_compare_eeil_and_icarl_with_the_paper() -> None:
    text = " ".join(Document(made(cifar(63.0), cifar(61.0, method="icarl"))).text.split())
    assert "EEIL, 10 classes per step 63.0 paper 63.6 ± 1.3 −0.6" in text  # noqa: RUF001
    assert "EEIL’s lead over iCaRL +2.0 points in 1 class order; paper +3.1" in text  # noqa: RUF001


def test_the_lead_is_that_in_the_class_orders_of_both() -> None:
    icarl = [cifar(average, method="icarl", order=order) for order, average in enumerate((61.0, 60.0, 50.0))]
    text = " ".join(Document(made(cifar(63.0), cifar(64.0, order=1), *icarl)).text.split())
    assert "EEIL’s lead over iCaRL +3.0 points in 2 class orders;" in text  # noqa: RUF001
    apart = made(cifar(63.0), cifar(61.0, method="icarl", order=1))
    assert "lead over iCaRL" not in Document(apart).text


def test_a_report_of_ones_own_dataset_has_the_papers_tables_out_of_the_way() -> None:
    text = made(result())
    assert "Best on birds" in text
    assert 'id="fixed-memory"' not in text
    assert text.index("<summary>Show the paper") < text.index("paper 63.6 ± 1.3")


def test_every_value_of_a_chart_is_in_a_table_as_well() -> None:
    text = made(result(accuracy=[91.3, 82.4, 73.5]))
    assert "<td>91.3</td><td>82.4</td><td>73.5</td>" in text


def test_device_time_counts_shared_devices_and_second_readouts_once() -> None:
    shared = result(seconds=400.0, runs_at_once=4)
    readout = shared | {"method": "hybrid1"}
    assert page.device_seconds([shared, readout, result(seconds=50.0)]) == [100.0, 50.0]


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


@needs_browser
def test_a_browser_draws_every_chart_and_complains_of_nothing(tmp_path: Path) -> None:
    names = [HOSTILE, "b", "c", "d", "e", "f"]
    shown = in_browser(made(*everything(), result(order=1, class_order=names)), tmp_path)
    figures = [panel for panel in re.split(r"<figure>", shown)[1:] if "<canvas" not in panel]
    assert sum('role="img"' in figure for figure in figures) >= 5
    assert shown.count('role="tablist"') >= 1


@needs_browser
def test_a_tab_that_is_chosen_shows_its_chart(tmp_path: Path) -> None:
    text = made(cifar(63.0), cifar(62.0, classes_per_step=20, accuracy=[62.0] * 5))

    def drawn(page_text: str) -> list[bool]:
        shown = in_browser(page_text, tmp_path)
        return [f'aria-label="CIFAR-100, {steps} classes per step, 2000 exemplars: ' in shown for steps in (10, 20)]

    assert drawn(text) == [True, False]
    choose = "<script>document.querySelectorAll('[role=tab]').forEach((tab) => tab.click())</script></body>"
    assert drawn(text.replace("</body>", choose)) == [True, True]
