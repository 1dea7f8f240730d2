"""Residual networks on a GPU by `kernels`: the features of a training batch in bfloat16, and their gradient.

The same function as the network's own forward and backward, several times as fast where channels are few.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treering.backbones import ResidualBlock, ResNet
from treering.network import IncrementalNetwork

CHANNELS = (16, 32, 64)
"""Numbers of channels the kernels are laid out for; the image's own are filled up to the first."""
CONVOLUTION_TILES = {16: (128, 4), 32: (128, 4), 64: (64, 4)}
"""Channels that come out of a convolution -> pixels and warps of a program."""
WEIGHT_TILES = {16: (9, 16, 64, 4), 32: (3, 4, 64, 4), 64: (1, 1, 64, 4)}
"""Input channels -> taps, room for taps, pixels and warps of a program that sums up the gradient of weights."""
WEIGHT_PROGRAMS = 264
"""About two per multiprocessor: each adds its sum to that of the others."""
ELEMENTS = 8192
"""Of an activation, in a program that goes through it element by element."""


@dataclass(frozen=True)
class Layer:
    """A convolution and its normalisation."""

    convolution: nn.Conv2d
    norm: nn.BatchNorm2d
    inputs: int
    """Channels, filled up."""
    outputs: int
    side: int
    """Of its output."""
    stride: int
    shortcut: int
    """What joins behind its normalisation: 0 nothing, 1 the block's input, 2 a part of the block's larger input."""
    relu: bool


def layers_of(network: IncrementalNetwork) -> list[Layer] | None:
    """The layers of a network that the kernels can compute, in order; None for any other network."""
    features, (channels, side, width) = network.features, network.mean_image.shape
    if not isinstance(features, ResNet) or side != width or side & (side - 1) or channels > CHANNELS[0]:
        return None
    stem = list(features.stem.children())
    if [type(part) for part in stem] != [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]:
        return None
    layers = [Layer(stem[0], stem[1], CHANNELS[0], stem[0].out_channels, side, 1, 0, True)]
    for block in features.body:
        if not isinstance(block, ResidualBlock) or block.projection is not None:
            return None
        inputs, outputs = layers[-1].outputs, block.convolution1.out_channels
        if (block.stride, outputs) not in ((1, inputs), (2, 2 * inputs)):
            return None
        side //= block.stride
        layers.append(Layer(block.convolution1, block.norm1, inputs, outputs, side, block.stride, 0, True))
        layers.append(Layer(block.convolution2, block.norm2, outputs, outputs, side, 1, block.stride, block.last_relu))
    known = all(
        layer.outputs in CHANNELS
        and layer.convolution.kernel_size == (3, 3)
        and layer.convolution.stride == (layer.stride, layer.stride)
        and layer.convolution.bias is None
        for layer in layers
    )
    return layers if known and side else None


def extractor(network: IncrementalNetwork) -> FusedExtractor | None:
    """The fast `extract` for training `network` in bfloat16, where there is one."""
    layers = layers_of(network)
    if layers is None or not network.mixed_precision or importlib.util.find_spec("triton") is None:
        return None
    return FusedExtractor(network, layers)


class FusedExtractor:
    """Maps uint8 images to features as `network.extract` does in training mode, running statistics included."""

    def __init__(self, network: IncrementalNetwork, layers: list[Layer]) -> None:
        self.network, self.layers = network, layers
        self.dtype = torch.bfloat16

    def __call__(self, images: Tensor) -> Tensor:
        weights = [layer.convolution.weight for layer in self.layers]
        scales = [layer.norm.weight for layer in self.layers]
        shifts = [layer.norm.bias for layer in self.layers]
        return _Features.apply(images, self, *weights, *scales, *shifts)


