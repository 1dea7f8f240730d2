"""Exported models answer as the learner does, say what they are, and replace a file only if they do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import examples, tiny_learner
from photo_helper import TINY, command, pixels_of, write_photos
from PIL import Image

from treering import Learner, TreeringError, export, version
from treering.methods import speed

NAMES = ["Bär", "cat", "dog", "two words"]


@pytest.fixture(autouse=True)
def known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of this machine is not measured."""
    monkeypatch.setattr(speed, "images_per_second", lambda *arguments: 1000.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two steps, the first class in the last, whose images have the size of the network's input."""
    folder = tmp_path_factory.mktemp("model")
    photos = write_photos(folder / "photos", dict.fromkeys(NAMES[1:], 6))
    done = command("learn", folder / "model", photos, *TINY, "--set", "run.image_size=16")
    assert done.code == 0, done
    assert command("learn", folder / "model", write_photos(folder / "more", {NAMES[0]: 6}), "--device", "cpu").code == 0
    return folder / "model"


@pytest.fixture(scope="module")
def learner(model: Path) -> Learner:
    return Learner.load(model, device="cpu")


@pytest.fixture(scope="module")
def exported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model in both formats, by the command."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder = tmp_path_factory.mktemp("exported")
    files = {suffix: folder / f"model.{suffix}" for suffix in ("onnx", "pt2")}
    for file in files.values():
        done = command("export", model, file)
        assert (done.code, done.err) == (0, ""), done
        assert done.out.startswith(f"{file}: {file.stat().st_size / 1e6:.1f} MB; differs from the model by ")
    assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", "model.pt2"]
    return files


def ask(file: Path, images: np.ndarray) -> np.ndarray:
    """What another program gets for pixels 0..255, N x 3 x H x W, float32."""
    if file.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        return session.run(["probabilities"], {"images": images})[0]
    with torch.no_grad():
        return torch.export.load(file).module()(torch.from_numpy(images)).numpy()


def facts_of(file: Path) -> dict[str, str]:
    if file.suffix == ".onnx":
        import onnx

        return {entry.key: entry.value for entry in onnx.load(file).metadata_props}
    found = dict.fromkeys(("classes", "input", "preprocessing", "output", "treering"), "")
    torch.export.load(file, extra_files=found)
    return {key: value.decode() if isinstance(value, bytes) else value for key, value in found.items()}


def photos(count: int, seed: int = 50) -> np.ndarray:
    return np.stack([pixels_of(NAMES[number % 4], seed + number, side=16) for number in range(count)])


@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_file_answers_as_the_learner(exported: dict[str, Path], learner: Learner, suffix: str, count: int) -> None:
    images = photos(count)
    expected = learner.predict_proba(images)
    found = ask(exported[suffix], np.ascontiguousarray(np.moveaxis(images, -1, 1).astype(np.float32)))
    assert found.shape == (count, 4)
    assert np.abs(found - expected).max() < 1e-5
    assert len({tuple(row.round(6)) for row in expected}) == count, "the answers depend on the image"


@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_the_file_says_what_it_is(exported: dict[str, Path], learner: Learner, suffix: str) -> None:
    facts = facts_of(exported[suffix])
    assert json.loads(facts["classes"]) == learner.classes_.tolist() == NAMES
    assert "N x 3 x 16 x 16" in facts["input"]
    assert "0..255" in facts["input"]
    assert "16 x 16" in facts["preprocessing"]
    assert facts["output"] == "probabilities: float32 N x classes"
    assert facts["treering"] == version.__version__


def test_no_photo_is_in_a_file(learner: Learner, exported: dict[str, Path]) -> None:
    """Neither what the model keeps nor what the two models were compared on: exporters like to save their examples."""
    kept = [image for images in learner.exemplars_.values() for image in images]
    assert kept
    for file in exported.values():
        content = file.read_bytes()
        for image in kept:
            inside = np.ascontiguousarray(np.moveaxis(image, -1, 0))
            for pixels in (inside, inside.astype(np.float32), image):
                assert pixels[0].tobytes() not in content


def test_the_preprocessing_in_the_file_is_what_the_learner_does(tmp_path: Path) -> None:
    """Where stored images are larger than the network's input, the file takes the input."""
    folder = write_photos(tmp_path / "photos", {"cat": 5, "dog": 5})
    assert command("learn", tmp_path / "model", folder, *TINY).code == 0
    assert command("export", tmp_path / "model", tmp_path / "out.pt2").code == 0
    learner = Learner.load(tmp_path / "model", device="cpu")
    files = sorted(write_photos(tmp_path / "others", {"cat": 3}, seed=1).rglob("*.png"))
    large = np.random.RandomState(0).randint(0, 256, (600, 800, 3), dtype=np.uint8)
    Image.fromarray(large).save(tmp_path / "large.jpg")
    files.append(tmp_path / "large.jpg")
    squares = []
    for file in files:
        with Image.open(file) as image:
            image.draft("RGB", (40, 40))
            squares.append(np.array(image.resize((20, 20), Image.Resampling.BILINEAR)))
    pixels = torch.from_numpy(np.stack(squares)).movedim(-1, 1).float()
    inside = torch.nn.functional.interpolate(pixels, (16, 16), mode="bilinear", antialias=True).round()
    found = ask(tmp_path / "out.pt2", inside.numpy())
    assert np.abs(found - learner.predict_proba(files)).max() < 1e-5
    assert facts_of(tmp_path / "out.pt2")["preprocessing"] == (
        "decode the image (a JPEG after Pillow's draft('RGB', (40, 40))), turn it upright (EXIF), put it on white "
        "where it is transparent, resize the whole of it to 20 x 20 as Pillow does with BILINEAR, then to 16 x 16 as "
        "torch's interpolate does with mode='bilinear', antialias=True, and round; normalisation is inside"
    )


def test_exporting_leaves_the_learner_as_it_was(learner: Learner, tmp_path: Path) -> None:
    images = photos(4)
    before = learner.predict_proba(images)
    assert 0 <= learner.export(tmp_path / "out.pt2") <= export.TOLERANCE
    assert np.array_equal(learner.predict_proba(images), before)


class Wrong(export.Deployed):
    """Answers something else once it is exported."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        answer = super().forward(images)
        assert isinstance(answer, torch.Tensor)
        return answer.flip(1) if torch.compiler.is_exporting() else answer


@pytest.mark.parametrize("old", [None, b"an old file"])
def test_a_file_that_answers_differently_is_not_kept(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes | None
) -> None:
    monkeypatch.setattr(export, "Deployed", Wrong)
    file = tmp_path / "out.pt2"
    if old:
        file.write_bytes(old)
    command("export", model, file).refused("answers differently", "was not written")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == ([old] if old else [])


@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, 2 * export.TOLERANCE])
def test_the_check_is_on_every_answer(
    learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, wrong: float
) -> None:
    def off(deployed: Any, pixels: torch.Tensor, facts: dict[str, str]) -> tuple[bytes, list[np.ndarray]]:
        with torch.no_grad():
            answers = deployed(pixels).numpy().copy()
        answers[-1, -1] += wrong
        return b"content", [answers]

    monkeypatch.setattr(export, f"_{suffix}", off)
    with pytest.raises(TreeringError, match="answers differently"):
        learner.export(tmp_path / f"out.{suffix}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["model", "model.pt", "model.onnx.zip", "model.ONNX", ".onnx"])
def test_another_suffix_is_one_line(model: Path, tmp_path: Path, name: str) -> None:
    command("export", model, tmp_path / name).refused(name, "must end in .onnx or .pt2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_missing_packages_are_one_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    command("export", model, tmp_path / "out.onnx").refused("pip install 'treering[export]'")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(deployed: Any, pixels: torch.Tensor, facts: dict[str, str]) -> tuple[bytes, list[np.ndarray]]:
        with torch.no_grad():
            return b"content", [deployed(pixels).numpy()]

    monkeypatch.setattr(export, "_pt2", small)
    command("export", model, tmp_path / "nowhere" / "out.pt2").refused("cannot write", "nowhere is not a folder")
    (tmp_path / "folder.pt2").mkdir()
    command("export", model, tmp_path / "folder.pt2").refused("cannot write", "Is a directory")
    command("export", model, tmp_path / ("n" * 300 + ".pt2")).refused("cannot write", "File name too long")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.pt2"]


def test_a_method_that_answers_by_exemplars_cannot_be_exported(tmp_path: Path) -> None:
    learner = tiny_learner(backbone="small", method="icarl").partial_fit(*examples({"cat": 4, "dog": 4}))
    with pytest.raises(TreeringError, match="icarl"):
        learner.export(tmp_path / "out.onnx")


def test_a_model_without_exemplars_is_checked_on_noise(tmp_path: Path) -> None:
    learner = tiny_learner(backbone="small", method="finetune").partial_fit(*examples({"cat": 4, "dog": 4}))
    assert learner.export(tmp_path / "out.pt2") <= export.TOLERANCE
    assert (tmp_path / "out.pt2").exists()


def test_large_images_pass_through_the_network_a_few_at_a_time(
    learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "BATCH_PIXELS", 3 * 16 * 16)
    passed: list[int] = []
    plain = export.Deployed.forward

    def counting(deployed: export.Deployed, images: torch.Tensor) -> Any:
        if not torch.compiler.is_exporting():
            passed.append(len(images))
        return plain(deployed, images)

    monkeypatch.setattr(export.Deployed, "forward", counting)
    learner.export(tmp_path / "out.pt2")
    assert passed[0] == 1
    assert max(passed) == 3
    many, passed[:] = sum(passed), []
    monkeypatch.setattr(export, "CHECKED_PIXELS", 5 * 16 * 16)
    learner.export(tmp_path / "out.pt2")
    assert 5 <= sum(passed) < min(10, many), "fewer images are compared where they are large"


def test_what_a_killed_export_left_goes_with_the_next_one(learner: Learner, tmp_path: Path) -> None:
    (tmp_path / f".tmp-{'a' * 32}").write_bytes(b"half")
    learner.export(tmp_path / "model.pt2")
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt2"]


@pytest.mark.parametrize("long", [0.0, 1000.0])
def test_an_export_that_takes_long_says_so_beforehand(
    learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, long: float
) -> None:
    monkeypatch.setattr(export, "LONG", long)
    written = export._pt2

    def told() -> int:
        return sum(record.name == "treering.export" for record in caplog.records)

    def writes(*arguments: Any) -> Any:
        assert told() == (long == 0)
        return written(*arguments)

    monkeypatch.setattr(export, "_pt2", writes)
    learner.export(tmp_path / "model.pt2")
    assert told() == (long == 0)


def test_a_learner_that_has_learnt_nothing_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(TreeringError, match="learnt nothing"):
        Learner().export(tmp_path / "out.pt2")


def test_class_names_that_are_not_utf_8_can_be_exported(tmp_path: Path) -> None:
    names = {os.fsdecode(b"caf\xe9"): 4, "cat": 4}
    learner = tiny_learner(backbone="small").partial_fit(*examples(names))
    learner.export(tmp_path / "out.pt2")
    assert len(json.loads(facts_of(tmp_path / "out.pt2")["classes"])) == 2
