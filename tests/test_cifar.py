"""CIFAR-100 as it is published: what is read, what is refused, and what a download leaves behind.

The folders here are tiny but written byte by byte in the published format, the pickles of Python 2 with NumPy 1.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import http.server
import io
import os
import pickle
import re
import resource
import signal
import socket
import ssl
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run_python

from treering import TreeringError, data
from treering.data import cifar

SUPERCLASS = {
    "apple": "fruit_and_vegetables",
    "bicycle": "vehicles_1",
    "bus": "vehicles_1",
    "crab": "non-insect_invertebrates",
    "lawn_mower": "vehicles_2",
    "motorcycle": "vehicles_1",
    "orange": "fruit_and_vegetables",
    "pickup_truck": "vehicles_1",
    "rocket": "vehicles_2",
    "snail": "non-insect_invertebrates",
    "streetcar": "vehicles_2",
    "tank": "vehicles_2",
    "tractor": "vehicles_2",
    "train": "vehicles_1",
}
"""The classes of the tiny folder, by name as in the published one, each with its true superclass."""
NAMES = sorted(SUPERCLASS)
COARSE = ["fruit_and_vegetables", "non-insect_invertebrates", "vehicles_1", "vehicles_2"]
VEHICLES = [name for name in NAMES if SUPERCLASS[name].startswith("vehicles")]


# --- A folder in the published format ---------------------------------------------------------------------------------


def _text(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value


def _python2(value: Any) -> bytes:
    """The opcodes Python 2 wrote for `value`: its str is bytes here, and NumPy's modules have their old names."""
    if isinstance(value, dict):
        return b"}(" + b"".join(_text(key) + _python2(item) for key, item in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_python2, value)) + b"e"
    if isinstance(value, np.ndarray):
        shape = _python2(value.shape[0]) + _python2(value.shape[1]) + b"\x86"
        uint8 = (
            b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            if value.dtype == np.uint8
            else b"cnumpy\ndtype\nU\x02f8K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        )
        empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        return empty + b"(K\x01" + shape + uint8 + b"\x89" + _text(value.tobytes()) + b"tb"
    return _text(value) if isinstance(value, bytes) else b"J" + struct.pack("<i", value)


def python2_pickle(value: Any) -> bytes:
    return b"\x80\x02" + _python2(value) + b"."


def pixel(label: int, index: int, channel: int, row: int, column: int) -> int:
    """What image `index` of a class holds at a place: a colour of the class and something that no two places share."""
    return (40 * (label + 1) * (channel + 2) + 7 * index + row + 3 * column) % 256


def batch(labels: list[int]) -> dict[bytes, Any]:
    """A file of images; the images of a class are numbered as they come."""
    seen: dict[int, int] = {}
    rows = np.zeros((len(labels), 3072), dtype=np.uint8)
    for number, label in enumerate(labels):
        index = seen[label] = seen.get(label, -1) + 1
        for channel in range(3):
            for row in range(32):
                for column in range(32):
                    rows[number, channel * 1024 + row * 32 + column] = pixel(label, index, channel, row, column)
    return {
        b"filenames": [b"%s_%d.png" % (NAMES[label].encode(), number) for number, label in enumerate(labels)],
        b"batch_label": b"training batch 1 of 1",
        b"fine_labels": labels,
        b"coarse_labels": [COARSE.index(SUPERCLASS[NAMES[label]]) for label in labels],
        b"data": rows,
    }


def labels_of(images_per_class: int) -> list[int]:
    return np.random.RandomState(0).permutation(list(range(len(NAMES))) * images_per_class).tolist()


def published_files(train: int = 3, test: int = 2) -> dict[str, bytes]:
    """The content of each file, with so many images per class."""
    meta = {
        b"fine_label_names": [name.encode() for name in NAMES],
        b"coarse_label_names": [name.encode() for name in COARSE],
    }
    return {
        "train": python2_pickle(batch(labels_of(train))),
        "test": python2_pickle(batch(labels_of(test)[::-1])),
        "meta": python2_pickle(meta),
    }


FILES = published_files()


def write_cifar(folder: Path, files: dict[str, bytes] = FILES) -> Path:
    """Write cifar-100-python inside `folder`; returns `folder`."""
    inside = folder / cifar.FOLDER
    inside.mkdir(parents=True)
    for name, content in files.items():
        (inside / name).write_bytes(content)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_cifar(tmp_path / "data")


# --- Reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["the folder itself", "its parent"])
def test_pixels_labels_and_names_are_read_from_the_folder_or_its_parent(folder: Path, given: str) -> None:
    dataset = cifar.load(folder / cifar.FOLDER if given == "the folder itself" else folder)
    assert dataset.name == "cifar100"
    assert dataset.class_names == tuple(NAMES)
    train, test = labels_of(3), labels_of(2)[::-1]
    for images, labels, expected in (
        (dataset.train_images, dataset.train_labels, train),
        (dataset.test_images, dataset.test_labels, test),
    ):
        assert labels.tolist() == expected
        assert labels.dtype == np.int64
        assert (images.shape, images.dtype) == ((len(expected), 32, 32, 3), np.uint8)
    seen: dict[int, int] = {}
    for image, label in zip(dataset.train_images, train, strict=True):
        index = seen[label] = seen.get(label, -1) + 1
        for row, column in ((0, 0), (0, 31), (31, 0), (5, 17)):
            assert image[row, column].tolist() == [pixel(label, index, channel, row, column) for channel in range(3)]


def test_every_class_has_its_superclass(folder: Path) -> None:
    assert cifar.superclasses(folder) == SUPERCLASS
    assert cifar.superclasses(folder / cifar.FOLDER) == SUPERCLASS


@pytest.mark.parametrize("given", ["the folder itself", "its parent"])
def test_the_vehicles_are_numbered_from_0_to_9_in_the_order_of_their_labels(folder: Path, given: str) -> None:
    full = cifar.load(folder)
    vehicles = cifar.load_vehicles(folder / cifar.FOLDER if given == "the folder itself" else folder)
    assert vehicles.name == "cifar100-vehicles"
    assert vehicles.class_names == tuple(VEHICLES)
    assert len(VEHICLES) == 10
    for part in ("train", "test"):
        pairs = [
            (image, VEHICLES.index(NAMES[label]))
            for image, label in zip(getattr(full, f"{part}_images"), getattr(full, f"{part}_labels"), strict=True)
            if NAMES[label] in VEHICLES
        ]
        assert getattr(vehicles, f"{part}_labels").tolist() == [number for _, number in pairs]
        assert getattr(vehicles, f"{part}_labels").dtype == np.int64
        assert np.array_equal(getattr(vehicles, f"{part}_images"), np.stack([image for image, _ in pairs]))


def test_the_datasets_are_found_by_name(folder: Path) -> None:
    assert data.load("cifar100", folder).class_names == tuple(NAMES)
    assert data.load("cifar100-vehicles", folder).class_names == tuple(VEHICLES)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("cifar10", "cifar100"), ("CIFAR100-vehicle", "cifar100-vehicles"), ("digit", "digits")],
)
def test_an_unknown_dataset_is_an_error_with_the_nearest_name(tmp_path: Path, name: str, nearest: str) -> None:
    with pytest.raises(TreeringError, match=rf"{name}.*did you mean {nearest}\?; images of your own go into a folder"):
        data.load(name, tmp_path)


