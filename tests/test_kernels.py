"""The GPU kernels in Triton's interpreter, on the CPU and in float32, against the plain code in float64.

On a machine with a GPU they are compiled, in bfloat16, and tested by test_cuda.py instead.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from treering.core import backbones, engine, fused, losses
from treering.core.backbones import ResNet
from treering.core.capture import try_kernels
from treering.core.fused import residual
from treering.core.network import SPARE_LOGIT, IncrementalNetwork
from treering.core.optim import SGD
from treering.core.update import BatchUpdate, TrainingSet
from treering.recipe import Optimizer

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled here: see test_cuda.py")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton and the kernels are imported
pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def failures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of the kernels, in a test."""
    failures: list[str] = []
    monkeypatch.setattr(engine, "failures", failures)
    return failures


def network_of(features: nn.Module, side: int, channels: int = 3) -> IncrementalNetwork:
    """With weights, statistics and settings that make every part of every layer matter."""
    torch.manual_seed(0)
    for module in features.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            module.momentum, module.eps = 0.3, 1e-2
    network = IncrementalNetwork(features, 64, torch.rand(channels, side, side), 100.0)
    network.engine.kernels = True
    return network.train()


def small(channels: int = 3) -> Any:
    return backbones.build("small", channels, 0)


def without_last_relu() -> nn.Module:
    features = small()
    features.body[-1].last_relu = False
    return features


def without_a_relu_inside() -> nn.Module:
    features = small()
    features.body[0].last_relu = False
    return features


def wide_stem() -> nn.Module:
    """Blocks that keep their shape behind one that changes it, and a stem that is wider than the first channels."""
    torch.manual_seed(1)
    stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1, bias=False), backbones._norm(32), nn.ReLU())
    return ResNet(stem, [32, 64], blocks=2, projection=False)


def errors(found: list[Tensor], wanted: list[Tensor]) -> list[float]:
    return [float((one - other).norm() / other.norm()) for one, other in zip(found, wanted, strict=True)]


@pytest.mark.parametrize(
    ("features", "side", "images"),
    [
        (small(), 8, 6),
        (small(1), 8, 5),  # pixels that do not fill the last program
        (small(), 16, 7),
        (wide_stem(), 4, 3),
        (without_last_relu(), 8, 3),
        (without_a_relu_inside(), 8, 3),
    ],
    ids=["small", "grey, odd batch", "larger", "wide stem", "linear features", "a linear block"],
)
def test_features_gradients_and_statistics_are_those_of_the_network(
    features: nn.Module, side: int, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residual, "ELEMENTS", 1024)  # so that every kernel needs several programs
    monkeypatch.setattr(residual, "WEIGHT_PROGRAMS", 5)
    channels = next(features.parameters()).shape[1]
    network = network_of(copy.deepcopy(features), side, channels)
    exact = copy.deepcopy(network).double()
    pixels = torch.randint(0, 256, (images, channels, side, side), dtype=torch.uint8)
    pixels = pixels.contiguous(memory_format=torch.channels_last)
    change = torch.randn(64, images).T

    extract = fused.extractor(network, images)
    assert extract is not None
    found = extract(pixels)
    gradients = torch.autograd.grad(found, list(network.features.parameters()), change)
    wanted = exact.extract(pixels)
    exact_gradients = torch.autograd.grad(wanted, list(exact.features.parameters()), change.double())

    assert max(errors([found.detach(), *gradients], [wanted.detach(), *exact_gradients])) < 1e-5
    assert max(errors(list(network.features.buffers()), list(exact.features.buffers()))) < 1e-5


def test_parameters_may_lie_in_memory_in_any_order() -> None:
    network = network_of(small(), 8)
    other = copy.deepcopy(network).to(memory_format=torch.channels_last)
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    found = []
    for one in (network, other):
        extract = fused.extractor(one, 2)
        assert extract is not None
        found.append(torch.autograd.grad(extract(pixels).square().sum(), list(one.features.parameters())))
    assert max(errors(list(found[0]), list(found[1]))) < 1e-6


