"""`Learner` from outside: labels, shapes, scikit-learn's conventions, interruptions, seeds, and any stream of steps."""

from __future__ import annotations

import copy
import enum
import hashlib
import multiprocessing
import pickle
import random
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import (
    RECIPE,
    SIDE,
    Dropping,
    TinyFeatures,
    examples,
    images_of,
    kept,
    method_of,
    run_python,
    state_of,
    tiny_learner,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from treering import Augmentation, Budget, Learner, Optimizer, Progress, Recipe, Schedule, TreeringError
from treering.core import augment
from treering.core.network import IncrementalNetwork
from treering.core.update import BatchUpdate
from treering.runtime.device import find_device
from treering.runtime.gate import Gate

LONG = {"training": Schedule(epochs=15, lr=0.1), "balanced": Schedule(epochs=8, lr=0.02)}
"""Enough epochs to learn colours for certain."""


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


class Plain(enum.Enum):
    FIRST = 1
    SECOND = 2


LABEL_PAIRS: dict[str, tuple[Any, Any]] = {
    "texts": ("cat", "dog"),
    "texts with accents": ("Käfer", "蝶"),
    "texts that end in zero bytes": ("cat", "cat\0"),
    "empty text": ("", "cat"),
    "whole numbers": (3, 17),
    "negative numbers": (-5, 2),
    "very large numbers": (10**30, 10**30 + 1),
    "numbers around the end of int64": (-1, 2**63),
    "truth values": (False, True),
    "fractions": (0.5, 2.5),
    "bytes": (b"a", b"b"),
    "tuples": ((1, "a"), (2, "b")),
    "tuples of several lengths": ((1,), (1, 2)),
    "enumerations": (Plain.FIRST, Plain.SECOND),
    "enumerations of texts": (Colour.BLUE, Colour.RED),
    "enumerations of numbers": (Number.ONE, Number.TWO),
}


@pytest.mark.parametrize("pair", LABEL_PAIRS.values(), ids=LABEL_PAIRS)
def test_labels_come_back_as_they_were_given(pair: tuple[Any, Any]) -> None:
    images, names = examples({"first": 10, "second": 10})
    labels = [pair[name == "second"] for name in names]
    learner = tiny_learner(**LONG).partial_fit(images, labels)
    predicted = learner.predict(images).tolist()
    assert learner.classes_.tolist() == list(pair)
    assert predicted == labels
    assert [type(label) for label in predicted] == [type(label) for label in labels]
    assert learner.score(images, labels) == 1.0
    assert list(learner.exemplars_) == list(pair)


@pytest.mark.parametrize("make", [np.array, torch.tensor, list, tuple], ids=["array", "tensor", "list", "tuple"])
def test_labels_may_come_in_any_container(make: Callable[[list[int]], Any]) -> None:
    images, labels = examples({7: 5, 3: 5})
    assert state_of(tiny_learner().partial_fit(images, make(labels))) == state_of(
        tiny_learner().partial_fit(images, labels)
    )


def test_classes_are_sorted_whenever_they_came() -> None:
    learner = tiny_learner()
    learner.partial_fit(*examples({"owl": 3, "bee": 3, "fox": 3}))
    assert learner.classes_.tolist() == ["bee", "fox", "owl"]
    learner.partial_fit(*examples({"eel": 3, "fox": 3, "ant": 3}))
    assert learner.classes_.tolist() == ["ant", "bee", "eel", "fox", "owl"]
    assert [step["new_classes"] for step in learner.history_] == [["bee", "fox", "owl"], ["ant", "eel"]]


def test_labels_that_cannot_be_compared_are_sorted_by_their_text() -> None:
    pair = [Plain.SECOND, Plain.FIRST] * 3
    assert tiny_learner().partial_fit(images_of(pair), pair).classes_.tolist() == [Plain.FIRST, Plain.SECOND]


def test_the_order_of_classes_does_not_depend_on_the_order_of_images() -> None:
    images, labels = examples({"owl": 4, "bee": 4})
    forwards = tiny_learner().partial_fit(images, labels)
    backwards = tiny_learner().partial_fit(images[::-1], labels[::-1])
    assert forwards.classes_.tolist() == backwards.classes_.tolist() == ["bee", "owl"]


def test_probabilities_sum_to_one_and_their_columns_follow_classes() -> None:
    learner = tiny_learner(memory=30, **LONG)
    learner.partial_fit(*examples({"owl": 12, "bee": 12}))
    learner.partial_fit(*examples({"ant": 12}, seed=1))
    images, labels = examples({"owl": 5, "ant": 5, "bee": 5}, seed=2)
    probabilities = learner.predict_proba(images)
    assert probabilities.shape == (15, 3)
    assert probabilities.dtype == np.float64
    assert (probabilities >= 0).all()
    assert np.allclose(probabilities.sum(1), 1, rtol=0, atol=1e-15)
    columns = [learner.classes_.tolist().index(label) for label in labels]
    assert np.mean(probabilities[np.arange(15), columns] > 0.5) > 0.9
    assert (learner.predict(images) == learner.classes_[probabilities.argmax(1)]).all()


def test_the_score_is_the_share_of_right_predictions() -> None:
    learner = tiny_learner().partial_fit(*examples({"owl": 12, "bee": 12}))
    images = images_of(["owl", "bee"] * 5, seed=3)
    predicted = learner.predict(images).tolist()
    wrong = {"owl": "bee", "bee": "owl"}
    labels = [wrong[name] if index < 3 else name for index, name in enumerate(predicted)]
    assert learner.score(images, labels) == pytest.approx(0.7)
    assert learner.score(images, predicted) == 1.0
    assert learner.score(images, ["yak"] * 10) == 0.0


def test_one_image_can_be_predicted() -> None:
    learner = tiny_learner().partial_fit(*examples({"owl": 4, "bee": 4}))
    images = images_of(["owl", "bee"])
    assert np.allclose(learner.predict_proba(images[:1]), learner.predict_proba(images)[:1], atol=1e-6)


def test_predictions_do_not_change_the_learner(two_steps: Learner) -> None:
    before = state_of(two_steps)
    images, labels = examples({"cat": 3, "owl": 3}, seed=4)
    first = two_steps.predict_proba(images)
    two_steps.predict(images)
    two_steps.score(images, labels)
    assert np.array_equal(two_steps.predict_proba(images), first)
    assert state_of(two_steps) == before


@pytest.mark.parametrize(
    "action",
    [
        lambda learner: learner.predict(images_of("a")),
        lambda learner: learner.predict_proba(images_of("a")),
        lambda learner: learner.score(images_of("a"), ["a"]),
        lambda learner: learner.classes_,
        lambda learner: learner.exemplars_,
        lambda learner: learner.save("nowhere"),
    ],
    ids=["predict", "predict_proba", "score", "classes_", "exemplars_", "save"],
)
def test_a_learner_that_has_learnt_nothing_says_so(action: Callable[[Learner], object]) -> None:
    with pytest.raises(TreeringError, match="learnt nothing yet: call partial_fit first"):
        action(tiny_learner())


class Pairs(Dataset):
    def __init__(self, images: Any, labels: list[Any]) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.images[index], self.labels[index]


class Stream(IterableDataset):
    def __init__(self, images: Any, labels: list[Any]) -> None:
        self.images, self.labels = images, labels

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return zip(self.images, self.labels, strict=True)


IMAGE_FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "floats": lambda x: x / 255,
    "tensor": lambda x: torch.from_numpy(x).movedim(-1, 1),
    "float tensor": lambda x: torch.from_numpy(x).movedim(-1, 1) / 255,
    "list of arrays": list,
    "list of PIL images": lambda x: [Image.fromarray(image.squeeze()) for image in x],
}


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # test_arrays.py has a test of its own
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("form", IMAGE_FORMS.values(), ids=IMAGE_FORMS)
def test_the_same_images_in_another_form_teach_and_predict_the_same(
    form: Callable[[np.ndarray], Any], channels: int
) -> None:
    steps = [examples({0: 4, 1: 4}, channels=channels), examples({2: 4}, seed=1, channels=channels)]
    first, second = (tiny_learner(backbone="small") for _ in range(2))
    for images, labels in steps:
        first.partial_fit(images, labels)
        second.partial_fit(form(images), labels)
    assert state_of(first) == state_of(second)
    images = steps[0][0]
    assert np.array_equal(first.predict_proba(images), second.predict_proba(form(images)))