def test_a_missing_dataset_of_the_paper_is_not_taken_for_another(tmp_path: Path) -> None:
    with pytest.raises(TreeringError, match="no dataset imagenet100; images of your own go into a folder"):
        data.load("imagenet100", tmp_path)


def test_a_dataset_with_no_near_name_is_answered_with_all_names(tmp_path: Path) -> None:
    with pytest.raises(TreeringError, match=r"xyz.*digits, cifar100, cifar100-vehicles"):
        data.load("xyz", tmp_path)


@pytest.mark.parametrize("name", ["cifar100", "cifar100-vehicles"])
def test_what_is_missing_is_told_before_it_is_loaded(folder: Path, tmp_path: Path, name: str) -> None:
    assert data.missing(name, folder) is None
    assert data.missing(name, folder / cifar.FOLDER) is None
    said = data.missing(name, tmp_path)
    assert said is not None
    assert f"{name} needs {tmp_path / cifar.FOLDER}" in said
    assert "--download" in said


def test_a_missing_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    for load in (cifar.load, cifar.load_vehicles, cifar.superclasses):
        with pytest.raises(TreeringError) as error:
            load(tmp_path / "nowhere")
        assert str(tmp_path / "nowhere") in str(error.value)
        assert cifar.FOLDER in str(error.value)
        assert not (tmp_path / "nowhere").exists()


