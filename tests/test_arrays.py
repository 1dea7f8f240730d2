"""Whatever a user hands in is either understood or refused: in one line, by name, and with nothing changed."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import RECIPE, SIDE, examples, images_of, state_of, tiny_learner
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from treering import Budget, Learner, Recipe, TreeringError
from treering.images import arrays as inputs
from treering.recipe import Run

LABELS = ["cat", "dog", "cat", "dog"]
IMAGES = images_of(LABELS)
GREY = images_of(LABELS, channels=1)


class Pairs(Dataset):
    """A map-style dataset of the given items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Stream(IterableDataset):
    """An iterable dataset of the given items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


class Endless(Dataset):
    """A map-style dataset that does not say how long it is."""

    def __getitem__(self, index: int) -> Any:
        return IMAGES[0], "cat"


def frozen(images: np.ndarray) -> np.ndarray:
    """A copy that cannot be written to, as memory maps often are."""
    copied = images.copy()
    copied.flags.writeable = False
    return copied


def objects(images: np.ndarray) -> np.ndarray:
    """An array whose elements are images."""
    array = np.empty(len(images), dtype=object)
    for index, image in enumerate(images):
        array[index] = image
    return array


def channels_first(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images).movedim(-1, 1)


@pytest.fixture
def every_warning() -> Iterator[None]:
    """Torch gives some warnings once per process; here it gives all, and pytest makes errors of them."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


COLOUR_FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda x: x,
    "float32 array": lambda x: (x / 255).astype(np.float32),
    "float64 array": lambda x: x / 255,
    "float16 array": lambda x: (x / 255).astype(np.float16),
    "array in Fortran order": np.asfortranarray,
    "array seen backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "array that cannot be written to": frozen,
    "object array of images": objects,
    "tensor": channels_first,
    "float tensor": lambda x: channels_first(x) / 255,
    "double tensor": lambda x: channels_first(x).double() / 255,
    "tensor with a gradient": lambda x: (channels_first(x) / 255).requires_grad_(),
    "list of arrays": list,
    "tuple of arrays": tuple,
    "list of float arrays": lambda x: list(x / 255),
    "list of tensors": lambda x: list(channels_first(x)),
    "list of PIL images": lambda x: [Image.fromarray(image) for image in x],
}
GREY_FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "array N x H x W": lambda x: x[..., 0],
    "array N x H x W x 1": lambda x: x,
    "float array": lambda x: x[..., 0] / 255,
    "tensor N x H x W": lambda x: torch.from_numpy(x[..., 0]),
    "tensor N x 1 x H x W": channels_first,
    "list of H x W": lambda x: list(x[..., 0]),
    "list of H x W x 1": list,
    "list of tensors H x W": lambda x: list(torch.from_numpy(x[..., 0])),
    "list of PIL images": lambda x: [Image.fromarray(image[..., 0]) for image in x],
}


@pytest.mark.usefixtures("every_warning")
@pytest.mark.parametrize(
    ("images", "form"),
    [(IMAGES, form) for form in COLOUR_FORMS.values()] + [(GREY, form) for form in GREY_FORMS.values()],
    ids=[f"colour {name}" for name in COLOUR_FORMS] + [f"grey {name}" for name in GREY_FORMS],
)
def test_every_form_of_the_same_images_gives_the_same_pixels(
    images: np.ndarray, form: Callable[[np.ndarray], Any]
) -> None:
    pixels = inputs.as_images(form(images))
    assert pixels.dtype == torch.uint8
    assert pixels.shape == (4, images.shape[3], SIDE, SIDE)
    assert np.array_equal(pixels.numpy(), np.moveaxis(images, -1, 1))


def test_floats_of_every_grey_level_become_that_level_again() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    assert np.array_equal(inputs.as_images(levels / 255)[:, 0].numpy(), levels)


def test_a_palette_image_is_not_mistaken_for_a_grey_one() -> None:
    red = Image.new("P", (SIDE, SIDE))
    red.putpalette([200, 10, 10])
    assert inputs.as_images([red])[0, :, 0, 0].tolist() == [200, 10, 10]