def test_grey_images_need_no_channel_dimension() -> None:
    images, labels = examples({0: 4, 1: 4}, channels=1)
    first, second = (tiny_learner(backbone=TinyFeatures(channels=1)) for _ in range(2))
    assert state_of(first.partial_fit(images, labels)) == state_of(second.partial_fit(images[..., 0], labels))
    assert np.array_equal(first.predict_proba(images), first.predict_proba(images[..., 0]))
    assert first.exemplars_[0].shape[1:] == (SIDE, SIDE, 1)


@pytest.mark.parametrize("kind", [Pairs, Stream])
def test_a_dataset_teaches_the_same_as_its_arrays(kind: Callable[..., Dataset]) -> None:
    images, labels = examples({"a": 4, "b": 4})
    first = tiny_learner().partial_fit(images, labels)
    second = tiny_learner().partial_fit(kind(images, labels))
    assert state_of(first) == state_of(second)
    assert np.array_equal(first.predict_proba(images), second.predict_proba(kind(images, labels)))
    assert second.score(kind(images, labels)) == first.score(images, labels)


def test_a_tensor_dataset_teaches_the_same_as_its_arrays() -> None:
    images, labels = examples({3: 4, 5: 4})
    dataset = TensorDataset(torch.from_numpy(images).movedim(-1, 1) / 255, torch.tensor(labels))
    assert state_of(tiny_learner().partial_fit(dataset)) == state_of(tiny_learner().partial_fit(images, labels))


def test_images_need_not_be_square() -> None:
    images, labels = examples({"a": 4, "b": 4}, side=12)
    learner = tiny_learner().partial_fit(images[:, :7], labels)
    assert learner.exemplars_["a"].shape[1:] == (7, 12, 3)
    assert learner.predict(images[:, :7]).shape == (8,)


def test_the_given_images_and_labels_are_not_changed() -> None:
    for channels in (1, 3):
        images, labels = examples({"a": 6, "b": 6}, channels=channels)
        images_before, labels_before = images.copy(), list(labels)
        learner = tiny_learner(backbone=TinyFeatures(channels))
        learner.partial_fit(images, labels).predict(images)
        assert np.array_equal(images, images_before)
        assert labels == labels_before


def test_what_is_kept_does_not_change_when_the_given_array_does() -> None:
    images, labels = examples({"a": 6, "b": 6}, channels=1)
    learner = tiny_learner(backbone=TinyFeatures(1)).partial_fit(images[..., 0], labels)
    before = state_of(learner)
    images[:] = 0
    assert state_of(learner) == before


def test_exemplars_are_the_images_that_were_given() -> None:
    images, labels = examples({"a": 6, "b": 4})
    exemplars = tiny_learner(memory=8).partial_fit(images, labels).exemplars_
    assert {name: part.shape for name, part in exemplars.items()} == {"a": (4, 8, 8, 3), "b": (4, 8, 8, 3)}
    for name, part in exemplars.items():
        own = [image for image, label in zip(images, labels, strict=True) if label == name]
        assert all(any(np.array_equal(image, candidate) for candidate in own) for image in part)


def test_history_tells_the_classes_and_images_of_each_step(two_steps: Learner) -> None:
    two_steps.partial_fit(*examples({"cat": 2, "ant": 3}, seed=2))
    records = two_steps.history_
    assert [record["step"] for record in records] == [1, 2, 3]
    assert [record["new_classes"] for record in records] == [["cat", "dog"], ["owl"], ["ant"]]
    assert [record["images"] for record in records] == [
        [["cat", 6], ["dog", 5]],
        [["owl", 6]],
        [["ant", 3], ["cat", 2]],
    ]
    records[0]["new_classes"].append("nonsense")
    assert two_steps.history_[0]["new_classes"] == ["cat", "dog"]


def test_parameters_are_those_of_the_constructor() -> None:
    arguments = {
        "backbone": TinyFeatures(),
        "memory": 7,
        "recipe": RECIPE,
        "seed": 3,
        "device": "cpu",
        "progress": lambda now: None,
    }
    learner = Learner(**arguments)
    assert all(learner.get_params()[name] is value for name, value in arguments.items())
    assert learner.set_params(seed=4, memory=Budget("per-class", 2)) is learner
    assert (learner.seed, learner.memory) == (4, Budget("per-class", 2))
    with pytest.raises(TreeringError, match="unknown parameter colour; known: backbone, memory"):
        learner.set_params(colour="red")