# --- Files that are not what they should be ---------------------------------------------------------------------------


class Calls:
    """A pickle of this calls `function` with `arguments`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.arguments


@pytest.mark.parametrize("file", ["train", "test", "meta"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_asks_for_code_is_refused_and_nothing_runs(tmp_path: Path, file: str, protocol: int) -> None:
    trace = tmp_path / "trace"
    for number, call in enumerate(
        (
            Calls(os.system, f"touch '{trace}'"),
            Calls(os.mkdir, str(trace)),
            Calls(eval, f"open({str(trace)!r}, 'w').close()"),
            Calls(np.save, str(trace), [1]),
            Calls(np.dtype(np.uint8).newbyteorder, "<"),
        )
    ):
        evil = pickle.dumps({b"data": call}, protocol=protocol)
        where = write_cifar(tmp_path / str(number), FILES | {file: evil})
        with pytest.raises(TreeringError, match="it asks for") as error:
            cifar.load(where)
        assert str(where / cifar.FOLDER / file) in str(error.value)
        assert "\n" not in str(error.value)
        assert sorted(path.name for path in tmp_path.iterdir()) == [str(past) for past in range(number + 1)]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("numpy.linalg", "dtype"),
        ("numpy.f2py.__main__", "dtype"),
        ("numpy.core.multiarray", "ndarray"),
        ("numpy", "_reconstruct"),
        ("numpy", "encode"),
        ("_codecs", "dtype"),
        ("_codecs.other", "encode"),
    ],
)
def test_a_name_is_allowed_in_its_own_module_only(tmp_path: Path, module: str, name: str) -> None:
    where = write_cifar(tmp_path, FILES | {"train": b"\x80\x02c%s\n%s\n." % (module.encode(), name.encode())})
    with pytest.raises(TreeringError, match=rf"it asks for {module}\.{name}"):
        cifar.load(where)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02K\x01r\xff\xff\xff\x7f.",  # Python's own unpickler takes 34 GB to remember the 1 as number 2^31
        b"(dp2000000000\n.",
        b"\x80\x05\x96\xff\xff\xff\xff\x10\x00\x00\x00.",  # a bytearray of 73 GB
        b"\x80\x02cnumpy\nndarray\n(J\xff\xff\xff\x7ftR.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nJ\xff\xff\xff\x7f\x85U\x01b\x87R.",
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.",
        b"\x80\x02cnumpy\ndtype\nU\x01OK\x00K\x01\x87R.",
    ],
)
def test_a_pickle_that_asks_for_much_memory_or_other_numbers_is_refused(tmp_path: Path, content: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    where = write_cifar(tmp_path, FILES | {"train": content})
    with pytest.raises(TreeringError, match="is not a file of CIFAR-100"):
        cifar.load(where)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def nested(times: int = 60) -> bytes:
    """Instructions for a tuple of two tuples of two tuples and so on: going through it takes 2 ** times steps."""
    return b")q\0" + b"".join(b"h%c\x86q%c" % (number, number + 1) for number in range(times))


def alike(count: int) -> bytes:
    """Instructions for numbers that a set compares each with each, since it files them all under the same hash."""
    return b"".join(b"\x8a\x0b" + (number * (2**61 - 1)).to_bytes(11, "little") for number in range(count))


SLOW = {
    "a nested tuple as a key": b"}" + nested() + b"K\x01s.",
    "a nested tuple as one of many keys": b"}(" + nested() + b"K\x01u.",
    "a nested tuple as a key from the start": b"(" + nested() + b"K\x01d.",
    "a nested tuple as an encoding": b"c_codecs\nencode\nX\1\0\0\0a" + nested() + b"\x86R.",
    "a nested tuple as a name": nested() + b"\x8c\1a\x93.",
    "a nested tuple as a label": b"}(U\x0bfine_labels](" + nested() + b"eU\x0dcoarse_labels](K\0eu.",
    "a deep tuple as a key": b"})" + b"\x85" * 200_000 + b"K\x01s.",
    "numbers as keys": b"}(" + alike(50_000) + b"u.",
    "numbers as labels": b"}(U\x0bfine_labels](" + alike(50_000) + b"eU\x0dcoarse_labels](" + b"K\0" * 50_000 + b"eu.",
    "numbers of values": b"}" + b"".join(b"p%d\n" % (number * (2**61 - 1)) for number in range(50_000)) + b".",
}
"""Pickles that Python's own unpickler, or a set of what is in them, takes hours or more than the stack for."""


