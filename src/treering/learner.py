"""`Learner`: an image classifier that learns classes in steps, with scikit-learn's conventions.

It turns a user's images and labels into steps for a method (`treering.methods`; the paper's four stages are in
`methods/eeil.py`) and the method's probabilities into labels. A call that fails leaves the learner as it was.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Hashable, Sequence
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from treering import changes, evaluation, model, parameters, session, words
from treering import export as exporting
from treering.core.trainer import InFlight, Watcher
from treering.errors import TreeringError
from treering.images import arrays, given
from treering.model import Model
from treering.prediction import SHARE, threshold
from treering.progress import Progress, Reporter
from treering.recipe import Budget, Recipe, Schedule
from treering.runtime import files
from treering.runtime.device import find_device
from treering.runtime.gate import Gate
from treering.runtime.pixels import Images, tensor
from treering.storage import model_folder
from treering.storage.manifest import MOST_EARLIER

logger = words.logger(__name__)


class NotLearntError(TreeringError, AttributeError):
    """An access to what exists only after the first `partial_fit`; an AttributeError too, as in scikit-learn."""


class Learner:
    """An image classifier that learns new classes with each `partial_fit`; `predict` knows all of them.

    Nothing is checked or built before the first `partial_fit`.

    Parameters
    ----------
    backbone : str or torch.nn.Module, optional
        The feature extractor: a name ("resnet32", "efficientnet-lite0", "timm:NAME", …) or a module that maps images
        N x C x H x W to features N x D, a copy of which is trained. It replaces the recipe's.
    memory : int or Budget, optional
        How many images of old classes to keep in all, or a `Budget`. It replaces the recipe's.
    recipe : Recipe or str, optional
        Every other setting, or the name of a ready recipe. The default is the paper's for CIFAR-100, which holds twelve
        copies of each image in memory; "photos" takes any number of images, and leaves a fifth of the memory to images
        that `treering learn` holds out.
    seed : int
        The seed of the first weights, augmentation, batches and noise.
    device : {"auto", "cpu", "cuda"}
        The device to train on; "auto" is a GPU if there is one.
    progress : callable, optional
        Called with a `Progress` after each epoch.

    Attributes
    ----------
    classes_ : numpy.ndarray
        The classes learnt so far, sorted.
    history_ : list of dict
        One record per step.
    exemplars_ : dict
        The exemplars of each class, best first.

    Examples
    --------
    >>> learner = Learner(backbone="resnet32", memory=2000)
    >>> learner.partial_fit(images, labels)  # doctest: +SKIP
    >>> learner.partial_fit(more_images, more_labels)  # doctest: +SKIP
    >>> learner.predict(images)  # doctest: +SKIP
    """

    def __init__(
        self,
        backbone: str | nn.Module | None = None,
        memory: int | Budget | None = None,
        recipe: Recipe | str | None = None,
        seed: int = 0,
        device: str = "auto",
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.backbone = backbone
        self.memory = memory
        self.recipe = recipe
        self.seed = seed
        self.device = device
        self.progress = progress
        self._model: Model | None = None
        self._gate = Gate()
        """Closed while a step is being learnt, when the network is half changed."""

    # A step changes the network in place, so a copy gets a model of its own. Copied weights are no longer views of the
    # optimiser's vector, which would otherwise be pickled with each of them.

    def __copy__(self) -> Self:
        twin = type(self).__new__(type(self))
        twin.__setstate__(self.__getstate__())
        return twin

    def __getstate__(self) -> dict[str, Any]:
        with self._gate.using("copy it"):
            kept = {name: value for name, value in self.__dict__.items() if name != "_gate"}
            shared = list(self._model.method.memory.exemplars.values()) if self._model else []
            return kept | {"_model": copy.deepcopy(self._model, {id(part): part for part in shared})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_gate": Gate()}
        if torch.is_inference_mode_enabled():  # tensors made in this mode cannot be trained, but copies can
            with torch.inference_mode(False):
                self._model = copy.deepcopy(self._model)

    def __repr__(self) -> str:
        defaults, params = inspect.signature(type(self)).parameters, self.get_params(deep=False)
        given = {name: value for name, value in params.items() if value is not defaults[name].default}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments, as given, and with `deep` every setting of the recipe."""
        given = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        return given | parameters.nested(parameters.recipe_of(self.recipe), "recipe") if deep else given

    def set_params(self, **params: Any) -> Self:
        """Change constructor arguments, or settings of the recipe: `set_params(recipe__training__epochs=3)`.

        After the first step `partial_fit` heeds only `progress` and the memory's size; `fit` heeds every argument.
        """
        for name, value in parameters.together(params, self.get_params(deep=False)).items():
            setattr(self, name, value)
        return self

    @property
    def classes_(self) -> np.ndarray:
        """The classes learnt so far, sorted as scikit-learn's tools expect; `history_` has them by step."""
        return arrays.label_array(self.learnt_model().sorted_classes())

    @property
    def history_(self) -> list[dict[str, Any]]:
        """One record per step: when it was learnt, its classes and images."""
        return copy.deepcopy(self._model.history) if self._model else []

    @property
    def exemplars_(self) -> dict[Hashable, np.ndarray]:
        """The exemplars of each class, best first: n x H x W x C, uint8."""
        learnt = self.learnt_model()
        exemplars = learnt.method.memory.exemplars.items()
        every = {learnt.classes[column]: tensor(images) for column, images in exemplars}
        return {name: images.movedim(1, -1).cpu().numpy().copy() for name, images in every.items()}

    @torch.inference_mode(False)
    @torch.enable_grad()
    def partial_fit(self, images: Any, labels: Any = None, classes: Any = None) -> Self:
        """Learn one step: new classes get a new head, and further images of known classes improve those classes.

        On an error or an interruption the learner stays as it was before the call.

        Parameters
        ----------
        images : array, tensor, list, Dataset, folder or iterator
            Pixels N x H x W (x 1 or 3), uint8 or floating-point 0..1; names of image files; a torch Dataset of (image,
            label); a folder with one folder of images per class; or an iterator of batches (images, labels), which
            together need not fit into memory.
        labels : sequence, optional
            One label per image: texts, numbers or other hashable values, all of one type. Leave it out if the images
            bring their own.
        classes : ignored
            Accepted because scikit-learn's tools announce all future classes here.

        Returns
        -------
        Learner
            The learner itself.
        """
        pixels, names = self._examples(images, labels)
        self.learn(*(self._model.without_held_out(pixels, names) if self._model else (pixels, names)))
        return self

    def fit(self, images: Any, labels: Any = None) -> Self:
        """Forget everything, then learn one step, as cross-validation and other tools of scikit-learn expect."""
        with self._gate.using("fit"):  # predictions meanwhile come from what was learnt before
            anew = type(self)(**self.get_params(deep=False)).partial_fit(images, labels)
        with self._gate.changing("fit"):
            self._model = anew._model
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return self._model is not None

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        target = TargetTags(required=True)
        return Tags(estimator_type="classifier", target_tags=target, classifier_tags=ClassifierTags())

    def learn(
        self,
        pixels: Images,
        names: Sequence[Hashable],
        resume: InFlight | None = None,
        watcher: Watcher | None = None,
        training: Schedule | None = None,
    ) -> None:
        """Do what `partial_fit` does, for images N x C x H x W and labels that need no conversion.

        `training` is a schedule for this step alone, in place of the recipe's. `watcher` is told of every epoch; a
        later call goes on from the state of that epoch if it gets it as `resume`.
        """
        with self._gate.changing("learn the next"):
            before = self._model or self._new_model(pixels)
            budget = self.resolved_recipe().memory
            step, learnt = before.next_step(pixels, names, budget)

            def commit() -> None:
                self._model = learnt

            number = len(learnt.history)
            logger.info("step %d: %d images, %d new classes", number, len(names), step.new_classes)
            session.learn(
                before.method,
                step,
                number,
                before.seed,
                resume=resume,
                watcher=Reporter(number, self.progress, watcher or Watcher()),
                memory_size=budget.size,
                training=training,
                commit=commit,
            )

    def forget(self, label: Hashable) -> Self:
        """Forget a class. Versions that were saved before have it still, unless `save` gets keep=0."""
        return self._changed(changes.Forget([label]))

    def rename(self, old: Hashable, new: Hashable) -> Self:
        """Give a class another label."""
        return self._changed(changes.Rename(old, new))

    def merge(self, kept: Hashable, gone: Hashable) -> Self:
        """Make the images of the class `gone` images of the class `kept`, where the method can."""
        return self._changed(changes.Merge(kept, gone))

    @torch.inference_mode(False)
    def _changed(self, change: changes.Change) -> Self:
        with self._gate.changing("change its classes"):
            self._model = change.to(self.learnt_model())
        return self

    def predict(self, images: Any) -> np.ndarray:
        """Return the most probable class of each image, as it was given to `partial_fit`."""
        with self._gate.using("predict"):
            learnt = self.learnt_model()
            return arrays.label_array(learnt.sorted_classes())[learnt.probabilities(self._asked(images)).argmax(1)]

    def predict_proba(self, images: Any) -> np.ndarray:
        """Return probabilities N x classes; columns follow `classes_`, so a later class may stand between others.

        Images are given as for `partial_fit`, except as a folder; the name of a single file works too.
        """
        with self._gate.using("predict"):
            return self.learnt_model().probabilities(self._asked(images))

    def unknown(self, images: Any, share: float = SHARE) -> np.ndarray:
        """Return which images resemble no class; of images of known classes, about this share is among them."""
        with self._gate.using("predict"):
            limit = threshold(self.learnt_model().usual_distances, share)
            pixels = self._asked(images)
            _, distances = self.learnt_model().answers(pixels)
            return np.zeros(len(pixels), bool) if distances is None else distances > limit

    def score(self, images: Any, labels: Any = None) -> float:
        """Return the share of images whose predicted class is their label."""
        classes = self.learnt_model().classes
        pixels, names = self._examples(images, labels)
        arrays.one_type(names, classes)
        # In parts: the images of a folder need not fit into memory.
        predicted = [name for part in pixels.split(1024) for name in self.predict(part).tolist()]
        return float(np.mean([given == name for given, name in zip(predicted, names, strict=True)]))

    def save(self, folder: str | os.PathLike[str], keep: int = model_folder.KEEP) -> None:
        """Write a model folder, or a new version into one, atomically; the last `keep` versions stay for `undo`."""
        if not isinstance(keep, Integral) or not 0 <= keep <= MOST_EARLIER:
            raise TreeringError(f"keep must be a whole number from 0 to {MOST_EARLIER}, not {keep!r}")
        with self._gate.using("save"):
            model_folder.save(self.learnt_model().content(), files.nameable(folder), keep)

    def evaluate(self, folder: str | os.PathLike[str]) -> evaluation.Evaluation:
        """Count how many images of a folder, with one folder per class, the learner gets right."""
        with self._gate.using("evaluate"):
            return evaluation.evaluate(self.learnt_model(), files.nameable(folder))

    def export(self, out: str | os.PathLike[str]) -> float:
        """Write one file for other programs, OUT.onnx or OUT.pt2; return how far its probabilities differ at most."""
        with self._gate.using("export"):
            return exporting.export(self.learnt_model(), files.nameable(out))

    @classmethod
    @torch.inference_mode(False)
    def load(
        cls,
        folder: str | os.PathLike[str],
        backbone: nn.Module | None = None,
        device: str = "auto",
        check: bool = False,
    ) -> Self:
        """Return the learner saved in a model folder; one that learnt with a module as its backbone needs it again.

        The module's weights matter only to the method "joint", which starts every step from them. The model is always
        checked; `check` has the earlier versions checked too, as `treering check` does.
        """
        path = files.nameable(folder)
        if check:
            model.require_whole(path)
        loaded = model.load(path, backbone, find_device(device))
        return cls.of(loaded, backbone, device)

    @classmethod
    def of(cls, loaded: Model, backbone: nn.Module | None = None, device: str = "auto") -> Self:
        """Return the learner of a model, for treering's other modules."""
        learner = cls(backbone=backbone, recipe=loaded.method.recipe, seed=loaded.seed, device=device)
        learner._model = loaded
        return learner

    @property
    def model(self) -> Model | None:
        """The learnt model, for treering's other modules; None before the first step."""
        return self._model

    def learnt_model(self) -> Model:
        """Return `model`, or raise if nothing is learnt yet."""
        if self._model is None:
            raise NotLearntError("this learner has learnt nothing yet: call partial_fit first")
        return self._model

    def resolved_recipe(self) -> Recipe:
        """Return the recipe with the constructor's backbone and memory; after a step only the memory's size counts."""
        if self._model:
            return parameters.later_recipe(self._model.method.recipe, self.memory)
        return parameters.first_recipe(self.recipe, self.backbone, self.memory, self.seed, self.progress)

    def _new_model(self, pixels: Images) -> Model:
        """Make a model that knows no class yet, for images of the shape of `pixels`, those of the first step."""
        recipe, seed, device = self.resolved_recipe(), int(self.seed), find_device(self.device)
        module = self.backbone if isinstance(self.backbone, nn.Module) else None
        return Model(session.begin(recipe, pixels, seed, device, module), seed, tuple(pixels.shape[1:]))

    def _asked(self, images: Any) -> Tensor:
        return arrays.as_images(given.opened(images, *self._file_format()), self.learnt_model().image_shape[0])

    def _examples(self, images: Any, labels: Any) -> tuple[Images, list[Hashable]]:
        return given.examples(images, labels, *self._file_format(), self._model.image_shape[0] if self._model else None)

    def _file_format(self) -> tuple[int, int]:
        """Return the side and the channels of the squares that image files are read as."""
        if self._model:
            return self._model.image_shape[1], self._model.image_shape[0]
        return self.resolved_recipe().run.image_size, 3
