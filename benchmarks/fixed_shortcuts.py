"""Residual networks as the authors of EEIL had them: the shortcut of each stage's first block never learns.

Their released code has its networks from ResNet-Matconvnet. There that shortcut is a random 1 x 1 convolution with a
learning rate of 0, also where the shape stays the same; in He et al. it takes every second pixel and adds empty
channels. Importing this adds the backbones `resnet32-fixed` and `small-fixed`; the GPU's kernels train them too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treering import backbones
from treering.backbones import ResidualBlock, ResNet
from treering.fused import residual


def network(make: Callable[[int], nn.Module], blocks: int, channels: int) -> nn.Module:
    """What `make` gives, with fixed shortcuts in the first of every so many blocks."""
    features = make(channels)
    assert isinstance(features, ResNet)
    for block in list(features.body)[::blocks]:
        assert isinstance(block, ResidualBlock)
        outputs, inputs = block.convolution1.weight.shape[:2]
        block.register_buffer("fixed", torch.randn(outputs, inputs, 1, 1) * (2 / inputs) ** 0.5)
        # In the object itself, it goes before the method of its class, and a copy of the block has its own.
        block.__dict__["shortcut"] = functools.partial(_shortcut, block)
    return features


def _shortcut(block: Any, x: Tensor) -> Tensor:
    return F.conv2d(x, block.fixed.to(x.dtype), stride=block.stride)


class Kernels:
    """The kernels of a batch, which get what the shortcut makes of a block's input where they expect that input."""

    def __init__(self, batch: Any) -> None:
        self.kernels, self.layers = batch.kernels, batch.layers
        self.blocks: list[Any] = list(batch.network.features.body)
        self.forward, self.back = 0, len(self.layers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernels, name)

    @property
    def normalise(self) -> Launch:
        return Launch(self._normalise)

    @property
    def convolve_back(self) -> Launch:
        return Launch(self._convolve_back)

    def _normalise(self, grid: Any, *arguments: Any, **options: Any) -> None:
        number, self.forward = self.forward, self.forward + 1
        block: Any = self.blocks[number // 2 - 1] if number and number % 2 == 0 else None
        if hasattr(block, "fixed"):
            x, channels, side = arguments[4], arguments[4].shape[1], self.layers[number].side * block.stride
            taken = x.view(-1, side, side, channels)[:, :: block.stride, :: block.stride].reshape(-1, channels)
            projected = taken @ block.fixed[:, :, 0, 0].T.to(x.dtype)
            arguments = (*arguments[:4], projected, *arguments[5:13], residual.SAME_SHAPE, *arguments[14:])
        self.kernels.normalise[grid](*arguments, **options)

    def _convolve_back(self, grid: Any, *arguments: Any, **options: Any) -> None:
        self.back -= 1
        block: Any = self.blocks[self.back // 2] if self.back % 2 == 1 else None
        if hasattr(block, "fixed"):
            of_output, of_input, side = arguments[2], torch.zeros_like(arguments[6]), arguments[12]
            pixels = of_input.view(-1, side, side, of_input.shape[1])[:, :: block.stride, :: block.stride]
            pixels.copy_((of_output @ block.fixed[:, :, 0, 0].to(of_output.dtype)).view(pixels.shape))
            arguments = (*arguments[:2], of_input, *arguments[3:14], residual.SAME_SHAPE, *arguments[15:])
        if self.back == 1:  # the way back may be gone twice
            self.back = len(self.layers)
        self.kernels.convolve_back[grid](*arguments, **options)


class Launch:
    """A kernel's stand-in: `launch[grid](arguments)`."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return functools.partial(self.function, grid)


_make_batch = residual._Batch.__init__


def _make_batch_with_shortcuts(self: Any, *arguments: Any) -> None:
    _make_batch(self, *arguments)
    if any(hasattr(block, "fixed") for block in self.network.features.body):
        self.kernels = Kernels(self)


residual._Batch.__init__ = _make_batch_with_shortcuts  # type: ignore[method-assign, assignment]
backbones.BACKBONES["resnet32-fixed"] = functools.partial(network, backbones.resnet32, 5)
backbones.BACKBONES["small-fixed"] = functools.partial(network, backbones.small, 1)
