"""Model folders: what is saved comes back bit for bit, damage is named, and no crash at any moment loses a model."""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from conftest import RECIPE, TinyFeatures, examples, images_of, kept, run_python, state_of, tiny_learner
from PIL import Image
from torch import nn

import treering
from treering import Augmentation, Budget, Learner, TreeringError
from treering.errors import UnjudgedError
from treering.model import examine
from treering.runtime import files
from treering.storage import folder as opened
from treering.storage import lock
from treering.storage import manifest as manifests
from treering.storage import model_folder as checkpoint
from treering.storage.folder import Folder

THIRD = examples({"ant": 5, "cat": 2}, seed=2)
IMAGES = images_of(["cat", "dog", "owl", "ant"], seed=9)


@pytest.fixture(scope="module")
def older() -> Learner:
    """Knows cats, dogs and owls. Tests share it and do not change it."""
    learner = tiny_learner(memory=9).partial_fit(*examples({"cat": 6, "dog": 5}))
    return learner.partial_fit(*examples({"owl": 6}, seed=1))


@pytest.fixture(scope="module")
def newer(older: Learner) -> Learner:
    """The same with one step more. Tests share it and do not change it."""
    return copy.deepcopy(older).partial_fit(*THIRD)


@pytest.fixture
def folder(tmp_path: Path, older: Learner) -> Path:
    """A model folder that holds `older`."""
    older.save(tmp_path / "model")
    return tmp_path / "model"


def load(path: Path) -> Learner:
    return Learner.load(path, backbone=TinyFeatures(), device="cpu")


def manifest_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "manifest.json").read_bytes())


def named_files(path: Path) -> list[str]:
    """The data files that the manifest names."""
    entries = manifest_of(path)["files"]
    return [
        entries["weights"]["name"],
        entries["history"]["name"],
        *(entry["name"] for part in entries["memory"] for entry in part),
    ]


def earlier(path: Path) -> list[Path]:
    """The manifests of earlier versions, oldest first."""
    with Folder(path) as folder:
        return [path / name for name in manifests.earlier(folder)]


def all_files(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def rewrite(path: Path, **changes: Any) -> None:
    """Change the manifest and give it a right checksum."""
    manifest = manifest_of(path) | changes
    del manifest["checksum"]
    checksum = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps({"checksum": checksum, **manifest}))


def refused(action: Callable[[], object], *fragments: str) -> None:
    """`action` raises one error of one line that holds the fragments."""
    with pytest.raises(ValueError) as caught:
        action()
    assert type(caught.value) in (TreeringError, UnjudgedError, lock.BusyError), repr(caught.value)
    assert "\n" not in str(caught.value)
    for fragment in fragments:
        assert fragment in str(caught.value)


# Round trips


def test_a_loaded_learner_is_the_saved_one_bit_for_bit(folder: Path, older: Learner) -> None:
    loaded = load(folder)
    assert state_of(loaded) == state_of(older)
    assert np.array_equal(loaded.predict_proba(IMAGES), older.predict_proba(IMAGES))
    assert loaded.predict(IMAGES).tolist() == older.predict(IMAGES).tolist()
    assert loaded.history_ == older.history_
    assert loaded.resolved_recipe() == older.resolved_recipe()
    assert loaded.seed == older.seed


