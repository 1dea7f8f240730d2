"""The kernels of `update`: norms of weight tensors, then noise, decay, momentum and descent, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_squares(values, begins, sizes, groups, head_of_class, squares, TENSORS: tl.constexpr, BLOCK: tl.constexpr):
    """Add the squared norm of a piece of the parameters to that of its group; a head's row is in its head's group."""
    piece, inside = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(values + tl.load(begins + piece) + inside, mask=inside < tl.load(sizes + piece), other=0.0)
    group = tl.load(groups + piece)
    if group > TENSORS:
        group = TENSORS + 1 + tl.load(head_of_class + group - TENSORS - 1).to(tl.int32)
    tl.atomic_add(squares + group, tl.sum(value * value, 0), sem="relaxed")


@triton.jit
def update(
    values,
    momenta,
    gradient,
    noise,
    groups,
    head_of_class,
    squares,
    lr,
    deviation,
    count,
    momentum,
    decay,
    TENSORS: tl.constexpr,
    NOISY: tl.constexpr,
    BY_NORM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Apply noise, decay, momentum and descent to each parameter."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < count
    value, change = tl.load(values + at, mask=real, other=0.0), tl.load(gradient + at, mask=real, other=0.0)
    if NOISY:
        change += tl.load(deviation) * tl.load(noise + at, mask=real, other=0.0)
    group = tl.load(groups + at, mask=real, other=0)
    factor = tl.where(group > 0, decay, 0.0)
    if BY_NORM:
        row = group - TENSORS - 1
        head = tl.load(head_of_class + row, mask=row >= 0, other=0).to(tl.int32)
        factor *= tl.load(squares + tl.where(row >= 0, TENSORS + 1 + head, group))
    change += factor * value
    speed = momentum * tl.load(momenta + at, mask=real, other=0.0) + change
    tl.store(momenta + at, speed, mask=real)
    tl.store(values + at, value - tl.load(lr) * speed, mask=real)
