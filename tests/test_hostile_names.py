"""Names from strangers, in each command: nothing that steers a terminal or misleads the eye is printed."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import run_python
from photo_helper import TINY, Finished, command, write_photos
from report_helper import result, save

from treering import Learner, TreeringError
from treering.methods import speed
from treering.words import shown

STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
HOSTILE = "a\x1b[31m\x07\x7f\x9b2J\x85\u202e\u2066\u200b\u2028\ufeff\nb[red]鳥"
SEEN = r"a\x1b[31m\x07\x7f\x9b2J\x85\u202e\u2066\u200b\u2028\ufeff"
PLAIN = "naïve 鳥"


def harmless(done: Finished, *fragments: str) -> Finished:
    """Raise if a command has printed anything that steers a terminal; it must have said the fragments."""
    for text in (done.out, done.err):
        assert not STEERING.search(text), ascii(text)
    assert "Traceback" not in done.err
    for fragment in fragments:
        assert fragment in done.out + done.err, (fragment, done)
    return done


def refused(done: Finished, *fragments: str) -> None:
    harmless(done).refused(*fragments)


@pytest.fixture(autouse=True)
def known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of this machine is not measured."""
    monkeypatch.setattr(speed, "images_per_second", lambda *arguments: 1000.0)
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos whose classes and files have hostile names, and a model that has learnt them."""
    folder = tmp_path_factory.mktemp("photos") / HOSTILE
    write_photos(folder / "first", {HOSTILE: 8, PLAIN: 8})
    (folder / "first" / PLAIN / "000.png").rename(folder / "first" / PLAIN / f"{HOSTILE}.png")
    (folder / "first" / HOSTILE / f"{HOSTILE}.jpg").write_bytes(b"no photo")
    harmless(command("learn", folder / "model", folder / "first", *TINY), SEEN, PLAIN)
    return folder


def test_predict(place: Path) -> None:
    photos = place / "first"
    harmless(
        command("predict", place / "model", photos, place / "no\x1bwhere", "--top", 2), SEEN, PLAIN, r"no\x1bwhere"
    )
    told = harmless(command("predict", place / "model", photos / PLAIN, "--json"))
    names = {one["class"] for line in told.out.splitlines() for one in json.loads(line)["predictions"]}
    assert names == {HOSTILE, PLAIN}
    refused(command("predict", place / "mod\x1bel", photos), r"mod\x1bel")


def test_evaluate_and_its_picture(place: Path, tmp_path: Path) -> None:
    write_photos(tmp_path / "unknown", {f"{HOSTILE}2": 1, PLAIN: 1})
    harmless(
        command("evaluate", place / "model", place / "first", "--picture", tmp_path / "it\x1b.png"), SEEN, r"it\x1b"
    )
    harmless(command("evaluate", place / "model", tmp_path / "unknown"), "the model does not know this class")
    refused(command("evaluate", place / "model", place / "first", "--picture", tmp_path / "it\x1b.gif"), r"it\x1b")


def test_info_and_its_gallery(place: Path, tmp_path: Path) -> None:
    harmless(command("info", place / "model", "--gallery", tmp_path / "\u202e.png"), SEEN, PLAIN, r"\u202e.png")
    refused(command("info", tmp_path / "\x9b"), r"\x9b")


def test_undo_learn_and_export(place: Path, tmp_path: Path) -> None:
    refused(command("undo", place / "model"), SEEN, "no version to go back to")
    write_photos(tmp_path / "more", {f"{HOSTILE}2": 7})
    harmless(
        command("learn", place / "model", tmp_path / "more", "--dry-run", "--device", "cpu"), f"{SEEN}\\nb[red]鳥2"
    )
    refused(command("export", place / "model", tmp_path / "\x1b.gif"), r"\x1b.gif")
    refused(command("export", place / "model", tmp_path / "\x1b" / "a.onnx"), r"\x1b")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--backbone", "timm:\x1b[31m\u202e"),
        ("--backbone", "torchvision:\x1b[31m"),
        ("--backbone", "\x1b[31m"),
        ("--set", "tra\x1bining.epochs=1"),
        ("--set", "training.ep\u202eochs=1"),
        ("--set", "training.epochs=\x9bone"),
        ("--set", "\x1b"),
        ("--device", "\x1b[31m"),
        ("--validation", "/no\x1bwhere"),
        ("--\x1b", "3"),
        ("--seed", "\x1b"),
    ],
    ids=ascii,
)
def test_arguments(place: Path, tmp_path: Path, arguments: tuple[str, str]) -> None:
    refused(command("learn", tmp_path / "model", place / "first", *arguments))


@pytest.mark.parametrize("name", ["re\x1bport", "\u202e", "demo\x9b"], ids=ascii)
def test_commands(name: str) -> None:
    refused(command(name))


@pytest.mark.parametrize(
    "text",
    [
        'method = "e\\u001b\\u202eeil"',
        '"tra\\u001bining" = 3',
        '[training]\n"ep\\u009bochs" = 3',
        '[training]\nepochs = "\\u202e"',
        'backbone = "timm:\\u001b[31m"',
        '[run]\ndataset = "\\u001b[31m\\u202e"',
        "\x1b",
    ],
    ids=ascii,
)
def test_recipes(tmp_path: Path, text: str) -> None:
    (tmp_path / "my\x1b.toml").write_text(text)
    harmless(command("recipes", tmp_path / "my\x1b.toml"))
    harmless(command("run", tmp_path / "my\x1b.toml", "--data", tmp_path, "--results", tmp_path / "\u202e"))
    refused(command("reproduce", "table\x1b"))
    refused(command("reproduce", "table-1a", "--only", "\x1b=3"))


def test_reports(tmp_path: Path) -> None:
    names = [HOSTILE, f"{HOSTILE}2", "<b>|", "$x_1$", PLAIN, "owl"]
    made = result(dataset=f"{HOSTILE}|<i>", class_order=names, device=HOSTILE, commit=HOSTILE, method=HOSTILE)
    done = command("report", save(tmp_path / "re\x1bsults", made), "--out", tmp_path / "o\x1but")
    assert harmless(done, r"o\x1but").code == 0
    texts = [file for file in (tmp_path / "o\x1but").rglob("*") if file.suffix in (".html", ".md", ".svg")]
    assert len(texts) == 5
    for file in texts:
        assert not STEERING.search(file.read_text(encoding="utf-8")), file
    page = (tmp_path / "o\x1but" / "index.html").read_text(encoding="utf-8")
    assert "<i>" not in page
    assert r"\u202e" in page
    (tmp_path / "re\x1bsults" / "ba\x1bd.json").write_text('{"order": "\x1b"}')
    refused(command("report", tmp_path / "re\x1bsults"), r"ba\x1bd.json")


def sealed(manifest: dict[str, Any]) -> str:
    """A manifest with a right checksum, as a stranger can write one."""
    manifest.pop("checksum", None)
    return json.dumps(
        {"checksum": hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()} | manifest
    )


def weights_name(manifest: dict[str, Any]) -> None:
    manifest["files"]["weights"]["name"] = HOSTILE


def recipe_key(manifest: dict[str, Any]) -> None:
    manifest["recipe"][HOSTILE] = 3


def backbone(manifest: dict[str, Any]) -> None:
    manifest["recipe"]["backbone"] = f"timm:{HOSTILE}"


def fact(manifest: dict[str, Any]) -> None:
    manifest[HOSTILE] = HOSTILE


def class_name(manifest: dict[str, Any]) -> None:
    manifest["classes"][0] = f"{HOSTILE}{HOSTILE}"


def long_name(manifest: dict[str, Any]) -> None:
    manifest["classes"][0] = HOSTILE + "x" * 100_000


@pytest.mark.parametrize("change", [weights_name, recipe_key, backbone, fact, class_name, long_name])
def test_manifests(place: Path, tmp_path: Path, change: Any) -> None:
    model = tmp_path / "mo\x1bdel"
    shutil.copytree(place / "model", model)
    manifest = json.loads((model / "manifest.json").read_bytes())
    change(manifest)
    (model / "manifest.json").write_text(sealed(manifest))
    photos = next((place / "first" / PLAIN).iterdir())
    for arguments in (("info", model), ("predict", model, photos), ("undo", model)):
        done = harmless(command(*arguments))
        assert max(map(len, (done.out + done.err).splitlines()), default=0) < 40_000


def with_a_hostile_tensor(place: Path, tmp_path: Path) -> Path:
    """A copy of the model that has one tensor more."""
    model = tmp_path / "model"
    shutil.copytree(place / "model", model)
    manifest = json.loads((model / "manifest.json").read_bytes())
    weights = model / manifest["files"]["weights"]["name"]
    content = weights.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header[HOSTILE] = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    packed = json.dumps(header).encode()
    changed = len(packed).to_bytes(8, "little") + packed + content[8 + size :]
    digest = hashlib.sha256(changed).hexdigest()
    manifest["files"]["weights"] = {"name": f"weights-{digest[:12]}.safetensors", "sha256": digest}
    (model / f"weights-{digest[:12]}.safetensors").write_bytes(changed)
    (model / "manifest.json").write_text(sealed(manifest))
    return model


def test_tensors(place: Path, tmp_path: Path) -> None:
    harmless(command("predict", with_a_hostile_tensor(place, tmp_path), place / "first" / PLAIN))


def test_errors_of_the_library(place: Path, tmp_path: Path) -> None:
    """A program may print an error itself, so it is harmless before the command line has it."""
    learner = Learner.load(place / "model")
    write_photos(tmp_path / "unknown", {"owl": 1})
    wrong_recipe = tmp_path / "wrong-recipe"
    shutil.copytree(place / "model", wrong_recipe)
    manifest = json.loads((wrong_recipe / "manifest.json").read_bytes())
    recipe_key(manifest)
    (wrong_recipe / "manifest.json").write_text(sealed(manifest))
    for use in (
        lambda: Learner.load(with_a_hostile_tensor(place, tmp_path)),
        lambda: Learner.load(wrong_recipe),
        lambda: learner.forget(HOSTILE[:-1]),
        lambda: learner.evaluate(tmp_path / "unknown"),
    ):
        with pytest.raises(TreeringError) as caught:
            use()
        assert not STEERING.search(str(caught.value)), ascii(caught.value)
        assert "\n" not in str(caught.value)
        assert r"\x1b[31m" in str(caught.value) or r"\\x1b[31m" in str(caught.value)


def test_an_error_that_quotes_another_escapes_nothing_twice() -> None:
    inner = TreeringError(f"{HOSTILE} C:\\photos")
    assert str(TreeringError(f"{inner}")) == str(inner) == f"{shown(HOSTILE)} C:\\photos"
    assert str(TreeringError("x" * 10_000)).startswith("x" * 900)


def test_warnings_of_a_program(place: Path, tmp_path: Path) -> None:
    """In a process of its own, since the tests have handlers for warnings."""
    model = tmp_path / "mo\x1bdel"
    shutil.copytree(place / "model", model)
    (model / ".learning").write_bytes(b"damaged")
    write_photos(tmp_path / "more", {"owl": 3})
    arguments = [sys.executable, "-m", "treering", "learn", model, tmp_path / "more", "--device", "cpu"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    harmless(Finished(done.returncode, done.stdout, done.stderr), r"mo\x1bdel/.learning cannot be restored")
    assert done.returncode == 0


def test_warnings_of_the_library() -> None:
    """In a process of its own, whose warnings are printed by Python itself and then by a handler of the user."""
    script = r"""
import logging, sys
from treering.images import folders

folders.warn_of([(sys.argv[1], "no photo")])
logging.basicConfig(format="%(name)s: %(message)s")
folders.warn_of([(sys.argv[1], "no photo")])
logging.getLogger("treering.core").warning("%d images and %.1f %%", 3, 0.25)
logging.getLogger("another").warning("%s", "\u202e")
logging.getLogger("another").handle(logging.makeLogRecord({"name": "made", "msg": "by itself", "levelno": 30}))
"""
    done = run_python(script, HOSTILE, PYTHONIOENCODING="utf-8")
    assert done.stderr.splitlines() == [
        f"{shown(HOSTILE)} is left out: no photo",
        f"treering.images.folders: {shown(HOSTILE)} is left out: no photo",
        "treering.core: 3 images and 0.2 %",
        "another: \u202e",
        "made: by itself",
    ]