@pytest.mark.parametrize("mode", ["RGBA", "CMYK", "YCbCr", "HSV"])
def test_pil_images_of_every_kind_become_the_colours_they_show(mode: str) -> None:
    red = Image.new("RGB", (SIDE, SIDE), (200, 10, 10))
    found = inputs.as_images([red.convert(mode)])[0].float().mean((1, 2))
    assert (found - torch.tensor([200.0, 10.0, 10.0])).abs().max() < 4


def test_pil_images_are_transparent_on_white_and_upright_as_files_are() -> None:
    assert inputs.as_images([Image.new("RGBA", (SIDE, SIDE), (9, 9, 9, 0))]).unique().tolist() == [255]
    image = Image.fromarray(IMAGES[0])
    image.getexif()[0x0112] = 6  # to be turned a quarter clockwise
    assert np.array_equal(inputs.as_images([image])[0].movedim(0, -1).numpy(), np.rot90(IMAGES[0], -1))


def test_images_are_not_changed_by_being_read() -> None:
    for images in (IMAGES.copy(), IMAGES / 255):
        before = images.copy()
        inputs.as_images(images)
        assert np.array_equal(images, before)


@pytest.mark.parametrize("kind", [Pairs, Stream])
def test_a_dataset_brings_images_and_labels(kind: Callable[[list[Any]], Dataset]) -> None:
    pixels, labels = inputs.as_examples(kind(list(zip(IMAGES, LABELS, strict=True))), None)
    assert np.array_equal(pixels.numpy(), np.moveaxis(IMAGES, -1, 1))
    assert labels == LABELS
    only_images = inputs.as_images(kind(list(IMAGES)))
    with_labels = inputs.as_images(kind(list(zip(IMAGES, LABELS, strict=True))))
    assert torch.equal(only_images, pixels)
    assert torch.equal(with_labels, pixels)


def test_a_dataset_may_hold_tensors_and_labels_as_tensors_without_dimension() -> None:
    items = [(image / 255, torch.tensor(number)) for number, image in enumerate(channels_first(IMAGES))]
    pixels, labels = inputs.as_examples(Pairs(items), None)
    assert np.array_equal(pixels.numpy(), np.moveaxis(IMAGES, -1, 1))
    assert labels == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a", "b"], ["a", "b"]),
        (("a", "b"), ["a", "b"]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array(["a", "b"], dtype=object), ["a", "b"]),
        ([np.str_("a"), np.str_("b")], ["a", "b"]),
        (np.array([3, 1], dtype=np.int32), [3, 1]),
        (torch.tensor([3, 1]), [3, 1]),
        ([np.int64(3), np.int64(1)], [3, 1]),
        ([torch.tensor(3), torch.tensor(1)], [3, 1]),
        (range(2), [0, 1]),
        (iter([3, 1]), [3, 1]),
        (np.array([True, False]), [True, False]),
        ([0.5, 1.5], [0.5, 1.5]),
        ([(1, "a"), (2, "b")], [(1, "a"), (2, "b")]),
        ([b"a", b"b"], [b"a", b"b"]),
    ],
    ids=lambda value: f"{type(value).__name__} of {type(value[0]).__name__}" if hasattr(value, "__len__") else None,
)
def test_labels_become_plain_values_of_their_own_type(given: Any, expected: list[Any]) -> None:
    labels = inputs.as_labels(given)
    assert labels == expected
    assert [type(label) for label in labels] == [type(label) for label in expected]


class Animal(enum.Enum):
    CAT = 1
    DOG = 2


def test_labels_of_any_hashable_type_are_kept() -> None:
    assert inputs.as_labels([Animal.CAT, Animal.DOG]) == [Animal.CAT, Animal.DOG]


def rejected(learner: Learner, action: Callable[[Learner], object], fragment: str) -> None:
    """`action` raises one error of one line that holds `fragment`, and leaves the learner as it was."""
    before = state_of(learner)
    with pytest.raises(ValueError) as caught:
        action(learner)
    error = caught.value
    assert type(error) is TreeringError, f"{type(error).__name__}: {error}"
    assert not isinstance(error.__context__, TreeringError), f"one error inside another: {error}"
    assert "\n" not in str(error)
    assert fragment in str(error)
    assert state_of(learner) == before


@pytest.fixture(scope="module")
def fitted() -> Learner:
    """Knows cats and dogs, 8 x 8 in colour. Tests share it: none may change it, which is what they test."""
    return tiny_learner(memory=4).partial_fit(*examples({"cat": 4, "dog": 4}))


