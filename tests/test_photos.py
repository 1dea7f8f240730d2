"""`photos.learn`: what is planned, trained on, held out, kept and measured, step by step."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import examples, kept
from learn_helper import CHANGES, FIRST, MEMORY, SECOND, SIDE, held_out_of, learn, make_folder, model_state, pixels_in
from PIL import Image

from treering import Budget, Learner, TreeringError, methods
from treering.core import augment
from treering.core.metrics import interval
from treering.images.files import read
from treering.model import examine
from treering.photos.plan import Plan
from treering.runtime import pixels
from treering.storage import model_folder as checkpoint

LARGER = {"changes": [*CHANGES, "memory.held_out=0.5"], "memory": 8}
"""Four exemplars and four held-out images of each class."""


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "first", FIRST)


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "second", SECOND, seed=1)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """Every image that the trainer gets from here on, before it is augmented."""
    seen: set[bytes] = set()
    augmented = augment.augmented

    def watched(images: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.update(kept(images))
        return augmented(images, *rest)

    monkeypatch.setattr(augment, "augmented", watched)
    return seen


def load(path: Path) -> Learner:
    return Learner.load(path, device="cpu")


def planned(path: Path, folder: Path, **settings: Any) -> Plan:
    told: list[Plan] = []
    assert learn(path, folder, dry_run=True, tell=told.append, **settings) is None
    (plan,) = told
    return plan


def all_files(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


# --- Plans ------------------------------------------------------------------------------------------------------------


def test_the_plan_counts_new_known_held_out_and_skipped_images(tmp_path: Path, first: Path, second: Path) -> None:
    path = tmp_path / "model"
    told: list[Plan] = []
    (first / "cat" / "notes.txt").write_text("not an image")
    (first / "dog" / "empty.jpg").touch()
    (first / "loose.jpg").touch()
    learn(path, first, tell=told.append)
    learn(path, second, tell=told.append)
    one, two = told
    assert (one.step, one.new, one.known, one.held_out, one.resumed) == (1, FIRST, {}, 2, False)
    reasons = {file.relative_to(first).as_posix(): reason for file, reason in one.skipped}
    assert set(reasons) == {"cat/notes.txt", "dog/empty.jpg", "loose.jpg"}
    assert reasons["dog/empty.jpg"] == "empty file"
    assert (two.step, two.new, two.known, two.skipped) == (2, {"owl": 8}, {"cat": 6}, [])
    assert two.held_out == 1, "an owl; the cats have their share already"
    assert one.recipe.memory.size == MEMORY
    assert one.seconds > 0


def test_a_dry_run_writes_nothing(tmp_path: Path, first: Path, second: Path) -> None:
    path = tmp_path / "model"
    assert planned(path, first).new == FIRST
    assert not path.exists()
    learn(path, first)
    before, times = all_files(path), {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    assert planned(path, second).known == {"cat": 6}
    assert all_files(path) == before
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == times


def test_the_plan_of_a_dry_run_is_that_of_the_learn(tmp_path: Path, first: Path) -> None:
    path = tmp_path / "model"
    dry = planned(path, first)
    told: list[Plan] = []
    learn(path, first, tell=told.append)
    same = ("recipe", "device", "step", "new", "known", "skipped", "held_out", "resumed")
    assert all(getattr(dry, name) == getattr(told[0], name) for name in same)


def test_progress_counts_every_image_pass_of_the_plan(tmp_path: Path, first: Path, second: Path) -> None:
    path = tmp_path / "model"
    for folder, photos_there, epochs in ((first, 15, 3), (second, 14, 5)):
        seen: list[tuple[str, int, int]] = []
        learn(path, folder, progress=lambda *now, seen=seen: seen.append(now))
        assert seen[0] == ("reading", photos_there, photos_there)
        assert [what for what, _, _ in seen[1:]] == ["training"] * epochs
        assert seen[-1][1] == seen[-1][2], "as many images as were planned"
        assert len({total for _, _, total in seen[1:]}) == 1


@pytest.mark.parametrize("method", [name for name in methods.METHODS if name != "tuned"])  # tests/test_tuned.py
def test_every_method_does_what_was_planned_also_where_a_class_returns(tmp_path: Path, method: str) -> None:
    changes = [*CHANGES, f"method={method}"]
    if method == "gem":
        changes += ["memory.kind=per-step", "memory.selection=random"]
    steps = [({"cat": 2, "dog": 3}, 8), ({"cat": 9, "owl": 12}, 8), ({"ant": 3}, 10)]
    for number, (counts, memory) in enumerate(steps):
        settings = {} if number else {"changes": changes}
        seen: list[tuple[str, int, int]] = []
        learn(
            tmp_path / "model",
            make_folder(tmp_path / str(number), counts, seed=number),
            memory=memory,
            progress=lambda *now, seen=seen: seen.append(now),
            **settings,
        )
        assert seen[-1][0] == ("learning" if method == "closed-form" else "training")
        assert seen[-1][1] == seen[-1][2]


# --- What is refused --------------------------------------------------------------------------------------------------


def test_settings_of_a_model_are_settled_when_it_is_made(tmp_path: Path, first: Path, second: Path) -> None:
    path = tmp_path / "model"
    learn(path, first)
    before = all_files(path)
    for settings in ({"backbone": "resnet32"}, {"changes": ["memory.kind=total"]}, {"changes": ["training.epochs=1"]}):
        with pytest.raises(TreeringError, match="is a model already: of its settings only --memory"):
            learn(path, second, **settings)
    assert all_files(path) == before


@pytest.mark.parametrize("settings", [{"memory": 8}, {"changes": ["memory.size=8"]}], ids=str)
def test_the_size_of_the_memory_can_be_changed_with_every_step(
    tmp_path: Path, first: Path, second: Path, settings: dict[str, Any]
) -> None:
    path = tmp_path / "model"
    learn(path, first)
    before = load(path).resolved_recipe()
    learn(path, second, **settings)
    learner = load(path)
    assert learner.resolved_recipe() == replace(before, memory=replace(before.memory, size=8))
    quota = learner.resolved_recipe().memory.quota(3)
    assert len(learner.exemplars_["owl"]) == min(quota, 7) > before.memory.quota(3)
    assert learn(path, second, **settings) is None, "it is learnt already"
    assert learn(path, second, memory=20) is not None, "with room for more"
    assert len(load(path).exemplars_["owl"]) == 7


def test_a_smaller_memory_holds_fewer_held_out_images_too(tmp_path: Path, first: Path) -> None:
    many = make_folder(tmp_path / "many", {"cat": 40, "dog": 40})
    learn(tmp_path / "model", many, **LARGER)
    learner = load(tmp_path / "model")
    assert [len(part) for part in held_out_of(learner).values()] == [4, 4]
    learner.set_params(memory=Budget("per-class", 4)).partial_fit(*examples({"owl": 6}, side=SIDE))
    assert [len(part) for part in held_out_of(learner).values()] == [2, 2]
    assert [len(part) for part in learner.exemplars_.values()] == [2, 2, 2]


@pytest.mark.parametrize("change", ["run.seed=5", "run.order=1", "run.dataset=birds"])
def test_settings_of_runs_are_refused(tmp_path: Path, first: Path, change: str) -> None:
    with pytest.raises(TreeringError, match=r"only run\.image_size counts here; --seed"):
        learn(tmp_path / "model", first, changes=[*CHANGES, change])


def test_validation_images_that_are_learnt_from_are_left_out(
    tmp_path: Path, first: Path, second: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model"
    with pytest.raises(TreeringError, match="learns from every image of the validation folder"):
        learn(path, first, validation=first)
    assert not path.exists()
    outcome = learn(path, first, validation=second)
    assert outcome.all is not None
    assert outcome.all.images == SECOND["cat"]
    assert [record.message for record in caplog.records] == [
        "the validation folder has classes that the model does not know: owl"
    ]
    Image.fromarray(load(path).exemplars_["cat"][0]).save(second / "cat" / "kept.png")
    shutil.copy(next((first / "dog").iterdir()), second / "owl" / "dog.jpg")
    fresh = make_folder(tmp_path / "fresh", {"ant": 6, "owl": 6}, seed=2)
    shutil.copy(second / "owl" / "dog.jpg", fresh / "ant" / "dog.jpg")
    outcome = learn(path, fresh, validation=second)
    assert outcome.all is not None
    assert outcome.all.images == SECOND["cat"] + SECOND["owl"]
    assert "2 of the images for validation are left out: the model learns from them" in caplog.text


def test_partial_fit_does_not_train_on_held_out_images(
    tmp_path: Path, first: Path, trained: set[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    learn(tmp_path / "model", first)
    learner = load(tmp_path / "model")
    secret = {image for part in held_out_of(learner).values() for image in part}
    trained.clear()
    learner.partial_fit(first)
    assert trained
    assert not trained & secret
    assert f"{len(secret)} of the images are left out: they are held out of training" in caplog.text
    held_out = torch.cat([pixels.tensor(part) for part in learner.learnt_model().held_out.values()])
    with pytest.raises(TreeringError, match="all images are held out of training"):
        learner.partial_fit(held_out, ["cat"] * len(held_out))
    owls, _ = examples({"owl": 3}, side=SIDE)
    both = torch.cat([held_out, torch.from_numpy(owls).movedim(-1, 1)])
    with pytest.raises(TreeringError, match="all images of ant are held out of training"):
        learner.partial_fit(both, ["ant"] * len(held_out) + ["owl"] * 3)


def in_two_classes(plan: Plan) -> list[tuple[str, str]]:
    return [(one.name, other.name) for one, other in plan.same if one.name != other.name]


def test_copies_and_images_in_two_classes_are_told(tmp_path: Path, first: Path) -> None:
    learn(tmp_path / "model", first)
    again = tmp_path / "again"
    shutil.copytree(first, again)
    shutil.copytree(again / "cat", again / "lynx")
    plan = planned(tmp_path / "model", again)
    known = load(tmp_path / "model")
    images = sum(len(part) for part in (*known.exemplars_.values(), *held_out_of(known).values()))
    secret_cats = len(held_out_of(known)["cat"])
    assert plan.copies == images + secret_cats + plan.held_out, "also the lynxes that are held-out cats, or cats"
    assert in_two_classes(plan) == [("cat", "lynx")] * FIRST["cat"]
    shutil.rmtree(again / "cat")
    shutil.rmtree(again / "dog")
    cats = len(known.exemplars_["cat"]) + secret_cats
    assert in_two_classes(planned(tmp_path / "model", again)) == [("cat", "lynx")] * cats
    learn(tmp_path / "model", again)
    assert planned(tmp_path / "model", make_folder(tmp_path / "other", {"owl": 5})).same == []


def test_no_exemplar_of_another_class_is_held_out(tmp_path: Path) -> None:
    many = make_folder(tmp_path / "many", {"cat": 12, "dog": 8})
    renamed = tmp_path / "renamed"
    shutil.copytree(many / "cat", renamed / "lynx")
    for seed in range(3):
        learn(tmp_path / f"model-{seed}", many, seed=seed)
        learn(tmp_path / f"model-{seed}", renamed)
        learner = load(tmp_path / f"model-{seed}")
        (lynx,) = held_out_of(learner)["lynx"]
        assert lynx not in kept(learner.exemplars_["cat"])
        assert lynx in pixels_in(renamed)["lynx"]


def test_a_first_step_needs_two_classes_and_a_later_one_does_not(tmp_path: Path, first: Path) -> None:
    alone = make_folder(tmp_path / "alone", {"owl": 6})
    with pytest.raises(TreeringError, match="has one readable class only, owl"):
        learn(tmp_path / "model", alone)
    assert not (tmp_path / "model").exists()
    learn(tmp_path / "model", first)
    learn(tmp_path / "model", alone)
    assert load(tmp_path / "model").classes_.tolist() == ["cat", "dog", "owl"]


def test_a_folder_without_a_readable_image_is_refused_and_the_model_stays(tmp_path: Path, first: Path) -> None:
    path = tmp_path / "model"
    learn(path, first)
    before = model_state(path)
    broken = tmp_path / "broken"
    (broken / "owl").mkdir(parents=True)
    (broken / "owl" / "a.jpg").write_bytes(b"\xff\xd8 no photo")
    with pytest.raises(TreeringError, match=r"no image in .* can be read \(a.jpg: "):
        learn(path, broken)
    assert model_state(path) == before


def test_formats_other_than_jpeg_are_read(tmp_path: Path, first: Path) -> None:
    for suffix in ("png", "webp", "bmp", "gif"):
        Image.fromarray(np.full((9, 9, 3), 90, np.uint8)).save(first / "cat" / f"another.{suffix}")
    assert planned(tmp_path / "model", first).skipped == []


# --- Held-out images and the memory -----------------------------------------------------------------------------------


def check_budget(path: Path, size: int, trained: set[bytes]) -> None:
    """No class keeps more than `size` images, and none is exemplar and held out at once, or trained on and held out."""
    learner = load(path)
    exemplars = {name: kept(images) for name, images in learner.exemplars_.items()}
    held_out = held_out_of(learner)
    for name in learner.classes_.tolist():
        assert 0 < len(exemplars[name]) + len(held_out.get(name, [])) <= size
        assert not set(exemplars[name]) & set(held_out.get(name, []))
        assert not trained & set(held_out.get(name, []))


@pytest.mark.parametrize("settings", [{}, LARGER], ids=["a fifth", "half"])
def test_held_out_images_are_never_trained_on_and_are_carried_over_steps(
    tmp_path: Path, trained: set[bytes], settings: dict[str, Any]
) -> None:
    path, size = tmp_path / "model", settings.get("memory", MEMORY)
    counts = [{"cat": 21, "dog": 30}, {"cat": 24, "owl": 5}, {"dog": 40, "ant": 4, "bee": 10}]
    given: dict[str, set[bytes]] = {}
    before: dict[str, list[bytes]] = {}
    for number, step in enumerate(counts):
        folder = make_folder(tmp_path / str(number), step, seed=number)
        for name, images in pixels_in(folder).items():
            given.setdefault(name, set()).update(images)
        learn(path, folder, **({} if number else settings))
        check_budget(path, size, trained)
        held_out = held_out_of(load(path))
        for name, images in held_out.items():
            assert set(images) <= given[name], "they are images of their own class"
            assert images[: len(before.get(name, []))] == before.get(name, []), "earlier ones stay"
        before = held_out
    every = set().union(*given.values())
    held = {image for images in before.values() for image in images}
    assert trained == every - held, "all others are trained on"
    most = 4 if settings else 1
    expected = {"cat": min(2, most), "dog": min(3, most), "owl": 1, "bee": 1}
    assert {name: len(images) for name, images in before.items()} == expected, "a tenth of each first, not of four ants"


def test_held_out_images_are_not_trained_on_when_the_same_folder_is_given_with_more_photos(
    tmp_path: Path, first: Path, trained: set[bytes]
) -> None:
    path = tmp_path / "model"
    learn(path, first)
    before = set(trained)
    make_folder(first, {"cat": 4, "owl": 6}, seed=5)
    learn(path, first)
    check_budget(path, MEMORY, trained)
    learner = load(path)
    held_out = {image for images in held_out_of(learner).values() for image in images}
    assert not held_out & before, "what was trained on in the first step measures nothing"
    exemplars = [image.tobytes() for images in learner.exemplars_.values() for image in images]
    assert len(exemplars) == len(set(exemplars)), "no photo is kept twice"


def test_a_class_of_copies_of_one_photo_is_learnt(tmp_path: Path, first: Path) -> None:
    make_folder(first, {"owl": 1}, seed=5)
    (photo,) = (first / "owl").iterdir()
    for number in range(8):
        shutil.copy(photo, photo.with_stem(f"copy{number}"))
    learn(tmp_path / "model", first)
    assert "owl" in load(tmp_path / "model").classes_


def test_a_class_of_held_out_images_of_others_is_refused(tmp_path: Path, first: Path, second: Path) -> None:
    path = tmp_path / "model"
    learn(path, first)
    secret = {image for part in load(path).learnt_model().held_out.values() for image in kept(part)}
    (second / "relabelled").mkdir()
    for file in first.rglob("*.jpg"):
        if kept(np.stack([read(file, SIDE)]))[0] in secret:
            shutil.copy(file, second / "relabelled" / file.name)
    with pytest.raises(TreeringError, match="every image of relabelled is held out already"):
        learn(path, second)


def test_the_memory_for_all_classes_together_is_never_exceeded(tmp_path: Path, first: Path, second: Path) -> None:
    path = tmp_path / "model"
    settings = {"memory": 12, "changes": [*CHANGES, "memory.kind=total", "memory.held_out=0.5"]}
    many = make_folder(tmp_path / "many", {"cat": 40, "dog": 40})
    learn(path, many, **settings)
    for folder in (first, second, make_folder(tmp_path / "third", {"ant": 10, "bee": 10})):
        learn(path, folder)
        learner = load(path)
        total = sum(map(len, learner.exemplars_.values())) + sum(map(len, held_out_of(learner).values()))
        assert total <= 12


def test_the_memory_for_all_classes_together_is_not_exceeded_with_a_validation_folder(
    tmp_path: Path, first: Path
) -> None:
    path = tmp_path / "model"
    settings = {"memory": 12, "changes": [*CHANGES, "memory.kind=total", "memory.held_out=0.5"]}
    learn(path, make_folder(tmp_path / "many", {"cat": 40, "dog": 40}), **settings)
    learn(path, make_folder(tmp_path / "more", {"ant": 10, "bee": 10}), validation=first)
    learner = load(path)
    assert sum(map(len, learner.exemplars_.values())) + sum(map(len, held_out_of(learner).values())) <= 12


def test_a_validation_folder_measures_and_nothing_is_held_out(
    tmp_path: Path, first: Path, second: Path, trained: set[bytes]
) -> None:
    path = tmp_path / "model"
    checks = make_folder(tmp_path / "checks", {"cat": 3, "dog": 4, "stranger": 5}, seed=9)
    told: list[Plan] = []
    outcome = learn(path, first, validation=checks, tell=told.append)
    assert told[0].held_out == 0
    assert outcome is not None
    assert outcome.all is not None
    assert outcome.all.images == 7, "a class that the model does not know cannot be measured"
    assert trained == {image for images in pixels_in(first).values() for image in images}
    learner = load(path)
    assert held_out_of(learner) == {}
    by_hand = [said == name for name, part in rows(checks).items() if name in FIRST for said in learner.predict(part)]
    assert outcome.all.right == sum(by_hand)

    learn(path, second)
    held_out = held_out_of(load(path))
    learn(path, make_folder(tmp_path / "third", {"ant": 8}), validation=checks)
    assert held_out_of(load(path)) == held_out, "those of earlier steps stay"


def test_known_classes_come_back_with_more_images(
    tmp_path: Path, first: Path, second: Path, trained: set[bytes]
) -> None:
    path = tmp_path / "model"
    learn(path, first)
    trained.clear()
    more = make_folder(tmp_path / "more", {"dog": 6, "cat": 9}, seed=3)
    learn(path, more)
    learner = load(path)
    assert learner.classes_.tolist() == ["cat", "dog"]
    assert [record["new_classes"] for record in learner.history_] == [["cat", "dog"], []]
    assert [record["images"] for record in learner.history_] == [[["cat", 7], ["dog", 6]], [["cat", 9], ["dog", 6]]]
    given = pixels_in(more)
    assert trained >= set(given["cat"]) | set(given["dog"])
    candidates = {name: set(images) | set(pixels_in(first)[name]) for name, images in given.items()}
    assert all(set(kept(images)) <= candidates[name] for name, images in learner.exemplars_.items())


# --- The outcome ------------------------------------------------------------------------------------------------------


def rows(folder: Path) -> dict[str, np.ndarray]:
    """The photos of each class, N x H x W x C."""
    shape = (-1, 3, 20, 20)
    joined = {name: np.frombuffer(b"".join(images), np.uint8) for name, images in pixels_in(folder).items()}
    return {name: np.moveaxis(images.reshape(shape), 1, -1) for name, images in joined.items()}


def test_the_outcome_is_what_a_count_by_hand_gives(tmp_path: Path) -> None:
    """Few epochs and a validation folder of many images, so that some are wrong and some are forgotten."""
    path = tmp_path / "model"
    hasty = [*CHANGES, "training.epochs=2", "training.lr=0.3", "balanced.epochs=0"]
    learn(path, make_folder(tmp_path / "1", {"ab": 6, "ba": 6, "cd": 6}), changes=hasty)
    checks = make_folder(tmp_path / "checks", {"ab": 9, "ba": 7, "dc": 8, "cd": 3, "ef": 5}, seed=9)
    before = load(path)
    outcome = learn(path, make_folder(tmp_path / "2", {"dc": 12, "ef": 10, "ba": 3}, seed=2), validation=checks)
    assert outcome is not None
    after, counts = load(path), {}
    for name, images in rows(checks).items():
        counts[name] = [sum(said == name for said in learner.predict(images).tolist()) for learner in (before, after)]
    size = {"ab": 9, "ba": 7, "dc": 8, "cd": 3, "ef": 5}
    old, new = ("ab", "ba", "cd"), ("dc", "ef")
    assert outcome.all == (sum(count[1] for count in counts.values()), 32)
    assert outcome.old == tuple((sum(counts[name][time] for name in old), 19) for time in (0, 1))
    assert outcome.new == (sum(counts[name][1] for name in new), 13)
    lost = [(name, *((count, size[name]) for count in counts[name])) for name in old]
    lost = [one for one in lost if 100 * one[2][0] / one[2][1] < interval(100 * one[1][0] / one[1][1], one[1][1])[0]]
    assert sorted(outcome.forgotten()) == sorted(lost)
    assert lost, "the data tell something"
    assert 0 < outcome.all.percent < 100
    assert outcome.seconds > 0
    recorded = after.history_[-1]["accuracy"]
    assert outcome.new is not None and outcome.old is not None
    assert recorded == {
        "all": outcome.all.percent,
        "old": outcome.old[1].percent,
        "old_before": outcome.old[0].percent,
        "new": outcome.new.percent,
        "images": 32,
        "classes": {name: [count[1], size[name]] for name, count in counts.items()},
    }


def test_without_held_out_images_the_outcome_is_not_known(tmp_path: Path) -> None:
    outcome = learn(tmp_path / "model", make_folder(tmp_path / "few", {"cat": 4, "dog": 3}))
    assert outcome is not None
    assert (outcome.all, outcome.old, outcome.new) == (None, None, None)
    assert outcome.forgotten() == []


def test_the_outcome_of_held_out_images_is_what_the_saved_model_says_of_them(
    tmp_path: Path, first: Path, second: Path
) -> None:
    path = tmp_path / "model"
    learn(path, first, **LARGER)
    outcome = learn(path, second)
    assert outcome is not None
    learner = load(path)
    model = learner.learnt_model()
    right = dict.fromkeys(model.classes, 0)
    for column, images in model.held_out.items():
        said = learner.predict(pixels.tensor(images).movedim(1, -1).numpy()).tolist()
        right[model.classes[column]] = said.count(model.classes[column])
    total = sum(map(len, model.held_out.values()))
    assert total == 3, "a cat, a dog, an owl"
    assert outcome.all == (sum(right.values()), total)
    assert outcome.old is not None
    assert outcome.old[1] == (right["cat"] + right["dog"], 2)
    assert outcome.new == (right["owl"], 1)


# --- Same input, same model; undo -------------------------------------------------------------------------------------


def test_the_same_photos_give_the_same_model_and_another_seed_another(tmp_path: Path, first: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        learn(tmp_path / name, first, seed=seed)
    assert model_state(tmp_path / "a") == model_state(tmp_path / "b")
    assert model_state(tmp_path / "a")["weights"] != model_state(tmp_path / "c")["weights"]


@pytest.mark.parametrize("keep", [0, 2])
def test_undo_gives_back_the_model_before_a_step_which_can_be_learnt_again(
    tmp_path: Path, first: Path, second: Path, keep: int
) -> None:
    path = tmp_path / "model"
    learn(path, first, keep=keep)
    before = model_state(path)
    learn(path, second, keep=keep)
    after = model_state(path)
    if not keep:
        with pytest.raises(TreeringError, match="has no version to go back to"):
            checkpoint.undo(path, examine)
        assert model_state(path) == after
        return
    checkpoint.undo(path, examine)
    assert model_state(path) == before
    learn(path, second, keep=keep)
    assert model_state(path) == after
