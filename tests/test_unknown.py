"""Images that resemble no class: their distances against plain loops in float64, and what is said of them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TinyFeatures, examples, method_of, tiny_learner
from hypothesis import given, settings
from hypothesis import strategies as st
from photo_helper import command, write_photos
from PIL import Image
from test_closed_form import features_of, statistics_of
from torch import Tensor

from treering import Augmentation, Budget, Learner, TreeringError, evaluation, export
from treering.core import unknown
from treering.core.unknown import Distances
from treering.methods import ClosedForm, Tuned, tuned
from treering.methods.left_out import Trial
from treering.model import examine
from treering.photos import answers, exported
from treering.photos.sorting import folder_name
from treering.prediction import Teller, threshold

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

FIRST, SECOND = examples({"cat": 9, "dog": 8}), examples({"owl": 7, "cat": 3}, seed=1)
OTHERS = np.random.RandomState(0).choice([0, 255], (6, *FIRST[0].shape[1:])).astype(np.uint8)
"""Images of nothing but noise."""
PHOTO = Augmentation(kind="photo", crop_size=FIRST[0].shape[1])
"""An augmentation that the trained method takes."""


def distances_of(x_ND: np.ndarray, labels: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The squared Mahalanobis distance from the nearest class mean, from the definition."""
    means = [x_ND[labels == label].mean(0) for label in np.unique(labels)]
    scatter = unknown.PENALTY * np.eye(x_ND.shape[1])
    for x, label in zip(x_ND, labels, strict=True):
        away = x - x_ND[labels == label].mean(0)
        scatter += np.outer(away, away)
    inverse = np.linalg.inv(scatter)
    return np.array([min((x - mean) @ inverse @ (x - mean) for mean in means) for x in asked])


def left_out_in_earnest(x_ND: Tensor, labels_N: Tensor) -> list[float]:
    x, y, found = x_ND.numpy(), labels_N.numpy(), []
    for index in range(len(y)):
        others = np.arange(len(y)) != index
        found.append(distances_of(x[others], y[others], x[index : index + 1])[0])
    return found


@settings(max_examples=25)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=14), st.integers(2, 9), st.integers(0, 99))
def test_every_image_is_left_out_in_earnest(labels: list[int], size: int, seed: int) -> None:
    labels = [*labels, *range(4), *range(4)]
    x_ND, labels_N = features_of(labels, size, seed)
    found = Distances(statistics_of(x_ND, labels_N, 4)).left_out(x_ND, labels_N)
    np.testing.assert_allclose(found.numpy(), left_out_in_earnest(x_ND, labels_N), rtol=1e-7, atol=1e-9)


def test_the_distance_is_mahalanobis_from_the_nearest_mean() -> None:
    x_ND, labels_N = features_of([0, 1, 2] * 6 + [0] * 5, 7, 1)
    asked_ND, _ = features_of([0, 1, 2] * 3, 7, 2)
    distances = Distances(statistics_of(x_ND, labels_N, 3))
    wanted = distances_of(x_ND.numpy(), labels_N.numpy(), asked_ND.numpy())
    np.testing.assert_allclose(distances(asked_ND).numpy(), wanted, rtol=1e-9)
    np.testing.assert_allclose(distances.module()(asked_ND.float()).numpy(), wanted, rtol=1e-5)


def test_some_of_the_features_may_serve_alone() -> None:
    x_ND, labels_N = features_of([0, 1] * 8, 6, 3)
    last = slice(-4, None)
    whole = Distances(statistics_of(x_ND, labels_N, 2), last)
    alone = Distances(statistics_of(x_ND[:, last], labels_N, 2))
    assert torch.allclose(whole(x_ND), alone(x_ND[:, last]), rtol=1e-10)
    assert torch.allclose(whole.left_out(x_ND, labels_N), alone.left_out(x_ND[:, last], labels_N), rtol=1e-10)
    assert torch.allclose(whole.module()(x_ND.float()).double(), alone(x_ND[:, last]), rtol=1e-4)


def test_the_only_image_of_a_class_cannot_be_left_out_but_others_can() -> None:
    x_ND, labels_N = features_of([0, 0, 0, 1, 1, 2], 4, 4)
    found = Distances(statistics_of(x_ND, labels_N, 3)).left_out(x_ND, labels_N)
    assert found.isinf().tolist() == [False] * 5 + [True]
    np.testing.assert_allclose(found[:5].numpy(), left_out_in_earnest(x_ND, labels_N)[:5], rtol=1e-7)
    assert unknown.usual(found).isfinite().all()
    assert len(unknown.usual(found[5:])) == 0


