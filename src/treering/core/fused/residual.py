"""The features of a training batch and their gradient, computed by kernels for residual networks of small images."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treering.core.backbones import ResidualBlock, ResNet
from treering.core.network import IncrementalNetwork

CHANNELS = (16, 32, 64)
"""The numbers of channels that the kernels support; an image's channels are padded to the first of them."""


class Tile(NamedTuple):
    """The part of a convolution that one program of a kernel computes at a time."""

    pixels: int
    taps: int = 1

    @property
    def room(self) -> int:
        """The number of taps, rounded up to a power of two."""
        return 1 << (self.taps - 1).bit_length()


CONVOLUTION_TILES = {16: Tile(256), 32: Tile(128), 64: Tile(64)}
"""The tiles of convolutions, forward and backward, by input channels; they were the fastest of many on an H200."""
WEIGHT_TILES = {16: Tile(128, taps=3), 32: Tile(64, taps=3), 64: Tile(64)}
"""The tiles of weight gradients, by input channels."""
WEIGHT_PROGRAMS = 264
"""About how many programs sum up a weight gradient: two for each multiprocessor of an H200."""
ELEMENTS = 8192
"""The number of elements of an activation that a program handles if it works element by element."""


NO_SHORTCUT, SAME_SHAPE, HALVED = 0, 1, 2
"""The kernels' numbers for shortcuts: none, the block's input, or every other pixel of it in half the channels."""


@dataclass(frozen=True)
class Layer:
    """A convolution and its normalisation."""

    convolution: nn.Conv2d
    norm: nn.BatchNorm2d
    inputs: int
    """The number of input channels, padded."""
    outputs: int
    side: int
    """The side of its output, in pixels."""
    stride: int
    shortcut: int
    """The number of the shortcut that is added after its normalisation."""
    relu: bool


def layers_of(network: IncrementalNetwork) -> list[Layer] | None:
    """Return the layers of a network that the kernels can compute, in order, or None for any other network."""
    features, (channels, side, width) = network.features, network.mean_image.shape
    if type(features) is not ResNet or side != width or side & (side - 1) or channels > CHANNELS[0]:
        return None
    if any(module._forward_hooks or module._forward_pre_hooks for module in features.modules()):
        return None
    stem: list[Any] = list(features.stem.children())
    if [type(part) for part in stem] != [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]:
        return None
    layers = [Layer(stem[0], stem[1], CHANNELS[0], stem[0].out_channels, side, 1, NO_SHORTCUT, True)]
    for block in features.body:
        if type(block) is not ResidualBlock or block.projection is not None:
            return None
        inputs, outputs = layers[-1].outputs, block.convolution1.out_channels
        shortcut = {(1, inputs): SAME_SHAPE, (2, 2 * inputs): HALVED}.get((block.stride, outputs))
        if shortcut is None:
            return None
        side //= block.stride
        layers.append(Layer(block.convolution1, block.norm1, inputs, outputs, side, block.stride, NO_SHORTCUT, True))
        layers.append(Layer(block.convolution2, block.norm2, outputs, outputs, side, 1, shortcut, block.last_relu))
    return layers if side and all(_is_known(layer) for layer in layers) else None


def _is_known(layer: Layer) -> bool:
    convolution, norm = layer.convolution, layer.norm
    return (
        type(convolution) is nn.Conv2d
        and layer.outputs in CHANNELS
        and convolution.kernel_size == (3, 3)
        and convolution.stride == (layer.stride, layer.stride)
        and convolution.padding == (1, 1)
        and convolution.padding_mode == "zeros"
        and convolution.dilation == (1, 1)
        and convolution.groups == 1
        and convolution.bias is None
        and type(norm) is nn.BatchNorm2d
        and norm.training
        and norm.affine
        and norm.running_mean is not None
        and norm.momentum is not None
        and norm.num_batches_tracked is None
    )


def extractor(network: IncrementalNetwork, batch_size: int) -> FusedExtractor | None:
    """Return the fast `extract` for training `network` with this batch size, or None if the kernels cannot serve it."""
    layers = layers_of(network) if network.engine.kernels else None
    if not layers:
        return None
    largest = max(batch_size * (layer.side * layer.stride) ** 2 * layer.outputs for layer in layers)
    return FusedExtractor(network, layers) if largest < 2**31 else None  # the kernels count in 32 bits


