"""EEIL stage by stage [4]: what each stage trains on, who gives its soft targets, and what the memory keeps."""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from conftest import RECIPE, examples, images_of, kept, method_of, state_of, tiny_learner
from torch import Tensor

from treering import Augmentation, Budget, Learner, Schedule, TreeringError
from treering.core import augment, losses
from treering.core.network import IncrementalNetwork
from treering.core.trainer import Trainer


@dataclass
class Stage:
    """One call of the training loop: what it was given, and the network before and after it."""

    name: str
    images: Tensor
    labels: Tensor
    targets: Tensor
    schedule: Schedule
    epochs_before: int
    before: IncrementalNetwork
    after: IncrementalNetwork

    def counts(self) -> dict[int, int]:
        return dict(sorted(Counter(self.labels.tolist()).items()))

    def of_class(self, label: int) -> list[bytes]:
        return kept(self.images[self.labels == label])


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> list[Stage]:
    """Fills up with every stage that is trained from here on."""
    seen: list[Stage] = []
    fit, signature = Trainer.fit, inspect.signature(Trainer.fit)

    def watched(*args: Any, **kwargs: Any) -> None:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        given, network = call.arguments, call.arguments["self"].network
        examples = given["training_set"]
        copies = [part.clone() for part in (examples.images, examples.labels, examples.targets)]
        before = copy.deepcopy(network)
        fit(*args, **kwargs)
        after = copy.deepcopy(network)
        seen.append(Stage(given["stage"], *copies, given["schedule"], given["epochs_before"], before, after))

    monkeypatch.setattr(Trainer, "fit", watched)
    return seen


def soft_outputs(network: IncrementalNetwork, images: Tensor, temperature: float = 2.0) -> Tensor:
    """softmax(logits / T) of each head on its own, head by head [3.2]."""
    network = copy.deepcopy(network).eval()
    with torch.no_grad():
        features = network.features(images.float() / 255 - network.mean_image)
        logits = (features @ network.weight.T + network.bias)[:, : sum(network.head_sizes)].double()
    outputs, start = [], 0
    for size in network.head_sizes:
        outputs.append(torch.softmax(logits[:, start : start + size] / temperature, 1))
        start += size
    return torch.cat(outputs, 1)


def herding_regret(network: IncrementalNetwork, images: list[bytes], pool: list[bytes]) -> float:
    """How much nearer to the class mean the best pick would have been than the actual one, at the worst pick [3.1]."""
    shape = network.mean_image.shape

    def features(parts: list[bytes]) -> list[np.ndarray]:
        pixels = torch.from_numpy(np.array([np.frombuffer(part, np.uint8).reshape(shape) for part in parts]))
        rows = copy.deepcopy(network).eval().features(pixels.float() / 255 - network.mean_image).detach().double()
        return [(row / row.norm().clamp_min(1e-12)).numpy() for row in rows]

    candidates = dict(zip(pool, features(pool), strict=True))
    mean = sum(candidates.values()) / len(candidates)
    chosen: list[np.ndarray] = []
    worst = 0.0
    for image in images:
        distance = {
            name: float(np.linalg.norm(mean - (sum(chosen) + feature) / (len(chosen) + 1)))
            for name, feature in candidates.items()
        }
        worst = max(worst, distance[image] - min(distance.values()))
        chosen.append(candidates.pop(image))
    return worst


def memory_of(learner: Learner) -> dict[int, list[bytes]]:
    return {label: kept(images) for label, images in method_of(learner).memory.exemplars.items()}


def of_label(given: tuple[np.ndarray, list[Any]], label: Any) -> list[bytes]:
    return kept(given[0][np.array(given[1]) == label])


def network_of(learner: Learner) -> IncrementalNetwork:
    return copy.deepcopy(method_of(learner).network)


FIRST, SECOND, THIRD = examples({0: 10, 1: 9}), examples({2: 8, 3: 10, 4: 9}, seed=1), examples({5: 7}, seed=2)


def test_the_first_step_trains_once_on_its_own_images_without_distillation(stages: list[Stage]) -> None:
    tiny_learner().partial_fit(*FIRST)
    assert [stage.name for stage in stages] == ["training"]
    assert not stages[0].targets.any()
    assert stages[0].epochs_before == 0
    assert sorted(kept(stages[0].images)) == sorted(kept(FIRST[0]))
    assert stages[0].counts() == {0: 10, 1: 9}


