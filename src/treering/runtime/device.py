"""The device to train on, found by its name."""

from __future__ import annotations

import re

import torch

from treering.errors import TreeringError


def find_device(name: str) -> torch.device:
    """Return the device of this name; "auto" is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("it has no GPU")
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError("treering supports CPUs and CUDA GPUs")
        torch.Generator(device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = re.split(r"[.\n]", str(error))[0]
        reason = "there is no such device" if reason.startswith("Expected one of") else reason
        raise TreeringError(f"device {name!r} cannot be used here ({reason}): choose auto, cpu or cuda") from None
    if device.type == "cuda" and device.index:
        raise TreeringError(
            f"device {name!r}: treering trains on the first GPU; CUDA_VISIBLE_DEVICES chooses which that is"
        )
    return device


def describe(device: torch.device) -> str:
    """Return the name of a GPU, or "CPU"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
