"""Training images per second of the engine, one run and several at once, beside a plain PyTorch loop.

    python benchmarks/throughput.py [--at-once 1 2 4 8] [--epochs 3] [--images 60000] [--out FILE.json]

All in one process on one GPU: ResNet-32, 32 x 32 images, batch 128, 100 classes in ten heads, as in a late step of
CIFAR-100. The plain loop is what most code does: a DataLoader with persistent workers, pinned memory, eager, float32.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from treering import methods
from treering.core import backbones
from treering.core.update import TrainingSet, batch_plan
from treering.methods import Method
from treering.recipe import Recipe, Schedule
from treering.runtime.commit import current_commit
from treering.runtime.device import find_device

CLASSES, HEADS, SHAPE = 100, 10, (3, 32, 32)


def training_set(images: int, device: torch.device) -> TrainingSet:
    """Random images: what they show does not matter for speed, that they differ does."""
    generator = torch.Generator(device).manual_seed(0)
    pixels = torch.randint(0, 256, (images, *SHAPE), dtype=torch.uint8, device=device, generator=generator)
    labels = torch.randint(0, CLASSES, (images,), device=device, generator=generator)
    targets = torch.rand(images, CLASSES, device=device, generator=generator) / CLASSES
    return TrainingSet(pixels, labels, targets)


def method(seed: int, images: int, device: torch.device) -> Method:
    """EEIL with ten heads, captured and ready."""
    made = methods.create(Recipe(), backbones.build("resnet32", SHAPE[0], seed), torch.zeros(SHAPE), seed, device)
    for _ in range(HEADS):
        made.network.add_head(CLASSES // HEADS, made.generator)
    made.trainer.prepare(images, SHAPE)
    return made


def engine(at_once: int, epochs: int, data: TrainingSet) -> float:
    """Images per second of `at_once` runs, a stream and a thread each."""
    device, count = data.images.device, len(data.images)
    threads = []
    for index in range(at_once):
        stream = torch.cuda.Stream() if device.type == "cuda" else None
        if stream:
            stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            made = method(index, count, device)

        def work(made: Method = made, stream: torch.cuda.Stream | None = stream) -> None:
            with torch.cuda.stream(stream):
                made.trainer.fit("training", data, Schedule(epochs, 0.01))

        threads.append(threading.Thread(target=work))
    if device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batch_size, batches = batch_plan(count, Recipe().optimizer)
    return at_once * epochs * batches * batch_size / (time.perf_counter() - begin)


def updates_alone(data: TrainingSet) -> float:
    """Images per second of the captured updates of one epoch and nothing else, the most that one run could reach."""
    device, count = data.images.device, len(data.images)
    batch_size, batches = batch_plan(count, Recipe().optimizer)
    made = method(0, count, device)
    made.network.train()
    update = made.trainer.batch_update(data, batch_size)
    update.optimizer.start_epoch(0.01, 1, batch_size)
    seconds = 0.0
    for _ in range(2):  # the first warms up
        update.start_epoch(torch.randperm(count, device=device).repeat(2)[: batches * batch_size])
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(batches):
            update()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    return batches * batch_size / seconds


def plain_loop(data: TrainingSet, batches: int, workers: int) -> float:
    """Images per second of an ordinary training loop with the same network, batch and data."""
    device = data.images.device
    network = nn.Sequential(backbones.build("resnet32", SHAPE[0], 0), nn.Linear(64, CLASSES)).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    dataset = TensorDataset(data.images.cpu(), data.labels.cpu())
    loader = DataLoader(
        dataset,
        128,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
    )
    done, begin = 0, 0.0
    while True:
        for pixels, labels in loader:
            loss = F.cross_entropy(
                network(pixels.to(device, non_blocking=True).float() / 255), labels.to(device, non_blocking=True)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done == batches // 4:  # the first quarter warms up
                loss.item()
                begin = time.perf_counter()
            if done == batches:
                loss.item()
                return 128 * (batches - batches // 4) / (time.perf_counter() - begin)


def at_least(least: int) -> Callable[[str], int]:
    """A type of options: whole numbers from `least` on."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return number


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=at_least(1), nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--epochs", type=at_least(1), default=3)
    parser.add_argument("--images", type=at_least(128), default=60_000)
    parser.add_argument("--batches", type=at_least(4), default=400, help="of the plain loop")
    parser.add_argument("--workers", type=at_least(0), default=8, help="of the plain loop")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = find_device("auto")
    data = training_set(options.images, device)
    plain = plain_loop(data, options.batches, options.workers)
    print(f"{'plain PyTorch loop':22} {plain:10,.0f} images/s")  # noqa: T201
    record: dict[str, Any] = {
        "benchmark": "throughput",
        "commit": current_commit(),
        "torch": torch.__version__,
        "plain": plain,
    }
    record["device"] = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    begin = time.perf_counter()
    engine(1, 1, data)
    record["seconds_of_first_compilation_and_epoch"] = time.perf_counter() - begin
    most = record["updates_alone"] = updates_alone(data)
    print(f"{'updates alone':22} {most:10,.0f} images/s")  # noqa: T201
    for count in options.at_once:
        rate = record[f"{count} at once"] = engine(count, options.epochs, data)
        line = f"{f'engine, {count} at once':22} {rate:10,.0f} images/s  {rate / plain:5.1f} x plain"
        outside = f"  {1 - rate / most:6.2%} outside the updates" if count == 1 else ""
        print(line + outside)  # noqa: T201
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
