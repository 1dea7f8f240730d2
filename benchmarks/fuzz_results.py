"""Damaged and forged results and unfinished steps: each is used or refused in one line, in bounded time and memory.

    python benchmarks/fuzz_results.py [--results 2000] [--states 2000] [--seed 0] [--out FILE.json]

Results are mutated byte by byte or value by value, some with a checksum made anew, and go through `treering report` and
`treering run`. States of interrupted runs and steps are mutated likewise, and the same commands go on from them. Each
command is a process of its own with a limit to its memory. A finding is a traceback, anything printed that steers a
terminal, a command that computes for more than `SECONDS` or ends by a signal, or a damaged state that leads to another
end than the whole one. Ctrl-C ends the trials early. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mutations import mutated_result, mutated_state
from PIL import Image

from treering import Learner, Recipe, cli, data
from treering.data.stream import ResidentImages
from treering.experiments import run as runs
from treering.experiments import stored
from treering.methods import speed
from treering.photos import learn as photos
from treering.report import figures

SECONDS, PATIENCE = 20, 600.0
"""The seconds that a command may compute, and those that it may take on a machine with much else to do."""
MEMORY = 2 * 2**30
"""The bytes that a command may have beyond those of the process that it comes from."""
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
DRAWN = 20
"""Every so-manieth report draws its figures, which takes most of a report's time."""
TOML = """
backbone = "small"
[training]
epochs = 2
drop_at = []
[balanced]
epochs = 2
drop_at = []
[augmentation]
kind = "none"
[memory]
size = 4
[run]
dataset = "tiny"
classes_per_step = 2
image_size = 8
"""
CHANGES = (
    *("training.epochs=2", "training.drop_at=[]", "balanced.epochs=2", "balanced.drop_at=[]"),
    *("augmentation.crop_size=8", "run.image_size=10", "optimizer.batch_size=4"),
)


@dataclass
class Tried:
    """What the trials of one kind have shown."""

    trials: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    findings: list[str] = field(default_factory=list)


def command(arguments: Sequence[object], printed: Path, drawn: bool = True) -> tuple[str, str, float]:
    """Do `treering ARGUMENTS` in a process of its own; return what came of it, what it printed, and its time."""
    begun, process = time.monotonic(), os.fork()
    if not process:
        _be_command(arguments, printed, drawn)
    while time.monotonic() - begun < PATIENCE:
        found, status, usage = os.wait4(process, os.WNOHANG)
        if found:
            code, seconds = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
            break
        time.sleep(0.002)
    else:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        code, seconds = -1, PATIENCE
    return f"exit code {code}", printed.read_text(errors="surrogateescape"), seconds