SETTINGS: dict[str, dict[str, Any]] = {
    "module": {},
    "named backbone": {"backbone": "small"},
    "grey": {"backbone": "small", "channels": 1},
    "augmented": {"augmentation": Augmentation(padding=1)},
    "twofold": {"augmentation": Augmentation(kind="twofold", crop_size=6)},
    "random selection": {"memory": Budget(size=8, selection="random")},
    "per class": {"memory": Budget("per-class", 3, "histogram")},
    "fine-tuning": {"method": "finetune"},
    "seeded": {"seed": 12345678901},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_learning_goes_on_after_loading_as_if_nothing_had_happened(tmp_path: Path, settings: dict[str, Any]) -> None:
    settings = dict(settings)
    channels = settings.pop("channels", 3)
    steps = [
        examples(counts, seed, channels=channels)
        for seed, counts in enumerate([{"b": 6, "a": 5}, {"c": 6, "a": 2}, {"d": 4, "e": 1}, {"b": 3}])
    ]
    straight, resumed = tiny_learner(**settings), tiny_learner(**settings)
    for step in steps:
        straight.partial_fit(*step)
        resumed.partial_fit(*step)
        resumed.save(tmp_path / "model")
        module = None if settings.get("backbone") else TinyFeatures()
        resumed = Learner.load(tmp_path / "model", backbone=module, device="cpu")
    assert state_of(resumed) == state_of(straight)


def test_the_shortest_way_to_load_works(tmp_path: Path) -> None:
    learner = tiny_learner(backbone="small").partial_fit(*examples({"cat": 3, "dog": 3}))
    learner.save(str(tmp_path / "model"))
    loaded = treering.load(str(tmp_path / "model"))
    assert np.allclose(loaded.predict_proba(IMAGES), learner.predict_proba(IMAGES), atol=1e-2)
    assert loaded.classes_.tolist() == ["cat", "dog"]


def test_a_saved_learner_is_not_changed_by_saving(newer: Learner, folder: Path) -> None:
    before = state_of(newer)
    newer.save(folder)
    assert state_of(newer) == before


@pytest.mark.parametrize(
    "labels",
    [
        ("cat", "dog"),
        (1, 2),
        (-7, 10**30),
        (0.1, 1e300),
        (False, True),
        ("", " "),
        ("..", "."),
        ("a/b", "a\\b"),
        ("CON", "con"),
        ("x" * 500, "蝶" * 200),
        ("new\nline", "tab\t"),
        ("\u2028", '"quoted"'),
        ("é", "e\u0301"),
    ],
    ids=repr,
)
def test_texts_and_numbers_of_every_kind_are_saved_as_labels(tmp_path: Path, labels: tuple[Any, Any]) -> None:
    images, names = examples({0: 3, 1: 3})
    learner = tiny_learner().partial_fit(images, [labels[name] for name in names])
    learner.save(tmp_path / "in" / "model")
    loaded = load(tmp_path / "in" / "model")
    assert loaded._model.classes == learner._model.classes
    assert [type(label) for label in loaded._model.classes] == [type(label) for label in labels]
    assert state_of(loaded) == state_of(learner)
    assert [item.name for item in tmp_path.iterdir()] == ["in"]
    assert [item.name for item in (tmp_path / "in").iterdir()] == ["model"]


def test_texts_from_file_names_that_are_not_unicode_are_saved_or_refused(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    learner = tiny_learner().partial_fit(IMAGES, [name, "tea", name, "tea"])
    try:
        learner.save(tmp_path / "model")
    except TreeringError as error:
        assert "caf" in str(error)
        return
    assert state_of(load(tmp_path / "model")) == state_of(learner)


@pytest.mark.parametrize("labels", [((1, 2), (3, 4)), (b"a", b"b")], ids=["tuples", "bytes"])
def test_labels_that_json_cannot_hold_are_refused_before_anything_is_written(
    folder: Path, older: Learner, labels: tuple[Any, Any]
) -> None:
    learner = tiny_learner().partial_fit(IMAGES, [*labels, *labels])
    before = all_files(folder)
    refused(lambda: learner.save(folder), repr(labels[0]))
    assert all_files(folder) == before
    assert state_of(load(folder)) == state_of(older)


# What is in a model folder


def test_the_manifest_says_what_the_model_is(folder: Path, older: Learner) -> None:
    manifest = manifest_of(folder)
    expected = {
        "format": "treering model",
        "format_version": 1,
        "classes": ["cat", "dog", "owl"],
        "head_sizes": [2, 1],
        "image_shape": [3, 8, 8],
        "seed": 0,
        "steps": 2,
        "recipe": older.resolved_recipe().to_dict(),
    }
    assert {key: manifest[key] for key in expected} == expected
    assert manifest["recipe"]["backbone"] == "custom"
    assert manifest["recipe"]["memory"]["size"] == 9
    assert {"treering", "python", "torch", "numpy"} <= set(manifest["versions"])
    assert manifest["versions"]["treering"] == treering.__version__
    checksum = manifest.pop("checksum")
    assert checksum == hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def test_every_file_is_named_with_its_checksum(folder: Path) -> None:
    entries = manifest_of(folder)["files"]
    ranked = [entry for part in entries["memory"] for entry in part]
    assert [len(part) for part in entries["memory"]] == [3, 3, 3]
    for entry in (entries["weights"], entries["history"], *ranked):
        digest = hashlib.sha256((folder / entry["name"]).read_bytes()).hexdigest()
        assert entry["sha256"] == digest
        assert digest[:12] in entry["name"]
    assert set(all_files(folder)) == {*named_files(folder), "manifest.json", ".lock"}


def test_exemplars_are_png_files_in_the_order_of_their_rank(folder: Path, older: Learner) -> None:
    folders = sorted((folder / "memory").iterdir())
    assert [item.name for item in folders] == ["0000-cat", "0001-dog", "0002-owl"]
    for path, images in zip(folders, older.exemplars_.values(), strict=True):
        pictures = [Image.open(file) for file in sorted(path.iterdir())]
        assert all(picture.format == "PNG" for picture in pictures)
        assert kept(np.array([np.array(picture) for picture in pictures])) == kept(images)


def test_grey_exemplars_are_grey_png_files(tmp_path: Path) -> None:
    learner = tiny_learner(backbone="small").partial_fit(*examples({"a": 3, "b": 3}, channels=1))
    learner.save(tmp_path / "model")
    pictures = [Image.open(file) for file in sorted((tmp_path / "model" / "memory" / "0000-a").iterdir())]
    assert [picture.mode for picture in pictures] == ["L"] * 3
    assert kept(np.array([np.array(picture) for picture in pictures])[..., None]) == kept(learner.exemplars_["a"])


def test_the_weights_are_a_safetensors_file(folder: Path, older: Learner) -> None:
    tensors = safetensors.torch.load((folder / named_files(folder)[0]).read_bytes())
    assert {name: tensor.numpy().tobytes() for name, tensor in tensors.items()} == state_of(older)["weights"]


def test_no_pickle_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a pickle is read")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load"), (np, "load")):
        monkeypatch.setattr(module, name, refuse)
    load(folder)


def test_the_history_is_one_line_a_step(folder: Path, older: Learner) -> None:
    lines = (folder / named_files(folder)[1]).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == older.history_


# Saving over an older version


def test_saving_again_removes_the_files_of_the_older_version_and_of_dead_writers(folder: Path, newer: Learner) -> None:
    old = set(named_files(folder))
    (folder / f".tmp-{'d' * 32}").write_bytes(b"half")
    (folder / "memory" / "0000-cat" / f".tmp-{'d' * 32}").write_bytes(b"half")
    newer.save(folder, keep=0)
    assert set(all_files(folder)) == {*named_files(folder), "manifest.json", ".lock"}
    assert old - set(named_files(folder)), "something had to be removed"
    assert state_of(load(folder)) == state_of(newer)


