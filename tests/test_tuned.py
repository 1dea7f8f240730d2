"""The method `tuned`: a trained copy of the network beside the closed form, kept only where it tells images better."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TinyFeatures, Watching, examples, method_of, state_of, tiny_learner
from torch import Tensor

from treering import Augmentation, Budget, Learner, Optimizer, Schedule, TreeringError
from treering.core.trainer import EpochReport, InFlight
from treering.methods import Tuned, trained_copy, tuned
from treering.methods.base import Step
from treering.methods.left_out import Trial
from treering.runtime import pixels

FIRST, SECOND = examples({"cat": 12, "dog": 11}), examples({"owl": 10, "cat": 6}, seed=1)
THIRD = examples({"fox": 8}, seed=3)
TESTS, _ = examples({"cat": 4, "dog": 4, "owl": 4}, seed=2)
SETTINGS: dict[str, Any] = {
    "method": "tuned",
    "training": Schedule(epochs=3, lr=0.01, shape="cosine"),
    "balanced": Schedule(epochs=2, lr=0.001, shape="cosine"),
    "optimizer": Optimizer(batch_size=8, kind="adam", clip=1.0, reset_momentum=False, noise_eta=0.0, decay="plain"),
    "augmentation": Augmentation(kind="photo", crop_size=8),
    "memory": Budget("per-class", 9),
}


def learner(**changes: Any) -> Learner:
    return tiny_learner(**SETTINGS | changes)


def tuned_of(one: Learner) -> Tuned:
    method = method_of(one)
    assert isinstance(method, Tuned)
    return method


def bits(one: Learner) -> tuple[Any, dict[str, bytes]]:
    return state_of(one), {name: part.numpy().tobytes() for name, part in method_of(one).tensors().items()}


HELPED, DID_NOT_HELP = Trial(4, 3, 3, helped=True), Trial(4, 3, 2, helped=False)


@pytest.fixture(params=[HELPED, DID_NOT_HELP], ids=["both", "frozen"])
def trial(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """What decides who answers, whatever the images say."""
    monkeypatch.setattr(tuned, "tried", lambda *arguments: request.param)
    return request.param


def as_pixels(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images).movedim(-1, 1)


def test_the_answer_is_that_of_the_network_as_it_came_or_the_mean_of_both(trial: Trial) -> None:
    one = learner().partial_fit(*FIRST).partial_fit(*SECOND)
    method, images = tuned_of(one), as_pixels(TESTS)
    parts = [network.predict_logits(images).double().softmax(1) for network in (method.network, method.tuned.network)]
    expected = (parts[0] + parts[1]) / 2 if trial.helped else parts[0]
    names = one.learnt_model().classes
    columns = [names.index(name) for name in one.classes_]
    np.testing.assert_allclose(one.predict_proba(TESTS), expected[:, columns].numpy(), atol=1e-6)
    if trial.helped:
        assert (parts[0] - parts[1]).abs().max() > 1e-3, "the two networks differ, or this would show nothing"


def test_training_that_does_not_help_leaves_the_closed_form_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "tried", lambda *arguments: DID_NOT_HELP)
    one = learner().partial_fit(*FIRST).partial_fit(*SECOND)
    plain = learner(method="closed-form").partial_fit(*FIRST).partial_fit(*SECOND)
    assert (one.predict_proba(TESTS) == plain.predict_proba(TESTS)).all()
    mine, theirs = method_of(one).tensors(), method_of(plain).tensors()
    assert mine.keys() - theirs.keys() == {"statistics.judging"}
    assert all(torch.equal(mine[name], part) for name, part in theirs.items())


@pytest.mark.parametrize("settings", [{"lr": 1e15}, {"lr": 1e10}])
def test_training_that_diverges_is_thrown_away(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    wild = {"optimizer": replace(SETTINGS["optimizer"], kind="sgd", clip=0.0)}
    one = learner(training=Schedule(epochs=3, **settings), **wild).partial_fit(*FIRST)
    assert "diverged" in caplog.text
    plain = learner(method="closed-form", **wild).partial_fit(*FIRST)
    assert (one.predict_proba(TESTS) == plain.predict_proba(TESTS)).all()
    assert not tuned_of(one).both_answer


def test_images_that_judge_are_never_trained_on(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    taught: list[tuple[str, bytes]] = []
    learn = trained_copy.FromClosedForm.learn_step

    def watching(tuning: Any, step: Step) -> None:
        memory = list(tuning.memory.exemplars.items())
        own = [(int(label), image[None]) for label, image in zip(step.labels, pixels.tensor(step.images), strict=True)]
        taught.extend((label, digest) for label, part in memory + own for digest in pixels.digests(part))
        learn(tuning, step)

    monkeypatch.setattr(trained_copy.FromClosedForm, "learn_step", watching)
    monkeypatch.setattr(trained_copy.FromClosedForm, "held", lambda self, images: images)
    one = learner().partial_fit(*FIRST).partial_fit(*SECOND).partial_fit(*THIRD)
    keys = {int.from_bytes(hashlib.sha256(b"%d %b" % pair).digest()[:8], signed=True) for pair in taught}
    judging = tuned_of(one).judging
    assert len(judging) == 12 // 5 + 11 // 5 + 10 // 5 + 6 // 5 + 8 // 5
    assert not keys & judging
    assert len(keys) == 12 + 11 + 10 + 6 + 8 - len(judging), "all others were trained on"


def test_batch_normalisation_keeps_its_statistics_while_the_weights_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "tried", lambda *arguments: HELPED)
    one = learner().partial_fit(*FIRST)
    frozen, trained = method_of(one).network.features, tuned_of(one).tuned.network.features
    assert torch.equal(frozen.norm.running_mean, trained.norm.running_mean)
    assert torch.equal(frozen.norm.running_var, trained.norm.running_var)
    assert not torch.equal(frozen.convolution.weight, trained.convolution.weight)
    assert torch.equal(frozen.convolution.weight, TinyFeatures().convolution.weight), "the network stays as it came"


def test_a_saved_model_answers_and_goes_on_the_same(trial: Trial, tmp_path: Path) -> None:
    one = learner().partial_fit(*FIRST)
    one.save(tmp_path / "model")
    again = Learner.load(tmp_path / "model", backbone=TinyFeatures(), device="cpu")
    assert bits(again) == bits(one)
    assert (again.predict_proba(TESTS) == one.predict_proba(TESTS)).all()
    assert bits(again.partial_fit(*SECOND)) == bits(one.partial_fit(*SECOND))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_goes_on_the_same(copied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "tried", lambda *arguments: HELPED)
    one = learner().partial_fit(*FIRST)
    twin = copied(one)
    assert bits(twin.partial_fit(*SECOND)) == bits(one.partial_fit(*SECOND))


def test_an_interrupted_step_leaves_everything_as_it_was_and_goes_on_bit_for_bit(trial: Trial) -> None:
    whole = learner().partial_fit(*FIRST)
    whole.learn(as_pixels(SECOND[0]), SECOND[1])
    epochs = SETTINGS["training"].epochs + SETTINGS["balanced"].epochs
    for stop in range(1, epochs + 1):
        one = learner().partial_fit(*FIRST)
        before, states = bits(one), list[InFlight]()

        def halt(report: EpochReport, states: list[InFlight] = states, stop: int = stop) -> None:
            states.append(report.state())
            if len(states) == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            one.learn(as_pixels(SECOND[0]), SECOND[1], watcher=Watching(halt))
        assert bits(one) == before
        one.learn(as_pixels(SECOND[0]), SECOND[1], resume=states[-1])
        assert bits(one) == bits(whole)


def test_a_step_without_training_adds_its_images_to_both_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "tried", lambda *arguments: HELPED)
    one = learner().partial_fit(*FIRST)
    weights = {name: part.clone() for name, part in tuned_of(one).tuned.network.features.state_dict().items()}
    counts = tuned_of(one).tuned.statistics.counts.tolist()
    one.learn(as_pixels(SECOND[0]), SECOND[1], training=Schedule(epochs=0, lr=1.0))
    method = tuned_of(one)
    assert method.both_answer
    assert method.tuned.statistics.counts.tolist() == [counts[0] + 6, counts[1], 10]
    assert method.frozen.statistics.counts.tolist() == [18, 11, 10]
    assert all(torch.equal(weights[name], part) for name, part in method.tuned.network.features.state_dict().items())
    assert method.recipe.training == SETTINGS["training"], "the schedule was for that step alone"
    assert one.predict_proba(TESTS).shape == (12, 3)


def test_only_judges_measure_a_network_that_was_trained(trial: Trial) -> None:
    one = learner().partial_fit(*FIRST)
    told = method_of(one).left_out
    assert told is not None and told.trial is not None
    expected = 12 // 5 + 11 // 5 if trial.helped else 12 + 11
    assert sum(map(len, told.after.values())) == expected
    one.partial_fit(*SECOND)
    told = method_of(one).left_out
    assert told is not None
    assert {label: len(part) for label, part in told.before.items()} == {
        label: len(part) for label, part in told.old_after.items()
    }


def test_a_step_that_does_not_train_asks_again_what_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def trying(frozen_NC: Tensor, tuned_NC: Tensor, labels_N: Tensor, judging_N: Tensor) -> Trial:
        asked.append(int(judging_N.sum()))
        return HELPED if len(asked) == 1 else DID_NOT_HELP

    monkeypatch.setattr(tuned, "tried", trying)
    one = learner().partial_fit(*FIRST)
    assert tuned_of(one).both_answer
    one.learn(as_pixels(SECOND[0]), SECOND[1], training=Schedule(epochs=0, lr=0.01))
    assert not tuned_of(one).both_answer
    old = 12 // 5 + 11 // 5
    assert asked == [old, old + len(SECOND[1])], "the step's own images were not trained on, so all of them judge"


def test_without_exemplars_of_every_class_nothing_is_trained(trial: Trial) -> None:
    one = learner(memory=Budget("per-class", 0)).partial_fit(*FIRST).partial_fit(*SECOND)
    assert not tuned_of(one).both_answer
    assert method_of(one).left_out is not None
    assert method_of(one).left_out.trial is None  # type: ignore[union-attr]


def test_more_images_get_fewer_epochs_and_many_none() -> None:
    schedule = Schedule(epochs=12, lr=1.0, most_images=1000)
    assert [schedule.bounded(images).epochs for images in (10, 100, 200, 333, 334, 5000)] == [12, 10, 5, 3, 0, 0]
    assert Schedule(epochs=2, lr=1.0).bounded(10**6).epochs == 2


BOUNDED = replace(SETTINGS["training"], most_images=10_000)
IN_VAIN, PROMISING = Trial(4, 3, 2, helped=False, ended_early=True), None


def epochs_of(one: Learner, resume: InFlight | None = None, stop: int = 0) -> tuple[list[tuple[str, int]], InFlight]:
    """Learn the second step, or be interrupted after so many epochs; return its epochs and the last state."""
    seen, states = list[tuple[str, int]](), list[InFlight]()

    def watch(report: EpochReport) -> None:
        seen.append((report.stage, report.epoch))
        states.append(report.state())
        if len(seen) == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) if stop else contextlib.nullcontext():
        one.learn(as_pixels(SECOND[0]), SECOND[1], resume=resume, watcher=Watching(watch))
    return seen, states[-1]


def test_bounded_training_that_makes_answers_worse_ends_after_a_third(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "tried", lambda *arguments: HELPED)
    monkeypatch.setattr(tuned, "tried_in_vain", lambda *arguments: PROMISING)
    training = replace(BOUNDED, epochs=6)
    one = learner(training=training).partial_fit(*FIRST)
    monkeypatch.setattr(tuned, "tried_in_vain", lambda *arguments: IN_VAIN)
    plain = learner(method="closed-form").partial_fit(*FIRST).partial_fit(*SECOND)
    seen, _ = epochs_of(one)
    assert seen == [("training", 1)], "the second epoch is the last, and nobody needs its state"
    told = method_of(one).left_out
    assert told is not None and told.trial == IN_VAIN and not told.tuned
    assert (one.predict_proba(TESTS) == plain.predict_proba(TESTS)).all()


def test_training_that_is_looked_at_and_goes_on_comes_to_the_same_end_as_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuned, "tried", lambda *arguments: HELPED)
    asked: list[Tensor] = []
    monkeypatch.setattr(tuned, "tried_in_vain", lambda *arguments: asked.append(arguments[1]))
    ends = [learner(training=training).partial_fit(*FIRST) for training in (BOUNDED, SETTINGS["training"])]
    assert len(asked) == 1
    for one in ends:
        epochs_of(one)
    assert len(asked) == 2
    told = [one.predict_proba(TESTS).tolist() for one in ends]
    assert told[0] == told[1]


def test_training_that_is_interrupted_before_it_is_looked_at_is_looked_at_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuned, "tried", lambda *arguments: HELPED)
    monkeypatch.setattr(tuned, "tried_in_vain", lambda *arguments: PROMISING)
    one = learner(training=replace(BOUNDED, epochs=6)).partial_fit(*FIRST)
    monkeypatch.setattr(tuned, "tried_in_vain", lambda *arguments: IN_VAIN)
    _, state = epochs_of(one, stop=1)
    epochs_of_rest: list[str] = []
    one.learn(as_pixels(SECOND[0]), SECOND[1], resume=state, watcher=Watching(lambda one: epochs_of_rest.append("")))
    assert not epochs_of_rest
    told = method_of(one).left_out
    assert told is not None and told.trial == IN_VAIN


@pytest.mark.parametrize("training", [SETTINGS["training"], BOUNDED])
def test_the_plan_counts_the_images_that_pass(training: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "tried_in_vain", lambda *arguments: PROMISING)
    one, passed = learner(training=training).partial_fit(*FIRST), list[int]()

    class Counting(Watching):
        def passed(self, images: int) -> None:
            passed.append(images)

        def epoch(self, report: EpochReport) -> None:
            passed.append(report.image_passes)

    method = method_of(one)
    memory = {label: len(part) for label, part in method.memory.exemplars.items()}
    planned = sum(stage.image_passes for stage in Tuned.plan_step(method.recipe, {0: 6, 2: 10}, memory))
    one.learn(as_pixels(SECOND[0]), SECOND[1], watcher=Counting())
    assert sum(passed) == pytest.approx(planned, rel=0.15), "which exemplars judge is not planned"


@pytest.mark.parametrize("form", ["pt2", "onnx"])
def test_a_model_with_two_networks_is_exported(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if form == "onnx":
        pytest.importorskip("onnxscript")
    monkeypatch.setattr(tuned, "tried", lambda *arguments: HELPED)
    one = learner(backbone="small").partial_fit(*FIRST)
    assert one.export(tmp_path / f"model.{form}") < 1e-4


@pytest.mark.parametrize("damage", ["unknown", "judges", "missing", "shape"])
def test_damaged_tensors_are_one_line(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "tried", lambda *arguments: HELPED)
    method = method_of(learner().partial_fit(*FIRST))
    tensors, heads = method.tensors(), list(method.network.head_sizes)
    if damage == "unknown":
        tensors["tuned.share"] = torch.tensor(0.7)
    elif damage == "judges":
        del tensors["statistics.judging"]
    elif damage == "missing":
        del tensors["tuned.statistics.gram"]
    else:
        tensors["tuned.weight"] = tensors["tuned.weight"][:, :-1].contiguous()
    with pytest.raises(ValueError, match="differs"):
        method.load_tensors(heads, tensors)


# --- The choice -------------------------------------------------------------------------------------------------------


def said(probability_of_class_0: list[float]) -> Tensor:
    first = torch.tensor(probability_of_class_0, dtype=torch.float64)
    return torch.stack([first, 1 - first], 1).log()


def choice(frozen: list[float], trained: list[float], judging: list[bool] | None = None) -> bool | None:
    labels = torch.tensor([0] * (len(frozen) // 2) + [1] * (len(frozen) - len(frozen) // 2))
    trial = tuned.tried(said(frozen), said(trained), labels, torch.tensor(judging or [True] * len(frozen)))
    return trial and trial.helped


def test_what_tells_the_judges_better_answers_too() -> None:
    unsure, sure = [0.6, 0.7, 0.55, 0.65, 0.4, 0.3, 0.45, 0.35], [0.99] * 4 + [0.01] * 4
    assert choice(unsure, sure) is True
    assert choice(sure, unsure) is False
    assert choice(sure, sure) is False, "nothing is gained"


def test_two_that_err_elsewhere_answer_together() -> None:
    wrong_at_last, wrong_at_first = [0.9, 0.9, 0.9, 0.2, 0.1, 0.1, 0.1, 0.8], [0.2, 0.9, 0.9, 0.9, 0.8, 0.1, 0.1, 0.1]
    assert choice(4 * wrong_at_last, 4 * wrong_at_first) is True


def test_a_gain_that_chance_explains_changes_nothing() -> None:
    assert choice([0.9, 0.8, 0.2, 0.1], [0.95, 0.5, 0.2, 0.04]) is False


def in_vain(frozen: list[float], trained: list[float]) -> bool:
    labels = torch.tensor([0] * (len(frozen) // 2) + [1] * (len(frozen) // 2))
    return (
        tuned.tried_in_vain(said(frozen), said(trained), labels, torch.ones(len(frozen), dtype=torch.bool)) is not None
    )


def test_only_answers_that_are_worse_by_more_than_chance_end_the_training() -> None:
    sure, unsure = [0.95, 0.97, 0.96, 0.9, 0.05, 0.02, 0.03, 0.1], [0.6, 0.7, 0.55, 0.65, 0.4, 0.3, 0.45, 0.35]
    assert in_vain(sure, unsure)
    assert not in_vain(unsure, sure)
    assert not in_vain(sure, sure)
    assert not in_vain([0.9, 0.8, 0.2, 0.1], [0.97, 0.55, 0.2, 0.03]), "this may well be chance"


def test_only_judges_are_asked_and_without_any_there_is_no_trial() -> None:
    unsure, sure = [0.6, 0.7, 0.4, 0.3], [0.99, 0.98, 0.01, 0.02]
    assert choice(unsure, sure, [False] * 4) is None
    trial = tuned.tried(said(unsure), said(sure), torch.tensor([0, 0, 1, 1]), torch.tensor([True, False, False, True]))
    assert trial is not None and trial.images == 2


def test_the_mean_is_that_of_the_probabilities() -> None:
    mean = tuned.mean_of(said([0.9]), said([0.3]))
    assert mean.exp().tolist()[0] == pytest.approx([0.6, 0.4])
    assert math.isclose(float(mean.exp().sum()), 1)


def test_an_augmentation_that_is_not_for_photos_is_refused() -> None:
    with pytest.raises(TreeringError, match=r"set augmentation\.kind to photo"):
        learner(augmentation=Augmentation(kind="crop-mirror", padding=1)).partial_fit(*FIRST)


def test_a_memory_too_small_for_every_class_is_refused_as_ever() -> None:
    with pytest.raises(TreeringError, match="memory"):
        learner(memory=Budget("total", 2)).partial_fit(*examples({"cat": 3, "dog": 3, "owl": 3}))