def test_parameters_set_later_count_as_if_they_had_been_given() -> None:
    given = examples({"a": 5, "b": 5})
    late = Learner().set_params(**tiny_learner(seed=5, memory=6).get_params())
    assert state_of(late.partial_fit(*given)) == state_of(tiny_learner(seed=5, memory=6).partial_fit(*given))


def test_scikit_learns_clone_has_the_parameters_and_has_learnt_nothing(two_steps: Learner) -> None:
    base = pytest.importorskip("sklearn.base")
    copied = base.clone(two_steps)
    assert copied.recipe == two_steps.recipe
    with pytest.raises(TreeringError, match="learnt nothing yet"):
        copied.classes_  # noqa: B018
    given = examples({"cat": 6, "dog": 5})
    assert state_of(copied.partial_fit(*given)) == state_of(tiny_learner().partial_fit(*given))


def test_scikit_learns_tools_take_it_for_a_classifier() -> None:
    base, selection = pytest.importorskip("sklearn.base"), pytest.importorskip("sklearn.model_selection")
    validation = pytest.importorskip("sklearn.utils.validation")
    images, labels = examples({"cat": 9, "dog": 9})
    learner = tiny_learner(**LONG)
    assert base.is_classifier(learner)
    assert learner.__sklearn_tags__().target_tags.required
    with pytest.raises(validation.NotFittedError):
        validation.check_is_fitted(learner)
    scores = selection.cross_val_score(learner, images, labels, cv=3)
    assert scores.mean() > 0.9
    validation.check_is_fitted(learner.fit(images, labels))
    sizes, _, _ = selection.learning_curve(
        learner, images, labels, cv=3, exploit_incremental_learning=True, train_sizes=[0.5, 1.0], shuffle=True
    )
    assert sizes.tolist() == [6, 12]


def test_scikit_learns_scorers_of_probabilities_are_right_whatever_the_order_of_learning() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    learner = tiny_learner(memory=30, **LONG)
    learner.partial_fit(*examples({"owl": 12, "bee": 12})).partial_fit(*examples({"cat": 12, "ant": 12}, seed=1))
    images, labels = examples({"owl": 5, "ant": 5, "bee": 5, "cat": 5}, seed=2)
    assert learner.score(images, labels) > 0.9
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one is told where probabilities do not sum to one
        assert metrics.get_scorer("roc_auc_ovr")(learner, images, labels) > 0.98
        assert metrics.get_scorer("top_k_accuracy")(learner, images, labels) > 0.9
        column = {name: index for index, name in enumerate(sorted(set(labels)))}
        own = learner.predict_proba(images)[np.arange(20), [column[label] for label in labels]]
        assert metrics.get_scorer("neg_log_loss")(learner, images, labels) == pytest.approx(np.log(own).mean())


def test_a_learner_is_shown_with_the_arguments_that_were_given() -> None:
    assert repr(Learner()) == "Learner()"
    assert repr(Learner("small", memory=20, seed=3)) == "Learner(backbone='small', memory=20, seed=3)"


def test_fit_forgets_what_was_learnt_before_unless_it_fails(two_steps: Learner) -> None:
    learner, given = copy.deepcopy(two_steps), examples({"ant": 5, "bee": 5})
    before = state_of(learner)
    with pytest.raises(TreeringError, match="labels are missing"):
        learner.fit(given[0])
    assert state_of(learner) == before
    assert learner.fit(*given) is learner
    assert state_of(learner) == state_of(tiny_learner().partial_fit(*given))


def interrupt(progress: Progress) -> None:
    raise KeyboardInterrupt


def test_the_size_of_the_memory_can_be_changed_at_any_time() -> None:
    first, second, third = (examples(dict.fromkeys(names, 6)) for names in (("a", "b"), ("c", "d"), ("e", "f")))
    learner = tiny_learner(memory=2).partial_fit(*first)
    with pytest.raises(TreeringError, match="set memory to at least 4"):
        learner.partial_fit(*second)
    learner.set_params(memory=20, progress=interrupt)
    before = state_of(learner)
    with pytest.raises(KeyboardInterrupt):
        learner.partial_fit(*second)
    assert state_of(learner) == before
    learner.set_params(progress=None)
    with pytest.raises(TreeringError, match=r"a memory of 3 images .* set memory to at least 4"):
        learner.set_params(memory=3).partial_fit(*second)
    assert state_of(learner) == before
    learner.set_params(memory=12).partial_fit(*second)
    assert {name: len(part) for name, part in learner.exemplars_.items()} == {"a": 1, "b": 1, "c": 3, "d": 3}
    learner.set_params(memory=Budget("total", 6)).partial_fit(*third)
    assert [len(part) for part in learner.exemplars_.values()] == [1] * 6
    assert learner.resolved_recipe().memory == Budget("total", 6)
    before = state_of(learner)
    with pytest.raises(TreeringError, match=r"only the memory's size can change: give Budget\('total', 9, 'herding'\)"):
        learner.set_params(memory=Budget("per-class", 9)).partial_fit(*third)
    assert state_of(learner) == before


