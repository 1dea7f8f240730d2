"""Write the tables of README.md and docs/ from results/ and benchmarks/results/: `python benchmarks/table.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
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
    """Return a table of the accuracy on each set of photos, treering's and that of others: means over the draws."""
    sets = _photos()
    lines = [f"| right in % | {' | '.join(sets)} |", f"| --- | {' | '.join('---:' for _ in sets)} |"]
    sizes = (f"{draws[0]['classes']}, {draws[0]['photos']}, {len(draws)}" for draws in sets.values())
    lines.append(f"| classes, photos to learn, draws | {' | '.join(sizes)} |")
    for what in dict.fromkeys(run["what"] for draws in sets.values() for draw in draws for run in draw["runs"]):
        found = [[run for draw in draws for run in draw["runs"] if run["what"] == what] for draws in sets.values()]
        name = f"`{what.replace('treering', 'treering learn')}`, four steps" if what.startswith("treering") else what
        lines.append(f"| {name} | {' | '.join(map(_cell, found))} |")
    return "\n".join(lines) + "\n"


def old_classes() -> str:
    """Return a table of how well the first step's classes are told before and after the second: means over draws."""
    sets = _photos()
    lines = [f"| right in % | {' | '.join(sets)} |", f"| --- | {' | '.join('---:' for _ in sets)} |"]
    for what in dict.fromkeys(run["what"] for draws in sets.values() for draw in draws for run in draw["runs"]):
        found = [[run for draw in draws for run in draw["runs"] if run["what"] == what] for draws in sets.values()]
        pairs = [[run["percent_right_of_old"] for run in runs if "percent_right_of_old" in run] for runs in found]
        if any(pairs):
            cells = (", then ".join(f"{fmean(pair[step] for pair in part):.1f}" for step in (0, 1)) if part else "–"  # noqa: RUF001
                     for part in pairs)  # fmt: skip
            lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _photos() -> dict[str, list[Record]]:
    """Return the draws of each set of photos."""
    sets: dict[str, list[Record]] = {}
    for draw in measured("photos")["draws"]:
        sets.setdefault(draw["set"], []).append(draw)
    return {name: sorted(draws, key=lambda draw: draw["draw"]) for name, draws in sets.items()}


def _cell(runs: Sequence[Record]) -> str:
    """Return the accuracy, that on the class of few photos, and the time of the first draw's longest step."""
    if not runs:
        return "–"  # noqa: RUF001
    right, few = (fmean(run[name] for run in runs) for name in ("percent_right", "percent_right_of_few"))
    seconds = max(runs[0]["seconds"]) if isinstance(runs[0]["seconds"], list) else runs[0]["seconds"]
    return f"{right:.1f} ({few:.0f}) in {seconds:.0f} s"


def networks() -> str:
    """Return a table of the accuracy of each network on each set of photos, and of its time: means over the draws."""
    draws = measured("networks")["draws"]
    sets = list(dict.fromkeys(draw["set"] for draw in draws))
    lines = [f"| right in % | {' | '.join(sets)} | time |", f"| --- | {' | '.join('---:' for _ in sets)} | ---: |"]
    runs = {name: [(draw["set"], run) for draw in draws for run in draw["runs"] if run["network"] == name]
            for name in dict.fromkeys(run["network"] for draw in draws for run in draw["runs"])}  # fmt: skip
    seconds = {name: sum(run["seconds"] for _, run in own) for name, own in runs.items()}
    first = next(iter(seconds.values()))
    for name, own in runs.items():
        right = (fmean(run["percent_right"] for where, run in own if where == one) for one in sets)
        lines.append(f"| `{name}` | {' | '.join(f'{mean:.1f}' for mean in right)} | {seconds[name] / first:.1f} |")
    return "\n".join(lines) + "\n"


