"""Every setting of a run, each constant of the paper beside the section that gives it.

A recipe is a frozen dataclass: it is the configuration, the record in a model folder and the content of a TOML file.
Ablations are settings: `augmentation.kind = "none"`, `balanced.epochs = 0`, another `memory.selection` or budget.
A number in brackets is a section of the paper.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from treering import recipes
from treering.checked import Checked, require
from treering.errors import TreeringError, nearest
from treering.recipes import ready_names as ready_names

LARGEST = 1e30
"""The bound of numbers, with room to the largest that the network's floats can hold."""
LONGEST_SIDE = 10_000
"""The longest side of images, in pixels."""
MOST_OUTPUTS = 100_000
"""The most outputs that a network may have from the start."""
MOST_EPOCHS = 1_000_000
"""The most epochs of a stage."""
FEWEST_EPOCHS = 3
"""A stage whose number of images is bounded has so many epochs or none."""
MOST_ORDERS = 10**9
"""The number of class orders: NumPy takes not many more seeds."""


def later(default: Any) -> Any:
    """Return a field that recipes did not have at first: it is left out of files while it has its default.

    So the recipes in older files, and their checksums, stay what they were.
    """
    return dataclasses.field(default=default, metadata={"later": True})


@dataclass(frozen=True)
class Settings(Checked):
    """Settings that are checked against their types, whether they come from a file or are made in Python."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, default = getattr(self, field.name), field.default
            if isinstance(value, Mapping) and isinstance(default, Settings):
                object.__setattr__(self, field.name, default._with(value, f"{field.name}."))
        super().__post_init__()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            for number in value if isinstance(value, tuple) else (value,):
                require(not isinstance(number, int) or abs(number) < 2**63, f"{field.name} must be below 2^63")
                require(not isinstance(number, float) or abs(number) < LARGEST, f"{field.name} must be below {LARGEST}")

    @classmethod
    def described(cls, name: str) -> str:
        return f"a table [{name}], in Python {cls.__name__}(…)"

    def _table(self) -> dict[str, Any]:
        """Return the settings, those of the sections too, without `later` ones that have their default."""
        table = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not (field.metadata.get("later") and value == field.default):
                table[field.name] = value._table() if isinstance(value, Settings) else value
        return table

    def _with(self, table: Mapping[str, Any], where: str = "") -> Self:
        """Return a copy with the settings of `table`, whose sections may be incomplete; errors begin with `where`."""
        known = [setting.name for setting in dataclasses.fields(self)]
        changes = dict(table)
        for name, value in table.items():
            if name not in known:
                raise TreeringError(f"unknown setting {where}{name}; {nearest(name, known, where)}")
            before = getattr(self, name)
            if isinstance(before, Settings) and isinstance(value, Mapping):
                changes[name] = before._with(value, f"{where}{name}.")
        try:
            return dataclasses.replace(self, **changes)
        except TreeringError as error:
            raise TreeringError(f"{where}{error}") from None


@dataclass(frozen=True)
class Schedule(Settings):
    """How long one stage trains and at which learning rate."""

    epochs: int
    """The number of passes over the stage's training set; 0 leaves the stage out."""
    lr: float
    """The learning rate of the first epoch."""
    drop_at: tuple[int, ...] = ()
    """The epochs, counted from 0 within the stage, at which the learning rate is divided by `drop_factor`."""
    drop_factor: float = 10.0
    """The number that divides the learning rate at each drop."""
    shape: Literal["drops", "cosine"] = later("drops")
    """drops: the learning rate falls at `drop_at`; cosine: the first epoch has a tenth of it, then it falls to almost 0
    in half a cosine wave."""

    most_images: int = later(0)
    """The most images that a photo model's stage trains on, all epochs together: a larger step gets fewer epochs, and
    none if they would be fewer than `FEWEST_EPOCHS`. 0 sets no bound."""

    def _check_ranges(self) -> None:
        require(self.most_images >= 0, f"most_images must be 0 or more, not {self.most_images}")
        require(0 <= self.epochs <= MOST_EPOCHS, f"epochs must be from 0 to {MOST_EPOCHS:,}, not {self.epochs}")
        require(self.lr > 0, f"lr must be above 0, not {self.lr}")
        require(min(self.drop_at, default=0) >= 0, f"drop_at must hold epochs from 0 on, not {self.drop_at}")
        require(self.drop_factor > 0, f"drop_factor must be above 0, not {self.drop_factor}")

    def bounded(self, images: int) -> Self:
        """Return the schedule of a stage that trains on `images` in each epoch, which `most_images` bounds."""
        epochs = min(self.epochs, self.most_images // max(images, 1)) if self.most_images else self.epochs
        enough = not self.most_images or epochs >= FEWEST_EPOCHS
        return dataclasses.replace(self, epochs=epochs if enough else 0, most_images=0)

    def lr_at(self, epoch: int) -> float:
        """The learning rate of `epoch`, counted from 0 within the stage."""
        if self.shape == "cosine":
            return self.lr * (0.5 + 0.5 * math.cos(math.pi * epoch / self.epochs) if epoch else 0.1)
        with contextlib.suppress(ArithmeticError):
            rate = self.lr / self.drop_factor ** sum(epoch >= drop for drop in self.drop_at)
            if rate < LARGEST:
                return rate
        raise TreeringError(f"so many drops by {self.drop_factor} leave no learning rate: set fewer")


@dataclass(frozen=True)
class Optimizer(Settings):
    """The settings of the optimiser: stochastic gradient descent [5] or, for pretrained networks, Adam."""

    batch_size: int = 128
    """The number of images in a mini-batch [5]."""
    momentum: float = 0.9
    """The share of the last update that the next one keeps [5]."""
    reset_momentum: bool = True
    """Whether every epoch starts with an empty momentum buffer, as in the released code."""
    weight_decay: float = 1e-4
    """The strength of the weight decay [5]."""
    decay: Literal["norm-scaled", "plain"] = "norm-scaled"
    """What each weight tensor w adds to its gradient: weight_decay * |w|^2 * w if norm-scaled, as in the released
    code, or weight_decay * w if plain."""
    noise_eta: float = 0.3
    """The gradient, summed over the batch, gets noise of deviation eta / (1 + epoch)^gamma [5]; 0 turns it off."""
    noise_gamma: float = 0.55
    """The power by which that noise fades [5]."""
    kind: Literal["sgd", "adam"] = later("sgd")
    """adam is AdamW (Loshchilov and Hutter 2019): `momentum` is its beta 1, and its decay is always plain."""
    clip: float = later(0.0)
    """The largest length of the gradient of a batch; longer ones are shortened to it. 0 sets no bound."""

    def _check_ranges(self) -> None:
        require(self.batch_size >= 2, f"batch_size must be 2 or more (batch normalisation), not {self.batch_size}")
        require(0 <= self.momentum < 1, f"momentum must be at least 0 and below 1, not {self.momentum}")
        require(self.weight_decay >= 0, f"weight_decay must be 0 or more, not {self.weight_decay}")
        require(self.noise_eta >= 0, f"noise_eta must be 0 or more, not {self.noise_eta}")
        require(self.noise_gamma >= 0, f"noise_gamma must be 0 or more, not {self.noise_gamma}")
        require(self.clip >= 0, f"clip must be 0 or more, not {self.clip}")


@dataclass(frozen=True)
class Budget(Settings):
    """How many exemplars the memory may hold [3.1] and which it picks."""

    kind: Literal["total", "per-class", "per-step"] = "total"
    """total: `size` exemplars in all, shared by the classes; per-class: `size` for each class, so the memory grows;
    per-step: `size` for each step, as GEM keeps them."""
    size: int = 2000
    """K [5]: 2000 for CIFAR-100, 20000 for ImageNet."""
    selection: Literal["herding", "random", "histogram"] = "herding"
    """The rule that ranks a class's images [3.1, 6.3]."""
    held_out: float = 0.0
    """Share of the budget for images that only measure the accuracy and are never trained on (`treering learn`)."""

    def _check_ranges(self) -> None:
        require(self.size >= 0, f"size must be 0 or more, not {self.size}")
        require(0 <= self.held_out < 1, f"held_out must be at least 0 and below 1, not {self.held_out}")

    def quota(self, classes: int) -> int:
        """Return how many exemplars each of so many classes keeps: n = floor(K / c) [3.1], never more than K in all."""
        return self._images_per_class(classes) - self.held_out_quota(classes)

    def held_out_quota(self, classes: int) -> int:
        """Return how many images of each class only measure the accuracy."""
        return 0 if self.kind == "per-step" else int(self._images_per_class(classes) * self.held_out)

    def _images_per_class(self, classes: int) -> int:
        if self.kind == "total" and 0 < self.size < classes:
            raise TreeringError(
                f"a memory of {self.size} images cannot hold {classes} classes: set memory to at least {classes}"
            )
        return self.size // classes if self.kind == "total" else self.size


@dataclass(frozen=True)
class Augmentation(Settings):
    """How a stage's training images are multiplied before it trains [5]."""

    kind: Literal["twelvefold", "twofold", "crop-mirror", "photo", "none"] = "twelvefold"
    """twelvefold is for small images [6] and twofold for large ones [7]; crop-mirror is iCaRL's, and photo is for few
    photos and a network that has seen many: these two draw anew in each epoch."""
    brightness: float = 63.0
    """The largest change of intensity, out of 255 [5]."""
    contrast: tuple[float, float] = (0.2, 1.8)
    """The range of the contrast factor [5]."""
    padding: int = 4
    """twelvefold and crop-mirror add this many zero pixels on each side before they crop to the image's size."""
    crop_size: int = 224
    """twofold and photo crop or resize the images, which are held larger, to squares of this side [7]."""

    def _check_ranges(self) -> None:
        require(
            len(self.contrast) == 2 and self.contrast[0] <= self.contrast[1],
            f"contrast must be a range of two numbers, not {self.contrast}",
        )
        require(0 <= self.padding <= LONGEST_SIDE, f"padding must be from 0 to {LONGEST_SIDE}, not {self.padding}")
        require(
            1 <= self.crop_size <= LONGEST_SIDE, f"crop_size must be from 1 to {LONGEST_SIDE}, not {self.crop_size}"
        )


@dataclass(frozen=True)
class Run(Settings):
    """The stream that `treering run` learns; a `Learner` uses only `image_size` of these settings."""

    dataset: str = "cifar100"
    """A name in `treering.data.DATASETS`, or the name of a folder of images in the data folder."""
    classes_per_step: int | tuple[int, ...] = 10
    """One number for steps of equal size, or a list with the size of each step."""
    order: int = 0
    """Class order i is drawn with seed 1993 + i; most of the literature uses order 0."""
    seed: int = 0
    """The seed of the weights, the augmentation, the batches and the noise."""
    image_size: int = 256
    """Images of a folder are held as squares of this side [7], in runs and by a `Learner`."""

    def _check_ranges(self) -> None:
        sizes = (self.classes_per_step,) if isinstance(self.classes_per_step, int) else self.classes_per_step
        require(min(sizes, default=0) >= 1, f"classes_per_step must be 1 or more, not {self.classes_per_step}")
        plain = self.dataset and not self.dataset.startswith(".") and not {"/", "\\", "\0"} & set(self.dataset)
        require(bool(plain), f"dataset must be the name of a folder in the data folder, not {self.dataset!r}")
        require(
            1 <= self.image_size <= LONGEST_SIDE, f"image_size must be from 1 to {LONGEST_SIDE}, not {self.image_size}"
        )
        require(0 <= self.order < MOST_ORDERS, f"order must be from 0 to {MOST_ORDERS - 1}, not {self.order}")
        require(0 <= self.seed < 2**63, f"seed must be from 0 to 2^63 - 1, not {self.seed}")


@dataclass(frozen=True)
class Recipe(Settings):
    """Every setting of a run. The defaults are the paper's for CIFAR-100."""

    method: str = "eeil"
    """The way to learn a step: a name in `treering.methods.METHODS`."""
    backbone: str = "resnet32"
    """The feature extractor: a name in `core.backbones.BACKBONES`, or "custom" for a module given in Python."""
    temperature: float = 2.0
    """The T of the distillation loss [3.2]."""
    outputs: int = 100
    """iCaRL and LwF.MC have this many outputs from the start, also for the classes to come. Their loss is averaged over
    the outputs, so the learning rate depends on their number: 100 as published, more where there are more classes."""
    pixel_scale: float = 255.0
    """Pixels are divided by this before the mean image is subtracted: 255 for CIFAR-100, 1 for ImageNet [5]."""
    engine: Literal["fast", "eager"] = "fast"
    """On a GPU, fast trains in bfloat16, with captured updates and with kernels that are our own or compiled; eager
    trains in float32, as every CPU does."""
    training: Schedule = Schedule(epochs=40, lr=0.1, drop_at=(10, 20, 30))
    """The schedule of stage 2, which trains on new images and exemplars [5]."""
    balanced: Schedule = Schedule(epochs=30, lr=0.01, drop_at=(10, 20))
    """The schedule of stage 3, balanced fine-tuning [5]."""
    optimizer: Optimizer = Optimizer()
    memory: Budget = Budget()
    augmentation: Augmentation = Augmentation()
    run: Run = Run()

    def _check_ranges(self) -> None:
        require(self.temperature > 0, f"temperature must be above 0, not {self.temperature}")
        require(1 <= self.outputs <= MOST_OUTPUTS, f"outputs must be from 1 to {MOST_OUTPUTS}, not {self.outputs}")
        require(self.pixel_scale > 0, f"pixel_scale must be above 0, not {self.pixel_scale}")

    def to_dict(self) -> dict[str, Any]:
        """Every setting, defaults included but for `later` ones, as the values that TOML and JSON hold."""
        return json.loads(json.dumps(self._table()))

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Recipe:
        """The recipe that `table` describes; what it leaves out keeps its default."""
        return cls()._with(table)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Recipe:
        """Read a TOML file; `treering.recipes` tells how a file can build on another recipe."""
        return cls._from_layers(recipes.read(Path(path)))

    @classmethod
    def find(cls, name: str | os.PathLike[str]) -> Recipe:
        """A ready recipe by its name, or a TOML file by its path."""
        return cls._from_layers(recipes.find(os.fspath(name)))

    @classmethod
    def _from_layers(cls, layers: Iterable[tuple[str, Mapping[str, Any]]]) -> Recipe:
        recipe = cls()
        for source, table in layers:
            try:
                recipe = recipe._with(table)
            except TreeringError as error:
                raise TreeringError(f"{source}: {error}") from None
        return recipe

    def changed(self, settings: Sequence[str]) -> Recipe:
        """Return a copy with changes such as "run.order=1"; values are those of TOML, texts may go without quotes."""
        table = self.to_dict()
        for setting in settings:
            key, equals, text = setting.partition("=")
            require(bool(equals), f"{setting!r} is not a change of a setting: write it as key=value")
            section, _, name = key.strip().rpartition(".")
            try:
                value = tomllib.loads(f"value = {text}")["value"]
            except ValueError:  # TOML's, or that of a number with thousands of digits
                value = text.strip()
            place = table.setdefault(section, {}) if section else table
            require(isinstance(place, dict), f"unknown setting {key.strip()}")
            before = place.get(name)
            if isinstance(before, dict) and isinstance(value, dict):  # a section keeps what the change leaves out
                value = before | value
            place[name] = text.strip() if isinstance(before, str) and not isinstance(value, str) else value
        return Recipe.from_dict(table)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write `to_toml()` to a file."""
        Path(path).write_text(self.to_toml(), encoding="utf-8")

    def to_toml(self) -> str:
        """Every setting, defaults included, as TOML."""
        table = self.to_dict()
        lines = [f"{key} = {_toml(value)}" for key, value in table.items() if not isinstance(value, dict)]
        for name, section in table.items():
            if isinstance(section, dict):
                lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in section.items())]
        return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    # JSON's strings, numbers, booleans and arrays of these are TOML's too, but for the control character 127.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
