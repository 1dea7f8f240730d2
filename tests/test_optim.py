"""The optimiser against a plain-loop oracle: momentum, norm-scaled decay tensor by tensor, gradient noise."""

from __future__ import annotations

import math
from dataclasses import replace

import oracles
import pytest
import torch
from torch import Tensor, nn

from treering.core.network import IncrementalNetwork
from treering.core.optim import SGD, Adam, noise_deviation
from treering.recipe import Optimizer

QUIET = Optimizer(noise_eta=0.0, weight_decay=0.02)
"""No noise, and a decay large enough to see."""
HEADS = {"head 0": slice(0, 1), "head 1": slice(1, 5)}
SPARE = 3


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiny_network(spare: int = SPARE) -> IncrementalNetwork:
    """Float64: a convolution with a bias, a batch-norm, a linear layer, heads of 1 and 4 classes and spare rows."""
    features = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    network = IncrementalNetwork(features, 3, torch.zeros(2, 4, 4), 255.0).double()
    network.add_head(1, seeded(1))
    network.add_head(4, seeded(2))
    network.reserve(5 + spare)
    generator = seeded(3)
    with torch.no_grad():
        for part in network.parameters():
            part.copy_(torch.randn(part.shape, generator=generator, dtype=torch.float64))
        network.weight[5:] = 0
        network.bias[5:] = 0
    return network


def pieces(network: IncrementalNetwork, tensors: dict[str, Tensor]) -> dict[str, list[float]]:
    """The numbers of each tensor the paper knows: every head is one of its own, spare rows are none."""
    out = {name: tensor.flatten().tolist() for name, tensor in tensors.items() if name.startswith("features.")}
    for head, rows in HEADS.items():
        out[f"{head} weight"] = tensors["weight"][rows].flatten().tolist()
        out[f"{head} bias"] = tensors["bias"][rows].tolist()
    return out


DECAYED = {"features.0.weight", "features.4.weight", "head 0 weight", "head 1 weight"}


class Oracle:
    """The same network in plain lists."""

    def __init__(self, network: IncrementalNetwork, settings: Optimizer) -> None:
        self.network, self.settings = network, settings
        self.values = pieces(network, dict(network.named_parameters()))
        self.empty_momentum()

    def empty_momentum(self) -> None:
        self.velocity = {name: [0.0] * len(numbers) for name, numbers in self.values.items()}

    def step(self, gradients: dict[str, Tensor], lr: float) -> None:
        for name, gradient in pieces(self.network, gradients).items():
            oracles.sgd_update(
                self.values[name],
                self.velocity[name],
                gradient,
                lr,
                self.settings.momentum,
                self.settings.weight_decay if name in DECAYED else 0.0,
                self.settings.decay == "norm-scaled",
            )


def random_gradients(network: IncrementalNetwork, generator: torch.Generator) -> dict[str, Tensor]:
    gradients = {
        name: torch.randn(part.shape, generator=generator, dtype=torch.float64)
        for name, part in network.named_parameters()
    }
    gradients["weight"][5:] = 0  # a spare column's logit is constant, so its row has no gradient
    gradients["bias"][5:] = 0
    return gradients


def apply(optimizer: SGD, network: IncrementalNetwork, gradients: dict[str, Tensor]) -> None:
    names = {id(part): name for name, part in network.named_parameters()}
    optimizer.step(optimizer.flat([gradients[names[id(part)]] for part in optimizer.parameters]))


