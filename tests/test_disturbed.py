"""Short forms of two benchmarks: file operations that fail, and results and states that were changed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def findings(script: str, out: Path, *options: str) -> dict[str, Any]:
    """What a benchmark has found."""
    command = [sys.executable, BENCHMARKS / script, *options, "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "strace cannot attach" in done.stderr:
        pytest.skip(done.stderr)
    assert out.exists(), done.stderr
    return json.loads(out.read_text())


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_after_any_failed_file_operation_the_old_or_the_new_model_is_whole_and_what_is_said_is_true(
    tmp_path: Path,
) -> None:
    found = findings("faults.py", tmp_path / "found.json", "--commands", "save", "undo", "merge", "--every", "40")
    assert found.keys() == {"save", "undo", "merge"}
    for name, facts in found.items():
        assert facts["trials"] > 10, name
        assert facts["violations"] == []


def test_changed_results_and_states_are_used_or_refused_in_one_line(tmp_path: Path) -> None:
    found = findings("fuzz_results.py", tmp_path / "found.json", "--results", "25", "--states", "20", "--seed", "7")
    for name in ("results", "states of runs", "states of learns"):
        assert found[name]["trials"] >= 10
        assert found[name]["findings"] == []