def test_the_memory_of_gem_can_only_grow() -> None:
    learner = tiny_learner(method="gem", memory=Budget("per-step", 4, "random")).partial_fit(
        *examples({"a": 6, "b": 6})
    )
    before = state_of(learner)
    learner.set_params(memory=Budget("per-step", 2, "random"))
    with pytest.raises(TreeringError, match="GEM cannot be made smaller"):
        learner.partial_fit(*examples({"c": 6, "d": 6}))
    assert state_of(learner) == before
    learner.set_params(memory=Budget("per-step", 6, "random"), progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        learner.partial_fit(*examples({"c": 6, "d": 6}))
    assert state_of(learner) == before
    learner.set_params(progress=None).partial_fit(*examples({"c": 6, "d": 6}))
    learner.partial_fit(*examples({"e": 6, "f": 6}))
    sizes = [len(part) for part in learner.exemplars_.values()]
    assert [sum(sizes[:2]), sum(sizes[2:4]), sum(sizes[4:])] == [4, 6, 6]


def test_images_that_come_again_do_not_fill_the_memory_with_copies() -> None:
    images, labels = examples({"a": 6, "b": 6})
    learner = tiny_learner(memory=20).partial_fit(images, labels)
    learner.partial_fit(images, labels)
    for part in learner.exemplars_.values():
        assert len(part) == len(set(kept(part))) == 6


def test_the_defaults_are_the_papers_recipe() -> None:
    assert Learner().resolved_recipe() == Recipe()


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (None, Budget("per-class", 9, "random")),
        (5, Budget("total", 5, "random")),
        (Budget("per-class", 3, "histogram"), Budget("per-class", 3, "histogram")),
    ],
    ids=["recipe's", "number", "budget"],
)
def test_the_memory_given_replaces_the_recipes(memory: int | Budget | None, expected: Budget) -> None:
    recipe = Recipe(backbone="small", memory=Budget("per-class", 9, "random"))
    assert Learner(recipe=recipe, memory=memory).resolved_recipe().memory == expected


def test_a_named_backbone_replaces_the_recipes() -> None:
    learner = tiny_learner(backbone="small", recipe=Recipe(backbone="resnet18"))
    learner.set_params(recipe=Recipe(backbone="resnet18", training=RECIPE.training, balanced=RECIPE.balanced))
    learner.partial_fit(*examples({"a": 2, "b": 2}))
    assert method_of(learner).recipe.backbone == "small"
    assert method_of(learner).network.feature_size == 64


def test_a_module_as_backbone_is_copied_and_itself_never_changes() -> None:
    module = TinyFeatures()
    module.eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    learner = tiny_learner(backbone=module)
    learner.partial_fit(*examples({"a": 5, "b": 5})).partial_fit(*examples({"c": 5}))
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert not module.training
    learnt = method_of(learner).network.features.state_dict()
    assert not torch.equal(learnt["convolution.weight"], before["convolution.weight"])
    assert not torch.equal(learnt["norm.running_mean"], before["norm.running_mean"])


def test_frozen_weights_of_a_module_stay_as_they_are() -> None:
    module = TinyFeatures()
    module.convolution.weight.requires_grad_(False)
    learner = tiny_learner(backbone=module).partial_fit(*examples({"a": 5, "b": 5}))
    learnt = method_of(learner).network.features
    assert torch.equal(learnt.convolution.weight, module.convolution.weight)
    assert not torch.equal(learnt.norm.weight, module.norm.weight)


def test_progress_tells_step_stage_epoch_and_loss() -> None:
    seen: list[Progress] = []
    learner = tiny_learner(progress=seen.append, memory=20)
    learner.partial_fit(*examples({"a": 10, "b": 10})).partial_fit(*examples({"c": 10}))
    assert [(now.step, now.stage, now.epoch, now.epochs) for now in seen] == [
        (1, "training", 1, 2),
        (1, "training", 2, 2),
        (2, "training", 1, 2),
        (2, "training", 2, 2),
        (2, "balanced", 1, 1),
    ]
    # 20 images in batches of 16 are two batches; then 10 new and 20 kept; then ten of each class.
    assert [now.image_passes for now in seen] == [32, 32, 32, 32, 32]
    assert all(isinstance(now.loss, float) and 0 < now.loss < 20 for now in seen)
    assert seen[1].loss < seen[0].loss