def with_value(value: float) -> np.ndarray:
    images = IMAGES / 255
    images[1, 2, 3, 0] = value
    return images


def closed_image() -> Image.Image:
    image = Image.new("RGB", (8, 8))
    image.close()
    return image


BAD_IMAGES: dict[str, tuple[Any, str]] = {
    "an empty array": (np.zeros((0, 8, 8, 3), np.uint8), "no images"),
    "an empty list": ([], "no images"),
    "an empty tensor": (torch.zeros(0, 3, 8, 8), "no images"),
    "nothing": (None, "NoneType"),
    "a number": (5, "int"),
    "an array without dimensions": (np.array(5, np.uint8), "dimensions"),
    "a tensor without dimensions": (torch.tensor(0.5), "dimensions"),
    "an array of one dimension": (np.zeros(4, np.uint8), "1 dimensions"),
    "an array of two dimensions": (IMAGES[0, :, :, 0], "2 dimensions"),
    "an array of five dimensions": (IMAGES[None], "5 dimensions"),
    "a list of stacks": ([IMAGES, IMAGES, IMAGES, IMAGES], "5 dimensions"),
    "images without width": (IMAGES[:, :, :0], "0"),
    "two channels": (IMAGES[..., :2], "not 2"),
    "four channels": (np.concatenate([IMAGES, GREY], 3), "not 4"),
    "a tensor with the channels last": (torch.from_numpy(IMAGES), "not 8"),
    "an array of int64": (IMAGES.astype(np.int64), "int64"),
    "an array of uint16": (IMAGES.astype(np.uint16), "uint16"),
    "an array of bool": (IMAGES > 100, "bool"),
    "an array of complex": (IMAGES.astype(complex), "complex128"),
    "a tensor of int64": (channels_first(IMAGES).long(), "int64"),
    "a tensor of bool": (channels_first(IMAGES) > 100, "bool"),
    "a list of int64": (list(IMAGES.astype(np.int64)), "int64"),
    "a list of nested lists": (IMAGES.tolist(), "int64"),
    "an array of objects": (np.array([None] * 4, dtype=object), "object"),
    "an array of file names": (np.array(["a.png"] * 4), "a.png cannot be read: No such file"),
    "a list of file names": (["a.png"] * 4, "a.png cannot be read: No such file"),
    "NaN": (with_value(np.nan), "image 1 holds NaN or infinity"),
    "infinity": (with_value(np.inf), "image 1 holds NaN or infinity"),
    "minus infinity": (with_value(-np.inf), "image 1 holds NaN or infinity"),
    "NaN in a tensor": (channels_first(with_value(np.nan)), "image 1 holds NaN or infinity"),
    "floats up to 255": (with_value(254.5), "254.5"),
    "negative floats": (with_value(-0.25), "-0.25"),
    "floats beyond float32": (with_value(1e300), "image 1"),
    "images of several sizes": ([IMAGES[0], IMAGES[1], IMAGES[2][:5], IMAGES[3]], "(3, 5, 8)"),
    "images of several channels": ([IMAGES[0], IMAGES[1], GREY[2], IMAGES[3]], "(1, 8, 8)"),
    "images of several types": ([IMAGES[0], IMAGES[1], IMAGES[2] / 255, IMAGES[3]], "float32"),
    "a closed PIL image": ([closed_image()] * 4, "cannot be read"),
    "a PIL image that cannot be converted": ([Image.new("La", (8, 8))] * 4, "cannot be read"),
    "an image whose rows differ": ([[[1, 2], [3]]] * 4, "array"),
}


def test_values_too_small_for_float32_are_zero_whatever_numpy_is_told() -> None:
    with np.errstate(all="raise"):
        assert not inputs.as_images(np.full((2, 8, 8, 3), 1e-300)).any()


