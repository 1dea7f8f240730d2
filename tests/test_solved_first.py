"""A learn that trains saves what can be solved before it trains, and trains from the model before that."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from learn_helper import CHANGES, MEMORY, TUNED, learn, leftovers, make_folder, model_state

from treering import Learner, TreeringError
from treering.methods import tuned
from treering.methods.left_out import Trial
from treering.model import examine
from treering.photos import learn as photos
from treering.photos import overview
from treering.photos.outcome import Outcome
from treering.photos.plan import Plan
from treering.storage import model_folder
from treering.storage.folder import Folder

V = {"cat": 3, "dog": 3}
NEW: dict[str, Any] = {"changes": (*CHANGES, *TUNED), "memory": MEMORY}


@pytest.fixture(scope="module", autouse=True)
def saves_every_epoch() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(photos, "SAVE_EVERY", 0.0)
        yield


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "first", {"cat": 10, "dog": 10})


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "second", {"cat": 5, "owl": 10}, seed=1)


def interrupt(path: Path, folder: Path, **settings: Any) -> Outcome:
    """Begin to learn, and be interrupted in training; return what the model was said to have by then."""
    solved: list[Outcome] = []

    def progress(what: str, done: int, total: int) -> None:
        if solved and (path / ".learning").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(path, folder, solved=solved.append, progress=progress, **settings)
    return solved[0]


def learnt(path: Path, *folders: Path) -> dict[str, Any]:
    """Learn these folders in peace; return the model's state."""
    for number, folder in enumerate(folders):
        learn(path, folder, **({} if number else NEW))
    return model_state(path)


@pytest.mark.parametrize("step", [1, 2])
def test_a_model_knows_its_new_classes_before_it_trains_on_them(
    tmp_path: Path, first: Path, second: Path, step: int
) -> None:
    path, fast = tmp_path / "model", tmp_path / "fast"
    for each in (path, fast)[: 2 * (step == 2)]:
        learn(each, first, **NEW)
    folder, settings = (first, NEW) if step == 1 else (second, {})
    told = interrupt(path, folder, **settings)
    learn(fast, folder, effort="fast", **settings)
    model, other = Learner.load(path), Learner.load(fast)
    assert list(model.classes_) == (["cat", "dog"] if step == 1 else ["cat", "dog", "owl"])
    assert told.all is not None
    assert told.all.images > 0
    assert model.history_[-1]["unfinished"]
    assert "unfinished" not in other.history_[-1]
    assert overview.of(path).unfinished
    images = model.exemplars_["cat"]
    assert model.predict_proba(images).tolist() == other.predict_proba(images).tolist()


@pytest.mark.parametrize("step", [1, 2])
def test_an_interrupted_training_goes_on_to_the_same_end_and_undo_leads_to_before_the_step(
    tmp_path: Path, first: Path, second: Path, step: int
) -> None:
    folders = (first, second)[:step]
    whole, path = tmp_path / "whole", tmp_path / "model"
    wanted = learnt(whole, *folders)
    for folder in folders[:-1]:
        learn(path, folder, **NEW)
    interrupt(path, folders[-1], **({} if step == 2 else NEW))
    plans: list[Plan] = []
    learn(path, folders[-1], tell=plans.append)
    assert [(plan.resumed, plan.solves_first, plan.step) for plan in plans] == [(True, False, step)]
    assert model_state(path) == wanted
    assert leftovers(path) == []
    assert not overview.of(path).unfinished
    assert overview.of(path).earlier_versions == overview.of(whole).earlier_versions == step - 1
    if step == 2:
        model_folder.undo(path, examine)
        assert model_state(path) == learnt(tmp_path / "before", first)


def test_undo_of_what_was_solved_leads_to_before_the_step(tmp_path: Path, first: Path, second: Path) -> None:
    path = tmp_path / "model"
    before = learnt(path, first)
    interrupt(path, second)
    model_folder.undo(path, examine)
    assert model_state(path) == before


