"""Have every file operation of a command on a model folder fail, one after the other, and see what is left.

    python benchmarks/faults.py [--commands save undo] [--every 1] [--out FILE.json]

`strace` makes the first, second, … call of each kind fail with an input/output error, a full disk or an interruption.
After each failure the model folder must hold the old or the new model, whole, with earlier versions that are whole, and
what was printed must be true: a command that ended well has left the new model and has changed all the versions that it
should, one that says the old model is there has left the old one, and nobody sees a traceback. Then the same command
must work, and leave no unfinished file. A learn that trains first saves what is solved, and may leave that too. A photo
that cannot be read is left out and told, so a learn may leave another model. Ctrl-C goes on to the next command. Linux
only; attaching to another process must be allowed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from treering import Learner, TreeringError, cli
from treering.methods import speed
from treering.model import examine
from treering.photos import learn as photos
from treering.storage import check
from treering.terminal import print_error

READING = "openat read pread64 fstat newfstatat statx getdents64 flock"
WRITING = "openat write pwrite64 fsync fdatasync flock rename renameat renameat2 link linkat unlink unlinkat "
WRITING += "mkdir mkdirat rmdir"
SYSTEM_CALLS = sorted({*READING.split(), *WRITING.split()})
ERRORS = {"EIO": SYSTEM_CALLS, "ENOSPC": sorted(WRITING.split()), "EINTR": SYSTEM_CALLS}
"""The errors, and the calls that fail with each."""
COMMANDS = ["save", "learn", "undo", "check", "forget", "rename", "merge", "trained learn"]
LONGEST = 600.0
"""Seconds after which a command is said to hang."""
CHANGES = (
    *("training.epochs=1", "training.drop_at=[]", "balanced.epochs=1", "balanced.drop_at=[]"),
    *("augmentation.crop_size=8", "run.image_size=10", "optimizer.batch_size=4"),
)
SOLVED = ("method=closed-form",)
TRAINED = (
    *("method=tuned", "augmentation.kind=photo", "training.shape=cosine", "balanced.shape=cosine", "training.lr=0.01"),
    *("optimizer.kind=adam", "optimizer.clip=1", "optimizer.reset_momentum=false", "optimizer.decay=plain"),
)
"""Further settings, of models that are solved and of ones that are trained after that."""


Classes = tuple[tuple[Any, ...], ...]


@dataclass
class Command:
    """A command to be disturbed: what it starts from, and what it leads to when nothing fails."""

    name: str
    start: Path
    """A model folder, which is copied for each trial."""
    act: Callable[[Path], None]
    """What does it, given a copy."""
    old: str = ""
    new: str = ""
    """Digests of the models before and after."""
    solved: str = ""
    """The digest of what it saves between the two, if it does."""
    classes_old: Classes = ()
    classes_new: Classes = ()
    """The classes of each version before and after."""


@dataclass
class Found:
    """What the trials of a command have shown."""

    trials: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """How many calls failed, by their names and errors."""
    left: Counter[str] = field(default_factory=Counter)
    """How many trials left the old and the new model, by the command's exit code."""
    violations: list[str] = field(default_factory=list)


def digest(path: Path) -> str:
    """Return a digest of all that a model answers and keeps; any damage raises."""
    learner = Learner.load(path, device="cpu")
    images = np.random.RandomState(0).randint(0, 256, (8, 10, 10, 3), dtype=np.uint8)
    parts = [learner.predict_proba(images).tobytes(), repr(list(learner.classes_)).encode()]
    parts += [b"%d" % len(learner.history_), *(np.asarray(kept).tobytes() for kept in learner.exemplars_.values())]
    parts.append(repr("unfinished" in learner.history_[-1]).encode())
    return hashlib.sha256(b"".join(parts)).hexdigest()


