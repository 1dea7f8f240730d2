"""Write the tables of README.md and docs/ from results/ and benchmarks/results/: `python benchmarks/table.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pages

from treering.report import markdown, tables
from treering.report.results import Result, read_results

MEASURED = Path(__file__).parent / "results"
Record = dict[str, Any]


def measured(name: str) -> Record:
    """Return what a benchmark has recorded."""
    record: Record = json.loads((MEASURED / f"{name}.json").read_bytes())
    return record


def beside_the_paper(results: Sequence[Result]) -> str:
    """Return EEIL's rows of table 1a as Markdown."""
    lines = ["| classes per step | the paper | treering | class orders |", "| ---: | ---: | ---: | ---: |"]
    for cell in tables.table("1a", results):
        if cell.setting.method == "eeil":
            numbers = _number(cell.paper, cell.paper_deviation), _number(cell.mean, cell.deviation)
            lines.append(f"| {cell.setting.steps} | {' | '.join(numbers)} | {cell.orders} |")
    return "\n".join(lines) + "\n"


def throughput() -> str:
    """Return a table of images per second, beside a plain loop."""
    found = measured("throughput")
    rows = {"plain PyTorch loop (DataLoader, float32)": found["plain"]}
    rows |= {f"treering, {_runs(name)}": rate for name, rate in found.items() if name.endswith(" at once")}
    lines = [f"| {_where(found)} | training images/s | times plain |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {rate:,.0f} | {rate / found['plain']:.1f} |" for name, rate in rows.items()]
    return "\n".join(lines) + "\n"


def scaling() -> str:
    """Return the share of time outside updates, and a table of an update's time and memory by the number of heads."""
    rates, found = measured("throughput"), measured("scaling")
    outside = 1 - rates["1 at once"] / rates["updates_alone"]
    heads = {name.partition(" ")[0]: row for name, row in found.items() if name.endswith(" heads")}
    first = next(iter(heads.values()))["update_ms"]
    lines = [
        f"Within an epoch, one run spends {100 * outside:.1f} % of its time outside the captured updates.",
        "",
        f"| {_where(found)}: heads | update by 128 images | times one head | evaluation of 1,280 | peak memory |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for count, row in heads.items():
        times = f"{row['update_ms']:.2f} ms | {row['update_ms'] / first:.2f} | {row['evaluation_ms']:.1f} ms"
        lines.append(f"| {int(count):,} | {times} | {row['peak_MiB']:,.0f} MiB |")
    return "\n".join(lines) + "\n"


def photo_sets() -> str:
    """Return a table of the accuracy on each set of photos: treering's, and that of classifiers of frozen features."""
    sets = measured("frozen_features")["sets"]
    lines = [f"| right in % | {' | '.join(sets)} |", f"| --- | {' | '.join('---:' for _ in sets)} |"]
    lines.append(f"| classes, photos to learn, to test | {' | '.join(map(_size, sets.values()))} |")
    for number, run in enumerate(next(iter(sets.values()))["runs"]):
        runs = [found["runs"][number] for found in sets.values()]
        what = "`treering learn`, in two steps" if run["what"] == "treering" else f"{run['what']}, all classes at once"
        cells = (f"{own['percent_right_on_val']:.1f} in {own['seconds']:.0f} s" for own in runs)
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _size(found: Record) -> str:
    return f"{found['classes']}, {found['train']}, {found['val']}"


def photo_sets_in_words() -> str:
    """Return what the table says of the first set and of all."""
    sets = measured("frozen_features")["sets"]
    words = []
    for name, found in sets.items():
        ours, *others = (run["percent_right_on_val"] for run in found["runs"])
        words.append(f"{ours:.1f} % of {name} (they at best {max(others):.1f} %)")
    return f"Of test photos treering tells right {', '.join(words[:2])},\n{', '.join(words[2:-1])} and {words[-1]}.\n"


def parts() -> dict[tuple[Path, str], str]:
    """Return the generated text of each page and part."""
    results = read_results(pages.PROJECT / "results")
    return {
        (pages.README, "tables"): beside_the_paper(results),
        (pages.README, "speed"): throughput(),
        (pages.README, "birds"): photo_sets_in_words(),
        (pages.PHOTOS, "birds"): photo_sets(),
        (pages.RESULTS, "tables"): markdown.measured(results),
        (pages.RESULTS, "speed"): throughput() + "\n" + scaling(),
    }


def _number(value: float | None, deviation: float | None) -> str:
    return "–" if value is None else f"{value:.1f}" + ("" if deviation is None else f" ± {deviation:.1f}")  # noqa: RUF001


def _runs(name: str) -> str:
    count = name.partition(" ")[0]
    return "one run" if count == "1" else f"{count} runs at once"


def _where(record: Record) -> str:
    return f"{record['device']}, torch {record['torch']}, commit {record['commit'][:7]}"


def main() -> None:
    """Write every part into its page."""
    for (page, name), text in parts().items():
        whole = page.read_text(encoding="utf-8")
        page.write_text(pages.rewritten(whole, name, lambda _, text=text: text), encoding="utf-8")  # type: ignore[misc]


if __name__ == "__main__":
    main()