def unknown() -> str:
    """Return a table of how well photos of other things are told from those of known classes."""
    lines = [
        "| the model knows | known photos called unknown | area: unseen classes of the set | area: other sets |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, one in measured("unknown")["sets"].items():
        against = {what: part["area_under_roc"] for what, part in one["against"].items()}
        unseen = against.pop("unseen classes")
        refused = f"{one['percent_of_known_called_unknown']:.1f} % of {one['known_photos']}"
        others = f"{min(against.values()):.3f} to {max(against.values()):.3f}"
        lines.append(f"| {one['classes']} classes of {name} | {refused} | {unseen:.2f} | {others} |")
    return "\n".join(lines) + "\n"


def many_classes() -> str:
    """Return a table of the seconds that one more class takes, by what the model knows."""
    found = measured("many_classes")
    lines = [
        "| the model knows | all at once, keeping 30 of each class | one class more | one more, keeping none |",
        "| --- | ---: | ---: | ---: |",
    ]
    for one in found["models"]:
        kept, none = one["keeping 30 of each class"], one["keeping 0 of each class"]
        seconds = kept["seconds_of_all"], kept["seconds_of_one_more"], none["seconds_of_one_more"]
        cells = " | ".join(f"{value:.0f} s" for value in seconds)
        lines.append(f"| {one['classes']:,} classes, {one['photos']:,} photos | {cells} |")
    return "\n".join(lines) + "\n"


def photo_sets_in_words() -> str:
    """Return what the table says of each set."""
    words = []
    for name, draws in _photos().items():
        means = {run["what"]: fmean(_right(draw, run["what"]) for draw in draws) for run in draws[0]["runs"]}
        best = max(value for what, value in means.items() if not what.startswith("treering"))
        words.append(f"{means['treering']:.1f} % of {name} (best rival: {best:.1f} %)")
    return f"treering recognises {', '.join(words[:2])},\n{', '.join(words[2:-1])} and {words[-1]}.\n"


def _right(draw: Record, what: str) -> float:
    return next((run["percent_right"] for run in draw["runs"] if run["what"] == what), math.nan)


def serving() -> str:
    """Return tables of the server's speed by clients, beside one photo at a time, and what else was measured of it."""
    found = measured("serving")
    new, mixed, kills = found["new class"], found["mixed load"], measured("server_kills")
    lines = [
        f"| {found['cores']} cores, commit {found['commit'][:7]} | one at a time: photos/s | treering: photos/s "
        "| half of the answers within | 99 % within |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for clients, batches in found["batches"].items():
        alone = found["one at a time"][clients]["predictions_per_second"]
        times = f"{batches['p50_ms']:.0f} ms | {batches['p99_ms']:.0f} ms"
        who = "one client" if clients == "1" else f"{clients} clients"
        lines.append(f"| {who} | {alone:.0f} | {batches['predictions_per_second']:.0f} | {times} |")
    learning = f"{new['p50_ms_meanwhile']:.0f} ms | {new['p99_ms_meanwhile']:.0f} ms"
    first, last = (mixed[f"megabytes_in_the_{part}_fifth"] for part in ("second", "last"))
    load = f"{mixed['asked']:,} photos asked, {mixed['taught']} jobs, {mixed['refused']:,} bad photos"
    lines += [
        f"| one client while a step is learnt | | | {learning} |",
        "",
        "The clients share the cores with the server. Ten photos of a class that is new to a model of",
        f"{found['classes']} classes are told rightly {new['answered_rightly_after_seconds']:.0f} s after the first is",
        f"sent. In {mixed['minutes']:g} minutes of mixed load ({load}),",
        f"the server's memory went from {first:,} MB in the second fifth of that time to {last:,} MB in the last.",
        f"In {kills['kills'] - kills['wrong']} of {kills['kills']} trials it was killed in the middle of a job and",
        "lost nothing.",
    ]
    return "\n".join(lines) + "\n"


def parts() -> dict[tuple[Path, str], str]:
    """Return the generated text of each page and part."""
    results = read_results(pages.PROJECT / "results")
    return {
        (pages.README, "tables"): beside_the_paper(results),
        (pages.README, "speed"): throughput(),
        (pages.README, "birds"): photo_sets_in_words(),
        (pages.PHOTOS, "birds"): photo_sets(),
        (pages.PHOTOS, "old"): old_classes(),
        (pages.PHOTOS, "networks"): networks(),
        (pages.PHOTOS, "unknown"): unknown(),
        (pages.PHOTOS, "classes"): many_classes(),
        (pages.SERVING, "serving"): serving(),
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