class _Features(torch.autograd.Function):
    """Forward and backward of all layers, one kernel after the other."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, extractor: FusedExtractor, *parameters: Tensor) -> Tensor:
        batch = _Batch(extractor, images, parameters)
        ctx.batch = batch
        return batch.forward()

    @staticmethod
    def backward(ctx: Any, features_gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return (None, None, *ctx.batch.backward(features_gradient))


class _Batch:
    """One batch on its way through the layers and back: every activation that the way back needs."""

    def __init__(self, extractor: FusedExtractor, images: Tensor, parameters: tuple[Tensor, ...]) -> None:
        from treering import kernels

        self.kernels = kernels
        self.network, self.layers, self.dtype = extractor.network, extractor.layers, extractor.dtype
        self.images = images
        count = len(self.layers)
        weights, self.scales, self.shifts = parameters[:count], parameters[count : 2 * count], parameters[2 * count :]
        sizes = [9 * layer.inputs * layer.outputs for layer in self.layers]
        lying = [_filled(weight.permute(0, 2, 3, 1), self.layers[at].inputs) for at, weight in enumerate(weights)]
        self.weights = torch.cat([part.flatten() for part in lying]).to(self.dtype).split(sizes)
        # What is summed up from zero: the two sums of each pass of a layer and the gradients of the weights.
        double = [2 * layer.outputs for layer in self.layers]
        zeros = torch.zeros(2 * sum(double) + sum(sizes), device=images.device).split([*double, *double, *sizes])
        self.sums, self.gradient_sums = zeros[:count], zeros[count : 2 * count]
        self.weight_gradients = zeros[2 * count :]
        self.outs: list[Tensor] = []
        self.ys: list[Tensor] = []

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
            y = self._rows(self._pixels(layer), layer.outputs)
            block, warps = CONVOLUTION_TILES[layer.outputs]
            kernels.convolve[_grid(len(y), block)](
                x,
                self.weights[number],
                y,
                self.sums[number],
                len(y),
                layer.inputs,
                layer.outputs,
                layer.side,
                layer.stride,
                block,
                num_warps=warps,
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
            self.ys.append(y)
            self.outs.append(out)
            if number % 2 == 0:  # behind the stem and each block
                block_input = out
            x = out
        return x.view(count, -1, layers[-1].outputs).mean(1, dtype=torch.float32)

    def backward(self, features_gradient: Tensor) -> list[Tensor]:
        layers, last = self.layers, len(self.layers) - 1
        gradient = torch.empty_like(self.outs[last])
        block = ELEMENTS // layers[last].outputs
        self.kernels.pool_back[_grid(len(gradient), block)](
            features_gradient.contiguous(),
            *self._behind(last, gradient),
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
            self._weight_gradient(number, self.outs[number - 1], y_gradient)
            gradient = torch.empty_like(self.outs[number - 1])
            layer = layers[number]
            block, warps = CONVOLUTION_TILES[layer.inputs]
            self.kernels.convolve_back[_grid(len(gradient), block)](
                y_gradient,
                self.weights[number],
                block_gradient,
                *self._behind(number - 1, gradient),
                layer.inputs,
                layer.outputs,
                layer.side * layer.stride,
                layer.stride,
                layers[number + 1].shortcut if first_of_block else 0,
                block,
                num_warps=warps,
            )
            if first_of_block:
                block_gradient = gradient
        self._weight_gradient(0, self.input, self._normalise_back(0, gradient))
        weights = [
            part.view(layer.outputs, 3, 3, layer.inputs)[..., : layer.convolution.in_channels].permute(0, 3, 1, 2)
            for part, layer in zip(self.weight_gradients, layers, strict=True)
        ]
        shifts, scales = zip(*(part.chunk(2) for part in self.gradient_sums), strict=True)
        return [*weights, *scales, *shifts]

    def _normalise_back(self, number: int, gradient: Tensor) -> Tensor:
        layer, y_gradient = self.layers[number], torch.empty_like(gradient)
        block = ELEMENTS // layer.outputs
        self.kernels.normalise_back[_grid(len(gradient), block)](
            gradient,
            self.ys[number],
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
        taps, room, block, warps = WEIGHT_TILES[layer.inputs]
        blocks = -(-pixels // block)
        blocks_each = -(-blocks * (9 // taps) // WEIGHT_PROGRAMS)
        self.kernels.weight_gradient[(-(-blocks // blocks_each), 9 // taps)](
            x,
            y_gradient,
            self.weight_gradients[number],
            pixels,
            blocks_each,
            layer.inputs,
            layer.outputs,
            layer.side,
            layer.stride,
            taps,
            room,
            block,
            num_warps=warps,
        )

    def _behind(self, number: int, gradient: Tensor) -> tuple[Any, ...]:
        """Arguments for the gradient of what layer `number` gave, before its ReLU."""
        layer = self.layers[number]
        sums, gradient_sums = self.sums[number], self.gradient_sums[number]
        return self.outs[number], self.ys[number], sums, gradient, gradient_sums, len(gradient), layer.norm.eps

    def _pixels(self, layer: Layer) -> int:
        return len(self.images) * layer.side**2

    def _rows(self, pixels: int, channels: int) -> Tensor:
        return torch.empty(pixels, channels, dtype=self.dtype, device=self.images.device)


def _filled(lying: Tensor, inputs: int) -> Tensor:
    """Weights (output, row, column, input) with zeros for inputs that only fill up."""
    return F.pad(lying, (0, inputs - lying.shape[3])) if lying.shape[3] < inputs else lying


def _grid(pixels: int, block: int) -> tuple[int]:
    return (-(-pixels // block),)
