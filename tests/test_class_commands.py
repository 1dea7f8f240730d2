"""The commands `forget`, `rename` and `merge`: what they print, and their exit codes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from change_helper import make_model
from photo_helper import command

from treering import Learner
from treering.storage import manifest


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    return make_model(folder / "model", folder / "photos")


@pytest.fixture
def path(base: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(base, tmp_path / "model"))


def test_forget_says_what_went_and_what_stays(path: Path) -> None:
    done = command("forget", path, "fox", "cat")
    assert done.code == 0, done.err
    fox, cat, stays = done.out.splitlines()
    assert fox == "fox: 3 exemplars, its head and its sums are gone"
    assert cat == "cat: 3 exemplars, its head and its sums are gone"
    assert stays.startswith("3 versions were changed; what they shared stays in the covariance of all classes")
    assert "weights" not in stays, "none was trained"
    assert manifest.of(path).classes == ("dog", "bee", "owl")


def test_forget_of_a_trained_model_says_that_its_weights_stay(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model", tmp_path / "photos", "eeil")
    done = command("forget", path, "fox")
    assert done.code == 0, done.err
    assert "sums" not in done.out
    assert "the weights that were trained" in done.out


def test_rename_and_merge_say_what_they_did(path: Path) -> None:
    renamed = command("rename", path, "cat", "kitten")
    assert renamed.code == 0, renamed.err
    assert "3 versions" in renamed.out
    merged = command("merge", path, "fox", "kitten")
    assert merged.code == 0, merged.err
    assert "3 exemplars stay" in merged.out
    assert Learner.load(path, device="cpu", check=True).classes_.tolist() == ["bee", "dog", "fox", "owl"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("forget", "fix"), "did you mean fox?"),
        (("forget", "cat", "dog", "fox", "owl"), "a model needs two classes or more"),
        (("rename", "cat", "dog"), "there is a class dog already"),
        (("rename", "cat", "a/b"), "cannot be the name of a folder"),
        (("merge", "cat", "cat"), "give two classes"),
        (("merge", "cat", "wolf"), "no class is called wolf"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(path: Path, arguments: tuple[str, ...], told: str) -> None:
    what, *names = arguments
    before = (path / "manifest.json").read_bytes()
    done = command(what, path, *names)
    assert done.code == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert told in done.err
    assert (path / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("arguments", [("forget", "cat"), ("rename", "cat", "dog"), ("merge", "cat", "dog")])
def test_what_is_no_model_is_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    what, *names = arguments
    done = command(what, tmp_path / "nothing", *names)
    assert done.code == 2
    assert "does not exist" in done.err
    assert not (tmp_path / "nothing").exists()
