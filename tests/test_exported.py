"""An exported file answers for photos as its model does, without PyTorch, and one from a stranger does no harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import examples, tiny_learner
from photo_helper import TINY, command, write_photos
from PIL import Image

from treering import TreeringError, evaluation, export, prediction
from treering.core import augment
from treering.methods import speed
from treering.photos import exported, onnx_file, onnx_process
from treering.prediction import Teller, files_in

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose photos are held larger than the network's input, its exported file, and photos to ask about."""
    folder = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "images_per_second", lambda *arguments: 1000.0)
        photos = write_photos(folder / "photos", {"cat": 6, "dög": 6, "owl": 6})
        assert command("learn", folder / "model", photos, *TINY).code == 0
    assert command("export", folder / "model", folder / "model.onnx").code == 0
    write_photos(folder / "test", {"cat": 5, "owl": 4}, seed=3)
    noise = np.random.RandomState(0).randint(0, 256, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "test" / "large.jpg")
    return folder


def answers(done: Any) -> list[dict[str, Any]]:
    assert (done.code, done.err) == (0, ""), done
    return [json.loads(line) for line in done.out.splitlines()]


def test_the_answers_are_those_of_the_model(place: Path) -> None:
    asked = ("--json", "--top", 3)
    ours = answers(command("predict", place / "model.onnx", place / "test", *asked))
    theirs = answers(command("predict", place / "model", place / "test", *asked, "--device", "cpu"))
    assert len(ours) == len(theirs) == 10
    for one, other in zip(ours, theirs, strict=True):
        assert one["file"] == other["file"]
        assert [guess["class"] for guess in one["predictions"]] == [guess["class"] for guess in other["predictions"]]
        for guess, expected in zip(one["predictions"], other["predictions"], strict=True):
            assert guess["probability"] == pytest.approx(expected["probability"], abs=1e-4)
    assert len({json.dumps(one["predictions"]) for one in ours}) == 10, "the answers depend on the photo"


def test_a_file_of_a_grey_learner_reads_photos_as_grey(place: Path, tmp_path: Path) -> None:
    images, labels = examples({"cat": 5, "dog": 5})
    learner = tiny_learner(backbone="small").partial_fit(images.mean(-1, keepdims=True).astype(np.uint8), labels)
    learner.export(tmp_path / "grey.onnx")
    paths = files_in([place / "test"])
    ours = exported.opened(tmp_path / "grey.onnx").predictions(paths, 2)
    theirs = evaluation.teller(learner.learnt_model()).predictions(paths, 2)
    for one, other in zip(ours, theirs, strict=True):
        assert dict(one.classes) == pytest.approx(dict(other.classes), abs=1e-4)


@pytest.mark.parametrize(("held", "side"), [(256, 224), (20, 16), (16, 24), (7, 7), (50, 1)])
def test_photos_are_resized_as_for_the_model(held: int, side: int) -> None:
    images = np.random.RandomState(held).randint(0, 256, (2, 3, held, held), dtype=np.uint8)
    expected = augment.resize(torch.from_numpy(images), side).float().round().clamp(0, 255).numpy()
    found = exported._resized(images.astype(np.float32), side)
    assert np.abs(found - expected).max() <= 1  # where a value lies between two whole numbers
    assert (found != expected).mean() < 5e-3


