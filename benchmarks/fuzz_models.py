"""Changes model folders as a stranger might, and looks at what every command makes of them.

    python benchmarks/fuzz_models.py --folders 5000 --seed 0 --out benchmarks/results/fuzz_models.json

Each folder is a copy of a small model with one to three changes: bytes, values of JSON with new checksums, headers and
numbers of tensors, other images, swapped files, links, pipes and files of gigabytes. A process of its own, which may
take 2 GiB more than it has, runs the commands on it, for at most 10 seconds each: `check`, `predict`, `info`,
`evaluate`, `export`, `undo` and `learn`, and on copies `rename` and `forget`, `merge`, and `check --repair`. No command
may end in a traceback, run on, print a control character, answer by a model that `check` calls broken or change its
classes, leave a model that `check` calls broken where it says that all is well, or touch a folder outside of the model.
An export takes seconds, so of the models that are whole only one in `EXPORTED` is exported.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from hostile_models import CHANGES, Mutant, make_models, make_outside, state_of

SECONDS = 10.0
"""The most that a command may compute."""
PATIENCE = 6
"""The most that a command may take, in units of `SECONDS`: other programs may have the processors meanwhile."""
MEMORY = 2**31
"""The most bytes of address space that a command may take beyond what the process has."""
COMMANDS = {
    "check": "", "predict": "", "info": "", "evaluate": "", "export": "", "rename": "renamed", "forget": "renamed",
    "merge": "merged", "repair": "repaired", "undo": "", "learn": "",
}  # fmt: skip
"""The commands in their order, and the copy of the folder that each is run on; those without one share the folder."""
ANSWERS = ("predict", "evaluate", "export", "rename", "forget", "merge")
"""The commands that a broken model must not serve, beside `learn`, which may begin a new one."""
EXPORTED = 5


# Commands


def run_command(what: str, path: Path, source: Path, said: Path) -> dict[str, Any]:
    """Run one command in this process; return its exit code, and any traceback."""
    from treering import cli

    arguments = {
        "check": ["check", path], "predict": ["predict", path, source / "first" / "cat", "--device", "cpu"],
        "info": ["info", path, "--gallery", said.with_suffix(".png")], "undo": ["undo", path],
        "evaluate": ["evaluate", path, source / "first", "--device", "cpu"],
        "export": ["export", path, said.with_suffix(".onnx")],
        "rename": ["rename", path, "cat", "lynx"], "forget": ["forget", path, "owl"],
        "merge": ["merge", path, "cat", "dog"], "repair": ["check", path, "--repair"],
        "learn": ["learn", path, source / "third", "--device", "cpu"],
    }[what]  # fmt: skip
    found: dict[str, Any] = {"command": what, "code": 0}
    if what == "check":
        found["broken"] = is_broken(path)
    sys.argv = ["treering", *map(str, arguments)]
    try:
        cli.main()
    except SystemExit as ended:
        found["code"] = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        found["traceback"] = traceback.format_exc()[-2000:]
    if found["code"] == 0 and COMMANDS[what]:
        found["left broken"] = is_broken(path)
    return found


def is_broken(path: Path) -> bool:
    """Return whether the current version of a model is not whole."""
    from treering import model
    from treering.storage import check

    try:
        return bool(check.check(path, model.examine).versions[0].problems)
    except ValueError:
        return True


def run_all(path: Path, source: Path, said: Path, answer: int, exports: bool) -> None:
    """Run every command in this process, which is a child; tell of each through the pipe."""
    out = os.open(said, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)
    broken = True
    for what, copy in COMMANDS.items():
        if what == "export" and not (exports or broken):
            os.write(answer, json.dumps({"command": what, "code": "left out"}).encode() + b"\n")
            continue
        os.ftruncate(out, 0)
        os.lseek(out, 0, os.SEEK_SET)
        streams = [io.TextIOWrapper(os.fdopen(os.dup(number), "wb"), "utf-8", write_through=True) for number in (1, 2)]
        sys.stdout, sys.stderr = streams
        cli_console(sys.stdout)
        found = run_command(what, path.with_name(copy) if copy else path, source, said)
        broken = found.get("broken", broken)
        for stream in streams:
            with contextlib.suppress(OSError, ValueError):
                stream.close()
        found["said"] = said.read_bytes().decode("utf-8", "replace")
        os.write(answer, json.dumps(found).encode() + b"\n")


def cli_console(stream: Any) -> None:
    """Have the command line print to this stream."""
    from rich.console import Console

    from treering import cli

    cli.console = Console(file=stream, emoji=False)


def try_folder(path: Path, source: Path, scratch: Path, exports: bool) -> list[dict[str, Any]]:
    """Run all commands on a folder in a child; return what became of each."""
    for copy in sorted({copy for copy in COMMANDS.values() if copy}):
        shutil.rmtree(path.with_name(copy), ignore_errors=True)
        # This copies links, pipes and holes as what they are.
        subprocess.run(["cp", "-a", "--sparse=always", path, path.with_name(copy)], check=True)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reader)
            os.setsid()
            run_all(path, source, scratch / "said", writer, exports)
        finally:
            os._exit(0)
    os.close(writer)
    found: list[dict[str, Any]] = []
    rest, last = b"", time.monotonic()
    used = 0.0
    while len(found) < len(COMMANDS):
        ready: list[int] = []
        while not ready and _computed(child) - used < SECONDS and time.monotonic() - last < PATIENCE * SECONDS:
            ready, _, _ = select.select([reader], [], [], 1.0)
        part = os.read(reader, 2**20) if ready else b""
        rest += part
        *lines, rest = rest.split(b"\n")
        for line in lines:
            computed = _computed(child)
            found.append(json.loads(line) | {"seconds": round(computed - used, 2)})
            last, used = time.monotonic(), computed
        if not part:
            said = (
                (scratch / "said").read_bytes()[-3000:].decode("utf-8", "replace")
                if (scratch / "said").exists()
                else ""
            )
            what = "died" if ready else "ran on"
            found.append({"command": list(COMMANDS)[len(found)], "code": None, what: True, "said": said})
            break
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    return found


def _computed(process: int) -> float:
    """Return the seconds for which a process has used processors."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def failures(found: list[dict[str, Any]], has_manifest: bool) -> list[str]:
    """Return what should not have happened."""
    wrong = []
    broken = found[0].get("broken", True)
    for one in found:
        what, said = one["command"], one.get("said", "")
        if "traceback" in one or "Traceback" in said:
            wrong.append(f"{what}: traceback")
        elif one.get("ran on") and not (what == "learn" and "Training takes about" in said):
            wrong.append(f"{what}: ran on")
        elif one.get("died"):
            wrong.append(f"{what}: died")
        elif one["code"] == 2 and not said.rstrip("\n").rpartition("\n")[2].startswith("treering: "):
            wrong.append(f"{what}: its error is not one line")
        elif one["code"] not in (0, 1, 2, None, "left out"):
            wrong.append(f"{what}: exit code {one['code']}")
        if any(letter != "\n" and (ord(letter) < 32 or 127 <= ord(letter) < 160) for letter in said):
            wrong.append(f"{what}: control character")
        if one.get("left broken"):
            wrong.append(f"{what}: leaves a broken model")
        serves = what in ANSWERS or (what == "learn" and has_manifest and not _undone(found))
        if broken and one["code"] == 0 and serves:
            wrong.append(f"{what}: works with a broken model")
    return wrong