BAD_LABELS: dict[str, tuple[Any, str]] = {
    "no labels": (None, "labels are missing"),
    "one label too few": (LABELS[:3], "4 images but 3 labels"),
    "one label too many": ([*LABELS, "cat"], "4 images but 5 labels"),
    "no label in a list": ([], "4 images but 0 labels"),
    "one text for all": ("cats", "'cats'"),
    "dates of NumPy": (np.array(["2024-01-01"] * 4, "M8[ns]"), "dates or times"),
    "one number for all": (7, "7"),
    "a set, which has no order": ({"cat", "dog", "owl", "ant"}, "must be a sequence"),
    "a dictionary": (dict.fromkeys(["cat", "dog", "owl", "ant"]), "must be a sequence"),
    "an array without dimensions": (np.array(7), "()"),
    "an array of two dimensions": (np.array(LABELS)[:, None], "(4, 1)"),
    "a tensor of two dimensions": (torch.zeros(2, 2, dtype=torch.long), "(2, 2)"),
    "nested lists": ([["cat"], ["dog"], ["cat"], ["dog"]], "['cat']"),
    "tensors of one element": ([torch.tensor([0])] * 4, "tensor([0])"),
    "None": (["cat", None, "dog", "cat"], "None"),
    "an unhashable dictionary": (["cat", {"a": 1}, "dog", "cat"], "{'a': 1}"),
    "a tuple that holds a list": ([(1, [2])] * 4, "(1, [2])"),
    "NaN": ([0.5, float("nan"), 0.5, 0.5], "nan"),
    "NaN in an array": (np.array([0.5, np.nan, 0.5, 0.5]), "nan"),
    "infinity": ([0.5, float("inf"), 0.5, 0.5], "inf"),
    "texts and numbers mixed": (["cat", 1, "dog", "cat"], "label 1 is of type int"),
    "numbers and truth values mixed": ([0, True, 1, 0], "label True is of type bool"),
    "whole numbers and fractions mixed": ([0, 1.5, 1, 0], "label 1.5 is of type float"),
}
BAD_DATASETS: dict[str, tuple[Any, Any, str]] = {
    "an empty dataset": (Pairs([]), None, "no images"),
    "a dataset and labels": (Pairs(list(zip(IMAGES, LABELS, strict=True))), LABELS, "leave the labels out"),
    "a dataset without labels": (Pairs(list(IMAGES)), None, "pair (image, label)"),
    "a dataset of triples": (Pairs([(IMAGES[0], "cat", 1)]), None, "pair (image, label)"),
    "a dataset of images in tuples": (Pairs([(IMAGES[0],)]), None, "pair (image, label)"),
    "a dataset with one bad item": (Pairs([(IMAGES[0], "cat"), None]), None, "pair (image, label)"),
    "an endless dataset": (Endless(), None, "Endless"),
    "a dataset of several sizes": (Pairs([(IMAGES[0], "cat"), (IMAGES[1][:5], "dog")]), None, "(3, 5, 8)"),
}
BAD_FITS = (
    {f"images: {name}": (images, LABELS, fragment) for name, (images, fragment) in BAD_IMAGES.items()}
    | {f"labels: {name}": (IMAGES, labels, fragment) for name, (labels, fragment) in BAD_LABELS.items()}
    | BAD_DATASETS
)


@pytest.mark.parametrize(("images", "labels", "fragment"), BAD_FITS.values(), ids=BAD_FITS)
def test_bad_examples_are_refused_before_anything_is_learnt(images: Any, labels: Any, fragment: str) -> None:
    rejected(tiny_learner(), lambda learner: learner.partial_fit(images, labels), fragment)


@pytest.mark.parametrize(("images", "labels", "fragment"), BAD_FITS.values(), ids=BAD_FITS)
def test_bad_examples_leave_what_was_learnt_before_untouched(
    fitted: Learner, images: Any, labels: Any, fragment: str
) -> None:
    rejected(fitted, lambda learner: learner.partial_fit(images, labels), fragment)


@pytest.mark.parametrize(("images", "fragment"), BAD_IMAGES.values(), ids=BAD_IMAGES)
def test_bad_images_cannot_be_predicted(fitted: Learner, images: Any, fragment: str) -> None:
    rejected(fitted, lambda learner: learner.predict(images), fragment)
    rejected(fitted, lambda learner: learner.predict_proba(images), fragment)
    rejected(fitted, lambda learner: learner.score(images, LABELS), fragment)


@pytest.mark.parametrize(("labels", "fragment"), BAD_LABELS.values(), ids=BAD_LABELS)
def test_bad_labels_cannot_be_scored(fitted: Learner, labels: Any, fragment: str) -> None:
    rejected(fitted, lambda learner: learner.score(IMAGES, labels), fragment)


