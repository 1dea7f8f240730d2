"""A model folder from a stranger does no harm: one line says what is wrong, quickly, and nothing outside is touched."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from conftest import run_python, state_of
from learn_helper import CHANGES, FIRST, SECOND, learn, make_folder, model_state
from photo_helper import Finished, command
from PIL import Image

from treering import Learner, TreeringError
from treering.core.trainer import FitState, InFlight
from treering.model import examine
from treering.photos import learn as photos
from treering.photos.plan import Plan
from treering.storage import check as checks
from treering.storage import folder as opened
from treering.storage import manifest as manifests
from treering.storage import model_folder, names, pictures, resume, user_key
from treering.storage.folder import Folder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links and pipes are made as on Linux")
Json = Any
QUICK = 20.0
"""Seconds that are enough on a busy machine for what takes a fraction of one, and too few for what hangs."""


class Models:
    """A model of two steps, its photos, and a folder outside. Tests share them and copy what they change."""

    def __init__(self, folder: Path) -> None:
        self.first, self.second = make_folder(folder / "1", FIRST), make_folder(folder / "2", SECOND, seed=1)
        self.third = make_folder(folder / "3", {"eel": 3, "cat": 2}, seed=2)
        self.base = folder / "base"
        learn(self.base, self.first)
        learn(self.base, self.second)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def path(tmp_path: Path, models: Models) -> Path:
    """A copy of the model that a test may change."""
    shutil.copytree(models.base, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of precious files, some of which have names that treering removes in its own folders."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in (
        "precious.txt",
        f".tmp-{'a' * 32}",
        "0000-0123456789ab.png",
        "weights-0123456789ab.safetensors",
        "0001.json",
    ):
        (folder / name).write_text(name)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def manifest_of(path: Path, name: str = "manifest.json") -> Json:
    return json.loads((path / name).read_bytes())


def reseal(path: Path, manifest: Json, name: str = "manifest.json") -> None:
    """Write a manifest with a right checksum."""
    manifest.pop("checksum", None)
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (path / name).write_text(json.dumps({"checksum": digest, **manifest}))


def put(path: Path, kind: str, new: bytes, *place: int) -> Path:
    """Give the model another file of this kind, with right names and checksums."""
    manifest = manifest_of(path)
    entry = manifest["files"][kind]
    for index in place:
        entry = entry[index]
    (path / entry["name"]).unlink()
    digest = hashlib.sha256(new).hexdigest()
    start, _, end = entry["name"].rpartition("-")[0], None, entry["name"].rpartition(".")[2]
    entry.update(name=f"{start}-{digest[:12]}.{end}", sha256=digest)
    (path / entry["name"]).write_bytes(new)
    reseal(path, manifest)
    return path / entry["name"]


def every_command(path: Path, models: Models) -> dict[str, Finished]:
    """What each command makes of a model, each quickly."""
    done = {}
    arguments: dict[str, list[object]] = {"check": [], "predict": [models.first / "cat"], "info": []}
    for what, rest in (arguments | {"undo": [], "learn": [models.third, "--device", "cpu"]}).items():
        begun = time.monotonic()
        done[what] = command(what, path, *rest)
        assert time.monotonic() - begun < QUICK, what
    return done


def all_refused(path: Path, models: Models, *fragments: str) -> None:
    """No command answers; each says in one line what is wrong."""
    begun = time.monotonic()
    with pytest.raises(TreeringError) as told:
        Learner.load(path, device="cpu")
    assert time.monotonic() - begun < QUICK
    assert "\n" not in str(told.value)
    for fragment in fragments:
        assert fragment in str(told.value)
    command("predict", path, models.first / "cat").refused()
    command("learn", path, models.third, "--device", "cpu").refused()
    assert command("check", path).code in (1, 2)


# Names and links


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../x", "memory/../../x", "manifest.json/", "memory//x", "a\0b", "x\n", "memory/0000-cat/../x",
     "weights-0123456789ab.safetensors\n", "C:x", "memory/0000-cat", "", ".", "previous/1.json", "notes.txt",
     "memory/0000-\x1b/0000-0123456789ab.png", "previous/٣٣٣٣.json"],
)  # fmt: skip
def test_no_name_but_those_that_treering_gives_is_touched(path: Path, name: str) -> None:
    with Folder(path) as folder:
        for action in (
            lambda: folder.read(name, 10), lambda: folder.write(name, b"x"), lambda: folder.remove(name)
        ):  # fmt: skip
            if name == "memory/0000-cat":
                continue  # a folder's name, which is for no file
            with pytest.raises(TreeringError):
                action()


@pytest.mark.parametrize(
    "name", ["/dev/zero", "../outside/precious.txt", "/etc/passwd", "a\0b", "\x1b[31m", "x" * 10**6]
)
@pytest.mark.parametrize("kind", ["weights", "history", "memory"])
def test_a_manifest_that_names_other_files_is_refused(path: Path, models: Models, kind: str, name: str) -> None:
    manifest = manifest_of(path)
    entry = manifest["files"][kind]
    (entry[0][0] if kind == "memory" else entry)["name"] = name
    reseal(path, manifest)
    all_refused(path, models, "manifest.json describes no model", f"files.{kind}")


LINKED = ["manifest.json", "weights", "history", "memory", "held-out", "previous", "exemplars", "exemplar", "earlier"]


def place_of(path: Path, what: str) -> Path:
    """The file or folder of this kind."""
    entries = manifest_of(path)["files"]
    exemplar = path / entries["memory"][0][0]["name"]
    places = {"exemplars": exemplar.parent, "exemplar": exemplar, "earlier": path / "previous" / "0001.json"}
    places |= {kind: path / entries[kind]["name"] for kind in ("weights", "history")}
    return places.get(what, path / what)


@pytest.mark.parametrize("what", LINKED)
@pytest.mark.parametrize("target", ["outside", "precious", "moved", "/dev/zero"])
def test_no_link_below_a_model_folder_is_followed(
    tmp_path: Path, path: Path, models: Models, outside: Path, what: str, target: str
) -> None:
    place = place_of(path, what)
    if target == "moved":  # the right content, but elsewhere
        shutil.move(place, outside / "moved")
    elif place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
    targets = {"outside": outside, "precious": outside / "precious.txt", "moved": outside / "moved"}
    place.symlink_to(targets.get(target, Path(target)))
    before = content(outside)
    done = every_command(path, models)
    assert content(outside) == before
    for what_was_done, one in done.items():
        if one.code == 2:
            one.refused()
        assert "Traceback" not in one.err, what_was_done
    if what not in ("previous", "earlier"):
        assert {one: done[one].code for one in ("check", "predict")} == {"check": 1, "predict": 2}


@pytest.mark.parametrize(
    "name", [".writer", ".learning", "memory/9999-x", f".tmp-{'b' * 32}", "memory/0000-cat/9999-0123456789ab.png"]
)
def test_links_in_the_place_of_what_treering_removes_do_not_lead_outside(
    path: Path, models: Models, outside: Path, name: str
) -> None:
    for target in (outside, outside / "precious.txt", outside / "none"):
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to(target)
        before = content(outside)
        assert every_command(path, models)["check"].code == 0
        assert content(outside) == before


@pytest.mark.parametrize("name", ["memory/0003-eel", "previous"])
def test_no_link_in_the_place_of_what_a_learn_writes_leads_outside(
    path: Path, models: Models, outside: Path, name: str
) -> None:
    shutil.rmtree(path / name, ignore_errors=True)
    (path / name).symlink_to(outside)
    state, before = model_state(path), content(outside)
    command("learn", path, models.third, "--device", "cpu").refused()
    assert content(outside) == before
    assert model_state(path) == state


def test_what_has_nearly_the_name_of_an_earlier_version_is_none(path: Path, models: Models) -> None:
    (path / "previous" / "0001x.json").write_text("{")
    assert {one.code for one in every_command(path, models).values()} == {0}
    assert (path / "previous" / "0001x.json").read_text() == "{"


def test_the_folder_itself_may_be_reached_through_a_link(tmp_path: Path, path: Path, models: Models) -> None:
    (tmp_path / "link").symlink_to(path)
    done = every_command(tmp_path / "link", models)
    assert {one.code for one in done.values()} == {0}


@pytest.mark.parametrize("what", [*LINKED[:3], "exemplar", "earlier", ".writer", ".learning", ".lock"])
def test_a_pipe_does_not_hang(path: Path, models: Models, what: str) -> None:
    place = place_of(path, what)
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    done = every_command(path, models)
    for one in done.values():
        if one.code == 2:
            one.refused()
    if what in (*LINKED[:3], "exemplar"):
        assert done["predict"].code == 2


def test_without_descriptors_no_link_is_followed_either(
    monkeypatch: pytest.MonkeyPatch, path: Path, models: Models, outside: Path
) -> None:
    monkeypatch.setattr(opened, "BY_DESCRIPTOR", False)
    state, before = state_of(Learner.load(path, device="cpu")), content(outside)
    learn(path, models.third)
    model_folder.undo(path, examine)
    assert state_of(Learner.load(path, device="cpu")) == state
    for what in ("weights", "exemplars"):
        place = place_of(path, what)
        shutil.move(place, outside / what)
        place.symlink_to(outside / what)
        with pytest.raises(TreeringError, match="a link, a pipe"):
            Learner.load(path, device="cpu")
        with pytest.raises(TreeringError, match="a link, a pipe"):
            learn(path, models.third)
        place.unlink()
        shutil.move(outside / what, place)
    assert content(outside) == before


# Values


def deep(levels: int) -> Json:
    value: Json = 1
    for _ in range(levels):
        value = [value]
    return value


def changed(value: Json, *keys: Any) -> Callable[[Json], None]:
    """A change of a manifest: the value at these keys becomes another, or goes if it is `...`."""

    def change(manifest: Json) -> None:
        place = manifest
        for key in keys[:-1]:
            place = place[key]
        if value is ...:
            del place[keys[-1]]
        else:
            place[keys[-1]] = value

    return change


VALUES: list[tuple[Callable[[Json], None], str]] = [
    *(
        (changed(..., key), f"{key} is missing")
        for key in ("recipe", "seed", "classes", "head_sizes", "steps", "image_shape")
    ),
    *((changed(..., "files", key), f"files.{key} is missing") for key in ("weights", "history", "memory", "held_out")),
    (changed(["cat"] * 3, "classes"), "more than once"),
    (changed(["cat", 1, "owl"], "classes"), "all be texts or all numbers"),
    (changed(["cat", None, "owl"], "classes"), "classes[1]"),
    (changed([], "classes"), "classes"),
    (changed([2, 2], "head_sizes"), "head_sizes are of 4 classes"),
    (changed([4, -1], "head_sizes"), "head_sizes"),
    (changed([3.0], "head_sizes"), "head_sizes"),
    (changed(10**30, "steps"), "steps"),
    (changed(3, "steps"), "history-"),
    (changed([3, 0, 20], "image_shape"), "image_shape"),
    (changed([3, 20], "image_shape"), "image_shape"),
    (changed([9, 20, 20], "image_shape"), "image_shape"),
    (changed([3, 5000, 5000], "image_shape"), "image_shape"),
    (changed([3, 4000, 4000], "image_shape"), ""),
    (changed([3, 21, 20], "image_shape"), "no image of the model's shape"),
    (changed(-1, "seed"), "seed"),
    (changed(2**63, "seed"), "seed"),
    (changed([[], []], "files", "memory"), "files.memory is of 2 classes"),
    (changed("x" * 64, "files", "weights", "sha256"), "files.weights.sha256"),
    (changed("00", "generator", "state"), "generator.state"),
    (changed("ff" * 5056, "generator", "state"), "random state"),
    (changed({"x": deep(90)}, "recipe"), "recipe"),
    (changed(["x"], "recipe"), "recipe"),
    (changed("resnet\x1b[31m32", "recipe", "backbone"), "backbone"),
    (changed("timm:hf-hub:a/b", "recipe", "backbone"), ""),
    (changed("resnet18", "recipe", "backbone"), "do not fit"),
    (changed(9000, "recipe", "augmentation", "crop_size"), "pixels"),
    (changed(1025, "recipe", "augmentation", "crop_size"), "1025 x 1025 pixels, which are too many"),
    (changed(3000, "recipe", "augmentation", "padding"), "padding"),
    (changed(2**62, "recipe", "training", "epochs"), "epochs"),
    (changed(1000, "recipe", "augmentation", "crop_size"), "too small for its model"),
    (changed(10**9, "recipe", "augmentation", "crop_size"), "crop_size"),
    (changed(10**400, "recipe", "memory", "size"), "size"),
    (changed(float("nan"), "recipe", "temperature"), "temperature"),
]


@pytest.mark.parametrize(("change", "fragment"), VALUES, ids=[str(number) for number in range(len(VALUES))])
def test_a_manifest_of_no_model_is_refused(
    path: Path, models: Models, change: Callable[[Json], None], fragment: str
) -> None:
    manifest = manifest_of(path)
    change(manifest)
    reseal(path, manifest)
    all_refused(path, models, fragment)


def test_an_output_that_no_network_has_is_refused(path: Path, models: Models) -> None:
    manifest = manifest_of(path)
    manifest["recipe"] |= {"method": "icarl", "outputs": 100_000}
    reseal(path, manifest)
    all_refused(path, models, "too small for its model")


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 10**6,
        b'{"a":' * 10**5,
        b"9" * 10**6,
        b"[" + b"1," * 5 * 10**6 + b"1]",
        b" " * (70 * 2**20),
        b"\xff",
        b'"' * 10**6,
    ],
)
def test_json_that_is_absurd_is_refused(path: Path, models: Models, text: bytes) -> None:
    (path / "manifest.json").write_bytes(text)
    all_refused(path, models, "manifest.json")


HISTORIES: list[Callable[[list[Json]], Json]] = [
    lambda records: records[:1],
    lambda records: [records[0], 3],
    lambda records: [records[0], {}],
    lambda records: [records[0], records[0]],
    lambda records: [records[0], records[1] | {"step": "\x1b[31m"}],
    lambda records: [records[0], records[1] | {"time": "yesterday"}],
    lambda records: [records[0], records[1] | {"time": "0001-01-01T00:00:00+14:00"}],
    lambda records: [records[0], records[1] | {"images": [["cat"]]}],
    lambda records: [records[0], records[1] | {"images": [["cat", -1]]}],
    lambda records: [records[0], records[1] | {"new_classes": ["cat"]}],
    lambda records: [records[0], records[1] | {"accuracy": {"all": float("nan")}}],
    lambda records: [records[0], records[1] | {"accuracy": {"classes": {"cat": [3, 2]}}}],
    lambda records: [records[0], records[1] | {"files": ["x"]}],
    lambda records: [records[0], records[1] | {"more": deep(200)}],
]


@pytest.mark.parametrize("change", HISTORIES, ids=[str(number) for number in range(len(HISTORIES))])
def test_a_history_of_no_model_is_refused(path: Path, models: Models, change: Callable[[list[Json]], Json]) -> None:
    lines = place_of(path, "history").read_bytes().splitlines()
    records = change([json.loads(line) for line in lines])
    file = put(path, "history", b"".join(json.dumps(record).encode() + b"\n" for record in records))
    all_refused(path, models, str(file))
    command("info", path).refused(str(file))


# Tensors


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load(place_of(path, "weights").read_bytes())


def with_header(change: Callable[[dict[str, Json]], Json], extra: int = 0) -> Callable[[bytes], bytes]:
    """A change of the header of a tensor file, whose tensors stay."""

    def made(before: bytes) -> bytes:
        length = int.from_bytes(before[:8], "little")
        text = json.dumps(change(json.loads(before[8 : 8 + length]))).encode()
        return (len(text) + extra).to_bytes(8, "little") + text + before[8 + length :]

    return made


def with_tensor(change: Callable[[torch.Tensor], torch.Tensor], name: str = "bias") -> Callable[[bytes], bytes]:
    """A change of one tensor in a file."""

    def made(before: bytes) -> bytes:
        tensors = safetensors.torch.load(before)
        return safetensors.torch.save(tensors | {name: change(tensors[name])})

    return made


def overlapping(header: dict[str, Json]) -> dict[str, Json]:
    return header | {"mean_image": header["mean_image"] | {"data_offsets": header["weight"]["data_offsets"]}}


WEIGHTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda before: b"",
    "no header": lambda before: b"\0" * 8,
    "a header of gigabytes": lambda before: (2**40).to_bytes(8, "little") + before[8:],
    "a header of 100 MB": lambda before: (10**8).to_bytes(8, "little") + before[8:],
    "a header of brackets": lambda before: (10**6).to_bytes(8, "little") + b"[" * 10**6,
    "a list": with_header(lambda header: [header]),
    "no entries": with_header(lambda header: dict.fromkeys(header, 1)),
    "a wrong type": with_header(lambda header: header | {"bias": header["bias"] | {"dtype": "\x1b"}}),
    "a huge shape": with_header(lambda header: header | {"bias": header["bias"] | {"shape": [2**62]}}),
    "a negative shape": with_header(lambda header: header | {"bias": header["bias"] | {"shape": [-3]}}),
    "many dimensions": with_header(lambda header: header | {"bias": header["bias"] | {"shape": [1] * 99 + [3]}}),
    "a truth value as a size": with_header(lambda header: header | {"bias": header["bias"] | {"shape": [True]}}),
    "an overlap": with_header(overlapping),
    "facts": with_header(lambda header: header | {"__metadata__": {"x": 1}}),
    "an absurd name": with_header(
        lambda header: {("\x1b" * 5000 if name == "bias" else name): entry for name, entry in header.items()}
    ),
    "a missing one": with_header(lambda header: {name: entry for name, entry in header.items() if name != "bias"}),
    "a longer file": lambda before: before + b"\0" * 4,
    "an extra tensor": lambda before: safetensors.torch.save(
        safetensors.torch.load(before) | {"extra\x1b": torch.zeros(1)}
    ),
    "a large mean image": with_tensor(lambda tensor: torch.zeros(3, 400, 400), "mean_image"),
    "more classes": with_tensor(lambda tensor: torch.zeros(9)),
    "whole numbers": with_tensor(lambda tensor: tensor.int()),
    "other floats": with_tensor(lambda tensor: tensor.double()),
    "no number": with_tensor(lambda tensor: tensor * math.nan),
    "infinity": with_tensor(lambda tensor: tensor + math.inf, "mean_image"),
}


@pytest.mark.parametrize("change", WEIGHTS.values(), ids=WEIGHTS)
def test_weights_of_no_such_network_are_refused(path: Path, models: Models, change: Callable[[bytes], bytes]) -> None:
    put(path, "weights", change(place_of(path, "weights").read_bytes()))
    all_refused(path, models)


def test_a_file_of_terabytes_is_refused_soon(path: Path, models: Models) -> None:
    for what in ("weights", "history", "exemplar", "manifest.json"):
        place = place_of(path, what)
        before = place.read_bytes()
        with place.open("r+b") as stream:
            stream.truncate(2**42)
        all_refused(path, models)
        place.write_bytes(before)


def test_numbers_that_overflow_are_no_answer(path: Path, models: Models) -> None:
    put(
        path,
        "weights",
        with_tensor(lambda tensor: tensor - 10, "features.body.0.norm1.running_var")(
            place_of(path, "weights").read_bytes()
        ),
    )
    command("predict", path, models.first / "cat").refused("not finite")


def test_sums_of_a_closed_form_that_cannot_be_are_refused(tmp_path: Path, models: Models) -> None:
    path = tmp_path / "closed"
    changes = ["method=closed-form", "augmentation.kind=none", "run.image_size=20"]
    photos.learn(path, models.first, backbone="small", memory=4, changes=changes, device="cpu")
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    weights = place_of(path, "weights").read_bytes()
    for name, change in {
        "statistics.counts": lambda tensor: tensor + 0.5, "statistics.sums": lambda tensor: tensor - 1e300,
        "statistics.gram": lambda tensor: tensor * math.nan, "statistics.setting": lambda tensor: tensor[:2],
        "statistics.images": lambda tensor: tensor[:, None],
    }.items():  # fmt: skip
        put(path, "weights", with_tensor(change, name)(weights))
        all_refused(path, models)
        for file, there in before.items():
            (path / file).write_bytes(there)
    assert Learner.load(path, device="cpu", check=True).classes_.tolist() == ["cat", "dog"]


# Images


def png(mode: str = "RGB", side: int = 20, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((side, side), np.uint8)).convert(mode).save(buffer, kind)
    return buffer.getvalue()


def with_chunks(kind: bytes, count: int) -> bytes:
    """A picture of the model's shape that has empty chunks before its pixels."""
    whole = png()
    place = whole.index(b"IDAT") - 4
    return whole[:place] + struct.pack(">I4sI", 0, kind, zlib.crc32(kind)) * count + whole[place:]


