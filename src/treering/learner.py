"""`Learner`: an image classifier that learns classes in steps, with scikit-learn's conventions.

It turns a user's images and labels into steps for a method (`treering.methods`; the paper's four stages are in
`methods/eeil.py`) and the method's probabilities into labels. A call that fails leaves the learner as it was.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from treering import augment, backbones, inputs, methods
from treering.errors import TreeringError
from treering.methods.base import Method, Step
from treering.network import mean_image
from treering.recipe import Budget, Recipe
from treering.trainer import EpochReport

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """Where a `partial_fit` is; handed to the learner's `progress` function after each epoch."""

    step: int
    """From 1."""
    stage: str
    epoch: int
    """From 1 within the stage."""
    epochs: int
    image_passes: int
    """In this epoch."""
    loss: float
    """Mean over the epoch."""


class Learner:
    """Teach it classes with `partial_fit`, some now, some later; `predict` knows them all."""

    def __init__(
        self,
        backbone: str | nn.Module | None = None,
        memory: int | Budget | None = None,
        recipe: Recipe | None = None,
        seed: int = 0,
        device: str = "auto",
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Nothing is checked or built before the first `partial_fit`.

        backbone: a name ("resnet32", "resnet18", "small") or a module that maps images N x C x H x W to features
        N x D (a copy of it is trained); memory: how many images to keep in all, or a `Budget`; both replace what the
        recipe says. recipe: every other setting; the paper's for CIFAR-100 by default. device: "auto", "cpu", "cuda".
        progress: called after each epoch.
        """
        self.backbone = backbone
        self.memory = memory
        self.recipe = recipe
        self.seed = seed
        self.device = device
        self.progress = progress
        self._method: Method | None = None
        self._image_shape: tuple[int, ...] = ()
        self._classes: list[Hashable] = []
        self._history: list[dict[str, Any]] = []

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as given."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Learner:
        """Change constructor arguments; what is already learnt keeps those it was learnt with."""
        for name, value in params.items():
            if name not in self.get_params():
                raise TreeringError(f"unknown parameter {name}; valid: {', '.join(self.get_params())}")
            setattr(self, name, value)
        return self

    @property
    def classes_(self) -> np.ndarray:
        """The classes learnt so far, in the order of `predict_proba`'s columns: step by step, sorted within a step."""
        self._fitted()
        return _label_array(self._classes)

    @property
    def history_(self) -> list[dict[str, Any]]:
        """One record per step: when it was learnt, its classes and images."""
        return copy.deepcopy(self._history)

    @property
    def exemplars_(self) -> dict[Hashable, np.ndarray]:
        """The images in memory of each class, best first: n x H x W x C, uint8."""
        memory = self._fitted().memory.exemplars
        return {self._classes[label]: images.movedim(1, -1).cpu().numpy() for label, images in memory.items()}

    def partial_fit(self, images: Any, labels: Any = None) -> Learner:
        """Learn one step: new classes get a new head, images of known classes strengthen those.

        images: uint8 N x H x W (x 1 or 3), floating-point 0..1, or a torch Dataset of (image, label). On an error or
        an interruption the learner stays as it was before the call.
        """
        pixels, names = inputs.as_examples(images, labels)
        inputs.one_type(names, self._classes)
        self._check_shape(pixels)
        new = _in_order(set(names) - set(self._classes))
        column = {name: index for index, name in enumerate(self._classes + new)}

        method = self._method or self._create_method(pixels)
        device = method.network.device
        step = Step(pixels.to(device), torch.tensor([column[name] for name in names], device=device), len(new))
        method.trainer.on_epoch = self._report
        method.trainer.start_step()
        before = method.snapshot()
        logger.info("step %d: %d images, %d new classes", len(self._history) + 1, len(names), len(new))
        try:
            with _seeded_dropout(self.seed + len(self._history), device):
                method.learn_step(step)
        except BaseException:
            method.restore(before)
            raise
        self._method, self._image_shape = method, tuple(pixels.shape[1:])
        self._classes += new
        counts = Counter(names)
        self._history.append(
            {
                "step": len(self._history) + 1,
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "new_classes": new,
                "images": [[name, counts[name]] for name in _in_order(set(names))],
            }
        )
        return self

    def predict(self, images: Any) -> np.ndarray:
        """The most probable class of each image, as the label was given."""
        return self.classes_[self.predict_proba(images).argmax(1)]

    def predict_proba(self, images: Any) -> np.ndarray:
        """N x classes; columns follow `classes_`."""
        method = self._fitted()
        pixels = inputs.as_images(images)
        self._check_shape(pixels)
        return method.probabilities(pixels).double().cpu().numpy()

    def score(self, images: Any, labels: Any = None) -> float:
        """The share of images whose predicted class is their label."""
        self._fitted()
        pixels, names = inputs.as_examples(images, labels)
        predicted = self.predict(pixels)
        return float(np.mean([given == name for given, name in zip(predicted.tolist(), names, strict=True)]))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a model folder, or a new version into one, atomically."""
        from treering import checkpoint

        checkpoint.save(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], backbone: nn.Module | None = None, device: str = "auto") -> Learner:
        """Read a model folder. A model learnt with a module as its backbone needs such a module again."""
        from treering import checkpoint

        return checkpoint.load(cls, folder, backbone, device)

    def _fitted(self) -> Method:
        if self._method is None:
            raise TreeringError("this learner has learnt nothing yet: call partial_fit first")
        return self._method

    def _resolved_recipe(self) -> Recipe:
        """The recipe with the constructor's backbone and memory in it."""
        recipe = self.recipe or Recipe()
        if not isinstance(self.seed, Integral):
            raise TreeringError(f"seed must be a whole number, not {self.seed!r}")
        if self.backbone is not None and not isinstance(self.backbone, str | nn.Module):
            raise TreeringError(f"backbone must be a name or a torch.nn.Module, not {self.backbone!r}")
        if self.backbone is not None:
            recipe = replace(recipe, backbone=self.backbone if isinstance(self.backbone, str) else "custom")
        if isinstance(self.memory, Budget):
            recipe = replace(recipe, memory=self.memory)
        elif self.memory is not None:
            if not isinstance(self.memory, Integral) or isinstance(self.memory, bool):
                raise TreeringError(f"memory must be a number of images or a Budget, not {self.memory!r}")
            recipe = replace(recipe, memory=replace(recipe.memory, kind="total", size=int(self.memory)))
        return recipe

    def _create_method(self, pixels: Tensor) -> Method:
        """The method with a fresh network for images like `pixels`, the first step's."""
        recipe = self._resolved_recipe()
        inside = augment.plain(pixels, recipe.augmentation)
        if isinstance(self.backbone, nn.Module):
            module = copy.deepcopy(self.backbone).cpu()
        else:
            module = backbones.build(recipe.backbone, inside.shape[1], self.seed)
        mean = mean_image(inside, recipe.pixel_scale)
        return methods.create(recipe, module, mean, self.seed, methods.find_device(self.device))

    def _check_shape(self, pixels: Tensor) -> None:
        if self._method is not None and tuple(pixels.shape[1:]) != self._image_shape:
            given, learnt = (f"{h} x {w} pixels in {c} channel(s)" for c, h, w in (pixels.shape[1:], self._image_shape))
            raise TreeringError(f"images of {given} were given, but this learner has learnt images of {learnt}")

    def _report(self, report: EpochReport) -> None:
        logger.debug("%s epoch %d/%d: loss %.4f", report.stage, report.epoch, report.epochs, report.mean_loss)
        if self.progress is not None:
            step = len(self._history) + 1
            passes, loss = report.image_passes, report.mean_loss
            self.progress(Progress(step, report.stage, report.epoch, report.epochs, passes, loss))


@contextlib.contextmanager
def _seeded_dropout(seed: int, device: torch.device) -> Iterator[None]:
    """Layers that draw from torch's global generators draw from `seed`; the generators stay as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


def _in_order(labels: set[Hashable]) -> list[Hashable]:
    """Sorted; labels that cannot be compared are sorted by their text."""
    try:
        return sorted(labels)  # type: ignore[type-var]
    except TypeError:
        return sorted(labels, key=repr)


def _label_array(labels: list[Hashable]) -> np.ndarray:
    """Labels as a NumPy array of one dimension: of texts or numbers where NumPy keeps them, of objects otherwise."""
    if type(labels[0]) in (str, int, float, bool):
        plain = np.array(labels)
        if [(type(label), label) for label in plain.tolist()] == [(type(label), label) for label in labels]:
            return plain
    array = np.empty(len(labels), dtype=object)
    array[:] = labels
    return array