@pytest.mark.parametrize(
    ("images", "fragment"),
    [
        (images_of(LABELS, side=9), "9 x 9 pixels"),
        (IMAGES[:, :, :6], "8 x 6 pixels"),
        (IMAGES[:, :6], "6 x 8 pixels"),
        (GREY, "1 channel"),
        (GREY[..., 0] / 255, "1 channel"),
    ],
    ids=["larger", "narrower", "lower", "grey", "grey floats"],
)
def test_images_of_another_shape_than_before_are_refused(fitted: Learner, images: np.ndarray, fragment: str) -> None:
    rejected(fitted, lambda learner: learner.partial_fit(images, LABELS), fragment)
    rejected(fitted, lambda learner: learner.predict(images), fragment)
    rejected(fitted, lambda learner: learner.score(images, LABELS), fragment)


@pytest.mark.parametrize(
    ("known", "given", "fragment"),
    [
        ("cat", 1, "label 1 is of type int"),
        ("cat", b"cat", "label b'cat' is of type bytes"),
        (1, "1", "label '1' is of type str"),
        (1, True, "label True is of type bool"),
        (1, 1.0, "label 1.0 is of type float"),
        ((1, 2), 12, "label 12 is of type int"),
    ],
    ids=repr,
)
def test_labels_of_another_type_than_before_are_refused(known: Any, given: Any, fragment: str) -> None:
    learner = tiny_learner().partial_fit(IMAGES, [known] * 4)
    rejected(learner, lambda learner: learner.partial_fit(IMAGES, [given] * 4), fragment)


def test_a_memory_smaller_than_the_number_of_classes_is_refused_in_the_first_step() -> None:
    rejected(tiny_learner(memory=1), lambda learner: learner.partial_fit(IMAGES, LABELS), "1 images cannot hold 2")


def test_a_memory_smaller_than_the_number_of_classes_is_refused_in_a_later_step(fitted: Learner) -> None:
    new = examples({"owl": 2, "elk": 2, "fox": 2})
    rejected(fitted, lambda learner: learner.partial_fit(*new), "4 images cannot hold 5")


class Returning(nn.Module):
    """A backbone that gives whatever `answer` makes of the images."""

    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(x)


def fail(x: Tensor) -> Tensor:
    raise RuntimeError("the weights are lost\nsee above")


def fail_silently(x: Tensor) -> Tensor:
    raise KeyError


BAD_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "a backbone with maps for features": ({"backbone": nn.Conv2d(3, 4, 3)}, "(2, 4, 6, 6)"),
    "a backbone with three dimensions": ({"backbone": Returning(lambda x: x.flatten(2))}, "(2, 3, 64)"),
    "a backbone without a row per image": ({"backbone": Returning(lambda x: x.mean((2, 3))[:1])}, "(1, 3)"),
    "a backbone without features": ({"backbone": Returning(lambda x: x.flatten(1)[:, :0])}, "(2, 0)"),
    "a backbone that gives a tuple": ({"backbone": Returning(lambda x: (x.mean((2, 3)),))}, "tuple"),
    "a backbone that gives a number": ({"backbone": Returning(lambda x: 3)}, "int"),
    "a backbone that gives nothing": ({"backbone": Returning(lambda x: None)}, "NoneType"),
    "a backbone with whole numbers": ({"backbone": Returning(lambda x: x.flatten(1).long())}, "int64"),
    "a backbone that fails": ({"backbone": Returning(fail)}, "the weights are lost"),
    "a backbone that fails silently": ({"backbone": Returning(fail_silently)}, "KeyError"),
    "a backbone for grey images": ({"backbone": nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten())}, "(3, 8, 8)"),
    "an unknown backbone": ({"backbone": "resnet33"}, "'resnet33'; did you mean resnet32?"),
    "a backbone of no known name": ({"backbone": "vgg"}, "'vgg'"),
    "a number as backbone": ({"backbone": 5}, "5"),
    "a class as backbone": ({"backbone": nn.Flatten}, "Flatten"),
    "an unknown backbone in the recipe": ({"backbone": None, "recipe": Recipe(backbone="vgg")}, "'vgg'"),
    "an unknown method": ({"method": "eiel"}, "'eiel'; did you mean eeil?"),
    "a method of no known name": ({"method": "magic"}, "'magic'"),
    "an unknown device": ({"device": "abacus"}, "'abacus'"),
    "a device that is not there": ({"device": "cuda:77"}, "'cuda:77'"),
    "a device that cannot compute": ({"device": "meta"}, "'meta'"),
    "a device that treering was never run on": ({"device": "mps"}, "treering supports CPUs and CUDA GPUs"),
    "a memory in words": ({"memory": "many"}, "'many'"),
    "a memory of a fraction": ({"memory": 2.5}, "2.5"),
    "a memory of a truth value": ({"memory": True}, "True"),
    "no memory at all": ({"memory": 0}, "eeil cannot learn without exemplars"),
    "a negative memory": ({"memory": -3}, "not -3"),
    "a text as seed": ({"seed": "lucky"}, "'lucky'"),
    "no seed": ({"seed": None}, "None"),
}


