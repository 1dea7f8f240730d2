"""Ready recipes and recipe files: what they are today, how one builds on another, and how they are listed."""

from __future__ import annotations

import hashlib
import os
import tomllib
from pathlib import Path

import pytest

from treering import cli
from treering.errors import TreeringError
from treering.recipe import Recipe, ready_names
from treering.recipes import ready_files

FINGERPRINTS = """
cifar100-2 72e6085d
cifar100-5 096d44dc
cifar100-10 e8029283
cifar100-20 5d048584
cifar100-50 9a096323
cifar100-vehicles f479231d
cifar100-5-base 37921062
cifar100-5-bf 2c5de935
cifar100-5-da cf819d78
cifar100-10-base 6e4cf4a4
cifar100-10-bf ed491408
cifar100-10-da 9c6a913c
cifar100-20-base 92fa2bf1
cifar100-20-bf a468ea80
cifar100-20-da c1b543b0
cifar100-2-finetune 66333934
cifar100-5-finetune 77ce6957
cifar100-10-finetune de1ac1a1
cifar100-20-finetune 7d8f5f85
cifar100-50-finetune 6184bde2
cifar100-5-gem-200 2b4346b6
cifar100-5-gem-1280 3ee25a11
cifar100-5-gem-2000 0213f980
cifar100-5-gem-2560 e71de18b
cifar100-5-gem-5120 11c4c79b
cifar100-2-icarl 02ffeed3
cifar100-5-icarl d5d7ad04
cifar100-10-icarl 12483c6f
cifar100-20-icarl 2728ac53
cifar100-50-icarl 64c4d2ac
cifar100-vehicles-icarl f0e7da0b
cifar100-joint 99b046d8
cifar100-2-lwf-mc b33ab1e9
cifar100-5-lwf-mc e9dd3ee0
cifar100-10-lwf-mc 8a634f7d
cifar100-20-lwf-mc 3164750a
cifar100-50-lwf-mc 077ff2ad
cifar100-10-random 68108b90
cifar100-10-histogram 4136635d
digits b30b5d4c
imagenet100 171d6ce2
imagenet1000 1c29d837
stanford-dogs 956d4599
imagenet100-icarl 6b68c836
imagenet1000-icarl eede9d0f
stanford-dogs-icarl 2682412a
imagenet100-lwf-mc 6143f74b
imagenet1000-lwf-mc a2c8c4b0
mini-imagenet-10 0d9a2fa4
photos 72f7a920
photos-end-to-end 52855d7a
photos-from-scratch ac212327
"""
"""The beginning of the SHA-256 of each ready recipe's TOML. Unfinished runs and results are known by these settings:
whoever changes one on purpose writes its new value here and tells in the changelog that old results no longer count."""