class Interruption:
    """Raises at the n-th report of progress."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.left, self.error = at, error

    def __call__(self, now: Progress) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupted_step_leaves_the_learner_as_it_was_and_able_to_go_on(
    at: int, error: type[BaseException]
) -> None:
    first, second, third = examples({"a": 6, "b": 5}), examples({"c": 6, "a": 2}, seed=1), examples({"d": 3}, seed=2)
    undisturbed = tiny_learner().partial_fit(*first)
    learner = tiny_learner().partial_fit(*first)
    learner.progress = Interruption(at, error)
    before, answers = state_of(learner), learner.predict_proba(first[0])
    with pytest.raises(error):
        learner.partial_fit(*second)
    assert state_of(learner) == before
    assert np.array_equal(learner.predict_proba(first[0]), answers)
    learner.progress = None
    for step in (second, third):
        assert state_of(learner.partial_fit(*step)) == state_of(undisturbed.partial_fit(*step))


def test_an_interrupted_first_step_leaves_nothing_learnt() -> None:
    given = examples({"a": 6, "b": 5})
    learner = tiny_learner(progress=Interruption(2, KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        learner.partial_fit(*given)
    with pytest.raises(TreeringError, match="learnt nothing"):
        learner.predict(given[0])
    learner.progress = None
    assert state_of(learner.partial_fit(*given)) == state_of(tiny_learner().partial_fit(*given))


def test_an_interrupted_step_leaves_no_trace_in_a_step_with_other_classes() -> None:
    first, dropped, taken = examples({"a": 6, "b": 5}), examples({"c": 4, "d": 4, "e": 4}), examples({"f": 5})
    learner = tiny_learner().partial_fit(*first)
    learner.progress = Interruption(1, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        learner.partial_fit(*dropped)
    learner.progress = None
    undisturbed = tiny_learner().partial_fit(*first)
    assert state_of(learner.partial_fit(*taken)) == state_of(undisturbed.partial_fit(*taken))


def test_an_interruption_in_the_memory_update_leaves_the_learner_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = tiny_learner().partial_fit(*examples({"a": 6, "b": 6}))
    before = state_of(learner)

    def interrupt(label: int, images: torch.Tensor) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(method_of(learner).memory, "store", interrupt)
    with pytest.raises(KeyboardInterrupt):
        learner.partial_fit(*examples({"c": 6}))
    assert state_of(learner) == before


def global_randomness() -> tuple[bytes, str, str]:
    return torch.get_rng_state().numpy().tobytes(), repr(np.random.get_state()), repr(random.getstate())


@pytest.mark.parametrize("backbone", ["small", TinyFeatures(), Dropping()], ids=["name", "module", "with dropout"])
def test_learning_and_predicting_leave_the_global_random_state_alone(backbone: str | nn.Module) -> None:
    learner = tiny_learner(backbone=backbone, augmentation=Augmentation(padding=1))
    before = global_randomness()
    learner.partial_fit(*examples({"a": 2, "b": 2})).partial_fit(*examples({"c": 2}))
    learner.predict(images_of("ab"))
    assert global_randomness() == before


@pytest.mark.parametrize("backbone", ["small", TinyFeatures(), Dropping()], ids=["name", "module", "with dropout"])
def test_the_seed_alone_decides_the_result(backbone: str | nn.Module) -> None:
    def learnt(seed: int, global_seed: int) -> dict[str, Any]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(global_seed)
            learner = tiny_learner(backbone=backbone, seed=seed, augmentation=Augmentation(padding=1))
            return state_of(learner.partial_fit(*examples({"a": 2, "b": 2})).partial_fit(*examples({"c": 2})))

    assert learnt(seed=0, global_seed=1) == learnt(seed=0, global_seed=2)
    assert learnt(seed=0, global_seed=1)["weights"] != learnt(seed=1, global_seed=1)["weights"]


ONE_RUN = """
import hashlib, sys
from conftest import examples, state_of, tiny_learner
from treering import Augmentation
learner = tiny_learner(backbone="small", seed=int(sys.argv[1]), augmentation=Augmentation(padding=1))
learner.partial_fit(*examples({"cat": 5, "dog": 4, "elk": 3})).partial_fit(*examples({"owl": 5, "cat": 2}, seed=1))
sys.stdout.write(hashlib.sha256(repr(state_of(learner)).encode()).hexdigest())
"""


def test_another_process_gives_the_same_bits_for_the_same_seed() -> None:
    there = [run_python(ONE_RUN, 3, PYTHONHASHSEED=salt) for salt in ("1", "2")]
    learner = tiny_learner(backbone="small", seed=3, augmentation=Augmentation(padding=1))
    learner.partial_fit(*examples({"cat": 5, "dog": 4, "elk": 3})).partial_fit(*examples({"owl": 5, "cat": 2}, seed=1))
    here = hashlib.sha256(repr(state_of(learner)).encode()).hexdigest()
    assert [(run.stdout, run.stderr) for run in there] == [(here, "")] * 2


STEPS = st.lists(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=4
)
BUDGETS = st.one_of(
    st.builds(Budget, kind=st.just("total"), size=st.integers(6, 17), selection=st.sampled_from(["herding", "random"])),
    st.builds(Budget, kind=st.just("per-class"), size=st.integers(1, 4)),
)


@settings(max_examples=25, database=None)
@given(steps=STEPS, budget=BUDGETS, seed=st.integers(0, 3))
def test_any_stream_and_any_budget_keep_the_laws_of_the_memory(
    steps: list[dict[str, int]], budget: Budget, seed: int
) -> None:
    schedule = Schedule(epochs=1, lr=0.05)
    learner = tiny_learner(memory=budget, seed=seed, training=schedule, balanced=schedule)
    memory: dict[str, list[bytes]] = {}
    order: list[str] = []
    for number, counts in enumerate(steps):
        images, labels = examples(counts, seed=100 * seed + number)
        own = {name: kept(images[np.array(labels) == name]) for name in counts}
        learner.partial_fit(images, labels)
        order += sorted(set(counts) - set(order))
        quota = budget.size // len(order) if budget.kind == "total" else budget.size
        now = {name: kept(part) for name, part in learner.exemplars_.items()}

        assert list(learner.classes_) == sorted(order)
        assert set(now) == set(order)
        if budget.kind == "total":
            assert sum(map(len, now.values())) <= budget.size
        for name, part in now.items():
            had = memory.get(name, [])
            if name in counts:
                pool = had + own[name]
                assert len(part) == min(quota, len(pool))
                assert len(set(part)) == len(part)
                assert set(part) <= set(pool)
            else:
                assert part == had[:quota]
        memory = now
        assert set(learner.predict(images).tolist()) <= set(order)

    with tempfile.TemporaryDirectory() as folder:
        learner.save(folder)
        loaded = Learner.load(folder, backbone=TinyFeatures(), device="cpu")
    assert np.array_equal(loaded.predict_proba(images), learner.predict_proba(images))
    assert state_of(loaded) == state_of(learner)


def test_the_optimisers_settings_of_the_recipe_are_used() -> None:
    given = examples({"a": 10, "b": 10})
    states = [
        state_of(tiny_learner(optimizer=optimizer).partial_fit(*given))["weights"]
        for optimizer in (Optimizer(batch_size=16), Optimizer(batch_size=16, noise_eta=0), Optimizer(batch_size=5))
    ]
    assert states[0] != states[1] != states[2]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_interruption_around_the_end_of_a_step_leaves_it_whole_or_undone(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    learner = tiny_learner().partial_fit(*examples({"cat": 6, "dog": 5}))
    before = state_of(learner)
    method = method_of(learner)
    learn = type(method).learn_step

    def interrupted(self: Any, step: Any) -> None:
        if moment == "after":
            learn(self, step)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(method), "learn_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learner.partial_fit(*examples({"owl": 4}))
    assert state_of(learner) == before
    assert len(learner.predict(images_of(["cat"]))) == 1


def test_what_is_learnt_first_is_missing_before_as_scikit_learn_has_it() -> None:
    assert not hasattr(Learner(), "classes_")


@pytest.mark.parametrize("recipe", [b"digits", {}, 3])
def test_a_recipe_that_is_none_is_refused(recipe: Any) -> None:
    with pytest.raises(TreeringError, match="recipe must be a Recipe"):
        Learner(recipe=recipe).partial_fit(*examples({"cat": 2, "dog": 2}))


@pytest.mark.parametrize("seed", [-1, 2**70])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(TreeringError, match="seed must be a whole number"):
        tiny_learner(seed=seed).partial_fit(*examples({"cat": 2, "dog": 2}))


def test_labels_of_another_type_cannot_be_scored(two_steps: Learner) -> None:
    with pytest.raises(TreeringError, match="use one type for all labels"):
        two_steps.score(images_of(["cat"]), [1])


def test_learning_works_where_gradients_are_off() -> None:
    given = examples({"cat": 6, "dog": 5})
    with torch.inference_mode():
        learner = tiny_learner().partial_fit(*given)
    assert state_of(learner) == state_of(tiny_learner().partial_fit(*given))


class Fickle(nn.Module):
    """Gives a tuple, or more features, when it is trained."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        features = x.mean((2, 3))
        if not self.training:
            return features
        return (features, features) if self.kind == "tuple" else torch.cat([features, features], 1)