def test_a_later_step_trains_on_its_images_and_every_exemplar_each_with_its_label(stages: list[Stage]) -> None:
    learner = tiny_learner().partial_fit(*FIRST)
    memory = memory_of(learner)
    learner.partial_fit(*SECOND)
    training = stages[1]
    assert (training.name, training.epochs_before, training.schedule) == ("training", 0, RECIPE.training)
    for label in (2, 3, 4):
        assert sorted(training.of_class(label)) == sorted(of_label(SECOND, label))
    for label in (0, 1):
        assert sorted(training.of_class(label)) == sorted(memory[label])
    assert len(training.images) == len(SECOND[0]) + 12


@pytest.mark.parametrize("temperature", [2.0, 0.7])
@pytest.mark.parametrize("kind", ["none", "twelvefold"])
def test_old_heads_are_distilled_from_the_network_before_the_step(
    stages: list[Stage], temperature: float, kind: Any
) -> None:
    learner = tiny_learner(temperature=temperature, augmentation=Augmentation(kind=kind, padding=1))
    learner.partial_fit(*FIRST).partial_fit(*SECOND)
    teacher = network_of(learner)
    learner.partial_fit(*THIRD)
    training = stages[3]
    assert training.name == "training"
    expected = soft_outputs(teacher, training.images, temperature)
    assert torch.allclose(training.targets[:, :5].double(), expected, atol=1e-5)
    for head in (slice(0, 2), slice(2, 5)):
        assert torch.allclose(training.targets[:, head].sum(1), torch.ones(len(training.images)), atol=1e-5)
    new = training.labels == 5
    assert 0 < new.sum() < len(new), "new images and exemplars both have targets"
    assert expected[new].std(0).max() > 1e-3, "the teacher tells images apart"


def test_the_new_head_has_no_targets_while_it_is_first_trained(stages: list[Stage]) -> None:
    tiny_learner().partial_fit(*FIRST).partial_fit(*SECOND)
    assert not stages[1].targets[:, 2:].any()
    assert stages[1].targets[:, :2].all()


def test_in_the_balanced_stage_all_heads_are_distilled_from_the_end_of_the_training_stage(stages: list[Stage]) -> None:
    learner = tiny_learner()
    for step in (FIRST, SECOND, THIRD):
        learner.partial_fit(*step)
    assert [stage.name for stage in stages] == ["training", "training", "balanced", "training", "balanced"]
    for training, balanced in (stages[1:3], stages[3:5]):
        expected = soft_outputs(training.after, balanced.images)
        assert torch.allclose(balanced.targets[:, : expected.shape[1]].double(), expected, atol=1e-5)
        before = soft_outputs(training.before, balanced.images)
        assert not torch.allclose(balanced.targets[:, : expected.shape[1]].double(), before, atol=1e-3)
        assert balanced.targets.sum(1).mean() == pytest.approx(len(training.after.head_sizes), abs=1e-4)


def test_soft_targets_are_those_of_the_augmented_images(stages: list[Stage]) -> None:
    learner = tiny_learner(augmentation=Augmentation(padding=1))
    learner.partial_fit(*FIRST)
    teacher = network_of(learner)
    learner.partial_fit(*SECOND)
    training, count = stages[1], len(SECOND[0]) + 12
    assert len(training.images) == 12 * count
    assert training.counts() == {0: 72, 1: 72, 2: 96, 3: 120, 4: 108}
    blocks = training.images.split(count)
    assert sorted(kept(blocks[0])) == sorted(kept(SECOND[0]) + memory_before(FIRST))
    assert torch.equal(blocks[6], augment.mirror(blocks[0]))
    assert not torch.equal(blocks[1], blocks[0])
    assert torch.allclose(training.targets[:, :2].double(), soft_outputs(teacher, training.images), atol=1e-5)
    assert not torch.allclose(training.targets[count : 2 * count], training.targets[:count], atol=1e-3)
    assert stages[2].counts() == dict.fromkeys(range(5), 72)


