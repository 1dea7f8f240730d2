"""What `treering run` and `treering reproduce` show: what is planned, the progress of each run, a table of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn
from rich.table import Column

from treering.experiments.forecast import Forecast
from treering.experiments.run import RunProgress, StreamRun
from treering.experiments.scheduler import Observer, Outcome
from treering.terminal import Table, Terminal
from treering.words import duration, shown


class RunDisplay(Observer):
    """Shows each run: on a terminal by one line that changes, elsewhere by a new line for each stage."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self.console, self.terminal = console, Terminal(console)
        self._labels = _short_names(names)
        # In a narrow terminal only the name is cut.
        where = TextColumn(
            "{task.percentage:3.0f} % {task.fields[now]}", markup=False, table_column=Column(no_wrap=True)
        )
        name = TextColumn("{task.description}", markup=False, table_column=Column(overflow="ellipsis"))
        self._lines = Progress(where, name, console=console, disable=not console.is_interactive)

    def __enter__(self) -> RunDisplay:
        self._lines.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._lines.stop()

    def done_before(self, name: str, file: Path) -> None:
        self.terminal.line(f"{name} was run before: remove {file} to run it again")

    def begins(self, name: str, run: StreamRun) -> None:
        if self.console.is_interactive:
            line = self._lines.add_task(shown(self._labels[name]), total=run.image_passes_planned, now="starting")
            run.watch = self._changing_line(line)
        else:
            self.terminal.line(f"{name}: {run.image_passes_planned:,} image passes in all")
            run.watch = self._line_for_each_stage(name)

    def _changing_line(self, line: TaskID) -> Callable[[RunProgress], None]:
        return lambda now: self._lines.update(line, completed=now.image_passes, now=_where(now))

    def _line_for_each_stage(self, name: str) -> Callable[[RunProgress], None]:
        seen: tuple[int, str] | None = None

        def show(now: RunProgress) -> None:
            nonlocal seen
            if seen != (now.step, now.stage):
                seen = (now.step, now.stage)
                before = (
                    "" if now.accuracy_before is None else f"; {now.accuracy_before:.1f} % after step {now.step - 1}"
                )
                self.terminal.line(f"{name}: {_where(now)}{before}")

        return show


def show_results(console: Console, outcomes: Mapping[str, Outcome], results: Path) -> None:
    """Print a table of the runs that have a result."""
    table = Table()
    for column in ("run", "average without first", "average", "last step", "images/s", "minutes"):
        table.add_column(column, justify="left" if column == "run" else "right", overflow="fold")
    for name, outcome in outcomes.items():
        if isinstance(outcome, Exception):
            continue
        figures = (outcome["average_without_first"], outcome["average"], outcome["accuracy"][-1])
        rate, minutes = outcome["images_per_second"], outcome["seconds"] / 60
        cells = ["" if value is None else f"{value:.2f}" for value in figures]
        table.add_row(name, *cells, f"{rate:,.0f}", f"{minutes:.1f}")
    if table.row_count:
        console.print(table)
        Terminal(console).line(f"Results are in {results.resolve()}")


def show_forecast(console: Console, runs: Sequence[Forecast], device: str) -> None:
    """Print image passes, time and state of each run, and which data are missing."""
    table = Table()
    for column in ("run", "image passes", "time", "state"):
        table.add_column(column, justify="left" if column in ("run", "state") else "right", overflow="fold")
    for run in runs:
        table.add_row(run.name, f"{run.image_passes:,}", duration(run.seconds), run.state)
    console.print(table)
    passes = sum(run.image_passes for run in runs if run.to_do)
    seconds = sum(run.seconds for run in runs if run.to_do)
    terminal = Terminal(console)
    terminal.line(
        f"To do: {passes:,} image passes, about {duration(seconds)} on this {device}, one run after the other "
        "(measured just now on a few batches; several runs at once on a GPU take less)."
    )
    for line in dict.fromkeys(run.lacks for run in runs if run.lacks):
        terminal.line(line)


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """Shorten each name to the parts that the names do not share, since a narrow terminal has no room for more."""
    parts = [name.split("-") for name in names]
    shared = set(parts[0]).intersection(*parts) if len(parts) > 1 else set()
    return {
        name: "-".join(part for part in own if part not in shared) or name
        for name, own in zip(names, parts, strict=True)
    }


def _where(now: RunProgress) -> str:
    left = duration((now.image_passes_planned - now.image_passes) / now.images_per_second)
    where = f"step {now.step}/{now.steps} {now.stage} epoch {now.epoch}/{now.epochs}"
    return f"{left} left, {where}, {now.images_per_second:,.0f} images/s"