@pytest.mark.parametrize("kind", ["tuple", "wider"])
def test_a_backbone_that_differs_in_training_is_refused(kind: str) -> None:
    with pytest.raises(TreeringError, match="the backbone"):
        Learner(backbone=Fickle(kind)).partial_fit(*examples({"cat": 2, "dog": 2}))


def test_a_gpu_that_is_not_there_or_not_the_first_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(
            TreeringError, match="'cuda' cannot be used here \\(it has no GPU\\): choose auto, cpu or cuda"
        ):
            find_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "Generator", lambda device: None)  # as if there were two
    assert find_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(TreeringError, match="'cuda:1': treering trains on the first GPU; CUDA_VISIBLE_DEVICES"):
        find_device("cuda:1")


# --- What users do besides --------------------------------------------------------------------------------------------


def test_exemplars_are_copies() -> None:
    learner = tiny_learner(memory=10).partial_fit(*examples({0: 6, 1: 6}))
    before = state_of(learner)
    for images in learner.exemplars_.values():
        images[:] = 0
    assert state_of(learner) == before


def test_a_memory_of_so_many_images_keeps_them_all_whatever_a_recipe_holds_out() -> None:
    learner = tiny_learner(memory=10)
    learner.recipe = Recipe.from_dict(RECIPE.to_dict() | {"memory": {"kind": "per-class", "size": 30, "held_out": 0.2}})
    learner.partial_fit(*examples({0: 9, 1: 9}))
    assert [len(images) for images in learner.exemplars_.values()] == [5, 5]


NOT_AMID_A_STEP: dict[str, Callable[[Learner, Path], object]] = {
    "predict": lambda learner, folder: learner.predict(images_of([0, 1])),
    "save": lambda learner, folder: learner.save(folder / "model"),
    "export": lambda learner, folder: learner.export(folder / "model.onnx"),
    "copy": lambda learner, folder: copy.copy(learner),
    "deepcopy": lambda learner, folder: copy.deepcopy(learner),
    "pickle": lambda learner, folder: pickle.dumps(learner),
    "partial_fit": lambda learner, folder: learner.partial_fit(*examples({0: 2, 3: 2})),
    "fit": lambda learner, folder: learner.fit(*examples({0: 2, 3: 2})),
}


@pytest.mark.parametrize("step", [{2: 6}, {0: 6}], ids=["new class", "known class"])
@pytest.mark.parametrize("action", NOT_AMID_A_STEP.values(), ids=NOT_AMID_A_STEP)
def test_what_needs_a_whole_step_is_refused_amid_one(
    action: Callable[[Learner, Path], object], step: dict[int, int], tmp_path: Path
) -> None:
    learner = tiny_learner(memory=10).partial_fit(*examples({0: 6, 1: 6}))
    refused = []

    def act(progress: Progress) -> None:
        with pytest.raises(TreeringError, match=r"a step is being learnt: .* when partial_fit has returned") as error:
            action(learner, tmp_path)
        refused.append(error)

    learner.progress = act
    learner.partial_fit(*examples(step))
    assert refused
    assert not list(tmp_path.iterdir())
    learner.progress = None
    action(learner, tmp_path)


@pytest.mark.parametrize("refused", [True, False], ids=["refused", "interrupted"])
def test_a_step_that_failed_is_over(refused: bool) -> None:
    learner = tiny_learner(memory=4).partial_fit(*examples({0: 6, 1: 6}))
    model = learner.learnt_model()
    model.held_out = {0: model.method.memory.exemplars[0]}
    learner.progress = None if refused else interrupted
    with pytest.raises(TreeringError if refused else KeyboardInterrupt):
        learner.partial_fit(*examples({2: 6, 3: 6, 4: 6} if refused else {2: 6}))
    assert learner.predict(images_of([0, 1])).shape == (2,)


def interrupted(progress: Progress) -> None:
    raise KeyboardInterrupt


def test_a_copy_learns_on_its_own() -> None:
    learner = tiny_learner(memory=10).partial_fit(*examples({0: 6, 1: 6}))
    before = state_of(learner)
    twin = copy.copy(learner)
    assert state_of(twin) == before
    twin.partial_fit(*examples({2: 6}))
    assert state_of(learner) == before
    assert twin.get_params() == learner.get_params()
    learner.note = "mine"  # type: ignore[attr-defined]
    assert copy.copy(learner).note == "mine"  # type: ignore[attr-defined]


SEEDS: list[int] = []
"""Of torch's generator, as a backbone meets them."""


class Noting(Dropping):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            SEEDS.append(torch.initial_seed())
        return super().forward(x)


def test_dropout_differs_between_epochs_stages_and_steps() -> None:
    learner = tiny_learner(backbone=Noting(), **LONG)
    learner.partial_fit(*examples({0: 4, 1: 4})).partial_fit(*examples({2: 4}))
    assert len({*SEEDS} - {torch.initial_seed()}) == 15 + 15 + 8


@pytest.mark.parametrize("backbone", ["resnet32", Dropping()], ids=["drawn weights", "with dropout"])
def test_learners_in_several_threads_are_as_one_after_the_other(backbone: str | nn.Module) -> None:
    def learnt(seed: int) -> dict[str, Any]:
        learner = Learner(backbone, recipe=RECIPE, seed=seed, device="cpu")
        return state_of(learner.partial_fit(*examples({"a": 4, "b": 4})))

    alone = [learnt(seed) for seed in range(6)]
    before = global_randomness()
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(learnt, range(6))) == alone
    assert global_randomness() == before


@pytest.mark.parametrize("method", ["eeil", "icarl"])
def test_where_others_compute_in_bfloat16_it_does_not(method: str, tmp_path: Path) -> None:
    given = examples({"cat": 6, "dog": 5})
    learner = tiny_learner(method=method).partial_fit(*given)
    with torch.autocast("cpu", torch.bfloat16):
        again = tiny_learner(method=method).partial_fit(*given)
        answers = again.predict_proba(given[0])
        if method == "eeil":  # iCaRL answers otherwise than by its logits
            assert again.export(tmp_path / "model.pt2") < 1e-5
    assert state_of(again) == state_of(learner)
    assert np.array_equal(answers, learner.predict_proba(given[0]))