def memory_before(first: tuple[np.ndarray, list[Any]]) -> list[bytes]:
    """The exemplars of a learner that has learnt `first` only."""
    learner = tiny_learner(augmentation=Augmentation(padding=1)).partial_fit(*first)
    return [image for images in memory_of(learner).values() for image in images]


def test_the_balanced_stage_has_as_many_images_of_each_new_class_as_the_memory_has_of_old_ones(
    stages: list[Stage],
) -> None:
    learner = tiny_learner().partial_fit(*FIRST)
    memory = memory_of(learner)
    learner.partial_fit(*SECOND)
    training, balanced = stages[1:]
    assert balanced.counts() == dict.fromkeys(range(5), 6)
    for label in (0, 1):
        assert sorted(balanced.of_class(label)) == sorted(memory[label])
    for label in (2, 3, 4):
        ranked = balanced.of_class(label)
        assert set(ranked) <= set(of_label(SECOND, label))
        assert herding_regret(training.after, ranked, of_label(SECOND, label)) < 1e-6


def test_epochs_count_on_through_the_balanced_stage(stages: list[Stage]) -> None:
    learner = tiny_learner(training=Schedule(epochs=3, lr=0.05), balanced=Schedule(epochs=2, lr=0.01))
    learner.partial_fit(*FIRST).partial_fit(*SECOND)
    assert [(stage.epochs_before, stage.schedule.epochs, stage.schedule.lr) for stage in stages] == [
        (0, 3, 0.05),
        (0, 3, 0.05),
        (3, 2, 0.01),
    ]


def test_all_weights_learn_in_both_stages(stages: list[Stage]) -> None:
    tiny_learner().partial_fit(*FIRST).partial_fit(*SECOND)
    for stage in stages[1:]:
        after = dict(stage.after.named_parameters())
        for name, parameter in stage.before.named_parameters():
            assert not torch.equal(parameter, after[name]), name
        assert all((stage.before.weight != stage.after.weight).any(1)), "every class's row"


def test_each_step_adds_a_head_and_keeps_the_old_ones(stages: list[Stage]) -> None:
    learner = tiny_learner().partial_fit(*FIRST)
    old = network_of(learner)
    learner.partial_fit(*SECOND).partial_fit(*THIRD)
    assert method_of(learner).network.head_sizes == [2, 3, 1]
    assert torch.equal(stages[1].before.weight[:2], old.weight)
    assert torch.equal(stages[1].before.bias[:2], old.bias)
    assert all(
        torch.equal(tensor, stages[1].before.features.state_dict()[name])
        for name, tensor in old.features.state_dict().items()
    )


def test_the_mean_image_is_that_of_the_first_step_for_ever() -> None:
    learner = tiny_learner().partial_fit(*FIRST)
    learner.partial_fit(*SECOND).partial_fit(*THIRD)
    expected = np.moveaxis(FIRST[0].astype(np.float64).mean(0) / 255, -1, 0)
    assert np.allclose(method_of(learner).network.mean_image.numpy(), expected, atol=1e-6)


def test_the_memory_shrinks_old_classes_from_the_end_and_then_takes_the_best_of_the_new(stages: list[Stage]) -> None:
    learner = tiny_learner(memory=12).partial_fit(*FIRST)
    first = memory_of(learner)
    assert {label: len(images) for label, images in first.items()} == {0: 6, 1: 6}
    for label in (0, 1):
        assert herding_regret(stages[0].after, first[label], of_label(FIRST, label)) < 1e-6
    learner.partial_fit(*SECOND)
    second = memory_of(learner)
    assert {label: len(images) for label, images in second.items()} == dict.fromkeys(range(5), 2)
    for label in (0, 1):
        assert second[label] == first[label][:2]
    for label in (2, 3, 4):
        assert herding_regret(stages[2].after, second[label], of_label(SECOND, label)) < 1e-6


def test_without_balanced_epochs_there_is_no_balanced_stage(stages: list[Stage]) -> None:
    learner = tiny_learner(balanced=Schedule(epochs=0, lr=0.01)).partial_fit(*FIRST).partial_fit(*SECOND)
    assert [stage.name for stage in stages] == ["training", "training"]
    for label in (2, 3, 4):
        assert herding_regret(stages[1].after, memory_of(learner)[label], of_label(SECOND, label)) < 1e-6


