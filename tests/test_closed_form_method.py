"""The method `closed-form`: sums over all images, heads that are solved, and nothing that is forgotten."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_helper
import safetensors.torch
import torch
from conftest import TinyFeatures, examples, method_of, state_of, tiny_learner
from learn_helper import learn, leftovers, make_folder, model_state
from torch.nn import functional as F

from treering import Budget, Learner, TreeringError
from treering.core import backbones
from treering.core.closed_form import PENALTIES, Statistics
from treering.experiments.run import StreamRun
from treering.methods import ClosedForm, closed_form, speed
from treering.storage import model_folder
from treering.storage.folder import Folder

CPU = torch.device("cpu")
FIRST, SECOND = examples({"cat": 7, "dog": 6}), examples({"owl": 5, "cat": 3}, seed=1)
TESTS, _ = examples({"cat": 4, "dog": 4, "owl": 4}, seed=2)


def closed(**changes: Any) -> Learner:
    return tiny_learner(method="closed-form", **changes)


def all_of(learner: Learner) -> tuple[dict[str, Any], dict[str, bytes]]:
    """All that was learnt, the sums included."""
    return state_of(learner), {name: part.numpy().tobytes() for name, part in method_of(learner).tensors().items()}


def features_of(learner: Learner, images: np.ndarray) -> torch.Tensor:
    pixels = torch.from_numpy(images).movedim(-1, 1)
    return F.normalize(method_of(learner).network.predict_features(pixels))


def test_the_heads_are_the_solution_for_all_images_ever_shown() -> None:
    learner = closed().partial_fit(*FIRST).partial_fit(*SECOND)
    names = ["cat", "dog", "owl"]
    x_ND = features_of(learner, np.concatenate([FIRST[0], SECOND[0]]))
    labels_N = torch.tensor([names.index(name) for name in FIRST[1] + SECOND[1]])
    statistics = Statistics.empty(x_ND.shape[1], CPU).added(x_ND, labels_N, 3)
    kept = method_of(learner).frozen.statistics  # type: ignore[attr-defined]
    assert torch.allclose(kept.gram, statistics.gram, rtol=1e-6)
    assert torch.allclose(kept.sums, statistics.sums, rtol=1e-6)
    assert kept.counts.tolist() == [10, 6, 5]
    tests_ND = features_of(learner, TESTS).double()
    found = method_of(learner).network.predict_logits(torch.from_numpy(TESTS).movedim(-1, 1)).double()
    alike = []
    for penalty in PENALTIES:  # the one that the images at hand have chosen, and their temperature
        inverse = torch.linalg.inv(statistics.scatter + penalty * torch.eye(x_ND.shape[1], dtype=torch.float64))
        directions = statistics.means @ inverse
        scores = tests_ND @ directions.T - 0.5 * (directions * statistics.means).sum(1)
        parts = [(part - part.mean(1, keepdim=True)).flatten() for part in (found, scores)]
        alike.append(float(F.cosine_similarity(*parts, dim=0)))
    assert max(alike) > 0.99999


def test_the_network_itself_learns_nothing() -> None:
    backbone = TinyFeatures()
    learner = closed(backbone=backbone).partial_fit(*FIRST).partial_fit(*SECOND)
    for name, tensor in method_of(learner).network.features.state_dict().items():
        assert torch.equal(tensor, backbone.state_dict()[name]), name


def test_steps_and_their_order_make_no_difference_where_the_same_images_are_at_hand() -> None:
    images, names = np.concatenate([FIRST[0], SECOND[0]]), FIRST[1] + SECOND[1]
    at_once = closed(memory=Budget("per-class", 50)).partial_fit(images, names)
    in_steps = closed(memory=Budget("per-class", 50)).partial_fit(*FIRST).partial_fit(*SECOND)
    order = np.argsort(names, kind="stable")
    sorted_first = closed(memory=Budget("per-class", 50)).partial_fit(images[order], [names[index] for index in order])
    wanted = at_once.predict_proba(TESTS)
    for one in (in_steps, sorted_first):
        # The mean image, which is the first step's, may differ: the features then do so too.
        assert (one.predict(TESTS) == at_once.predict(TESTS)).mean() > 0.8
    np.testing.assert_allclose(sorted_first.predict_proba(TESTS), wanted, atol=1e-4)


def test_no_image_need_be_kept() -> None:
    without = closed(memory=Budget("per-class", 0)).partial_fit(*FIRST).partial_fit(*SECOND)
    assert without.exemplars_ == {}
    assert method_of(without).frozen.statistics.counts.sum() == 21  # type: ignore[attr-defined]
    assert without.score(*FIRST) > 0.8, "the first step's classes are known as well as before"
    assert without.score(*SECOND) > 0.8


def test_a_method_that_learns_from_exemplars_refuses_to_do_without() -> None:
    with pytest.raises(TreeringError, match="eeil cannot learn without exemplars"):
        tiny_learner(memory=Budget("per-class", 0)).partial_fit(*FIRST)


def test_every_image_at_hand_is_told_by_all_others_before_and_after_the_step() -> None:
    learner = closed(memory=Budget("per-class", 3)).partial_fit(*FIRST)
    first = method_of(learner).left_out
    assert first is not None
    assert first.before == {}
    assert {label: len(right) for label, right in first.after.items()} == {0: 7, 1: 6}
    learner.partial_fit(*SECOND)
    second = method_of(learner).left_out
    assert second is not None
    assert {label: len(right) for label, right in second.before.items()} == {0: 3, 1: 3}, "the exemplars"
    assert {label: len(right) for label, right in second.after.items()} == {0: 3 + 3, 1: 3, 2: 5}
    assert {label for said in second.after.values() for label in said} <= {0, 1, 2}


def test_no_more_exemplars_are_asked_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_form, "MOST_EXEMPLARS_ASKED", 4)
    learner = closed(memory=Budget("per-class", 6)).partial_fit(*FIRST).partial_fit(*SECOND)
    told = method_of(learner).left_out
    assert told is not None
    assert {label: len(right) for label, right in told.before.items()} == {0: 2, 1: 2}


def test_exemplars_are_ranked_as_in_the_paper_and_shrink() -> None:
    learner = closed(memory=12).partial_fit(*FIRST)
    assert {name: len(part) for name, part in learner.exemplars_.items()} == {"cat": 6, "dog": 6}
    dogs = learner.exemplars_["dog"]
    learner.partial_fit(*SECOND)
    assert {name: len(part) for name, part in learner.exemplars_.items()} == {"cat": 4, "dog": 4, "owl": 4}
    assert (learner.exemplars_["dog"] == dogs[:4]).all()


def test_a_saved_learner_goes_on_as_if_it_had_not_been_saved(tmp_path: Path) -> None:
    learner = closed().partial_fit(*FIRST)
    learner.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", backbone=TinyFeatures(), device="cpu")
    assert all_of(loaded) == all_of(learner)
    assert all_of(loaded.partial_fit(*SECOND)) == all_of(learner.partial_fit(*SECOND))


def test_a_step_that_fails_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = closed().partial_fit(*FIRST)
    before = all_of(learner)

    def fail(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ClosedForm, "_store", fail)
    with pytest.raises(KeyboardInterrupt):
        learner.partial_fit(*SECOND)
    assert all_of(learner) == before
    monkeypatch.undo()
    assert all_of(learner.partial_fit(*SECOND)) == all_of(closed().partial_fit(*FIRST).partial_fit(*SECOND))


@pytest.mark.parametrize("damage", ["missing", "other shape", "other type"])
def test_sums_that_do_not_fit_the_model_are_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    learner = closed().partial_fit(*FIRST)
    content = learner.learnt_model().content()
    tensors = dict(content.tensors)
    sums = tensors.pop("statistics.sums")
    if damage != "missing":
        tensors["statistics.sums"] = sums[:, :-1].contiguous() if damage == "other shape" else sums.float()
    model_folder.save(replace(content, tensors=tensors), tmp_path / "model")
    with pytest.raises(TreeringError, match=r"do not fit the backbone custom: statistics.sums differs"):
        Learner.load(tmp_path / "model", backbone=TinyFeatures(), device="cpu")


def test_images_without_finite_features_are_refused() -> None:
    class Broken(TinyFeatures):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) / (x.flatten(1).std(1, keepdim=True) * 0) if x.std() else super().forward(x)

    with pytest.raises(TreeringError, match="features that are not finite"):
        closed(backbone=Broken()).partial_fit(*FIRST)


def test_a_run_takes_the_image_passes_that_were_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backbones.BACKBONES, "tiny", TinyFeatures)
    recipe = replace(run_helper.TINY, method="closed-form", memory=Budget("per-class", 3))
    run = StreamRun(recipe, run_helper.tiny_images(), tmp_path)
    result = run()
    # Three steps of two classes with six images; three exemplars of each class known before are asked, too.
    assert result["image_passes"] == run.image_passes_planned == 12 + (12 + 6) + (12 + 12)
    assert result["accuracy"][0] > 50


def test_a_closed_form_is_exported_with_its_scaled_features(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    learner = closed(backbone="small").partial_fit(*FIRST)
    assert learner.export(tmp_path / "model.onnx") < 1e-4


def test_the_weights_file_holds_half_of_the_symmetric_matrix(tmp_path: Path) -> None:
    learner = closed().partial_fit(*FIRST)
    learner.save(tmp_path / "model")
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    tensors = safetensors.torch.load_file(tmp_path / "model" / manifest["files"]["weights"]["name"])
    assert tensors["statistics.gram"].shape == (8 * 9 // 2,)
    statistics = Statistics.of(tensors, 8, 2, CPU)
    assert torch.equal(statistics.gram, method_of(learner).frozen.statistics.gram)  # type: ignore[attr-defined]
    assert torch.equal(statistics.gram, statistics.gram.T)


@pytest.mark.parametrize(("name", "value"), [("counts", 2.0**40), ("sums", 20.0), ("forgotten", 2.0**40)])
def test_sums_that_so_few_images_cannot_give_are_refused(name: str, value: float) -> None:
    tensors = method_of(closed().partial_fit(*FIRST)).frozen.statistics.tensors()  # type: ignore[attr-defined]
    tensors["statistics.counts"] = torch.tensor([5.0, 1000.0], dtype=torch.float64)
    Statistics.of(tensors, 8, 2, CPU)
    tensors.setdefault("statistics.forgotten", torch.zeros(1, dtype=torch.float64))
    tensors[f"statistics.{name}"].view(-1)[0] = value
    with pytest.raises(ValueError, match="cannot be"):
        Statistics.of(tensors, 8, 2, CPU)


def test_an_image_is_summed_once_however_often_it_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    learner = closed(memory=Budget("per-class", 0)).partial_fit(*FIRST)
    images, names = np.concatenate([FIRST[0], SECOND[0], SECOND[0]]), FIRST[1] + SECOND[1] + SECOND[1]
    learner.partial_fit(images, names)
    assert method_of(learner).frozen.statistics.counts.tolist() == [10, 6, 5]  # type: ignore[attr-defined]
    before, said = method_of(learner).tensors(), learner.predict_proba(TESTS)
    learner.partial_fit(*FIRST)
    assert "every one of these images was learnt before" in caplog.text
    assert all(torch.equal(part, before[name]) for name, part in method_of(learner).tensors().items())
    assert (learner.predict_proba(TESTS) == said).all()


def test_a_smaller_memory_keeps_fewer_images_even_if_all_were_learnt_before() -> None:
    learner = closed(memory=Budget("per-class", 5)).partial_fit(*FIRST)
    for size in (3, 0):
        learner.set_params(memory=Budget("per-class", size)).partial_fit(*FIRST)
        assert [len(part) for part in learner.exemplars_.values()] == [size, size]


def test_the_only_image_of_a_class_is_not_told_by_itself() -> None:
    learner = closed().partial_fit(*examples({"cat": 4, "dog": 4, "owl": 1}))
    told = method_of(learner).left_out
    assert told is not None
    assert set(told.after) == {0, 1}


def test_a_new_class_leaves_the_setting_when_no_image_is_kept() -> None:
    learner = closed(memory=Budget("per-class", 0)).partial_fit(*FIRST)
    setting = method_of(learner).frozen.setting  # type: ignore[attr-defined]
    learner.partial_fit(*examples({"owl": 4}, seed=5))
    assert method_of(learner).frozen.setting == setting  # type: ignore[attr-defined]
    learner.partial_fit(*examples({"owl": 3, "cat": 3, "dog": 3}, seed=6))
    assert sum(method_of(learner).frozen.statistics.counts.tolist()) == 13 + 4 + 9  # type: ignore[attr-defined]


def test_a_model_without_images_is_exported_and_checked_on_noise(tmp_path: Path) -> None:
    learner = closed(backbone="small", memory=Budget("per-class", 0)).partial_fit(*FIRST)
    assert learner.export(tmp_path / "model.pt2") < 1e-4


# --- Photos -----------------------------------------------------------------------------------------------------------

CLOSED_FORM = ["method=closed-form", "augmentation.kind=none", "run.image_size=20"]
CLOSED = {"backbone": "small", "memory": 4, "changes": CLOSED_FORM}


def bits_of(path: Path) -> tuple[Any, dict[str, bytes]]:
    return model_state(path), {
        name: part.numpy().tobytes() for name, part in method_of(Learner.load(path, device="cpu")).tensors().items()
    }


def test_a_write_that_fails_anywhere_leaves_the_model_as_it_was_and_the_same_call_learns_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "images_per_second", lambda *arguments: 1000.0)
    first = make_folder(tmp_path / "first", {"cat": 6, "dog": 5})
    second = make_folder(tmp_path / "second", {"owl": 5, "cat": 3}, seed=1)
    learn(tmp_path / "base", first, **CLOSED)
    shutil.copytree(tmp_path / "base", tmp_path / "whole")
    learn(tmp_path / "whole", second)
    before, after = bits_of(tmp_path / "base"), bits_of(tmp_path / "whole")
    write, interrupted = Folder.write, 0
    for at in range(1, 16, 2):
        path = tmp_path / str(at)
        shutil.copytree(tmp_path / "base", path)
        calls: list[str] = []

        def failing(folder: Folder, name: str, *rest: Any, at: int = at, calls: list[str] = calls, **more: Any) -> None:
            calls.append(name)
            if len(calls) == at:
                raise KeyboardInterrupt
            write(folder, name, *rest, **more)

        with monkeypatch.context() as patch:
            patch.setattr(Folder, "write", failing)
            try:
                learn(path, second)
            except KeyboardInterrupt:
                interrupted += 1
                assert bits_of(path) == before
        learn(path, second)
        assert bits_of(path) == after
        assert leftovers(path) == []
    assert interrupted >= 4


def test_photos_are_told_by_all_others_and_none_is_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "images_per_second", lambda *arguments: 1000.0)
    told: list[Any] = []
    outcome = learn(tmp_path / "model", make_folder(tmp_path / "a", {"cat": 6, "dog": 5}), tell=told.append, **CLOSED)
    assert outcome is not None
    assert outcome.all is not None
    assert (outcome.all.images, outcome.left_out, told[0].held_out) == (11, True, 0)
    again = learn(tmp_path / "model", make_folder(tmp_path / "b", {"owl": 5}, seed=1))
    assert again is not None
    assert again.all is not None
    assert (again.all.images, again.classes) == (5 + 4 + 4, 3), "the new photos and the exemplars"