def versions(path: Path) -> tuple[Classes, list[str]]:
    """Return the classes of each version, and what is wrong with any.

    An earlier version that is equal to the current one, which a save that fails may leave, is none to go back to.
    """
    found = check.check(path, examine)
    current = found.versions[0]
    chosen = [current, *(version for version in found.versions[1:] if version.manifest != current.manifest)]
    return tuple(version.manifest.classes if version.manifest else () for version in chosen), found.problems


def run_command(*arguments: object) -> None:
    """Do what `treering ARGUMENTS` does."""
    sys.argv = ["treering", *map(str, arguments)]
    cli.main()


def save(learner: Learner, path: Path) -> None:
    """Save a learner, and print an error as the commands do."""
    try:
        learner.save(path)
    except TreeringError as error:
        print_error(error)
        sys.exit(2)


def write_photos(folder: Path, classes: dict[str, int]) -> Path:
    """Write FOLDER/<class>/<number>.png for each class; return the folder."""
    random = np.random.RandomState(0)
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = random.randint(0, 60, (10, 10, 3)) + 20 * len(name)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


def learnt(path: Path, steps: list[Path], settings: tuple[str, ...] = ()) -> Path:
    """Learn these folders of photos, one after the other; return the model's folder."""
    changes = [word for change in (*CHANGES, *settings) for word in ("--set", change)]
    new = ["--backbone", "small", "--memory", "4", *changes]
    for number, step in enumerate(steps):
        arguments = [path, step, "--device", "cpu", *([] if number else new)]
        attempt(functools.partial(run_command, "learn", *arguments))
    return path


def solved_digest(path: Path, folder: Path) -> str:
    """Return the digest of what a learn saves before it trains."""

    def stop(outcome: object) -> None:
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        photos.learn(path, folder, device="cpu", solved=stop)
    return digest(path)


def commands_of(place: Path, names: list[str]) -> list[Command]:
    """Make the models and photos, and return the commands of these names."""
    first = write_photos(place / "first", {"cat": 6, "horse": 6})
    second = write_photos(place / "second", {"an owl": 6})
    few = [write_photos(place / "few", {"cat": 2, "horse": 2}), write_photos(place / "more", {"an owl": 2, "a bee": 2})]
    one, two = learnt(place / "one", [first]), learnt(place / "two", [first, second])
    solved = learnt(place / "solved", few, SOLVED)
    learner = Learner.load(two, device="cpu")
    commands = [
        Command("save", one, lambda path: save(learner, path)),
        Command("learn", one, lambda path: run_command("learn", path, second, "--device", "cpu")),
        Command("undo", two, lambda path: run_command("undo", path)),
        Command("check", two, lambda path: run_command("check", path)),
        Command("forget", solved, lambda path: run_command("forget", path, "cat", "horse")),
        Command("rename", solved, lambda path: run_command("rename", path, "cat", "wild cat")),
        Command("merge", solved, lambda path: run_command("merge", path, "an owl", "cat")),
    ]
    if "trained learn" in names:
        trained = learnt(place / "trained", [first], TRAINED)
        between = solved_digest(Path(shutil.copytree(trained, place / "between")), second)
        act = next(command.act for command in commands if command.name == "learn")
        commands.append(Command("trained learn", trained, act, solved=between))
    return [command for command in commands if command.name in names]


def prepared(place: Path, names: list[str]) -> list[Command]:
    """Return the commands of these names, each done once in peace: for its result, and so that all is imported."""
    chosen = commands_of(place, names)
    for command in chosen:
        copy = place / "peace" / command.name
        shutil.copytree(command.start, copy)
        command.old, (command.classes_old, _) = digest(copy), versions(copy)
        code, said = in_peace(command, copy)
        if code:
            sys.exit(f"{command.name} fails without any fault: {said}")
        command.new, (command.classes_new, problems) = digest(copy), versions(copy)
        if problems or (command.solved and len({command.old, command.solved, command.new}) < 3):
            sys.exit(f"{command.name} in peace leaves what it should not: {problems}")
        with contextlib.suppress(SystemExit):  # once in this process too, which imports what it needs
            command.act(Path(shutil.copytree(command.start, place / "peace" / f"{command.name}-here")))
    return chosen


