"""A few hundred hostile photos: the short form of benchmarks/fuzz_photos.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "benchmarks" / "fuzz_photos.py"


@pytest.mark.skipif(sys.platform != "linux", reason="memory and programs are watched by Linux's means")
def test_hostile_photos_become_pixels_or_a_reason(tmp_path: Path) -> None:
    pytest.importorskip("pillow_heif")
    out = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, FUZZ, "--photos", "400", "--seed", "7", "--out", out], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    assert (record["photos"], record["findings"]) == (400, [])
    outcomes = [set(found) for found in record["outcomes"].values()]
    assert set.union(*outcomes) == {"pixels", "reason"}