def test_without_augmentation_every_image_is_trained_on_once_and_as_it_is(stages: list[Stage]) -> None:
    tiny_learner(augmentation=Augmentation(kind="none")).partial_fit(*FIRST).partial_fit(*SECOND)
    given = set(kept(FIRST[0])) | set(kept(SECOND[0]))
    for stage in stages:
        assert len(set(kept(stage.images))) == len(stage.images)
        assert set(kept(stage.images)) <= given


def test_twofold_augmentation_trains_on_crops_and_predicts_on_resized_images(stages: list[Stage]) -> None:
    learner = tiny_learner(augmentation=Augmentation(kind="twofold", crop_size=6)).partial_fit(*FIRST)
    learner.partial_fit(*SECOND)
    assert stages[1].images.shape == (2 * (len(SECOND[0]) + 12), 3, 6, 6)
    assert learner.exemplars_[0].shape == (2, 8, 8, 3), "the memory holds whole images"
    assert learner.predict_proba(FIRST[0]).shape == (19, 5)


@pytest.mark.parametrize("rule", ["random", "histogram"])
def test_the_selection_rule_of_the_recipe_is_honoured(rule: Any) -> None:
    given = examples({0: 20, 1: 20})

    def chosen(selection: Any, seed: int = 0) -> dict[int, list[bytes]]:
        return memory_of(tiny_learner(memory=Budget(size=12, selection=selection), seed=seed).partial_fit(*given))

    assert chosen(rule) != chosen("herding")
    assert chosen(rule) == chosen(rule)
    assert {label: set(images) for label, images in chosen(rule).items()} != {
        label: set(images) for label, images in chosen("herding").items()
    }


def test_the_balanced_stage_cuts_by_the_selection_rule_too(stages: list[Stage]) -> None:
    sets = []
    for selection in ("herding", "random"):
        budget = Budget(size=12, selection=selection)
        tiny_learner(memory=budget).partial_fit(*FIRST).partial_fit(*SECOND)
        sets.append([stages[2].of_class(label) for label in (2, 3, 4)])
        training = stages[1]
        regret = max(herding_regret(training.after, stages[2].of_class(x), of_label(SECOND, x)) for x in (2, 3, 4))
        assert (regret < 1e-6) == (selection == "herding")
        stages.clear()
    assert sets[0] != sets[1]


def test_a_budget_per_class_keeps_that_many_of_every_class_for_ever(stages: list[Stage]) -> None:
    learner = tiny_learner(memory=Budget("per-class", 4))
    learner.partial_fit(*FIRST)
    first = memory_of(learner)
    learner.partial_fit(*SECOND).partial_fit(*THIRD)
    assert {label: len(images) for label, images in memory_of(learner).items()} == dict.fromkeys(range(6), 4)
    assert all(memory_of(learner)[label] == first[label] for label in (0, 1))
    assert stages[2].counts() == dict.fromkeys(range(5), 4)


def test_uneven_steps_keep_heads_targets_and_memory_in_order(stages: list[Stage]) -> None:
    learner = tiny_learner(memory=14)
    counts = [{0: 5}, {1: 4, 2: 7, 3: 1, 4: 6}, {5: 3, 6: 5}]
    for number, step in enumerate(counts):
        learner.partial_fit(*examples(step, seed=number))
    assert method_of(learner).network.head_sizes == [1, 4, 2]
    assert {label: len(part) for label, part in memory_of(learner).items()} == {
        label: 1 if label == 3 else 2 for label in range(7)
    }
    balanced = stages[-1]
    # With five classes two images of each were kept, and of class 3 the only one.
    assert balanced.counts() == {label: 1 if label == 3 else 2 for label in range(7)}
    assert torch.allclose(balanced.targets[:, 0], torch.ones(len(balanced.targets)))
    assert learner.predict_proba(images_of(range(7))).shape == (7, 7)


