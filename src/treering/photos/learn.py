"""`treering learn`: a folder of photos becomes a step of a model, as a transaction.

What can be solved in seconds is committed before a network is trained. If the call is killed, loses power or runs out
of disk at any moment, the model answers as before or by what was solved, and the same call goes on from the last saved
epoch to the same result (bit for bit on a CPU).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from treering import methods, words
from treering.core.trainer import EpochReport, InFlight, Watcher
from treering.errors import TreeringError, is_out_of_memory
from treering.images import folders
from treering.images.folders import ImageFolder, LoadedFolder
from treering.learner import Learner
from treering.photos import holdout, plan, settings
from treering.photos.holdout import Division
from treering.photos.outcome import Outcome, Said
from treering.photos.plan import Plan
from treering.photos.settings import Effort, Wishes
from treering.photos.unfinished import Before, Unfinished, before_last_step, of_photos
from treering.runtime import files, pixels
from treering.runtime.device import find_device
from treering.runtime.free_memory import TooLittleMemoryError
from treering.runtime.pixels import Images
from treering.storage import lock, model_folder, names
from treering.storage.folder import Folder

logger = words.logger(__name__)

SAVE_EVERY = 10.0
"""The number of seconds between two saves of an unfinished step; each is at the end of an epoch."""

Progress = Callable[[str, int, int], None]
"""A function that is told what is being done, how much of it is done and how much there is."""


def learn(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str] | ImageFolder,
    *,
    backbone: str | None = None,
    memory: int | None = None,
    changes: Sequence[str] = (),
    validation: str | os.PathLike[str] | None = None,
    keep: int = model_folder.KEEP,
    seed: int = 0,
    device: str = "auto",
    size: int | None = None,
    effort: Effort = "usual",
    dry_run: bool = False,
    tell: Callable[[Plan], None] = lambda plan: None,
    solved: Callable[[Outcome], None] = lambda outcome: None,
    progress: Progress = lambda what, done, total: None,
    epoch: Callable[[EpochReport], None] = lambda report: None,
) -> Outcome | None:
    """Add the classes and images of `folder` to the model at `path`, which is created if it does not exist.

    Parameters
    ----------
    path : path
        The model's folder.
    folder : path or ImageFolder
        A folder with a folder of images for each class, or the files of each class.
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
    size : int, optional
        The side in pixels of the squares as which a new model holds and sees photos.
    effort : {"usual", "fast", "thorough"}
        How long a pretrained network is trained after the classifier of its features is solved: not at all if fast,
        three times as long, and on any number of photos, if thorough. Training that does not help is thrown away.
    dry_run : bool
        Stop once `tell` has got the plan; nothing is learnt or written.
    tell : callable
        Called with the `Plan` before anything is learnt.
    solved : callable
        Called with what was solved, once the model has it and before its network is trained.
    progress : callable
        Called with what is being done, how much of it is done and how much there is.
    epoch : callable
        Called with an `EpochReport` after each epoch of the training.

    Returns
    -------
    Outcome or None
        What the step has led to; None after a dry run, and for a folder that was learnt already.
    """
    path = files.nameable(path)
    where, found = (folder.name, folder) if isinstance(folder, ImageFolder) else _scanned(files.nameable(folder))
    checks = folders.scan(Path(validation)) if validation else None
    wishes = Wishes(backbone, memory, changes, size, seed, device, effort)
    with _out_of_memory_told(path), _opened(path, dry_run) as opened:
        learner = settings.open_learner(path, wishes)
        disk = None if dry_run else path  # this disk must have room for the model anyway
        lesson = _Lesson(learner, disk, effort, own_validation=checks is not None)
        photos = lesson.read(where, found, functools.partial(progress, "reading"))
        before = Before(learner, names.MANIFEST if learner.model else None)
        is_solved = opened is not None and lesson.is_only_solved(photos)
        if opened and is_solved and effort != "fast":
            before = before_last_step(opened, learner)
            lesson = lesson.of(before.learner, effort)
        elif is_solved or lesson.is_done(photos):
            tell(lesson.plan_of_done(photos))
            if not (dry_run or is_solved):  # an interrupted training can still be gone on with
                Unfinished(opened, before, photos.fingerprints[0], lesson.training).remove()
            return None
        elif learner.model and learner.model.history[-1].get("unfinished") and not dry_run:
            logger.warning("the training of step %d was interrupted, and is given up", len(learner.history_))
        unfinished = Unfinished(opened, before, photos.fingerprints[0], lesson.training)
        division = lesson.divide(where, photos, checks)
        resume = unfinished.load(len(lesson.new(photos)))
        planned = lesson.plan(photos, division, is_solved, resumed=resume is not None)
        tell(planned)
        if dry_run or not opened:
            return None
        what = "training" if planned.training_passes else "learning"
        watcher = _Saver(unfinished, planned, functools.partial(progress, what), epoch)
        started = time.monotonic()
        if planned.solves_first:
            first = lesson.of(copy.copy(before.learner), "fast")
            outcome = first.train(photos, division, None, watcher, started)
            first.commit(opened, photos, division, outcome, max(keep, 1), unfinished=True)
            solved(outcome)
        instead = is_solved or planned.solves_first
        with _solved_stays(path) if instead else contextlib.nullcontext():
            outcome = lesson.train(photos, division, resume, watcher, started)
            lesson.commit(opened, photos, division, outcome, keep, instead=instead)
        unfinished.remove()
        return outcome


def _scanned(folder: Path) -> tuple[Path, ImageFolder]:
    return folder, folders.scan(folder)


def _opened(path: Path, dry_run: bool) -> contextlib.AbstractContextManager[Folder | None]:
    """Return the open folder of the model: to write to, but for a dry run."""
    if not dry_run:
        return lock.writing(path)
    return Folder(path) if path.is_dir() else contextlib.nullcontext()


@contextlib.contextmanager
def _out_of_memory_told(path: Path) -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise TreeringError(f"out of memory; {path} is as it was: close other programs and try again") from None
        raise


@contextlib.contextmanager
def _solved_stays(path: Path) -> Iterator[None]:
    """Say that the model has what was solved, if it fails to get what is trained after that."""
    version = lock.version(path)
    try:
        yield
    except (TreeringError, OSError, MemoryError, RuntimeError) as error:
        if lock.version(path) != version:
            raise
        if is_out_of_memory(error):
            why = "out of memory"
        elif isinstance(error, OSError):
            why = f"cannot save to {path}: {error.strerror or error}"
        elif isinstance(error, TreeringError):
            why = str(error)
        else:
            raise
        raise TreeringError(f"{why}; {path} knows these classes by what was solved") from error


@dataclass(frozen=True)
class _Photos:
    """The photos of a folder, read."""

    loaded: LoadedFolder
    digests: list[bytes]
    """What each photo is recognised by."""
    fingerprints: tuple[str, str]
    """What these photos are known by as they are held out now, and if they were held out the other way."""


class _Lesson:
    """How a folder of photos becomes a step: the photos are read, divided, planned, trained on and committed."""

    def __init__(self, learner: Learner, disk: Path | None, effort: Effort, own_validation: bool) -> None:
        self.learner, self.disk, self.effort, self.own_validation = learner, disk, effort, own_validation
        self.model, self.recipe = learner.model, learner.resolved_recipe()
        self.training = settings.training_of(self.recipe, effort)
        self.known = [str(name) for name in self.model.classes] if self.model else []
        self.channels, self.size = self.model.image_shape[:2] if self.model else (3, self.recipe.run.image_size)

    def of(self, learner: Learner, effort: Effort) -> _Lesson:
        """Return the same lesson for another learner, or with another effort."""
        return _Lesson(learner, self.disk, effort, self.own_validation)

    def read(self, folder: object, found: ImageFolder, progress: Callable[[int, int], None]) -> _Photos:
        """Decode the photos, and compute the digests by which they are recognised."""
        loaded = folders.load(found, self.size, self.channels, self.disk, progress)
        if not loaded.labels:
            raise TreeringError(f"no image in {folder} can be read ({_reasons(loaded)})")
        if not self.known and len(set(loaded.labels)) < 2:
            left_out = f" (others were left out: {_reasons(loaded)})" if loaded.skipped else ""
            what = f"has one readable class only, {loaded.labels[0]}: a model needs two or more"
            raise TreeringError(f"{folder} {what}{left_out}")
        digests = pixels.digests(loaded.images)
        ways = (not self.own_validation, self.own_validation)
        now, otherwise = (of_photos(loaded.labels, digests, held_out) for held_out in ways)
        return _Photos(loaded, digests, (now, otherwise))

    def new(self, photos: _Photos) -> list[str]:
        """Return the classes that the model does not know."""
        return sorted(set(photos.loaded.labels) - set(self.known))

    def is_done(self, photos: _Photos) -> bool:
        """Return whether the model's last step was this one, since an earlier call was killed after it had saved it."""
        if self.model is None or settings.is_resized(self.learner):
            return False
        return self.model.history[-1].get("files") == photos.fingerprints[0]

    def is_only_solved(self, photos: _Photos) -> bool:
        """Return whether the model's last step was this one, and it has only what was solved of it."""
        last = self.model.history[-1] if self.model else {}
        return bool(last.get("unfinished")) and last.get("files") in photos.fingerprints

    def divide(self, folder: object, photos: _Photos, checks: ImageFolder | None) -> Division:
        """Decide which photos are trained on and which only measure the accuracy."""
        quota = 0 if checks else self._held_out_quota(photos)
        division = holdout.divide(photos.loaded, photos.digests, self.model, quota)
        if not division.trained:
            raise TreeringError(f"{folder} has no image that the model does not have already: nothing to learn")
        if not checks:
            return division
        others = folders.load(checks, self.size, self.channels, self.disk)
        folders.warn_of(others.skipped)
        measured, same = holdout.for_validation(others, self.known + self.new(photos), division, self.model)
        return replace(division, measured=measured, same=division.same + same)

    def plan_of_done(self, photos: _Photos) -> Plan:
        """Return the plan of a step that the model has learnt already."""
        return replace(self._facts(photos), step=len(self.learner.history_), done_already=True)

    def plan(self, photos: _Photos, division: Division, is_solved: bool, resumed: bool) -> Plan:
        """Return what the step is going to be, the first part of which an earlier call may have solved."""
        facts, labels = self._facts(photos), division.names(photos.loaded)
        recipe = replace(self.recipe, training=self.training)
        stages = plan.stages(self.model, recipe, labels)
        solves_first = not (is_solved or resumed) and plan.is_solved_before_training(recipe, stages)
        if solves_first:
            stages += plan.stages(self.model, replace(recipe, training=replace(self.training, epochs=0)), labels)
        early = plan.ended_early(recipe, stages)
        try:
            seconds, fewest = plan.seconds([stages, early], recipe, self.size, facts.device, later=bool(self.known))
        except TooLittleMemoryError as error:
            if methods.find(recipe.method).trains:
                raise
            raise TreeringError(f"{error}, or learn with --fast, which trains nothing") from None
        return replace(
            facts,
            lacks_kept=plan.lacks_kept(self.model, recipe),
            is_solved=is_solved,
            solves_first=solves_first,
            held_out=division.held_out,
            copies=division.copies,
            same=division.same,
            image_passes=sum(stage.image_passes for stage in stages),
            epochs=self.training.epochs,
            training_passes=sum(stage.image_passes for stage in stages if stage.trains),
            seconds=seconds,
            fewest_seconds=fewest,
            resumed=resumed,
        )

    def _facts(self, photos: _Photos) -> Plan:
        """Return what the folder and the settings alone tell."""
        counts, quota = Counter(photos.loaded.labels), self._held_out_quota(photos)
        held_out = self.model.held_out.values() if self.model else ()
        return Plan(
            recipe=self.recipe,
            device=find_device(self.learner.device),
            step=len(self.learner.history_) + 1,
            new={name: counts[name] for name in self.new(photos)},
            known={name: counts[name] for name in self.known if name in counts},
            all_known=self.known,
            skipped=photos.loaded.skipped,
            own_validation=self.own_validation,
            held_out_quota=quota,
            dropped=sum(len(part[quota:]) for part in held_out),
        )

    def _held_out_quota(self, photos: _Photos) -> int:
        if not methods.find(self.recipe.method).trains:  # it measures by all photos
            return 0
        return self.recipe.memory.held_out_quota(len(self.known) + len(self.new(photos)))

    def train(
        self, photos: _Photos, division: Division, resume: InFlight | None, watcher: Watcher, started: float
    ) -> Outcome:
        """Learn the step, which was `started` at that time, and measure what it has led to."""
        measured = division.measured
        before = self._said({name: part for name, part in measured.items() if name in self.known})
        step = photos.loaded.images[torch.tensor(division.trained)]
        self.learner.learn(step, division.names(photos.loaded), resume, watcher, self.training)
        model = self.learner.learnt_model()
        told = None if self.own_validation else model.method.left_out
        if told:
            names = [str(name) for name in model.classes]

            def named(said: Mapping[int, Sequence[int]]) -> Said:
                return {names[label]: [names[other] for other in part] for label, part in said.items()}

            before, old_after, after = named(told.before), named(told.old_after), named(told.after)
        else:
            after = self._said(measured)
            old_after = {name: after[name] for name in before}
        images = Counter[str]()
        for record in model.history:
            images.update({str(name): count for name, count in record["images"]})
        return Outcome(
            classes=len(model.classes),
            known=self.known,
            before=before,
            old_after=old_after,
            after=after,
            left_out=told is not None,
            tuned=told is not None and told.tuned,
            trial=model.method.left_out.trial if model.method.left_out else None,
            photos=images,
            seconds=time.monotonic() - started,
        )

    def _said(self, measured: Mapping[str, Images]) -> Said:
        """Return what the learner takes each image of each class for."""
        return {
            name: [str(said) for part in images.split(256) for said in self.learner.predict(part)]
            for name, images in measured.items()
        }

    def commit(
        self,
        folder: Folder,
        photos: _Photos,
        division: Division,
        outcome: Outcome,
        keep: int,
        unfinished: bool = False,
        instead: bool = False,
    ) -> None:
        """Save the model, which keeps the images that measured this step for the next one.

        The step is `unfinished` if it is still to be trained; then the trained one comes `instead` of this version.
        """
        model = self.learner.learnt_model()
        if not self.own_validation:
            quota = self._held_out_quota(photos)
            kept = {name: pixels.tensor(part)[:quota] for name, part in division.measured.items()}
            model.held_out = {column: kept[str(name)] for column, name in enumerate(model.classes) if name in kept}
        model.history[-1] |= {"accuracy": outcome.for_history(), "files": photos.fingerprints[0]}
        if unfinished:
            model.history[-1]["unfinished"] = True
        model_folder.replace(model.content(), folder, keep, instead)


