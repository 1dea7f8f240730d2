"""GPU kernels, in Triton, for residual networks with few channels: 3 x 3 convolutions fused with batch normalisation.

The libraries' convolutions take most of a training step where channels are as few as 16. Here a convolution also sums
up the statistics that its normalisation needs, going forward and going backward, which saves the passes for them.

Activations are rows, one per pixel (image, row, column) with a column per channel; images are square,
numbers of channels powers of two. Weights lie as output, tap (the nine places of a 3 x 3 kernel), input. Sums are
float32; several programs add to them in any order, so the last bits differ from one launch to the next.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _source_pixel(pixel, tap, SIDE: tl.constexpr, SOURCE_SIDE: tl.constexpr, STRIDE: tl.constexpr, BACK: tl.constexpr):
    """The pixel that `tap` connects `pixel` with, and whether there is one: from output to input, or `BACK`."""
    image, row, column = pixel // (SIDE * SIDE), pixel // SIDE % SIDE, pixel % SIDE
    if BACK:
        # Output pixel o takes input pixel o * STRIDE + tap - 1.
        row, column = row + 1 - tap // 3, column + 1 - tap % 3
        inside = (row >= 0) & (column >= 0)
        if STRIDE == 2:
            inside = inside & (row % 2 == 0) & (column % 2 == 0)
            row, column = row // 2, column // 2
    else:
        row, column = row * STRIDE + tap // 3 - 1, column * STRIDE + tap % 3 - 1
        inside = (row >= 0) & (column >= 0)
    inside = inside & (row < SOURCE_SIDE) & (column < SOURCE_SIDE)
    return (image * SOURCE_SIDE + row) * SOURCE_SIDE + column, inside


@triton.jit
def _convolved(
    source,
    weight,
    pixel,
    valid,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SIDE: tl.constexpr,
    SOURCE_SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    BACK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sum over the nine taps for each of `BLOCK` pixels: BLOCK x OUTPUTS or, going `BACK`, BLOCK x INPUTS."""
    FROM: tl.constexpr = OUTPUTS if BACK else INPUTS
    TO: tl.constexpr = INPUTS if BACK else OUTPUTS
    FROM_STEP: tl.constexpr = 9 * INPUTS if BACK else 1
    TO_STEP: tl.constexpr = 1 if BACK else 9 * INPUTS
    channel_from, channel_to = tl.arange(0, FROM), tl.arange(0, TO)
    place = channel_from[:, None] * FROM_STEP + channel_to[None, :] * TO_STEP
    total = tl.zeros([BLOCK, TO], tl.float32)
    for tap in range(9):
        at, inside = _source_pixel(pixel, tap, SIDE, SOURCE_SIDE, STRIDE, BACK)
        rows = tl.load(source + at[:, None] * FROM + channel_from[None, :], mask=(inside & valid)[:, None], other=0.0)
        total = tl.dot(rows, tl.load(weight + tap * INPUTS + place), total)
    return total


@triton.jit
def _positive(value):
    """The larger of `value` and 0. Unlike the built-in maximum it keeps NaN, by which a diverged training shows."""
    return tl.where(value < 0, 0.0, value)


@triton.jit
def _statistics(sums, channel, count, eps, CHANNELS: tl.constexpr):
    """Mean and variance of each channel, and the inverse of its deviation, from the sums of values and of squares."""
    mean = tl.load(sums + channel) / count
    variance = _positive(tl.load(sums + CHANNELS + channel) / count - mean * mean)
    return mean, variance, 1 / tl.sqrt(variance + eps)