@pytest.mark.parametrize(("settings", "fragment"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_bad_settings_are_refused_at_the_first_step(settings: dict[str, Any], fragment: str) -> None:
    rejected(tiny_learner(**settings), lambda learner: learner.partial_fit(IMAGES, LABELS), fragment)


@pytest.mark.parametrize("budget", [{"size": -2}, {"kind": "per-class", "size": -1}])
def test_a_budget_without_room_cannot_be_made(budget: dict[str, Any]) -> None:
    with pytest.raises(TreeringError, match=str(budget["size"])):
        Budget(**budget)


def test_a_learner_that_refused_its_first_images_can_learn_others(fitted: Learner) -> None:
    learner = tiny_learner(memory=4)
    rejected(learner, lambda learner: learner.partial_fit(IMAGES[:0], []), "no images")
    rejected(learner, lambda learner: learner.partial_fit(*examples(dict.fromkeys("abcde", 1))), "cannot hold 5")
    assert state_of(learner.partial_fit(*examples({"cat": 4, "dog": 4}))) == state_of(fitted)


# Names of files.


@pytest.fixture
def file_names(tmp_path: Path) -> list[str]:
    names = [str(tmp_path / f"{number}.png") for number in range(4)]
    for name, image in zip(names, IMAGES, strict=True):
        Image.fromarray(image).save(name)
    return names


class Column(list[Any]):
    """What a table of pandas gives."""

    def to_numpy(self) -> np.ndarray:
        return np.array(self, dtype=object)


def test_names_of_files_stand_for_their_images(fitted: Learner, file_names: list[str]) -> None:
    wanted = fitted.predict_proba(IMAGES)
    assert np.array_equal(fitted.predict_proba(file_names), wanted)
    assert np.array_equal(fitted.predict_proba(tuple(map(Path, file_names))), wanted)
    assert np.array_equal(fitted.predict_proba(np.array(file_names)), wanted)
    assert np.array_equal(fitted.predict_proba(np.array(file_names, dtype=object)), wanted)
    assert np.array_equal(fitted.predict_proba(Column(map(Path, file_names))), wanted)
    assert np.allclose(fitted.predict_proba(file_names[0]), wanted[:1], atol=1e-6)
    assert fitted.score(file_names, LABELS) == fitted.score(IMAGES, LABELS)
    small = replace(RECIPE, run=Run(image_size=SIDE))
    taught = [tiny_learner().set_params(recipe=small).partial_fit(given, LABELS) for given in (file_names, IMAGES)]
    assert state_of(taught[0]) == state_of(taught[1])


def test_a_learner_of_grey_images_reads_files_and_images_of_pil_as_grey(tmp_path: Path, file_names: list[str]) -> None:
    grey = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in IMAGES])
    learner = tiny_learner().set_params(backbone="small").partial_fit(grey, LABELS)
    wanted = learner.predict_proba(grey)
    assert np.array_equal(learner.predict_proba(file_names), wanted)
    assert np.array_equal(learner.predict_proba([Image.fromarray(image) for image in IMAGES]), wanted)
    for number, (name, image) in enumerate(zip(LABELS, IMAGES, strict=True)):
        (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "photos" / name / f"{number}.png")
    assert learner.score(tmp_path / "photos") == learner.score(grey, LABELS)
    assert learner.score([Image.fromarray(image) for image in IMAGES], LABELS) == learner.score(grey, LABELS)
    assert learner.evaluate(tmp_path / "photos").accuracy() == 100 * learner.score(grey, LABELS)