def test_classes_of_the_same_mean_and_equal_images_give_finite_numbers() -> None:
    x_ND, _ = features_of([0] * 5, 4, 5)
    twice_ND, labels_N = torch.cat([x_ND, x_ND]), torch.tensor([0] * 5 + [1] * 5)
    found = Distances(statistics_of(twice_ND, labels_N, 2)).left_out(twice_ND, labels_N)
    np.testing.assert_allclose(found.numpy(), left_out_in_earnest(twice_ND, labels_N), rtol=1e-7)
    same_ND = x_ND[:1].repeat(6, 1)
    distances = Distances(statistics_of(same_ND, torch.tensor([0] * 3 + [1] * 3), 2))
    assert distances.left_out(same_ND, torch.tensor([0] * 3 + [1] * 3)).abs().max() < 1e-9
    assert distances(same_ND).abs().max() < 1e-9
    assert distances(-same_ND).min() > 1


# The threshold


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=400), st.lists(st.floats(0, 1), min_size=2, max_size=5))
def test_a_larger_share_never_refuses_less(distances: list[float], shares: list[float]) -> None:
    usual = unknown.usual(torch.tensor(distances, dtype=torch.float64)).numpy()
    limits = [threshold(usual, share) for share in sorted(shares)]
    assert all(one >= other or one == pytest.approx(other) for one, other in itertools.pairwise(limits))
    assert threshold(usual, 0) == float("inf")
    assert threshold(usual, 1) == pytest.approx(min(distances))


@pytest.mark.parametrize("share", [0.0, 0.05, 0.2, 0.5])
def test_this_share_of_usual_images_is_refused(share: float) -> None:
    distances = np.random.RandomState(0).gamma(2, 1, 4001)
    usual = unknown.usual(torch.from_numpy(np.append(distances, np.inf)))
    assert len(usual) == unknown.QUANTILES
    assert (distances > threshold(usual.numpy(), share)).mean() == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(TreeringError, match=f"must be from 0 to 1, not {share}"):
        threshold(np.array([1.0, 2.0]), share)


# Learners


def closed(**changes: Any) -> Learner:
    return tiny_learner(method="closed-form", **changes)


def usual_of(learner: Learner) -> Tensor:
    method = method_of(learner)
    assert isinstance(method, ClosedForm)
    return method.usual


@pytest.mark.parametrize("method", ["closed-form", "tuned"])
@pytest.mark.parametrize("memory", [Budget("per-class", 5), Budget("per-class", 0)])
def test_noise_is_unknown_and_new_images_of_known_classes_are_not(method: str, memory: Budget) -> None:
    learner = tiny_learner(method=method, memory=memory, augmentation=PHOTO).partial_fit(*FIRST).partial_fit(*SECOND)
    known, _ = examples({"cat": 12, "dog": 12, "owl": 12}, seed=9)
    assert learner.unknown(OTHERS).all()
    assert learner.unknown(known).dtype == bool
    assert learner.unknown(known).mean() < 0.5
    assert not learner.unknown(OTHERS, share=0).any()
    assert (learner.unknown(known, share=0.5) >= learner.unknown(known)).all()


def test_what_is_usual_comes_from_images_that_are_left_out() -> None:
    learner = closed(memory=Budget("per-class", 0)).partial_fit(*FIRST)
    pixels = torch.from_numpy(FIRST[0]).movedim(-1, 1)
    x_ND = torch.nn.functional.normalize(method_of(learner).network.predict_features(pixels)).double()
    labels_N = torch.tensor([["cat", "dog"].index(name) for name in FIRST[1]])
    wanted = np.quantile(left_out_in_earnest(x_ND, labels_N), np.linspace(0, 1, unknown.QUANTILES))
    np.testing.assert_allclose(usual_of(learner).numpy(), wanted, rtol=1e-6)


