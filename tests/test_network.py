"""The network: heads come, rows are reserved, tensors go out and in, and what was learnt stays bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from treering.core import backbones
from treering.core.network import SPARE_LOGIT, IncrementalNetwork

UNEVEN_HEADS = [1, 7, 2, 30]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(seed: int, count: int) -> Tensor:
    return torch.randint(256, (count, 1, 8, 8), generator=seeded(seed), dtype=torch.uint8)


def network_with(head_sizes: list[int], rows: int = 0, seed: int = 0) -> IncrementalNetwork:
    mean_image = torch.rand(1, 8, 8, generator=seeded(99))
    network = IncrementalNetwork(backbones.build("small", 1, seed), 64, mean_image, 255.0)
    network.reserve(rows)
    generator = seeded(seed)
    for size in head_sizes:
        network.add_head(size, generator)
    return network


def random_biases(network: IncrementalNetwork, seed: int) -> None:
    """Nonzero biases and batch-norm statistics, as training leaves them."""
    with torch.no_grad():
        network.bias[: network.classes].uniform_(-1, 1, generator=seeded(seed))
        for name, buffer in network.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 1.5, generator=seeded(seed))


@pytest.mark.parametrize("rows", [0, 17, 60])
def test_a_new_head_leaves_the_old_logits_bit_identical(rows: int):
    images = random_images(1, 40)
    network = network_with([2], rows)
    for size in UNEVEN_HEADS:
        random_biases(network, size)
        classes = network.classes
        before = network.predict_logits(images)
        weight, bias = network.weight[:classes].detach().clone(), network.bias[:classes].detach().clone()
        network.add_head(size, seeded(size))
        assert network.classes == classes + size
        assert torch.equal(network.weight[:classes], weight)
        assert torch.equal(network.bias[:classes], bias)
        assert torch.equal(network.predict_logits(images)[:, :classes], before)


@settings(max_examples=25)
@given(head_sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5), spare=st.integers(0, 5))
def test_heads_of_any_sizes_stand_side_by_side(head_sizes: list[int], spare: int):
    network = network_with(head_sizes, sum(head_sizes) + spare)
    assert network.classes == sum(head_sizes)
    assert network.head_sizes == head_sizes
    expected = [head for head, size in enumerate(head_sizes) for _ in range(size)]
    assert network.head_of_class.tolist() == expected + [sum(head_sizes) + spare] * spare
    assert network(random_images(1, 2)).shape == (2, sum(head_sizes) + spare)
    assert network.predict_logits(random_images(1, 2)).shape == (2, sum(head_sizes))


def test_logits_are_the_linear_layer_of_the_features():
    network = network_with(UNEVEN_HEADS, rows=50)
    random_biases(network, 4)
    images = random_images(5, 6)
    features = network.predict_features(images).double().numpy()
    weight, bias = network.weight.detach().double().numpy(), network.bias.detach().double().numpy()
    expected = np.array([[row @ weight[k] + bias[k] for k in range(40)] for row in features])
    np.testing.assert_allclose(network.predict_logits(images).numpy(), expected, atol=1e-4)


def test_reserving_rows_keeps_the_logits_of_learnt_classes():
    network = network_with([1, 7])
    random_biases(network, 6)
    images = random_images(7, 20)
    before = network.predict_logits(images)
    network.reserve(30)
    assert torch.equal(network.predict_logits(images), before)
    assert len(network.bias) == len(network.weight) == len(network.head_of_class) == 30
    network.reserve(4)
    assert len(network.bias) == 30, "rows once reserved stay"
    assert torch.equal(network.predict_logits(images), before)


def test_spare_columns_hold_the_spare_logit_and_no_probability():
    network = network_with([3, 2], rows=9).eval()
    with torch.no_grad():
        network.weight[5:] = 50.0
        logits = network(random_images(8, 10))
    assert (logits[:, 5:] == SPARE_LOGIT).all()
    assert (logits.softmax(1)[:, 5:] == 0).all()
    assert (logits[:, :5] != SPARE_LOGIT).all()


def test_a_head_drawn_into_reserved_rows_is_the_head_drawn_without():
    images = random_images(9, 10)
    plain, reserved = network_with(UNEVEN_HEADS), network_with(UNEVEN_HEADS, rows=64)
    with torch.no_grad():
        reserved.weight[40:] = 3.0  # what noise left in spare rows
        reserved.bias[40:] = 3.0
    for network in (plain, reserved):
        network.add_head(6, seeded(10))
    assert torch.equal(plain.weight, reserved.weight[:46])
    assert torch.equal(plain.bias, reserved.bias[:46])
    torch.testing.assert_close(plain.predict_logits(images), reserved.predict_logits(images))


def test_adding_a_head_into_reserved_rows_changes_tensors_in_place():
    network = network_with([2], rows=10)
    weight, bias, heads = network.weight, network.bias, network.head_of_class
    network.add_head(5, seeded())
    assert network.weight is weight
    assert network.bias is bias
    assert network.head_of_class is heads
    assert heads.tolist() == [0, 0, 1, 1, 1, 1, 1, 10, 10, 10]


def test_a_fresh_head_is_small_and_random_with_zero_biases():
    network = network_with([50])
    bound = 64**-0.5
    weight = network.weight.detach()
    assert weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert (network.bias == 0).all()


def test_the_same_seed_gives_the_same_head_and_leaves_the_global_random_state_alone():
    state = torch.get_rng_state()
    networks = [network_with([]) for _ in range(3)]
    for network, seed in zip(networks, (1, 1, 2), strict=True):
        network.add_head(4, seeded(seed))
    assert torch.equal(networks[0].weight, networks[1].weight)
    assert not torch.equal(networks[0].weight, networks[2].weight)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("rows_before", [0, 55])
@pytest.mark.parametrize("rows_after", [0, 70])
@pytest.mark.parametrize("heads_after", [[], [1, 7], [5, 5, 60]])
def test_tensors_make_the_same_network_again(rows_before: int, rows_after: int, heads_after: list[int]):
    network = network_with(UNEVEN_HEADS, rows_before)
    random_biases(network, 11)
    tensors = network.tensors()
    assert len(tensors["weight"]) == len(tensors["bias"]) == 40, "spare rows are not written"

    other = network_with(heads_after, rows_after, seed=5)
    other.load_tensors(UNEVEN_HEADS, tensors)
    images = random_images(12, 10)
    assert other.head_sizes == UNEVEN_HEADS
    assert other.classes == 40
    rows = max(40, rows_after, sum(heads_after))
    assert len(other.bias) == rows
    assert other.head_of_class.tolist() == network.head_of_class.tolist()[:40] + [rows] * (rows - 40)
    torch.testing.assert_close(other.predict_logits(images), network.predict_logits(images))
    assert set(other.tensors()) == set(tensors)
    for name, tensor in other.tensors().items():
        assert torch.equal(tensor, tensors[name]), name


def test_a_network_without_heads_goes_out_and_in():
    network, other = network_with([], seed=1), network_with([2, 3], rows=9, seed=2)
    other.load_tensors([], network.tensors())
    assert other.classes == 0
    assert torch.equal(other.predict_features(random_images(1, 3)), network.predict_features(random_images(1, 3)))


def test_tensors_are_copies_that_later_training_does_not_change():
    network = network_with([3])
    tensors = network.tensors()
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    with torch.no_grad():
        for tensor in network.state_dict().values():
            tensor.add_(1)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, kept[name]), name


def test_tensors_that_do_not_fit_are_refused():
    network = network_with([2, 3])
    tensors = network.tensors()
    with pytest.raises(ValueError):
        network_with([]).load_tensors([2, 4], tensors)
    with pytest.raises(ValueError):
        network_with([]).load_tensors([2, 3], {name: part for name, part in tensors.items() if name != "bias"})
    with pytest.raises(ValueError):
        network_with([]).load_tensors([2, 3], {name: part for name, part in tensors.items() if name != "mean_image"})


def test_pixels_are_scaled_and_the_mean_image_subtracted():
    network = network_with([2])
    images = random_images(13, 4)
    expected = images.double().numpy() / 255 - network.mean_image.double().numpy()
    np.testing.assert_allclose(network.normalise(images).numpy(), expected, atol=1e-6)
    unscaled = IncrementalNetwork(nn.Flatten(), 64, torch.full((1, 8, 8), 7.0), 1.0)
    np.testing.assert_array_equal(unscaled.normalise(images).numpy(), images.numpy() - 7.0)
    np.testing.assert_array_equal(unscaled.predict_features(images).numpy(), images.flatten(1).numpy() - 7.0)


@pytest.mark.parametrize("shape", [(4, 1, 5, 6), (1, 3, 5, 6), (4, 3, 1, 6)], ids=["channel", "image", "row"])
def test_what_strides_one_channel_or_image_has_makes_no_difference(shape):
    """A convolution chooses its way of computing by them."""
    network = IncrementalNetwork(nn.Flatten(), 90, torch.zeros(shape[1:]), 255)
    images = torch.zeros(shape, dtype=torch.uint8)
    strides = [1 if size == 1 else stride for size, stride in zip(shape, images.stride(), strict=True)]
    otherwise = torch.zeros(images.numel(), dtype=torch.uint8).as_strided(shape, strides)
    assert otherwise.stride() != images.stride()
    assert network.normalise(otherwise).stride() == network.normalise(images).stride()


@pytest.mark.parametrize("training", [True, False])
def test_prediction_is_in_evaluation_mode_and_leaves_no_trace(training: bool):
    network = network_with([4]).train(training)
    random_biases(network, 14)
    before = network.tensors()
    images = random_images(15, 9)
    together = network.predict_logits(images)
    alone = torch.cat([network.predict_logits(image[None]) for image in images])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)  # batch statistics would make a difference
    assert not together.requires_grad
    assert network.training is training
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.tensors().items())


def test_mixed_precision_is_for_training_alone():
    network, images = network_with(UNEVEN_HEADS), random_images(0, 9)
    exact = network.predict_logits(images)
    network.engine.mixed_precision = True
    assert torch.equal(network.predict_logits(images), exact)
    mixed = network.train()(images)
    network.engine.mixed_precision = False
    assert not torch.equal(network.train()(images), mixed)


def test_the_mode_comes_back_when_prediction_fails():
    network = network_with([4]).train()
    with pytest.raises(RuntimeError):
        network.predict_features(torch.zeros(3, 1, 9, 9, dtype=torch.uint8))
    assert network.training


def test_more_images_than_a_batch_keep_their_order():
    network = IncrementalNetwork(nn.Flatten(), 64, torch.zeros(1, 8, 8), 1.0)
    images = random_images(16, 1100)
    assert torch.equal(network.predict_features(images), images.flatten(1).float())


@pytest.mark.parametrize(("side", "most"), [(8, 40), (256, 16), (512, 4), (1024, 1)])
def test_large_images_are_predicted_one_by_one(side: int, most: int):
    passed: list[int] = []

    class Counted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            passed.append(len(x))
            return x[:, :, 0, 0]

    network = IncrementalNetwork(Counted(), 1, torch.zeros(1, 1, 1), 1.0)
    network.predict_features(torch.zeros(40, 1, 1, 1, dtype=torch.uint8).expand(40, 1, side, side))
    assert max(passed) == most
    assert sum(passed) == 40


def test_compiled_code_does_not_depend_on_the_number_of_heads():
    counter = CompileCounter()
    torch.compiler.reset()
    for classes in (2, 3, 5):
        network = IncrementalNetwork(backbones.build("small", 3, 0), 64, torch.zeros(3, 8, 8), 255)
        network.add_head(classes, torch.Generator())
        torch.compile(network.extract, backend=counter, dynamic=False)(torch.zeros(4, 3, 8, 8, dtype=torch.uint8))
    assert counter.frame_count == 1