def assert_same(network: IncrementalNetwork, oracle: Oracle) -> None:
    for name, numbers in pieces(network, dict(network.named_parameters())).items():
        assert numbers == pytest.approx(oracle.values[name], abs=1e-6, rel=1e-9), name


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels-last"])
@pytest.mark.parametrize("spare", [0, SPARE])
@pytest.mark.parametrize("reset_momentum", [True, False])
@pytest.mark.parametrize(
    "changes",
    [{}, {"decay": "plain"}, {"weight_decay": 0.0}, {"momentum": 0.0}, {"momentum": 0.5, "weight_decay": 0.1}],
)
def test_updates_are_those_of_the_plain_loop(
    changes: dict, reset_momentum: bool, spare: int, memory_format: torch.memory_format
):
    settings = replace(QUIET, reset_momentum=reset_momentum, **changes)
    network = tiny_network(spare).to(memory_format=memory_format)
    oracle = Oracle(network, settings)
    optimizer = SGD(network, settings, seeded())
    generator = seeded(4)
    for epoch, lr in enumerate([0.05, 0.05, 0.005], start=1):
        optimizer.start_epoch(lr, epoch, batch_size=128)
        if reset_momentum:
            oracle.empty_momentum()
        for _ in range(3):
            gradients = random_gradients(network, generator)
            apply(optimizer, network, gradients)
            oracle.step(gradients, lr)
            assert_same(network, oracle)
    assert (network.weight[5:] == 0).all()
    assert (network.bias[5:] == 0).all()


def test_decay_alone_moves_each_weight_tensor_by_lambda_times_its_own_squared_norm_and_nothing_else():
    network = tiny_network()
    before = pieces(network, dict(network.named_parameters()))
    optimizer = SGD(network, QUIET, seeded())
    optimizer.start_epoch(1.0, 1, batch_size=128)
    apply(optimizer, network, {name: torch.zeros_like(part) for name, part in network.named_parameters()})
    for name, numbers in pieces(network, dict(network.named_parameters())).items():
        shrink = 1 - 0.02 * math.fsum(value**2 for value in before[name]) if name in DECAYED else 1.0
        assert numbers == pytest.approx([shrink * value for value in before[name]], abs=1e-6), name


def test_what_stands_in_spare_rows_does_not_change_the_decay_of_a_head():
    clean, dirty = tiny_network(), tiny_network()
    with torch.no_grad():
        dirty.weight[5:] = 100.0  # noise reaches spare rows too
    for network in (clean, dirty):
        optimizer = SGD(network, QUIET, seeded())
        optimizer.start_epoch(0.1, 1, batch_size=128)
        apply(optimizer, network, random_gradients(network, seeded(5)))
    torch.testing.assert_close(dirty.weight[:5], clean.weight[:5], atol=1e-12, rtol=0)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels-last"])
def test_the_network_computes_with_the_updated_weights(memory_format: torch.memory_format):
    network = tiny_network().eval().to(memory_format=memory_format)
    images = torch.randint(256, (6, 2, 4, 4), generator=seeded(6), dtype=torch.uint8)
    before = network.predict_logits(images)
    optimizer = SGD(network, QUIET, seeded())
    torch.testing.assert_close(network.predict_logits(images), before, atol=0, rtol=0)
    optimizer.start_epoch(0.1, 1, batch_size=128)
    apply(optimizer, network, random_gradients(network, seeded(7)))
    assert network.get_parameter("features.0.weight").is_contiguous(memory_format=memory_format)
    features = network.predict_features(images)
    after = network.predict_logits(images)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, features @ network.weight[:5].detach().T + network.bias[:5].detach())


def test_spare_rows_get_no_gradient_from_the_network():
    network = tiny_network()
    images = torch.randint(256, (6, 2, 4, 4), generator=seeded(8), dtype=torch.uint8)
    loss = network(images).logsumexp(1).sum()
    weight, bias = torch.autograd.grad(loss, [network.weight, network.bias])
    assert (weight[5:] == 0).all()
    assert (bias[5:] == 0).all()
    assert (weight[:5] != 0).any(1).all()


def test_frozen_parameters_stay_as_they_are():
    network = tiny_network()
    frozen = network.get_parameter("features.0.weight").requires_grad_(False)
    before = frozen.clone()
    optimizer = SGD(network, QUIET, seeded())
    optimizer.start_epoch(0.1, 1, batch_size=128)
    apply(optimizer, network, random_gradients(network, seeded(9)))
    assert torch.equal(frozen, before)
    assert not torch.equal(network.weight, tiny_network().weight)


