"""How many threads compute and read files, and that those that wait leave the cores to others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import examples, tiny_learner
from photo_helper import command, write_photos

from treering.images import files
from treering.runtime import threads


@pytest.fixture(autouse=True)
def undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limits end with the test."""
    monkeypatch.setattr(threads, "_most", None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which puts it back, even if it was not set
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["predict", "evaluate"])
@pytest.mark.parametrize("count", [1, 3])
def test_the_option_limits_computing_and_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, count: int
) -> None:
    tiny_learner(backbone="small").partial_fit(*examples({"cat": 4, "dog": 4})).save(tmp_path / "model")
    photos = write_photos(tmp_path / "photos", {"cat": 3, "dog": 3})
    monkeypatch.setattr(files, "WORKERS", 2)
    pools: list[int] = []
    pool = files.ThreadPoolExecutor
    monkeypatch.setattr(files, "ThreadPoolExecutor", lambda workers: (pools.append(workers), pool(workers))[1])
    assert command(name, tmp_path / "model", photos, "--device", "cpu", "--threads", count).code == 0
    assert torch.get_num_threads() == count
    assert set(pools) == {min(2, count)}


def test_a_number_that_makes_no_sense_is_one_line(tmp_path: Path) -> None:
    command("learn", tmp_path / "model", tmp_path, "--threads", "0").refused("--threads")


def environment(code: str, **given: str) -> list[str]:
    """What a new process prints after the command line's entry has run."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    program = "import os, sys; from treering import cli; sys.argv = ['treering', '--version']\ntry:\n    cli.main()\n"
    program += f"except SystemExit:\n    {code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=plain | given)
    assert done.returncode == 0, done
    return done.stdout.splitlines()[1:]


def test_threads_that_wait_sleep_soon_unless_the_user_says_otherwise() -> None:
    code = "print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    assert environment(code) == [f"{threads.SPINS} False"]
    assert environment(code, GOMP_SPINCOUNT="7") == ["7 False"]
    assert environment(code, OMP_WAIT_POLICY="ACTIVE") == ["None False"]


def test_a_limit_counts_for_pytorch_that_is_loaded_later() -> None:
    code = "from treering.runtime import threads; threads.limit(1); import torch; print(torch.get_num_threads())"
    assert environment(code) == ["1"]
