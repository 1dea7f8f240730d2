"""The accuracy of each class over time, in the history, in letters and as a picture."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from photo_helper import TINY, command, write_photos
from PIL import Image
from rich.console import Console

from treering import TreeringError
from treering.core.metrics import interval
from treering.methods import speed
from treering.photos import accuracies, console
from treering.photos.accuracies import Course, courses
from treering.photos.console import Printer
from treering.photos.outcome import Outcome
from treering.photos.overview import Overview
from treering.recipe import Recipe


@pytest.fixture(autouse=True)
def known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of this machine is not measured."""
    monkeypatch.setattr(speed, "images_per_second", lambda *arguments: 1000.0)


def step(new: list[Any], classes: dict[str, list[int]] | None = None) -> dict[str, Any]:
    accuracy = None if classes is None else {"all": 50.0, "classes": classes}
    return {"new_classes": new, **({} if accuracy is None else {"accuracy": accuracy})}


def course(name: str, first: int, counts: list[tuple[int, int] | None]) -> Course:
    """The course of a class that has these counts in the steps since it came."""
    measured = {number: count for number, count in enumerate(counts, first) if count}
    return Course(name, first, measured, first + len(counts) - 1)


def test_a_course_begins_with_the_step_that_brought_the_class() -> None:
    history = [
        step(["cat", "dog"], {"cat": [4, 4], "dog": [0, 0]}),
        step([]),
        step(["owl"], {"cat": [2, 4], "dog": [1, 3], "owl": [5, 5]}),
    ]
    assert courses(history) == [
        course("cat", 1, [(4, 4), None, (2, 4)]),
        course("dog", 1, [None, None, (1, 3)]),
        course("owl", 3, [(5, 5)]),
    ]


def test_older_histories_and_classes_that_no_image_measures_have_no_course() -> None:
    older = {"new_classes": ["cat"], "accuracy": {"all": 50.0, "images": 4}}
    assert courses([older, {"new_classes": [3, 4]}, step(["dog"], {}), {"new_classes": [], "accuracy": None}]) == []


def test_letters_are_as_tall_as_the_accuracy() -> None:
    counts = [(0, 8), (1, 8), (2, 8), (3, 8), (4, 8), (5, 8), (6, 8), (7, 8), (8, 8), None, (124, 1000)]
    assert course("cat", 1, counts).letters() == "▁▂▃▄▅▆▇██·▁"


@pytest.mark.parametrize(
    ("counts", "falls"),
    [
        ([(30, 30), (17, 30)], True),
        ([(10, 30), (30, 30), None, (17, 30), None], True),
        ([(30, 30), (29, 30)], False),
        ([(2, 2), (1, 2)], False),
        ([(17, 30), (30, 30)], False),
        ([(30, 30)], False),
        ([None, None], False),
    ],
)
def test_a_class_falls_if_it_loses_more_than_chance_explains(counts: list[Any], falls: bool) -> None:
    fall = course("cat", 1, counts).fall()
    assert (fall is not None) == falls
    if fall:
        assert fall == (100.0, pytest.approx(1700 / 30))
        assert fall[1] < interval(fall[0], 30)[0]


def test_an_outcome_counts_the_images_of_each_class() -> None:
    said = {"cat": ["cat", "dog", "cat"], "dog": ["cat"], "owl": []}
    outcome = Outcome(3, ["cat"], {}, {}, said, False, False, None, {"cat": 3, "dog": 1, "owl": 1}, 1.0)
    record = json.loads(json.dumps(outcome.for_history()))
    assert record["classes"] == {"cat": [2, 3], "dog": [0, 1]}
    assert {"all", "old", "old_before", "new", "images"} <= record.keys()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "images_per_second", lambda *arguments: 1000.0)
        for number, names in enumerate([["cat", "[b]dög"], ["owl"]]):
            photos = write_photos(folder / str(number), dict.fromkeys(names, 12))
            settings = TINY if number == 0 else ("--device", "cpu")
            assert command("learn", folder / "model", photos, *settings, "--set", "memory.held_out=0.5").code == 0
    return folder / "model"