def noise_of(settings: Optimizer, epoch: int, batch_size: int, draws: int, seed: int = 0) -> Tensor:
    """draws x parameters: what gradients of zero become, seen through a learning rate of -1 and no momentum."""
    network = tiny_network()
    settings = replace(settings, momentum=0.0, weight_decay=0.0)
    optimizer = SGD(network, settings, seeded(seed))
    optimizer.start_epoch(-1.0, epoch, batch_size)
    rows = []
    for _ in range(draws):
        for part in optimizer.parameters:
            part.data.zero_()
        optimizer.step(torch.zeros_like(optimizer.values))
        rows.append(torch.cat([part.detach().flatten() for part in optimizer.parameters]))
    return torch.stack(rows)


@pytest.mark.parametrize(("epoch", "batch_size"), [(1, 128), (10, 128), (41, 128), (70, 32)])
def test_the_noise_has_the_papers_deviation_divided_by_the_batch_size(epoch: int, batch_size: int):
    noise = noise_of(Optimizer(), epoch, batch_size, draws=1500)
    expected = (0.3 / (1 + epoch) ** 0.55 / batch_size) ** 2
    # The variance of n draws deviates by sqrt(2 / n) of itself, their mean by sqrt(variance / n).
    assert noise.square().mean().item() == pytest.approx(expected, rel=5 * math.sqrt(2 / noise.numel()))
    assert abs(noise.mean().item()) < 5 * math.sqrt(expected / noise.numel())
    every = noise.square().mean(0) / expected
    assert (every - 1).abs().max() < 6 * math.sqrt(2 / len(noise)), "some parameter gets other noise"


def test_noise_is_drawn_afresh_for_every_element_and_step():
    noise = noise_of(Optimizer(), 1, 128, draws=3)
    assert len(noise.unique()) == noise.numel()


def test_noise_comes_from_the_generator():
    first, again, other = (noise_of(Optimizer(), 1, 128, draws=2, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_an_eta_of_zero_means_no_noise():
    assert (noise_of(Optimizer(noise_eta=0.0), 1, 128, draws=2) == 0).all()


def test_an_eta_of_zero_draws_nothing_from_the_generator():
    network, generator = tiny_network(), seeded()
    state = generator.get_state()
    optimizer = SGD(network, QUIET, generator)
    optimizer.start_epoch(0.1, 1, batch_size=128)
    apply(optimizer, network, random_gradients(network, seeded(10)))
    assert torch.equal(generator.get_state(), state)


def test_noise_is_added_to_the_gradient():
    network = tiny_network()
    settings = Optimizer(momentum=0.0, weight_decay=0.0)
    before = {name: part.detach().clone() for name, part in network.named_parameters()}
    optimizer = SGD(network, settings, seeded())
    optimizer.start_epoch(0.5, 1, batch_size=128)
    gradients = {name: torch.ones_like(part) for name, part in network.named_parameters()}
    apply(optimizer, network, gradients)
    largest = 8 * 0.3 / 2**0.55 / 128
    for name, part in network.named_parameters():
        gradient = (before[name] - part.detach()) / 0.5
        assert (gradient - 1).abs().max() < largest
        assert (gradient != 1).all()


def test_noise_falls_from_epoch_to_epoch_through_both_stages():
    deviations = [noise_deviation(Optimizer(), epoch, 128) for epoch in range(1, 71)]
    assert deviations == sorted(deviations, reverse=True)
    assert deviations[0] == pytest.approx(0.3 / 2**0.55 / 128)
    assert deviations[40] == pytest.approx(0.3 / 42**0.55 / 128)


def test_each_epoch_sets_its_own_learning_rate_and_noise():
    optimizer = SGD(tiny_network(), Optimizer(), seeded())
    for epoch, lr in [(1, 0.1), (11, 0.01), (41, 0.001)]:
        optimizer.start_epoch(lr, epoch, batch_size=64)
        assert optimizer.lr.item() == pytest.approx(lr)
        assert optimizer.noise_deviation.item() == pytest.approx(0.3 / (1 + epoch) ** 0.55 / 64)


def test_every_parameter_starts_at_a_multiple_of_64_bytes() -> None:
    # Compiled kernels read several values at once; a misaligned parameter is an error on a GPU.
    features = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Linear(7, 5))
    network = IncrementalNetwork(features, 5, torch.zeros(3, 2, 2), 255.0)
    network.add_head(3, torch.Generator().manual_seed(0))
    before = {name: part.detach().clone() for name, part in network.named_parameters()}
    optimizer = SGD(network, Optimizer(), torch.Generator())
    for name, part in network.named_parameters():
        assert torch.equal(part, before[name])
        assert (part.data_ptr() - optimizer.values.data_ptr()) % 64 == 0, name


@pytest.mark.parametrize("before", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("after", [torch.channels_last, torch.contiguous_format])
def test_saved_momentum_belongs_to_its_parameters_in_any_memory_format(
    before: torch.memory_format, after: torch.memory_format
) -> None:
    def optimizer_in(memory_format: torch.memory_format) -> SGD:
        network = tiny_network()
        network.to(memory_format=memory_format)  # type: ignore[call-overload]
        return SGD(network, QUIET, seeded())

    one, other = optimizer_in(before), optimizer_in(after)
    one.momentum.copy_(torch.randn(len(one.momentum), generator=seeded(4), dtype=torch.float64))
    other.load_momentum(one.saved_momentum())
    for part, taken_up in zip(one._views(one.momentum), other._views(other.momentum), strict=True):
        assert torch.equal(part, taken_up)
        assert part.abs().min() > 0


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels-last"])
def test_adam_is_that_of_torch_with_decay_on_weight_tensors_alone(memory_format: torch.memory_format):
    settings = replace(QUIET, kind="adam", reset_momentum=False)
    network, theirs = (tiny_network().to(memory_format=memory_format) for _ in range(2))
    decayed = [part for part in theirs.parameters() if part.ndim > 1]
    others = [part for part in theirs.parameters() if part.ndim == 1]
    reference = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}], betas=(0.9, 0.999)
    )
    optimizer, generator = Adam(network, settings, seeded()), seeded(4)
    for epoch, lr in enumerate([0.05, 0.05, 0.005], start=1):
        optimizer.start_epoch(lr, epoch, batch_size=128)
        for group in reference.param_groups:
            group["lr"] = lr
        for _ in range(3):
            gradients = random_gradients(network, generator)
            apply(optimizer, network, gradients)
            for name, part in theirs.named_parameters():
                part.grad = gradients[name].clone()
            reference.step()
    for mine, part in zip(network.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, part, rtol=1e-6, atol=1e-7)  # the learning rate is kept in float32 there


