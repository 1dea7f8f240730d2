"""Hostile photos: each becomes pixels or a reason, in bounded time and memory, without a program or a printed line.

    python benchmarks/fuzz_photos.py [--photos 5000] [--seed 0] [--out FILE.json] [--keep FOLDER]

Good photos of all kinds are damaged in many ways, and others are made to be hostile: bombs, lists without end, programs
and documents that are named like photos. Processes of their own read them, each with a limit to its memory. A finding
is a photo that gives anything but pixels or a reason in one line, that takes longer than `SECONDS` or more memory than
`MEMORY`, that starts a program, prints anything, or ends the process; `--keep` puts such photos into a folder.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.pool
import os
import resource
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL
import pillow_heif
from hostile_photos import Photo, photos

from treering.images import files

SECONDS = 10
MEMORY = 2 * 2**30
"""The bytes that a process may have beyond those it has before it reads a photo."""
SIZE = 48
WORKERS = 2


class Reading(NamedTuple):
    """What came of a photo."""

    outcome: str
    """"pixels", "reason", or what is wrong with it."""
    said: str
    seconds: float
    memory: int


def work(pipe: Connection, place: str) -> None:
    """Read one photo after another, as a process of its own whose memory is limited."""
    started: list[str] = []
    programs = ("subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system")
    sys.addaudithook(lambda event, _: started.append(event) if event.startswith(programs) else None)
    warnings.filterwarnings("ignore", module=r"PIL\.")  # as the command line has it
    printed = os.open(os.path.join(place, f"printed-{os.getpid()}"), os.O_RDWR | os.O_CREAT)  # noqa: PTH118
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    base = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (base + MEMORY, base + MEMORY))
    while photo := pipe.recv():
        file = Path(place, f"{os.getpid()} {photo.name}")
        file.write_bytes(photo.content)
        Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
        before, begun = _peak(), time.monotonic()
        try:
            found = files.read(file, SIZE)
            outcome, said = _judged(found)
        except BaseException as error:
            outcome, said = f"raised {type(error).__name__}", str(error)
        seconds, memory = time.monotonic() - begun, _peak() - before
        file.unlink()
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        if started or children:
            outcome, said = "started a program", f"{started} {children}"
        if os.lseek(printed, 0, os.SEEK_END):
            outcome, said = "printed", os.pread(printed, 300, 0).decode("utf-8", "replace")
        started.clear()
        os.ftruncate(printed, 0)
        os.lseek(printed, 0, os.SEEK_SET)
        pipe.send(Reading(outcome, said, seconds, memory))


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _judged(found: np.ndarray | str) -> tuple[str, str]:
    if isinstance(found, str):
        good = 0 < len(found) < 400 and found.isprintable()
        return "reason" if good else "gave an odd reason", found
    good = found.shape == (SIZE, SIZE, 3) and found.dtype == np.uint8
    return "pixels" if good else "gave odd pixels", f"{found.shape} {found.dtype}"


class Worker:
    """A process that reads photos, and a new one when it has ended or hangs."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=work, args=(other, self.place), daemon=True)
        self.process.start()
        other.close()

    def read(self, photo: Photo) -> Reading:
        """Read a photo, and see what comes of it."""
        begun = time.monotonic()
        try:
            self.pipe.send(photo)
            if self.pipe.poll(SECONDS):
                found: Reading = self.pipe.recv()
                return found
            outcome = "hung"
        except (EOFError, OSError):
            self.process.join()
            outcome = f"ended the process ({self.process.exitcode})"
        self.process.kill()
        self.process.join()
        self._start()
        return Reading(outcome, "", time.monotonic() - begun, 0)


def attack(hostile: list[Photo], keep: Path | None) -> dict[str, Any]:
    """Have every photo read; return counts and findings."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    findings, readings = [], []
    with tempfile.TemporaryDirectory() as place:
        workers = [Worker(place) for _ in range(WORKERS)]
        with multiprocessing.pool.ThreadPool(WORKERS) as pool:
            free = list(workers)

            def one(photo: Photo) -> tuple[Photo, Reading]:
                worker = free.pop()
                try:
                    return photo, worker.read(photo)
                finally:
                    free.append(worker)

            for photo, reading in pool.imap_unordered(one, hostile):
                counts[photo.kind][reading.outcome] += 1
                readings.append((photo, reading))
                if reading.outcome not in ("pixels", "reason"):
                    findings.append({"kind": photo.kind, "name": photo.name, **reading._asdict()})
                    if keep:
                        keep.mkdir(exist_ok=True)
                        (keep / photo.name).write_bytes(photo.content)
        for worker in workers:
            worker.process.kill()
    slowest = max(readings, key=lambda one: one[1].seconds)
    largest = max(readings, key=lambda one: one[1].memory)
    return {
        "photos": len(readings),
        "outcomes": {kind: dict(sorted(found.items())) for kind, found in sorted(counts.items())},
        "findings": findings,
        "slowest": {"name": slowest[0].name, "seconds": round(slowest[1].seconds, 2)},
        "most_memory": {"name": largest[0].name, "megabytes": largest[1].memory // 2**20},
        "limits": {"seconds": SECONDS, "megabytes": MEMORY // 2**20},
        "versions": {"Pillow": PIL.__version__, "pillow-heif": pillow_heif.__version__},
    }


def main() -> None:
    """Make the photos, have them read, print and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path)
    settings = parser.parse_args()
    record = {"seed": settings.seed} | attack(list(photos(settings.photos, settings.seed)), settings.keep)
    text = json.dumps(record, indent=1)
    if settings.out:
        settings.out.write_text(text + "\n")
    sys.stdout.write(text + "\n")
    sys.exit(1 if record["findings"] else 0)


if __name__ == "__main__":
    main()