def attempt(act: Callable[[], None]) -> None:
    """Do something in this process that must work."""
    try:
        act()
    except SystemExit as ended:
        if ended.code:
            raise


def started(command: Command, path: Path, printed: Path) -> int:
    """Start the command in a process that waits for a signal; return its number."""
    stream = printed.open("w")  # by this process, whose calls do not fail
    process = os.fork()
    if process:
        stream.close()
        return process
    sys.stdout = sys.stderr = stream  # until the process ends
    signal.sigwait({signal.SIGUSR1})
    code = 1
    try:
        command.act(path)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        with contextlib.suppress(OSError):
            printed.with_suffix(".traceback").write_text(traceback.format_exc())
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(code)


def ended(process: int) -> int | None:
    """Wait for a process; return its exit code, or None if it had to be killed."""
    until = time.monotonic() + LONGEST
    while time.monotonic() < until:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def in_peace(command: Command, path: Path) -> tuple[int | None, str]:
    """Do the command in a process of its own; return its exit code and what it printed."""
    printed = path.with_name(f"{path.name}.printed")
    process = started(command, path, printed)
    os.kill(process, signal.SIGUSR1)
    code = ended(process)
    return code, said_in(printed)


def said_in(printed: Path) -> str:
    """Return what a command has printed, with its traceback."""
    return "".join(
        file.read_text(errors="replace") for file in (printed, printed.with_suffix(".traceback")) if file.exists()
    )


