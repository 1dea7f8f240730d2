"""`Learner`: an image classifier that learns classes in steps, with scikit-learn's conventions.

It turns a user's images and labels into steps for a method (`treering.methods`; the paper's four stages are in
`methods/eeil.py`) and the method's probabilities into labels. A call that fails leaves the learner as it was.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import os
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from treering import methods
from treering.core import backbones
from treering.core.trainer import EpochReport, InFlight, do_nothing
from treering.errors import TreeringError
from treering.images import arrays as inputs
from treering.images import folders as image_files
from treering.methods.base import Step
from treering.model import Model, in_order
from treering.recipe import Budget, Recipe
from treering.runtime import allocator, interrupts, randomness
from treering.runtime.gate import Gate
from treering.runtime.pixels import Images, digests
from treering.storage import model_folder as checkpoint

if TYPE_CHECKING:
    from treering.evaluation import Evaluation

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


class NotLearntError(TreeringError, AttributeError):
    """What was asked for exists only after the first `partial_fit`, as scikit-learn has it."""


class Learner:
    """Teach it classes with `partial_fit`, some now, some later; `predict` knows them all."""

    _estimator_type = "classifier"
    """Scikit-learn before 1.6 looks at this; later ones at `__sklearn_tags__`."""

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

        backbone: a name ("resnet32", "efficientnet-lite0", "timm:NAME", …) or a module that maps images N x C x H x W
        to features N x D (a copy of it is trained); memory: how many images to keep in all, or a `Budget`; both replace
        what the recipe says. recipe: every other setting; the paper's for CIFAR-100 by default, which multiplies images
        in memory; `Recipe.find("photos")` takes any number of them, and leaves a fifth of the memory to images that
        `treering learn` holds out. device: "auto", "cpu", "cuda".
        progress: called after each epoch.
        """
        self.backbone = backbone
        self.memory = memory
        self.recipe = recipe
        self.seed = seed
        self.device = device
        self.progress = progress
        self._model: Model | None = None
        self._gate = Gate()
        """Closed while a step is under way and the network is not whole."""

    def __copy__(self) -> Self:
        """One that learns on its own: a step changes the network in place."""
        twin = type(self).__new__(type(self))
        with self._gate.using("copy it"):
            twin.__setstate__(self.__dict__ | {"_model": copy.deepcopy(self._model)})
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: all but the gate, and the weights without what the optimiser keeps beside them."""
        with self._gate.using("copy it"):
            if self._model:
                self._model.method.trainer.release()
            return {name: value for name, value in self.__dict__.items() if name != "_gate"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_gate": Gate()}
        if torch.is_inference_mode_enabled():  # tensors read there can never be trained, copies of them can
            with torch.inference_mode(False):
                self._model = copy.deepcopy(self._model)

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        given = {name: value for name, value in self.get_params().items() if value is not defaults[name].default}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as given."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change constructor arguments.

        Of a learner that has learnt `partial_fit` takes up `progress` and the memory's size only, `fit` everything.
        """
        for name, value in params.items():
            if name not in self.get_params():
                raise TreeringError(f"unknown parameter {name}; valid: {', '.join(self.get_params())}")
            setattr(self, name, value)
        return self

    @property
    def classes_(self) -> np.ndarray:
        """The classes learnt so far, sorted as scikit-learn's tools take them to be; `history_` has them by step."""
        model = self.learnt_model()
        return _label_array([model.classes[column] for column in model.sorted_columns()])

    @property
    def history_(self) -> list[dict[str, Any]]:
        """One record per step: when it was learnt, its classes and images."""
        return copy.deepcopy(self._model.history) if self._model else []

    @property
    def exemplars_(self) -> dict[Hashable, np.ndarray]:
        """The images in memory of each class, best first: n x H x W x C, uint8."""
        model = self.learnt_model()
        exemplars = model.method.memory.exemplars.items()
        return {model.classes[column]: images.movedim(1, -1).cpu().numpy().copy() for column, images in exemplars}

    @torch.inference_mode(False)
    @torch.enable_grad()
    def partial_fit(self, images: Any, labels: Any = None, classes: Any = None) -> Self:
        """Learn one step: new classes get a new head, images of known classes strengthen those.

        images: uint8 N x H x W (x 1 or 3), floating-point 0..1, names of image files, a torch Dataset of (image,
        label), a folder with one folder of images per class, or an iterator of batches (images, labels), which need not
        fit into memory. classes: what is to come, as scikit-learn's tools tell it; nothing depends on it. On an error
        or an interruption the learner stays as it was before the call.
        """
        self.learn(*self._without_held_out(*self._examples(images, labels)))
        return self

    def _without_held_out(self, pixels: Images, names: list[Hashable]) -> tuple[Images, list[Hashable]]:
        """Without images that `treering learn` measures the accuracy on."""
        if not self._model or not self._model.held_out:
            return pixels, names
        secret = set(digests(torch.cat(list(self._model.held_out.values()))))
        free = [index for index, digest in enumerate(digests(pixels)) if digest not in secret]
        lost = in_order(set(names) - {names[index] for index in free} - set(self._model.classes))
        if lost or not free:
            whose = f" of {lost[0]}" if lost else ""
            raise TreeringError(f"all images{whose} are held out of training, to measure it: give others")
        if len(free) < len(names):
            logger.warning("%d of the images are left out: they are held out of training", len(names) - len(free))
        return pixels[torch.tensor(free)], [names[index] for index in free]

    def fit(self, images: Any, labels: Any = None) -> Self:
        """Forget everything, then learn one step: what scikit-learn's tools call, cross-validation for one."""
        with self._gate.using("fit"):
            learnt, self._model = self._model, None
        try:
            return self.partial_fit(images, labels)
        finally:
            self._model = self._model or learnt

    def __sklearn_is_fitted__(self) -> bool:
        return self._model is not None

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        target = TargetTags(required=True)
        return Tags(estimator_type="classifier", target_tags=target, classifier_tags=ClassifierTags())

    def _examples(self, images: Any, labels: Any) -> tuple[Images, list[Hashable]]:
        if isinstance(images, str | os.PathLike):
            return self._from_folder(Path(images), labels)
        return inputs.as_examples(self._opened(images), labels, self._model.image_shape[0] if self._model else None)

    def _file_format(self) -> tuple[int, int]:
        """Side of the squares that image files are read as, and their channels."""
        if self._model:
            return self._model.image_shape[1], self._model.image_shape[0]
        return self.resolved_recipe().run.image_size, 3

    def _opened(self, images: Any) -> Any:
        """The pixels, if `images` are names of image files; anything else as it is."""
        if hasattr(images, "to_numpy"):  # a column of a table
            images = images.to_numpy()
        if isinstance(images, np.ndarray) and images.dtype.kind in "UO" and images.ndim == 1:
            images = images.tolist()
        if not isinstance(images, list | tuple) or not all(isinstance(one, str | os.PathLike) for one in images):
            return images
        size, channels = self._file_format()
        with image_files.decoding() as pool:
            read = list(pool.map(lambda file: image_files.read_or_reason(Path(file), size, channels), images))
        for file, found in zip(images, read, strict=True):
            if Path(file).is_dir():
                raise TreeringError(f"{os.fspath(file)} is a folder: give names of image files")
            if isinstance(found, str):
                raise TreeringError(f"{os.fspath(file)} cannot be read: {found}")
        return read

    def _from_folder(self, folder: Path, labels: Any) -> tuple[Images, list[Hashable]]:
        if labels is not None:
            raise TreeringError("a folder brings its own labels: leave the labels out")
        loaded = image_files.load_with_warnings(image_files.scan(folder), *self._file_format())
        if not loaded.labels:
            raise TreeringError(f"no image in {folder} can be read")
        return loaded.images, list(loaded.labels)

    def learn(
        self,
        pixels: Images,
        names: Sequence[Hashable],
        resume: InFlight | None = None,
        watch: Callable[[EpochReport], None] = do_nothing,
    ) -> None:
        """`partial_fit` with images N x C x H x W and labels as they are meant to be.

        `watch` sees every epoch, whose state a later call can go on from with `resume`.
        """
        allocator.keep()
        try:
            with self._gate.changing("learn the next"):
                self._learn(pixels, names, resume, watch)
        finally:
            allocator.give_back()

    def _learn(
        self,
        pixels: Images,
        names: Sequence[Hashable],
        resume: InFlight | None,
        watch: Callable[[EpochReport], None],
    ) -> None:
        model = self._model or self._new_model(pixels)
        inputs.one_type(names, model.classes)
        _check_shape(pixels, model)
        new = in_order(set(names) - set(model.classes))
        column = {name: index for index, name in enumerate(model.classes + new)}

        method, number = model.method, len(model.history) + 1
        budget = self.resolved_recipe().memory
        device = method.network.device
        inside = pixels.to(device) if isinstance(pixels, Tensor) else pixels
        step = Step(inside, torch.tensor([column[name] for name in names], device=device), len(new))
        method.trainer.on_epoch = functools.partial(self._report, number, watch)
        method.trainer.start_step(resume, randomness.dropout_seed(model.seed, number))
        before = method.snapshot()
        counts = Counter(names)
        record = {
            "step": number,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "new_classes": new,
            "images": [[name, counts[name]] for name in in_order(set(names))],
        }
        logger.info("step %d: %d images, %d new classes", number, len(names), len(new))
        quota = budget.held_out_quota(len(column)) if model.held_out else 0
        held_out = {label: part[:quota] for label, part in model.held_out.items() if quota}
        learnt = replace(model, classes=model.classes + new, history=[*model.history, record], held_out=held_out)
        try:
            method.resize_memory(budget.size)
            with _own_precision(device):
                method.learn_step(step)
            self._model = learnt
        except BaseException:
            if self._model is not learnt:
                with interrupts.deferred():
                    method.restore(before)
            raise
        finally:
            method.trainer.end_step()

    def predict(self, images: Any) -> np.ndarray:
        """The most probable class of each image, as the label was given."""
        return self.classes_[self.predict_proba(images).argmax(1)]

    def predict_proba(self, images: Any) -> np.ndarray:
        """N x classes; columns follow `classes_`, so that a class learnt later may add one between others.

        Images as for `partial_fit`, but no folder; or one file's name.
        """
        with self._gate.using("predict"):
            model = self.learnt_model()
            opened = self._opened([images] if isinstance(images, str | os.PathLike) else images)
            pixels = inputs.as_images(opened, model.image_shape[0])
            _check_shape(pixels, model)
            with _own_precision(model.method.network.device):
                probabilities = model.method.probabilities(pixels).double().cpu().numpy()
        probabilities = probabilities[:, model.sorted_columns()]
        return probabilities / probabilities.sum(1, keepdims=True)  # they summed to 1 in float32 only

    def score(self, images: Any, labels: Any = None) -> float:
        """The share of images whose predicted class is their label."""
        model = self.learnt_model()
        pixels, names = self._examples(images, labels)
        inputs.one_type(names, model.classes)
        # In parts: the images of a folder need not fit into memory.
        predicted = [name for part in pixels.split(1024) for name in self.predict(part).tolist()]
        return float(np.mean([given == name for given, name in zip(predicted, names, strict=True)]))

    def save(self, folder: str | os.PathLike[str], keep: int = checkpoint.KEEP) -> None:
        """Write a model folder, or a new version into one, atomically; the last `keep` versions stay for `undo`."""
        if not isinstance(keep, Integral) or keep < 0:
            raise TreeringError(f"keep must be a whole number, 0 or more, not {keep!r}")
        with self._gate.using("save"):
            checkpoint.save(self.learnt_model(), Path(folder), keep)

    def evaluate(self, folder: str | os.PathLike[str]) -> Evaluation:
        """How many images of a folder, one folder per class, it gets right."""
        from treering import evaluation

        return evaluation.evaluate(self, Path(folder))

    def export(self, out: str | os.PathLike[str]) -> float:
        """Write one file for other programs, OUT.onnx or OUT.pt2; returns by how much its answers differ."""
        from treering import export

        with self._gate.using("export"), _own_precision(torch.device("cpu")):
            return export.export(self, Path(out))

    @classmethod
    @torch.inference_mode(False)
    def load(cls, folder: str | os.PathLike[str], backbone: nn.Module | None = None, device: str = "auto") -> Self:
        """Read a model folder. A model learnt with a module as its backbone needs such a module again.

        Its weights do not matter, but to the method "joint", which begins each step with them.
        """
        model = checkpoint.load(Path(folder), backbone, methods.find_device(device))
        learner = cls(backbone=backbone, recipe=model.method.recipe, seed=model.seed, device=device)
        learner._model = model
        return learner

    def learnt_model(self) -> Model:
        """`model`, or an error if nothing is learnt yet."""
        if self._model is None:
            raise NotLearntError("this learner has learnt nothing yet: call partial_fit first")
        return self._model

    @property
    def model(self) -> Model | None:
        """What is learnt, as the other modules use it; None before the first step."""
        return self._model

    def resolved_recipe(self) -> Recipe:
        """The recipe with the constructor's backbone and memory in it; once learnt, only the memory's size counts."""
        if self._model:
            learnt = self._model.method.recipe
            budget, before = self._with_memory(learnt).memory, learnt.memory
            if (budget.kind, budget.selection) != (before.kind, before.selection):
                raise TreeringError(
                    "of the memory of a learner that has learnt only the size can be changed: "
                    f"give Budget({before.kind!r}, {budget.size}, {before.selection!r})"
                )
            return replace(learnt, memory=replace(before, size=budget.size))
        recipe = Recipe() if self.recipe is None else self.recipe
        if not isinstance(recipe, Recipe):
            raise TreeringError(f"recipe must be a Recipe (Recipe.find reads one by its name), not {recipe!r}")
        if not isinstance(self.seed, Integral) or not 0 <= self.seed < 2**63:
            raise TreeringError(f"seed must be a whole number from 0 to 2^63 - 1, not {self.seed!r}")
        if self.backbone is not None and not isinstance(self.backbone, str | nn.Module):
            raise TreeringError(f"backbone must be a name or a torch.nn.Module, not {self.backbone!r}")
        if self.progress is not None and not callable(self.progress):
            raise TreeringError(f"progress must be a function, not {self.progress!r}")
        if self.backbone is not None:
            recipe = replace(recipe, backbone=self.backbone if isinstance(self.backbone, str) else "custom")
        return self._with_memory(recipe)

    def _with_memory(self, recipe: Recipe) -> Recipe:
        if self.memory is None:
            return recipe
        if isinstance(self.memory, Budget):
            return replace(recipe, memory=self.memory)
        if not isinstance(self.memory, Integral) or isinstance(self.memory, bool):
            raise TreeringError(f"memory must be a number of images or a Budget, not {self.memory!r}")
        return replace(recipe, memory=replace(recipe.memory, kind="total", size=int(self.memory), held_out=0.0))

    def _new_model(self, pixels: Images) -> Model:
        """A model that knows no class yet, for images like `pixels`, the first step's."""
        recipe = self.resolved_recipe()
        seed, channels = int(self.seed), pixels.shape[1]
        if isinstance(self.backbone, nn.Module):
            module = backbones.copied(self.backbone)
        else:
            module = backbones.build(recipe.backbone, channels, seed)
        mean = backbones.input_mean(module, pixels, recipe.augmentation, recipe.pixel_scale)
        method = methods.create(recipe, module, mean, seed, methods.find_device(self.device))
        return Model(method, seed, tuple(pixels.shape[1:]))

    def _report(self, step: int, watch: Callable[[EpochReport], None], report: EpochReport) -> None:
        watch(report)
        logger.debug("%s epoch %d/%d: loss %.4f", report.stage, report.epoch, report.epochs, report.mean_loss)
        if self.progress is not None:
            passes, loss = report.image_passes, report.mean_loss
            self.progress(Progress(step, report.stage, report.epoch, report.epochs, passes, loss))


def _own_precision(device: torch.device) -> torch.autocast:
    """The network's own precision, whatever the caller's; without the cache, whose weights would outlive an update."""
    return torch.autocast(device.type, enabled=False, cache_enabled=False)


def _check_shape(pixels: Images, model: Model) -> None:
    if tuple(pixels.shape[1:]) != model.image_shape:
        given, learnt = (f"{h} x {w} pixels in {c} channel(s)" for c, h, w in (pixels.shape[1:], model.image_shape))
        raise TreeringError(f"images of {given} were given, but this learner has learnt images of {learnt}")


def _label_array(labels: list[Hashable]) -> np.ndarray:
    """Labels as a NumPy array of one dimension: of texts or numbers where NumPy keeps them, of objects otherwise."""
    if type(labels[0]) in (str, int, float, bool):
        plain = np.array(labels)
        if [(type(label), label) for label in plain.tolist()] == [(type(label), label) for label in labels]:
            return plain
    array = np.empty(len(labels), dtype=object)
    array[:] = labels
    return array