def test_a_diverged_network_says_so_in_its_features() -> None:
    network = network_of(small(), 8)
    network.features.body[1].norm1.weight.data[3] = torch.nan
    extract = fused.extractor(network, 2)
    assert extract is not None
    assert extract(torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)).isnan().any()


def test_going_back_twice_gives_the_same_gradient_and_going_further_is_refused() -> None:
    network = network_of(small(), 8)
    extract = fused.extractor(network, 2)
    assert extract is not None
    parameters = list(network.features.parameters())
    total = extract(torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)).square().sum()
    first = [part.clone() for part in torch.autograd.grad(total, parameters, retain_graph=True)]
    assert max(errors(list(torch.autograd.grad(total, parameters, retain_graph=True)), first)) < 1e-6
    (gradient, *_) = torch.autograd.grad(total, parameters, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def changed(change: Callable[[Any], None]) -> nn.Module:
    features = small()
    change(features)
    return features


def convolution(**settings: Any) -> nn.Module:
    """`small` with other settings of its second convolution."""
    made = {"kernel_size": 3, "padding": 1, "bias": False} | settings
    return changed(lambda features: setattr(features.body[0], "convolution1", nn.Conv2d(16, 16, **made)))


def norm(made: nn.Module) -> nn.Module:
    """`small` with another first normalisation in its first block."""
    if isinstance(made, nn.BatchNorm2d):
        made.num_batches_tracked = None
    return changed(lambda features: setattr(features.body[0], "norm1", made))


class Frozen(nn.BatchNorm2d):
    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)


class Other(ResNet):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square()


def other_resnet() -> nn.Module:
    return Other(small().stem, [16, 32, 64], blocks=1, projection=False)


OTHER_NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convolutions as shortcuts": lambda: ResNet(small().stem, [16, 32, 64], blocks=1, projection=True),
    "channels that do not double": lambda: ResNet(small().stem, [16, 64], blocks=1, projection=False),
    "too many channels": lambda: ResNet(small().stem, [16, 32, 64, 128], blocks=1, projection=False),
    "no ResNet": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 64)),
    "a kind of ResNet": other_resnet,
    "a stem without ReLU": lambda: changed(lambda features: setattr(features, "stem", features.stem[:2])),
    "a stem without anything": lambda: changed(lambda features: setattr(features, "stem", nn.Sequential())),
    "a stem with a stride": lambda: changed(lambda features: setattr(features.stem[0], "stride", (2, 2))),
    "a hook": lambda: changed(lambda features: features.body[1].register_forward_hook(lambda *arguments: None)),
    "5 x 5": lambda: convolution(kernel_size=5, padding=2),
    "reflection": lambda: convolution(padding_mode="reflect"),
    "dilation": lambda: convolution(dilation=2, padding=2),
    "groups": lambda: convolution(groups=4),
    "bias": lambda: convolution(bias=True),
    "group norm": lambda: norm(nn.GroupNorm(4, 16)),
    "frozen statistics": lambda: norm(Frozen(16)),
    "cumulative statistics": lambda: norm(nn.BatchNorm2d(16, momentum=None)),
    "no statistics": lambda: norm(nn.BatchNorm2d(16, track_running_stats=False)),
    "no scale": lambda: norm(nn.BatchNorm2d(16, affine=False)),
    "counted batches": lambda: changed(lambda features: setattr(features.body[0], "norm1", nn.BatchNorm2d(16))),
}


@pytest.mark.parametrize("name", OTHER_NETWORKS)
def test_networks_of_other_kinds_are_left_to_the_framework(name: str) -> None:
    network = IncrementalNetwork(OTHER_NETWORKS[name](), 64, torch.zeros(3, 8, 8), 255.0).train()
    network.engine.kernels = True
    assert fused.extractor(network, 4) is None


