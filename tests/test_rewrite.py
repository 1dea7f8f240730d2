"""Forgetting, renaming and merging in every version of a model folder, killed at any moment too."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import change_helper
import numpy as np
import pytest
from change_helper import CHANGES, change, facts, make_model
from conftest import examples, tiny_learner
from test_photo_faults import Fails

import treering
from treering import Learner, TreeringError, changes
from treering.model import examine
from treering.photos import learn as photos
from treering.storage import check, model_folder
from treering.storage import manifest as manifests
from treering.storage.folder import Folder

AFTER: dict[str, Any] = {
    "forget": [["dog", "bee", "owl"], ["dog"], ["dog"]],
    "rename": [["dachshund", "dog", "fox", "bee", "owl"], ["dachshund", "dog", "fox"], ["dachshund", "dog"]],
    "merge": [["owl", "dog", "fox", "bee"], ["owl", "dog", "fox"], ["owl", "dog"]],
}
"""The classes of each version, the current one first."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    return make_model(folder / "model", folder / "photos")


@pytest.fixture
def path(base: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(base, tmp_path / "model"))


def contents(path: Path) -> set[str]:
    return {hashlib.sha256(file.read_bytes()).hexdigest() for file in path.rglob("*.*") if file.is_file()}


# --- Killed -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("name", "step"), [("forget", 7), ("rename", 15), ("merge", 15)])
def test_a_change_killed_at_any_moment_leaves_whole_versions_and_is_finished_by_the_same_call(
    tmp_path: Path, name: str, step: int
) -> None:
    places = os.pathsep.join([str(Path(treering.__file__).parents[1]), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, change_helper.__file__, tmp_path, name, str(step)],
        env=os.environ | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)["outcomes"]
    whole = outcomes[-1]
    assert whole["status"] == 0
    assert whole["operations"] > 20
    assert [one["again"] for one in outcomes if one["status"]].count("") >= 4
    for one in outcomes:
        assert one["status"] in (0, -9), one
        assert one.get("problems between", []) == [], one
        assert one["classes"] == AFTER[name], one
        assert (one["problems"], one["left over"], one["history"]) == ([], [], whole["history"]), one
        assert one["files"] == whole["files"], one
        # Once all is done but the removal of files, there is nothing more to be changed.
        assert not one.get("again") or one["again"].startswith(f"no class is called {'c' if name != 'forget' else 'f'}")


def test_a_full_disk_at_any_write_is_one_line_and_the_same_call_finishes(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in (1, 4, 9, 14):
        path = Path(shutil.copytree(base, tmp_path / str(at)))
        failing = Fails(Folder.write, at, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        with monkeypatch.context() as patch:
            patch.setattr(Folder, "write", lambda *arguments, **settings: failing(*arguments, **settings))  # noqa: B023
            assert change(path, "forget").startswith(f"cannot save to {path}: No space left on device")
        assert check.check(path, examine).problems == []
        assert change(path, "forget") == ""
        assert facts(path)["classes"] == AFTER["forget"]


def test_a_change_that_would_make_an_unreadable_model_changes_nothing(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_bytes())
    entry = manifest["files"]["history"]
    records = [json.loads(line) for line in (path / entry["name"]).read_text().splitlines()]
    records[0]["images"] = [["cat", 2**53 - 1]]
    records[0]["images"] += [["owl", 2**53 - 1]]  # each number can be, their sum cannot
    history = "".join(json.dumps(record) + "\n" for record in records).encode()
    digest = hashlib.sha256(history).hexdigest()
    entry.update(name=f"history-{digest[:12]}.jsonl", sha256=digest)
    (path / entry["name"]).write_bytes(history)
    del manifest["checksum"]
    (path / "manifest.json").write_bytes(manifests.sealed(manifest))
    assert check.check(path, examine).problems == []
    (path / ".learning").write_bytes(b"mine")
    model_folder.clean(Folder(path), None)
    before = contents(path)
    assert "so nothing is changed" in change(path, "merge")
    assert contents(path) == before


def test_a_failure_after_some_versions_are_changed_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Folder, name: str, content: bytes, flushed: bool = True) -> None:
        if name == "manifest.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(folder, name, content, flushed)

    write = Folder.write
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write", full)
        said = change(path, "rename")
    assert "2 of 3 versions" in said
    assert said.endswith("are changed already: No space left on device; run the same command again to finish")
    assert check.check(path, examine).problems == []
    assert change(path, "rename") == ""
    assert facts(path)["classes"] == AFTER["rename"]


# --- What is left -----------------------------------------------------------------------------------------------------


def test_a_forgotten_class_is_in_no_file_of_any_version(path: Path) -> None:
    learner = Learner.load(path, device="cpu")
    old_weights = {file.name for file in path.glob("weights-*")}
    exemplars = {
        hashlib.sha256(file.read_bytes()).hexdigest()
        for name in ("fox", "cat")
        for file in path.glob(f"memory/*-{name}/*.png")
    }
    assert len(exemplars) >= 4
    assert change(path, "forget") == ""
    assert not exemplars & contents(path)
    assert not old_weights & {file.name for file in path.glob("weights-*")}
    for file in path.rglob("*"):
        assert "fox" not in file.name
        assert not file.is_file() or file.suffix not in (".json", ".jsonl") or b"fox" not in file.read_bytes()
    images, _ = examples({"dog": 3, "owl": 3}, side=20)
    before, after = learner.predict_proba(images)[:, [0, 2, 4]], Learner.load(path, device="cpu").predict_proba(images)
    assert np.allclose(after, before / before.sum(1, keepdims=True), atol=1e-5)  # one head fewer rounds otherwise


@pytest.mark.parametrize("name", CHANGES)
def test_undo_goes_back_through_the_changed_versions(path: Path, name: str) -> None:
    assert change(path, name) == ""
    assert facts(path)["classes"] == AFTER[name]
    for classes in AFTER[name][1:]:
        model_folder.undo(path, examine)
        assert Learner.load(path, device="cpu", check=True).learnt_model().classes == classes
    with pytest.raises(TreeringError, match="no version to go back to"):
        model_folder.undo(path, examine)


def test_photos_of_a_forgotten_class_can_be_learnt_again_from_the_same_folder(base: Path, path: Path) -> None:
    changes.in_folder(path, changes.Forget(["owl"]))
    assert photos.learn(path, base.parent / "photos" / "2", device="cpu") is not None
    learner = Learner.load(path, device="cpu")
    assert learner.history_[-1]["new_classes"] == ["owl"]
    assert learner.history_[-2]["new_classes"] == ["bee"]


def test_an_earlier_version_of_which_nothing_is_left_goes(path: Path) -> None:
    changes.in_folder(path, changes.Forget(["cat", "dog"]))
    assert facts(path)["classes"] == [["fox", "bee", "owl"], ["fox"]]


def test_versions_that_do_not_have_the_class_stay_as_they_are(path: Path) -> None:
    before = (path / "previous" / "0001.json").read_bytes()
    assert changes.in_folder(path, changes.Rename("owl", "eagle owl")) == 1
    assert (path / "previous" / "0001.json").read_bytes() == before
    assert facts(path)["problems"] == []


@pytest.mark.parametrize("method", ["tuned", "eeil"])
def test_trained_models_forget_too(method: str, tmp_path: Path) -> None:
    path = make_model(tmp_path / "model", tmp_path / "photos", method)
    assert change(path, "forget") == ""
    assert facts(path)["classes"] == AFTER["forget"]
    assert facts(path)["problems"] == []


def test_an_unfinished_step_is_removed_after_saying_so(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (path / ".learning").write_bytes(b"of the model before")
    assert change(path, "rename") == ""
    assert not (path / ".learning").exists()
    assert "the unfinished step" in caplog.text


# --- What cannot be done ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (changes.Forget(["fix"]), "did you mean fox"),
        (changes.Forget(["cat", "dog", "fox", "owl"]), "two classes or more"),
        (changes.Rename("cat", "fox"), "there is a class fox already"),
        (changes.Merge("cat", "cat"), "give two classes"),
    ],
)
def test_what_cannot_be_done_changes_no_file(path: Path, wrong: changes.Change, told: str) -> None:
    (path / ".learning").write_bytes(b"of this model")
    before = contents(path)
    with pytest.raises(TreeringError, match=told):
        changes.in_folder(path, wrong)
    assert contents(path) == before
    assert (path / ".learning").exists()