def test_a_class_with_fewer_images_than_its_quota_keeps_what_it_has(stages: list[Stage]) -> None:
    learner = tiny_learner(memory=12).partial_fit(*examples({0: 10, 1: 2}))
    few = memory_of(learner)[1]
    assert {label: len(images) for label, images in memory_of(learner).items()} == {0: 6, 1: 2}
    learner.partial_fit(*examples({2: 10, 3: 1}, seed=1))
    assert stages[2].counts() == {0: 6, 1: 2, 2: 6, 3: 1}
    assert {label: len(images) for label, images in memory_of(learner).items()} == {0: 3, 1: 2, 2: 3, 3: 1}
    assert memory_of(learner)[1] == few


@pytest.mark.parametrize("kind", ["none", "twelvefold"])
@pytest.mark.parametrize("counts", [{0: 1}, {0: 1, 1: 1}, {0: 1, 1: 5}, {0: 3}], ids=repr)
def test_tiny_first_steps_can_be_learnt_and_followed(counts: dict[int, int], kind: Any) -> None:
    learner = tiny_learner(augmentation=Augmentation(kind=kind, padding=1)).partial_fit(*examples(counts))
    assert memory_of(learner).keys() == counts.keys()
    probabilities = learner.predict_proba(images_of([0]))
    assert probabilities.shape == (1, len(counts))
    learner.partial_fit(*examples({7: 1}, seed=1)).partial_fit(*examples({8: 2, 9: 1}, seed=2))
    probabilities = learner.predict_proba(images_of([0, 7, 8, 9]))
    assert np.isfinite(probabilities).all()
    assert learner.classes_.tolist() == [*counts, 7, 8, 9]


def test_a_step_with_only_known_classes_adds_no_head_and_distils_all(stages: list[Stage]) -> None:
    learner = tiny_learner().partial_fit(*FIRST).partial_fit(*SECOND)
    memory, teacher = memory_of(learner), network_of(learner)
    again = examples({1: 5, 3: 4}, seed=7)
    stages.clear()
    learner.partial_fit(*again)
    assert method_of(learner).network.head_sizes == [2, 3]
    assert learner.classes_.tolist() == [0, 1, 2, 3, 4]
    training, balanced = stages
    assert training.counts() == {0: 2, 1: 7, 2: 2, 3: 6, 4: 2}
    assert torch.allclose(training.targets.double(), soft_outputs(teacher, training.images), atol=1e-5)
    assert balanced.counts() == dict.fromkeys(range(5), 2)
    assert {label: len(images) for label, images in memory_of(learner).items()} == dict.fromkeys(range(5), 2)
    for label in (0, 2, 4):
        assert memory_of(learner)[label] == memory[label]
    for label in (1, 3):
        pool = memory[label] + of_label(again, label)
        assert herding_regret(balanced.after, memory_of(learner)[label], pool) < 1e-6
        ranked = balanced.of_class(label)
        assert herding_regret(training.after, ranked, pool) < 1e-6


def test_known_classes_beside_new_ones_are_ranked_again_from_exemplars_and_new_images(stages: list[Stage]) -> None:
    learner = tiny_learner(memory=12).partial_fit(*FIRST)
    memory = memory_of(learner)
    assert {label: len(images) for label, images in memory.items()} == {0: 6, 1: 6}
    dropped = set(of_label(FIRST, 1)) - set(memory[1])
    mixed = examples({1: 6, 9: 8, 5: 7}, seed=3)
    learner.partial_fit(*mixed)
    assert learner.classes_.tolist() == [0, 1, 5, 9]
    training, balanced = stages[1:]
    assert training.counts() == {0: 6, 1: 12, 2: 7, 3: 8}
    assert balanced.counts() == dict.fromkeys(range(4), 6)
    after = memory_of(learner)
    assert {label: len(images) for label, images in after.items()} == dict.fromkeys(range(4), 3)
    assert after[0] == memory[0][:3]
    pool = memory[1] + of_label(mixed, 1)
    assert set(after[1]) <= set(pool)
    assert dropped
    assert not dropped & (set(after[1]) | set(training.of_class(1)) | set(balanced.of_class(1)))
    assert herding_regret(balanced.after, after[1], pool) < 1e-6


def test_a_known_class_may_gain_exemplars_when_it_comes_back() -> None:
    learner = tiny_learner(memory=12).partial_fit(*examples({0: 8, 1: 1}))
    learner.partial_fit(*examples({1: 9}, seed=1))
    assert {label: len(images) for label, images in memory_of(learner).items()} == {0: 6, 1: 6}