@pytest.mark.parametrize(
    ("shape", "images"),
    [((3, 8, 16), 4), ((3, 12, 12), 4), ((3, 2, 2), 4), ((20, 8, 8), 4), ((3, 1024, 1024), 128)],
    ids=["not square", "not a power of two", "too small", "many channels", "more than 32 bits count"],
)
def test_images_of_other_kinds_are_left_to_the_framework(shape: tuple[int, int, int], images: int) -> None:
    network = IncrementalNetwork(small(shape[0]), 64, torch.zeros(shape), 255.0).train()
    network.engine.kernels = True
    assert fused.extractor(network, images) is None


def test_a_network_is_left_to_the_framework_where_it_shall_be() -> None:
    network = network_of(small(), 8)
    assert fused.extractor(network, 4) is not None
    network.engine.kernels = False
    assert fused.extractor(network, 4) is None


def test_without_triton_the_kernels_are_not_there_which_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert not engine.kernels_available()
    assert not engine.kernels_available()
    (record,) = caplog.records
    assert "slower" in record.message
    assert "ModuleNotFoundError" in record.message


def test_after_a_kernel_has_failed_new_networks_do_without_them(caplog: pytest.LogCaptureFixture) -> None:
    engine.give_up_kernels(RuntimeError("at 57:17:\nno C compiler"))
    assert not engine.kernels_available()
    assert "(RuntimeError: no C compiler)" in caplog.text


def loss_and_gradient(function: Callable[..., Tensor], logits: Tensor, *others: Any) -> tuple[float, Tensor]:
    given_logits = logits.detach().requires_grad_()
    loss = 3 * function(given_logits, *others)
    return float(loss.detach()) / 3, torch.autograd.grad(loss, given_logits)[0].double() / 3