ROWS = bytes(20 * (1 + 3 * 20))
"""The pixels of a black image, with the filter of each row."""


def with_pixels(stream: bytes, interlaced: int = 0) -> bytes:
    """A picture of the model's shape with this stream of pixels, whose checksums are right."""
    head = struct.pack(">IIBBBBB", 20, 20, 8, 2, 0, 0, interlaced)
    parts = (b"IHDR", head), (b"IDAT", stream), (b"IEND", b"")
    chunks = [
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part)) for kind, part in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def packed(rows: bytes, window: int, *dictionary: bytes) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, window, 8, 0, *dictionary)
    return compressor.compress(rows) + compressor.flush()


def test_a_picture_made_here_as_treering_makes_it_is_one() -> None:
    pictures.require_decodable(with_pixels(zlib.compress(ROWS)), (3, 20, 20))


IMAGES: dict[str, Callable[[], bytes]] = {
    "a chunk that treering never writes": lambda: with_chunks(b"aaAa", 1),
    "chunks without pixels": lambda: with_chunks(b"IDAT", 1000),
    "larger": lambda: png(side=21),
    "grey": lambda: png("L"),
    "a palette": lambda: png("P"),
    "transparent": lambda: png("RGBA"),
    "a GIF": lambda: png(kind="GIF"),
    "a JPEG": lambda: png(kind="JPEG"),
    "EPS": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n",
    "huge": lambda: png()[:16] + struct.pack(">II", 60_000, 60_000) + png()[24:],
    "cut": lambda: png()[:50],
    "bytes behind its end": lambda: png() + b"\0",
    "a kilobyte behind its end": lambda: png() + bytes(1000),
    "bytes behind its pixels": lambda: with_pixels(zlib.compress(ROWS) + b"\0"),
    "more rows": lambda: with_pixels(zlib.compress(ROWS + ROWS)),
    "rows without end": lambda: with_pixels(zlib.compress(bytes(10**7))),
    "fewer rows": lambda: with_pixels(zlib.compress(ROWS[:-1])),
    "no checksum of its pixels": lambda: with_pixels(zlib.compress(ROWS)[:-4]),
    "another filter": lambda: with_pixels(zlib.compress(b"\5" + ROWS[1:])),
    "a dictionary": lambda: with_pixels(packed(ROWS, 15, b"x")),
    "another window": lambda: with_pixels(b"\xff" + packed(ROWS, 15)[1:]),
    "no head of its pixels": lambda: with_pixels(packed(ROWS, -15)),
    "pixels as gzip": lambda: with_pixels(packed(ROWS, 31)),
    "interlace": lambda: with_pixels(zlib.compress(ROWS), 1),
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("made", IMAGES.values(), ids=IMAGES)
@pytest.mark.parametrize("kind", ["memory", "held_out"])
def test_images_that_are_not_the_models_are_refused(
    monkeypatch: pytest.MonkeyPatch, path: Path, models: Models, made: Callable[[], bytes], kind: str
) -> None:
    def refuse(*arguments: object, **settings: object) -> None:
        raise AssertionError("a program is started")

    file = put(path, kind, made(), 0, 0)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    all_refused(path, models, str(file), "no image of the model's shape")


# Unfinished steps


def interrupted(path: Path, folder: Path) -> None:
    """Leave an unfinished step."""

    def stop(what: str, done: int, total: int, calls: list[int] = []) -> None:  # noqa: B006
        if what == "training":
            calls.append(done)
            if len(calls) == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(path, folder, progress=lambda *news, calls=[]: stop(*news, calls))
    assert (path / ".learning").exists()


@pytest.fixture
def unfinished(monkeypatch: pytest.MonkeyPatch, path: Path, models: Models) -> Path:
    """A model whose third step is unfinished."""
    monkeypatch.setattr(photos, "SAVE_EVERY", 0.0)
    interrupted(path, models.third)
    return path


def forged(path: Path, change: Callable[[InFlight, dict[str, Json]], InFlight], sealed: bool = False) -> None:
    """Rewrite the unfinished step with a right checksum, as somebody else can who has not the user's key."""
    file = path / ".learning"
    tensors, facts = resume.read(file)
    in_flight = resume.unpack(tensors, facts["fits"])
    assert in_flight is not None
    new, fits = resume.pack(change(in_flight, facts))
    written = resume.to_bytes(new, facts | {"fits": fits})
    if not sealed:
        length = int.from_bytes(written[:8], "little")
        header = json.loads(written[8 : 8 + length])
        del header["__metadata__"]["seal"]
        text = json.dumps(header).encode()
        written = len(text).to_bytes(8, "little") + text + written[8 + length :]
    file.write_bytes(written)


def state(state: FitState, **changes: Any) -> FitState:
    tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
    return FitState(
        **{**vars(state), "tensors": tensors, "momentum": state.momentum.clone(), "generator": state.generator.clone()}
        | changes
    )


FORGED: dict[str, Callable[[InFlight, dict[str, Json]], InFlight]] = {
    "epoch 99": lambda was, facts: InFlight(state(was.current, epoch=99), was.previous),
    "epoch 0": lambda was, facts: InFlight(state(was.current, epoch=0), was.previous),
    "training 9": lambda was, facts: InFlight(state(was.current, number=9), state(was.current, number=8, epoch=3)),
    "a first training that has not ended": lambda was, facts: InFlight(
        state(was.current, number=1, epoch=1), state(was.current, number=0, epoch=1)
    ),
    "another network": lambda was, facts: InFlight(state(was.current, tensors={"bias": torch.zeros(4)}), None),
    "other numbers": lambda was, facts: InFlight(
        state(was.current, tensors=was.current.tensors | {"bias": was.current.tensors["bias"] * math.nan}), None
    ),
    "other types": lambda was, facts: InFlight(
        state(was.current, tensors=was.current.tensors | {"bias": was.current.tensors["bias"].double()}), None
    ),
    "another momentum": lambda was, facts: InFlight(state(was.current, momentum=was.current.momentum[:-1]), None),
    "another generator": lambda was, facts: InFlight(
        state(was.current, generator=torch.full_like(was.current.generator, 255)), None
    ),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("sealed", [False, True])
def test_a_forged_unfinished_step_begins_anew(
    unfinished: Path, models: Models, caplog: pytest.LogCaptureFixture, change: Any, sealed: bool
) -> None:
    forged(unfinished, change, sealed)
    told: list[Plan] = []
    learn(unfinished, models.third, tell=told.append)
    assert [plan.resumed for plan in told] == [False]
    assert [record for record in caplog.records if "starts anew" in record.getMessage()]


@pytest.mark.parametrize("sealed", [False, True])
def test_an_unfinished_step_goes_on_only_with_its_seal(unfinished: Path, models: Models, sealed: bool) -> None:
    forged(unfinished, lambda was, facts: was, sealed)
    told: list[Plan] = []
    learn(unfinished, models.third, tell=told.append)
    assert [plan.resumed for plan in told] == [sealed]


def test_an_unfinished_step_of_somebody_else_begins_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unfinished: Path, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    told: list[Plan] = []
    user_key.sealed(b"")  # this user has a key too
    learn(unfinished, models.third, tell=told.append)
    assert [plan.resumed for plan in told] == [False]
    assert "another user or on another computer" in caplog.text


@pytest.mark.parametrize("seal", ["é", "\udc80"], ids=ascii)
def test_a_seal_of_any_letters_is_refused_as_others_are(unfinished: Path, seal: str) -> None:
    file = unfinished / ".learning"
    written = file.read_bytes()
    header = json.loads(written[8 : 8 + int.from_bytes(written[:8], "little")])
    tensors = written[8 + int.from_bytes(written[:8], "little") :]
    header["__metadata__"]["seal"] = seal
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + tensors)
    with pytest.raises(ValueError, match="another user or on another computer"):
        resume.read(file)


def test_the_key_is_the_users_alone_and_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with pytest.raises(OSError):
        user_key.is_sealed(b"x", "")
    seal = user_key.sealed(b"x")
    key = tmp_path / "state" / "treering" / "key"
    assert user_key.place() == key
    assert (key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert user_key.is_sealed(b"x", seal)
    assert not user_key.is_sealed(b"y", seal)
    assert [file.name for file in key.parent.iterdir()] == ["key"]
    key.write_bytes(b"short")
    with pytest.raises(OSError):
        user_key.sealed(b"x")


def test_without_a_place_for_the_key_a_step_is_learnt_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(photos, "SAVE_EVERY", 0.0)
    learn(tmp_path / "model", models.first)
    assert "begins anew" in caplog.text
    assert Learner.load(tmp_path / "model", device="cpu").classes_.tolist() == ["cat", "dog"]


@pytest.mark.parametrize("what", ["empty", "folder", "pipe", "link", "holes"])
def test_an_unfinished_step_that_is_no_file_does_not_keep_a_model_from_learning(
    path: Path, models: Models, outside: Path, what: str
) -> None:
    place = path / ".learning"
    made: dict[str, Callable[[], Any]] = {
        "empty": place.touch, "pipe": lambda: os.mkfifo(place), "folder": place.mkdir,
        "link": lambda: place.symlink_to(outside / "precious.txt"),
        "holes": lambda: (place.touch(), os.truncate(place, 2**42)),
    }  # fmt: skip
    made[what]()
    before = content(outside)
    done = command("learn", path, models.third, "--device", "cpu")
    assert content(outside) == before
    assert done.code == 0, done
    assert "Traceback" not in done.err


# Privacy


def test_photos_in_a_new_folder_are_the_owners_alone(tmp_path: Path, models: Models) -> None:
    learn(tmp_path / "model", models.first)
    for around in ("memory", "held-out"):
        for item in [tmp_path / "model" / around, *(tmp_path / "model" / around).rglob("*")]:
            assert item.stat().st_mode & 0o777 == (0o700 if item.is_dir() else 0o600)


def test_a_folder_that_others_may_read_stays_so(path: Path, models: Models) -> None:
    for item in [path, *path.rglob("*")]:
        item.chmod(0o755 if item.is_dir() else 0o644)
    before = os.umask(0o022)
    try:
        learn(path, models.third)
    finally:
        os.umask(before)
    assert {item.stat().st_mode & 0o777 for item in (path / "memory").rglob("*.png")} == {0o644}


# Checking and repairing


def test_a_whole_model_is_whole_and_nothing_is_changed(path: Path) -> None:
    before = content(path)
    done = command("check", path)
    assert (done.code, done.err) == (0, "")
    assert "is whole" in done.out
    assert content(path) == before
    assert Learner.load(path, device="cpu", check=True).classes_.tolist() == ["cat", "dog", "owl"]


@pytest.mark.parametrize("what", ["manifest.json", "weights", "history", "exemplar"])
def test_repairing_goes_back_to_the_last_whole_version(path: Path, models: Models, tmp_path: Path, what: str) -> None:
    shutil.copytree(path, tmp_path / "undone")
    model_folder.undo(tmp_path / "undone", examine)
    current = {entry.name for entry in manifests.of(path).files} - {
        entry.name for entry in manifests.of(tmp_path / "undone").files
    }
    place = place_of(path, what)
    if what == "exemplar":
        place = path / next(name for name in sorted(current) if name.endswith(".png"))
    place.write_bytes(b"damaged")
    done = command("check", path)
    assert done.code == 1
    assert str(place) in done.out
    assert "is broken" in done.out
    again = command("check", path, "--repair")
    assert (again.code, again.err) == (0, ""), again
    assert model_state(path) == model_state(tmp_path / "undone")
    if what != "manifest.json":
        assert content(path) == content(tmp_path / "undone")


def test_a_damaged_earlier_version_is_told_and_the_model_answers(path: Path, models: Models) -> None:
    earlier = manifest_of(path, "previous/0001.json")["files"]["weights"]["name"]
    (path / earlier).unlink()
    done = command("check", path)
    assert done.code == 1
    assert "undo cannot go back" in done.out
    with pytest.raises(TreeringError, match="is missing"):
        Learner.load(path, device="cpu", check=True)
    assert command("predict", path, models.first / "cat").code == 0


def test_leftovers_are_counted_and_removed_and_what_is_foreign_stays(path: Path) -> None:
    left = [f".tmp-{'c' * 32}", "weights-0123456789ab.safetensors", "memory/0000-cat/0099-0123456789ab.png"]
    for name in left:
        (path / name).write_bytes(b"x" * 1000)
    (path / "thesis.tex").write_text("mine")
    done = command("check", path)
    assert done.code == 0
    assert "Left over: 3 files, 0.0 MB" in done.out
    assert "thesis.tex" in done.out
    assert command("check", path, "--repair").code == 0
    assert not [name for name in left if (path / name).exists()]
    assert (path / "thesis.tex").read_text() == "mine"


def test_no_more_than_a_hundred_problems_of_a_version_are_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = manifest_of(path)
    manifest["files"]["memory"][0] = [
        {"name": f"memory/0000-cat/{rank:04d}-{'0' * 12}.png", "sha256": "0" * 64} for rank in range(500)
    ]
    reseal(path, manifest)
    looked_at = []
    monkeypatch.setattr(
        Folder, "digest", lambda folder, name, most: looked_at.append(name) or Folder.read(folder, name, 0)
    )
    problems = checks.check(path, examine).problems
    assert len(problems) == 101
    assert "more problems" in problems[-1]
    assert len(looked_at) < 300


@pytest.mark.parametrize("why", ["newer format", "package", "unreadable"])
def test_a_version_that_cannot_be_judged_is_not_repaired_away(
    path: Path, models: Models, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = manifest_of(path)
    if why == "newer format":
        reseal(path, manifest | {"format_version": 2})
    elif why == "package":
        manifest["recipe"]["backbone"] = "efficientnet-lite0"
        reseal(path, manifest)
        monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    else:
        read = Folder.read

        def refuse(self: Folder, name: str, most: int) -> bytes:
            if name == manifest["files"]["history"]["name"]:
                raise PermissionError(13, "Permission denied")
            return read(self, name, most)

        monkeypatch.setattr(Folder, "read", refuse)
    shutil.copytree(models.base, path.parent / "other")
    before = content(path)
    found = checks.check(path, examine)
    assert [version.unjudged for version in found.versions] == [True, False]
    assert not found.leftovers
    with pytest.raises(TreeringError, match="may be whole, so nothing is repaired"):
        checks.repair(path, examine)
    if why == "newer format":
        with pytest.raises(TreeringError, match="newer treering"):
            Learner.load(path.parent / "other", device="cpu").save(path)
    assert content(path) == before


def test_what_cannot_be_repaired_stays_as_it_is(path: Path) -> None:
    for file in (path / "manifest.json", path / "previous" / "0001.json"):
        file.write_bytes(b"{")
    before = content(path)
    command("check", path, "--repair").refused("no version", "is whole")
    assert content(path) == before


# Full disks


def test_an_unfinished_step_gives_way_to_the_model_that_it_leads_to(
    monkeypatch: pytest.MonkeyPatch, unfinished: Path, models: Models
) -> None:
    """The disk has no room for anything new as long as the unfinished step is there."""
    write, whole = Folder.write, unfinished.parent / "whole"
    shutil.copytree(unfinished, whole)
    learn(whole, models.third)

    def full(folder: Folder, name: str, content: bytes, flushed: bool = True) -> None:
        if name != names.LEARNING and folder.exists(names.LEARNING):
            raise OSError(28, os.strerror(28))
        write(folder, name, content, flushed)

    monkeypatch.setattr(Folder, "write", full)
    learn(unfinished, models.third)
    assert model_state(unfinished) == model_state(whole)
    assert not (unfinished / ".learning").exists()


# What a small folder may cost, and what takes its place while it is written


def test_sums_that_are_of_no_images_are_refused_and_are_not_gone_back_to(tmp_path: Path, models: Models) -> None:
    path = tmp_path / "closed"
    changes = ["method=closed-form", "augmentation.kind=none", "run.image_size=20"]
    photos.learn(path, models.first, backbone="small", memory=4, changes=changes, device="cpu")
    weights = safetensors.torch.load(place_of(path, "weights").read_bytes())
    features = weights["statistics.sums"].shape[1]
    rows, columns = torch.triu_indices(features, features)
    weights["statistics.gram"] = torch.where(rows == columns, -1.5, 0.0).double()
    weights["statistics.sums"] = torch.zeros_like(weights["statistics.sums"])
    put(path, "weights", safetensors.torch.save(weights))
    all_refused(path, models, "statistics.gram")


def test_black_images_that_would_take_gigabytes_are_refused(
    path: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    Learner.load(path, device="cpu")
    monkeypatch.setattr(model_folder, "ALWAYS_HELD", 20 * 20 * 3)
    monkeypatch.setattr(model_folder, "MOST_HELD", 0)
    with pytest.raises(TreeringError, match=r"images that would take .* bytes, far more than their files"):
        Learner.load(path, device="cpu")


@pytest.mark.parametrize("kind", ["memory", "held_out"])
def test_an_image_that_is_listed_twice_is_refused(path: Path, models: Models, kind: str) -> None:
    manifest = manifest_of(path)
    ranked = next(ranked for ranked in manifest["files"][kind] if ranked)
    ranked.append(ranked[-1])
    reseal(path, manifest)
    all_refused(path, models, "manifest.json describes no model", f"files.{kind}[", "another rank")


def test_images_of_one_content_count_once_whatever_their_names(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = manifest_of(path)
    (path / manifest["files"]["memory"][0][0]["name"]).replace(path / "image")
    entry = dict(manifest["files"]["memory"][0][0])
    begin, _, end = entry["name"].rpartition("/0000-")
    copies = [entry | {"name": f"{begin}/{rank:04d}-{end}"} for rank in range(300)]
    for copy in copies:
        (path / copy["name"]).unlink(missing_ok=True)
        (path / copy["name"]).hardlink_to(path / "image")
    manifest["files"]["memory"][0] = copies
    reseal(path, manifest)
    monkeypatch.setattr(model_folder, "ALWAYS_HELD", 20 * 20 * 3)
    monkeypatch.setattr(model_folder, "MOST_HELD", 8)
    with pytest.raises(TreeringError, match=r"images that would take .* bytes, far more than their files"):
        Learner.load(path, device="cpu")


HOLLOW, WHOLE = "weights-0123456789ab.safetensors", "weights-000000000000.safetensors"


def test_what_a_file_holds_is_counted_without_its_holes(tmp_path: Path) -> None:
    with (tmp_path / HOLLOW).open("wb") as stream:
        for place in (0, 2**21):
            stream.seek(place)
            stream.write(b"x" * 4096)
        stream.truncate(2**23)
    (tmp_path / WHOLE).write_bytes(bytes(2**21))
    with Folder(tmp_path) as folder:
        assert folder.held(WHOLE) == 2**21
        assert folder.held(HOLLOW) in (*range(8192, 2**19), 2**23)  # some file systems do not tell of holes


def test_black_images_that_are_holes_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pixels of a black image that is not compressed may be a hole in its file, so many of them take no disk."""
    monkeypatch.setattr(model_folder, "ALWAYS_HELD", 20 * 20 * 3)
    Learner.load(path, device="cpu")
    monkeypatch.setattr(Folder, "held", lambda folder, name: 1)
    with pytest.raises(TreeringError, match=r"images that would take .* bytes, far more than their files"):
        Learner.load(path, device="cpu")


def test_a_weights_file_that_is_mostly_holes_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = place_of(path, "weights")
    content = weights.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    hollow = put(path, "weights", content[:start] + bytes(len(content) - start))
    Learner.load(path, device="cpu")
    with hollow.open("r+b") as stream:
        stream.truncate(start)
        stream.truncate(len(content))
    if not 0 < 512 * hollow.stat().st_blocks < len(content) / 2:
        pytest.skip("this file system stores holes")
    monkeypatch.setattr(opened, "LARGE", 1000)
    with pytest.raises(TreeringError, match=r"weights-.* is mostly holes"):
        Learner.load(path, device="cpu")


@pytest.mark.parametrize(("method", "empty"), [("eeil", "first"), ("eeil", "all"), ("icarl", "last")])
def test_a_model_that_needs_exemplars_of_each_class_has_them(
    path: Path, models: Models, method: str, empty: str
) -> None:
    manifest = manifest_of(path)
    memory = manifest["files"]["memory"]
    for index in {"first": [0], "all": range(len(memory)), "last": [-1]}[empty]:
        memory[index] = []
    manifest["recipe"]["method"] = method
    reseal(path, manifest)
    all_refused(path, models, "manifest.json describes no model", "files.memory has no exemplar of", method)


@pytest.mark.parametrize("method", ["joint", "closed-form", "gem"])
def test_a_model_that_can_do_without_exemplars_is_read(tmp_path: Path, models: Models, method: str) -> None:
    changes = ["memory.kind=per-step", "memory.selection=random"] if method == "gem" else []
    learn(
        tmp_path / "model", models.first, memory=1 if changes else 0, changes=[*CHANGES, f"method={method}", *changes]
    )
    learn(tmp_path / "model", models.second)
    memory = Learner.load(tmp_path / "model", device="cpu").learnt_model().method.memory
    assert method == "joint" or not all(len(memory.exemplars.get(column, ())) for column in range(3))


def test_a_model_has_a_bounded_number_of_classes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MOST_CLASSES", 2)
    with pytest.raises(TreeringError, match="classes must be from 1 to 2 classes, not 3"):
        Learner.load(path, device="cpu")


def test_a_history_of_values_without_end_is_refused(path: Path, models: Models) -> None:
    lines = place_of(path, "history").read_bytes().splitlines(keepends=True)
    with_values = [line.rstrip()[:-1] + b', "x": [' + b"[]," * 3_000_000 + b"[]]}\n" for line in lines]
    put(path, "history", b"".join(with_values))
    all_refused(path, models, "history-", "values")


def test_what_later_versions_tell_of_a_step_is_not_held(path: Path) -> None:
    lines = place_of(path, "history").read_bytes().splitlines(keepends=True)
    put(path, "history", b"".join(line.rstrip()[:-1] + b', "x": [1, 2]}\n' for line in lines))
    assert all("x" not in record for record in Learner.load(path, device="cpu").history_)


def test_a_class_of_endless_name_is_refused(path: Path, models: Models) -> None:
    manifest = manifest_of(path)
    manifest["classes"][0] = "x" * 1001
    reseal(path, manifest)
    all_refused(path, models, "classes must have at most 1,000 letters each")


def test_more_earlier_versions_than_a_model_has_are_refused(path: Path) -> None:
    content = (path / "previous" / "0001.json").read_bytes()
    for number in range(2, 103):
        (path / "previous" / f"{number:04d}.json").write_bytes(content)
    done = command("undo", path)
    done.refused("earlier versions", "100 at most")
    checked = command("check", path)
    assert (checked.code, "100 at most" in checked.out) == (1, True)


def test_a_version_of_the_highest_number_does_not_keep_a_model_from_learning(path: Path, models: Models) -> None:
    (path / "previous" / "0001.json").rename(path / "previous" / "999999999.json")
    assert command("learn", path, models.third, "--device", "cpu").code == 0
    assert command("undo", path).code == 0
    assert "eel" not in Learner.load(path, device="cpu").classes_


def test_undo_keeps_the_model_if_the_version_before_cannot_be_used(path: Path, models: Models) -> None:
    manifest = manifest_of(path, "previous/0001.json")
    manifest["recipe"]["backbone"] = "resnet18"
    reseal(path, manifest, "previous/0001.json")
    before = content(path)
    command("undo", path).refused("do not fit the backbone")
    assert content(path) == before


def test_files_of_other_programs_stay(path: Path) -> None:
    (path / ".tmp-notes").write_text("mine")
    (path / f".tmp-{'a' * 32}").write_text("of a killed writer")
    assert command("check", path, "--repair").code == 0
    assert (path / ".tmp-notes").exists()
    assert not (path / f".tmp-{'a' * 32}").exists()


def test_repairing_makes_no_folder(tmp_path: Path) -> None:
    command("check", tmp_path / "a" / "b", "--repair").refused("does not exist")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_takes_the_place_of_the_model_is_not_written_to(
    path: Path, models: Models, outside: Path
) -> None:
    state, moved, before = model_state(path), path.with_name("moved"), content(outside)

    def swap(plan: Plan) -> None:
        path.rename(moved)
        path.symlink_to(outside)

    photos.learn(path, models.third, device="cpu", tell=swap)
    assert content(outside) == before
    assert model_state(moved) != state
    assert "eel" in Learner.load(moved, device="cpu").classes_


def test_a_file_whose_flush_failed_is_written_anew(
    tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error the system may call unwritten content written, so a second flush proves nothing."""
    learner, written = Learner.load(models.base, device="cpu"), []
    flush, write = Folder.flush, Folder.write

    def fails(folder: Folder, names: Any) -> None:
        raise OSError(5, os.strerror(5))

    def noted(folder: Folder, name: str, content: bytes, flushed: bool = True) -> None:
        written.append(name)
        write(folder, name, content, flushed)

    monkeypatch.setattr(Folder, "flush", fails)
    with pytest.raises(TreeringError):
        learner.save(tmp_path / "new")
    monkeypatch.setattr(Folder, "flush", flush)
    monkeypatch.setattr(Folder, "write", noted)
    learner.save(tmp_path / "new")
    assert {entry.name for entry in manifests.of(tmp_path / "new").files} <= set(written)


# All together


ODD_PICTURES = """
import random
from hostile_models import odd_png
from treering.storage import pictures
decoded = refused = 0
for number in range(2000):
    draw = random.Random(number)
    shape = draw.choice([1, 2, 3, 4]), draw.choice([1, 2, 20]), draw.choice([1, 20, 64])
    file = odd_png(draw, shape)
    try:
        pictures.require_decodable(file, shape)
    except ValueError:
        refused += 1
        continue
    assert pictures.decode(file, shape).shape == shape
    decoded += 1
assert min(decoded, refused) > 300, (decoded, refused)
"""


def test_a_picture_that_is_let_pass_can_be_decoded() -> None:
    benchmarks = str(Path(__file__).parent.parent / "benchmarks")
    run = run_python(f"import sys; sys.path.insert(0, {benchmarks!r})\n" + ODD_PICTURES)
    assert run.returncode == 0, run.stderr


FUZZ = """
import sys
from pathlib import Path
import fuzz_models

records = fuzz_models.fuzz(60, 7, Path(sys.argv[1]), workers=2)
wrong = [record for record in records if record["wrong"]]
sys.stdout.write(f"{len(records)} {wrong}")
"""


def test_sixty_folders_changed_at_random_do_no_harm(tmp_path: Path) -> None:
    benchmarks = str(Path(__file__).parents[1] / "benchmarks")
    run = run_python(f"import sys; sys.path.insert(0, {benchmarks!r})\n" + FUZZ, tmp_path / "work")
    assert run.stdout == "60 []", (run.stdout, run.stderr)
