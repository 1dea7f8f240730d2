"""An unfinished step as tensors and plain facts, so that a file can hold it until it is resumed.

Whoever goes on from such a file trusts the training that it tells of. So the file has a seal, which only the user who
wrote it can make on the same computer. It is also checked as far as it can be: no training is longer than the recipe's,
and all tensors are those of the network.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from treering import words
from treering.checked import Checked, brief, parse_json, require
from treering.core.trainer import FitState, InFlight
from treering.recipe import Schedule
from treering.runtime import files
from treering.storage import tensors as stored
from treering.storage import user_key
from treering.storage.tensors import Spec

logger = words.logger(__name__)

LARGEST = 2**34
"""The most bytes of the state of a run, which holds its exemplars too."""


@dataclass(frozen=True)
class Fits(Checked):
    """The number and the epoch of each `fit` in an unfinished step."""

    current: tuple[int, ...] | None = None
    previous: tuple[int, ...] | None = None

    def _check_ranges(self) -> None:
        for name in ("current", "previous"):
            fit = getattr(self, name)
            require(
                fit is None or (len(fit) == 2 and min(fit) >= 0), f"{name} must be two numbers from 0, not {brief(fit)}"
            )
        if self.current is None or self.current[0] == 0:
            require(self.previous is None, "previous must be left out, since no training is before the first")
        else:
            require(
                self.previous is not None and self.previous[0] == self.current[0] - 1,
                "previous must be the training before the current one",
            )


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
    """Return the unfinished step that `pack` was given; raise ValueError if it gave other things."""
    states = {}
    for name, fit in vars(Fits.of(fits, "fits.")).items():
        if fit is None:
            continue
        number, epoch = fit
        parts = unprefixed(name, tensors)
        if not {"momenta", "generator"} <= parts.keys():
            raise ValueError(f"its {name} training is not complete")
        momentum, generator = parts.pop("momenta"), parts.pop("generator")
        stored.require_generator_state(generator.flatten().view(torch.uint8).numpy().tobytes())
        states[name] = FitState(number, epoch, parts, momentum, generator)
    return InFlight(states["current"], states.get("previous")) if states else None


def require_fits(
    in_flight: InFlight, schedules: Sequence[Schedule], expected: Mapping[str, Spec], momenta: int
) -> None:
    """Raise ValueError unless an unfinished step can be of these trainings and of a network with these tensors.

    `momenta` is the number of values that the optimiser remembers.
    """
    for name, state in (("current", in_flight.current), ("previous", in_flight.previous)):
        if state is None:
            continue
        if state.number >= len(schedules):
            raise ValueError(f"its {name} training is one that the step does not have")
        epochs = schedules[state.number].epochs
        if not (1 if name == "current" else epochs) <= state.epoch <= epochs:
            raise ValueError(f"its {name} training tells of {state.epoch} epochs, where the recipe has {epochs}")
        stored.require_alike({name: Spec.of(tensor) for name, tensor in state.tensors.items()}, expected)
        if Spec.of(state.momentum) != Spec(torch.float32, (momenta,)):
            raise ValueError("its momentum is of another network")
        if state.generator.dtype != torch.uint8 or state.generator.ndim != 1:
            raise ValueError("its random state is damaged")


def to_bytes(tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> bytes:
    """Return the content of a safetensors file with these tensors, these facts, a checksum and the user's seal."""
    content = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    checksum = _checksum(content, facts)
    try:
        seal = user_key.sealed(checksum.encode())
    except OSError as error:
        seal = ""
        _warn_once(str(error.filename or "the user's state folder"), str(error.strerror or error))
    metadata = {"facts": json.dumps(facts), "checksum": checksum, "seal": seal}
    return safetensors.torch.save(content, metadata)


@functools.cache
def _warn_once(where: str, reason: str) -> None:
    logger.warning("no key can be kept in %s (%s): after an interruption the step begins anew", where, reason)


def read(file: Path, most: int = LARGEST) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and facts that `to_bytes` was given; other files raise OSError or ValueError.

    The tensors are read once the header accounts for them, and if they and it have `most` bytes or fewer.
    """
    with os.fdopen(files.opened(file, through_links=False), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most:
            raise ValueError(f"it has more than {most:,} bytes, which it cannot need")
        length = stream.read(8)
        start = length + stream.read(min(int.from_bytes(length, "little"), stored.LARGEST_HEADER))
        stored.header(start, size)
        return parse(start + stream.read(size - len(start)))


def parse(content: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and facts in the content of a file; raise ValueError if it is not one that `to_bytes` gave."""
    header = stored.header(content)
    metadata = header.metadata
    if not {"facts", "checksum"} <= metadata.keys():
        raise ValueError("it holds no unfinished step")
    tensors, facts = stored.load(content, header), parse_json(metadata["facts"].encode("utf-8", "surrogatepass"))
    if not isinstance(facts, dict):
        raise ValueError("its facts are no table")
    if metadata["checksum"] != _checksum(tensors, facts):
        raise ValueError("its checksum differs")
    _require_seal(metadata["checksum"], metadata.get("seal", ""))
    return tensors, facts


def _require_seal(checksum: str, seal: str) -> None:
    try:
        own = user_key.is_sealed(checksum.encode(), seal)
    except OSError as error:
        raise ValueError(f"there is no key to tell whose it is: {error.strerror or error}") from None
    if not own:
        raise ValueError("it was made by another user or on another computer")


def _checksum(tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode("utf-8", "surrogatepass"))
        digest.update(tensors[name].flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with this prefix before their names."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def unprefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names have this prefix, without it."""
    return {name[len(prefix) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")}