@triton.jit
def load_images(images, mean_image, out, pixel_scale, CHANNELS: tl.constexpr, SIDE: tl.constexpr, PADDED: tl.constexpr):
    """Normalise an image row: uint8 planes to rows of `PADDED` channels, zero from `CHANNELS` on."""
    image, row = tl.program_id(0) // SIDE, tl.program_id(0) % SIDE
    column, channel = tl.arange(0, SIDE), tl.arange(0, PADDED)
    at = (channel[None, :] * SIDE + row) * SIDE + column[:, None]
    real = (channel < CHANNELS)[None, :]
    value = tl.load(images + image * CHANNELS * SIDE * SIDE + at, mask=real, other=0).to(tl.float32)
    value = value / pixel_scale - tl.load(mean_image + at, mask=real, other=0.0)
    pixel = (image * SIDE + row) * SIDE + column
    tl.store(out + pixel[:, None] * PADDED + channel[None, :], value.to(out.dtype.element_ty))


@triton.jit
def convolve(
    x,
    weight,
    y,
    sums,
    pixels,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Convolve x to y; the sums of y and of its squares per channel are added to `sums`."""
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = pixel < pixels
    total = _convolved(x, weight, pixel, valid, INPUTS, OUTPUTS, SIDE, SIDE * STRIDE, STRIDE, False, BLOCK)
    channel = tl.arange(0, OUTPUTS)
    rounded = total.to(y.dtype.element_ty)
    tl.store(y + pixel[:, None] * OUTPUTS + channel[None, :], rounded, mask=valid[:, None])
    value = rounded.to(tl.float32)
    tl.atomic_add(sums + channel, tl.sum(value, 0), sem="relaxed")
    tl.atomic_add(sums + OUTPUTS + channel, tl.sum(value * value, 0), sem="relaxed")


@triton.jit
def normalise(
    y,
    sums,
    scale,
    shift,
    shortcut,
    out,
    running_mean,
    running_variance,
    pixels,
    eps,
    momentum,
    CHANNELS: tl.constexpr,
    SIDE: tl.constexpr,
    SHORTCUT: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Relu(normalised y + shortcut) to `out`; the first program updates the running statistics.

    SHORTCUT: 0 none, 1 of the same shape, 2 of twice the side and half the channels.
    """
    pixel, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CHANNELS)
    valid = (pixel < pixels)[:, None]
    mean, variance, inverse = _statistics(sums, channel, pixels, eps, CHANNELS)
    at = pixel[:, None] * CHANNELS + channel[None, :]
    factor = inverse * tl.load(scale + channel)
    offset = tl.load(shift + channel) - mean * factor
    value = tl.load(y + at, mask=valid, other=0.0).to(tl.float32) * factor[None, :] + offset[None, :]
    if SHORTCUT == 1:
        value += tl.load(shortcut + at, mask=valid, other=0.0).to(tl.float32)
    if SHORTCUT == 2:
        image, row, column = pixel // (SIDE * SIDE), pixel // SIDE % SIDE, pixel % SIDE
        source = (image * 2 * SIDE + 2 * row) * 2 * SIDE + 2 * column
        present = valid & (channel < CHANNELS // 2)[None, :]
        at_source = source[:, None] * (CHANNELS // 2) + channel[None, :]
        value += tl.load(shortcut + at_source, mask=present, other=0.0).to(tl.float32)
    if RELU:
        value = _positive(value)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=valid)
    if tl.program_id(0) == 0:
        unbiased = variance * (pixels / (pixels - 1))
        old_mean, old_variance = tl.load(running_mean + channel), tl.load(running_variance + channel)
        tl.store(running_mean + channel, old_mean + momentum * (mean - old_mean))
        tl.store(running_variance + channel, old_variance + momentum * (unbiased - old_variance))


@triton.jit
def _store_gradient(
    total, pixel, valid, out, y, sums, gradient, gradient_sums, pixels, eps, CHANNELS: tl.constexpr, RELU: tl.constexpr
):
    """Store the gradient of relu's input, where `out` is its output; add to its sums: plain, and times normalised y."""
    channel = tl.arange(0, CHANNELS)
    at = pixel[:, None] * CHANNELS + channel[None, :]
    if RELU:
        total = tl.where(tl.load(out + at, mask=valid[:, None], other=0.0).to(tl.float32) > 0, total, 0.0)
    rounded = total.to(gradient.dtype.element_ty)
    tl.store(gradient + at, rounded, mask=valid[:, None])
    mean, _, inverse = _statistics(sums, channel, pixels, eps, CHANNELS)
    normal = (tl.load(y + at, mask=valid[:, None], other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
    value = rounded.to(tl.float32)
    tl.atomic_add(gradient_sums + channel, tl.sum(value, 0), sem="relaxed")
    tl.atomic_add(gradient_sums + CHANNELS + channel, tl.sum(value * normal, 0), sem="relaxed")


@triton.jit
def pool_back(
    features_gradient,
    out,
    y,
    sums,
    gradient,
    gradient_sums,
    pixels,
    eps,
    CHANNELS: tl.constexpr,
    SIDE: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient of the last block from that of the features, which are its output averaged over each image."""
    pixel, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CHANNELS)
    valid = pixel < pixels
    at = pixel[:, None] // (SIDE * SIDE) * CHANNELS + channel[None, :]
    total = tl.load(features_gradient + at, mask=valid[:, None], other=0.0) / (SIDE * SIDE)
    _store_gradient(total, pixel, valid, out, y, sums, gradient, gradient_sums, pixels, eps, CHANNELS, RELU)


@triton.jit
def normalise_back(
    gradient,
    y,
    sums,
    gradient_sums,
    scale,
    y_gradient,
    pixels,
    eps,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient of y from that of its normalised values."""
    pixel, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CHANNELS)
    valid = (pixel < pixels)[:, None]
    mean, _, inverse = _statistics(sums, channel, pixels, eps, CHANNELS)
    mean_gradient = tl.load(gradient_sums + channel) / pixels
    mean_product = tl.load(gradient_sums + CHANNELS + channel) / pixels
    factor = tl.load(scale + channel) * inverse
    at = pixel[:, None] * CHANNELS + channel[None, :]
    normal = (tl.load(y + at, mask=valid, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
    value = tl.load(gradient + at, mask=valid, other=0.0).to(tl.float32)
    value = factor[None, :] * (value - mean_gradient[None, :] - normal * mean_product[None, :])
    tl.store(y_gradient + at, value.to(y_gradient.dtype.element_ty), mask=valid)


@triton.jit
def convolve_back(
    y_gradient,
    weight,
    shortcut_gradient,
    out,
    y,
    sums,
    gradient,
    gradient_sums,
    pixels,
    eps,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    SHORTCUT: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient of a convolution's input, which is the output `out` of an earlier layer that normalised `y`.

    `SIDE` and `pixels` are the input's; SHORTCUT as in `normalise`.
    """
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = pixel < pixels
    total = _convolved(y_gradient, weight, pixel, valid, INPUTS, OUTPUTS, SIDE, SIDE // STRIDE, STRIDE, True, BLOCK)
    channel = tl.arange(0, INPUTS)
    if SHORTCUT == 1:
        at = pixel[:, None] * INPUTS + channel[None, :]
        total += tl.load(shortcut_gradient + at, mask=valid[:, None], other=0.0).to(tl.float32)
    if SHORTCUT == 2:
        image, row, column = pixel // (SIDE * SIDE), pixel // SIDE % SIDE, pixel % SIDE
        taken = valid & (row % 2 == 0) & (column % 2 == 0)
        target = (image * (SIDE // 2) + row // 2) * (SIDE // 2) + column // 2
        at = target[:, None] * (2 * INPUTS) + channel[None, :]
        total += tl.load(shortcut_gradient + at, mask=taken[:, None], other=0.0).to(tl.float32)
    _store_gradient(total, pixel, valid, out, y, sums, gradient, gradient_sums, pixels, eps, INPUTS, RELU)


@triton.jit
def weight_gradient(
    x,
    y_gradient,
    gradient,
    pixels,
    blocks_each,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    TAPS: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add to the gradient of the weights, for `TAPS` taps (in tiles with `ROOM` for a power of two of them)."""
    inside_block, output = tl.arange(0, BLOCK), tl.arange(0, OUTPUTS)
    entry = tl.arange(0, ROOM * INPUTS)
    tap, present = tl.program_id(1) * TAPS + entry // INPUTS, entry // INPUTS < TAPS
    total = tl.zeros([OUTPUTS, ROOM * INPUTS], tl.float32)
    for block in range(blocks_each):
        pixel = (tl.program_id(0) * blocks_each + block) * BLOCK + inside_block
        valid = pixel < pixels
        at = pixel[:, None] * OUTPUTS + output[None, :]
        rows = tl.load(y_gradient + at, mask=valid[:, None], other=0.0)
        source, inside = _source_pixel(pixel[:, None], tap[None, :], SIDE, SIDE * STRIDE, STRIDE, False)
        taken = inside & valid[:, None] & present[None, :]
        columns = tl.load(x + source * INPUTS + (entry % INPUTS)[None, :], mask=taken, other=0.0)
        total = tl.dot(tl.trans(rows), columns, total)
    at = output[:, None] * (9 * INPUTS) + (tl.program_id(1) * TAPS * INPUTS + entry)[None, :]
    tl.atomic_add(gradient + at, total, mask=present[None, :], sem="relaxed")


@triton.jit
def _joined(head_a, largest_a, powers_a, targets_a, head_b, largest_b, powers_b, targets_b):
    """Two neighbouring runs of columns: of the second one's last head, the largest logit and the sums over it."""
    same = head_a == head_b
    largest = tl.where(same, tl.maximum(largest_a, largest_b), largest_b)
    powers_a = tl.where(same, powers_a * tl.exp(tl.where(same, largest_a - largest, 0.0)), 0.0)
    powers = powers_a + powers_b * tl.exp(largest_b - largest)
    return head_b, largest, powers, tl.where(same, targets_a, 0.0) + targets_b


@triton.jit
def _scanned(head, scaled, target, inside, before, BLOCK: tl.constexpr, REVERSE: tl.constexpr):
    """What each column's head has had up to it (head, largest, powers, targets), and the last column's for the next."""
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

    A head is a run of columns, and its softmax needs a sum over all of them: the row is scanned forwards, leaving in
    `sums` what each column's head has had up to it, and then backwards, adding what it has from there on.
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
        logit = tl.load(logits + column, mask=real, other=-float("inf"))
        larger = tl.maximum(largest_of_row, tl.max(logit, 0))
        powers_of_row = powers_of_row * tl.exp(largest_of_row - larger) + tl.sum(tl.exp(logit - larger), 0)
        largest_of_row = larger
        head = tl.load(head_of_class + column, mask=real, other=-1).to(tl.int32)
        target = tl.load(targets + column, mask=real, other=0.0)
        scaled = tl.where(real, logit, 0.0) / temperature
        _, largest, powers, wanted, before = _scanned(head, scaled, target, inside, before, BLOCK, False)
        tl.store(sums + column, largest, mask=real)
        tl.store(powers_sums + column, powers, mask=real)
        tl.store(wanted_sums + column, wanted, mask=real)
    tl.debug_barrier()  # the way back reads what other threads have stored

    label = tl.load(labels + row).to(tl.int32)
    loss = tl.log(powers_of_row) + (largest_of_row - tl.load(logits + label))
    before = nothing
    for behind in range(blocks):
        column = (blocks - 1 - behind) * BLOCK + inside
        real = column < columns
        logit = tl.load(logits + column, mask=real, other=-float("inf"))
        head = tl.load(head_of_class + column, mask=real, other=-1).to(tl.int32)
        target = tl.load(targets + column, mask=real, other=0.0)
        scaled = tl.where(real, logit, 0.0) / temperature
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
    """Noise, decay, momentum and descent of each parameter."""
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