def test_grey_images_of_pil_among_others_or_for_a_learner_of_colour_become_colour(fitted: Learner) -> None:
    colour, grey = Image.fromarray(IMAGES[0]), Image.fromarray(IMAGES[1]).convert("L")
    pixels = inputs.as_images([grey, colour])
    assert np.array_equal(pixels[0].numpy(), np.stack([np.asarray(grey)] * 3))
    assert np.array_equal(pixels[1].numpy(), np.moveaxis(IMAGES[0], -1, 0))
    assert np.array_equal(fitted.predict_proba([grey]), fitted.predict_proba([grey.convert("RGB")]))
    float_grey = Image.fromarray(np.asarray(grey) / np.float32(255))
    assert np.array_equal(fitted.predict_proba([float_grey]), fitted.predict_proba([grey]))
    batches = [([colour], ["a"]), ([grey], ["b"])]
    assert inputs.as_examples(iter(batches), None)[0].shape == (2, 3, SIDE, SIDE)
    with pytest.raises(TreeringError, match="all images must have one size: 1 x 8 x 8 and 3 x 8 x 8"):
        inputs.as_examples(iter(batches[::-1]), None)


@pytest.mark.parametrize("channels", [None, 1, 3])
def test_grey_images_of_pil_are_on_white_where_they_are_transparent(tmp_path: Path, channels: int | None) -> None:
    Image.fromarray(np.uint8([[0, 90]])).save(tmp_path / "grey.png", transparency=0)
    with Image.open(tmp_path / "grey.png") as image:
        assert inputs.as_images([image], channels)[0, 0].tolist() == [[255, 90]]


def test_images_of_pil_with_whole_numbers_of_no_known_range_are_refused(tmp_path: Path) -> None:
    deep = Image.fromarray(np.full((4, 4), 200, np.int32))
    with pytest.raises(TreeringError, match=r"^an image of PIL's mode I may have any range: convert it to L"):
        inputs.as_images([deep])
    deep.save(tmp_path / "deep.tiff")
    with Image.open(tmp_path / "deep.tiff") as read, pytest.raises(TreeringError, match="any range"):
        inputs.as_images([read])
    Image.fromarray(np.full((4, 4), 200 * 256, np.uint16)).save(tmp_path / "deep.png")
    with Image.open(tmp_path / "deep.png") as read:
        assert np.array_equal(inputs.as_images([read]).unique().numpy(), [200])


def test_a_folder_of_classes_can_be_scored(fitted: Learner, tmp_path: Path) -> None:
    for number, (name, image) in enumerate(zip(LABELS, IMAGES, strict=True)):
        (tmp_path / name).mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / name / f"{number}.png")
    assert fitted.score(tmp_path) == fitted.score(IMAGES, LABELS)
    rejected(fitted, lambda learner: learner.predict(tmp_path), f"{tmp_path} is a folder")


# Iterators of batches.


def batches_of(images: Any, labels: Any, *sizes: int) -> Iterator[tuple[Any, Any]]:
    """Batches of these sizes, one after the other."""
    start = 0
    for size in sizes:
        yield images[start : start + size], labels[start : start + size]
        start += size


@pytest.mark.parametrize("sizes", [(4,), (1, 1, 1, 1), (3, 1), (1, 3)], ids=str)
@pytest.mark.parametrize("form", COLOUR_FORMS.values(), ids=COLOUR_FORMS)
def test_batches_are_the_images_in_their_order(sizes: tuple[int, ...], form: Callable[[np.ndarray], Any]) -> None:
    pixels, labels = inputs.as_examples(batches_of(form(IMAGES), LABELS, *sizes), None)
    assert labels == LABELS
    assert pixels.shape == (4, 3, SIDE, SIDE)
    assert np.array_equal(inputs.as_images(pixels).numpy(), np.moveaxis(IMAGES, -1, 1))


def test_batches_are_taken_one_at_a_time() -> None:
    alive: list[Any] = []

    class Batch(np.ndarray):
        """An array that can be watched."""

    def watched() -> Iterator[tuple[Any, Any]]:
        for _ in range(5):
            batch = IMAGES.view(Batch).copy()
            alive.append(weakref.ref(batch))
            yield batch, LABELS
            del batch
            assert sum(one() is not None for one in alive) <= 1

    pixels, labels = inputs.as_examples(watched(), None)
    assert (len(pixels), len(labels), len(alive)) == (20, 20, 5)


