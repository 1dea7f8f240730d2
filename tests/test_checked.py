"""Values that are checked against their type hints, and JSON that is bounded before it is read."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.checked import DEEPEST, LONGEST_NUMBER, MOST_VALUES, Checked, parse_json, require
from treering.errors import TreeringError


@dataclass(frozen=True)
class Part(Checked):
    name: str
    size: int = 1

    def _check_ranges(self) -> None:
        require(self.size >= 0, f"size must be 0 or more, not {self.size}")


@dataclass(frozen=True)
class Whole(Checked):
    tolerant: ClassVar[bool] = True

    parts: tuple[Part, ...]
    label: str | int | float | bool
    share: float | None = None
    counts: dict[str, int] = field(default_factory=dict)
    kind: Literal["a", "b"] = "a"
    rows: tuple[tuple[float, ...], ...] = ()


GOOD = {"parts": [{"name": "x"}], "label": True, "counts": {"y": 2}, "rows": [[1, 2.5], []], "later": 1}


def test_a_table_becomes_a_value_of_its_types() -> None:
    whole = Whole.of(GOOD)
    assert whole.parts == (Part("x", 1),)
    assert (whole.label, whole.share, whole.counts, whole.rows) == (True, None, {"y": 2}, ((1.0, 2.5), ()))


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"parts": 3}, "file: parts must be a list"),
        ({"parts": [3]}, "file: parts[0] must be a table"),
        ({"parts": [{}]}, "file: parts[0].name is missing"),
        ({"parts": [{"name": "x", "nmae": 1}]}, "file: parts[0].'nmae' is not known"),
        ({"parts": [{"name": "x", "size": -1}]}, "file: parts[0].size must be 0 or more"),
        ({"parts": [{"name": "x", "size": 1.5}]}, "file: parts[0].size must be a whole number"),
        ({"parts": [{"name": "x", "size": True}]}, "file: parts[0].size must be a whole number"),
        ({"label": None}, "file: label must be a text"),
        ({"share": float("nan")}, "file: share must be a finite number"),
        ({"share": 10**400}, "file: share must be a finite number"),
        ({"counts": {"y": "2"}}, "file: counts.y must be a whole number"),
        ({"kind": []}, "file: kind must be one of 'a', 'b'"),
        ({"rows": [[1], [float("inf")]]}, "file: rows[1] must be a finite number"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], fragment: str) -> None:
    with pytest.raises(TreeringError) as told:
        Whole.of(GOOD | change, "file: ")
    assert str(told.value).startswith(fragment)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(TreeringError, match="label is missing"):
        Whole.of({"parts": []})
    with pytest.raises(TreeringError, match="must be a table"):
        Whole.of([])


def test_an_error_is_short_whatever_the_value() -> None:
    for value in ("x" * 10**6, [[["y" * 10**5] * 10**4]], 10**5000, {str(number): number for number in range(10**5)}):
        with pytest.raises(TreeringError) as told:
            Part.of({"name": "x", "size": value})
        assert len(str(told.value)) < 12_000


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
)


@given(values)
def test_no_value_raises_anything_but_an_error_in_one_line(value: Any) -> None:
    for table in (value, GOOD | {"parts": value}, GOOD | {"rows": value}, {"parts": [], "label": value}):
        try:
            Whole.of(table)
        except TreeringError as error:
            assert "\n" not in str(error)


@given(values)
def test_json_is_read_as_the_standard_library_reads_it(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert repr(parse_json(text.encode("utf-8", "surrogatepass"))) == repr(json.loads(text))


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 10**6,
        b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1),
        b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1),
        b"[[]{}" * 10**5,
        b'["]]]]' + b"[" * 2000,
        b'"' + b'\\"' * 10**6,
        b'["\\\\",' + b'"[' * 10**5,
        b"9" * (LONGEST_NUMBER + 1),
        b"[1e" + b"9" * LONGEST_NUMBER + b"]",
        b"[" + b"1," * MOST_VALUES + b"1]",
        b"\xff",
        b"",
    ],
)
def test_absurd_json_is_refused_quickly(content: bytes) -> None:
    begun = time.monotonic()
    with pytest.raises(ValueError):
        parse_json(content)
    assert time.monotonic() - begun < 3


def test_json_may_hold_brackets_in_texts_and_nest_sensibly() -> None:
    nested: Any = '[[{"' * 500
    for _ in range(DEEPEST - 1):
        nested = [nested]
    assert parse_json(json.dumps(nested).encode()) == nested
