"""How texts from outside are written: nothing in them reaches a terminal that could steer it or mislead the eye."""

from __future__ import annotations

import io
import logging
import re
import sys
import time
import unicodedata
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from treering.errors import nearest
from treering.terminal import Bars, Table, Terminal, print_error, show_warnings
from treering.words import MESSAGE, shown

HOSTILE = (
    "a\x00\x07\x1b[31m\x7f\x85\x9b2J\u200b\u200d\u200e\u202a\u202e\u2066\u2069\u2028\u2029\ufeff\U000e0001\udc80\r\nb"
)
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def plain(text: str) -> str:
    """Return the text, in which nothing may steer a terminal."""
    assert not STEERING.search(text), ascii(text)
    return text


@pytest.mark.parametrize("name", ["naïve", "鳥", "Ωμέγα", "طائر", "e\u0301", "a b", "C:\\photos", "👍", "❤️", "½ €"])
def test_letters_of_any_language_stay(name: str) -> None:
    assert shown(name) == name


def test_every_character_that_is_not_seen_is_escaped() -> None:
    shown_as = {"\x1b": r"\x1b", "\x9b": r"\x9b", "\u202e": r"\u202e", "\n": r"\n", "\udc80": r"\udc80"}
    assert {letter: shown(letter) for letter in shown_as} == shown_as
    for code in range(sys.maxunicode + 1):
        letter = chr(code)
        if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(letter) in (
            *("LRE", "RLE", "LRO", "RLO", "PDF"),
            *("LRI", "RLI", "FSI", "PDI"),
        ):
            assert shown(letter).isascii(), hex(code)
    plain(shown(HOSTILE))


@pytest.mark.parametrize(
    "letter", "\u3164\u034f\u115f\u1160\u17b4\u180b\u2065\ufe00\ufe0f\uffa0\U000e0100\U000e01ef", ids=ascii
)
def test_what_is_not_drawn_is_escaped(letter: str) -> None:
    assert shown(f"cat{letter}") == f"cat{letter.encode('unicode_escape').decode()}"
    assert shown(f"❤\ufe0f{letter}").isascii() is False
    assert letter not in shown(f"❤\ufe0f{letter}")[2:]


def test_of_a_long_text_the_middle_is_left_out() -> None:
    name = "start" + "x" * 10_000 + "end"
    assert len(shown(name)) == 200
    assert re.fullmatch("startx+…x+end", shown(name))
    assert len(shown(name, most=20)) == 20
    assert shown("x" * 200) == "x" * 200


@given(st.text(max_size=60), st.sampled_from([20, 40, 200]))
def test_what_was_written_so_already_stays(text: str, most: int) -> None:
    once = shown(text, most)
    assert len(once) <= most
    assert shown(once, most) == once


def console() -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=True, color_system=None, width=100, legacy_windows=False), stream


def test_lines_tables_and_bars_show_hostile_names_harmlessly() -> None:
    printer, stream = console()
    Terminal(printer).line(f"name: {HOSTILE} [red]x[/red]")
    table = Table("class", "images")
    table.add_row(HOSTILE, "[bold]3[/bold]")
    Terminal(printer).table(table)
    said = plain(stream.getvalue())
    assert r"\x1b[31m" in said
    assert "[red]x[/red]" in said
    assert "[bold]3[/bold]" in said
    with Bars(printer) as bars:
        bars(f"[red]{HOSTILE}", 1, 2)
        (task,) = bars.progress.tasks
    assert plain(task.description).startswith("[red]a")


def test_a_line_has_an_end() -> None:
    printer, stream = console()
    Terminal(printer).line("x" * 100_000)
    assert len(stream.getvalue()) == MESSAGE + 1


def test_errors_and_warnings_are_one_harmless_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "lastResort", None)
    monkeypatch.setattr(warnings, "showwarning", None)
    show_warnings()
    logger = logging.getLogger("treering.somewhere")
    monkeypatch.setattr(logger, "propagate", False)  # pytest has a handler for all loggers
    print_error(HOSTILE)
    logger.warning("%s", HOSTILE)
    warnings.showwarning(UserWarning(HOSTILE), UserWarning, "file", 1)
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 3
    assert all(plain(line).startswith(r"treering: a\x00\x07\x1b[31m") for line in lines)


def test_a_wrong_name_among_very_many_costs_no_more_than_among_some() -> None:
    """Any two of these names are as slow to compare as names can be."""
    generator = np.random.RandomState(0)
    alike = ["".join(generator.choice(["a", "b"], 60)) for _ in range(500)] * 600
    start = time.process_time()
    assert len(nearest("ab" * 5000, alike)) < 5000
    nearest("".join(generator.choice(["a", "b"], 60)), alike)
    assert time.process_time() - start < 8
    assert nearest("ct", ["cat", *alike]) == "did you mean cat?"
    assert nearest("x", map(str, range(100))).endswith(", 48, 49 and 50 more")
    assert nearest("x", ["one", "two"], "run.") == "known: run.one, run.two"