def test_a_damaged_earlier_version_is_told_before_anything_is_changed(path: Path) -> None:
    manifest = json.loads((path / "previous" / "0001.json").read_bytes())
    (path / manifest["files"]["history"]["name"]).write_bytes(b"damaged")
    before = contents(path)
    message = change(path, "forget")
    assert "is damaged" in message
    assert message.endswith(f"or remove the earlier version {path / 'previous' / '0001.json'}, then try again")
    assert contents(path) == before


def test_an_earlier_version_that_has_both_names_is_told_before_anything_is_changed(tmp_path: Path) -> None:
    learner = tiny_learner(backbone="small", method="closed-form").partial_fit(
        *examples({"cat": 3, "dog": 3, "fox": 3})
    )
    learner.save(tmp_path / "model")
    learner.forget("fox").save(tmp_path / "model")
    before = contents(tmp_path / "model")
    with pytest.raises(TreeringError, match="there is a class fox already"):
        changes.in_folder(tmp_path / "model", changes.Rename("cat", "fox"))
    assert contents(tmp_path / "model") == before


def test_a_model_with_a_module_of_the_users_own_is_changed_in_python(tmp_path: Path) -> None:
    tiny_learner().partial_fit(*examples({"cat": 3, "dog": 3, "fox": 3})).save(tmp_path / "model")
    with pytest.raises(TreeringError, match="module of your own: change it in Python"):
        changes.in_folder(tmp_path / "model", changes.Forget(["fox"]))


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "a\0b", "n" * 300, ""])
def test_a_class_gets_no_name_that_a_folder_of_photos_cannot_have(name: str) -> None:
    with pytest.raises(TreeringError, match="cannot be the name of a folder"):
        changes.new_label(name, ["cat"])


def test_of_two_classes_that_look_alike_the_one_that_is_written_so_is_found() -> None:
    composed, decomposed = "R\u00f6ssel", "Ro\u0308ssel"
    for classes in ([composed, decomposed], [decomposed, composed]):
        assert [changes.label_of(name, classes) for name in (composed, decomposed)] == [composed, decomposed]


def test_names_are_found_and_given_however_a_terminal_composes_their_letters() -> None:
    assert changes.label_of("Ro\u0308ssel", ["R\u00f6ssel", "cat"]) == "R\u00f6ssel"
    assert changes.new_label("Ro\u0308ssel", ["cat"]) == "R\u00f6ssel"
    assert changes.label_of("3", [1, 3]) == 3
    with pytest.raises(TreeringError, match="are numbers"):
        changes.new_label("4", [1, 3])