def test_no_pickle_takes_long_or_all_of_the_stack(tmp_path: Path) -> None:
    for number, content in enumerate(SLOW.values()):
        write_cifar(tmp_path / str(number), FILES | {"train": b"\x80\x02" + content})
    script = """
import resource, sys
from pathlib import Path
from treering.data import cifar

resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
for number in range(int(sys.argv[2])):
    try:
        cifar.superclasses(Path(sys.argv[1], str(number)))
    except cifar.TreeringError as error:
        print(error)
"""
    done = run_python(script, tmp_path, len(SLOW))
    assert done.returncode == 0, done
    said = done.stdout.splitlines()
    assert len(said) == len(SLOW)
    for number, line in enumerate(said):
        assert line.startswith(f"{tmp_path / str(number) / cifar.FOLDER / 'train'} is not a file of CIFAR-100 ("), line


def test_bytes_that_python_3_wrote_for_python_2_are_read_once_and_not_again_and_again(tmp_path: Path) -> None:
    meta = pickle.loads(FILES["meta"], encoding="bytes")
    assert cifar.superclasses(write_cifar(tmp_path / "two", FILES | {"meta": pickle.dumps(meta, 2)})) == SUPERCLASS
    text = b"X" + struct.pack("<I", 2**20) + b"a" * 2**20
    often = b"(c_codecs\nencode\nq\0" + text + b"X\6\0\0\0latin1\x86q\1R" + b"h\0h\1R" * 1000 + b"l."
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TreeringError, match="it becomes larger than it is"):
        cifar.load(write_cifar(tmp_path / "often", FILES | {"meta": b"\x80\x02" + often}))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_the_files_may_not_be_links_but_the_folder_may(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder / cifar.FOLDER)
    assert cifar.superclasses(tmp_path / "link") == SUPERCLASS
    meta = folder / cifar.FOLDER / "meta"
    meta.rename(tmp_path / "meta")
    meta.symlink_to(tmp_path / "meta")
    with pytest.raises(TreeringError, match=f"^cannot read {re.escape(str(meta))}: meta is a link: remove it$"):
        cifar.superclasses(folder)


@pytest.mark.parametrize("kind", ["link", "strange name", "pipe"])
def test_an_archive_with_other_things_than_the_published_files_is_refused(tmp_path: Path, kind: str) -> None:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz") as archive:
        entry = tarfile.TarInfo(f"{cifar.FOLDER}/{'other' if kind == 'strange name' else 'train'}")
        entry.type = {"link": tarfile.SYMTYPE, "pipe": tarfile.FIFOTYPE}.get(kind, tarfile.REGTYPE)
        entry.linkname = "meta"
        archive.addfile(entry)
    (tmp_path / "archive").write_bytes(memory.getvalue())
    md5 = hashlib.md5(memory.getvalue(), usedforsecurity=False).hexdigest()
    with pytest.raises(TreeringError, match="none of CIFAR-100's files"):
        cifar.fetch(tmp_path / "data", (tmp_path / "archive").as_uri(), md5, pause=0)
    assert contents(tmp_path / "data") == {}


