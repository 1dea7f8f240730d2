"""Result files: what was written is read back, and any other file is refused in one line that says why."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from report_helper import result

from treering import TreeringError
from treering.experiments import stored

ROOT = Path(__file__).parent.parent
STEPS = 3


def refusal(file: Path) -> str:
    with pytest.raises(TreeringError) as error:
        stored.read(file)
    message = str(error.value)
    assert str(file) in message
    assert "\n" not in message
    return message


def test_a_written_result_is_read_back_and_a_changed_one_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "new" / "run.json"
    stored.write(file, result(device="naïve 鳥 \ud800"))
    assert stored.read(file) == result(device="naïve 鳥 \ud800")
    file.write_text(file.read_text().replace("[90.0, 80.0, 70.0]", "[90.0, 80.0, 71.0]"))
    assert "was changed" in refusal(file)


def test_results_of_earlier_versions_have_no_checksum(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(result()))
    assert stored.read(tmp_path / "run.json") == result()
    for file in sorted((ROOT / "results").glob("*.json"))[:5]:
        assert stored.read(file)["accuracy"]


NO_NUMBER = float("nan")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", 3),
        ("method", "x" * 501),
        ("accuracy", []),
        ("accuracy", [NO_NUMBER, 1.0, 2.0]),
        ("accuracy", [float("inf"), 1.0, 2.0]),
        ("accuracy", [101.0, 1.0, 2.0]),
        ("accuracy", [-1.0, 1.0, 2.0]),
        ("accuracy", ["90", 1.0, 2.0]),
        ("accuracy", [True, 1.0, 2.0]),
        ("top5", [1.0]),
        ("task_aware_accuracy", [1.0, 2.0, 3.0, 4.0]),
        ("average", None),
        ("average", 1e300),
        ("average_without_first", -3),
        ("order", "first"),
        ("order", -1),
        ("order", 1.5),
        ("seed", 2**70),
        ("seconds", -1.0),
        ("seconds", 10**400),
        ("images_per_second", "fast"),
        ("runs_at_once", None),
        ("classes_per_step", 0),
        ("classes_per_step", []),
        ("classes_per_step", [2, -1]),
        ("classes_per_step", [2, 2]),
        ("memory", 2000),
        ("memory", {"kind": "endless", "size": 3}),
        ("memory", {"kind": "total", "size": -1}),
        ("memory", {"kind": "total"}),
        ("class_order", ["one", 2]),
        ("class_order", ["one"]),
        ("class_accuracy", [[1.0, 2.0]]),
        ("class_accuracy", [[1.0, 2.0], [1.0], [1.0] * 6]),
        ("class_accuracy", [[1.0, 2.0], ["a"] * 4, [1.0] * 6]),
        ("class_accuracy", [[1.0, 2.0], [1e6] * 4, [1.0] * 6]),
        ("class_accuracy", {"a": 1}),
        ("class_accuracy", [[], [1.0] * 4, [1.0] * 6]),
        ("class_order", ["one"] * 10_001),
        ("task_accuracy", [[1.0], 3, 4]),
        ("confusion", [[1, 2], [3, 4]]),
        ("confusion", [[0.5] * 6] * 6),
        ("confusion", [[-1] * 6] * 6),
        ("confusion", [[1] * 5] * 6),
        ("recipe", "eeil"),
        ("versions", ["0.1"]),
        ("images", {"train": "many"}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_field_is_named(tmp_path: Path, field: str, value: Any) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(result(**{field: value})))
    said = refusal(file)
    assert field in said or ("NaN" in said or "Infinity" in said)
    assert len(said) < 1000


def long_result(steps: int, classes: int) -> dict[str, Any]:
    """A run whose steps, but for the last, bring a class each."""
    known = [*range(1, steps), classes]
    same = dict.fromkeys(("top5", "task_aware_accuracy", "class_order", "confusion"))
    rows = [[50.0] * count for count in known]
    return result(accuracy=[50.0] * steps, class_accuracy=rows, classes_per_step=1, **same)


@pytest.mark.parametrize(
    ("steps", "classes", "field"),
    [(1001, 1001, "accuracy"), (2, 10_001, "class_accuracy"), (1000, 10_000, ""), (1000, 1000, "")],
)
def test_a_result_has_a_thousand_steps_and_ten_thousand_classes_at_most(
    tmp_path: Path, steps: int, classes: int, field: str
) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(long_result(steps, classes)))
    if field:
        assert f"{field} must" in refusal(file)
    else:
        assert len(stored.read(file)["accuracy"]) == steps


def test_a_result_has_a_million_accuracies_of_classes_at_most(tmp_path: Path) -> None:
    made = long_result(200, 5200)
    made["class_accuracy"] = [[50.0] * (5000 + step) for step in range(200)]
    (tmp_path / "run.json").write_text(json.dumps(made))
    assert "class_accuracy must not have more than 1,000,000 numbers" in refusal(tmp_path / "run.json")


@pytest.mark.parametrize("field", sorted(result().keys() - {"top5", "task_aware_accuracy", "images_per_second"}))
def test_what_reports_need_must_be_there(tmp_path: Path, field: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps({name: value for name, value in result().items() if name != field}))
    if field in ("device", "commit", "recipe", "class_accuracy", "confusion"):
        assert stored.read(file)
    else:
        assert field in refusal(file)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 10**6, b'{"a":' * 10**5, b'{"order": ' + b"9" * 10**6 + b"}"]
)
def test_what_is_no_json_table_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    assert "is not a result" in refusal(tmp_path / "run.json")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "huge", "link"])
def test_only_plain_files_of_a_bounded_size_are_read(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "run.json"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "folder":
        file.mkdir()
    elif kind == "link":
        (tmp_path / "elsewhere.json").write_text(json.dumps(result()))
        file.symlink_to("elsewhere.json")
    else:
        with file.open("wb") as stream:
            stream.truncate(10**12)
    assert "cannot read" in refusal(file)