def _be_command(arguments: Sequence[object], printed: Path, drawn: bool) -> None:
    base = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (base + MEMORY, base + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    sys.stdout = sys.stderr = printed.open("w", errors="surrogateescape")
    sys.argv = ["treering", *map(str, arguments)]
    if not drawn:
        figures.render = lambda chart: {"png": b"", "svg": b'<svg width="1pt" viewBox="0 0 1 1"></svg>'}
    code = 3
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        traceback.print_exc(file=sys.stderr or printed.open("a"))
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(code)


def note(tried: Tried, arguments: Sequence[object], place: Path, drawn: bool, what: str) -> int:
    """Do a command, take note of what comes of it, and return its exit code."""
    outcome, said, seconds = command(arguments, place / "printed", drawn)
    tried.outcomes[outcome] += 1
    tried.slowest = max(tried.slowest, seconds)
    wrong = [outcome] if outcome not in ("exit code 0", "exit code 2") else []
    wrong += ["a traceback"] if "Traceback" in said else []
    wrong += ["something that steers a terminal"] if STEERING.search(said) else []
    errors = [line for line in said.splitlines() if line.startswith("treering: ")]
    wrong += ["no message"] if outcome == "exit code 2" and not errors else []
    for problem in wrong:
        tried.findings.append(f"{what}: {problem}: {said[-1500:]!r}")
    return int(outcome.split()[-1])


def try_results(tried: Tried, count: int, draw: random.Random, place: Path) -> None:
    """Have reports made of mutated results, and runs that meet one."""
    (place / "results").mkdir(parents=True)
    originals = sorted(Path(__file__).parent.parent.joinpath("results").glob("*.json"))
    own = sorted((place.parent / "peace").glob("*.json"))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        sys.argv = ["treering", "report", str(place.parent / "peace"), "--out", str(place / "report")]
        cli.main()  # every process that follows has what this imports
    for number in range(count):
        shutil.rmtree(place / "results")
        (place / "results").mkdir()
        source = draw.choice([*originals, *own * 20])
        file = place / "results" / (own[0].name if source in own else source.name)
        file.write_bytes(mutated_result(source.read_bytes(), draw))
        arguments: list[object] = ["report", place / "results", "--out", place / "report"]
        note(tried, arguments, place, number % DRAWN == 0, f"report of result {number}")
        if source in own:
            arguments = ["run", place.parent / "tiny.toml", "--data", place.parent, "--results", place / "results"]
            note(tried, arguments, place, False, f"run of result {number}")
        tried.trials += 1


def try_states(
    tried: Tried,
    count: int,
    draw: random.Random,
    state: bytes,
    prepare: Callable[[bytes], Sequence[object]],
    end: Callable[[], Any],
) -> None:
    """Have a command go on from mutated states; `end` returns what it led to."""
    with tempfile.TemporaryDirectory() as printed:
        if note(tried, prepare(b""), Path(printed), False, "no state"):
            sys.exit(f"the command fails without a state: {Path(printed, 'printed').read_text()}")
        peace = end()
        for number in range(count):
            content, forged = mutated_state(state, draw)
            code = note(tried, prepare(content), Path(printed), False, f"state {number}")
            if code == 0 and not forged and end() != peace:
                tried.findings.append(f"state {number}: another end")
            tried.trials += 1


def write_photos(folder: Path, names: str, count: int) -> Path:
    """Write FOLDER/<class>/<number>.png; return the folder."""
    numbers = np.random.RandomState(0)
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = numbers.randint(0, 60, (10, 10, 3)) + 2 * ord(name) - 100
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


def interrupted_run(place: Path) -> bytes:
    """Interrupt a run in its second step, and let another come to its end; return the state of the first."""
    recipe = Recipe.find(str(place / "tiny.toml"))
    images = ResidentImages.of(data.load("tiny", place, image_size=8), torch.device("cpu"))

    def stop(now: runs.RunProgress) -> None:
        if now.step == 2 and now.stage != "training" and now.epoch == 1:
            raise KeyboardInterrupt

    runs.StreamRun(recipe, images, place / "peace")()
    run = runs.StreamRun(recipe, images, place / "interrupted")
    run.watch = stop
    with contextlib.suppress(KeyboardInterrupt):
        run()
    return run.state.file.read_bytes()


def try_runs(tried: Tried, count: int, draw: random.Random, place: Path, state: bytes) -> None:
    """Have runs go on from mutated states."""
    (name,) = (file.name for file in (place / "interrupted" / ".unfinished").glob("*.safetensors"))
    results = place / "resumed"

    def prepare(content: bytes) -> Sequence[object]:
        shutil.rmtree(results, ignore_errors=True)
        (results / ".unfinished").mkdir(parents=True)
        (results / ".unfinished" / name).write_bytes(content)
        return ["run", place / "tiny.toml", "--data", place, "--results", results, "--device", "cpu"]

    def end() -> Any:
        (file,) = results.glob("*.json")
        result = stored.read(file)
        return result["accuracy"], result["confusion"], result["class_accuracy"]

    try_states(tried, count, draw, state, prepare, end)


def try_learns(tried: Tried, count: int, draw: random.Random, place: Path) -> None:
    """Have learns go on from mutated states."""
    first, second = write_photos(place / "first", "ab", 6), write_photos(place / "second", "c", 6)
    photos.SAVE_EVERY = 0.0
    photos.learn(place / "model", first, backbone="small", memory=4, changes=CHANGES, device="cpu")
    epochs = 0

    def stop(what: str, done: int, total: int) -> None:
        nonlocal epochs
        epochs += (place / "begun" / ".learning").exists()
        if epochs == 3:
            raise KeyboardInterrupt

    shutil.copytree(place / "model", place / "begun")
    with contextlib.suppress(KeyboardInterrupt):
        photos.learn(place / "begun", second, device="cpu", progress=stop)
    state = (place / "begun" / ".learning").read_bytes()

    def prepare(content: bytes) -> Sequence[object]:
        shutil.rmtree(place / "resumed", ignore_errors=True)
        shutil.copytree(place / "model", place / "resumed")
        (place / "resumed" / ".learning").write_bytes(content)
        return ["learn", place / "resumed", second, "--device", "cpu"]

    def end() -> Any:
        images = np.random.RandomState(0).randint(0, 256, (4, 10, 10, 3), dtype=np.uint8)
        return Learner.load(place / "resumed", device="cpu").predict_proba(images).tolist()

    try_states(tried, count, draw, state, prepare, end)


def main() -> None:
    """Try everything, write what was found, and fail if anything was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=int, default=2000)
    parser.add_argument("--states", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    speed.images_per_second = lambda *arguments: 1000.0  # it need not be measured
    with tempfile.TemporaryDirectory() as folder:
        place, draw = Path(folder), random.Random(options.seed)
        os.environ["XDG_STATE_HOME"] = str(place / "state")
        (place / "tiny.toml").write_text(TOML)
        for part in ("train", "val"):
            write_photos(place / "tiny" / part, "abcd", 4)
        runs.SAVE_EVERY = 0.0
        state = interrupted_run(place)
        tried = {name: Tried() for name in ("results", "states of runs", "states of learns")}
        of_results, of_runs, of_learns = tried.values()
        with contextlib.suppress(KeyboardInterrupt):
            try_results(of_results, options.results, draw, place / "results")
            try_runs(of_runs, options.states // 2, draw, place, state)
            try_learns(of_learns, options.states - options.states // 2, draw, place / "photos")
    facts = {
        name: {"trials": one.trials, "outcomes": dict(one.outcomes), "slowest": round(one.slowest, 1)}
        | {"findings": one.findings}
        for name, one in tried.items()
    }
    print(json.dumps(facts, indent=1))  # noqa: T201
    if options.out:
        options.out.write_text(json.dumps({"seed": options.seed} | facts, indent=1) + "\n")
    sys.exit(any(one.findings for one in tried.values()))


if __name__ == "__main__":
    main()
