"""Forgetting, renaming and merging classes in a learner."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TinyFeatures, examples, images_of, kept, method_of, state_of, tiny_learner
from test_tuned import learner as tuned_learner

from treering import Budget, Learner, TreeringError
from treering.core.closed_form import Statistics, solve
from treering.methods import ClosedForm, Tuned, tuned
from treering.methods.left_out import Trial

FIRST, SECOND = examples({"cat": 7, "dog": 6, "fox": 4}), examples({"owl": 5, "cat": 3}, seed=1)
TESTS, _ = examples({"cat": 4, "dog": 4, "owl": 4}, seed=2)
METHODS = ["closed-form", "tuned", "eeil", "icarl", "lwf-mc", "finetune", "joint"]


@pytest.fixture(autouse=True)
def both_networks_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "tried", lambda *arguments: Trial(4, 3, 3, helped=True))


def learnt(method: str = "closed-form", **changes: Any) -> Learner:
    if method in ("icarl", "lwf-mc"):
        changes["outputs"] = 6
    one = tuned_learner(**changes) if method == "tuned" else tiny_learner(method=method, **changes)
    return one.partial_fit(*FIRST).partial_fit(*SECOND)


def solved(one: Learner) -> ClosedForm:
    method = method_of(one)
    assert isinstance(method, ClosedForm)
    return method


def answers(one: Learner, names: list[str]) -> np.ndarray:
    """The probabilities of some classes, as if there were no others."""
    all_of_them = one.predict_proba(TESTS)
    some = all_of_them[:, [one.classes_.tolist().index(name) for name in names]]
    return some / some.sum(1, keepdims=True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("gone", ["cat", "fox", "owl"])
def test_all_other_classes_are_told_as_before(method: str, gone: str) -> None:
    one = learnt(method)
    others = sorted({"cat", "dog", "fox", "owl"} - {gone})
    before, exemplars = answers(one, others), one.exemplars_
    one.forget(gone)
    assert one.classes_.tolist() == others
    assert np.allclose(one.predict_proba(TESTS), before, atol=1e-6)
    after = one.exemplars_
    assert {name: kept(part) for name, part in after.items()} == {
        name: kept(part) for name, part in exemplars.items() if name != gone
    }


@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_has_forgotten_is_saved_and_learns_on(method: str, tmp_path: Path) -> None:
    one = learnt(method).forget("dog")
    one.save(tmp_path / "model")
    again = Learner.load(tmp_path / "model", backbone=TinyFeatures(), device="cpu", check=True)
    assert state_of(again) == state_of(one)
    for learner in (one, again):
        learner.partial_fit(*examples({"dog": 6, "owl": 2}, seed=4))
    assert one.classes_.tolist() == ["cat", "dog", "fox", "owl"]
    if method != "joint":  # it starts anew from the weights that the module has
        assert np.array_equal(one.predict_proba(TESTS), again.predict_proba(TESTS))


def test_the_weights_of_a_forgotten_class_are_gone() -> None:
    for method in METHODS:
        one = learnt(method)
        place = next(index for index, name in enumerate(one.learnt_model().classes) if name == "dog")
        rows = method_of(one).network.weight.detach()[place].clone()
        one.forget("dog")
        networks = [method_of(one).network] + [m.tuned.network for m in [method_of(one)] if isinstance(m, Tuned)]
        for network in networks:
            assert network.classes == 3
            assert not (network.weight.detach() == rows).all(1).any()


def test_forgetting_keeps_the_scatter_within_classes_that_all_share() -> None:
    one = learnt()
    before = solved(one).frozen.statistics
    one.forget("dog")
    after = solved(one).frozen.statistics
    assert torch.allclose(after.scatter, before.scatter, atol=1e-12)
    assert not torch.allclose(after.gram, before.gram, atol=1e-3)
    assert after.counts.tolist() == [10, 4, 5]
    assert after.freedom == before.freedom


def test_solving_again_after_forgetting_gives_the_scores_that_the_others_had() -> None:
    method = solved(learnt())
    frozen, none = method.frozen, method.frozen.statistics.sums[:0]

    def again(statistics: Statistics) -> Any:
        return solve(statistics, none, none[:, 0].long(), frozen.choices(), frozen.setting)

    whole, part = again(frozen.statistics), again(frozen.statistics.without(1))
    assert torch.allclose(part.weight, whole.weight[[0, 2, 3]], atol=1e-10)
    assert torch.allclose(part.bias, whole.bias[[0, 2, 3]], atol=1e-10)


@pytest.mark.parametrize("method", ["closed-form", "tuned"])
def test_no_photo_is_summed_twice_though_columns_have_moved_but_a_forgotten_class_can_be_learnt_again(
    method: str, tmp_path: Path
) -> None:
    one = learnt(method).forget("cat")
    one.save(tmp_path / "model")
    for learner in (one, Learner.load(tmp_path / "model", backbone=TinyFeatures(), device="cpu")):
        before = solved(learner).frozen.statistics.counts.tolist()
        learner.partial_fit(*FIRST)
        names = learner.learnt_model().classes
        counts = dict(zip(names, solved(learner).frozen.statistics.counts.tolist(), strict=True))
        assert counts == {"dog": 6, "fox": 4, "owl": 5, "cat": 7}
        assert [counts[name] for name in ("dog", "fox", "owl")] == before
        learner.partial_fit(*FIRST)
        assert sum(solved(learner).frozen.statistics.counts.tolist()) == sum(counts.values())


@pytest.mark.parametrize("pair", [("cat", "fox"), ("owl", "cat")])
def test_merged_classes_are_the_class_that_all_their_photos_would_have_given(pair: tuple[str, str]) -> None:
    a, b = pair
    one, whole = learnt(), tiny_learner(method="closed-form")
    one.merge(a, b)
    for images, labels in (FIRST, SECOND):
        whole.partial_fit(images, [a if label == b else label for label in labels])
    assert one.classes_.tolist() == whole.classes_.tolist()
    mine, theirs = solved(one).frozen.statistics, solved(whole).frozen.statistics
    order = [whole.learnt_model().classes.index(name) for name in one.learnt_model().classes]
    assert torch.allclose(mine.scatter, theirs.scatter, atol=1e-9)
    assert torch.allclose(mine.means, theirs.means[order], atol=1e-9)
    setting, none = solved(one).frozen.setting, mine.sums[:0]
    expected = solve(mine, none, none[:, 0].long(), before=setting)
    network = method_of(one).network
    assert torch.allclose(network.weight[: network.classes], (setting.temperature * expected.weight).float())


@pytest.mark.parametrize("method", ["closed-form", "tuned"])
def test_a_merged_class_knows_the_photos_of_both(method: str) -> None:
    one = learnt(method).merge("dog", "cat")
    before = solved(one).frozen.statistics.counts.tolist()
    images, labels = FIRST
    one.partial_fit(images, ["dog" if name == "cat" else name for name in labels])
    assert solved(one).frozen.statistics.counts.tolist() == before == [16, 4, 5]


def test_the_exemplars_of_merged_classes_are_taken_by_turns() -> None:
    one = learnt(memory=Budget("per-class", 5))
    cats, foxes = (kept(one.exemplars_[name]) for name in ("cat", "fox"))
    one.merge("cat", "fox")
    assert kept(one.exemplars_["cat"]) == [cats[0], foxes[0], cats[1], foxes[1], cats[2]]


def test_renaming_changes_nothing_but_the_label() -> None:
    one = learnt()
    before, weights = one.predict_proba(TESTS), state_of(one)["weights"]
    one.rename("dog", "hound")
    assert one.classes_.tolist() == ["cat", "fox", "hound", "owl"]
    assert np.array_equal(one.predict_proba(TESTS), before[:, [0, 2, 1, 3]])
    assert state_of(one)["weights"] == weights


def test_the_history_tells_of_the_classes_as_they_are_now() -> None:
    one = learnt()

    def told(learner: Learner) -> list[Any]:
        return [(record["step"], record["new_classes"], record["images"]) for record in learner.history_]

    assert told(copy.deepcopy(one).forget("owl")) == [
        (1, ["cat", "dog", "fox"], [["cat", 7], ["dog", 6], ["fox", 4]]),
        (2, [], [["cat", 3]]),
    ]
    assert told(copy.deepcopy(one).rename("cat", "kitten")) == [
        (1, ["kitten", "dog", "fox"], [["kitten", 7], ["dog", 6], ["fox", 4]]),
        (2, ["owl"], [["kitten", 3], ["owl", 5]]),
    ]
    assert told(copy.deepcopy(one).merge("owl", "cat")) == [
        (1, ["owl", "dog", "fox"], [["owl", 7], ["dog", 6], ["fox", 4]]),
        (2, [], [["owl", 8]]),
    ]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda one: one.forget("fix"), "no class is called fix; did you mean fox"),
        (lambda one: one.forget("cat").forget("dog").forget("fox"), "two classes or more: forget fewer"),
        (lambda one: one.rename("cat", "dog"), "there is a class dog already"),
        (lambda one: one.rename("cat", 3), "labels must all be of one type"),
        (lambda one: one.merge("cat", "cat"), "cat is one class already"),
        (lambda one: one.merge("cat", "bee"), "no class is called bee"),
        (lambda one: one.forget("cat").forget("dog").merge("fox", "owl"), "merging would leave one"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_changes_nothing(change: Any, told: str) -> None:
    one = learnt()
    with pytest.raises(TreeringError, match=told):
        change(one)
    if "two classes" in told or "leave one" in told:
        assert len(one.classes_) == 2
    else:
        assert state_of(one) == state_of(learnt())


def test_methods_that_cannot_forget_or_merge_say_so() -> None:
    gem = tiny_learner(method="gem", memory=Budget("per-step", 4, "random")).partial_fit(*FIRST)
    with pytest.raises(TreeringError, match=r"^gem cannot forget a class"):
        gem.forget("cat")
    with pytest.raises(TreeringError, match=r"^eeil cannot merge classes, only closed-form and tuned can"):
        learnt("eeil").merge("cat", "dog")


def test_a_change_that_fails_half_way_leaves_the_learner_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    one = learnt()
    before = state_of(one), solved(one).frozen.statistics.gram.clone()

    def failing(self: Any, kept: int, gone: int) -> None:
        raise MemoryError

    monkeypatch.setattr("treering.methods.numbers.Numbers.merge", failing)
    with pytest.raises(MemoryError):
        one.merge("cat", "dog")
    assert state_of(one) == before[0]
    assert torch.equal(solved(one).frozen.statistics.gram, before[1])


def test_a_model_of_few_images_is_read_again_though_it_has_forgotten_many(tmp_path: Path) -> None:
    images = np.concatenate([images_of(["cat", "dog", "fox"]), images_of(["owl"] * 400, seed=3)])
    one = tiny_learner(method="closed-form").partial_fit(images, ["cat", "dog", "fox"] + ["owl"] * 400).forget("owl")
    one.save(tmp_path / "model")
    again = Learner.load(tmp_path / "model", backbone=TinyFeatures(), device="cpu")
    assert np.array_equal(again.predict_proba(TESTS), one.predict_proba(TESTS))
