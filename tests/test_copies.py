"""Copies of photos are recognised and named, whatever was done to them, and other photos are not taken for copies."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from learn_helper import CHANGES, MEMORY
from photo_helper import TINY, command
from PIL import Image
from torch import Tensor

from treering import TreeringError
from treering.learner import Learner
from treering.photos import copies
from treering.photos import learn as photos
from treering.photos.copies import Album, Shown
from treering.photos.plan import Plan
from treering.runtime import pixels

SIZE = 96


def photo(seed: int) -> Image.Image:
    """A photo that nobody has taken: soft shapes and a little grain, 240 x 180."""
    random = np.random.RandomState(seed)
    shapes = Image.fromarray(random.randint(0, 256, (9, 12, 3)).astype(np.uint8)).resize((240, 180), 3)
    return Image.fromarray((np.asarray(shapes) * 0.8 + random.randint(0, 40, (180, 240, 3))).astype(np.uint8))


def compressed(image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=40)
    return Image.open(buffer)


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "the same": lambda image: image,
    "compressed": compressed,
    "smaller": lambda image: image.resize((120, 90), Image.Resampling.BICUBIC),
    "brighter": lambda image: image.point(lambda value: min(255, int(1.1 * value))),
    "darker": lambda image: image.point(lambda value: int(0.9 * value)),
    "cropped": lambda image: image.crop((4, 3, 236, 177)),
    "cropped on the left": lambda image: image.crop((7, 0, 240, 180)),
    "cropped in a corner": lambda image: image.crop((0, 0, 233, 175)),
}
OTHERS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "upside down": lambda image: image.transpose(Image.Transpose.ROTATE_180),
    "negative": lambda image: image.point(lambda value: 255 - value),
    "in other colours": lambda image: Image.merge("RGB", image.split()[::-1]),
    "a part": lambda image: image.crop((60, 45, 180, 135)),
    "grey": lambda image: Image.new("RGB", image.size, (128, 128, 128)),
}


def square(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image.convert("RGB").resize((SIZE, SIZE)))).movedim(-1, 0)


def album_of(*images: Image.Image) -> Album:
    album = Album()
    for number, image in enumerate(images):
        pixels_NCHW = square(image)[None]
        album.add(pixels_NCHW, [Shown(str(number))], pixels.digests(pixels_NCHW))
    return album


@pytest.mark.parametrize("change", COPIES.values(), ids=COPIES)
def test_a_copy_is_recognised_either_way_round(change: Callable[[Image.Image], Image.Image]) -> None:
    for seed in range(5):
        for pair in ((photo(seed), change(photo(seed))), (change(photo(seed)), photo(seed))):
            assert album_of(photo(99), *pair).come_before(0) == {2: 1}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_another_photo_is_not_taken_for_a_copy(change: Callable[[Image.Image], Image.Image]) -> None:
    for seed in range(5):
        assert album_of(photo(seed), change(photo(seed))).come_before(0) == {}


def test_photos_that_differ_do_not_come_near() -> None:
    assert album_of(*map(photo, range(60))).come_before(0) == {}


def test_photos_without_contrast_are_only_recognised_exactly() -> None:
    plain = [Image.new("RGB", (50, 40), (value, value, value)) for value in (90, 91, 90)]
    assert album_of(*plain).come_before(0) == {2: 0}


def test_of_several_copies_the_earliest_is_named_and_later_ones_count_only_if_asked() -> None:
    album = album_of(photo(0), photo(1), compressed(photo(0)), photo(0), photo(2), photo(2))
    assert album.come_before(0) == {2: 0, 3: 0, 5: 4}
    assert album.come_before(3) == {3: 0, 5: 4}
    assert album.come_before(3, among_themselves=False) == {3: 0}
    assert album.come_before(6) == {}


def test_a_photo_is_found_in_whatever_part_of_many_it_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [photo(seed) for seed in range(12)]
    images += [compressed(image) for image in images]
    expected = {number: number - 12 for number in range(12, 24)}
    for block in (1, 5, 1024):
        monkeypatch.setattr(copies, "BLOCK", block)
        assert album_of(*images).come_before(0) == expected


def test_grey_images_are_compared_too() -> None:
    grey = torch.stack([square(photo(seed))[:1] for seed in (0, 1, 0)])
    album = Album()
    album.add(grey, [Shown("x")] * 3, [b"0", b"1", b"2"])
    assert album.come_before(0) == {2: 0}


# What follows from it.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of seven photos each."""
    for number in range(14):
        save(photo(number), tmp_path / "first" / ("cat" if number < 7 else "dog") / f"{number:02d}.png")
    return tmp_path / "first"