def test_a_step_of_only_images_leaves_what_is_usual() -> None:
    learner = closed(memory=Budget("per-class", 0)).partial_fit(*examples({"cat": 1, "dog": 1}))
    with pytest.raises(TreeringError, match="cannot tell unknown images"):
        learner.unknown(OTHERS)
    assert not learner.unknown(OTHERS, share=0).any()
    before = usual_of(learner.partial_fit(*FIRST))
    assert len(before) == unknown.QUANTILES
    assert torch.equal(usual_of(learner.partial_fit(*examples({"fox": 1}))), before)
    assert learner.unknown(OTHERS).all()


def test_a_method_that_does_not_measure_says_so_in_one_line() -> None:
    learner = tiny_learner().partial_fit(*FIRST)
    with pytest.raises(TreeringError, match="cannot tell unknown images"):
        learner.unknown(OTHERS)


@pytest.fixture(params=[True, False])
def trained(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Learner:
    """A learner that has trained a copy of its network, which answers or not, whatever the images say."""
    monkeypatch.setattr(tuned, "tried", lambda *arguments: Trial(4, 3, 3, helped=request.param))
    learner = tiny_learner(method="tuned", memory=Budget("per-class", 9), augmentation=PHOTO)
    return learner.partial_fit(*FIRST).partial_fit(*SECOND)


def test_answers_are_the_probabilities_bit_for_bit(trained: Learner) -> None:
    learnt = trained.learnt_model()
    pixels = torch.from_numpy(OTHERS).movedim(-1, 1)
    probabilities, distances = learnt.answers(pixels)
    assert (probabilities == learnt.probabilities(pixels)).all()
    assert distances is not None
    assert distances.shape == (6,)


def test_what_is_usual_survives_saving_undoing_and_failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from treering.storage import model_folder

    learner = closed().partial_fit(*FIRST)
    first = usual_of(learner)
    learner.save(tmp_path / "model")
    second = usual_of(learner.partial_fit(*SECOND))
    assert not torch.equal(first, second)
    learner.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", backbone=TinyFeatures(), device="cpu")
    assert torch.equal(usual_of(loaded), second)
    asked = torch.from_numpy(OTHERS).movedim(-1, 1)
    (_, ours), (_, theirs) = (one.learnt_model().answers(asked) for one in (learner, loaded))
    assert ours is not None
    assert (ours == theirs).all()
    model_folder.undo(tmp_path / "model", examine)
    undone = Learner.load(tmp_path / "model", backbone=TinyFeatures(), device="cpu")
    assert torch.equal(usual_of(undone), first)

    def fail(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ClosedForm, "_store", fail)
        with pytest.raises(KeyboardInterrupt):
            undone.partial_fit(*SECOND)
    assert torch.equal(usual_of(undone), first)
    assert torch.equal(usual_of(undone.partial_fit(*SECOND)), second)


# The commands

DISTANCES = {"a.png": 1.0, "b.png": 6.0, "c.png": 5.0}


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A model whose usual distances go from 0 to 5 answers for three photos; all are most like the class "unknown"."""
    inbox = write_photos(tmp_path, {"inbox": 3}) / "inbox"
    for photo, name in zip(sorted(inbox.iterdir()), DISTANCES, strict=True):
        photo.rename(inbox / name)
    (inbox / "d.png").write_bytes(b"no photo")
    usual = np.linspace(0, 5, 201)

    def answer(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.tile([0.75, 0.25], (len(images), 1)), np.array(list(DISTANCES.values()))[: len(images)]

    monkeypatch.setattr(answers.Source, "_load", lambda source: Teller(["unknown", "owl"], 8, 3, answer, usual))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_predict_says_unknown(scripted: Path) -> None:
    done = command("predict", "model", "inbox", "--top", 2)
    assert done.out.splitlines() == [
        "inbox/a.png: unknown 75.0 %, owl 25.0 %",
        "inbox/b.png: unknown (most like unknown 75.0 %, owl 25.0 %)",
        "inbox/c.png: unknown (most like unknown 75.0 %, owl 25.0 %)",
    ]
    assert "d.png" in done.err


@pytest.mark.parametrize(
    ("options", "unknown"),
    [
        ((), [False, True, True, False]),
        (("--unknown", 0.9), [True, True, True, False]),
        (("--unknown", 0.001), [False, True, True, False]),
        (("--unknown", 0), None),
    ],
)
def test_json_says_it_of_every_photo_if_it_was_asked(
    scripted: Path, options: tuple[object, ...], unknown: list[bool] | None
) -> None:
    records = [json.loads(line) for line in command("predict", "model", "inbox", "--json", *options).out.splitlines()]
    assert [record.get("unknown") for record in records] == (unknown or [None] * 4)
    assert all("unknown" in record for record in records) == (unknown is not None)


def test_unknown_photos_are_sorted_apart_from_a_class_of_that_name(scripted: Path) -> None:
    command("predict", "model", "inbox", "--sort-into", "sorted")
    copies = {str(file.relative_to("sorted")) for file in Path("sorted").glob("*/*")}
    (own,) = {name for name in copies if name.endswith("a.png")}
    assert copies == {own, "unknown/b.png", "unknown/c.png"}
    assert own.startswith("unknown-")


def test_every_photo_goes_to_its_class_if_unknown_ones_are_not_asked_for(scripted: Path) -> None:
    command("predict", "model", "inbox", "--sort-into", "sorted", "--unknown", 0)
    assert len({file.parent for file in Path("sorted").glob("*/*")}) == 1


def test_a_watched_photo_may_be_unknown(scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = iter([[Path("inbox/a.png"), Path("inbox/b.png")]])

    def complete(watch: Any) -> list[Path]:
        try:
            return next(later)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(answers.Watch, "complete", complete)
    monkeypatch.setattr(answers.time, "sleep", lambda seconds: None)
    done = command("predict", "model", "--watch", "inbox", "--json", "--sort-into", "sorted")
    assert [json.loads(line)["unknown"] for line in done.out.splitlines()] == [False, True]
    assert Path("sorted/unknown/b.png").exists()


@pytest.mark.parametrize("name", ["unknown", "Unknown", "UNKNOWN", "un\u212anown"])
def test_no_class_has_the_folder_of_unknown_photos(name: str) -> None:
    assert folder_name(name).lower() != "unknown"


def test_a_model_that_cannot_tell_is_silent_unless_it_is_asked(monkeypatch: pytest.MonkeyPatch, scripted: Path) -> None:
    def answer(images: np.ndarray) -> tuple[np.ndarray, None]:
        return np.tile([0.75, 0.25], (len(images), 1)), None

    monkeypatch.setattr(answers.Source, "_load", lambda source: Teller(["cat", "owl"], 8, 3, answer))
    done = command("predict", "model", "inbox/a.png", "--json")
    assert (done.code, done.err) == (0, "")
    assert "unknown" not in json.loads(done.out)
    assert command("predict", "model", "inbox/a.png", "--unknown", 0).code == 0
    command("predict", "model", "inbox/a.png", "--unknown", 0.1).refused("cannot tell unknown images")


@pytest.mark.parametrize("share", ["-0.1", "1.5", "nan"])
def test_a_wrong_share_is_one_line(scripted: Path, share: str) -> None:
    command("predict", "model", "inbox", f"--unknown={share}").refused("must be from 0 to 1", share)


def test_evaluate_counts_what_is_called_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = closed(backbone="small").partial_fit(*FIRST)
    folder = write_photos(tmp_path, {"cat": 4, "dog": 3, "fox": 5, "owl": 6})
    (folder / "fox" / "bad.png").write_bytes(b"no photo")
    model = learner.learnt_model()
    found = evaluation.evaluate(model, folder)
    asked = evaluation.teller(model).refusing()
    said = {
        name: [one.unknown for one in asked.predictions(sorted((folder / name).glob("0*")), 1)]
        for name in ("cat", "dog", "fox", "owl")
    }
    assert found.images == 7
    assert found.refused == (said["cat"] + said["dog"]).count(True)
    assert (found.foreign, found.foreign_refused) == (11, (said["fox"] + said["owl"]).count(True))
    assert found.foreign_refused > 0
    assert {path.name for path, _ in found.skipped} == {"fox", "owl", "bad.png"}
    learner.save(tmp_path / "model")
    lines = command("evaluate", tmp_path / "model", folder).out.splitlines()
    assert lines[-2:] == [
        f"Of 7 photos of classes it knows, it calls {found.refused} unknown",
        f"Of 11 photos of classes it does not know, it calls {found.foreign_refused} unknown",
    ]


def test_evaluate_does_not_look_at_foreign_photos_if_the_model_cannot_tell(tmp_path: Path) -> None:
    learner = tiny_learner().partial_fit(*FIRST)
    folder = write_photos(tmp_path, {"cat": 4, "fox": 5})
    found = evaluation.evaluate(learner.learnt_model(), folder)
    assert (found.refused, found.foreign, found.foreign_refused) == (None, 0, 0)


# Exported files


@pytest.fixture(scope="module")
def exported_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a closed form's model, photos to ask about, and both exported files."""
    folder = tmp_path_factory.mktemp("exported")
    learner = closed(backbone="small").partial_fit(*FIRST)
    learner.save(folder / "model")
    write_photos(folder / "photos", {"cat": 4, "dog": 4, "fox": 4})
    for number, pixels in enumerate(OTHERS):
        Image.fromarray(pixels).save(folder / "photos" / f"noise-{number}.png")
    for name in ("model.onnx", "model.pt2"):
        assert learner.export(folder / name) < 1e-4
    return folder


@pytest.mark.parametrize("options", [(), ("--unknown", 0.5), ("--unknown", 0)])
def test_an_exported_file_says_unknown_as_its_model_does(exported_model: Path, options: tuple[object, ...]) -> None:
    asked = (exported_model / "photos", "--json", "--top", 1, *options)
    roads = [command("predict", exported_model / name, *asked) for name in ("model", "model.onnx")]
    ours, theirs = ([json.loads(line) for line in done.out.splitlines()] for done in roads)
    assert len(ours) == 18
    assert [one.get("unknown") for one in ours] == [one.get("unknown") for one in theirs]
    assert len({one.get("unknown") for one in ours}) == (1 if 0 in options else 2)


def test_both_roads_have_the_same_distances_and_thresholds(exported_model: Path) -> None:
    ours = evaluation.teller(Learner.load(exported_model / "model", device="cpu").learnt_model())
    theirs = exported.opened(exported_model / "model.onnx")
    images = np.concatenate([OTHERS, FIRST[0]])
    (_, wanted), (_, found) = ours.answers(images), theirs.answers(images)
    assert wanted is not None
    assert found is not None
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    for share in (0.0, 0.05, 0.3):
        assert ours.refusing(share).threshold == theirs.refusing(share).threshold
    assert ours.refusing().threshold == ours.refusing(0.05).threshold


def test_both_files_tell_other_programs_when_an_image_is_unknown(exported_model: Path) -> None:
    learner = Learner.load(exported_model / "model", device="cpu")
    images = np.concatenate([OTHERS, FIRST[0]])
    pixels = images.astype(np.float32).transpose(0, 3, 1, 2)
    session = onnxruntime.InferenceSession(exported_model / "model.onnx", providers=["CPUExecutionProvider"])
    probabilities, distances = session.run(["probabilities", "distances"], {"images": pixels})
    facts = json.loads(session.get_modelmeta().custom_metadata_map["unknown"])
    assert (probabilities.shape, distances.shape, distances.dtype) == ((23, 2), (23,), np.float32)
    assert (len(facts["quantiles"]), facts["share"]) == (201, 0.05)
    assert ((distances > facts["threshold"]) == learner.unknown(images)).all()
    told = {"unknown": ""}
    program = torch.export.load(exported_model / "model.pt2", extra_files=told).module()
    assert json.loads(told["unknown"]) == facts
    with torch.no_grad():
        both = program(torch.from_numpy(pixels))
    np.testing.assert_allclose(both[0].numpy(), probabilities, atol=1e-4)
    np.testing.assert_allclose(both[1].numpy(), distances, rtol=1e-4)


def test_the_network_that_answers_measures_and_so_does_its_module(trained: Learner) -> None:
    method = method_of(trained)
    assert isinstance(method, Tuned)
    solved = method.tuned if method.both_answer else method.frozen
    pixels = torch.from_numpy(OTHERS).movedim(-1, 1)
    x_ND = torch.nn.functional.normalize(solved.network.predict_features(method.plain(pixels)))
    probabilities, distances = method.answers(pixels)
    assert distances is not None
    assert torch.allclose(distances, Distances(solved.statistics)(x_ND))
    with torch.no_grad():
        logits, from_module = method.answering().eval()(pixels)
    assert torch.allclose(logits.softmax(1), probabilities, atol=1e-5)
    assert torch.allclose(from_module.double(), distances, rtol=1e-3)


def test_what_is_usual_for_a_trained_network_comes_from_images_that_it_has_not_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuned, "tried", lambda *arguments: Trial(4, 3, 3, helped=True))
    asked: list[int] = []
    left_out = Distances.left_out

    def counting(self: Distances, features_ND: Tensor, labels_N: Tensor) -> Tensor:
        asked.append(len(labels_N))
        return left_out(self, features_ND, labels_N)

    monkeypatch.setattr(Distances, "left_out", counting)
    learner = tiny_learner(method="tuned", memory=Budget("per-class", 9), augmentation=PHOTO).partial_fit(*FIRST)
    method = method_of(learner)
    assert isinstance(method, Tuned)
    assert asked == [len(method.judging)]