def _undone(found: list[dict[str, Any]]) -> bool:
    return any(one["command"] == "undo" and one["code"] == 0 for one in found)


def one_folder(number: int, seed: int, models: dict[str, Path], scratch: Path, outside: Path) -> dict[str, Any]:
    """Change one folder and try all commands on it."""
    draw = random.Random(f"{seed}-{number}")
    name = draw.choice(sorted(models))
    path = scratch / "model"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(models[name], path)
    mutant, done = Mutant(path, draw, outside), []
    for change in draw.choices(list(CHANGES), list(CHANGES.values()), k=draw.choice([1, 1, 1, 2, 3])):
        try:
            done.append(change(mutant))
        except Exception as error:
            done.append(f"{change.__name__} failed: {type(error).__name__}")  # an earlier change is in its way
    before, has_manifest = state_of(outside), os.path.lexists(path / "manifest.json")
    found = try_folder(path, next(iter(models.values())).parent, scratch, exports=number % EXPORTED == 0)
    wrong = failures(found, has_manifest)
    if state_of(outside) != before:
        wrong.append("the folder outside was changed")
        shutil.rmtree(outside)
        make_outside(outside)
    record = {"number": number, "model": name, "changes": done, "wrong": wrong, "broken": found[0].get("broken", True)}
    record["codes"] = [one.get("code") for one in found]
    record["slowest"] = max(one.get("seconds", SECONDS) for one in found)
    if wrong:
        record["found"] = found
    return record