def test_classes_of_this_package_are_refused_too(tmp_path: Path) -> None:
    where = write_cifar(tmp_path, FILES | {"train": pickle.dumps({b"data": TreeringError("x")})})
    with pytest.raises(TreeringError, match=r"it asks for treering.errors.TreeringError"):
        cifar.load(where)


def broken(name: str) -> bytes:
    """A file that is not one of CIFAR-100, in one of many ways."""
    whole = FILES["train"]
    return {
        "empty": b"",
        "first byte": whole[:1],
        "half": whole[: len(whole) // 2],
        "last byte missing": whole[:-1],
        "a web page": b"<!DOCTYPE html>\n<html><body>404</body></html>\n",
        "a text": b"Please sign in to the network first.\n",
        "an archive": b"\x1f\x8b\x08\x00" + bytes(100),
        "a picture": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "zeros": bytes(1000),
        "a number": pickle.dumps(3),
        "a list": pickle.dumps([1, 2]),
        "a call of None": b"N)R.",
        "an unhashable key": b"}(]K\x01u.",
        "a huge length": b"\x80\x04\x8e" + b"\xff" * 8 + b".",
        "an empty dictionary": pickle.dumps({}),
        "CIFAR-10": python2_pickle({b"labels": [1, 2], b"data": np.zeros((2, 3072), dtype=np.uint8)}),
        "images of another size": python2_pickle(batch([0, 1]) | {b"data": np.zeros((2, 784), dtype=np.uint8)}),
        "images that are no bytes": python2_pickle(batch([0, 1]) | {b"data": np.zeros((2, 3072))}),
        "images as a list": python2_pickle(batch([0, 1]) | {b"data": [1, 2, 3]}),
        "more labels than images": python2_pickle(batch([0, 1]) | {b"fine_labels": [0, 1, 2]}),
        "a label beyond the classes": python2_pickle(batch(labels_of(1)) | {b"fine_labels": [*labels_of(1)[1:], 100]}),
        "a negative label": python2_pickle(batch(labels_of(1)) | {b"fine_labels": [*labels_of(1)[1:], -1]}),
        "a class without images": python2_pickle(batch([label for label in labels_of(3) if label])),
    }[name]


UNREADABLE = ("empty", "first byte", "half", "last byte missing", "a web page", "a text", "an archive", "a picture")
UNREADABLE += ("zeros", "a number", "a list", "a call of None", "an unhashable key", "a huge length")
FOREIGN = ("an empty dictionary", "CIFAR-10", "images of another size", "images that are no bytes")
FOREIGN += ("images as a list", "more labels than images", "a label beyond the classes", "a negative label")
FOREIGN += ("a class without images",)


@pytest.mark.parametrize("file", ["train", "test", "meta"])
@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_broken_file_is_one_line_that_names_it(tmp_path: Path, file: str, kind: str) -> None:
    where = write_cifar(tmp_path, FILES | {file: broken(kind)})
    with pytest.raises(TreeringError) as error:
        cifar.load(where)
    assert str(where / cifar.FOLDER / file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_pickle_of_something_else_is_one_line_that_names_it(tmp_path: Path, kind: str) -> None:
    where = write_cifar(tmp_path, FILES | {"train": broken(kind)})
    with pytest.raises(TreeringError) as error:
        cifar.load(where)
    assert str(where / cifar.FOLDER / "train") in str(error.value)
    assert "\n" not in str(error.value)


def test_names_that_are_missing_are_one_line_that_names_the_file(tmp_path: Path) -> None:
    where = write_cifar(tmp_path, FILES | {"meta": FILES["train"]})
    with pytest.raises(TreeringError) as error:
        cifar.load(where)
    assert str(where / cifar.FOLDER / "meta") in str(error.value)


@pytest.mark.parametrize(
    "changed",
    [
        python2_pickle({b"labels": [1, 2], b"data": np.zeros((2, 3072), dtype=np.uint8)}),
        python2_pickle(batch(labels_of(1)) | {b"coarse_labels": [100, *batch(labels_of(1))[b"coarse_labels"][1:]]}),
        python2_pickle(batch(labels_of(1)) | {b"coarse_labels": batch(labels_of(1))[b"coarse_labels"][1:]}),
        python2_pickle(batch(labels_of(1)) | {b"coarse_labels": 3}),
    ],
    ids=["CIFAR-10", "beyond the superclasses", "one missing", "a number"],
)
def test_superclasses_of_another_dataset_are_one_line_that_names_the_file(tmp_path: Path, changed: bytes) -> None:
    where = write_cifar(tmp_path, FILES | {"train": changed})
    with pytest.raises(TreeringError) as error:
        cifar.superclasses(where)
    assert str(where / cifar.FOLDER / "train") in str(error.value)


def test_wherever_a_file_is_cut_off_the_error_is_one_line_that_names_it(folder: Path) -> None:
    meta = folder / cifar.FOLDER / "meta"
    for length in range(len(FILES["meta"])):
        meta.write_bytes(FILES["meta"][:length])
        with pytest.raises(TreeringError) as error:
            cifar.load(folder)
        assert str(meta) in str(error.value)
        assert "\n" not in str(error.value)


# --- Fetching ---------------------------------------------------------------------------------------------------------


def archive_of(files: dict[str, bytes]) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{cifar.FOLDER}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return memory.getvalue()


ARCHIVE = archive_of(FILES)
ARCHIVE_MD5 = hashlib.md5(ARCHIVE, usedforsecurity=False).hexdigest()


class Server:
    """A web server on this machine; the answer to each request is the next of `answers`, the last one for good."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.requests = 0
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = owner.answers[min(owner.requests, len(owner.answers) - 1)]
                owner.requests += 1
                if answer == "hang up":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                if answer == "reset":  # closing with unread data or zero linger sends a reset, not an end
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if answer.isdigit():
                    self.send_error(int(answer))
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(ARCHIVE)))
                self.end_headers()
                body = {"whole": ARCHIVE, "other": bytes(len(ARCHIVE))}.get(answer, ARCHIVE[: len(ARCHIVE) // 2])
                self.wfile.write(body)
                self.wfile.flush()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/{cifar.FOLDER}.tar.gz"

    def __enter__(self) -> Server:
        self.open_before = open_sockets()
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        self.left_open = [left for left in open_sockets() if left not in self.open_before]
        for left in self.left_open:
            os.close(left.detach())


def open_sockets() -> list[socket.socket]:
    """Every socket of this process that holds a file descriptor, also one that waits for the garbage collector."""
    return [thing for thing in gc.get_objects() if type(thing) is socket.socket and thing.fileno() != -1]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, empty folders too."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.glob("**/*")}


WHOLE = {cifar.FOLDER: b""} | {f"{cifar.FOLDER}/{name}": content for name, content in FILES.items()}


def test_the_archive_is_fetched_verified_and_unpacked(tmp_path: Path) -> None:
    with Server("whole") as server:
        cifar.fetch(tmp_path / "new" / "data", server.url, ARCHIVE_MD5, pause=0)
    assert server.requests == 1
    assert contents(tmp_path / "new" / "data") == WHOLE
    assert cifar.load(tmp_path / "new" / "data").class_names == tuple(NAMES)


@pytest.mark.parametrize("trouble", ["cut off", "hang up", "reset", "503", "other"])
def test_a_connection_that_fails_twice_is_tried_a_third_time(tmp_path: Path, trouble: str) -> None:
    with Server(trouble, trouble, "whole") as server:
        cifar.fetch(tmp_path, server.url, ARCHIVE_MD5, pause=0)
    assert server.requests == 3
    assert contents(tmp_path) == WHOLE


@pytest.mark.parametrize("trouble", ["cut off", "hang up", "reset", "404"])
def test_a_connection_that_keeps_failing_is_one_line_and_leaves_nothing(tmp_path: Path, trouble: str) -> None:
    with Server(trouble) as server, pytest.raises(TreeringError) as error:
        cifar.fetch(tmp_path, server.url, ARCHIVE_MD5, pause=0)
    assert server.requests == cifar.ATTEMPTS == 3
    assert server.url in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)
    if trouble == "404":
        assert "Not Found" in str(error.value)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("trouble", ["cut off", "hang up", "reset", "404"])
def test_no_connection_is_left_open(tmp_path: Path, trouble: str) -> None:
    with pytest.raises(TreeringError), Server(trouble) as server:  # which looks while the error is under way
        cifar.fetch(tmp_path, server.url, ARCHIVE_MD5, pause=0)
    assert server.left_open == []


def test_a_refused_connection_is_tried_three_times_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: whoever connects is refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        pauses: list[float] = []
        monkeypatch.setattr(cifar.time, "sleep", pauses.append)
        with pytest.raises(TreeringError, match="refused") as error:
            cifar.fetch(tmp_path, url, ARCHIVE_MD5, pause=0.5)
    assert url in str(error.value)
    assert "\n" not in str(error.value)
    assert pauses == [0.5, 1.0], "longer each time, and none after the last"
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("trouble", [ssl.SSLEOFError(8, "violation of protocol"), OSError(113, "No route to host")])
def test_a_network_that_fails_in_its_own_ways_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: OSError
) -> None:
    tried = []

    class Response(io.BytesIO):
        def read(self, *size: Any) -> bytes:
            tried.append(size)
            raise trouble

    monkeypatch.setattr(cifar.urllib.request, "urlopen", lambda url, timeout: Response())
    with pytest.raises(TreeringError, match=f"^cannot download there .*{trouble.strerror}.*: fetch it elsewhere"):
        cifar.fetch(tmp_path, "there", ARCHIVE_MD5, pause=0)
    assert len(tried) == cifar.ATTEMPTS
    assert contents(tmp_path) == {}


def test_another_archive_is_refused_by_its_md5_and_leaves_nothing(tmp_path: Path) -> None:
    with Server("other") as server, pytest.raises(TreeringError, match="MD5") as error:
        cifar.fetch(tmp_path, server.url, ARCHIVE_MD5, pause=0)
    assert server.url in str(error.value)
    assert contents(tmp_path) == {}
    with Server("whole") as server, pytest.raises(TreeringError, match="MD5"):
        cifar.fetch(tmp_path, server.url, pause=0)  # the MD5 of the published archive, which this is not
    assert contents(tmp_path) == {}


def test_an_archive_that_points_outside_the_folder_writes_nothing_there(tmp_path: Path) -> None:
    evil = archive_of(FILES | {"../../../outside": b"x"})
    (tmp_path / "evil.tar.gz").write_bytes(evil)
    md5 = hashlib.md5(evil, usedforsecurity=False).hexdigest()
    with contextlib.suppress(tarfile.FilterError, TreeringError):
        cifar.fetch(tmp_path / "a" / "data", (tmp_path / "evil.tar.gz").as_uri(), md5, pause=0)
    assert {path.name for path in tmp_path.glob("**/*")} <= {"evil.tar.gz", "a", "data", cifar.FOLDER, *FILES}
    assert not list(tmp_path.glob("**/outside"))


@pytest.mark.parametrize("moment", ["extractall", "replace"])
def test_an_interruption_while_unpacking_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    (tmp_path / "archive").write_bytes(ARCHIVE)

    def interrupt(*args: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tarfile.TarFile if moment == "extractall" else Path, moment, interrupt)
    with pytest.raises(KeyboardInterrupt):
        cifar.fetch(tmp_path / "data", (tmp_path / "archive").as_uri(), ARCHIVE_MD5, pause=0)
    monkeypatch.undo()
    assert contents(tmp_path / "data") == {}


@pytest.mark.parametrize("moment", ["extractall", "replace"])
def test_a_kill_between_download_and_rename_leaves_no_folder_and_the_next_fetch_works(
    tmp_path: Path, moment: str
) -> None:
    """Killed when a file or two are unpacked, or when all are but the folder has not its name yet."""
    (tmp_path / "archive").write_bytes(ARCHIVE)
    script = """
import os, signal, sys, tarfile
from pathlib import Path
from treering.data import cifar

def die(*args, **settings):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[1] == "extractall":
    tarfile.TarFile.utime = die  # called for each file after it is written
else:
    Path.replace = die
cifar.fetch(Path(sys.argv[2]), *sys.argv[3:], pause=0)
"""
    url = (tmp_path / "archive").as_uri()
    killed = run_python(script, moment, tmp_path / "data", url, ARCHIVE_MD5)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "data" / cifar.FOLDER).exists()
    with pytest.raises(TreeringError, match="no cifar-100-python folder"):
        cifar.load(tmp_path / "data")
    cifar.fetch(tmp_path / "data", url, ARCHIVE_MD5, pause=0)
    assert contents(tmp_path / "data") == WHOLE


def test_only_folders_that_nobody_unpacks_to_are_removed(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(ARCHIVE)
    (tmp_path / "precious").mkdir()
    (tmp_path / "data" / ".unpacking-my_notes2").mkdir(parents=True)
    (tmp_path / "data" / ".unpacking-abandond").mkdir()
    (tmp_path / "data" / ".unpacking-elsewher").symlink_to(tmp_path / "precious")
    with cifar._unpacking(tmp_path / "data") as busy:
        cifar.fetch(tmp_path / "data", (tmp_path / "archive").as_uri(), ARCHIVE_MD5, pause=0)
        assert {place.name for place in (tmp_path / "data").iterdir()} == {
            *(cifar.FOLDER, ".unpacking-my_notes2", ".unpacking-elsewher", busy.name)
        }
    assert list((tmp_path / "precious").iterdir()) == []


def test_a_folder_in_which_a_file_is_missing_is_made_whole_or_named(tmp_path: Path) -> None:
    write_cifar(tmp_path / "data", {"train": FILES["train"]})
    (tmp_path / "archive").write_bytes(ARCHIVE)
    try:
        cifar.fetch(tmp_path / "data", (tmp_path / "archive").as_uri(), ARCHIVE_MD5, pause=0)
    except TreeringError as error:
        assert str(tmp_path / "data" / cifar.FOLDER) in str(error)
    else:
        assert contents(tmp_path / "data" / cifar.FOLDER) == FILES


def test_a_data_folder_that_cannot_be_made_is_one_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "archive").write_bytes(ARCHIVE)
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(TreeringError) as error:
            cifar.fetch(folder, (tmp_path / "archive").as_uri(), ARCHIVE_MD5, pause=0)
        assert str(folder) in str(error.value)
        assert "\n" not in str(error.value)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The folders that were fetched into; fetching writes the tiny folder."""
    folders: list[Path] = []

    def fetch(folder: Path) -> None:
        folders.append(folder)
        write_cifar(folder)

    monkeypatch.setattr(cifar, "fetch", fetch)
    return folders


@pytest.mark.parametrize(("name", "classes"), [("cifar100", NAMES), ("cifar100-vehicles", VEHICLES)])
def test_a_download_happens_only_if_it_is_allowed_and_the_folder_is_missing(
    tmp_path: Path, fetched: list[Path], name: str, classes: list[str]
) -> None:
    with pytest.raises(TreeringError, match="--download"):
        data.load(name, tmp_path / "new")
    assert fetched == []
    assert data.load(name, tmp_path / "new", download=True).class_names == tuple(classes)
    assert fetched == [tmp_path / "new"]
    data.load(name, tmp_path / "new", download=True)
    data.load(name, tmp_path / "new" / cifar.FOLDER, download=True)
    data.load(name, tmp_path / "new")
    assert fetched == [tmp_path / "new"]


def test_the_published_archive_is_asked_for_where_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(url: str, timeout: float) -> io.BytesIO:
        asked.append(url)
        assert timeout > 0
        return io.BytesIO(b"not it")

    monkeypatch.setattr(cifar.urllib.request, "urlopen", answer)
    monkeypatch.setattr(cifar.time, "sleep", lambda seconds: None)
    with pytest.raises(TreeringError, match="MD5"):
        cifar.load(tmp_path, download=True)
    assert asked == cifar.ATTEMPTS * ["https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"]
    assert cifar.MD5 == "eb9058c3a382ffc7106e4002c42a8d85"
