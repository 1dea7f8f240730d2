"""Run the commands that README.md and docs/ show with their answers, and write the real answers below them.

    python benchmarks/transcript.py --birds DIR    # runs the commands, records their answers, rewrites the pages
    python benchmarks/transcript.py                # rewrites the pages from the record

DIR holds fifteen species of birds as `train/<class>/<photo>` and `val/<class>/<photo>`. In a temporary folder the first
ten classes become `season-1`, the other five `season-2`, and the first photos of three test classes become `inbox`. The
commands are the lines that begin with `$` in the parts of docs/ called `transcript`; README.md shows some of them. The
record, benchmarks/results/transcript.json, holds every line of every answer and, after each `learn`, the accuracy on
`val` of the classes known by then.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pages

from treering import Recipe

RECORD = pages.PROJECT / "benchmarks" / "results" / "transcript.json"
MOST_LINES = {pages.README: 8, pages.PHOTOS: 20, pages.EXPERIMENTS: 20}
"""Lines of an answer that a page shows at most."""
FIRST_SEASON = 10
"""Classes of the first season; the second has the others."""
SHORT_LIST = 4
"""Lists of so many lines are shown whole."""
PICTURES = ("confusion.png", "demo/digits.png")
"""The pages show these pictures, which their commands draw."""


def commands_in(page: str) -> list[str]:
    """Return the commands in the page's transcripts, in their order."""
    lines = "\n".join(pages.parts(page, "transcript")).splitlines()
    return [line[2:] for line in lines if line.startswith("$ ")]


def answered(part: str, answers: dict[str, list[str]], most_lines: int) -> str:
    """Return a transcript whose commands have their recorded answers, shortened to `most_lines` lines each."""
    lines = ["```"]
    for command in (line[2:] for line in part.splitlines() if line.startswith("$ ")):
        if command not in answers:
            raise SystemExit(f"{command!r} was not recorded: show it in docs/ too, and run with --birds DIR")
        lines += [f"$ {command}", *shortened(answers[command], most_lines)]
    return "\n".join([*lines, "```"]) + "\n"


def shortened(lines: list[str], most: int) -> list[str]:
    """Leave out as many lines as are too many: first those of the longest lists, then those before the end."""
    while len(lines) > most:
        begin, end = max(lists_in(lines), key=lambda part: part[1] - part[0], default=(0, 0))
        if end - begin <= SHORT_LIST:
            return [*lines[:2], "…", *lines[3 - most :]]
        lines = [*lines[: begin + 2], "  …", *lines[end:]]
    return lines


def lists_in(lines: list[str]) -> list[tuple[int, int]]:
    """Return the begin and the end of each series of indented lines and of each table's rows."""
    begin, found = 0, []
    for mark, series in itertools.groupby(lines, key=lambda line: line[:2]):
        end = begin + len(list(series))
        found += [(begin, end)] if mark in ("  ", "│ ") else []
        begin = end
    return found


def written(page: str, answers: dict[str, list[str]], most_lines: int) -> str:
    """Return the page with the recorded answers, shortened to `most_lines` lines each."""
    return pages.rewritten(page, "transcript", lambda part: answered(part, answers, most_lines))


def recorded() -> dict[str, list[str]]:
    """Return the lines that each command of the record printed."""
    return {each["command"]: each["printed"] for each in json.loads(RECORD.read_text(encoding="utf-8"))["commands"]}


def make_seasons(birds: Path, place: Path) -> None:
    """Divide the training photos into two seasons, and put test photos of three classes into an inbox."""
    classes = sorted(folder.name for folder in (birds / "train").iterdir() if folder.is_dir())
    for number, name in enumerate(classes):
        season = "season-1" if number < FIRST_SEASON else "season-2"
        shutil.copytree(birds / "train" / name, place / season / name)
    shutil.copytree(birds / "val", place / "val")
    (place / "inbox").mkdir()
    for name in (classes[3], classes[6], classes[-1]):
        photo = min((birds / "val" / name).iterdir())
        shutil.copy(photo, place / "inbox" / f"{name.lower().replace(' ', '-')}{photo.suffix}")


def treering(place: Path, command: str) -> tuple[str, float]:
    """Run a command in the folder; return what it printed and its seconds."""
    program, *arguments = shlex.split(command)
    if program != "treering":
        raise SystemExit(f"{command!r} is not a treering command")
    begin = time.perf_counter()
    environment = os.environ | {"COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
    ended = subprocess.run(
        [sys.executable, "-m", "treering", *arguments], cwd=place, env=environment, capture_output=True, text=True
    )
    if ended.returncode:
        raise SystemExit(f"{command!r} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout.replace(f"{place}{os.sep}", ""), time.perf_counter() - begin


def accuracy(place: Path, model: str, seasons: Sequence[str]) -> dict[str, float]:
    """Return the percentage of right answers on the photos of `val`, in all and for each season that was learnt."""
    printed, _ = treering(place, f"treering predict {model} val --top 1 --json")
    right: dict[str, list[bool]] = {"all": []}
    for found in map(json.loads, printed.splitlines()):
        name = Path(found["file"]).parent.name
        for season in (season for season in seasons if (place / season / name).exists()):
            for part in ("all", season):
                right.setdefault(part, []).append(found["predictions"][0]["class"] == name)
    return {part: 100 * sum(answers) / len(answers) for part, answers in right.items()}


def record(birds: Path, commands: list[str]) -> dict[str, Any]:
    """Run the commands and return what they printed, how long they took and how right the models were."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=pages.PROJECT, capture_output=True, text=True)
    learnt: list[str] = []
    run: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        make_seasons(birds.resolve(), place)
        for command in commands:
            printed, seconds = treering(place, command)
            lines = [line.rstrip() for line in printed.rstrip().splitlines()]
            run.append({"command": command, "seconds": round(seconds, 1), "printed": lines})
            if command.startswith("treering learn "):
                model, season = shlex.split(command)[2:4]
                learnt.append(season)
                run[-1]["percent_right_on_val"] = accuracy(place, model, learnt)
            sys.stdout.write(f"$ {command}\n{printed}")
            sys.stdout.flush()
        for picture in PICTURES:
            shutil.copy(place / picture, pages.DOCS)
    machine = f"{os.cpu_count()} CPU cores, {platform.machine()}"
    pixels = Recipe.find("photos").run.image_size
    found = {"benchmark": "transcript", "commit": commit.stdout.strip(), "machine": machine, "pixels": pixels}
    return found | {"commands": run}


def main() -> None:
    """Record the commands if photos are given, and rewrite both pages from the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--birds", type=Path, metavar="DIR", help="train/<class>/ and val/<class>/")
    options = parser.parse_args()
    if options.birds:
        shown = [page.read_text(encoding="utf-8") for page in (pages.PHOTOS, pages.EXPERIMENTS)]
        found = record(options.birds, [command for page in shown for command in commands_in(page)])
        RECORD.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for page, most_lines in MOST_LINES.items():
        text = written(page.read_text(encoding="utf-8"), recorded(), most_lines)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
