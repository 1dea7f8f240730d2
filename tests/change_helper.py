"""A script that kills changes of a model folder at each of their file operations.

`python change_helper.py FOLDER COMMAND…` makes a model of three versions, each with other classes, has the command's
process killed before and after every write, flush and removal, looks at what is left, and runs the same command again.
It prints what each attempt came to as JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from learn_helper import NEW, in_child, kill_myself, leftovers, make_folder

from treering import Learner, TreeringError, changes
from treering import learn as learn_photos
from treering.model import examine
from treering.storage import check
from treering.storage.folder import Folder

OPERATIONS = ("write", "flush", "remove", "remove_folder")
STEPS: list[dict[str, int]] = [{"cat": 4, "dog": 3}, {"fox": 3, "cat": 2}, {"owl": 3, "bee": 3}]
CHANGES: dict[str, changes.Change] = {
    "forget": changes.Forget(["fox", "cat"]),
    "rename": changes.Rename("cat", "dachshund"),
    "merge": changes.Merge("owl", "cat"),
}


def make_model(path: Path, photos: Path, method: str = "closed-form") -> Path:
    """A model of three versions."""
    settings: dict[str, Any] = NEW | {"memory": 3, "changes": [*NEW["changes"], f"method={method}"]}
    for number, counts in enumerate(STEPS):
        learn_photos(path, make_folder(photos / str(number), counts, seed=number), device="cpu", **settings)
        settings = {}
    return path


class Counting:
    """Counts the operations on a folder, and dies before or after one of them."""

    def __init__(self, at: int, after: bool) -> None:
        self.at, self.after, self.now = at, after, 0
        for name in OPERATIONS:
            setattr(Folder, name, self.watched(getattr(Folder, name)))

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **settings: Any) -> Any:
            self.now += 1
            mine = self.now == self.at
            if mine and not self.after:
                kill_myself()
            done = function(*arguments, **settings)
            if mine:
                kill_myself()
            return done

        return watched


def change(path: Path, name: str) -> str:
    """Do it; return what is wrong, or nothing."""
    try:
        changes.in_folder(path, CHANGES[name])
    except TreeringError as error:
        return str(error)
    return ""


def facts(path: Path) -> dict[str, Any]:
    """What is in each version, and the names of all files."""
    found = check.check(path, examine)
    return {
        "classes": [list(version.manifest.classes) if version.manifest else [] for version in found.versions],
        "problems": found.problems,
        "left over": leftovers(path) + list(found.leftovers),
        "files": sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()),
        "history": [(record["new_classes"], record["images"]) for record in Learner.load(path, device="cpu").history_],
    }


def main(folder: Path, name: str, step: int) -> None:
    torch.set_num_threads(1)
    base = make_model(folder / "base", folder / "photos")
    outcomes: list[dict[str, Any]] = []
    at = 1
    while True:
        for after in (False, True):
            path = folder / "model"
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(base, path)

            def killed(path: Path = path, at: int = at, after: bool = after) -> int:
                counting = Counting(at, after)
                assert not change(path, name)
                return counting.now

            status, operations = in_child(killed)
            outcome: dict[str, Any] = {"at": at, "after": after, "status": status, "operations": operations}
            if status:
                between = check.check(path, examine)
                outcome["problems between"] = between.problems
                outcome["again"] = change(path, name)
            outcomes.append(outcome | facts(path))
        if not outcomes[-1]["status"]:
            break
        at += step
    sys.stdout.write(json.dumps({"before": facts(base), "outcomes": outcomes}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
