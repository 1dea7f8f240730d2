"""The kernel of `loss`: the cross-distilled loss of each image and the gradient of its logits, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _joined(head_a, largest_a, powers_a, targets_a, head_b, largest_b, powers_b, targets_b):
    """Join two neighbouring runs of columns: return the last head of the second, its largest logit and its sums."""
    same = head_a == head_b
    largest = tl.where(same, tl.maximum(largest_a, largest_b), largest_b)
    powers_a = tl.where(same, powers_a * tl.exp(tl.where(same, largest_a - largest, 0.0)), 0.0)
    powers = powers_a + powers_b * tl.exp(largest_b - largest)
    return head_b, largest, powers, tl.where(same, targets_a, 0.0) + targets_b


@triton.jit
def _loaded(logits, head_of_class, targets, column, real, temperature):
    """Load a block of columns: return logit, head, target, and the logit / temperature that distillation uses."""
    logit = tl.load(logits + column, mask=real, other=-float("inf"))
    head = tl.load(head_of_class + column, mask=real, other=-1).to(tl.int32)
    target = tl.load(targets + column, mask=real, other=0.0)
    return logit, head, target, tl.where(real, logit, 0.0) / temperature


@triton.jit
def _scanned(head, scaled, target, inside, before, BLOCK: tl.constexpr, REVERSE: tl.constexpr):
    """Return head, largest logit, sum of powers and of targets up to each column, and the last column's as a tuple."""
    run = (head, scaled, tl.full([BLOCK], 1.0, tl.float32), target)
    head, largest, powers, targets = tl.associative_scan(run, 0, _joined, reverse=REVERSE)
    head, largest, powers, targets = _joined(before[0], before[1], before[2], before[3], head, largest, powers, targets)
    last = inside == (0 if REVERSE else BLOCK - 1)
    behind = (
        tl.sum(tl.where(last, head, 0), 0),
        tl.sum(tl.where(last, largest, 0.0), 0),
        tl.sum(tl.where(last, powers, 0.0), 0),
        tl.sum(tl.where(last, targets, 0.0), 0),
    )
    return head, largest, powers, targets, behind


@triton.jit
def cross_distilled(
    logits,
    labels,
    targets,
    head_of_class,
    losses,
    gradient,
    sums,
    temperature,
    rows,
    columns,
    BLOCK: tl.constexpr,
):
    """The cross-distilled loss of an image, and the gradient of the mean loss for its logits.

    A head is a run of columns, and its softmax needs a sum over all of them. The row is scanned forwards, which leaves
    in `sums` the sums over each column's head up to that column, and then backwards, which adds the rest of the head.
    """
    row, inside = tl.program_id(0), tl.arange(0, BLOCK)
    blocks = (columns + BLOCK - 1) // BLOCK
    logits, targets = logits + row * columns, targets + row * columns
    gradient, sums = gradient + row * columns, sums + row * columns
    powers_sums, wanted_sums = sums + rows * columns, sums + 2 * rows * columns

    largest_of_row, powers_of_row = -float("inf"), 0.0
    nothing = (-2, 0.0, 0.0, 0.0)
    before = nothing
    for block in range(blocks):
        column = block * BLOCK + inside
        real = column < columns
        logit, head, target, scaled = _loaded(logits, head_of_class, targets, column, real, temperature)
        larger = tl.maximum(largest_of_row, tl.max(logit, 0))
        powers_of_row = powers_of_row * tl.exp(largest_of_row - larger) + tl.sum(tl.exp(logit - larger), 0)
        largest_of_row = larger
        _, largest, powers, wanted, before = _scanned(head, scaled, target, inside, before, BLOCK, False)
        tl.store(sums + column, largest, mask=real)
        tl.store(powers_sums + column, powers, mask=real)
        tl.store(wanted_sums + column, wanted, mask=real)
    tl.debug_barrier()  # the backward scan reads what other threads have stored

    label = tl.load(labels + row).to(tl.int32)
    loss = tl.log(powers_of_row) + (largest_of_row - tl.load(logits + label))
    before = nothing
    for behind in range(blocks):
        column = (blocks - 1 - behind) * BLOCK + inside
        real = column < columns
        logit, head, target, scaled = _loaded(logits, head_of_class, targets, column, real, temperature)
        head, largest, powers, wanted, before = _scanned(head, scaled, target, inside, before, BLOCK, True)
        left = column - 1
        inner = real & (left >= 0)
        _, largest, powers, wanted = _joined(
            tl.load(head_of_class + left, mask=inner, other=-3).to(tl.int32),
            tl.load(sums + left, mask=inner, other=0.0),
            tl.load(powers_sums + left, mask=inner, other=0.0),
            tl.load(wanted_sums + left, mask=inner, other=0.0),
            head,
            largest,
            powers,
            wanted,
        )
        log_share = scaled - largest - tl.log(powers)
        loss -= tl.sum(target * log_share, 0)
        change = tl.exp(logit - largest_of_row) / powers_of_row - tl.where(column == label, 1.0, 0.0)
        change += (wanted * tl.exp(log_share) - target) / temperature
        tl.store(gradient + column, change / rows, mask=real)
    tl.store(losses + row, loss)