def test_a_class_without_exemplars_leaves_no_empty_folder(folder: Path) -> None:
    learner = tiny_learner(method="finetune").partial_fit(*examples({"cat": 3}))
    learner.save(folder, keep=0)
    assert set(all_files(folder)) == {*named_files(folder), "manifest.json", ".lock"}
    assert not list(folder.glob("memory/*"))
    assert state_of(load(folder)) == state_of(learner)


def test_saving_the_same_model_again_rewrites_no_data_file(folder: Path, older: Learner) -> None:
    def data() -> dict[str, tuple[int, int]]:
        facts = {name: (folder / name).stat() for name in named_files(folder)}
        return {name: (fact.st_ino, fact.st_mtime_ns) for name, fact in facts.items()}

    before = data()
    older.save(folder)
    assert data() == before


def test_a_saved_step_can_be_undone_and_saving_it_twice_is_no_step(
    folder: Path, older: Learner, newer: Learner
) -> None:
    newer.save(folder)
    newer.save(folder)
    assert len(earlier(folder)) == 1
    checkpoint.undo(folder, examine)
    assert state_of(load(folder)) == state_of(older)
    refused(lambda: checkpoint.undo(folder, examine), "no version to go back to")


def test_a_damaged_manifest_is_replaced_by_saving(folder: Path, older: Learner) -> None:
    (folder / "manifest.json").write_text("{")
    older.save(folder)
    assert state_of(load(folder)) == state_of(older)
    assert not earlier(folder)


@pytest.mark.parametrize("keep", [-1, 1.5, "3", None])
def test_a_number_of_versions_is_a_number(folder: Path, older: Learner, keep: object) -> None:
    refused(lambda: older.save(folder, keep), "keep must be a whole number", repr(keep))


@pytest.mark.parametrize("place", ["notes.txt", "more/notes.txt", "memory/notes.txt", "memory/0000-cat/notes.txt"])
def test_files_of_others_stay(folder: Path, newer: Learner, place: str) -> None:
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).write_text("mine")
    newer.save(folder)
    assert (folder / place).read_text() == "mine"
    assert state_of(load(folder)) == state_of(newer)


def test_a_damaged_file_is_repaired_by_saving(folder: Path, older: Learner) -> None:
    for name in named_files(folder):
        (folder / name).write_bytes(b"damaged")
    older.save(folder)
    assert state_of(load(folder)) == state_of(older)


# Places that cannot be saved to


def test_a_file_is_not_saved_over(tmp_path: Path, older: Learner) -> None:
    (tmp_path / "model").write_text("mine")
    refused(lambda: older.save(tmp_path / "model"), str(tmp_path / "model"), "is a file")
    refused(lambda: older.save(tmp_path / "model" / "inside"), str(tmp_path / "model" / "inside"))
    assert (tmp_path / "model").read_text() == "mine"


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"], ids=ascii)
def test_a_name_that_no_file_can_have_is_refused(older: Learner, tmp_path: Path, name: str) -> None:
    for use in (
        older.save,
        older.evaluate,
        lambda path: older.export(f"{path}.onnx"),
        Learner.load,
        lambda path: treering.learn(path, tmp_path),
        lambda path: treering.learn(tmp_path, path),
    ):
        refused(lambda use=use: use(tmp_path / name), "cannot be the name")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_others_is_not_saved_into(tmp_path: Path, older: Learner) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    refused(lambda: older.save(tmp_path), str(tmp_path), "thesis.tex")
    assert all_files(tmp_path) == {"thesis.tex": b"mine"}


def test_an_empty_folder_is_saved_into(tmp_path: Path, older: Learner) -> None:
    older.save(tmp_path)
    assert state_of(load(tmp_path)) == state_of(older)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_folder_is_refused_and_stays_readable(folder: Path, older: Learner, newer: Learner) -> None:
    folder.chmod(0o500)
    try:
        refused(lambda: newer.save(folder), str(folder), "Permission denied")
        assert state_of(load(folder)) == state_of(older)
    finally:
        folder.chmod(0o700)