def test_a_data_loader_gives_batches(fitted: Learner) -> None:
    items = [(image, number) for number, image in enumerate(channels_first(IMAGES))]
    loader = DataLoader(Pairs(items), batch_size=3)
    pixels, labels = inputs.as_examples(iter(loader), None)
    assert labels == [0, 1, 2, 3]
    assert torch.equal(inputs.as_images(pixels), channels_first(IMAGES))
    assert np.array_equal(fitted.predict_proba(loader), fitted.predict_proba(IMAGES))
    for others in (
        DataLoader(Pairs(list(channels_first(IMAGES))), batch_size=3),
        DataLoader(TensorDataset(channels_first(IMAGES)), batch_size=3),
        DataLoader(TensorDataset(channels_first(IMAGES), torch.arange(4), torch.arange(4)), batch_size=3),
        iter([list(IMAGES[:2]), list(IMAGES[2:])]),
    ):
        assert np.array_equal(fitted.predict_proba(others), fitted.predict_proba(IMAGES))
    rejected(fitted, lambda learner: learner.predict(iter(())), "no images")


@pytest.mark.parametrize("sizes", [(8,), (3, 5), (1,) * 8], ids=str)
def test_batches_and_arrays_give_the_identical_learner(fitted: Learner, sizes: tuple[int, ...]) -> None:
    images, labels = examples({"cat": 4, "dog": 4})
    learner = tiny_learner(memory=4).partial_fit(batches_of(images, labels, *sizes))
    assert state_of(learner) == state_of(fitted)
    more, owls = examples({"owl": 3, "cat": 2}, seed=1)
    by_arrays = tiny_learner(memory=4).partial_fit(images, labels).partial_fit(more, owls)
    by_batches = learner.partial_fit(batches_of(more, owls, 2, 3))
    assert state_of(by_batches) == state_of(by_arrays)


def test_score_takes_batches_too(fitted: Learner) -> None:
    images, labels = examples({"cat": 3, "dog": 3}, seed=2)
    assert fitted.score(batches_of(images, labels, 2, 4)) == fitted.score(images, labels)


def failing_later() -> Iterator[tuple[Any, Any]]:
    yield IMAGES, LABELS
    raise TreeringError("the disk is gone")


BAD_BATCHES: dict[str, tuple[Callable[[], Iterator[Any]], str]] = {
    "none": (lambda: iter(()), "no images were given"),
    "images without labels": (lambda: iter([IMAGES]), "a pair (images, labels)"),
    "three parts": (lambda: iter([(IMAGES, LABELS, LABELS)]), "a pair (images, labels)"),
    "a text": (lambda: iter(["ab"]), "a pair (images, labels)"),
    "pairs of one image": (lambda: iter(list(zip(IMAGES, LABELS, strict=True))), "label"),
    "too few labels": (lambda: iter([(IMAGES, LABELS[:3])]), "4 images but 3 labels"),
    "an empty batch": (lambda: iter([(IMAGES, LABELS), (IMAGES[:0], [])]), "no images were given"),
    "two sizes": (lambda: iter([(IMAGES, LABELS), (IMAGES[:, 1:], LABELS)]), "3 x 8 x 8 and 3 x 7 x 8"),
    "colour and grey": (lambda: iter([(IMAGES, LABELS), (GREY, LABELS)]), "3 x 8 x 8 and 1 x 8 x 8"),
    "two types of labels": (lambda: iter([(IMAGES, LABELS), (IMAGES, [1, 2, 3, 4])]), "1 is of type int"),
    "bad images later": (lambda: iter([(IMAGES, LABELS), (IMAGES.astype(int), LABELS)]), "int64"),
    "an error later": (failing_later, "the disk is gone"),
}


@pytest.mark.parametrize(("make", "fragment"), BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_bad_batches_are_refused(fitted: Learner, make: Callable[[], Iterator[Any]], fragment: str) -> None:
    rejected(fitted, lambda learner: learner.partial_fit(make()), fragment)


def test_batches_with_labels_beside_them_are_refused(fitted: Learner) -> None:
    batches = batches_of(IMAGES, LABELS, 4)
    rejected(fitted, lambda learner: learner.partial_fit(batches, LABELS), "brings its own labels")