def test_training_in_bfloat16_casts_the_weights_anew_for_each_batch() -> None:
    def learnt() -> dict[str, Any]:
        learner = tiny_learner(training=Schedule(epochs=4, lr=0.05)).partial_fit(*examples({"cat": 6, "dog": 5}))
        method_of(learner).network.engine.mixed_precision = True  # as on a GPU
        return state_of(learner.partial_fit(*examples({"elk": 6})))

    found = learnt()
    torch.set_autocast_cache_enabled(False)
    try:
        assert learnt() == found
    finally:
        torch.set_autocast_cache_enabled(True)


class Expanded(TinyFeatures):
    """A backbone with a buffer whose elements share their memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("deviation", torch.tensor(0.25).expand(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / self.deviation)


class Counting(TinyFeatures):
    """A backbone with a statistic that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += len(x)
        return super().forward(x) * (1 + self.seen / 1000)


class Remembering(TinyFeatures):
    """A backbone that makes a buffer when it first sees images."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.ones(8), persistent=False)
        return super().forward(x) * self.table


@pytest.mark.parametrize("module", [Expanded(), Counting(), Remembering()], ids=["expanded", "not saved", "made late"])
def test_buffers_of_every_kind_are_put_back_after_an_interruption(module: nn.Module) -> None:
    learner = tiny_learner(backbone=module, memory=10)
    learner.progress = interrupted
    with pytest.raises(KeyboardInterrupt):
        learner.partial_fit(*examples({0: 6, 1: 6}))
    learner.progress = None
    learner.partial_fit(*examples({0: 6, 1: 6}))
    before = learner.predict_proba(images_of([0, 1]))
    learner.progress = interrupted
    with pytest.raises(KeyboardInterrupt):
        learner.partial_fit(*examples({2: 6}))
    assert np.array_equal(learner.predict_proba(images_of([0, 1])), before)


def test_a_model_with_an_expanded_buffer_can_be_loaded(tmp_path: Path) -> None:
    learner = tiny_learner(backbone=Expanded(), memory=10).partial_fit(*examples({0: 6, 1: 6}))
    learner.save(tmp_path / "model")
    assert state_of(Learner.load(tmp_path / "model", backbone=Expanded(), device="cpu")) == state_of(learner)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"progress": 5}, "progress must be a function, not 5"),
        ({"device": None}, "device None cannot be used here .*: choose auto, cpu or cuda"),
    ],
)
def test_arguments_of_another_kind_are_refused_before_anything_is_trained(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TreeringError, match=message) as error:
        tiny_learner().set_params(**change).partial_fit(*examples({0: 2, 1: 2}))
    assert "\n" not in str(error.value)


def test_a_name_is_no_backbone_to_load_with(tmp_path: Path) -> None:
    tiny_learner(memory=10).partial_fit(*examples({0: 6, 1: 6})).save(tmp_path / "model")
    with pytest.raises(TreeringError, match=r"the backbone must be a torch\.nn\.Module, not 'small'"):
        Learner.load(tmp_path / "model", backbone="small", device="cpu")  # type: ignore[arg-type]


def test_a_model_loaded_in_inference_mode_can_learn(tmp_path: Path) -> None:
    tiny_learner(memory=10).partial_fit(*examples({0: 6, 1: 6})).save(tmp_path / "model")
    with torch.inference_mode():
        loaded = Learner.load(tmp_path / "model", backbone=TinyFeatures(), device="cpu")
    loaded.partial_fit(*examples({2: 6}))
    assert list(loaded.classes_) == [0, 1, 2]


@pytest.mark.parametrize("inference", [False, True])
def test_a_pickled_learner_goes_on_alike(inference: bool) -> None:
    learner = tiny_learner(memory=10).partial_fit(*examples({0: 6, 1: 6}))
    with torch.inference_mode(inference):
        again = pickle.loads(pickle.dumps(learner))
    for one in (learner, again):
        one.partial_fit(*examples({2: 6}))
    assert state_of(again) == state_of(learner)


@pytest.mark.parametrize("backbone", ["small", "resnet32"])
def test_a_pickle_is_as_large_as_what_is_learnt(backbone: str) -> None:
    learner = tiny_learner(backbone=backbone, memory=4, training=Schedule(epochs=1, lr=0.05))
    learner.partial_fit(*examples({0: 6, 1: 6})).partial_fit(*examples({2: 6}))
    weights = sum(tensor.nbytes for tensor in method_of(learner).network.tensors().values())
    before = state_of(learner)
    assert len(pickle.dumps(learner)) < 1.1 * weights + 50_000
    assert state_of(learner) == before
    again = pickle.loads(pickle.dumps(learner))
    held = {part.untyped_storage().data_ptr(): part.untyped_storage() for part in method_of(again).network.parameters()}
    assert sum(map(len, held.values())) < 1.1 * weights


HANDED_OVER = """
import multiprocessing, sys
from conftest import examples, tiny_learner

def work(learner):
    learner.partial_fit(*examples({2: 4}))
    sys.stdout.write(str(learner.classes_.tolist()))

if __name__ == "__main__":
    learner = tiny_learner(memory=10).partial_fit(*examples({0: 6, 1: 6}))
    process = multiprocessing.get_context(sys.argv[2]).Process(target=work, args=(learner,))
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.parametrize("way", ["spawn", "forkserver"])
def test_a_learner_can_be_handed_to_a_new_process(tmp_path: Path, way: str) -> None:
    if way not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {way} here")
    script = tmp_path / "handing.py"  # which the new process imports
    script.write_text(HANDED_OVER)
    run = run_python("import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')", script, way)
    assert (run.returncode, run.stdout) == (0, "[0, 1, 2]"), run.stderr


def test_a_copy_leaves_behind_what_told_the_progress() -> None:
    class Told:
        def __init__(self) -> None:
            self.lock = threading.Lock()  # which cannot be copied

        def __call__(self, progress: Progress) -> None:
            pass

    learner = tiny_learner(memory=10, progress=Told()).partial_fit(*examples({0: 6, 1: 6}))
    assert state_of(copy.copy(learner)) == state_of(learner)


