"""The GPU kernels in Triton's interpreter, on the CPU and in float32, against the plain code in float64.

On a machine with a GPU they are compiled, in bfloat16, and tested by test_cuda.py instead.
"""

from __future__ import annotations

import copy
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from treering import backbones, fused, losses
from treering.backbones import ResNet
from treering.network import SPARE_LOGIT, IncrementalNetwork
from treering.optim import SGD
from treering.recipe import Optimizer

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled here: see test_cuda.py")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported, which is when they are first needed


def network_of(features: nn.Module, side: int, channels: int = 3) -> IncrementalNetwork:
    """With weights and statistics that make every layer matter."""
    torch.manual_seed(0)
    for module in features.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
    network = IncrementalNetwork(features, 64, torch.rand(channels, side, side), 255.0)
    network.mixed_precision = True
    return network.train()


def errors(found: list[Tensor], wanted: list[Tensor]) -> list[float]:
    return [float((one - other).norm() / other.norm()) for one, other in zip(found, wanted, strict=True)]


def two_blocks_wide() -> nn.Module:
    """Blocks that keep their shape behind one that changes it, and a stem that is wider than the first channels."""
    torch.manual_seed(1)
    stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1, bias=False), backbones._norm(32), nn.ReLU())
    return ResNet(stem, [32, 64], blocks=2, projection=False)


@pytest.mark.parametrize(
    ("features", "side", "images"),
    [
        (backbones.build("small", 3, 0), 8, 6),
        (backbones.build("small", 1, 0), 8, 5),  # pixels that do not fill the last program
        (backbones.build("small", 3, 0), 16, 2),
        (two_blocks_wide(), 4, 3),
    ],
    ids=["small", "grey, odd batch", "larger", "wide stem"],
)
@pytest.mark.parametrize("last_relu", [True, False])
def test_features_gradients_and_statistics_are_those_of_the_network(
    features: nn.Module, side: int, images: int, last_relu: bool
) -> None:
    features.body[-1].last_relu = last_relu
    channels = next(features.parameters()).shape[1]
    network = network_of(copy.deepcopy(features), side, channels)
    exact = copy.deepcopy(network).double()
    exact.mixed_precision = False
    pixels = torch.randint(0, 256, (images, channels, side, side), dtype=torch.uint8)
    change = torch.randn(images, 64)

    extract = fused.extractor(network)
    assert extract is not None
    extract.dtype = torch.float32
    found = extract(pixels)
    gradients = torch.autograd.grad(found, list(network.features.parameters()), change)
    wanted = exact.extract(pixels)
    exact_gradients = torch.autograd.grad(wanted, list(exact.features.parameters()), change.double())

    assert max(errors([found.detach(), *gradients], [wanted.detach(), *exact_gradients])) < 1e-5
    assert max(errors(list(network.features.buffers()), list(exact.features.buffers()))) < 1e-5


def test_gradients_lie_as_their_parameters_do() -> None:
    network = network_of(backbones.build("small", 3, 0), 8).to(memory_format=torch.channels_last)
    extract = fused.extractor(network)
    assert extract is not None
    extract.dtype = torch.float32
    found = extract(torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8))
    parameters = list(network.features.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(found.sum(), parameters), strict=True):
        assert gradient.shape == parameter.shape
        assert gradient.dtype == parameter.dtype


def counting_batches() -> nn.Module:
    features = backbones.build("small", 3, 0)
    features.body[0].norm1 = nn.BatchNorm2d(16)
    return features


def other_kernel_size() -> nn.Module:
    features = backbones.build("small", 3, 0)
    features.body[0].convolution1 = nn.Conv2d(16, 16, 5, padding=2, bias=False)
    return features


@pytest.mark.parametrize(
    ("features", "shape"),
    [
        (backbones.build("resnet18", 3, 0), (3, 32, 32)),  # its shortcuts are convolutions
        (backbones.build("small", 3, 0), (3, 8, 16)),
        (backbones.build("small", 3, 0), (3, 12, 12)),
        (backbones.build("small", 3, 0), (3, 2, 2)),  # nothing is left of them
        (backbones.build("small", 20, 0), (20, 8, 8)),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 64)), (3, 8, 8)),
        (other_kernel_size(), (3, 8, 8)),
        (counting_batches(), (3, 8, 8)),
    ],
    ids=[
        "projections",
        "not square",
        "not a power of two",
        "too small",
        "many channels",
        "no ResNet",
        "5 x 5",
        "counts",
    ],
)
def test_networks_and_images_of_other_kinds_are_left_to_the_framework(
    features: nn.Module, shape: tuple[int, ...]
) -> None:
    network = IncrementalNetwork(features, 64, torch.zeros(shape), 255.0)
    network.mixed_precision = True
    assert fused.extractor(network) is None