def test_a_model_that_keeps_no_earlier_version_keeps_the_one_that_its_training_begins_at(
    tmp_path: Path, first: Path, second: Path
) -> None:
    path = tmp_path / "model"
    wanted = learnt(tmp_path / "whole", first, second)
    learn(path, first, **NEW)
    interrupt(path, second, keep=0)
    learn(path, second, keep=0)
    assert model_state(path) == wanted
    assert overview.of(path).earlier_versions == 0


def test_what_was_solved_is_all_that_fast_asks_for(tmp_path: Path, first: Path) -> None:
    path = tmp_path / "model"
    interrupt(path, first, **NEW)
    before, plans = model_state(path), list[Plan]()
    assert learn(path, first, effort="fast", tell=plans.append) is None
    assert plans[0].done_already
    assert model_state(path) == before
    learn(path, first, tell=plans.append)
    assert plans[1].resumed, "what was trained before is not lost"


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("other", ["memory", "validation"])
def test_an_interrupted_training_is_begun_anew_with_other_settings(
    tmp_path: Path, first: Path, second: Path, other: str, step: int
) -> None:
    path, folder = tmp_path / "model", (first, second)[step - 1]
    if step == 2:
        learn(path, first, **NEW)
    interrupt(path, folder, **(NEW if step == 1 else {}))
    settings: dict[str, Any] = (
        {"memory": 8} if other == "memory" else {"validation": make_folder(tmp_path / "v", V, seed=5)}
    )
    plans: list[Plan] = []
    outcome = learn(path, folder, tell=plans.append, **settings)
    assert (plans[0].is_solved, plans[0].resumed, plans[0].step) == (True, False, step)
    assert outcome is not None and outcome.trial is not None
    model = Learner.load(path)
    assert [record["step"] for record in model.history_] == list(range(1, step + 1))
    assert not overview.of(path).unfinished
    assert overview.of(path).earlier_versions == step - 1
    assert leftovers(path) == []
    assert model.resolved_recipe().memory.size == (8 if other == "memory" else MEMORY)


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_a_training_that_cannot_go_on_since_the_version_before_is_lost_says_so(
    tmp_path: Path, first: Path, second: Path, harm: str
) -> None:
    path = tmp_path / "model"
    learn(path, first, **NEW)
    interrupt(path, second)
    (earlier,) = (path / "previous").glob("*.json")
    if harm == "gone":
        earlier.unlink()
    else:
        earlier.write_bytes(earlier.read_bytes()[:-3])
    before, saved = model_state(path), (path / ".learning").read_bytes()
    with pytest.raises(TreeringError, match="knows these classes by what was solved, but cannot be trained"):
        learn(path, second)
    assert model_state(path) == before
    assert (path / ".learning").read_bytes() == saved


def test_other_photos_are_learnt_on_top_of_what_was_solved(tmp_path: Path, first: Path, second: Path) -> None:
    path = tmp_path / "model"
    interrupt(path, first, **NEW)
    assert learn(path, second) is not None
    model = Learner.load(path)
    assert list(model.classes_) == ["cat", "dog", "owl"]
    assert ["unfinished" in record for record in model.history_] == [True, False]
    assert leftovers(path) == []


def test_training_is_not_gone_on_with_once_a_class_has_another_name(tmp_path: Path, first: Path) -> None:
    path = tmp_path / "model"
    interrupt(path, first, **NEW)
    Learner.load(path).rename("cat", "lynx").save(path)
    plans: list[Plan] = []
    learn(path, first, tell=plans.append)
    assert plans[0].done_already
    assert not overview.of(path).unfinished, "nothing is promised that cannot be kept"


