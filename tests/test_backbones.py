"""The feature extractors: the shapes and sizes of He et al. 2015, seeded weights, and what is not a backbone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treering import backbones
from treering.errors import TreeringError


def count(module: nn.Module) -> int:
    return sum(part.numel() for part in module.parameters())


def convolutions(module: nn.Module) -> list[nn.Conv2d]:
    return [part for part in module.modules() if isinstance(part, nn.Conv2d)]


def cifar_resnet_size(channels: int, blocks: int) -> int:
    """He et al. 2015, section 4.2, by hand: 3 x 3 convolutions without bias, each with a batch-norm, free shortcuts."""
    total = 9 * channels * 16 + 2 * 16
    inputs = 16
    for width in (16, 32, 64):
        for _ in range(blocks):
            total += 9 * inputs * width + 2 * width + 9 * width * width + 2 * width
            inputs = width
    return total


def imagenet_resnet18_size(channels: int) -> int:
    """He et al. 2015, table 1, by hand; a projection (1 x 1 convolution and batch-norm) where the width changes."""
    total = 49 * channels * 64 + 2 * 64
    inputs = 64
    for width in (64, 128, 256, 512):
        for _ in range(2):
            total += 9 * inputs * width + 2 * width + 9 * width * width + 2 * width
            if inputs != width:
                total += inputs * width + 2 * width
            inputs = width
    return total


@pytest.mark.parametrize("channels", [1, 3])
def test_resnet32_is_the_cifar_network_of_he_et_al(channels: int):
    network = backbones.build("resnet32", channels, seed=0)
    assert len(convolutions(network)) == 31, "31 convolutions and the head are 32 layers"
    assert all(part.kernel_size == (3, 3) for part in convolutions(network)), "shortcuts have no parameters"
    assert count(network) == cifar_resnet_size(channels, blocks=5)
    assert backbones.feature_size(network, (channels, 32, 32)) == 64


def test_resnet32_with_ten_classes_has_he_et_als_0_46_million_parameters():
    assert count(backbones.resnet32(3)) == 463_504
    assert count(backbones.resnet32(3)) + 64 * 10 + 10 == 464_154


@pytest.mark.parametrize("channels", [1, 3])
def test_resnet18_is_the_imagenet_network_of_he_et_al(channels: int):
    network = backbones.build("resnet18", channels, seed=0)
    kernels = [part.kernel_size[0] for part in convolutions(network)]
    assert sorted(kernels) == [1] * 3 + [3] * 16 + [7]
    assert count(network) == imagenet_resnet18_size(channels)
    assert backbones.feature_size(network, (channels, 64, 64)) == 512
    if channels == 3:
        assert count(network) == 11_176_512


def test_small_has_three_blocks_and_64_features():
    network = backbones.build("small", 1, seed=0)
    assert count(network) == cifar_resnet_size(1, blocks=1)
    assert backbones.feature_size(network, (1, 8, 8)) == 64


@pytest.mark.parametrize(
    ("name", "side", "channels_and_side"),
    [
        ("resnet32", 32, [(16, 32)] * 5 + [(32, 16)] * 5 + [(64, 8)] * 5),
        ("resnet18", 64, [(64, 16)] * 2 + [(128, 8)] * 2 + [(256, 4)] * 2 + [(512, 2)] * 2),
        ("small", 8, [(16, 8), (32, 4), (64, 2)]),
    ],
)
def test_stages_halve_the_image_and_double_the_channels(name: str, side: int, channels_and_side: list):
    network = backbones.build(name, 3, seed=0).eval()
    seen: list[tuple[int, ...]] = []
    for block in network.modules():
        if isinstance(block, backbones.ResidualBlock):
            block.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape[1:])))
    with torch.no_grad():
        network(torch.zeros(1, 3, side, side))
    assert seen == [(channels, length, length) for channels, length in channels_and_side]


def test_features_are_the_mean_over_positions():
    network = backbones.build("small", 1, seed=0).eval()
    maps: list[Tensor] = []
    network.body.register_forward_hook(lambda module, inputs, output: maps.append(output))
    with torch.no_grad():
        features = network(torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(features, maps[0].flatten(2).mean(2))
    assert (features >= 0).all()


def test_the_free_shortcut_takes_every_second_pixel_and_adds_empty_channels():
    block = backbones.ResidualBlock(2, 4, stride=2, projection=False).eval()
    x = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for convolution in convolutions(block):
            convolution.weight.zero_()
        out = block(x)
    assert torch.equal(out[:, :2], x[:, :, ::2, ::2].relu())
    assert (out[:, 2:] == 0).all()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("projection", [True, False])
def test_a_block_is_two_normalised_convolutions_and_a_shortcut(projection: bool, stride: int):
    block = backbones.ResidualBlock(2, 4, stride, projection).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for tensor in block.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.1)
        x = torch.randn(3, 2, 6, 6, generator=generator)

        def normalised(values: Tensor, norm: nn.BatchNorm2d) -> Tensor:
            mean, variance, scale, shift = (
                part[:, None, None] for part in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
            )
            return (values - mean) / (variance + norm.eps).sqrt() * scale + shift

        inner = normalised(F.conv2d(x, block.convolution1.weight, stride=stride, padding=1), block.norm1).relu()
        inner = normalised(F.conv2d(inner, block.convolution2.weight, padding=1), block.norm2)
        if projection:
            convolution, norm = block.projection
            shortcut = normalised(F.conv2d(x, convolution.weight, stride=stride), norm)
        else:
            shortcut = torch.cat([x[:, :, ::stride, ::stride], torch.zeros(3, 2, 6 // stride, 6 // stride)], 1)
        torch.testing.assert_close(block(x), (inner + shortcut).relu(), atol=1e-4, rtol=1e-4)


def test_weights_start_as_he_et_al_draw_them():
    network = backbones.build("resnet32", 3, seed=3)
    for convolution in convolutions(network):
        weight = convolution.weight.detach()
        expected = (2 / (9 * convolution.out_channels)) ** 0.5
        assert weight.std().item() == pytest.approx(expected, rel=5 / (2 * weight.numel()) ** 0.5)
        assert convolution.bias is None
    assert {part.in_channels != part.out_channels for part in convolutions(network)} == {True, False}


@pytest.mark.parametrize("name", sorted(backbones.BACKBONES))
def test_the_same_seed_gives_the_same_weights_and_another_does_not(name: str):
    first, again, other = (backbones.build(name, 3, seed).state_dict() for seed in (7, 7, 8))
    assert all(torch.equal(tensor, again[key]) for key, tensor in first.items())
    assert not torch.equal(first["stem.0.weight"], other["stem.0.weight"])


def test_building_leaves_the_global_random_state_alone():
    torch.manual_seed(11)
    state = torch.get_rng_state()
    backbones.build("small", 3, seed=7)
    assert torch.equal(torch.get_rng_state(), state)


def test_building_leaves_the_gpus_random_state_alone(monkeypatch: pytest.MonkeyPatch):
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    backbones.build("small", 3, seed=7)
    assert seeds == []


def test_an_unknown_name_is_an_error_with_the_nearest_spelling():
    with pytest.raises(TreeringError, match=r"'resnet23'.*did you mean resnet(32|18)\?"):
        backbones.build("resnet23", 3, seed=0)
    with pytest.raises(TreeringError, match=r"'xyz'.*resnet32, resnet32-linear, resnet18, small"):
        backbones.build("xyz", 3, seed=0)


class Returns(nn.Module):
    """A module that computes whatever it is told."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x)