def save(image: Image.Image, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    image.save(file)


def learnt(model: Path, folder: Path, **settings: object) -> Plan:
    told: list[Plan] = []
    backbone = {} if model.exists() else {"backbone": "small", "memory": MEMORY, "changes": CHANGES}
    photos.learn(model, folder, device="cpu", tell=told.append, **backbone, **settings)
    return told[-1]


def names(plan: Plan) -> list[tuple[str, str]]:
    return [tuple(photo.file.name if photo.file else photo.name for photo in pair) for pair in plan.same]  # type: ignore[misc]


def test_near_copies_are_named_and_never_measure(tmp_path: Path, folder: Path) -> None:
    save(compressed(photo(0)), folder / "dog" / "again.png")
    for number in range(1, 6):
        save(compressed(photo(number)), folder / "cat" / f"again {number:02d}.png")
    plan = learnt(tmp_path / "model", folder, dry_run=True)
    assert sorted(names(plan)) == [
        ("00.png", "again.png"),
        *((f"{number:02d}.png", f"again {number:02d}.png") for number in range(1, 6)),
    ]
    assert {str(one) for one, _ in plan.same} >= {f"{folder / 'cat' / '00.png'} (class cat)"}
    assert plan.held_out == 1, "one dog: all cats but one have copies, and one is not enough to hold one out"
    assert plan.copies == 5, "what shows the same as another of its class is left out"


def test_a_copy_of_a_kept_photo_is_named_and_a_copy_of_a_held_out_one_is_left_out(tmp_path: Path, folder: Path) -> None:
    learnt(tmp_path / "model", folder)
    model = Learner.load(tmp_path / "model").learnt_model()
    held_out = sum(map(len, model.held_out.values()))
    kept = sum(map(len, model.method.memory.exemplars.values()))
    assert held_out == 2
    for number in range(14):
        name = "wolf" if number < 7 else "dog"
        save(
            photo(number).point(lambda value: min(255, int(1.1 * value))), tmp_path / "second" / name / f"{number}.png"
        )
    for number in range(20, 26):
        save(photo(number), tmp_path / "second" / "wolf" / f"{number}.png")
    plan = learnt(tmp_path / "model", tmp_path / "second", dry_run=True)
    assert len(plan.same) == held_out + kept
    assert {str(one) for one, _ in plan.same} == {"a kept photo of class cat", "a kept photo of class dog"}
    kept_dogs = len(model.method.memory.exemplars[model.classes.index("dog")])
    assert plan.copies == held_out + kept_dogs, "those of another class are named alone"


def test_a_validation_photo_that_shows_a_trained_one_is_left_out_and_named(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        save(compressed(photo(number)), tmp_path / "check" / "cat" / f"copy {number}.png")
    with pytest.raises(TreeringError, match="learns from every image of the validation folder"):
        learnt(tmp_path / "model", folder, validation=tmp_path / "check", dry_run=True)
    save(photo(50), tmp_path / "check" / "cat" / "new.png")
    plan = learnt(tmp_path / "model", folder, validation=tmp_path / "check", dry_run=True)
    assert names(plan) == [(f"{number:02d}.png", f"copy {number}.png") for number in range(3)]
    assert "3 of the images for validation are left out" in caplog.text


def test_learn_prints_each_pair(tmp_path: Path, folder: Path) -> None:
    save(compressed(photo(0)), folder / "dog" / "again.png")
    save(photo(8), folder / "dog" / "twice.png")
    done = command("learn", tmp_path / "model", folder, *TINY, "--dry-run")
    assert done.code == 0, done
    cat, dog = (str(folder / name) for name in ("cat", "dog"))
    lines = [line.strip() for line in done.out.splitlines()]
    assert f"{cat}/00.png (class cat) and {dog}/again.png (class dog) show the same photo" in lines
    assert f"{dog}/08.png (class dog) and {dog}/twice.png (class dog) show the same photo" in lines
    assert "The same photo in two classes: 1 image." in lines