def test_pytorch_is_not_loaded(place: Path) -> None:
    asked = ["predict", str(place / "model.onnx"), str(place / "test"), "--top", "1", "--threads", "1"]
    code = f"""
import sys
from treering import cli
sys.argv = ["treering", *{asked!r}]
try:
    cli.main()
except SystemExit as ended:
    assert not ended.code
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 10), done


def test_another_device_is_one_line(place: Path) -> None:
    command("predict", place / "model.onnx", place / "test", "--device", "cuda").refused("an exported file", "CPU")


def test_an_exported_program_is_one_line(place: Path) -> None:
    (place / "model.pt2").write_bytes(b"PK")
    command("predict", place / "model.pt2", place / "test").refused("model.pt2", ".onnx")


def test_without_onnxruntime_it_says_what_to_install(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    command("predict", place / "model.onnx", place / "test").refused("pip install 'treering[export]'")


def test_a_file_of_a_learner_of_oblong_images_says_that_photos_do_not_fit(tmp_path: Path) -> None:
    images, labels = examples({"cat": 5, "dog": 5})
    tiny_learner(backbone="small").partial_fit(images[:, :-2], labels).export(tmp_path / "oblong.onnx")
    with pytest.raises(TreeringError, match="does not say how photos are prepared"):
        exported.opened(tmp_path / "oblong.onnx")


def test_an_export_says_how_photos_are_prepared_only_if_they_are_not_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_learner(backbone="small").partial_fit(*examples({"cat": 5, "dog": 5})).learnt_model()
    for side, there in ((8, True), (7, False)):
        monkeypatch.setattr(export, "LONGEST_SIDE", side)
        assert (exported.KEY in export._facts(model, torch.zeros(1, 3, 8, 8))) == there


@pytest.mark.parametrize(("size", "most"), [(20, 32), (256, 32), (1024, 2), (4096, 1)])
def test_fewer_large_photos_are_read_at_once(
    place: Path, monkeypatch: pytest.MonkeyPatch, size: int, most: int
) -> None:
    asked: list[int] = []

    def read(paths: Any, side: int, channels: int, at_once: int) -> Any:
        asked.append(at_once)
        return iter(())

    monkeypatch.setattr(prediction, "read_in_parts", read)
    assert list(Teller([], size, 3, lambda images: (images, None)).predictions([place], 1)) == []
    assert asked == [most]


def test_many_photos_are_answered_as_each_is(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = files_in([place / "test"])
    whole = list(exported.opened(place / "model.onnx").predictions(paths, 3))
    monkeypatch.setattr(exported, "MOST_PIXELS", 3 * 16 * 16)
    for one, other in zip(whole, exported.opened(place / "model.onnx").predictions(paths, 3), strict=True):
        assert dict(one.classes) == pytest.approx(dict(other.classes), abs=1e-5)


def test_the_process_that_computes_ends_with_what_asks_it(place: Path) -> None:
    asking = onnx_process.Process((place / "model.onnx").read_bytes(), [3, 16, 16], None)
    process = asking._process
    assert process.poll() is None
    del asking
    assert process.returncode is not None


# Files from strangers


def facts(**changes: Any) -> Callable[[Any], None]:
    """What changes or removes a fact of the file, named by its last word."""

    def change(graph: Any) -> None:
        known = {entry.key: entry.value for entry in graph.metadata_props} | {
            {"how": exported.KEY}.get(key, key): value for key, value in changes.items()
        }
        del graph.metadata_props[:]
        for key, value in known.items():
            if value is not None:
                graph.metadata_props.add(key=key, value=value)

    return change


def how(**changes: Any) -> Callable[[Any], None]:
    made = {"channels": 3, "size": 20, "input": 16, "draft": 40} | changes
    return facts(how=json.dumps({key: value for key, value in made.items() if value is not None}))


def outside(graph: Any) -> None:
    weights = next(each for each in graph.graph.initializer if len(each.raw_data) > 64)
    Path("weights.bin").write_bytes(weights.raw_data)
    onnx.external_data_helper.set_external_data(weights, "weights.bin")
    weights.ClearField("raw_data")
    weights.data_location = onnx.TensorProto.EXTERNAL


def outside_in_an_operation(graph: Any) -> None:
    tensor = onnx.TensorProto(name="w", dims=[4], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    graph.graph.node.append(onnx.helper.make_node("Constant", [], ["unused"], value=tensor))


def loop(graph: Any) -> None:
    body = onnx.helper.make_graph([], "body", [], [])
    graph.graph.node.append(onnx.helper.make_node("Loop", ["", ""], ["unused"], body=body))


def sparse(graph: Any) -> None:
    """The values of a sparse tensor are in a file that is there."""
    Path("values.bin").write_bytes(np.ones(3, np.float32).tobytes())
    values = onnx.TensorProto(name="values", dims=[3], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    values.external_data.add(key="location", value="values.bin")
    indices = onnx.numpy_helper.from_array(np.arange(3))
    tensor = onnx.helper.make_sparse_tensor(values, indices, [3])
    graph.graph.node.append(onnx.helper.make_node("Constant", [], ["unused"], sparse_value=tensor))


def sparse_weights(graph: Any) -> None:
    values, indices = (onnx.numpy_helper.from_array(np.ones(1, kind), "s") for kind in (np.float32, np.int64))
    graph.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [9]))


def random_numbers(graph: Any) -> None:
    graph.graph.node.append(onnx.helper.make_node("RandomNormal", [], ["unused"], shape=[2]))


def another_domain(graph: Any) -> None:
    graph.graph.node.append(onnx.helper.make_node("Relu", ["images"], ["unused"], domain="com.microsoft"))


def fewer_elements(graph: Any) -> None:
    graph.graph.initializer[0].dims[0] = 10**9


def many_dimensions(graph: Any) -> None:
    graph.graph.initializer[0].dims.extend([2**62] * 10_000)


def function(graph: Any) -> None:
    made = onnx.helper.make_function("own", "f", [], [], [], [onnx.helper.make_opsetid("", 18)])
    graph.functions.append(made)


def not_a_number(graph: Any) -> None:
    for weights in graph.graph.initializer:
        if weights.data_type == onnx.TensorProto.FLOAT:
            weights.raw_data = np.full(len(weights.raw_data) // 4, np.nan, np.float32).tobytes()


DAMAGES: dict[str, tuple[Callable[[Any], None], str]] = {
    "other files": (outside, "weights are in other files"),
    "other files in an operation": (outside_in_an_operation, "weights are in other files"),
    "a loop": (loop, "loops or branches"),
    "sparse tensors in other files": (sparse, "sparse tensors"),
    "sparse weights": (sparse_weights, "sparse tensors"),
    "a random operator": (random_numbers, "the operator 'RandomNormal'"),
    "an operator of another domain": (another_domain, "not ONNX's own"),
    "a tensor of fewer elements": (fewer_elements, "another size than it says"),
    "a tensor of many dimensions": (many_dimensions, "more than 16 dimensions"),
    "functions": (function, "functions of its own"),
    "no classes": (facts(classes=None), "does not say how photos are prepared"),
    "no preprocessing": (facts(how=None), "does not say how photos are prepared"),
    "classes that are no list": (facts(classes='{"a": 1}'), "classes must be a list"),
    "classes that are no texts": (facts(classes="[1, 2, 3]"), "classes must be a text"),
    "equal classes": (facts(classes='["a", "a", "b"]'), "not names that all differ"),
    "too few classes": (facts(classes='["a", "b"]'), "graph does not fit"),
    "no JSON": (facts(classes="nonsense"), "damaged"),
    "deep JSON": (facts(classes="[" * 100_000), "damaged"),
    "huge numbers": (facts(how='{"size": ' + "9" * 10_000 + "}"), "damaged"),
    "a large size": (how(size=1025, draft=2050), "size must be from 1 to 1024"),
    "a large input": (how(input=1025), "input must be from 1 to 1024"),
    "a huge size": (how(size=10**9, draft=2 * 10**9), "size must be from 1 to 1024"),
    "no side": (how(input=0), "input must be from 1 to 1024"),
    "another input": (how(input=17), "graph does not fit"),
    "another draft": (how(draft=1), "draft must be twice the size"),
    "strange channels": (how(channels=4), "channels must be 1 or 3"),
    "a missing number": (how(size=None), "size is missing"),
    "an unknown number": (how(colour=1), "is not known"),
    "too many facts": (facts(more="x" * (exported.MOST_FACTS + 1)), "says too much"),
    "weights that are no numbers": (not_a_number, "no probabilities"),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_file_is_one_line(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Any], None], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = onnx.load(place / "model.onnx")
    damage(graph)
    (tmp_path / "bad.onnx").write_bytes(graph.SerializeToString())
    command("predict", tmp_path / "bad.onnx", place / "test").refused("bad.onnx", said)


@pytest.mark.parametrize("content", [b"", b"these are words, not a graph", b"\xff" * 1000, bytes(1000)])
def test_a_file_of_another_kind_is_one_line(place: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.onnx").write_bytes(content)
    command("predict", tmp_path / "bad.onnx", place / "test").refused("bad.onnx")


def test_a_file_that_is_cut_short_or_changed_is_one_line_or_answers(place: Path, tmp_path: Path) -> None:
    whole, random = (place / "model.onnx").read_bytes(), np.random.RandomState(0)
    photo = place / "test" / "large.jpg"
    for number in range(30):
        changed = bytearray(whole[: random.randint(len(whole))] if number % 2 else whole)
        for _ in range(5):
            changed[random.randint(len(changed))] = random.randint(256)
        (tmp_path / "bad.onnx").write_bytes(bytes(changed))
        done = command("predict", tmp_path / "bad.onnx", photo)
        if done.code != 0:
            done.refused("bad.onnx")
        assert number % 2 == 0 or done.code == 2, done


def test_a_file_that_is_too_large_is_one_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported, "MOST_BYTES", 1000)
    command("predict", place / "model.onnx", place / "test").refused("cannot read", "more than 1,000 bytes")


@pytest.mark.parametrize("size", [0, 10**6, 10**8, exported.MOST_BYTES])
def test_a_file_and_its_process_take_two_gibibytes_at_most(size: int) -> None:
    memory = onnx_process._memory_for(size)
    assert memory + size <= 2**31
    assert memory >= 2**30 + size, "enough to read the largest files, which takes three times their size"


def test_a_graph_of_too_many_operations_is_one_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "MOST_NODES", 3)
    command("predict", place / "model.onnx", place / "test").refused("more than 3 operations")


def test_too_many_fields_or_classes_are_one_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(exported, "MOST_CLASSES", 2)
        command("predict", place / "model.onnx", place / "test").refused("more than 2 classes")
    monkeypatch.setattr(onnx_file, "MOST_FIELDS", 1000)
    command("predict", place / "model.onnx", place / "test").refused("more than 1,000 fields")


# Files that two readers of protocol buffers understand differently


def varint(number: int) -> bytes:
    """A whole number as protocol buffers have it, seven bits a byte."""
    return (
        b""
        if number < 0
        else bytes([number & 127 | 128] * (number > 127)) + (varint(number >> 7) if number > 127 else bytes([number]))
    )


def with_tag(graph: Any, tag: bytes) -> bytes:
    """The file with its graph written under this tag."""
    inner = graph.graph.SerializeToString()
    graph.ClearField("graph")
    return graph.SerializeToString() + tag + varint(len(inner)) + inner


def in_ort_format(graph: Any) -> bytes:
    graph.producer_name = "abORTM"
    name = b"\x12\x06abORTM"
    whole = graph.SerializeToString()
    assert name in whole
    return name + whole.replace(name, b"", 1)


DISGUISES: dict[str, tuple[Callable[[Any], bytes], str]] = {
    "a tag of more than 32 bits": (lambda graph: with_tag(graph, varint(7 << 3 | 2 | 1 << 32)), "may not have"),
    "a tag that is longer than it has to be": (lambda graph: with_tag(graph, b"\xba\x00"), "unusual way"),
    "a number of another kind": (lambda graph: graph.SerializeToString() + b"\x0a\x00", "another kind"),
    "a number of more than 64 bits": (
        lambda graph: graph.SerializeToString() + b"\x28" + b"\xff" * 9 + b"\x7f",
        "unusual",
    ),
    "a field twice": (lambda graph: graph.SerializeToString() + b"\x3a\x00", "twice"),
    "an unknown field": (lambda graph: graph.SerializeToString() + b"\x7a\x00", "may not have"),
    "a fact twice": (lambda graph: graph.SerializeToString() + b"\x72\x09\x0a\x07classes", "twice"),
    "no graph": (lambda graph: with_tag(graph, b"\x32"), "no graph"),
    "onnxruntime's format": (in_ort_format, "format"),
}


@pytest.mark.parametrize(("disguise", "said"), DISGUISES.values(), ids=list(DISGUISES))
def test_a_file_that_is_written_in_an_unusual_way_is_one_line(
    place: Path, tmp_path: Path, disguise: Callable[[Any], bytes], said: str
) -> None:
    (tmp_path / "bad.onnx").write_bytes(disguise(onnx.load(place / "model.onnx")))
    command("predict", tmp_path / "bad.onnx", place / "test").refused("bad.onnx", said)


# Graphs that cost more than answers are worth


def costly(place: Path, out: Path, shape: list[int], products: int) -> None:
    """Add a tensor of this shape, which depends on the images, and so many products with itself, to the logits."""
    graph = onnx.load(place / "model.onnx")
    last = next(node for node in graph.graph.node if "probabilities" in node.output)
    make, nodes = onnx.helper.make_node, graph.graph.node
    nodes.remove(last)
    nodes.append(make("ReduceMax", ["images"], ["one"], keepdims=0))
    nodes.append(make("Expand", ["one", "shape"], ["cost0"]))
    for number in range(products):
        nodes.append(make("MatMul", [f"cost{number}", "cost0"], [f"cost{number + 1}"]))
    nodes.append(make("ReduceMax", [f"cost{products}"], ["most"], keepdims=0))
    nodes.append(make("Sub", ["most", "most"], ["none"]))
    nodes.append(make("Add", [last.input[0], "none"], ["more"]))
    last.input[0] = "more"
    nodes.append(last)
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.array(shape), "shape"))
    out.write_bytes(graph.SerializeToString())


def test_a_graph_that_takes_too_long_is_one_line(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costly(place, tmp_path / "slow.onnx", [2000, 2000], 1000)
    monkeypatch.setattr(onnx_process, "SECONDS", 1.0)
    command("predict", tmp_path / "slow.onnx", place / "test").refused("slow.onnx", "more than 1 seconds")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not bound the memory of a process")
def test_a_graph_that_takes_too_much_memory_is_one_line(place: Path, tmp_path: Path) -> None:
    costly(place, tmp_path / "few.onnx", [10, 10], 1)
    assert len(answers(command("predict", tmp_path / "few.onnx", place / "test", "--json"))) == 10
    costly(place, tmp_path / "large.onnx", [40_000, 25_000], 0)
    command("predict", tmp_path / "large.onnx", place / "test").refused("large.onnx", "cannot answer")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_what_is_no_file_is_one_line_and_does_not_hang(place: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    command("predict", tmp_path / "pipe.onnx", place / "test").refused("not a regular file")
    (tmp_path / "zero.onnx").symlink_to("/dev/zero")
    command("predict", tmp_path / "zero.onnx", place / "test").refused("not a regular file")
    command("predict", tmp_path / "nowhere.onnx", place / "test").refused("nowhere.onnx")
    (tmp_path / "folder.onnx").mkdir()
    command("predict", tmp_path / "folder.onnx", place / "test").refused("folder.onnx", "not a treering model folder")