def test_a_second_interruption_waits_until_the_learner_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = tiny_learner(memory=10).partial_fit(*examples({0: 6, 1: 6}))
    before, load_tensors = state_of(learner), IncrementalNetwork.load_tensors

    def interrupted_again(self: IncrementalNetwork, *arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        load_tensors(self, *arguments)

    learner.progress = lambda progress: signal.raise_signal(signal.SIGINT)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(IncrementalNetwork, "load_tensors", interrupted_again)
            learner.partial_fit(*examples({2: 6}))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
    assert state_of(learner) == before


@pytest.mark.parametrize("method", ["eeil", "icarl"])
def test_a_step_waits_for_predictions_and_refuses_later_ones(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    learners = [tiny_learner(memory=10, method=method).partial_fit(*examples({0: 6, 1: 6})) for _ in range(2)]
    alone, shared = learners
    alone.partial_fit(*examples({2: 6}))
    images, expected = images_of([0, 1]), shared.predict_proba(images_of([0, 1]))
    probabilities = method_of(shared).probabilities
    predicting, go_on, training, trained = (threading.Event() for _ in range(4))

    def slow(pixels: Tensor) -> Tensor:
        predicting.set()
        go_on.wait(60)
        return probabilities(pixels)

    def progress(now: Progress) -> None:
        training.set()
        trained.wait(60)

    shared.progress = progress
    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(method_of(shared), "probabilities", slow)
        prediction = pool.submit(shared.predict_proba, images)
        assert predicting.wait(60)
        step = pool.submit(shared.partial_fit, *examples({2: 6}))
        assert not training.wait(0.2), "the step began beside a prediction"
        go_on.set()
        assert np.array_equal(prediction.result(60), expected)
        assert training.wait(60)
        for refused in (shared.predict, shared.score):
            with pytest.raises(TreeringError, match="a step is being learnt: predict when"):
                refused(*((images, [0, 1]) if refused == shared.score else (images,)))
        trained.set()
        step.result(60)
    assert state_of(shared) == state_of(alone)
    assert shared.predict_proba(images).shape == (2, 3)


def test_labels_and_probabilities_are_of_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread forgets a class when a prediction has asked for the classes and not for their probabilities."""
    learner = tiny_learner(memory=12).partial_fit(*examples({"a": 6, "b": 6, "c": 6}))
    images, done = images_of([1, 2]), threading.Event()
    model = learner.learnt_model()
    probabilities = type(model).probabilities

    def forgetting(self: Any, pixels: Tensor) -> np.ndarray:
        forgets = threading.Thread(target=lambda: (learner.forget("a"), done.set()))
        forgets.start()
        assert not done.wait(0.2), "the class was forgotten during the prediction"
        monkeypatch.undo()
        return probabilities(self, pixels)

    expected = learner.predict(images).tolist()
    monkeypatch.setattr(type(model), "probabilities", forgetting)
    assert learner.predict(images).tolist() == expected
    assert done.wait(60)
    assert learner.classes_.tolist() == ["b", "c"]


def test_what_was_learnt_before_answers_until_a_fit_has_ended() -> None:
    learner = tiny_learner(memory=12).partial_fit(*examples({"a": 6, "b": 6}))
    seen: list[list[str]] = []
    learner.progress = lambda now: seen.append(learner.classes_.tolist())
    learner.fit(*examples({"c": 6, "d": 6}))
    assert set(map(tuple, seen)) == {("a", "b")}
    assert learner.classes_.tolist() == ["c", "d"]


def test_torch_takes_the_generator_for_a_captured_graph() -> None:
    """It refuses subclasses there; on a CPU it says that it has no graphs, after it has looked at the type."""
    with pytest.raises(NotImplementedError):
        torch.Generator().graphsafe_set_state(method_of(tiny_learner().partial_fit(*examples({0: 4, 1: 4}))).generator)


def test_labels_that_are_sets_have_one_order() -> None:
    """Their own "less than" is "part of", which leaves the order to how they are hashed."""
    labels = [frozenset("ab"), frozenset("c"), frozenset("f"), frozenset("de")]
    images = images_of(range(8))
    learner = tiny_learner(memory=8).partial_fit(images, labels * 2)
    assert learner.classes_.tolist() == [frozenset("ab"), frozenset("c"), frozenset("de"), frozenset("f")]


def test_a_training_that_diverges_in_its_last_updates_says_so_and_leaves_the_learner_as_it_was() -> None:
    """Losses are those before each update: here all of them are finite."""
    learner = tiny_learner(memory=10, training=Schedule(epochs=1, lr=0.05)).partial_fit(*examples({0: 6, 1: 6}))
    before = state_of(learner)
    trainer = method_of(learner).trainer

    def overflow(progress: Progress) -> None:
        if (progress.stage, progress.epoch) == ("balanced", progress.epochs):
            with torch.no_grad():
                trainer.network.weight[0] = torch.inf

    learner.progress = overflow
    with pytest.raises(TreeringError, match="training diverged"):
        learner.partial_fit(*examples({2: 6}))
    learner.progress = None
    assert state_of(learner) == before


@pytest.mark.parametrize("count", [16, 17, 33])
def test_a_batch_of_an_epoch_drawn_in_parts_is_never_one_image_again_and_again(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(augment, "CHUNK_VALUES", 16 * 3 * SIDE * SIDE)
    batches: list[int] = []
    run_batch = BatchUpdate.run_batch

    def watched(update: BatchUpdate) -> None:
        run_batch(update)
        chosen = update.order[(update.batch_number - 1) * len(update.batch) + update.batch]
        batches.append(len(update.training_set.images[chosen].flatten(1).unique(dim=0)))

    monkeypatch.setattr(BatchUpdate, "run_batch", watched)
    learner = tiny_learner(
        memory=10,
        training=Schedule(epochs=2, lr=0.01),
        augmentation=Augmentation("crop-mirror", padding=0),
        optimizer=Optimizer(batch_size=8),
    )
    learner.partial_fit(*examples({0: count - count // 2, 1: count // 2}))
    assert batches == [8] * (2 * -(-count // 8))


def test_a_use_that_ctrl_c_has_cut_off_does_not_hold_up_its_own_thread() -> None:
    gate, changed = Gate(), threading.Event()

    def cut_off_then_change() -> None:
        cut_off = gate.using("predict")
        cut_off.__enter__()
        with gate.changing("learn the next"):
            changed.set()

    threading.Thread(target=cut_off_then_change, daemon=True).start()
    assert changed.wait(30)
