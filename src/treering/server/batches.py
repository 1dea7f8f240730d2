"""Photos that are asked about at the same time pass through the network together."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from starlette.exceptions import HTTPException

from treering.prediction import BATCH, MOST_PIXELS
from treering.server.guard import Metrics
from treering.server.served import Loaded

MOST_WAITING = 1000
"""The most photos that wait for an answer; more are refused at once."""


@dataclass
class _Asked:
    image: np.ndarray
    answer: asyncio.Future[tuple[np.ndarray, float | None]]


class Batches:
    """Collects the photos that come while others are computed, and asks the network about all of them at once."""

    def __init__(self, compute: Executor, metrics: Metrics) -> None:
        self._compute, self._metrics = compute, metrics
        self._waiting: dict[Loaded, list[_Asked]] = {}
        self._task: asyncio.Task[None] | None = None

    async def answers(self, loaded: Loaded, images: list[np.ndarray]) -> list[tuple[np.ndarray, float | None]]:
        """Return the probabilities of the classes for each image, and its distance where the model measures it."""
        if sum(map(len, self._waiting.values())) + len(images) > MOST_WAITING:
            raise HTTPException(429, "too many photos wait for an answer: try again in a moment")
        loop = asyncio.get_running_loop()
        mine = [_Asked(image, loop.create_future()) for image in images]
        self._waiting.setdefault(loaded, []).extend(mine)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        return await asyncio.gather(*(one.answer for one in mine))

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            loaded, asked = next(iter(self._waiting.items()))
            del self._waiting[loaded]
            size = max(1, min(BATCH, MOST_PIXELS // loaded.teller.size**2))
            batch = [one for one in asked[:size] if not one.answer.done()]  # whoever has gone needs no answer
            if asked[size:]:
                self._waiting[loaded] = asked[size:]  # behind other models, so that each gets its turn
            if not batch:
                continue
            try:
                images = np.stack([one.image for one in batch])
                rows, distances = await loop.run_in_executor(self._compute, loaded.answers, images)
            except Exception as error:
                for one in batch:
                    if not one.answer.done():
                        one.answer.set_exception(error)
                continue
            self._metrics.batches.inc()
            self._metrics.photos.inc(len(batch))
            for index, one in enumerate(batch):
                if not one.answer.done():
                    one.answer.set_result((rows[index], None if distances is None else float(distances[index])))