def test_an_exported_file_that_measures_otherwise_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def off(deployed: Any, pixels: Tensor, facts: dict[str, str]) -> tuple[bytes, list[np.ndarray]]:
        with torch.no_grad():
            probabilities, distances = (part.numpy() for part in deployed(pixels))
        return b"content", [probabilities, distances * 1.001]

    monkeypatch.setattr(export, "_pt2", off)
    with pytest.raises(TreeringError, match="measures other distances"):
        closed(backbone="small").partial_fit(*FIRST).export(tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def changed(source: Path, out: Path, **facts: str | None) -> Path:
    """A copy of an exported file that says other things of itself."""
    graph = onnx.load(source)
    known = {entry.key: entry.value for entry in graph.metadata_props} | facts
    del graph.metadata_props[:]
    for key, value in known.items():
        if value is not None:
            graph.metadata_props.add(key=key, value=value)
    out.write_bytes(graph.SerializeToString())
    return out


def usual(**changes: Any) -> str:
    return json.dumps({"quantiles": [0.1, 0.2], "share": 0.05, "threshold": 0.19} | changes)


@pytest.mark.parametrize(
    ("unknown", "said"),
    [
        (None, "graph does not fit"),
        ("nonsense", "damaged"),
        ("[]", "unknown must be a table"),
        (usual(quantiles=[]), "quantiles must be 1 to 1000"),
        (usual(quantiles=[1.0] * 1001), "quantiles must be 1 to 1000"),
        (usual(quantiles=[2.0, 1.0]), "quantiles must be sorted"),
        (usual(quantiles=[1.0, float("nan")]), "must be a finite number"),
        (usual(quantiles=[1.0, float("inf")]), "must be a finite number"),
        (usual(quantiles=["a"]), "must be a number"),
        (usual(quantiles=1), "must be a list"),
        (usual(share=2), "share must be from 0 to 1"),
        (usual(threshold=None), "threshold must be a number"),
        (usual(more=1), "is not known"),
    ],
)
def test_a_file_of_a_stranger_is_one_line(exported_model: Path, tmp_path: Path, unknown: str | None, said: str) -> None:
    bad = changed(exported_model / "model.onnx", tmp_path / "bad.onnx", unknown=unknown)
    command("predict", bad, exported_model / "photos").refused("bad.onnx", said)


def test_distances_that_are_no_numbers_are_one_line(exported_model: Path, tmp_path: Path) -> None:
    graph = onnx.load(exported_model / "model.onnx")
    (last,) = (node for node in graph.graph.node if "distances" in node.output)
    last.output[list(last.output).index("distances")] = "finite"
    graph.graph.node.append(onnx.helper.make_node("Log", ["minus"], ["distances"]))
    graph.graph.node.insert(len(graph.graph.node) - 1, onnx.helper.make_node("Neg", ["finite"], ["minus"]))
    (tmp_path / "bad.onnx").write_bytes(graph.SerializeToString())
    command("predict", tmp_path / "bad.onnx", exported_model / "photos").refused("its distances are no numbers")


def test_a_file_of_an_earlier_version_answers_without_saying_unknown(exported_model: Path, tmp_path: Path) -> None:
    graph = onnx.load(exported_model / "model.onnx")
    del graph.graph.output[1]
    onnx.save(graph, tmp_path / "part.onnx")
    old = changed(tmp_path / "part.onnx", tmp_path / "old.onnx", unknown=None)
    done = command("predict", old, exported_model / "photos", "--json")
    assert (done.code, done.err) == (0, "")
    assert "unknown" not in json.loads(done.out.splitlines()[0])
    command("predict", old, exported_model / "photos", "--unknown", 0.1).refused("export the model again")
