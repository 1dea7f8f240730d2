"""An unfinished step as tensors and plain facts, so that it can be written to a file and gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from treering.trainer import FitState, InFlight


def pack(in_flight: InFlight | None) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """Tensors by name, and number and epoch of each training."""
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
    """What `pack` was given."""
    states = {}
    for name, (number, epoch) in fits.items():
        parts = unprefixed(name, tensors)
        momentum, generator = parts.pop("momenta"), parts.pop("generator")
        states[name] = FitState(number, epoch, parts, momentum, generator)
    return InFlight(states["current"], states.get("previous")) if states else None


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same under longer names."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def unprefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those with this prefix, under their own names."""
    return {name[len(prefix) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")}