def test_float32_is_left_to_the_framework() -> None:
    network = network_of(backbones.build("small", 3, 0), 8)
    network.mixed_precision = False
    assert fused.extractor(network) is None


def test_without_triton_everything_is_left_to_the_framework(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "treering.kernels", None)
    monkeypatch.delattr("treering.kernels", raising=False)
    fused.available.cache_clear()
    try:
        network = network_of(backbones.build("small", 3, 0), 8)
        assert fused.extractor(network) is None
        assert SGD(network, Optimizer(), torch.Generator())._update is None
        logits, targets = torch.randn(2, 3), torch.zeros(2, 3)
        heads, labels = torch.tensor([0, 0, 1]), torch.tensor([0, 2])
        found = fused.cross_distilled(logits, labels, targets, heads, 2.0)
        assert found == losses.cross_distilled(logits, labels, targets, heads, 2.0)
        assert "slower" in caplog.text
        assert len(caplog.records) == 1
    finally:
        fused.available.cache_clear()


@settings(deadline=None, max_examples=10)  # the interpreter is slow at scans
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    spare=st.integers(0, 9),
    spread=st.sampled_from([1.0, 30.0, 400.0]),
    seed=st.integers(0, 1000),
)
def test_loss_and_its_gradient_are_those_of_the_equations(
    sizes: list[int], spare: int, spread: float, seed: int
) -> None:
    torch.manual_seed(seed)
    classes, images = sum(sizes), 2
    columns = classes + spare
    heads = torch.cat([torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)), torch.full((spare,), columns)])
    logits = torch.randn(images, columns) * spread
    logits[:, classes:] = SPARE_LOGIT
    targets = torch.zeros(images, columns)
    for head in range(len(sizes) - 1):  # the last is not distilled
        inside = heads == head
        targets[:, inside] = torch.rand(images, int(inside.sum())).softmax(1)
    labels = torch.randint(0, classes, (images,))

    given_logits, exact_logits = logits.requires_grad_(), logits.detach().double().requires_grad_()
    found = fused.cross_distilled(given_logits, labels, targets, heads, 2.0)
    wanted = losses.cross_distilled(exact_logits, labels, targets.double(), heads, 2.0)
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    gradient = torch.autograd.grad(3 * found, given_logits)[0]
    exact = torch.autograd.grad(3 * wanted, exact_logits)[0]
    assert torch.allclose(gradient.double(), exact, atol=1e-6)


def test_heads_may_be_wider_than_what_a_kernel_takes_at_once() -> None:
    torch.manual_seed(0)
    sizes = torch.tensor([700, 1, 400, 13])  # the third lies across the end of the first 1024
    heads, columns = torch.arange(4).repeat_interleave(sizes), int(sizes.sum())
    logits, targets = torch.randn(1, columns) * 5, torch.rand(1, columns) / columns
    label = torch.tensor([1000])
    given_logits, exact_logits = logits.requires_grad_(), logits.detach().double().requires_grad_()
    found = fused.cross_distilled(given_logits, label, targets, heads, 2.0)
    wanted = losses.cross_distilled(exact_logits, label, targets.double(), heads, 2.0)
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    gradient, exact = torch.autograd.grad(found, given_logits)[0], torch.autograd.grad(wanted, exact_logits)[0]
    assert torch.allclose(gradient.double(), exact, atol=1e-6)


@pytest.mark.parametrize("decay", ["norm-scaled", "plain"])
@pytest.mark.parametrize("noise_eta", [0.3, 0.0])
@pytest.mark.parametrize("weight_decay", [0.01, 0.0])
def test_update_is_that_of_the_plain_optimiser(decay: str, noise_eta: float, weight_decay: float) -> None:
    optimisers = []
    for fast in (False, True):
        network = network_of(backbones.build("small", 1, 0), 8, channels=1)
        network.mixed_precision = fast
        generator = torch.Generator().manual_seed(1)
        network.reserve(30)
        for size in (7, 5):
            network.add_head(size, generator)
        chosen = Optimizer(weight_decay=weight_decay, decay=decay, noise_eta=noise_eta)
        optimiser = SGD(network, chosen, generator)
        assert (optimiser._update is not None) == fast
        optimiser.start_epoch(0.1, 2, 16)
        for number in range(3):
            optimiser.step(torch.randn(len(optimiser.values), generator=torch.Generator().manual_seed(number)))
        optimisers.append(optimiser)
    plain, fast = optimisers
    assert torch.allclose(plain.values, fast.values, atol=2e-6)
    assert torch.allclose(plain.momentum, fast.momentum, atol=2e-5)