def disturbed(command: Command, path: Path, options: list[str]) -> tuple[int | None, str, list[str]]:
    """Do the command under strace; return its exit code, what it printed, and strace's lines."""
    printed, log = path.with_name(f"{path.name}.printed"), path.with_name(f"{path.name}.strace")
    process = started(command, path, printed)
    calls = "trace=" + ",".join(f"?{call}" for call in SYSTEM_CALLS)
    tracing = ["strace", "-f", "-y", "-e", calls, *options, "-o", str(log), "-p", str(process)]
    with subprocess.Popen(tracing, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        first = tracer.stderr.readline()
        if "attached" not in first:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            sys.exit(f"strace cannot attach: {first.strip()}")
        os.kill(process, signal.SIGUSR1)
        code = ended(process)
    return code, said_in(printed), log.read_text(errors="replace").splitlines()


def counted(command: Command, path: Path) -> dict[str, int]:
    """Return the most calls of each kind that a thread of the command makes."""
    shutil.copytree(command.start, path)
    _, _, lines = disturbed(command, path, [])
    calls: Counter[tuple[str, str]] = Counter()
    for line in lines:
        match = re.match(r"(\d+) +(\w+)\(", line)
        if match:
            calls[match[1], match[2]] += 1
    most: dict[str, int] = {}
    for (_, call), count in calls.items():
        most[call] = max(most.get(call, 0), count)
    return most


def state_of(command: Command, path: Path) -> str:
    """Return which model the folder holds."""
    try:
        found = digest(path)
    except Exception as error:
        return f"broken ({error})"
    if command.new == command.old == found:
        return "same"
    return {command.new: "new", command.old: "old", command.solved: "solved"}.get(found, "another")


def judged(command: Command, path: Path, state: str, code: int | None, said: str, told: bool) -> Iterator[str]:
    """Yield what is wrong with the state that a disturbed command has left, and with what it said."""
    without_photos = state == "another" and "Left out:" in said
    if state not in ("old", "solved", "new", "same") and not without_photos:
        yield f"the model is {state}"
        return
    classes, problems = versions(path)
    if problems:
        yield f"versions are broken: {problems}"
    if code == 0 and classes != command.classes_new:
        yield f"it ended well and left versions with the classes {classes}"
    if code is None:
        yield "it hangs"
    elif code not in (0, 1, 2) or "Traceback" in said:
        yield f"exit code {code}, and a traceback"
    if code == 0 and state in ("old", "solved"):
        yield f"it ended well and left the {state} model"
    if re.search(r"is intact|as it was|nothing is changed", said) and state in ("solved", "new"):
        yield f"it says that the old model is there, and the {state} one is"
    if re.search(r"is intact|nothing is changed", said) and classes != command.classes_old:
        yield f"it says that nothing has changed, and the versions have the classes {classes}"
    if "by what was solved" in said and state in ("old", "new"):
        yield f"it says that what was solved is there, and the {state} model is"
    if "was changed, but" in said and state == "old":
        yield "it says that the new model is there, and the old one is"
    if code == 2 and told and not re.search(r"^treering: ", said, re.MULTILINE):
        yield "it failed without a message"
    if state in ("old", "solved"):
        again, what = in_peace(command, path)
        if again or digest(path) != command.new or versions(path) != (command.classes_new, []):
            yield f"the same command does not work afterwards: {what.strip()}"
        if list(path.rglob(".tmp-*")):
            yield "unfinished files stay"


def explore(found: Found, command: Command, place: Path, every: int, errors: list[str]) -> None:
    """Have each call of a command fail with each of these errors."""
    counts = counted(command, place / "counted")
    for error in errors:
        for call in ERRORS[error]:
            for number in range(1, counts.get(call, 0) + 1, every):
                path = place / "trial" / "model"
                shutil.rmtree(path.parent, ignore_errors=True)
                path.parent.mkdir(parents=True)
                shutil.copytree(command.start, path)
                code, said, lines = disturbed(command, path, ["-e", f"inject={call}:error={error}:when={number}"])
                hit = [line for line in lines if "INJECTED" in line]
                if not hit:
                    continue
                found.trials += 1
                found.failures[f"{call} {error}"] += len(hit)
                state = state_of(command, path)
                told = not any("model.printed>" in line for line in hit)
                wrong = list(judged(command, path, state, code, said, told))
                where = f"{call} {number} {error} ({hit[0][:200]}), which said {said.strip()[-600:]!r}"
                found.violations += [f"{problem}: {where}" for problem in wrong]
                found.left[f"exit code {code}, {state} model"] += 1


def main() -> None:
    """Try every command, write what was found, and fail if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", nargs="+", default=COMMANDS, choices=COMMANDS)
    parser.add_argument("--every", type=int, default=1, help="Have only every so-manieth call fail.")
    parser.add_argument("--errors", nargs="+", default=list(ERRORS), choices=list(ERRORS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if shutil.which("strace") is None:
        sys.exit("this needs strace")
    torch.set_num_threads(1)
    speed.images_per_second = lambda *arguments: 1000.0  # it need not be measured
    speed.solving_seconds = lambda *arguments: 1.0
    photos.SAVE_EVERY = 0.0
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with (place / "printed").open("w") as printed, contextlib.redirect_stdout(printed):
            commands = prepared(place, options.commands)
        for command in commands:
            begun, found = time.monotonic(), Found()
            with contextlib.suppress(KeyboardInterrupt):
                explore(found, command, place / command.name, options.every, options.errors)
            facts[command.name] = {
                "trials": found.trials,
                "calls that failed": dict(sorted(found.failures.items())),
                "left": dict(sorted(found.left.items())),
                "violations": found.violations,
                "seconds": round(time.monotonic() - begun),
            }
            print(f"{command.name}: {found.trials} trials, {len(found.violations)} violations", flush=True)  # noqa: T201
            for violation in found.violations:
                print(f"  {violation}", flush=True)  # noqa: T201
            if options.out:
                options.out.write_text(json.dumps(facts, indent=1) + "\n")
    sys.exit(any(found["violations"] for found in facts.values()))


if __name__ == "__main__":
    main()
