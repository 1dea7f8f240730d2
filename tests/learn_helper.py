"""Folders of photos and steps so tiny that one takes a quarter of a second, and a script that kills them.

`python learn_helper.py FOLDER SEED KILLS [SETTING …]` first lets a model learn two steps in peace, then kills learns of
the same steps with SIGKILL at moments spread over all of a learn, half of them inside the writing of a file, looks at
what is left, and has the same call go on. Moments are counted in Python's calls and returns, so that they are the same
on every machine. It prints what each learn came to as JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conftest import images_of, kept, state_of
from PIL import Image

from treering import Learner, TreeringError
from treering.images import files as images
from treering.images import folders
from treering.photos import learn as photos
from treering.photos.outcome import Outcome
from treering.runtime import pixels
from treering.storage.folder import Folder

SIDE = 20
MEMORY = 6
CHANGES = (
    *("training.epochs=3", "training.drop_at=[]", "balanced.epochs=2", "balanced.drop_at=[]"),
    *("augmentation.crop_size=16", f"run.image_size={SIDE}", "optimizer.batch_size=8"),
)
TUNED = (
    *("method=tuned", "augmentation.kind=photo", "training.shape=cosine", "balanced.shape=cosine", "training.lr=0.01"),
    *("optimizer.kind=adam", "optimizer.clip=1", "optimizer.reset_momentum=false", "optimizer.decay=plain"),
)
"""Changes that train a copy of the network beside a closed form."""
NEW: dict[str, Any] = {"backbone": "small", "memory": MEMORY, "changes": CHANGES}
"""Arguments of a first learn."""
FIRST = {"cat": 8, "dog": 7}
SECOND = {"cat": 6, "owl": 8}


def make_folder(folder: Path, counts: Mapping[str, int], seed: int = 0) -> Path:
    """`counts` photos of each class; with the same `seed` the same ones."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(images_of([name] * count, seed=100 * seed + len(name), side=SIDE)):
            Image.fromarray(image).save(folder / name / f"{seed}-{number}.jpg", quality=95)
    return folder


def learn(path: Path, folder: Path, **settings: Any) -> Outcome | None:
    """`photos.learn` on the CPU; with the tiny settings if there is no model yet."""
    new = {} if (path / "manifest.json").exists() else NEW
    return photos.learn(path, folder, **{"device": "cpu"} | new | settings)


def pixels_in(folder: Path) -> dict[str, list[bytes]]:
    """The pixels of each class's photos, as `kept` gives those of a model; in the order of their names."""
    found = folders.scan(folder).classes
    return {name: kept(np.stack([images.read(file, SIDE) for file in paths])) for name, paths in found.items()}


def held_out_of(learner: Learner) -> dict[Any, list[bytes]]:
    """The held-out images of each class."""
    model = learner.learnt_model()
    return {model.classes[column]: kept(part) for column, part in model.held_out.items()}


def model_state(path: Path) -> dict[str, Any]:
    """Every bit a model folder holds but times of day: network, memory, held-out images, generator, history."""
    learner = Learner.load(path, device="cpu")
    tensors = {name: part.numpy().tobytes() for name, part in learner.learnt_model().method.tensors().items()}
    own = {"held out": held_out_of(learner), "recipe": learner.resolved_recipe().to_dict(), "tensors": tensors}
    return state_of(learner) | own


def digest(path: Path) -> str | None:
    """Of `model_state`; None where there is no model. A damaged one is an error."""
    if not (path / "manifest.json").exists():
        return None
    return hashlib.sha256(_plain(model_state(path)).encode()).hexdigest()


def _plain(value: Any) -> str:
    """A text that is equal for equal values, whatever the order of their tables."""
    if isinstance(value, dict):
        return repr(sorted((repr(key), _plain(part)) for key, part in value.items()))
    return repr([_plain(part) for part in value]) if isinstance(value, list | tuple) else repr(value)


def is_only_solved(path: Path) -> bool:
    """Whether the model has what was solved of its last step, whose training is still to come."""
    history = Learner.load(path, device="cpu").history_ if (path / "manifest.json").exists() else []
    return bool(history and history[-1].get("unfinished"))


def leftovers(path: Path) -> list[str]:
    """Files in a model folder that no version of it names and that are neither its manifests nor its lock."""
    manifests = [path / "manifest.json", *path.glob("previous/[0-9]*.json")]
    named = {file.relative_to(path).as_posix() for file in manifests}
    for manifest in manifests:
        entries = json.loads(manifest.read_bytes())["files"]
        parts = [entry for kind in ("memory", "held_out") for part in entries[kind] for entry in part]
        named |= {entry["name"] for entry in (entries["weights"], entries["history"], *parts)}
    there = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    assert named <= there, named - there
    return sorted(there - named - {".lock"})