@functools.cache
def _side_stream(device: int, priority: int) -> torch.cuda.Stream:
    """Return the stream that all runs share: one capture at a time uses it, with the updates that warm up for it."""
    return torch.cuda.Stream(device, priority=priority)


class FusedExtractor:
    """Maps uint8 images to features as `network.extract` does in training mode, running statistics included."""

    def __init__(self, network: IncrementalNetwork, layers: list[Layer]) -> None:
        self.network, self.layers = network, layers
        on_gpu = network.device.type == "cuda"
        self.dtype = torch.bfloat16 if on_gpu else torch.float32  # Triton's interpreter knows no products of bfloat16
        current = torch.cuda.current_stream() if on_gpu else None
        self.side_stream = _side_stream(current.device_index, current.priority) if current else None
        """The stream that sums up weight gradients while the backward pass goes on without waiting for them."""

    def __call__(self, images: Tensor) -> Tensor:
        weights = [layer.convolution.weight for layer in self.layers]
        scales = [layer.norm.weight for layer in self.layers]
        shifts = [layer.norm.bias for layer in self.layers]
        return _Features.apply(images, self, *weights, *scales, *shifts)  # type: ignore[no-untyped-call]


class _Features(torch.autograd.Function):
    """The forward and the backward pass through all layers, one kernel after the other."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, extractor: FusedExtractor, *parameters: Tensor) -> Tensor:
        batch = _Batch(extractor, images, parameters)
        ctx.batch = batch
        return batch.forward()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, features_gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.batch.backward(features_gradient))


class _Batch:
    """One batch on its forward and backward pass, with every activation that the backward pass needs."""

    def __init__(self, extractor: FusedExtractor, images: Tensor, parameters: tuple[Tensor, ...]) -> None:
        from treering.core.fused import residual_kernels

        self.kernels = residual_kernels
        self.network, self.layers, self.dtype = extractor.network, extractor.layers, extractor.dtype
        self.images, self.side_stream = images, extractor.side_stream
        count = len(self.layers)
        weights, self.scales, self.shifts = parameters[:count], parameters[count : 2 * count], parameters[2 * count :]
        self.sizes = [9 * layer.inputs * layer.outputs for layer in self.layers]
        by_tap = [_filled(weight.permute(0, 2, 3, 1), self.layers[at].inputs) for at, weight in enumerate(weights)]
        self.weights = torch.cat([part.flatten() for part in by_tap]).to(self.dtype).split(self.sizes)
        self.sum_sizes = [2 * layer.outputs for layer in self.layers]
        """The number of sums of each layer in each pass: two per channel."""
        self.sums = torch.zeros(sum(self.sum_sizes), device=images.device).split(self.sum_sizes)
        self.outputs: list[Tensor] = []
        self.convolved: list[Tensor] = []

    def forward(self) -> Tensor:
        layers, count, kernels = self.layers, len(self.images), self.kernels
        channels, side, _ = self.network.mean_image.shape
        x = self._rows(count * side * side, layers[0].inputs)
        kernels.load_images[(count * side,)](
            self.images.contiguous(),
            self.network.mean_image.contiguous(),
            x,
            self.network.pixel_scale,
            channels,
            side,
            layers[0].inputs,
        )
        self.input = block_input = x
        for number, layer in enumerate(layers):
            y = self._rows(count * layer.side**2, layer.outputs)
            tile = CONVOLUTION_TILES[layer.inputs]
            kernels.convolve[_grid(len(y), tile.pixels)](
                x,
                self.weights[number],
                y,
                self.sums[number],
                len(y),
                layer.inputs,
                layer.outputs,
                layer.side,
                layer.stride,
                tile.pixels,
            )
            out = torch.empty_like(y)
            block = ELEMENTS // layer.outputs
            kernels.normalise[_grid(len(y), block)](
                y,
                self.sums[number],
                self.scales[number],
                self.shifts[number],
                block_input,
                out,
                layer.norm.running_mean,
                layer.norm.running_var,
                len(y),
                layer.norm.eps,
                layer.norm.momentum,
                layer.outputs,
                layer.side,
                layer.shortcut,
                layer.relu,
                block,
                num_warps=8,
            )
            self.convolved.append(y)
            self.outputs.append(out)
            if number % 2 == 0:  # after the stem and each block
                block_input = out
            x = out
        return x.view(count, -1, layers[-1].outputs).mean(1, dtype=torch.float32)

    def backward(self, features_gradient: Tensor) -> list[Tensor]:
        layers, last = self.layers, len(self.layers) - 1
        sizes = [*self.sum_sizes, *self.sizes]
        zeros = torch.zeros(sum(sizes), device=self.images.device).split(sizes)
        self.gradient_sums, self.weight_gradients = zeros[: len(layers)], zeros[len(layers) :]
        self.y_gradients: list[Tensor] = []  # kept until the side stream has read them
        gradient = torch.empty_like(self.outputs[last])
        block = ELEMENTS // layers[last].outputs
        self.kernels.pool_back[_grid(len(gradient), block)](
            features_gradient.contiguous(),
            *self._gradient_arguments(last, gradient),
            layers[last].outputs,
            layers[last].side,
            layers[last].relu,
            block,
            num_warps=8,
        )
        block_gradient = gradient
        for number in range(last, 0, -1):
            first_of_block = number % 2 == 1
            y_gradient = self._normalise_back(number, gradient)
            self._weight_gradient(number, self.outputs[number - 1], y_gradient)
            gradient = torch.empty_like(self.outputs[number - 1])
            layer = layers[number]
            tile = CONVOLUTION_TILES[layer.outputs]
            self.kernels.convolve_back[_grid(len(gradient), tile.pixels)](
                y_gradient,
                self.weights[number],
                block_gradient,
                *self._gradient_arguments(number - 1, gradient),
                layer.inputs,
                layer.outputs,
                layer.side * layer.stride,
                layer.stride,
                layers[number + 1].shortcut if first_of_block else NO_SHORTCUT,
                layers[number - 1].relu,
                tile.pixels,
            )
            if first_of_block:
                block_gradient = gradient
        self._weight_gradient(0, self.input, self._normalise_back(0, gradient))
        if self.side_stream:
            torch.cuda.current_stream().wait_stream(self.side_stream)
        weights = [
            part.view(layer.outputs, 3, 3, layer.inputs)[..., : layer.convolution.in_channels].permute(0, 3, 1, 2)
            for part, layer in zip(self.weight_gradients, layers, strict=True)
        ]
        shifts, scales = zip(*(part.chunk(2) for part in self.gradient_sums), strict=True)
        return [*weights, *scales, *shifts]

    def _normalise_back(self, number: int, gradient: Tensor) -> Tensor:
        layer, y_gradient = self.layers[number], torch.empty_like(gradient)
        self.y_gradients.append(y_gradient)
        block = ELEMENTS // layer.outputs
        self.kernels.normalise_back[_grid(len(gradient), block)](
            gradient,
            self.convolved[number],
            self.sums[number],
            self.gradient_sums[number],
            self.scales[number],
            y_gradient,
            len(gradient),
            layer.norm.eps,
            layer.outputs,
            block,
            num_warps=8,
        )
        return y_gradient

    def _weight_gradient(self, number: int, x: Tensor, y_gradient: Tensor) -> None:
        layer, pixels = self.layers[number], len(y_gradient)
        tile = WEIGHT_TILES[layer.inputs]
        blocks = -(-pixels // tile.pixels)
        blocks_each = -(-blocks * (9 // tile.taps) // WEIGHT_PROGRAMS)
        if self.side_stream:
            self.side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side_stream):
            self.kernels.weight_gradient[(-(-blocks // blocks_each), 9 // tile.taps)](
                x,
                y_gradient,
                self.weight_gradients[number],
                pixels,
                blocks_each,
                layer.inputs,
                layer.outputs,
                layer.side,
                layer.stride,
                tile.taps,
                tile.room,
                tile.pixels,
            )

    def _gradient_arguments(self, number: int, gradient: Tensor) -> tuple[Any, ...]:
        """Return a kernel's arguments for the gradient of the output of layer `number`, before its ReLU."""
        layer = self.layers[number]
        sums, gradient_sums = self.sums[number], self.gradient_sums[number]
        return (
            self.outputs[number],
            self.convolved[number],
            sums,
            gradient,
            gradient_sums,
            len(gradient),
            layer.norm.eps,
        )

    def _rows(self, pixels: int, channels: int) -> Tensor:
        return torch.empty(pixels, channels, dtype=self.dtype, device=self.images.device)


def _filled(by_tap: Tensor, inputs: int) -> Tensor:
    """Pad weights (output, row, column, input) with zeros to this number of inputs."""
    return F.pad(by_tap, (0, inputs - by_tap.shape[3]))


def _grid(pixels: int, block: int) -> tuple[int]:
    return (-(-pixels // block),)
