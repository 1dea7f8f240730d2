"""Time of an update by one batch and of an evaluation, and peak memory, as the number of heads grows.

    python benchmarks/scaling.py [--heads 1 10 100 1000] [--backbone resnet32] [--out FILE.json]

Heads of ten classes each, batch 128, 32 x 32 images; the median of many updates. Each number of heads has a process of
its own, so that its peak memory holds nothing of the others.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from treering import methods
from treering.core import backbones
from treering.core.update import TrainingSet
from treering.recipe import Recipe
from treering.runtime.commit import current_commit
from treering.runtime.device import find_device

CLASSES_PER_HEAD, IMAGES, SHAPE = 10, 1280, (3, 32, 32)


def measure(heads: int, backbone: str, updates: int, device: torch.device) -> dict[str, float]:
    """Milliseconds of an update and of an evaluation of `IMAGES` images, and peak memory."""
    cuda = device.type == "cuda"
    made = methods.create(Recipe(), backbones.build(backbone, SHAPE[0], 0), torch.zeros(SHAPE), 0, device)
    made.network.reserve(heads * CLASSES_PER_HEAD)
    for _ in range(heads):
        made.network.add_head(CLASSES_PER_HEAD, made.generator)
    classes = made.network.classes
    data = TrainingSet(
        torch.randint(0, 256, (IMAGES, *SHAPE), dtype=torch.uint8, device=device),
        torch.randint(0, classes, (IMAGES,), device=device),
        torch.rand(IMAGES, classes, device=device) / classes,
    )
    made.network.train()
    update = made.trainer.batch_update(data, 128)
    update.optimizer.start_epoch(0.01, 1, 128)

    def clocked(action: Any) -> float:
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        action()
        if cuda:
            torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - begin)

    times = []
    for number in range(updates + 10):
        if number % (IMAGES // 128) == 0:
            update.start_epoch(torch.randperm(IMAGES, device=device))
        times.append(clocked(update))
    made.network.eval()
    evaluation = [clocked(lambda: made.network.predict_logits(data.images)) for _ in range(5)]
    peak = torch.cuda.max_memory_allocated() / 2**20 if cuda else float("nan")
    return {
        "update_ms": statistics.median(times[10:]),
        "evaluation_ms": statistics.median(evaluation),
        "peak_MiB": peak,
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--backbone", default="resnet32")
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = find_device("auto")
    record: dict[str, Any] = {"benchmark": "scaling", "commit": current_commit(), "torch": torch.__version__}
    record["device"] = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    first = 0.0
    for heads in options.heads:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            row = process.submit(measure, heads, options.backbone, options.updates, device).result()
        record[f"{heads} heads"] = row
        first = first or row["update_ms"]
        print(  # noqa: T201
            f"{heads:5} heads: update {row['update_ms']:8.3f} ms ({row['update_ms'] / first:.2f} x), "
            f"evaluation of {IMAGES} images {row['evaluation_ms']:8.2f} ms, peak {row['peak_MiB']:,.0f} MiB"
        )
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
