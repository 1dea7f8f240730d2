"""How far a step has come, for the functions of users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from treering import words
from treering.core.trainer import EpochReport, Watcher

logger = words.logger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far a `partial_fit` has come; the learner's `progress` function gets it after each epoch."""

    step: int
    """The number of the step, from 1."""
    stage: str
    epoch: int
    """The number of the epoch within the stage, from 1."""
    epochs: int
    image_passes: int
    """The number of images that passed through the network in this epoch."""
    loss: float
    """The mean loss over the epoch."""


class Reporter(Watcher):
    """Tells every epoch to another watcher first, and then to the learner's `progress` function."""

    def __init__(self, step: int, progress: Callable[[Progress], None] | None, first: Watcher) -> None:
        self.step, self.progress, self.first = step, progress, first

    def ready(self) -> None:
        self.first.ready()

    def passed(self, images: int) -> None:
        self.first.passed(images)

    def epoch(self, report: EpochReport) -> None:
        self.first.epoch(report)
        logger.debug("%s epoch %d/%d: loss %.4f", report.stage, report.epoch, report.epochs, report.mean_loss)
        if self.progress is not None:
            passes, loss = report.image_passes, report.mean_loss
            self.progress(Progress(self.step, report.stage, report.epoch, report.epochs, passes, loss))
