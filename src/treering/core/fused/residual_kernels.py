"""GPU kernels, in Triton, for residual networks with few channels: 3 x 3 convolutions fused with batch normalisation.

PyTorch's convolutions take most of an update's time where channels are as few as 16. Here a convolution also sums up
the statistics that its normalisation needs, forward and backward, which saves separate passes for them.

An activation is a matrix with a row per pixel (image, row, column) and a column per channel; images are square, and
numbers of channels are powers of two. Weights are ordered by output, tap (one of the nine places of a 3 x 3 kernel),
input. Sums are float32; programs add to them in any order, so the last bits differ from one launch to the next.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _source_pixel(pixel, tap, SIDE: tl.constexpr, SOURCE_SIDE: tl.constexpr, STRIDE: tl.constexpr, BACK: tl.constexpr):
    """Return the pixel that `tap` connects `pixel` to, and whether it exists: output to input, or reverse if `BACK`."""
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
    """Return the sum over the nine taps for `BLOCK` pixels: BLOCK x OUTPUTS or, if `BACK`, BLOCK x INPUTS."""
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
        factors = tl.load(weight + tap * INPUTS + place)
        total = tl.dot(rows, factors, total, input_precision="ieee")  # exact for float32, which tests use on a GPU
    return total


@triton.jit
def _positive(value):
    """Return the larger of `value` and 0; unlike the built-in maximum this keeps NaN, which shows divergence."""
    return tl.where(value < 0, 0.0, value)


@triton.jit
def _statistics(sums, channel, count, eps, CHANNELS: tl.constexpr):
    """Return each channel's mean, variance and inverse deviation, from the sums of values and of squares."""
    mean = tl.load(sums + channel) / count
    variance = _positive(tl.load(sums + CHANNELS + channel) / count - mean * mean)
    return mean, variance, 1 / tl.sqrt(variance + eps)


@triton.jit
def load_images(images, mean_image, out, pixel_scale, CHANNELS: tl.constexpr, SIDE: tl.constexpr, PADDED: tl.constexpr):
    """Normalise one row of an image, from uint8 planes to pixels of `PADDED` channels, zero from `CHANNELS` on."""
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
    """Convolve x to y; add the sums of y and of its squares per channel to `sums`."""
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
    """Store relu(normalised y + shortcut) in `out`; the first program updates the running statistics.

    SHORTCUT is 0 for none, 1 for one of the same shape, 2 for one of twice the side and half the channels.
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
    """Store the gradient of the input of the ReLU that gave `out`; add its sums, plain and times normalised y."""
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
    """Compute the gradient of the last block's output from that of the features, its average over each image."""
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
    """Compute the gradient of y from that of its normalised values."""
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
    """Compute the gradient of a convolution's input, which is the output `out` of an earlier layer that normalised `y`.

    `SIDE` and `pixels` are those of the input; SHORTCUT is as in `normalise`.
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
    """Add to the weight gradient of `TAPS` taps; a tile has `ROOM` for that number rounded up to a power of two."""
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
        total = tl.dot(tl.trans(rows), columns, total, input_precision="ieee")
    at = output[:, None] * (9 * INPUTS) + (tl.program_id(1) * TAPS * INPUTS + entry)[None, :]
    tl.atomic_add(gradient + at, total, mask=present[None, :], sem="relaxed")
