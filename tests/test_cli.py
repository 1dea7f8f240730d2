"""The command line: what is printed, where, and the exit code."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import treering
from treering import Augmentation, Schedule, TreeringError, cli, demo
from treering.data import digits


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same everywhere: on a machine with a GPU too."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


class Finished:
    """A command that has ended: its exit code and what it printed."""

    def __init__(self, code: Any, captured: Any) -> None:
        self.code, self.out, self.err = code, captured.out, captured.err


@pytest.fixture
def treering_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command line as the `treering` program does, in 80 columns."""

    monkeypatch.setattr(cli, "console", Console(width=80))

    def run(*arguments: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["treering", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Finished(ended.value.code, capsys.readouterr())

    return run


@pytest.fixture
def quick_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo with one epoch and a fifth of the images."""
    pytest.importorskip("sklearn")
    once = Schedule(epochs=1, lr=0.1)
    recipe = replace(demo.RECIPE, training=once, balanced=once, augmentation=Augmentation(kind="none"))
    whole = digits.load()
    few = replace(whole, train_images=whole.train_images[::5], train_labels=whole.train_labels[::5])
    monkeypatch.setattr(demo, "RECIPE", recipe)
    monkeypatch.setattr(digits, "load", lambda: few)


def test_help_and_errors_do_not_wait_for_pytorch() -> None:
    script = """
import sys, treering
from treering import cli
for arguments, code in ((["--help"], 0), (["run", "nonsense"], 2)):
    sys.argv = ["treering", *arguments]
    try:
        cli.main()
    except SystemExit as ended:
        assert ended.code == code
    assert not {"torch", "numpy", "scipy"} & set(sys.modules), "PyTorch takes seconds"
assert {"Learner", "learn", "load", "undo", "Recipe"} <= set(dir(treering))
assert treering.Learner.__module__ == "treering.learner"
assert treering.learn.__module__ == "treering.photos.learn"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)


def test_what_treering_does_not_have_is_said_as_python_says_it() -> None:
    with pytest.raises(AttributeError, match="module 'treering' has no attribute 'Lerner'"):
        _ = treering.Lerner


@pytest.mark.usefixtures("quick_demo")
def test_the_demo_prints_a_table_and_where_the_picture_is(treering_command: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "a folder with spaces and a long name so that it does not fit into one line" / "pictures"
    done = treering_command("demo", "--out", out, "--order", "1")
    assert (done.code, done.err) == (0, "")
    assert "…" not in done.out, "nothing is cut off in 80 columns"
    rows = [line.split("│")[1:-1] for line in done.out.splitlines() if line.startswith("│")]
    accuracies = [[float(cell) for cell in cells[1:]] for cells in rows]
    assert [len(row) for row in accuracies] == [7, 7]
    assert all(0 <= value <= 100 for row in accuracies for value in row)
    assert [cells[0].strip() for cells in rows] == ["EEIL", "fine-tuning"]
    first = demo.class_order(10, 1)[:2]
    assert f"+ {first[0]}, {first[1]}" in done.out
    assert "100 of the old images" in done.out
    for kind in ("png", "svg"):
        assert str(out / f"digits.{kind}") in done.out
        assert (out / f"digits.{kind}").stat().st_size > 10_000


@pytest.mark.usefixtures("quick_demo")
def test_a_picture_that_cannot_be_written_is_one_line_and_exit_code_2(treering_command: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("in the way")
    done = treering_command("demo", "--out", tmp_path / "file" / "inside")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert done.err.startswith("treering: cannot write to ")
    assert str(tmp_path / "file" / "inside") in done.err
    assert "Not a directory" in done.err
    assert "Traceback" not in done.out + done.err


def test_the_version_is_printed(treering_command: Any) -> None:
    done = treering_command("--version")
    assert (done.code, done.out, done.err) == (0, f"treering {treering.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["juggle"], r"'juggle'.*\(see `treering --help`\)"),
        (["lern", "model", "photos"], r"'lern'. Did you mean 'learn'\?.*\(see `treering --help`\)"),
        (["learn", "model"], r"(?i:'folder') \(see `treering learn --help`\)"),
        (["learn", "model", "photos", "--memory"], r"'--memory' requires an argument"),
        (["demo", "--colour", "red"], r"--colour.*\(see `treering demo --help`\)"),
        (["demo", "--order", "-1"], r"'--order'.*\(see `treering demo --help`\)"),
        (["demo", "--order", "99999999999"], r"'--order'.*\(see `treering demo --help`\)"),
        (["demo", "--order", "first"], r"'--order'.*\(see `treering demo --help`\)"),
        (["demo", "now"], r"now.*\(see `treering demo --help`\)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_is_exit_code_2_and_one_line_that_names_what_is_wrong(
    treering_command: Any, arguments: list[str], said: str
) -> None:
    done = treering_command(*arguments)
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(rf"treering: .*{said}\n", done.err)


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), ([], 2)], ids=["asked for", "without a command"])
def test_help_names_the_commands(treering_command: Any, arguments: list[str], code: int) -> None:
    done = treering_command(*arguments)
    assert done.code == code
    assert "demo" in done.out
    assert "without forgetting" in done.out


def test_errors_are_printed_as_they_are_in_one_line(treering_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    message = "[bold]no[/bold] markup " + "and no wrapping " * 20

    def fail(*args: Any) -> None:
        raise TreeringError(message)

    monkeypatch.setattr(demo, "run", fail)
    done = treering_command("demo")
    assert (done.code, done.out, done.err) == (2, "", f"treering: {message}\n")


def test_an_interrupted_command_has_the_exit_code_of_an_interruption(
    treering_command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupt)
    done = treering_command("demo")
    assert (done.code, done.err) == (130, "treering: interrupted\n")


def test_the_module_is_the_command() -> None:
    path = str(Path(treering.__file__).parents[1])
    run = subprocess.run(
        [sys.executable, "-m", "treering", "--version"],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, f"treering {treering.__version__}\n", "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "treering: out of memory: close other programs and try again\n"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes. Error code 12"),
            "treering: out of memory: close other programs and try again\n",
        ),
        (RuntimeError("CUDA out of memory."), "treering: out of memory: close other programs and try again\n"),
        (OSError(28, "No space left on device", "some/where"), "treering: some/where: No space left on device\n"),
        (OSError(28, "No space left on device"), "treering: the output: No space left on device\n"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, said: str
) -> None:
    def fail(**settings: Any) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert capsys.readouterr().err == said