@settings(max_examples=10)  # the interpreter is slow at scans
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    spare=st.integers(0, 9),
    spread=st.sampled_from([1.0, 30.0, 400.0]),
    temperature=st.sampled_from([1.0, 2.0, 3.5]),
    seed=st.integers(0, 1000),
)
def test_loss_and_its_gradient_are_those_of_the_equations(
    sizes: list[int], spare: int, spread: float, temperature: float, seed: int
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
    found, gradient = loss_and_gradient(fused.cross_distilled, logits, labels, targets, heads, temperature)
    exact = (logits.double(), labels, targets.double(), heads, temperature)
    wanted, exact_gradient = loss_and_gradient(losses.cross_distilled, *exact)
    assert found == pytest.approx(wanted, rel=1e-5, abs=1e-6 * spread)
    assert torch.allclose(gradient, exact_gradient, atol=1e-6)


def test_heads_may_be_wider_than_what_a_kernel_takes_at_once() -> None:
    torch.manual_seed(0)
    sizes = torch.tensor([700, 1, 400, 13])  # the third lies across the end of the first 1024
    heads, columns = torch.arange(4).repeat_interleave(sizes), int(sizes.sum())
    logits, targets = torch.randn(1, columns) * 5, torch.rand(1, columns) / columns
    label = torch.tensor([1000])
    found, gradient = loss_and_gradient(fused.cross_distilled, logits, label, targets, heads, 2.0)
    exact = (logits.double(), label, targets.double(), heads, 2.0)
    wanted, exact_gradient = loss_and_gradient(losses.cross_distilled, *exact)
    assert found == pytest.approx(wanted, rel=1e-5)
    assert torch.allclose(gradient, exact_gradient, atol=1e-6)


def test_logits_labels_and_targets_may_lie_in_memory_in_any_order() -> None:
    torch.manual_seed(0)
    logits, targets, heads = torch.randn(5, 4), torch.rand(5, 4), torch.tensor([0, 0, 1, 1])
    labels = torch.tensor([0, 3, 1, 2, 2])
    wanted, gradient = loss_and_gradient(fused.cross_distilled, logits, labels, targets, heads, 2.0)
    scattered = (
        logits.T.contiguous().T,
        torch.stack([labels, labels], 1)[:, 0],
        torch.cat([targets, targets], 1)[:, :4],
        torch.stack([heads, heads], 1)[:, 0],
    )
    assert not any(part.is_contiguous() for part in scattered)
    found, other = loss_and_gradient(fused.cross_distilled, *scattered, 2.0)
    assert found == pytest.approx(wanted)
    assert torch.allclose(other, gradient)


@pytest.mark.parametrize("decay", ["norm-scaled", "plain"])
@pytest.mark.parametrize("noise_eta", [0.3, 0.0])
@pytest.mark.parametrize("weight_decay", [0.01, 0.0])
def test_update_is_that_of_the_plain_optimiser(decay: Any, noise_eta: float, weight_decay: float) -> None:
    optimisers = []
    for fast in (False, True):
        network = network_of(small(1), 8, channels=1)
        network.engine.kernels = fast
        generator = torch.Generator().manual_seed(1)
        network.reserve(30)
        network.add_head(7, generator)
        chosen = Optimizer(weight_decay=weight_decay, decay=decay, noise_eta=noise_eta, momentum=0.8)
        optimiser = SGD(network, chosen, generator)
        assert (optimiser._update is not None) == fast
        network.add_head(5, generator)  # as in a captured run: the optimiser stays
        optimiser.start_epoch(0.1, 2, 16)
        for number in range(3):
            optimiser.step(torch.randn(len(optimiser.values), generator=torch.Generator().manual_seed(number)))
        optimisers.append(optimiser)
    plain, fused_one = optimisers
    assert torch.allclose(plain.values, fused_one.values, atol=2e-6)
    assert torch.allclose(plain.momentum, fused_one.momentum, atol=2e-5)


# --- What a capture does before it captures ---------------------------------------------------------------------------


def tried(loss: Callable[..., Tensor]) -> BatchUpdate:
    """An update once done as before a capture: by the kernels, if they work."""
    network = network_of(small(), 8)
    network.add_head(4, torch.Generator().manual_seed(0))
    data = TrainingSet.empty(6, (3, 8, 8), 4, torch.device("cpu"))
    data.images.random_(generator=torch.Generator().manual_seed(0))
    update = BatchUpdate(network, SGD(network, Optimizer(), torch.Generator()), loss, data, 4)
    try_kernels(update, update.run_batch)
    return update


def loss_by_kernel(logits: Tensor, labels: Tensor, targets: Tensor, heads: Tensor) -> Tensor:
    return fused.cross_distilled(logits, labels, targets, heads, 2.0)


def test_a_capture_uses_the_kernels_where_they_work(failures: list[str]) -> None:
    update = tried(loss_by_kernel)
    assert isinstance(update.extract, fused.FusedExtractor)
    assert update.network.engine.kernels
    assert not failures
    assert update.losses[0] == pytest.approx(1.4, abs=0.8)


def test_a_kernel_that_fails_is_done_without(
    failures: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from treering.core.fused import residual_kernels

    def fail(*arguments: Any, **settings: Any) -> None:
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(residual_kernels.weight_gradient, "run", fail)
    update = tried(lambda logits, labels, targets, heads: losses.cross_entropy(logits, labels))
    assert update.extract == update.network.extract
    assert not update.network.engine.kernels
    monkeypatch.setattr(update.optimizer, "_update", fail)
    update.optimizer.step(torch.zeros_like(update.optimizer.values))
    assert failures == ["RuntimeError: no C compiler"]
    assert "no C compiler" in caplog.text
    assert update.losses[0] > 0


@pytest.mark.parametrize("error", [ValueError("a loss of the user's"), torch.OutOfMemoryError("no memory left")])
def test_what_is_not_the_kernels_fault_is_not_held_against_them(error: Exception, failures: list[str]) -> None:
    def loss(*arguments: Tensor) -> Tensor:
        raise error

    with pytest.raises(type(error), match=str(error)):
        tried(loss)
    assert not failures
