"""The GPU engine against the eager one. Run on a machine with a GPU: `python -m pytest -m cuda tests/test_cuda.py`."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_kernels import loss_and_gradient

from treering import Learner, methods
from treering.core import backbones, engine, fused, losses
from treering.core.network import IncrementalNetwork
from treering.core.optim import SGD
from treering.core.update import TrainingSet
from treering.data.stream import Dataset, ResidentImages
from treering.experiments import run as runner
from treering.experiments.run import StreamRun
from treering.experiments.scheduler import run_many
from treering.methods.gem import EpisodicMemory
from treering.recipe import Augmentation, Budget, Optimizer, Recipe, Run, Schedule

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore"),  # those of the compiler differ between its versions
]

RECIPE = Recipe(
    training=Schedule(6, 0.1, (4,)),
    balanced=Schedule(3, 0.01),
    memory=Budget(size=60),
    augmentation=Augmentation(padding=2),
    optimizer=Optimizer(batch_size=64),
    run=Run("blobs", classes_per_step=2),
)
TENSORS = ("train_images", "train_labels", "test_images", "test_labels")
GENTLE = replace(RECIPE, training=Schedule(6, 0.005), balanced=Schedule(3, 0.001))
"""With larger learning rates the last bits, which sums in any order leave open, soon decide where a training goes."""
STEADY = replace(
    RECIPE, training=Schedule(4, 0.0005), balanced=Schedule(2, 0.0001), memory=Budget(size=60, selection="random")
)
"""Hardly a training, whose memory depends on draws alone: in its losses what differs in the last bits stays small, and
other batches show."""


def patterns(noise: float) -> ResidentImages:
    """Six classes of 16 x 16 patterns under noise, easy to learn and easy to forget."""
    random = np.random.RandomState(0)
    patterns = random.randint(0, 256, (6, 4, 4, 3)).repeat(4, 1).repeat(4, 2)
    labels = np.arange(6).repeat(80)
    noisy = np.clip(patterns[labels] + random.normal(0, noise, (480, 16, 16, 3)), 0, 255).astype(np.uint8)
    test = np.arange(480) % 4 == 0
    names = tuple("abcdef")
    dataset = Dataset("blobs", noisy[~test], labels[~test], noisy[test], labels[test], names)
    return ResidentImages.of(dataset, torch.device("cuda"))


@pytest.fixture(scope="module")
def images() -> ResidentImages:
    return patterns(40)


@pytest.fixture(scope="module")
def noisy_images() -> ResidentImages:
    """Under so much noise that not all test images are told apart."""
    return patterns(160)


def noting_losses(run: StreamRun) -> list[float]:
    """Of every batch, once the run is under way."""
    losses: list[float] = []
    forward = run.epoch

    def note(report):
        losses.extend(report.losses.tolist())
        forward(report)

    run.epoch = note
    return losses


def losses_of(recipe: Recipe, images: ResidentImages, folder) -> tuple[list[float], dict]:
    run = StreamRun(recipe, images, folder)
    return noting_losses(run), run()


@pytest.fixture(scope="module")
def steady(noisy_images, tmp_path_factory) -> list[list[float]]:
    """The losses of a run alone, and of one with another seed: how far those of another random state are."""
    runs = [replace(STEADY, run=replace(STEADY.run, seed=seed)) for seed in (0, 1)]
    return [losses_of(recipe, noisy_images, tmp_path_factory.mktemp("steady"))[0] for recipe in runs]


def distance(one: list[float], other: list[float]) -> float:
    return float(np.abs(np.subtract(one, other)).mean())


def test_fast_engine_agrees_with_eager_float32(noisy_images, steady, tmp_path):
    eager, _ = losses_of(replace(STEADY, engine="eager"), noisy_images, tmp_path / "steady")
    np.testing.assert_allclose(steady[0][:6], eager[:6], rtol=0.02)
    assert distance(steady[0], eager) < 0.2 * distance(steady[0], steady[1])
    accuracies = [
        StreamRun(replace(GENTLE, engine=engine), noisy_images, tmp_path / engine)()["average"]
        for engine in ("fast", "eager")
    ]
    assert min(accuracies) > 80
    assert abs(accuracies[0] - accuracies[1]) < 5


@pytest.mark.parametrize(
    ("backbone", "channels", "side", "count"),
    [("resnet32", 3, 32, 100), ("resnet32-linear", 3, 32, 33), ("small", 1, 8, 5)],
)
def test_kernels_compute_features_gradients_and_statistics(backbone, channels, side, count):
    """In float32 and, as closely as the framework, in bfloat16; odd batches leave parts of programs without work."""
    torch.manual_seed(0)
    features = backbones.build(backbone, channels, 0)
    network = IncrementalNetwork(features, 64, torch.rand(channels, side, side) / 2, 255.0).cuda()
    network.to(memory_format=torch.channels_last).train()
    images = torch.randint(0, 256, (count, channels, side, side), dtype=torch.uint8, device="cuda")
    change = torch.randn(count, 64, device="cuda")

    def found(name: str) -> list[torch.Tensor]:
        copied = copy.deepcopy(network)
        copied.engine.mixed_precision, copied.engine.kernels = name == "framework", name.startswith("kernels")
        extract = copied.extract
        if copied.engine.kernels:
            extract = fused.extractor(copied, count)
            extract.dtype = torch.float32 if name == "kernels, float32" else torch.bfloat16
        if name == "float64":
            copied.double()
        output = extract(images)
        gradients = torch.autograd.grad(output, list(copied.features.parameters()), change.to(output.dtype))
        return [output.detach(), *gradients, *copied.features.buffers()]

    wanted = found("float64")

    def errors(name: str) -> np.ndarray:
        return np.array([float((a - b).norm() / b.norm()) for a, b in zip(found(name), wanted, strict=True)])

    assert errors("kernels, float32").max() < 0.02
    framework, kernels = errors("framework"), errors("kernels")
    assert framework[0] < 0.02
    assert kernels[0] < 0.02
    assert kernels.mean() < 1.1 * framework.mean() + 0.01


@pytest.mark.parametrize(
    "sizes",
    [[6], [2] * 50, [10] * 10, [30] * 10, [700, 1, 400, 13], [10] * 1000],
    ids=lambda sizes: f"{len(sizes)} heads, {sum(sizes)} classes",
)
def test_loss_kernel_computes_the_equations(sizes):
    torch.manual_seed(0)
    heads, columns = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)).cuda(), sum(sizes)
    logits = (8 * torch.randn(64, columns)).cuda()
    targets, labels = torch.rand(64, columns).cuda() / columns, torch.randint(0, columns, (64,)).cuda()
    found, gradient = loss_and_gradient(fused.cross_distilled, logits, labels, targets, heads, 2.0)
    exact = (logits.double(), labels, targets.double(), heads, 2.0)
    wanted, exact_gradient = loss_and_gradient(losses.cross_distilled, *exact)
    assert found == pytest.approx(wanted, rel=1e-5)
    assert (gradient - exact_gradient).norm() < 1e-5 * exact_gradient.norm()


@pytest.mark.parametrize("decay", ["norm-scaled", "plain"])
def test_update_kernel_is_the_plain_optimiser(decay):
    optimisers = []
    for fast in (False, True):
        network = IncrementalNetwork(backbones.build("resnet32", 3, 0), 64, torch.zeros(3, 32, 32), 255.0).cuda()
        network.engine.kernels = fast
        network.reserve(1000)
        generator = torch.Generator("cuda").manual_seed(1)
        network.add_head(10, generator)
        optimiser = SGD(network, Optimizer(weight_decay=0.01, decay=decay), generator)
        network.add_head(700, generator)
        optimiser.start_epoch(0.1, 2, 128)
        for number in range(3):
            drawn = torch.Generator("cuda").manual_seed(number)
            optimiser.step(torch.randn(len(optimiser.values), generator=drawn, device="cuda"))
        optimisers.append(optimiser)
    plain, kernels = optimisers
    assert kernels._update is not None
    assert torch.allclose(plain.values, kernels.values, atol=2e-6)
    assert torch.allclose(plain.momentum, kernels.momentum, atol=2e-5)


def test_a_kernel_that_fails_leaves_the_training_to_the_framework(images, tmp_path, monkeypatch, caplog):
    from treering.core.fused import residual_kernels

    def fail(*arguments, **settings):
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(residual_kernels.weight_gradient, "run", fail)
    monkeypatch.setattr(engine, "failures", [])
    run = StreamRun(RECIPE, images, tmp_path)
    run.method.network.engine.compiles = False  # a minute's work
    result = run()
    assert "no C compiler" in caplog.text
    assert result["accuracy"][0] > 60


def test_one_capture_serves_all_steps(images, tmp_path):
    run = StreamRun(RECIPE, images, tmp_path)
    graphs = []
    run.watch = lambda progress: graphs.append(run.method.trainer._captured.graph)
    run()
    assert all(graph is graphs[0] for graph in graphs)


def test_gradient_noise_differs_between_replays_and_follows_the_seed(images):
    def noise(seed: int) -> torch.Tensor:
        """The momentum of three replays, which is their noise: it is far above the gradients."""
        loud = replace(RECIPE, optimizer=Optimizer(batch_size=64, momentum=0.0, noise_eta=1e6))
        features, device = backbones.build("small", 3, 0), images.train_images.device
        method = methods.create(loud, features, torch.zeros(3, 16, 16), seed, device)
        method.network.add_head(6, method.generator)
        method.network.train()
        count = len(images.train_images)
        targets = torch.full((count, 6), 1 / 6, device=device)
        update = method.trainer.batch_update(TrainingSet(images.train_images, images.train_labels, targets), 64)
        update.optimizer.start_epoch(0.0, 1, 64)
        update.start_epoch(torch.arange(count, device=device))
        seen = []
        for _ in range(3):
            update()
            seen.append(update.optimizer.momentum.clone())
        return torch.stack(seen)

    first, again, other = noise(0), noise(0), noise(1)
    assert (first - again).std() < 0.01 * first.std()
    assert (first - other).std() > first.std()
    assert (first[0] - first[1]).std() > first.std()
    assert (first[1] - first[2]).std() > first.std()


def test_a_run_does_not_depend_on_what_runs_beside_it(noisy_images, steady, tmp_path):
    recipes = [replace(STEADY, run=replace(STEADY.run, seed=seed)) for seed in range(4)]
    runs = [StreamRun(recipe, noisy_images, tmp_path) for recipe in recipes]
    together = [noting_losses(run) for run in runs]
    assert not [outcome for outcome in run_many(runs) if isinstance(outcome, Exception)]
    for seed in (0, 1):
        assert distance(together[seed], steady[seed]) < 0.2 * distance(together[seed], steady[1 - seed])


@pytest.mark.parametrize("stop_after", [2, 6, 9])
def test_interrupted_run_goes_on_to_the_same_result(noisy_images, steady, tmp_path, monkeypatch, stop_after):
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    run = StreamRun(STEADY, noisy_images, tmp_path)
    losses = noting_losses(run)
    epochs = 0

    def stop(progress):
        nonlocal epochs
        epochs += 1
        if epochs == stop_after:
            raise KeyboardInterrupt

    run.watch = stop
    with pytest.raises(KeyboardInterrupt):
        run()
    resumed = StreamRun(STEADY, noisy_images, tmp_path)
    losses_after = noting_losses(resumed)
    result = resumed()
    assert result["image_passes"] == resumed.image_passes_planned
    whole, stranger = (each[len(losses) :] for each in steady)
    assert distance(losses_after, whole) < 0.2 * distance(losses_after, stranger)


def test_a_run_goes_on_on_another_device_and_back(images, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    recipe = replace(GENTLE, optimizer=replace(RECIPE.optimizer, reset_momentum=False))
    on_cpu = replace(images, **{name: getattr(images, name).cpu() for name in TENSORS})
    epochs = 0
    for place, stop_after in ((images, 2), (on_cpu, 4), (images, 0)):
        run = StreamRun(recipe, place, tmp_path)
        begun = epochs

        def count(progress, stop_at=begun + stop_after):
            nonlocal epochs
            epochs += 1
            if epochs == stop_at:
                raise KeyboardInterrupt

        run.watch = count
        if stop_after:
            with pytest.raises(KeyboardInterrupt):
                run()
        else:
            result = run()
    assert epochs == 6 + 2 * (6 + 3)
    assert result["image_passes"] == run.image_passes_planned
    assert result["device"].split(", ")[1] == "CPU"
    assert result["accuracy"][0] > 60


def test_a_learner_can_be_taught_a_handful_of_images(images):
    few = images.train_images[::20].cpu()
    labels = images.train_labels[::20].tolist()
    learner = Learner(recipe=replace(RECIPE, optimizer=Optimizer()), memory=10, device="cuda")
    learner.partial_fit(few, labels)
    assert set(learner.predict(few)) <= set(labels)


def test_networks_of_different_numbers_of_classes_share_compiled_code(images, tmp_path):
    """The second network's parameters lie elsewhere in memory than those the code was compiled for."""
    for classes in (6, 5, 3):
        part = images.train_labels < classes
        fewer = replace(images, class_names=images.class_names[:classes])
        fewer = replace(fewer, train_images=images.train_images[part], train_labels=images.train_labels[part])
        part = images.test_labels < classes
        fewer = replace(fewer, test_images=images.test_images[part], test_labels=images.test_labels[part])
        result = StreamRun(RECIPE, fewer, tmp_path / str(classes))()
        assert result["accuracy"][0] > 60