FILES = {
    "own.toml": 'about = "Mine"\nbase = "photos"\nbackbone = "resnet18"\n[training]\nepochs = 3\n',
    "next.toml": 'base = "own.toml"\n[training]\nlr = 0.5\n',
    "inner/own.toml": 'base = "photos"\n[training]\nepochs = 3\n',
    "inner/next.toml": 'base = "own.toml"\n[run]\norder = 4\n',
    "misspelt.toml": 'base = "photso"\n',
    "missing.toml": 'base = "nowhere.toml"\n',
    "number.toml": "base = 3\n",
    "itself.toml": 'base = "itself.toml"\n',
    "circle.toml": 'base = "back.toml"\n',
    "back.toml": 'base = "circle.toml"\n',
    "broken.toml": "[run\n",
    "on-broken.toml": 'base = "broken.toml"\n',
    "wrong.toml": "[run]\nordr = 1\n",
    "on-wrong.toml": 'base = "wrong.toml"\n',
    "several.toml": "[names]\na = {run.order = 1}\n",
    "digits-too-many.toml": f"temperature = {'9' * 5000}\n",
    "above.toml": 'base = "../own.toml"\n',
    "elsewhere.toml": 'base = "/etc/passwd"\n',
    "backwards.toml": 'base = "inner\\\\own.toml"\n',
    "cut.toml": 'base = "own\\u0000.toml"\n',
    "endless-name.toml": f'base = "{"x" * 5000}"\n',
    "on-link.toml": 'base = "link.toml"\n',
    "on-pipe.toml": 'base = "pipe.toml"\n',
    "deep-list.toml": f"about = {'[' * 20000}{']' * 20000}\n",
    "list.toml": f"about = {'[' * 900}{']' * 900}\n",
    "deep-table.toml": f"a = {'{a=' * 10000}1{'}' * 10000}\n",
    "deep-key.toml": f"{'.'.join('a' * 20000)} = 1\n",
    "key.toml": f"{'.'.join('a' * 900)} = 1\n",
    "base-key.toml": f"base.{'.'.join('a' * 900)} = 1\n",
    "base-number.toml": f"base = 0x{'f' * 10000}\n",
    "many-values.toml": f"about = [{'[],' * 10000}]\n",
    "large.toml": f"# {'x' * 70000}\n",
    **{f"link-{number}.toml": f'base = "link-{number + 1}.toml"\n' for number in range(11)},
    "link-11.toml": "temperature = 3\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with `FILES` in it."""
    monkeypatch.chdir(tmp_path)
    Path("inner").mkdir()
    for name, text in FILES.items():
        Path(name).write_text(text)
    Path("link.toml").symlink_to(Path("inner", "own.toml"))
    os.mkfifo("pipe.toml")
    return tmp_path


# --- Ready recipes ----------------------------------------------------------------------------------------------------


def test_no_ready_recipe_has_changed_unawares() -> None:
    found = {name: hashlib.sha256(Recipe.find(name).to_toml().encode()).hexdigest()[:8] for name in ready_names()}
    assert found == dict(line.split() for line in FINGERPRINTS.split("\n") if line)


def test_every_name_stands_in_one_file_only() -> None:
    names = [name for file in ready_files() for name in file.names]
    assert sorted(names) == ready_names()


def test_ready_recipes_never_depend_on_the_current_folder(folder: Path) -> None:
    photos = Recipe.find("photos-from-scratch")
    Path("photos").write_text("temperature = 9\n")
    assert Recipe.find("photos-from-scratch") == photos


# --- Files that build on others ---------------------------------------------------------------------------------------


def test_a_file_changes_only_what_it_says_of_its_base(folder: Path) -> None:
    assert Recipe.find("own.toml") == Recipe.find("photos").changed(["backbone=resnet18", "training.epochs=3"])


def test_bases_are_chained_and_lie_beside_the_file_that_names_them(folder: Path) -> None:
    wanted = Recipe.find("photos").changed(["training.epochs=3", "run.order=4"])
    assert Recipe.find("inner/next.toml") == Recipe.read(folder / "inner" / "next.toml") == wanted


def test_a_chain_may_have_ten_files(folder: Path) -> None:
    assert Recipe.find("link-2.toml").temperature == 3


def test_a_recipe_that_a_user_names_may_be_a_link(folder: Path) -> None:
    assert Recipe.find("link.toml") == Recipe.find("inner/own.toml")


@pytest.mark.parametrize(
    ("name", "fragments"),
    [
        ("misspelt", ["misspelt.toml", "called photso", "did you mean photos?"]),
        ("missing", ["missing.toml", "nowhere.toml", "No such file"]),
        ("number", ["number.toml: base must be", "3"]),
        ("itself", ["itself.toml builds on itself"]),
        ("circle", ["circle.toml", "back.toml", "circle.toml builds on itself"]),
        ("on-broken", ["on-broken.toml", "broken.toml is not a TOML file"]),
        ("on-wrong", ["wrong.toml: unknown setting run.ordr; did you mean run.order?"]),
        ("several", ["several.toml", "[names]"]),
        ("digits-too-many", ["digits-too-many.toml is not a TOML file"]),
        ("above", ["above.toml: base must be", "beside it", "'../own.toml'"]),
        ("elsewhere", ["elsewhere.toml: base must be", "beside it", "'/etc/passwd'"]),
        ("backwards", ["backwards.toml: base must be", "beside it"]),
        ("cut", ["cut.toml: base must be", "beside it"]),
        ("endless-name", ["endless-name.toml", "no file and no ready recipe"]),
        ("on-link", ["on-link.toml", "link.toml is a link"]),
        ("on-pipe", ["on-pipe.toml", "pipe.toml is not a regular file"]),
        ("pipe", ["pipe.toml is not a regular file"]),
        ("deep-list", ["deep-list.toml has more than 1,000 dots and brackets"]),
        ("list", ["list.toml", "too deep"]),
        ("deep-table", ["deep-table.toml has more than 1,000 dots and brackets"]),
        ("deep-key", ["deep-key.toml has more than 1,000 dots and brackets"]),
        ("key", ["key.toml: unknown setting a"]),
        ("base-key", ["base-key.toml: base must be a text"]),
        ("base-number", ["base-number.toml: base must be a text"]),
        ("many-values", ["many-values.toml has more than 1,000 dots and brackets"]),
        ("large", ["large.toml", "more than 65,536 bytes"]),
        ("link-0", ["link-0.toml", "beyond the 10 recipes of a chain"]),
        ("link-1", ["link-1.toml", "beyond the 10 recipes of a chain"]),
    ],
)
def test_a_base_that_cannot_be_is_one_line_that_says_why(folder: Path, name: str, fragments: list[str]) -> None:
    with pytest.raises(TreeringError) as error:
        Recipe.read(f"{name}.toml")
    assert "\n" not in str(error.value)
    assert [fragment for fragment in fragments if fragment not in str(error.value)] == []


def test_the_words_of_a_file_are_no_settings_of_a_recipe() -> None:
    for word in ("base", "about", "names"):
        with pytest.raises(TreeringError, match=f"unknown setting {word}"):
            Recipe.from_dict({word: "photos"})
        assert word not in Recipe.find("photos-from-scratch").to_dict()


# --- The command ------------------------------------------------------------------------------------------------------


def said_by(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr("sys.argv", ["treering", "recipes", *arguments])
    with pytest.raises(SystemExit) as exit_code:
        cli.main()
    output = capsys.readouterr()
    assert exit_code.value.code == (2 if output.err else 0)
    return output.out + output.err


def test_every_ready_recipe_is_listed_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = said_by(capsys, monkeypatch).splitlines()
    listed = [line.split()[0] for line in lines if line and line.split()[0] in ready_names()]
    assert sorted(listed) == ready_names()


def test_what_the_list_says_of_a_recipe_is_what_it_sets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [line.split() for line in said_by(capsys, monkeypatch).splitlines() if line.startswith("  ")]
    assert len(said) > 40
    for name, *changes in said:
        assert changes
        assert Recipe.find(name).changed(changes) == Recipe.find(name)


def test_the_settings_of_a_recipe_are_printed_as_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    for name in ("cifar100-10-icarl", "own.toml"):
        assert Recipe.from_dict(tomllib.loads(said_by(capsys, monkeypatch, name))) == Recipe.find(name)


def test_a_misspelt_recipe_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said = said_by(capsys, monkeypatch, "photso")
    assert "did you mean photos?" in said
    assert len(said.splitlines()) == 1
