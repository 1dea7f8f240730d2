"""The jobs: one is learnt at a time, by a process of its own; the others wait in the order in which they came.

A job is a folder with its photos and `job.json`. What has not ended when the server does is begun again when it starts,
and `learn` goes on with it where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from treering import words
from treering.photos.outcome import Score as Counted
from treering.runtime import files
from treering.server import tray
from treering.server.guard import Metrics
from treering.server.schemas import FINAL, Confused, Effort, Job, LostClass, Needy, Result, Score, State
from treering.server.served import Served

logger = words.logger(__name__)

MOST_QUEUED = 20
"""The most jobs that wait or are learnt."""
MOST_KEPT = 50
"""The most jobs that have ended and are remembered."""
PATIENCE = 15.0
"""The seconds in which the process has to end a job that is cancelled; after that it is killed, which harms nothing."""
DEATHS = 2
"""How often a job may end its process, as too little memory does, before it has failed."""
RECORD = "job.json"
LONGEST_LINE = 2**24
MOST_WARNINGS = 20
NEW_GROUP = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
OWN_GROUP: dict[str, Any] = {"creationflags": NEW_GROUP} if os.name == "nt" else {"start_new_session": True}
"""Ctrl-C is for the server, which then ends the process."""
STAGES: dict[str, Any] = {"reading": "reading", "learning": "solving", "training": "training"}


class Entry:
    """A job with what the server needs to learn it."""

    def __init__(self, job: Job, served: Served, place: Path) -> None:
        self.job, self.served, self.place = job, served, place
        self.deaths = 0
        self.cancelled = self.ending = False
        """Whether somebody wants it to end, and whether it is being put away."""
        self.began, self.done_before = 0.0, 0
        """When the current stage began, and how many of its images an earlier process had done by then."""
        self.expected = 0.0
        """How many seconds the plan gives the job."""
        self.solves_first = False
        """Whether its classes are solved for before its network is trained."""
        self.started = 0.0
        self.seen = 0
        """How many changes there were; whoever watches waits for the next one."""

    @property
    def has_ended(self) -> bool:
        return self.job.state in FINAL


class Jobs:
    """The queue, and the process that learns."""

    def __init__(self, device: str, metrics: Metrics, learnt: Callable[[Served], Awaitable[None]]) -> None:
        self.device, self.metrics, self.learnt = device, metrics, learnt
        self.entries: dict[str, Entry] = {}
        self.closing = False
        self._changed = asyncio.Condition()
        self._queue: asyncio.Queue[Entry] = asyncio.Queue()
        self._process: asyncio.subprocess.Process | None = None
        self._running: Entry | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    # The queue

    def restore(self, served: Served) -> None:
        """Take up the jobs of a model that an earlier server has left."""
        around = tray.place_of(served.path)
        found = []
        for place in around.glob("job-*"):
            try:
                job = Job.model_validate_json(files.read(place / RECORD, LONGEST_LINE, through_links=False))
                found.append(Entry(job.model_copy(update={"model": served.name}), served, place))
            except (OSError, ValueError) as error:
                logger.warning("%s is no job: %s", place, error)
        found.sort(key=lambda entry: entry.job.created)
        for entry in found:
            self.entries[entry.job.id] = entry
            if entry.has_ended:
                with contextlib.suppress(OSError):
                    self._put_away(entry, entry.job)  # a server that was killed may not have come to it
            else:
                entry.job.state, entry.job.stage = "queued", "waiting"
                self._queue.put_nowait(entry)

    async def begin(self, served: Served, effort: Effort) -> Job:
        """Make a job of all photos in a model's tray, which is locked by the caller."""
        waiting = served.tray
        number = secrets.token_hex(16)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        job = Job(id=number, model=served.name, effort=effort, classes=tray.counts(waiting.photos), created=now)
        place = waiting.place.with_name(f"job-{number}")
        entry = Entry(job, served, place)

        def move() -> None:  # the record goes with the photos, so there is never one without the other
            files.write(waiting.place / RECORD, job.model_dump_json().encode())
            waiting.move_to(place)

        await asyncio.to_thread(move)
        self.entries[number] = entry
        self._queue.put_nowait(entry)
        await self._tell()
        return self.told(entry)

    def waiting(self) -> list[Entry]:
        """Return the jobs that have not ended, in their order."""
        return [entry for entry in self.entries.values() if not entry.has_ended]

    def of(self, served: Served) -> Job | None:
        """Return the job of a model that is learnt or waits."""
        return next((self.told(entry) for entry in self.waiting() if entry.served is served), None)

    def told(self, entry: Entry) -> Job:
        """Return a job as it is now."""
        waiting = self.waiting()
        return entry.job.model_copy(update={"ahead": waiting.index(entry) if entry in waiting else 0})

    async def watch(self, entry: Entry) -> AsyncIterator[Job]:
        """Yield a job whenever something about it changes, until it has ended or the server ends."""
        seen = -1
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda last=seen: entry.seen != last or self.closing)  # type: ignore[misc]
                seen = entry.seen
                job = self.told(entry)
            yield job
            if job.state in FINAL or self.closing:
                return

    async def cancel(self, entry: Entry) -> None:
        """End a job; what was solved already stays."""
        if entry.has_ended:
            return
        entry.cancelled = True  # before anything is awaited: from now on nobody begins it
        if entry is not self._running:
            await self._end(entry, "cancelled")
            return
        await self._order({"cancel": entry.job.id})
        if not await self._ends(entry, PATIENCE):
            self._kill()
            await self._ends(entry, None)

    async def _ends(self, entry: Entry, seconds: float | None) -> bool:
        """Wait until a job has ended, for so many seconds at most; return whether it has."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: entry.has_ended)
        return entry.has_ended

    async def forget(self, served: Served, names: Sequence[str]) -> None:
        """Forget the jobs that have ended and tell of these classes of a model."""
        for entry in list(self.entries.values()):
            if entry.served is served and entry.has_ended and not entry.job.classes.keys().isdisjoint(names):
                del self.entries[entry.job.id]
                await asyncio.to_thread(tray.remove, entry.place)

    async def _tell(self, entry: Entry | None = None) -> None:
        """Have all who watch look again."""
        async with self._changed:
            for one in [entry] if entry else self.waiting():
                one.seen += 1
            self._changed.notify_all()

    @property
    def is_well(self) -> bool:
        """Whether jobs are learnt."""
        return not self.closing and self._task is not None and not self._task.done()

    # The process

    async def start(self) -> None:
        """Start the process, and learn what waits."""
        await self._spawn()
        self._task = asyncio.create_task(self._work())

    def hurry(self) -> None:
        """Have all who watch hear that the server ends."""
        self.closing = True
        self._ending = asyncio.ensure_future(self._tell())

    async def close(self) -> None:
        """End the process; a job that is being learnt goes on when the server starts again."""
        self.closing = True
        await self._tell()
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._kill()
        if self._process:
            await self._process.wait()

    async def _spawn(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "treering.server.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LONGEST_LINE,
                **OWN_GROUP,
            )
        return self._process

    def _kill(self) -> None:
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _order(self, order: dict[str, Any]) -> asyncio.subprocess.Process:
        """Send the process an order; return the process."""
        process = await self._spawn()
        assert process.stdin
        with contextlib.suppress(OSError):  # it has just ended, which the reader of its answers sees
            process.stdin.write(json.dumps(order).encode() + b"\n")
            await process.stdin.drain()
        return process

    async def _work(self) -> None:
        while True:
            entry = await self._queue.get()
            if entry.has_ended or entry.cancelled:
                continue
            self._running = entry
            try:
                await self._learn(entry)
            except Exception as error:  # whatever it is, the next job is learnt
                logger.exception("a job has failed")
                await self._end(entry, "failed", f"an error of the server's own: {type(error).__name__}")
            finally:
                self._running = None

    async def _learn(self, entry: Entry) -> None:
        """Have the process learn a job until it has ended."""
        entry.job.state, entry.job.stage = "running", "starting"
        entry.started = time.monotonic()
        await self._tell()
        order = {"id": entry.job.id, "model": str(entry.served.path), "place": str(entry.place)}
        process = await self._order({**order, "effort": entry.job.effort, "device": self.device})
        assert process.stdout
        while not entry.has_ended:
            line = await process.stdout.readline()
            if line:
                said = json.loads(line)
                if said["job"] == entry.job.id:
                    await self._heard(entry, said)
                continue
            await process.wait()
            entry.deaths += 1
            if entry.cancelled:
                await self._end(entry, "cancelled")
            elif entry.deaths < DEATHS:
                logger.warning("the process that learns has ended; it is started again")
                await self._learn(entry)
            else:
                why = "the process that learns has ended, perhaps for want of memory: close other programs, try again"
                await self._end(entry, "failed", why)

    async def _heard(self, entry: Entry, said: dict[str, Any]) -> None:
        """Take note of what the process says of a job."""
        job, now = entry.job, time.monotonic()
        if said["kind"] == "plan":
            entry.expected = now - entry.started + said["seconds"]
            entry.solves_first = said["solves_first"]
        elif said["kind"] == "progress":
            stage = STAGES.get(said["what"], "solving")
            if stage == "training" and entry.solves_first and job.solved is None:
                stage = "solving"
            if (stage, said["total"]) != (job.stage, job.total) or said["done"] < job.done:
                entry.began, entry.done_before = now, said["done"]
                job.stage, job.rate = stage, None
            elif now > entry.began:
                job.rate = round((said["done"] - entry.done_before) / (now - entry.began), 1)
            job.done, job.total = said["done"], said["total"]
            job.seconds_left = self._left(entry, now)
        elif said["kind"] == "busy":
            job.stage = "waiting"
        elif said["kind"] == "epoch":
            job.epoch, job.epochs = said["epoch"], said["epochs"]
        elif said["kind"] == "solved":
            job.solved = _score(said["score"])
            await asyncio.to_thread(self._write, entry, job.model_copy(update={"state": "queued"}))
            await self.learnt(entry.served)
        elif said["kind"] == "warning":
            job.warnings = [*job.warnings, said["message"]][:MOST_WARNINGS]
        elif said["kind"] == "done":
            job.result = _result(said["result"]) if said["result"] else None
            await self._end(entry, "done")
            return
        elif said["kind"] in ("cancelled", "failed"):
            await self._end(entry, said["kind"], said.get("error"))
            return
        await self._tell(entry)

    @staticmethod
    def _left(entry: Entry, now: float) -> float | None:
        """Return the seconds that a job still takes: by its plan, then by what a good part of it took."""
        job = entry.job
        share = (job.done - entry.done_before) / job.total if job.total else 0.0
        if job.stage == "training" and share > 0.1 and job.rate:
            return round((job.total - job.done) / job.rate, 1)
        return round(max(entry.expected - (now - entry.started), 0.0), 1) if entry.expected else None

    async def _end(self, entry: Entry, state: State, error: str | None = None) -> None:
        """Have a job end, whatever else fails; photos that no model has learnt go back into the tray."""
        if entry.ending:
            await self._ends(entry, None)
            return
        entry.ending = True
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        facts = {"state": state, "error": error, "ended": now, "stage": "ended", "seconds_left": None}
        after = entry.job.model_copy(update=facts)
        try:
            async with entry.served.changing:
                await asyncio.to_thread(self._put_away, entry, after)
        except OSError as failed:  # a server that starts does it again
            logger.warning("the photos of a job stay in %s: %s", entry.place, failed.strerror or failed)
        await self.learnt(entry.served)
        entry.job = after
        self.metrics.jobs.labels(state).inc()
        ended = [entry for entry in self.entries.values() if entry.has_ended]
        for old in ended[: max(0, len(ended) - MOST_KEPT)]:
            del self.entries[old.job.id]
            await asyncio.to_thread(tray.remove, old.place)
        await self._tell(entry)
        await self._tell()

    @staticmethod
    def _write(entry: Entry, job: Job) -> None:
        """Write down how far a job is, for a server that starts."""
        try:
            files.write(entry.place / RECORD, job.model_dump_json(by_alias=True).encode())
        except OSError as error:  # then the job is learnt once more, which changes nothing
            logger.warning("the state of a job cannot be written down: %s", error.strerror or error)

    @classmethod
    def _put_away(cls, entry: Entry, job: Job) -> None:
        """Write down how a job ended; photos that no model has learnt go back into the tray, the others go."""
        cls._write(entry, job)
        if job.state != "done" and job.solved is None:
            entry.served.tray.put_back(entry.place)
        tray.discard(entry.place)


def _score(pair: Any) -> Score | None:
    return Score.of(Counted(*pair)) if pair else None


def _result(told: dict[str, Any]) -> Result:
    """Return the result of a step from the plain values that the process sends."""
    lost = [(name, _score(before), _score(after)) for name, before, after in told["lost"]]
    return Result(
        **{part: _score(told[part]) for part in ("all", "new", "old", "old_before")},
        lost=[LostClass(name=name, before=before, after=after) for name, before, after in lost if before and after],
        confused=[Confused(first=first, second=second, times=times) for first, second, times in told["confused"]],
        needy=[Needy(name=name, photos=photos) for name, photos in told["needy"]],
        trained=told["trained"],
        seconds=round(told["seconds"], 1),
    )