def test_feature_size_of_any_module_that_maps_images_to_features():
    assert backbones.feature_size(nn.Sequential(nn.Flatten(), nn.Linear(75, 11)), (3, 5, 5)) == 11
    assert backbones.feature_size(Returns(lambda x: x.flatten(1)), (2, 3, 4)) == 24


def raising(x: Tensor) -> Tensor:
    raise KeyError("no such layer\nand more")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x, r"torch.float32 and shape \(2, 3, 8, 8\)"),
        (lambda x: x.flatten(2), r"shape \(2, 3, 64\)"),
        (lambda x: x.flatten(), r"shape \(384,\)"),
        (lambda x: (x.flatten(1), x), "tuple"),
        (lambda x: None, "NoneType"),
        (lambda x: x.flatten(1).long(), "torch.int64"),
        (lambda x: x.flatten(1)[:1], r"shape \(1, 192\)"),
        (lambda x: x.flatten(1)[:, :0], r"shape \(2, 0\)"),
        (raising, r"shape \(3, 8, 8\).*no such layer"),
        (lambda x: x.reshape(7, 7), "invalid for input"),
    ],
    ids=["4-D", "3-D", "1-D", "tuple", "None", "integers", "one row", "no columns", "KeyError", "wrong shape"],
)
def test_a_module_that_does_not_map_images_to_features_is_an_error(function, message: str):
    with pytest.raises(TreeringError, match=message) as error:
        backbones.feature_size(Returns(function), (3, 8, 8))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("training", [True, False])
def test_asking_for_the_feature_size_changes_nothing(training: bool):
    network = backbones.build("small", 1, seed=0).train(training)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    backbones.feature_size(network, (1, 8, 8))
    assert network.training is training
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    with pytest.raises(TreeringError):
        backbones.feature_size(network, (2, 8, 8))
    assert network.training is training
