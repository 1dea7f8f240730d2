"""Results for the tests of reports: small, made by hand, in the form of the result files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def result(**changes: Any) -> dict[str, Any]:
    """A run of three steps of two classes, and whatever differs."""
    made: dict[str, Any] = {
        "method": "eeil",
        "dataset": "birds",
        "classes_per_step": 2,
        "memory": {"kind": "total", "size": 60},
        "selection": "herding",
        "order": 0,
        "seed": 0,
        "accuracy": [90.0, 80.0, 70.0],
        "top5": [100.0, 99.0, 98.0],
        "average_without_first": 75.0,
        "average": 80.0,
        "task_aware_accuracy": [90.0, 88.0, 86.0],
        "seconds": 90.0,
        "images_per_second": 1000.0,
        "device": "NVIDIA H200",
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "recipe": {"method": "eeil"},
        "class_order": ["wren", "robin", "blue tit", "crane", "owl", "swift"],
        "class_accuracy": [
            [100.0, 80.0],
            [90.0, 70.0, 80.0, 80.0],
            [80.0, 40.0, 70.0, 70.0, 80.0, 80.0],
        ],
        "confusion": [
            [8, 2, 0, 0, 0, 0],
            [0, 4, 0, 0, 0, 6],
            [0, 0, 7, 3, 0, 0],
            [0, 0, 3, 7, 0, 0],
            [0, 0, 0, 0, 8, 2],
            [0, 0, 0, 0, 2, 8],
        ],
    }
    return made | changes


def cifar(average: float, **changes: Any) -> dict[str, Any]:
    """A run in the paper's setting, ten classes per step with 2000 exemplars, without the details of its classes."""
    steps = 10
    same = {
        "dataset": "cifar100",
        "classes_per_step": 10,
        "memory": {"kind": "total", "size": 2000},
        "accuracy": [average] * steps,
        "top5": [average] * steps,
        "average_without_first": average,
        "average": average,
        "task_aware_accuracy": [average] * steps,
        "class_accuracy": None,
        "class_order": None,
        "confusion": None,
    }
    return result(**(same | changes))


def save(folder: Path, *results: dict[str, Any]) -> Path:
    """Write the results as files; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, made in enumerate(results):
        (folder / f"run-{index}.json").write_text(json.dumps(made), encoding="utf-8")
    return folder