def test_info_shows_a_letter_for_each_step(model: Path, tmp_path: Path) -> None:
    done = command("info", model, "--picture", tmp_path / "classes.png")
    assert (done.code, done.err) == (0, "")
    rows = [line for line in done.out.splitlines() if any(letter in line for letter in accuracies.BLOCKS)]
    assert [row.split()[1] for row in rows] == ["[b]dög", "cat", "owl"]
    letters = ["".join(letter for letter in row if letter in accuracies.BLOCKS) for row in rows]
    assert [len(each) for each in letters] == [2, 2, 1]
    assert rows[2].index(letters[2]) == rows[0].index(letters[0]) + 1, "a step is one column"
    assert done.out.splitlines()[-1] == f"The accuracies are in {tmp_path / 'classes.png'}"
    with Image.open(tmp_path / "classes.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 200


def test_a_picture_grows_with_its_classes_up_to_a_page(tmp_path: Path) -> None:
    heights = []
    for count in (5, 50, accuracies.MOST_ROWS, accuracies.MOST_ROWS + 100):
        found = [course(f"${number}", 1, [(number % 9, 9), None, (3, 9)]) for number in range(count)]
        accuracies.draw(found, tmp_path / "picture.png")
        with Image.open(tmp_path / "picture.png") as picture:
            heights.append(picture.height)
    assert heights[0] < heights[1] < heights[2] == heights[3] < 10_000


def long_history(steps: int, classes: int) -> list[dict[str, Any]]:
    """Steps of which the first brings and measures all classes, and the last measures them again."""
    names = [f"c{number}" for number in range(classes)]
    measured = {name: [1, 1] for name in names}
    return [step(names, measured), *(step([]) for _ in range(steps - 2)), step([], measured)]


def test_many_steps_of_many_classes_cost_what_was_measured(tmp_path: Path) -> None:
    found = courses(long_history(20_000, 20_000))  # dense, these would be 400 million numbers
    assert [len(each.counts) for each in found] == [2] * 20_000
    assert found[7].letters(19_990) == "·" * 10 + "█"
    few = courses(long_history(100_000, 3))
    accuracies.draw(few, tmp_path / "long.png")
    assert (tmp_path / "long.png").exists()


def test_info_prints_the_last_steps_and_says_how_many_there_are() -> None:
    steps = [
        {**record, "step": number, "time": "2026-01-01T00:00:00", "images": []}
        for number, record in enumerate(long_history(5000, 300), 1)
    ]
    recipe = Recipe().to_dict()
    overview = Overview(steps, {}, {}, recipe, {}, 0, False)
    with io.StringIO() as out:
        Printer(Console(file=out, width=200)).overview(overview)
        said = out.getvalue()
    assert f"The last {console.MOST_STEPS} of 5000 steps" in said
    assert len(said.splitlines()) < 4 * console.MOST_STEPS + console.MOST_LINES
    few = Overview([steps[0] | {"step": 1}], {}, {}, recipe, {}, 0, False)
    with io.StringIO() as out:
        Printer(Console(file=out, width=200)).overview(few)
        assert f"and {300 - console.MOST_LINES} more" in out.getvalue()


def test_classes_that_fell_are_red(tmp_path: Path) -> None:
    reds = []
    for last in (17, 30):
        accuracies.draw([course("cat", 1, [(30, 30), (last, 30)])], tmp_path / "picture.png")
        with Image.open(tmp_path / "picture.png") as picture:
            colours = picture.convert("RGB").getcolors(2**24) or []
            reds.append(sum(count for count, (red, green, blue) in colours if red > 150 > 80 > green and blue < 80))
    assert reds[0] > 100 * max(reds[1], 1)


def test_a_model_that_measured_nothing_has_no_picture(tmp_path: Path) -> None:
    with pytest.raises(TreeringError, match="nothing to draw"):
        accuracies.draw([], tmp_path / "picture.png")
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_cannot_be_written_is_one_line(model: Path, tmp_path: Path) -> None:
    command("info", model, "--picture", tmp_path / "no" / "a.png").refused("cannot write")
    command("info", model, "--picture", tmp_path / "a.jpg").refused("must end in .png")
