"""Changes of results and of states of unfinished steps, as accidents and strangers make them."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import torch

from treering.experiments import stored
from treering.storage import resume

HOSTILE: list[Any] = [
    *(None, True, -1, 0, 1, 2**31, 2**63, 10**400, -0.0, 1e308, 0.5, float("nan"), float("inf"), "", "\x1b[31m\u202e"),
    *(
        "x" * 10_000,
        "../../x",
        "\x00",
        "\udc80",
        "NaN",
        [],
        [[]],
        [None],
        [[1.0]],
        {},
        {"a": {}},
        [0] * 1000,
        [1e9] * 3,
    ),
]


def mutated_bytes(content: bytes, draw: random.Random) -> bytes:
    """Change some bytes."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 3, 20))):
        at = draw.randrange(len(changed) + 1)
        kind = draw.randrange(6)
        if kind == 0 and changed:
            changed[at % len(changed)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            changed[at:at] = draw.randbytes(draw.choice((1, 8, 300)))
        elif kind == 2:
            del changed[at : at + draw.choice((1, 8, 300))]
        elif kind == 3:
            del changed[at:]
        elif kind == 4:
            changed[at:at] = changed[at : at + 100]
        else:
            changed[at : at + 1] = draw.choice(
                (b"[" * 1000, b"9" * 5000, b"\xff", b"\x00", b"\x1b[31m", b"{", b'"', b"-")
            )
    return bytes(changed)


def mutated_value(value: Any, draw: random.Random) -> Any:
    """Change something somewhere in the value of a JSON file."""
    if draw.random() < 0.25 or not value or not isinstance(value, dict | list):
        return draw.choice(HOSTILE)
    if isinstance(value, dict):
        name = draw.choice(list(value))
        if draw.random() < 0.2:
            return {key: item for key, item in value.items() if key != name}
        return value | {draw.choice((name, name, name, "\x1b\u202e")): mutated_value(value[name], draw)}
    at = draw.randrange(len(value))
    kept = draw.choice(([], value[: at + 1], [*value[:at], mutated_value(value[at], draw), *value[at + 1 :]]))
    return [*kept, *value] if draw.random() < 0.1 else kept


def mutated_result(content: bytes, draw: random.Random) -> bytes:
    """Change a result file, with or without a right checksum."""
    if draw.random() < 0.3:
        return mutated_bytes(content, draw)
    result = {name: value for name, value in json.loads(content).items() if name != "checksum"}
    name = draw.choice(list(result))
    changed = result | {name: mutated_value(result[name], draw)}
    if draw.random() < 0.1:
        del changed[name]
    if draw.random() < 0.3:
        with contextlib.suppress(ValueError):
            changed["checksum"] = stored.checksum(changed)
    with contextlib.suppress(ValueError, UnicodeEncodeError):
        return json.dumps(changed).encode()
    return b"{}"


def mutated_state(content: bytes, draw: random.Random) -> tuple[bytes, bool]:
    """Change the state of an unfinished step; also return whether its checksum was made anew."""
    size = int.from_bytes(content[:8], "little")
    header, rest = json.loads(content[8 : 8 + size]), content[8 + size :]
    kind = draw.randrange(5)
    if kind == 0:
        return mutated_bytes(content, draw), False
    if kind == 1:  # in the part before the tensors
        return content[:8] + mutated_bytes(content[8 : 8 + size], draw) + rest, False
    if kind == 2:
        packed = json.dumps(mutated_value(header, draw)).encode("utf-8", "surrogatepass")
        return len(packed).to_bytes(8, "little") + packed + rest, False
    facts, tensors = json.loads(header["__metadata__"]["facts"]), _tensors(header, rest)
    if kind == 3:
        facts = mutated_value(facts, draw)
    else:
        name = draw.choice(list(tensors))
        tensors[name] = draw.choice((_other_numbers, _other_shape, _other_kind))(tensors[name])
    try:
        return resume.to_bytes(tensors, facts), True
    except (ValueError, TypeError, RuntimeError):
        return b"", False


def _tensors(header: dict[str, Any], rest: bytes) -> dict[str, torch.Tensor]:
    kinds = {"F32": torch.float32, "U8": torch.uint8, "I64": torch.int64, "F64": torch.float64}
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            numbers = bytearray(rest[start:end])
            flat = torch.frombuffer(numbers, dtype=kinds[entry["dtype"]]) if numbers else torch.zeros(0)
            found[name] = flat.view(entry["shape"])
    return found


def _other_numbers(tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone()
    if tensor.numel():
        changed.view(-1)[0] = float("nan") if tensor.is_floating_point() else 255
    return changed


def _other_shape(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten()[:-1].clone()


def _other_kind(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64 if tensor.dtype == torch.float32 else torch.float32)
