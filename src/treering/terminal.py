"""Plain lines, tables and progress bars on a terminal, whatever names they show."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from rich import table as tables
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from treering.errors import TreeringError
from treering.words import MESSAGE, shown


class Table(tables.Table):
    """A table whose cells are shown as they are: nothing in them is taken for markup or steers the terminal."""

    def add_row(self, *cells: Any, **look: Any) -> None:
        """Add a row of texts."""
        super().add_row(*(Text(shown(cell, MESSAGE)) for cell in cells), **look)


class Terminal:
    """Prints lines as they are: nothing in them is taken for markup or steers the terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def line(self, text: str = "") -> None:
        """Print one line."""
        try:
            self.console.print(shown(text, MESSAGE), markup=False, highlight=False, emoji=False, soft_wrap=True)
        except OSError as error:  # raised here, or another file would be blamed for it
            raise TreeringError(f"the output cannot be written: {error.strerror or error}") from None

    def table(self, table: Table) -> None:
        """Print a table."""
        self.console.print(table, markup=False, highlight=False)


class Bars:
    """Progress bars, one for each task, which show on a terminal only."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.progress.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self.tasks:
            self.tasks[what] = self.progress.add_task(shown(what), total=total)
        self.progress.update(self.tasks[what], completed=done, total=total)


@contextlib.contextmanager
def interruptible(message: str | Callable[[], str] = "interrupted") -> Iterator[None]:
    """Have Ctrl-C print `message` and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        print_error(message() if callable(message) else message)
        sys.exit(130)


def print_error(message: object) -> None:
    """Print an error in one line."""
    text = shown(" ".join(str(message).split("\n")), MESSAGE)
    Console(stderr=True, soft_wrap=True).print(f"treering: {text}", markup=False, highlight=False, emoji=False)


class _Warnings(logging.Handler):
    """Prints each warning in one line."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print_error(record.getMessage())
        except Exception:  # a warning that cannot be printed must not end a step
            self.handleError(record)


def show_warnings() -> None:
    """Have warnings printed in one line each, of Python's two kinds, unless the program has a handler for them."""
    logging.lastResort = _Warnings(logging.WARNING)  # the handler of all loggers that have none
    warnings.showwarning = lambda message, *_: print_error(message)