def fuzz(
    folders: int, seed: int, work: Path, workers: int = 1, first: int = 0, until: float = 1e18
) -> list[dict[str, Any]]:
    """Try folders from the number `first` on; return a record of each. No folder is begun after `until`."""
    os.environ["XDG_STATE_HOME"] = str(work / "state")
    torch.set_num_threads(1)
    (work / "models").mkdir(parents=True)
    models, numbers = make_models(work / "models"), range(first, folders)
    (work / "warm").mkdir()
    for copy in {"model", *COMMANDS.values()}:
        shutil.copytree(models["closed-form"], work / "warm" / (copy or "model"), dirs_exist_ok=True)
    with contextlib.redirect_stdout(io.StringIO()) as unseen:  # each child has what these import
        cli_console(unseen)
        for what, copy in COMMANDS.items():
            if run_command(what, work / "warm" / (copy or "model"), work / "models", work / "said")["code"]:
                raise SystemExit(f"{what} does not work with an honest model")
    readers = []
    for worker in range(workers):
        reader, writer = os.pipe()
        if not os.fork():
            try:
                scratch = work / f"scratch{worker}"
                scratch.mkdir()
                outside = make_outside(work / f"outside{worker}")
                with os.fdopen(writer, "wb") as stream:
                    for number in numbers[worker::workers]:
                        if time.time() > until:
                            break
                        record = one_folder(number, seed, models, scratch, outside)
                        stream.write(json.dumps(record).encode() + b"\n")
                        stream.flush()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(writer)
        readers.append(reader)
    records, rests = [], dict.fromkeys(readers, b"")
    while rests:
        for reader in select.select(list(rests), [], [])[0]:
            part = os.read(reader, 2**20)
            if not part:
                del rests[reader]
                continue
            *lines, rests[reader] = (rests[reader] + part).split(b"\n")
            for line in lines:
                records.append(json.loads(line))
                if records[-1]["wrong"]:
                    sys.stderr.write(f"{records[-1]['number']}: {records[-1]['changes']}: {records[-1]['wrong']}\n")
    return sorted(records, key=lambda record: record["number"])


def main() -> None:
    """Fuzz, and write a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folders", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="the number of the first folder")
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    started = time.time()
    with tempfile.TemporaryDirectory() as work:
        until = started + 60 * chosen.minutes
        records = fuzz(chosen.folders, chosen.seed, Path(work), chosen.workers, chosen.first, until)
    wrong = [record for record in records if record["wrong"]]
    codes = {what: Counter() for what in COMMANDS}  # type: dict[str, Counter[str]]
    for record in records:
        for what, code in zip(COMMANDS, record["codes"], strict=False):  # it may have ended before the last one
            codes[what][str(code)] += 1
    summary = {
        "folders_asked": len(range(chosen.first, chosen.folders)),
        "folders_tried": len(records),
        "seed": chosen.seed,
        "broken": sum(record["broken"] for record in records),
        "wrong": Counter(what for record in wrong for what in record["wrong"]),
        "exit_codes": codes,
        "slowest_command_seconds": max((record["slowest"] for record in records), default=None),
        "minutes": round((time.time() - started) / 60, 1),
        "failed": wrong,
    }
    if chosen.out:
        chosen.out.write_text(json.dumps(summary, indent=1) + "\n")
    sys.stdout.write(json.dumps(summary | {"failed": wrong[:20]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