def cosines_with_the_past(recipe: Recipe, images: ResidentImages, folder) -> tuple[list[float], list[float]]:
    """The least cosine of each batch's gradient with those of the earlier tasks, before and after GEM changes it."""
    run = StreamRun(recipe, images, folder)
    episodes, before, after = run.method.episodes, [], []

    def least_cosine(update) -> float:
        gradient = update.gradient.clone()
        past = episodes.gradients(update)
        return float(torch.nn.functional.cosine_similarity(past, gradient[None]).min())

    class Checked(EpisodicMemory):
        def __call__(self, update):
            if run.method.network.classes > recipe.run.classes_per_step:
                before.append(least_cosine(update))
                super().__call__(update)
                after.append(least_cosine(update))

    episodes.__class__ = Checked
    run()
    return before, after


def test_gem_projects_its_gradients_alike_captured_and_eager(images, tmp_path):
    recipe = replace(
        RECIPE,
        method="gem",
        training=Schedule(2, 0.005),
        memory=Budget("per-step", 16, "random"),
        augmentation=Augmentation("none"),
        optimizer=Optimizer(batch_size=16, momentum=0.0, weight_decay=0.0, noise_eta=0.0),
    )
    fast, fast_result = losses_of(recipe, images, tmp_path / "fast")
    eager, eager_result = losses_of(replace(recipe, engine="eager"), images, tmp_path / "eager")
    np.testing.assert_allclose(fast[:6], eager[:6], rtol=0.05)
    assert fast_result["image_passes"] == eager_result["image_passes"]
    assert abs(fast_result["task_aware_accuracy"][-1] - eager_result["task_aware_accuracy"][-1]) < 12
    for name in ("fast", "eager"):
        before, after = cosines_with_the_past(replace(recipe, engine=name), images, tmp_path / f"again-{name}")
        assert len(before) == 2 * 2 * 8  # steps, epochs, batches
        assert min(before) < -0.03
        assert min(after) > -0.01
    together = run_many(
        [StreamRun(replace(recipe, run=replace(recipe.run, seed=seed)), images, tmp_path) for seed in (0, 1)]
    )
    assert abs(together[0]["task_aware_accuracy"][-1] - fast_result["task_aware_accuracy"][-1]) < 12
