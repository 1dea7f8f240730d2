"""An unfinished step as tensors and plain facts, so that a file can hold it until it is resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from treering.core.trainer import FitState, InFlight


def pack(in_flight: InFlight | None) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """Return the tensors of an unfinished step by name, and the number and epoch of each `fit` in it."""
    tensors: dict[str, Tensor] = {}
    fits = {}
    for name in ("current", "previous"):
        state: FitState | None = getattr(in_flight, name, None)
        if state is not None:
            tensors |= prefixed(name, state.tensors)
            tensors |= {f"{name}.momenta": state.momentum, f"{name}.generator": state.generator}
            fits[name] = [state.number, state.epoch]
    return tensors, fits


def unpack(tensors: Mapping[str, Tensor], fits: Mapping[str, Any]) -> InFlight | None:
    """Return the unfinished step that `pack` was given."""
    states = {}
    for name, (number, epoch) in fits.items():
        parts = unprefixed(name, tensors)
        momentum, generator = parts.pop("momenta"), parts.pop("generator")
        states[name] = FitState(number, epoch, parts, momentum, generator)
    return InFlight(states["current"], states.get("previous")) if states else None


def to_bytes(tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> bytes:
    """Return the content of a safetensors file with these tensors, these facts and a checksum."""
    content = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(content, {"facts": json.dumps(facts), "checksum": _checksum(content, facts)})


def read(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and facts that `to_bytes` was given; a file with other content raises any kind of error."""
    with safetensors.safe_open(file, "pt") as stream:
        metadata = stream.metadata()
        # Tensors are copied, since those that map the file would keep Windows from replacing it.
        tensors = {name: stream.get_tensor(name).clone() for name in stream.keys()}  # noqa: SIM118  # not a dict
    facts = json.loads(metadata["facts"])
    if metadata["checksum"] != _checksum(tensors, facts):
        raise ValueError("its checksum differs")
    return tensors, facts


def _checksum(tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with this prefix before their names."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def unprefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names have this prefix, without it."""
    return {name[len(prefix) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")}