# --- Killing ----------------------------------------------------------------------------------------------------------


class Ticks:
    """Counts Python's calls and returns, or only those inside the writing of files, and acts at one of them."""

    def __init__(self, at: int, in_writes: bool, act: Callable[[], None]) -> None:
        self.at, self.in_writes, self.act = at, in_writes, act
        self.now = self.writing = 0

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if self.writing or not self.in_writes:
            self.now += 1
            if self.now == self.at:
                self.act()

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count from here on: everything, or what happens where files are written and photos put away."""
        places: list[tuple[Any, str]] = [(Folder, "write"), (Folder, "flush"), (pixels.PixelFile, "append")]
        before = [getattr(owner, name) for owner, name in places]
        for (owner, name), function in zip(places, before, strict=True):
            setattr(owner, name, self._watched(function))
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            for (owner, name), function in zip(places, before, strict=True):
                setattr(owner, name, function)

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **settings: Any) -> Any:
            self.writing += 1
            try:
                return function(*arguments, **settings)
            finally:
                self.writing -= 1

        return watched


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(action: Callable[[], Any]) -> tuple[int, Any]:
    """Do it in a process of its own; returns how that ended (negative: the signal) and what `action` returned."""
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        status = 1
        try:
            os.close(reader)
            os.write(writer, json.dumps(action()).encode())
            status = 0
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        said = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return status, json.loads(said) if said else None


def attempt(path: Path, folder: Path, at: int | None = None, in_writes: bool = False) -> dict[str, Any] | None:
    """Learn in a process that dies at moment `at`, if it comes to it; None if it did, else how it went."""

    def action() -> dict[str, Any]:
        ticks = Ticks(at or 0, in_writes, kill_myself)
        told: list[bool] = []
        with contextlib.nullcontext() if at is None else ticks.counting():
            learn(path, folder, tell=lambda plan: told.append(plan.resumed))
        return {"moments": ticks.now, "resumed": told == [True]}

    status, facts = in_child(action)
    if status not in (0, -signal.SIGKILL):
        sys.exit(f"the learn ended with {status}")
    return facts


def killed_learn(base: Path | None, path: Path, folder: Path, at: list[int], in_writes: bool) -> dict[str, Any]:
    """Learn from `base`, killed at each moment of `at` in turn, then in peace."""
    if base:
        shutil.copytree(base, path)
    before, ended = digest(path), None
    facts: dict[str, Any] = {"kills": 0, "unfinished": 0, "solved": 0, "complete": False}
    for moment in at:
        ended = attempt(path, folder, moment, in_writes)
        if ended:
            break
        facts["kills"] += 1
        facts["unfinished"] += (path / ".learning").exists()
        facts["solved"] += is_only_solved(path)
        if not is_only_solved(path) and digest(path) != before:  # killed when nothing is left to be done
            return facts | {"complete": True, "digest": digest(path)}
    ended = ended or attempt(path, folder)
    assert ended is not None
    return facts | {"resumed": ended["resumed"], "digest": digest(path), "left over": leftovers(path)}


def main(folder: Path, seed: int, kills: int) -> None:
    torch.set_num_threads(1)
    photos.SAVE_EVERY = 0.0
    first, second = make_folder(folder / "first", FIRST), make_folder(folder / "second", SECOND, seed=1)
    base, whole = folder / "base", folder / "whole"
    steps: list[tuple[Path | None, Path, str | None, dict[bool, int]]] = []
    for start, source, end in ((None, first, base), (base, second, whole)):
        moments = {}
        for in_writes in (True, False):
            shutil.rmtree(end, ignore_errors=True)
            if start:
                shutil.copytree(start, end)
            facts = attempt(end, source, 0, in_writes)
            assert facts is not None
            moments[in_writes] = facts["moments"]
        steps.append((start, source, digest(end), moments))
    draw = random.Random(seed)
    outcomes = []
    for number in range(kills):
        start, source, wanted, moments = steps[number % 3 > 0]  # a later step has more to lose: two of three
        in_writes = number % 2 == 0
        share = (number // 2 + draw.random()) / ((kills + 1) // 2)  # every part of a learn gets its turn
        at = [1 + int(share * (moments[in_writes] - 1))]
        at += [1 + draw.randrange(moments[in_writes])] * (number % 5 == 0)  # and some are killed twice
        try:
            facts = killed_learn(start, folder / f"kill{number}", source, at, in_writes)
        except TreeringError as error:
            facts = {"kills": 1, "error": str(error)}
        outcomes.append(facts | {"wanted": wanted, "at": at, "in writes": in_writes, "first": start is None})
    sys.stdout.write(json.dumps(outcomes))


if __name__ == "__main__":
    NEW["changes"] = (*CHANGES, *sys.argv[4:])
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