def _reasons(loaded: LoadedFolder) -> str:
    """Return why the first of the files that were left out could not be read."""
    return "; ".join(f"{path.name}: {reason}" for path, reason in loaded.skipped[:3])


class _Saver(Watcher):
    """Tells the progress of a step, and saves its state every `SAVE_EVERY` seconds."""

    def __init__(
        self,
        unfinished: Unfinished,
        planned: Plan,
        progress: Callable[[int, int], None],
        ended: Callable[[EpochReport], None],
    ) -> None:
        self.unfinished, self.planned, self.progress, self.ended = unfinished, planned, progress, ended
        self.done, self.saved = 0, time.monotonic()
        self.counts_earlier = planned.resumed
        """Whether epochs of an earlier call are still to be counted, which the first epoch of this one tells of."""

    def passed(self, images: int) -> None:
        self.done += images
        self.progress(self.done, self.planned.image_passes)

    def epoch(self, report: EpochReport) -> None:
        if self.counts_earlier:
            self.counts_earlier = False
            left = report.image_passes * (report.epochs - report.epoch + 1)
            earlier = report.image_passes * (report.epoch - 1)
            self.done += earlier if report.stage == "training" else self.planned.training_passes - left
        self.done += report.image_passes
        self.progress(self.done, self.planned.image_passes)
        self.ended(report)
        if time.monotonic() - self.saved >= SAVE_EVERY:
            try:
                self.unfinished.save(report.state())
            except OSError as error:  # the disk may have room for the model all the same
                logger.warning("the state of the training cannot be saved: %s", error.strerror or error)
            self.saved = time.monotonic()