def test_adam_goes_on_from_its_saved_moments():
    settings = replace(QUIET, kind="adam", reset_momentum=False)
    through, halted = tiny_network(), tiny_network()
    gradients = [random_gradients(through, seeded(seed)) for seed in (4, 5)]
    whole, first = Adam(through, settings, seeded()), Adam(halted, settings, seeded())
    for optimizer, network in ((whole, through), (first, halted)):
        optimizer.start_epoch(0.05, 1, batch_size=128)
        apply(optimizer, network, gradients[0])
    second = Adam(halted, settings, seeded())
    second.load_momentum(first.saved_momentum())
    second.start_epoch(0.05, 2, batch_size=128)
    apply(whole, through, gradients[1])
    apply(second, halted, gradients[1])
    for mine, part in zip(through.parameters(), halted.parameters(), strict=True):
        assert torch.equal(mine, part)


@pytest.mark.parametrize(("clip", "factor"), [(0.0, 1.0), (1e9, 1.0), (0.5, None)])
def test_a_gradient_longer_than_the_bound_is_shortened_to_it(clip: float, factor: float | None):
    network = tiny_network()
    settings = replace(QUIET, clip=clip, weight_decay=0.0, momentum=0.0)
    optimizer, gradients = SGD(network, settings, seeded()), random_gradients(network, seeded(4))
    if factor is None:
        factor = clip / math.sqrt(math.fsum(float(part.square().sum()) for part in gradients.values()))
    expected = {name: part - 0.1 * factor * gradients[name] for name, part in network.named_parameters()}
    optimizer.start_epoch(0.1, 1, batch_size=128)
    apply(optimizer, network, gradients)
    for name, part in network.named_parameters():
        torch.testing.assert_close(part.detach(), expected[name].detach(), rtol=1e-6, atol=1e-7)