LONG = {"training": Schedule(epochs=15, lr=0.1), "balanced": Schedule(epochs=8, lr=0.02)}


def test_fine_tuning_keeps_no_memory_trains_once_and_forgets(stages: list[Stage]) -> None:
    first, second = examples({0: 15, 1: 15}), examples({2: 15, 3: 15}, seed=1)
    scores = {}
    for method in ("finetune", "eeil"):
        stages.clear()
        learner = tiny_learner(method=method, memory=20, **LONG).partial_fit(*first)
        assert learner.score(*first) > 0.9
        learner.partial_fit(*second)
        scores[method] = learner.score(*first)
        assert learner.score(*second) > 0.9
        if method == "finetune":
            assert learner.exemplars_ == {}
            assert [stage.name for stage in stages] == ["training", "training"]
            assert sorted(kept(stages[1].images)) == sorted(kept(second[0]))
            assert not stages[1].targets.any()
    assert scores["finetune"] < 0.2
    assert scores["eeil"] > 0.9


def test_fine_tuning_also_strengthens_known_classes_and_augments(stages: list[Stage]) -> None:
    learner = tiny_learner(method="finetune", augmentation=Augmentation(padding=1)).partial_fit(*FIRST)
    learner.partial_fit(*examples({1: 4, 2: 3}, seed=1)).partial_fit(*examples({0: 5}, seed=2))
    assert learner.classes_.tolist() == [0, 1, 2]
    assert method_of(learner).network.head_sizes == [2, 1]
    assert [stage.counts() for stage in stages] == [{0: 120, 1: 108}, {1: 48, 2: 36}, {0: 60}]


@pytest.mark.parametrize("method", ["eeil", "finetune"])
@pytest.mark.parametrize("budget", [Budget(size=12), Budget("per-class", 4)], ids=["total", "per-class"])
@pytest.mark.parametrize("kind", ["none", "twelvefold"])
def test_the_plan_of_a_stream_is_what_its_stages_take(
    stages: list[Stage], method: str, budget: Budget, kind: Any
) -> None:
    passes: list[int] = []
    learner = tiny_learner(method=method, memory=budget, augmentation=Augmentation(kind=kind, padding=1))
    learner.progress = lambda now: passes.append(now.image_passes)
    for step in (FIRST, SECOND, THIRD):
        learner.partial_fit(*step)
    chosen = method_of(learner)
    planned = [
        stage for step in chosen.plan(chosen.recipe, [{0: 10, 1: 9}, {2: 8, 3: 10, 4: 9}, {5: 7}]) for stage in step
    ]
    assert [stage.images for stage in planned] == [len(stage.images) for stage in stages]
    for stage, plan in zip(stages, planned, strict=True):
        assert plan.image_passes == sum(passes[: stage.schedule.epochs])
        del passes[: stage.schedule.epochs]
    assert not passes


def test_both_methods_start_from_the_same_network(stages: list[Stage]) -> None:
    eeil = tiny_learner().partial_fit(*FIRST)
    fine = tiny_learner(method="finetune").partial_fit(*FIRST)
    assert torch.equal(stages[0].before.weight, stages[1].before.weight)
    assert state_of(eeil)["weights"] == state_of(fine)["weights"], "the first step is the same without distillation"


def test_the_loss_has_the_recipes_temperature() -> None:
    random = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(6, 3, generator=random), torch.rand(6, 3, generator=random)
    labels, heads = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([0, 0, 1])
    learner = tiny_learner(temperature=3.5).partial_fit(*examples({"cat": 2, "dog": 2}))
    loss = method_of(learner).loss(logits, labels, targets, heads)
    assert loss == losses.cross_distilled(logits, labels, targets, heads, 3.5)
    assert loss != losses.cross_distilled(logits, labels, targets, heads, 2.0)


def test_features_that_are_not_finite_are_never_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = tiny_learner().partial_fit(*examples({"a": 6, "b": 6}))
    before = state_of(learner)
    method = method_of(learner)
    monkeypatch.setattr(method, "features", lambda images: torch.full((len(images), 8), torch.nan))
    with pytest.raises(TreeringError, match="training diverged"):
        learner.partial_fit(*examples({"c": 6}))
    assert state_of(learner) == before