def test_a_disk_that_is_full_after_training_leaves_what_was_solved_and_says_so(
    tmp_path: Path, first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, solved, write = tmp_path / "model", list[Outcome](), Folder.write

    def full(folder: Folder, name: str, *arguments: Any, **settings: Any) -> Any:
        if solved and name != ".learning":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(folder, name, *arguments, **settings)

    monkeypatch.setattr(Folder, "write", full)
    with pytest.raises(TreeringError, match=r"No space left on device; .*model knows these classes by what was solved"):
        learn(path, first, solved=solved.append, **NEW)
    monkeypatch.undo()
    assert Learner.load(path).history_[-1]["unfinished"]
    learn(path, first)
    assert model_state(path) == learnt(tmp_path / "whole", first)


def test_training_that_is_refused_leaves_what_was_solved_and_says_so(
    tmp_path: Path, first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: Any) -> None:
        raise TreeringError("training takes too much memory: close other programs")

    monkeypatch.setattr(tuned.FromClosedForm, "learn_step", refused)
    with pytest.raises(TreeringError, match=r"close other programs; .*model knows these classes by what was solved$"):
        learn(tmp_path / "model", first, **NEW)
    assert list(Learner.load(tmp_path / "model").classes_) == ["cat", "dog"]


@pytest.mark.parametrize(("most_images", "may_end"), [(0, False), (10_000, True)])
def test_the_plan_tells_what_a_step_takes_if_its_training_is_ended_early(
    tmp_path: Path, first: Path, most_images: int, may_end: bool
) -> None:
    plans: list[Plan] = []
    changes = (*NEW["changes"], f"training.most_images={most_images}")
    learn(tmp_path / "model", first, **NEW | {"changes": changes}, tell=plans.append, dry_run=True)
    assert (0 < plans[0].fewest_seconds < plans[0].seconds) == may_end
    assert may_end or plans[0].fewest_seconds == plans[0].seconds


def test_training_that_is_ended_early_leaves_what_was_solved(
    tmp_path: Path, first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(4, 4, 3, helped=False, ended_early=True)
    monkeypatch.setattr(tuned, "tried_in_vain", lambda *arguments: trial)
    path, changes = tmp_path / "model", (*NEW["changes"], "training.most_images=10000")
    outcome = learn(path, first, **NEW | {"changes": changes})
    assert outcome is not None
    assert outcome.trial == trial
    assert not overview.of(path).unfinished
    assert leftovers(path) == []
    fast = tmp_path / "fast"
    learn(fast, first, **NEW | {"changes": changes}, effort="fast")
    images = Learner.load(path).exemplars_["dog"]
    assert Learner.load(path).predict_proba(images).tolist() == Learner.load(fast).predict_proba(images).tolist()


def test_without_kept_photos_of_every_class_training_is_neither_promised_nor_done(
    tmp_path: Path, first: Path, second: Path
) -> None:
    path, plans, solved = tmp_path / "model", list[Plan](), list[Outcome]()
    learn(path, first, **NEW | {"memory": 0})
    outcome = learn(path, second, memory=5, tell=plans.append, solved=solved.append)
    assert (plans[0].lacks_kept, plans[0].training_passes, plans[0].solves_first) == (True, 0, False)
    assert not solved
    assert outcome is not None and outcome.trial is None


def test_a_new_class_that_is_named_nearly_as_a_known_one_is_pointed_out(tmp_path: Path, first: Path) -> None:
    path, plans = tmp_path / "model", list[Plan]()
    learn(path, first, **NEW, effort="fast")
    learn(path, make_folder(tmp_path / "more", {"Cat": 3, "d o-g": 3, "owl": 3, "...": 3}, seed=3), tell=plans.append)
    assert sorted(plans[0].alike()) == [("Cat", "cat"), ("d o-g", "dog")]


def test_a_training_that_another_step_gives_up_is_told(
    tmp_path: Path, first: Path, second: Path, caplog: pytest.LogCaptureFixture
) -> None:
    interrupt(tmp_path / "model", first, **NEW)
    assert "given up" not in caplog.text
    learn(tmp_path / "model", second, effort="fast")
    assert "the training of step 1 was interrupted, and is given up" in caplog.text