HOLD_LOCK = """
import os, sys
from pathlib import Path
from treering.runtime import files
assert files.try_lock(files.opened(Path(sys.argv[1]), os.O_RDWR | os.O_CREAT))
sys.stdout.write("locked")
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.fixture
def locked(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes to the folder until its input ends."""
    command = [sys.executable, "-c", HOLD_LOCK, str(folder / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.read(6) == "locked"
        yield process
        process.communicate()


def test_a_second_writer_is_refused_and_readers_do_not_wait(
    folder: Path, older: Learner, newer: Learner, locked: subprocess.Popen[str]
) -> None:
    before = all_files(folder)
    refused(lambda: newer.save(folder), "another process is writing", str(folder))
    assert all_files(folder) == before
    assert state_of(load(folder)) == state_of(older)
    locked.communicate()
    newer.save(folder)
    assert state_of(load(folder)) == state_of(newer)


# Folders that cannot be loaded


def test_what_is_no_model_folder_is_refused(tmp_path: Path) -> None:
    refused(lambda: load(tmp_path / "none"), str(tmp_path / "none"), "does not exist")
    refused(lambda: load(tmp_path), str(tmp_path), "has no manifest.json")
    (tmp_path / "file").write_text("mine")
    refused(lambda: load(tmp_path / "file"), str(tmp_path / "file"), "is a file")
    (tmp_path / "manifest.json").mkdir()
    refused(lambda: load(tmp_path), "manifest.json")


def test_a_folder_that_lost_its_manifest_is_refused(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    refused(lambda: load(folder), str(folder), "has no manifest.json")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"null", b"3", b'"treering model"', b"\xff\xfe", b"{}", b'{"format": "other"}']
)
def test_a_manifest_that_is_not_ours_is_refused(folder: Path, content: bytes) -> None:
    (folder / "manifest.json").write_bytes(content)
    refused(lambda: load(folder), "manifest.json")


def test_a_truncated_manifest_is_refused(folder: Path) -> None:
    content = (folder / "manifest.json").read_bytes()
    for length in range(0, len(content) - 1, max(1, len(content) // 40)):
        (folder / "manifest.json").write_bytes(content[:length])
        refused(lambda: load(folder), "manifest.json is damaged")


def test_a_manifest_with_a_wrong_bit_is_refused_or_means_the_same(folder: Path, older: Learner) -> None:
    content = (folder / "manifest.json").read_bytes()
    random = np.random.RandomState(0)
    refusals = 0
    for position in random.choice(len(content), 60, replace=False):
        damaged = bytearray(content)
        damaged[position] ^= 1 << random.randint(8)
        (folder / "manifest.json").write_bytes(damaged)
        try:
            assert state_of(load(folder)) == state_of(older)
        except TreeringError as error:
            assert "manifest.json" in str(error) or "newer treering" in str(error)
            assert "\n" not in str(error)
            refusals += 1
    assert refusals > 50


@pytest.mark.parametrize(
    "edit",
    [
        lambda manifest: manifest["classes"].reverse(),
        lambda manifest: manifest["recipe"].update(temperature=3.0),
        lambda manifest: manifest.update(steps=1),
        lambda manifest: manifest.pop("checksum"),
        lambda manifest: manifest.update(comment="mine"),
        lambda manifest: manifest.update(format_version="1"),
    ],
    ids=["classes", "recipe", "steps", "no checksum", "comment", "version"],
)
def test_a_manifest_edited_by_hand_is_refused(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    manifest = manifest_of(folder)
    edit(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    refused(lambda: load(folder), "manifest.json was changed after treering wrote it")


def test_a_newer_format_is_refused_by_its_number(folder: Path) -> None:
    rewrite(folder, format_version=2, files="elsewhere")
    refused(lambda: load(folder), str(folder), "format 2", "upgrade treering")


def test_another_format_is_refused(folder: Path) -> None:
    rewrite(folder, format="cupcake model")
    refused(lambda: load(folder), "manifest.json was not written by treering")


def test_a_manifest_with_a_right_checksum_is_read(folder: Path, older: Learner) -> None:
    rewrite(folder, seed=5)
    assert load(folder).seed == 5


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "is missing"),
    "cut short": (lambda file: file.write_bytes(file.read_bytes()[:-1]), "is damaged"),
    "empty": (lambda file: file.write_bytes(b""), "is damaged"),
    "longer": (lambda file: file.write_bytes(file.read_bytes() + b"\0"), "is damaged"),
    "one bit flipped": (flipped, "is damaged"),
    "a folder instead": (lambda file: (file.unlink(), file.mkdir()), "cannot read"),
}


@pytest.mark.parametrize(("damage", "fragment"), DAMAGES.values(), ids=DAMAGES)
def test_every_damaged_file_is_named(
    folder: Path, tmp_path: Path, damage: Callable[[Path], object], fragment: str
) -> None:
    names = named_files(folder)
    assert len(names) == 11
    for number, name in enumerate(names):
        copied = tmp_path / f"copy{number}"
        shutil.copytree(folder, copied)
        damage(copied / name)
        refused(lambda copied=copied: load(copied), str(copied / name), fragment)


def test_a_model_with_a_module_needs_that_module_again(folder: Path, tmp_path: Path) -> None:
    refused(lambda: Learner.load(folder, device="cpu"), str(folder), "Learner.load(folder, backbone=module)")
    wider = TinyFeatures(features=9)
    refused(lambda: Learner.load(folder, backbone=wider, device="cpu"), str(folder), "do not fit")
    deeper = nn.Sequential(TinyFeatures(), nn.Linear(8, 8))
    refused(lambda: Learner.load(folder, backbone=deeper, device="cpu"), str(folder), "do not fit")
    grey = TinyFeatures(channels=1)
    refused(lambda: Learner.load(folder, backbone=grey, device="cpu"), "backbone")
    tiny_learner(backbone="small").partial_fit(*examples({"a": 2, "b": 2})).save(tmp_path / "named")
    refused(lambda: load(tmp_path / "named"), str(tmp_path / "named"), "the backbone small")


def test_loading_does_not_change_the_module_that_is_given(folder: Path) -> None:
    module = TinyFeatures(seed=3)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    Learner.load(folder, backbone=module, device="cpu").partial_fit(*THIRD)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_an_unusable_device_is_refused(folder: Path) -> None:
    refused(lambda: Learner.load(folder, backbone=TinyFeatures(), device="abacus"), "'abacus'")


def test_loading_leaves_the_global_random_state_alone(tmp_path: Path) -> None:
    tiny_learner(backbone="small").partial_fit(*examples({"a": 2, "b": 2})).save(tmp_path / "model")
    before = torch.get_rng_state()
    Learner.load(tmp_path / "model", device="cpu").save(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), before)


# Crashes


class Crash:
    """Stands in for the function that writes a file: at the `at`-th call something goes wrong."""

    def __init__(self, kind: str, at: int) -> None:
        self.kind, self.at, self.calls, self.write = kind, at, 0, Folder.write
        self.written: list[Path] = []

    def write_instead(self) -> Callable[..., None]:
        """A method that takes the place of the one that writes."""
        return lambda folder, name, content, flushed=True: self(folder, name, content, flushed)

    def __call__(self, folder: Folder, name: str, content: bytes, flushed: bool) -> None:
        self.calls += 1
        file = folder.path / name
        if self.calls != self.at:
            self.write(folder, name, content, flushed)
            self.written.append(file)
        elif self.kind == "full disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        elif self.kind == "interrupted":
            raise KeyboardInterrupt
        elif self.kind == "power cut while writing":
            file.parent.mkdir(parents=True, exist_ok=True)
            (file.parent / f".tmp-{'c' * 32}").write_bytes(content[: len(content) // 2])
            raise KeyboardInterrupt
        else:
            self.write(folder, name, content, flushed)
            self.written.append(file)
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["full disk", "interrupted", "power cut while writing", "power cut after writing"])
def test_a_crash_at_any_write_leaves_the_last_complete_model(
    folder: Path, tmp_path: Path, older: Learner, newer: Learner, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    states = {False: state_of(older), True: state_of(newer)}
    answers = older.predict_proba(IMAGES)
    at = 0
    while True:
        at += 1
        copied = tmp_path / f"crash{at}"
        shutil.copytree(folder, copied)
        crash = Crash(kind, at)
        with monkeypatch.context() as patched:
            patched.setattr(Folder, "write", crash.write_instead())
            if crash_free(newer, copied, crash):
                break
        complete = any(file.name == "manifest.json" for file in crash.written)
        loaded = load(copied)
        assert state_of(loaded) == states[complete]
        if not complete:
            assert np.array_equal(loaded.predict_proba(IMAGES), answers)
        newer.save(copied, keep=0)
        assert state_of(load(copied)) == states[True]
        assert set(all_files(copied)) == {*named_files(copied), "manifest.json", ".lock"}
    assert at > 5, "weights, history, exemplars and manifest were each written"


def crash_free(learner: Learner, path: Path, crash: Crash) -> bool:
    """Save; whether that went well because there were fewer writes than `crash` waited for."""
    try:
        learner.save(path)
    except KeyboardInterrupt:
        return False
    except TreeringError as error:
        assert str(error) == f"cannot save to {path}: No space left on device; what it held before is intact"
        return False
    return crash.calls < crash.at


def test_a_crash_at_any_write_of_a_first_save_leaves_a_folder_that_can_be_saved_to(
    tmp_path: Path, older: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = 0
    while True:
        at += 1
        path = tmp_path / f"crash{at}"
        crash = Crash("power cut while writing", at)
        with monkeypatch.context() as patched:
            patched.setattr(Folder, "write", crash.write_instead())
            if crash_free(older, path, crash):
                break
        refused(lambda path=path: load(path), "has no manifest.json")
        older.save(path)
        assert state_of(load(path)) == state_of(older)
        assert set(all_files(path)) == {*named_files(path), "manifest.json", ".lock"}
    assert at == 13, "eleven data files, the manifest, and once without a crash"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()], ids=repr)
def test_a_full_disk_at_any_moment_of_a_write_leaves_no_half_file(
    folder: Path,
    tmp_path: Path,
    older: Learner,
    newer: Learner,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    fsync, at = os.fsync, 0
    while True:
        at += 1
        copied = tmp_path / f"full{at}"
        shutil.copytree(folder, copied)
        calls = iter(range(1, 10**6))

        def failing(handle: int, calls: Iterator[int] = calls, at: int = at) -> None:
            if not stat.S_ISDIR(os.fstat(handle).st_mode) and next(calls) == at:
                raise error
            fsync(handle)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", failing)
            try:
                newer.save(copied)
                break
            except (TreeringError, KeyboardInterrupt):
                pass
        assert not [name for name in all_files(copied) if ".tmp-" in name]
        assert state_of(load(copied)) in (state_of(older), state_of(newer))
        newer.save(copied)
        assert state_of(load(copied)) == state_of(newer)
    assert at == 9, "eight files reach the disk, and once without a failure"


def test_a_folder_that_cannot_be_flushed_is_saved_to_all_the_same(
    tmp_path: Path, older: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def files_only(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", files_only)
    code = errno.EINVAL
    older.save(tmp_path / "model")
    assert state_of(load(tmp_path / "model")) == state_of(older)
    code = errno.EIO
    refused(lambda: older.save(tmp_path / "other"), os.strerror(code))


def test_windows_is_asked_again_to_replace_a_file_that_somebody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, refusals = Path.replace, []

    def held(self: Path, target: Path) -> Path:
        if len(refusals) < 2:
            refusals.append(target)
            raise PermissionError(errno.EACCES, "Access is denied")
        return replace(self, target)

    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(Path, "replace", held)
    with pytest.raises(PermissionError):
        files.write(tmp_path / "file", b"new")
    refusals.clear()
    monkeypatch.setattr(files, "os", SimpleNamespace(**vars(os) | {"name": "nt"}))
    files.write(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert len(refusals) == 2


def test_a_lock_that_cannot_be_removed_hides_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = Path.unlink

    def held(self: Path, missing_ok: bool = False) -> None:
        if self.name == ".lock":
            raise PermissionError(errno.EACCES, "it is being used by another process")
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", held)
    with pytest.raises(TreeringError, match=r"^what really happened$"), lock.writing(tmp_path / "new"):
        raise TreeringError("what really happened")


def test_a_file_of_the_system_in_a_new_folder_hides_no_error(tmp_path: Path) -> None:
    with pytest.raises(TreeringError, match=r"^what really happened$"), lock.writing(tmp_path / "new"):
        (tmp_path / "new" / ".DS_Store").touch()
        raise TreeringError("what really happened")
    assert [file.name for file in (tmp_path / "new").iterdir()] == [".DS_Store"]


@pytest.mark.parametrize("listed", ["0000-Cafe\u0301", "0000-CAFÉ", "0000-café"])
def test_files_stay_however_the_file_system_spells_their_names(tmp_path: Path, listed: str) -> None:
    """Some ignore case and list the first spelling, some list accents as letters of their own."""
    learner = tiny_learner(memory=4).partial_fit(*examples({"café": 4, "tea": 4}))
    learner.save(tmp_path)
    folder = (tmp_path / "memory" / "0000-café").rename(tmp_path / "memory" / listed)
    there = sorted(folder.iterdir())
    (folder / "0009-0123456789ab.png").touch()
    learner.save(tmp_path)
    assert sorted(folder.iterdir()) == there


@pytest.mark.parametrize("killed", [False, True], ids=["", "after a writer that was killed"])
def test_every_file_and_folder_reaches_the_disk_before_the_manifest_names_it(
    tmp_path: Path, older: Learner, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    path = tmp_path / "model"
    if killed:
        older.save(path)
        (path / "manifest.json").unlink()
    fsync, replace = os.fsync, os.replace
    on_disk: set[int] = set()
    renamed: list[str] = []

    def note_fsync(handle: int) -> None:
        on_disk.add(os.fstat(handle).st_ino)
        fsync(handle)

    def note_replace(file: str, target: str, **places: int) -> None:
        renamed.append(Path(target).name)
        if renamed[-1] == "manifest.json":
            content = [path.parent, path]
            content += [file for file in path.glob("**/*") if file.name not in (".lock", ".writer")]
            assert len(content) == 2 + 1 + 3 + 11 + 1, "folders, files, and the manifest under its temporary name"
            assert {file.stat().st_ino for file in content} <= on_disk
        replace(file, target, **places)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    older.save(path)
    assert len(renamed) == 12
    assert renamed[-1] == "manifest.json"


KILLED = """
import copy, os, random, signal, sys, time
from pathlib import Path
from conftest import TinyFeatures, examples, state_of, tiny_learner
from treering import Learner

folder = Path(sys.argv[1])
older = tiny_learner(memory=9).partial_fit(*examples({"cat": 6, "dog": 5, "owl": 6}))
newer = copy.deepcopy(older).partial_fit(*examples({"ant": 5, "cat": 2}, seed=2))
states = [state_of(older), state_of(newer)]
older.save(folder)
choose = random.Random(0)
for turn in range(16):
    writer = os.fork()
    if writer == 0:
        try:
            while True:
                newer.save(folder)
                older.save(folder)
        finally:
            os._exit(1)
    time.sleep(choose.uniform(0.002, 0.06))
    os.kill(writer, signal.SIGKILL)
    _, status = os.waitpid(writer, 0)
    assert os.WIFSIGNALED(status), "the writer failed by itself"
    assert state_of(Learner.load(folder, backbone=TinyFeatures(), device="cpu")) in states
newer.save(folder)
assert state_of(Learner.load(folder, backbone=TinyFeatures(), device="cpu")) == states[1]
assert not [file for file in folder.rglob("*") if file.name.startswith(".tmp-")]
sys.stdout.write("survived")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killing_a_writer_at_any_moment_leaves_a_model(tmp_path: Path) -> None:
    run = run_python(KILLED, tmp_path / "model")
    assert (run.stdout, run.stderr) == ("survived", "")


# Readers beside writers


RACE = """
import copy, os, signal, sys, time
from pathlib import Path
from conftest import TinyFeatures, examples, state_of, tiny_learner
from treering import Learner

folder = Path(sys.argv[1])
learners = [tiny_learner(memory=9).partial_fit(*examples({"cat": 6, "dog": 5}))]
for number, name in enumerate(["owl", "ant", "bee"]):
    learners.append(copy.deepcopy(learners[-1]).partial_fit(*examples({name: 5}, seed=number)))
states = [state_of(learner) for learner in learners]
learners[0].save(folder)
writer = os.fork()
if writer == 0:
    try:
        while True:
            for learner in learners:
                learner.save(folder)
    finally:
        os._exit(1)
seen = set()
enough, end = time.monotonic() + 3, time.monotonic() + 600
try:
    while time.monotonic() < (end if len(seen) < 2 else enough):
        seen.add(states.index(state_of(Learner.load(folder, backbone=TinyFeatures(), device="cpu"))))
finally:
    os.kill(writer, signal.SIGKILL)
    _, status = os.waitpid(writer, 0)
assert os.WIFSIGNALED(status), "the writer failed by itself"
sys.stdout.write("saw several models" if len(seen) > 1 else "saw one model")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_reader_beside_a_writer_always_gets_a_whole_model(tmp_path: Path) -> None:
    run = run_python(RACE, tmp_path / "model")
    assert (run.stdout, run.stderr) == ("saw several models", "")


@pytest.mark.parametrize("times", [1, 3, 20])
def test_a_reader_whose_files_are_removed_by_a_writer_gets_the_new_model(
    folder: Path, older: Learner, newer: Learner, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    read, model = checkpoint._read, [older, newer]
    manifests = [(folder / "manifest.json").read_bytes()]

    def meanwhile(opened: Folder, entry: manifests.Entry, most: int) -> bytes:
        """Each time the reader begins with a new manifest, a writer replaces the model once more."""
        current = (folder / "manifest.json").read_bytes()
        if len(manifests) <= times and current == manifests[-1]:
            model.reverse()
            model[0].save(folder, keep=0)
            manifests.append((folder / "manifest.json").read_bytes())
        return read(opened, entry, most)

    monkeypatch.setattr(checkpoint, "_read", meanwhile)
    assert state_of(load(folder)) == state_of(model[0])
    assert len(manifests) == times + 1


def test_a_reader_is_not_misled_by_a_writer_that_goes_back_to_the_older_model(
    folder: Path, older: Learner, newer: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = checkpoint._read
    calls: list[str] = []

    def meanwhile(opened: Folder, entry: manifests.Entry, most: int) -> bytes:
        calls.append(entry.name)
        if len(calls) > 1:
            return read(opened, entry, most)
        newer.save(folder, keep=0)
        try:
            return read(opened, entry, most)
        finally:
            older.save(folder, keep=0)

    monkeypatch.setattr(checkpoint, "_read", meanwhile)
    assert state_of(load(folder)) == state_of(older)


def test_a_file_that_stays_missing_is_reported_soon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    read = manifests.read
    monkeypatch.setattr(manifests, "read", lambda path: reads.append(path) or read(path))
    (folder / named_files(folder)[0]).unlink()
    refused(lambda: load(folder), "is missing")
    assert len(reads) <= 10


def test_the_shared_recipe_is_not_what_a_folder_silently_assumes(tmp_path: Path) -> None:
    learner = tiny_learner(backbone="small", temperature=3.5).partial_fit(*examples({"a": 2, "b": 2}))
    learner.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", device="cpu")
    assert loaded.resolved_recipe().temperature == 3.5
    assert loaded.resolved_recipe().training == RECIPE.training


# Versions


class Versions:
    """Learners that each know one class more, and what they have learnt. Tests share them and do not change them."""

    def __init__(self, count: int) -> None:
        self.learners = [tiny_learner(memory=9).partial_fit(*examples({"cat": 4, "dog": 4}))]
        for number in range(1, count):
            more = examples({f"class {number}": 3}, seed=number)
            self.learners.append(copy.deepcopy(self.learners[-1]).partial_fit(*more))
        self.states = [state_of(learner) for learner in self.learners]

    def save_all(self, path: Path, count: int, keep: int) -> Path:
        for learner in self.learners[:count]:
            learner.save(path, keep)
        return path

    def index(self, path: Path) -> int:
        """Which of them the folder holds."""
        return self.states.index(state_of(load(path)))


@pytest.fixture(scope="module")
def versions() -> Versions:
    return Versions(6)


def every_named_file(path: Path) -> set[str]:
    """All that the current version and the earlier ones name, and their manifests."""
    named = [path / "manifest.json", *earlier(path)]
    names = {file.relative_to(path).as_posix() for file in named}
    for file in named:
        entries = json.loads(file.read_bytes())["files"]
        parts = [entry for kind in ("memory", "held_out") for part in entries[kind] for entry in part]
        names |= {entry["name"] for entry in (entries["weights"], entries["history"], *parts)}
    return names


def steps_back(path: Path, versions: Versions) -> list[int]:
    """The versions that one undo after the other leads to, until there is none."""
    found = []
    while True:
        before = all_files(path)
        try:
            checkpoint.undo(path, examine)
        except TreeringError as error:
            assert "has no version to go back to" in str(error)
            assert str(path) in str(error)
            assert "\n" not in str(error)
            assert all_files(path) == before
            return found
        found.append(versions.index(path))
        assert set(all_files(path)) == every_named_file(path) | {".lock"}


@pytest.mark.parametrize("keep", [0, 1, 2, 3, 5])
def test_undo_goes_back_exactly_as_many_versions_as_are_kept(tmp_path: Path, versions: Versions, keep: int) -> None:
    for count in range(1, 7):
        path = versions.save_all(tmp_path / str(count), count, keep)
        assert set(all_files(path)) == every_named_file(path) | {".lock"}
        assert len(earlier(path)) == min(keep, count - 1)
        last = count - 1
        assert steps_back(path, versions) == list(range(last - 1, max(last - keep, 0) - 1, -1))


def test_undo_brings_back_every_byte(tmp_path: Path, versions: Versions) -> None:
    path = versions.save_all(tmp_path / "model", 2, keep=3)
    before = all_files(path)
    versions.learners[2].save(path, keep=3)
    checkpoint.undo(path, examine)
    assert all_files(path) == before


def test_saving_without_keeping_removes_the_versions_that_were_kept(tmp_path: Path, versions: Versions) -> None:
    path = versions.save_all(tmp_path / "model", 2, keep=2)
    versions.learners[2].save(path, keep=0)
    assert earlier(path) == []
    assert set(all_files(path)) == {*named_files(path), "manifest.json", ".lock"}
    refused(lambda: checkpoint.undo(path, examine), str(path), "has no version to go back to")
    assert versions.index(path) == 2


def test_after_undo_one_can_save_and_undo_again(tmp_path: Path, versions: Versions) -> None:
    path = versions.save_all(tmp_path / "model", 3, keep=2)
    checkpoint.undo(path, examine)
    versions.learners[4].save(path, keep=2)
    assert versions.index(path) == 4
    assert steps_back(path, versions) == [1, 0]


def test_what_is_no_model_cannot_be_undone(tmp_path: Path, folder: Path) -> None:
    refused(lambda: checkpoint.undo(folder, examine), str(folder), "has no version to go back to")
    for path in (tmp_path / "none", tmp_path / "empty"):
        if path.name == "empty":
            path.mkdir()
        existed = path.exists()
        with pytest.raises(TreeringError):
            checkpoint.undo(path, examine)
        assert path.exists() <= existed, "nothing is made where nothing was"


@pytest.mark.parametrize(
    "kind",
    [
        "full disk",
        "interrupted",
        "power cut while writing",
        "power cut after writing",
    ],
)
def test_a_crash_at_any_write_of_undo_leaves_one_version_or_the_other(
    tmp_path: Path, versions: Versions, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    original = versions.save_all(tmp_path / "model", 3, keep=2)
    at = 0
    while True:
        at += 1
        path = tmp_path / f"crash{at}"
        shutil.copytree(original, path)
        crash = Crash(kind, at)
        with monkeypatch.context() as patched:
            patched.setattr(Folder, "write", crash.write_instead())
            try:
                checkpoint.undo(path, examine)
                break
            except (TreeringError, KeyboardInterrupt):
                pass
        done = any(file.name == "manifest.json" for file in crash.written)
        assert versions.index(path) == (1 if done else 2)
        assert steps_back(path, versions) == ([0] if done else [1, 0])
    assert at > 1


@pytest.mark.parametrize("kind", ["full disk", "interrupted", "power cut while writing", "power cut after writing"])
def test_a_crash_at_any_write_of_a_save_loses_no_earlier_version(
    tmp_path: Path, versions: Versions, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    original = versions.save_all(tmp_path / "model", 3, keep=2)
    at = 0
    while True:
        at += 1
        path, again = tmp_path / f"crash{at}", tmp_path / f"again{at}"
        shutil.copytree(original, path)
        crash = Crash(kind, at)
        with monkeypatch.context() as patched:
            patched.setattr(Folder, "write", crash.write_instead())
            try:
                versions.learners[3].save(path, keep=2)
                break
            except (TreeringError, KeyboardInterrupt):
                pass
        done = any(file.name == "manifest.json" for file in crash.written)
        assert versions.index(path) == (3 if done else 2)
        shutil.copytree(path, again)
        if not done:
            versions.learners[3].save(again, keep=2)
            assert set(all_files(again)) == every_named_file(again) | {".lock"}
            assert steps_back(again, versions) == [2, 1]
        assert steps_back(path, versions)[:2] == ([2, 1] if done else [1, 0])
    assert at > 5


@pytest.mark.parametrize("damage", ["missing", "cut short", "one bit flipped"])
def test_undo_to_a_damaged_version_is_refused_and_the_current_one_stays(
    tmp_path: Path, versions: Versions, damage: str
) -> None:
    path = versions.save_all(tmp_path / "model", 2, keep=1)
    (before,) = earlier(path)
    weights = path / json.loads(before.read_bytes())["files"]["weights"]["name"]
    for file in (before, weights) if damage != "missing" else (weights,):
        content = file.read_bytes()
        DAMAGES[damage][0](file)
        refused(lambda: checkpoint.undo(path, examine), str(file))
        assert versions.index(path) == 1
        file.write_bytes(content)
    checkpoint.undo(path, examine)
    assert versions.index(path) == 0


def test_undo_of_what_is_no_model_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "nowhere", "far/away"):
        with pytest.raises(TreeringError):
            checkpoint.undo(tmp_path / name, examine)
    assert [item.name for item in tmp_path.iterdir()] == ["empty"]


def test_files_that_systems_leave_are_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ".DS_Store").write_bytes(b"")
    tiny_learner(memory=10).partial_fit(*examples({0: 6, 1: 6})).save(tmp_path / "model")
    assert (tmp_path / "model" / "manifest.json").exists()


@pytest.mark.parametrize("number", ["99999998", "99999999"])
def test_undo_goes_to_the_last_version_whatever_the_numbers_are(
    tmp_path: Path, versions: Versions, number: str
) -> None:
    path = versions.save_all(tmp_path / "model", 2, keep=3)
    (path / "previous" / "0001.json").rename(path / "previous" / f"{number}.json")
    for learner in versions.learners[2:4]:
        learner.save(path)
    assert steps_back(path, versions) == [2, 1, 0]


@pytest.mark.skipif(os.name == "nt", reason="open files cannot be removed there")
def test_a_save_and_another_writer_in_the_folder_leave_each_others_unfinished_files(
    folder: Path, newer: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(temporary: str, last: str, holder: int | None) -> None:
        files.write(folder / "model.onnx", b"exported")
        replace(temporary, last, holder)

    replace = opened._replace
    abandoned = folder / f"{files.TEMPORARY}{'a' * 32}"
    abandoned.write_bytes(b"killed")
    exporting, stream = files._new_temporary(folder / "model.onnx")
    with stream, monkeypatch.context() as patch:
        patch.setattr(opened, "_replace", meanwhile)
        newer.save(folder)
        assert exporting.exists()
    assert not abandoned.exists()
    assert state_of(load(folder)) == state_of(newer)
    checkpoint.clean(Folder(folder), None)
    assert not exporting.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("what", ["huge", "link", "pipe", "folder"])
def test_what_is_no_unfinished_step_hinders_no_save_to_a_full_disk(
    folder: Path, newer: Learner, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(opened: Folder, name: str, content: bytes, flushed: bool = True) -> None:
        if name == "manifest.json" and not refused_writes:
            refused_writes.append(name)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(opened, name, content, flushed)

    def read(opened: Folder, name: str, most: int) -> bytes:
        assert name != ".learning" or most < 2**26
        return whole(opened, name, most)

    unfinished = folder / ".learning"
    if what == "huge":
        with unfinished.open("wb") as stream:
            stream.truncate(2**32 - 1)
    else:
        make = {"link": lambda: unfinished.symlink_to("/etc/passwd"), "pipe": lambda: os.mkfifo(unfinished)}
        make.get(what, unfinished.mkdir)()
    refused_writes: list[str] = []
    write, whole = Folder.write, Folder.read
    monkeypatch.setattr(Folder, "write", full)
    monkeypatch.setattr(Folder, "read", read)
    newer.save(folder)
    assert refused_writes
    assert state_of(load(folder)) == state_of(newer)
    assert os.path.lexists(unfinished) == (what == "folder")
