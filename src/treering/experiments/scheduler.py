"""Several runs in one process: on a GPU they train at once, each in a thread with a stream of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treering.errors import TreeringError
from treering.experiments.run import StreamRun
from treering.runtime import interrupts

logger = logging.getLogger(__name__)


def run_many(runs: Sequence[StreamRun], at_once: int = 8) -> list[dict[str, Any] | Exception]:
    """Run all to the end, on a GPU up to `at_once` together with a stream each; an error ends its own run only.

    Ctrl-C lets runs that train at once end their epoch and save their state first.
    """
    outcomes: list[dict[str, Any] | Exception] = [TreeringError("the run was interrupted") for _ in runs]

    def guarded(index: int, action: Callable[[], dict[str, Any] | None]) -> bool:
        try:
            outcomes[index] = action() or outcomes[index]
        except Exception as error:
            outcomes[index] = error
            if len(runs) > 1:  # it may be hours until they have all ended
                what = error if isinstance(error, TreeringError) else repr(error)
                logger.error("%s has failed: %s", runs[index].result_file.stem, what)
            return False
        except KeyboardInterrupt:
            if not runs[index].stopping:
                raise
        return True

    if not all(run.method.generator.device.type == "cuda" for run in runs):
        for index, run in enumerate(runs):
            guarded(index, run)
        return outcomes

    slots = threading.Semaphore(at_once)

    def work(index: int, stream: torch.cuda.Stream) -> None:
        with slots, torch.cuda.stream(stream):
            if not runs[index].stopping:
                guarded(index, runs[index])

    def stop() -> None:
        if not any(run.stopping for run in runs):
            logger.warning("interrupted: each run ends its epoch and saves its state first")
        for run in runs:
            run.stopping = True

    most_passes = max((run.image_passes_planned for run in runs if not run.result_file.exists()), default=0)
    threads = []
    for index, run in enumerate(runs):
        run.runs_at_once = min(len(runs), at_once)
        # The longest that are to do go first on the device, so that none is left to run alone in the end.
        stream = torch.cuda.Stream(priority=-1 if run.image_passes_planned == most_passes else 0)
        stream.wait_stream(torch.cuda.current_stream())  # the resident images and the weights came on that one
        with torch.cuda.stream(stream):
            # One after the other and before any run trains: captures and training do not mix.
            if guarded(index, run.prepare):
                threads.append(threading.Thread(target=work, args=(index, stream), daemon=True))
    with interrupts.deferred(stop):  # C++ aborts a Python that ends while its threads train
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return outcomes
