"""`treering learn`: a folder of photos becomes a step of a model, as a transaction.

If it is killed, loses power or runs out of disk at any moment, the model answers as before, and the same call goes on
from the last saved epoch to the same result (bit for bit on a CPU).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from treering.core.trainer import EpochReport, Watcher
from treering.errors import TreeringError, is_out_of_memory
from treering.images import folders
from treering.images.folders import ImageFolder
from treering.learner import Learner
from treering.photos import holdout, plan, settings
from treering.photos.plan import Outcome, Plan
from treering.photos.settings import Wishes
from treering.photos.unfinished import Unfinished, of_photos
from treering.runtime import pixels
from treering.runtime.device import find_device
from treering.runtime.pixels import Images
from treering.storage import model_folder

logger = logging.getLogger(__name__)

SAVE_EVERY = 10.0
"""The number of seconds between two saves of an unfinished step; each is at the end of an epoch."""

Progress = Callable[[str, int, int], None]
"""A function that is told what is being done, how much of it is done and how much there is."""


def learn(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    backbone: str | None = None,
    memory: int | None = None,
    changes: Sequence[str] = (),
    validation: str | os.PathLike[str] | None = None,
    keep: int = model_folder.KEEP,
    seed: int = 0,
    device: str = "auto",
    dry_run: bool = False,
    tell: Callable[[Plan], None] = lambda plan: None,
    progress: Progress = lambda what, done, total: None,
) -> Outcome | None:
    """Add the classes and images of `folder` to the model at `path`, which is created if it does not exist.

    Parameters
    ----------
    path, folder : path
        The model's folder, and one with a folder of images for each class.
    backbone : str, optional
        The network of a new model.
    memory : int, optional
        How many images of each class to keep; a share of them is held out to measure the accuracy on, unless a
        `validation` folder is given for that.
    changes : sequence of str
        Further settings of a new model, written as in `Recipe.changed`.
    validation : path, optional
        A folder like `folder`, whose images are never trained on.
    keep : int
        The number of earlier versions that stay for `undo`.
    seed, device : int, str
        As for `Learner`.
    dry_run : bool
        Stop once `tell` has got the plan; nothing is learnt or written.
    tell : callable
        Called with the `Plan` before training begins.
    progress : callable
        Called with what is being done, how much of it is done and how much there is.

    Returns
    -------
    Outcome or None
        What the step has led to; None after a dry run, and for a folder that was learnt already.
    """
    path, folder = Path(path), Path(folder)
    found = folders.scan(folder)
    checks = folders.scan(Path(validation)) if validation else None
    wishes = Wishes(backbone, memory, changes, seed, device)
    with _out_of_memory_told(path), contextlib.nullcontext() if dry_run else model_folder.writing(path):
        learner = settings.open_learner(path, wishes)
        disk = None if dry_run else path  # this disk must have room for the model anyway
        lesson = _Lesson(path, learner, disk, own_validation=checks is not None)
        lesson.read(folder, found, functools.partial(progress, "reading"))
        if lesson.is_done():
            tell(lesson.plan(done_already=True))
            if not dry_run:
                lesson.unfinished.remove()
            return None
        lesson.divide(folder, checks)
        planned = lesson.plan()
        tell(planned)
        if dry_run:
            return None
        outcome = lesson.train(planned, functools.partial(progress, "training"))
        lesson.commit(outcome, keep)
        return outcome


@contextlib.contextmanager
def _out_of_memory_told(path: Path) -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise TreeringError(f"out of memory; {path} is as it was: close other programs and try again") from None
        raise


class _Lesson:
    """A folder of photos on its way into a model: read, divided, planned, trained on and committed, in this order."""

    def __init__(self, path: Path, learner: Learner, disk: Path | None, own_validation: bool) -> None:
        self.path, self.learner, self.disk, self.own_validation = path, learner, disk, own_validation
        self.model, self.recipe = learner.model, learner.resolved_recipe()
        self.known = [str(name) for name in self.model.classes] if self.model else []
        self.channels, self.size = self.model.image_shape[:2] if self.model else (3, self.recipe.run.image_size)

    def read(self, folder: Path, found: ImageFolder, progress: Callable[[int, int], None]) -> None:
        """Decode the photos, and compute the digests by which they are recognised."""
        self.loaded = folders.load(found, self.size, self.channels, self.disk, progress)
        self.new = sorted(set(self.loaded.labels) - set(self.known))
        if not self.loaded.labels:
            reasons = "; ".join(f"{path.name}: {reason}" for path, reason in self.loaded.skipped[:3])
            raise TreeringError(f"no image in {folder} can be read ({reasons})")
        if not self.known and len(self.new) < 2:
            raise TreeringError(f"{folder} has one class only, {self.new[0]}: a model needs two or more: add another")
        self.digests = pixels.digests(self.loaded.images)
        self.photos = of_photos(self.loaded.labels, self.digests, not self.own_validation)
        self.unfinished = Unfinished(self.path, self.learner, self.photos)

    def is_done(self) -> bool:
        """Return whether the model's last step was this one, since an earlier call was killed after it had saved it."""
        if self.model is None or settings.is_resized(self.learner):
            return False
        return self.model.history[-1].get("files") == self.photos

    def divide(self, folder: Path, checks: ImageFolder | None) -> None:
        """Decide which photos are trained on and which only measure the accuracy."""
        quota = 0 if checks else self.recipe.memory.held_out_quota(len(self.known) + len(self.new))
        self.division = holdout.divide(self.loaded, self.digests, self.model, quota)
        if not self.division.trained:
            raise TreeringError(f"{folder} has no image that the model does not have already: nothing to learn")
        self.measured = self.division.measured
        if checks:
            others = folders.load(checks, self.size, self.channels, self.disk)
            folders.warn_of(others.skipped)
            self.measured = holdout.for_validation(others, self.known + self.new, self.digests, self.model)
        self.names = [self.loaded.labels[index] for index in self.division.trained]
        self.resume = self.unfinished.load()

    def plan(self, done_already: bool = False) -> Plan:
        """Return what the step is going to be."""
        counts, model, place = Counter(self.loaded.labels), self.model, find_device(self.learner.device)
        quota = self.recipe.memory.held_out_quota(len(self.known) + len(self.new))
        told = functools.partial(
            Plan,
            recipe=self.recipe,
            device=place,
            step=len(model.history) + (not done_already) if model else 1,
            new={name: counts[name] for name in self.new},
            known={name: counts[name] for name in self.known if name in counts},
            skipped=self.loaded.skipped,
            own_validation=self.own_validation,
            held_out_quota=quota,
            dropped=sum(len(part[quota:]) for part in model.held_out.values()) if model else 0,
        )
        if done_already:
            return told(done_already=True)
        passes = plan.image_passes(model, self.recipe, self.names)
        return told(
            held_out=self.division.held_out,
            copies=self.division.copies,
            in_two_classes=self.division.in_two_classes,
            image_passes=passes,
            seconds=plan.seconds(passes, self.recipe, self.size, place, distils=bool(self.known)),
            resumed=self.resume is not None,
        )

    def train(self, planned: Plan, progress: Callable[[int, int], None]) -> Outcome:
        """Learn the step, and measure what it has led to."""
        started = time.monotonic()
        before = self._right_by_class({name: part for name, part in self.measured.items() if name in self.known})
        step = self.loaded.images[torch.tensor(self.division.trained)]
        watcher = _Saver(self.unfinished, planned, progress)
        self.learner.learn(step, self.names, self.resume, watcher)
        after, classes = self._right_by_class(self.measured), len(self.learner.classes_)
        return Outcome.of(classes, self.known, before, after, time.monotonic() - started)

    def _right_by_class(self, measured: Mapping[str, Images]) -> dict[str, list[bool]]:
        """Return, for each image of each class, whether the learner predicts its class."""
        return {
            name: [bool(said == name) for part in images.split(256) for said in self.learner.predict(part)]
            for name, images in measured.items()
        }

    def commit(self, outcome: Outcome, keep: int) -> None:
        """Save the model, which keeps the images that measured this step for the next one."""
        model = self.learner.learnt_model()
        if not self.own_validation:
            quota = self.recipe.memory.held_out_quota(len(model.classes))
            kept = {name: pixels.tensor(part)[:quota] for name, part in self.measured.items()}
            model.held_out = {column: kept[str(name)] for column, name in enumerate(model.classes) if name in kept}
        model.history[-1] |= {"accuracy": outcome.for_history(), "files": self.photos}
        model_folder.replace(model.content(), self.path, keep)
        self.unfinished.remove()


class _Saver(Watcher):
    """Tells the progress of a step, and saves its state every `SAVE_EVERY` seconds."""

    def __init__(self, unfinished: Unfinished, planned: Plan, progress: Callable[[int, int], None]) -> None:
        self.unfinished, self.planned, self.progress = unfinished, planned, progress
        self.done, self.saved = 0, time.monotonic()

    def epoch(self, report: EpochReport) -> None:
        passes = self.planned.image_passes
        if not self.done and self.planned.resumed:  # epochs of an earlier call count too
            left = report.image_passes * (report.epochs - report.epoch + 1)
            self.done = report.image_passes * (report.epoch - 1) if report.stage == "training" else passes - left
        self.done += report.image_passes
        self.progress(self.done, passes)
        if time.monotonic() - self.saved >= SAVE_EVERY:
            try:
                self.unfinished.save(report.state())
            except OSError as error:  # the disk may have room for the model all the same
                logger.warning("the state of the training cannot be saved: %s", error.strerror or error)
            self.saved = time.monotonic()
