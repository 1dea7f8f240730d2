"""Plain lines, tables and progress bars on a terminal, whatever names they show."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from treering.errors import TreeringError
from treering.words import shown


class Terminal:
    """Prints lines as they are: nothing in them is taken for markup."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def line(self, text: str = "") -> None:
        """Print one line."""
        try:
            self.console.print(shown(text), markup=False, highlight=False, emoji=False, soft_wrap=True)
        except OSError as error:  # raised here, or another file would be blamed for it
            raise TreeringError(f"the output cannot be written: {error.strerror or error}") from None

    def table(self, table: Table) -> None:
        """Print a table."""
        self.console.print(table, markup=False, highlight=False)


class Bars:
    """Progress bars, one for each task, which show on a terminal only."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.progress.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self.tasks:
            self.tasks[what] = self.progress.add_task(what, total=total)
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
    text = " ".join(str(message).encode("utf-8", "replace").decode().splitlines())
    Console(stderr=True, soft_wrap=True).print(f"treering: {text}", markup=False, highlight=False, emoji=False)
