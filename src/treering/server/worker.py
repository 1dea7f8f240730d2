"""The process that learns for the server: it takes jobs from its standard input, one after the other.

It learns in a process of its own so that predictions go on meanwhile, and so that it can be ended at any moment: what
it has not saved yet, the same job learns when it is begun again. Both sides write one JSON object a line.
"""

from __future__ import annotations

import _thread
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from treering.errors import OUT_OF_MEMORY, TreeringError, is_out_of_memory
from treering.runtime import allocator, threads

SELDOM = 0.2
"""The fewest seconds between two lines that tell the progress."""
PATIENCE = 3600.0
"""The seconds for which a job waits for another program that writes to its model."""
NICENESS = 10
"""How much this process gives way to others, predictions above all."""


class Teller:
    """Writes what becomes of the job that is learnt to the server."""

    def __init__(self, stream: IO[str]) -> None:
        self.job: str | None = None
        self._cancelled: set[str] = set()
        self._stream, self._lock = stream, threading.Lock()

    def __call__(self, kind: str, **facts: Any) -> None:
        with self._lock:
            self._stream.write(json.dumps({"kind": kind, "job": self.job, **facts}) + "\n")
            self._stream.flush()

    def cancel(self, job: str) -> None:
        """Interrupt a job, or have it interrupted as soon as it begins."""
        with self._lock:
            self._cancelled.add(job)
            if self.job == job:
                _thread.interrupt_main()

    def turn_to(self, job: str | None) -> None:
        """Tell of this job from now on; raise KeyboardInterrupt if it is cancelled already."""
        with self._lock:
            self.job = job
            if job in self._cancelled:
                raise KeyboardInterrupt


class _Warnings(logging.Handler):
    """Sends warnings to the server."""

    def __init__(self, tell: Teller) -> None:
        super().__init__(logging.WARNING)
        self.tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self.tell("warning", message=record.getMessage())


def main() -> None:
    """Learn jobs until the server ends or closes the pipe."""
    allocator.keep()
    threads.sleep_soon()
    threads.limit(max(1, (os.cpu_count() or 1) - 1))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    tell = Teller(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # what else is printed must not get between the lines
    jobs: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_listen, args=(jobs, tell), daemon=True).start()
    logging.getLogger("treering").addHandler(_Warnings(tell))
    from treering.photos import learn  # PyTorch takes seconds to load, before the first job comes

    while True:
        job = jobs.get()
        try:
            tell.turn_to(job["id"])
            _learn(learn, job, tell)
        except KeyboardInterrupt:
            tell("cancelled")
        finally:
            tell.turn_to(None)


def _listen(jobs: SimpleQueue[dict[str, Any]], tell: Teller) -> None:
    """Take orders from the server; end at once when it has ended."""
    for line in sys.stdin:
        order = json.loads(line)
        if "cancel" in order:
            tell.cancel(order["cancel"])
        else:
            jobs.put(order)
    os._exit(0)


def _learn(learn: Any, job: dict[str, Any], tell: Teller) -> None:
    from treering.server import tray  # which loads PyTorch
    from treering.storage import lock

    last = 0.0

    def progress(what: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= SELDOM or done >= total:
            last = time.monotonic()
            tell("progress", what=what, done=done, total=total)

    def planned(plan: Any) -> None:
        warnings = [f"{new} and {known} are two classes with nearly the same name" for new, known in plan.alike()]
        pairs = {tuple(sorted((one.name, other.name))) for one, other in plan.same if one.name != other.name}
        warnings += [
            f"the same photo is in two classes, {one} and {other}: one is wrong" for one, other in sorted(pairs)
        ]
        if plan.copies:
            warnings.append(f"{plan.copies} of the photos show the same as others of their class, and are left out")
        for warning in warnings:
            tell("warning", message=warning)
        tell("plan", seconds=plan.seconds, solves_first=plan.solves_first)

    until = time.monotonic() + PATIENCE
    try:
        while True:
            try:
                outcome = learn.learn(
                    Path(job["model"]),
                    tray.folder_of(Path(job["place"])),
                    device=job["device"],
                    effort=job["effort"],
                    tell=planned,
                    solved=lambda found: tell("solved", score=found.all),
                    progress=progress,
                    epoch=lambda report: tell("epoch", epoch=report.epoch, epochs=report.epochs),
                )
                break
            except lock.BusyError:  # someone teaches the model in a terminal
                if time.monotonic() > until:
                    raise
                tell("busy")
                time.sleep(1.0)
    except TreeringError as error:
        tell("failed", error=str(error))
    except OSError as error:
        tell("failed", error=f"{error.filename or 'a file'}: {error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        tell("failed", error=OUT_OF_MEMORY)
    else:
        tell("done", result=_told(outcome) if outcome else None)


def _told(outcome: Any) -> dict[str, Any]:
    """Return what a step has led to, as plain values; a score is (right, images)."""
    trial = outcome.trial
    return {
        "all": outcome.all,
        "new": outcome.new if outcome.known else None,
        "old": outcome.old[1] if outcome.old else None,
        "old_before": outcome.old[0] if outcome.old else None,
        "lost": outcome.forgotten(),
        "confused": outcome.confused(),
        "needy": outcome.needy(),
        "trained": None if trial is None else "helped" if trial.helped else "did not help",
        "seconds": outcome.seconds,
    }


if __name__ == "__main__":
    main()
