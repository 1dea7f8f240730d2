"""A model as one file for other programs, ONNX or PyTorch's `.pt2`, written only if it answers as the model does."""

from __future__ import annotations

import copy
import io
import json
import logging
import math
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from treering import words
from treering.errors import TreeringError, first_line
from treering.model import Model, input_shape
from treering.prediction import LONGEST_SIDE, SHARE, threshold
from treering.runtime import files
from treering.runtime.pixels import join, tensor
from treering.session import own_precision
from treering.version import __version__
from treering.words import duration

logger = words.logger(__name__)

TOLERANCE = 1e-4
"""The largest difference that is allowed between a probability of the exported model and of this one."""
CHECKED = 64
"""About how many exemplars and held-out images the two models are compared on, if they are not large."""
CHECKED_PIXELS = CHECKED * 160 * 160
"""About how many pixels the network sees in this comparison: fewer images are compared where they are large."""
BATCH_PIXELS = 8 * 256 * 256
"""The most pixels that pass through the network at once, unless a single image has more."""
OUTPUTS = ["probabilities", "distances"]
"""The names of a file's outputs; only models that can tell unknown images have the second."""
LONG = 5.0
"""A comparison that takes more seconds than this is announced."""
Ask = Callable[[Tensor], Sequence[np.ndarray]]
"""Maps images to a model's answers."""


class Deployed(nn.Module):
    """Maps pixels 0..255, N x C x H x W at the size of the network's input, to probabilities N x classes.

    If the network's module gives distances, it gives them too.
    """

    columns: Tensor

    def __init__(self, network: nn.Module, columns: list[int]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("columns", torch.tensor(columns))

    def forward(self, images: Tensor) -> tuple[Tensor, ...] | Tensor:
        said = self.network(images)
        logits_NC, *distances_N = said if isinstance(said, tuple) else (said,)
        probabilities_NC = logits_NC.index_select(1, self.columns).softmax(1)
        return (probabilities_NC, *distances_N) if distances_N else probabilities_NC


def export(model: Model, out: Path) -> float:
    """Write `out` (.onnx or .pt2); return the largest difference that the check on the model's own images found."""
    method = model.method
    answering = method.answering()
    if answering is None:
        raise TreeringError(
            f"a model learnt with {method.recipe.method} cannot be exported: it does not classify by its logits, and "
            "export supports logits only"
        )
    require_name(out)
    pixels = _compared_on(model)
    deployed = Deployed(copy.deepcopy(answering).cpu().eval(), model.sorted_columns()).eval()
    with own_precision(torch.device("cpu")):
        with torch.no_grad():
            expected = _in_batches(_told(lambda part: _arrays(deployed(part)), len(pixels)), pixels)
        try:
            content, answers = (_onnx if out.suffix == ".onnx" else _pt2)(deployed, pixels, _facts(model, pixels))
        except TreeringError:
            raise
        except Exception as error:  # the exporter may raise anything for a user's network
            raise TreeringError(f"torch cannot export this network: {first_line(error)}") from None
    difference = float(np.abs(answers[0] - expected[0]).max())
    if not difference <= TOLERANCE:
        raise TreeringError(f"the exported model answers differently (by {difference:.2g}); {out} was not written")
    for found, wanted in zip(answers[1:], expected[1:], strict=True):
        if not np.abs(found - wanted).max() <= TOLERANCE * np.abs(wanted).max():
            raise TreeringError(f"the exported model measures other distances than this one; {out} was not written")
    try:
        files.write(out, content)
    except OSError as error:
        raise TreeringError(files.why(out, error)) from None
    return difference


def _compared_on(model: Model) -> Tensor:
    """Return images that the model keeps as its network sees them, N x C x H x W, or noise if it keeps none."""
    method = model.method
    kept = [*method.memory.exemplars.values(), *model.held_out.values()]
    every = sum(map(len, kept))
    seen = math.prod(input_shape(method.recipe, model.image_shape)[1:])
    count = min(CHECKED, max(2, CHECKED_PIXELS // seen))
    seeded = torch.Generator().manual_seed(0)
    noise = (torch.randint(256, model.image_shape, generator=seeded, dtype=torch.uint8) for _ in range(count))
    chosen = slice(None, None, max(1, every // count))  # some of every class
    checked = tensor(join(kept)[chosen]).cpu() if every else noise
    return torch.cat([method.plain(image[None]) for image in checked]).float()


def require_name(out: Path) -> None:
    """Raise unless a file of this name can be written."""
    if out.suffix not in (".onnx", ".pt2"):
        raise TreeringError(f"{out} must end in .onnx or .pt2")
    files.require_folder(out)


def _facts(model: Model, pixels: Tensor) -> dict[str, str]:
    """Return what users of the file have to know: the classes, and how an image becomes input."""
    held, seen = (f"{width} x {height}" for _, height, width in (model.image_shape, pixels.shape[1:]))
    twice = 2 * model.image_shape[1]  # as image files are read for learning
    resize = f"decode the image (a JPEG after Pillow's draft('RGB', ({twice}, {twice}))), turn it upright (EXIF), "
    resize += "put it on white where it is transparent, "
    resize += f"resize the whole of it to {held} as Pillow does with BILINEAR"
    if seen != held:
        resize += f", then to {seen} as torch's interpolate does with mode='bilinear', antialias=True, and round"
    channels, height, width = model.image_shape
    machine = {"channels": channels, "size": height, "input": pixels.shape[-1], "draft": twice}
    usual = model.usual_distances
    output, unknown = "probabilities: float32 N x classes", {}
    if usual is not None:
        output += "; distances: float32 N, squared, from the class that the image resembles most. The image resembles "
        output += "none if that is above the threshold in `unknown`, which the share of known images there exceeds. "
        output += "The quantiles of their distances, from 0 to 100 %, give the threshold for any other share"
        told = {"quantiles": sorted(usual.tolist()), "share": SHARE, "threshold": threshold(usual, SHARE)}
        unknown = {"unknown": json.dumps(told)}
    fits = height == width and max(height, pixels.shape[-1]) <= LONGEST_SIDE  # image files become squares of some size
    square = {"treering.preprocessing": json.dumps(machine)} if fits else {}
    return {
        "classes": json.dumps([str(name) for name in model.sorted_classes()]),
        "input": f"images: float32 N x {' x '.join(map(str, pixels.shape[1:]))}, RGB or grey, pixel values 0..255",
        "preprocessing": f"{resize}; normalisation is inside",
        "output": output,
        "treering": __version__,
        **unknown,
        **square,
    }


def _program(deployed: nn.Module, pixels: Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=4096)
    example = torch.zeros(2, *pixels.shape[1:])  # a file holds its example, which must not be anybody's photo
    with torch.no_grad():
        return torch.export.export(deployed, (example,), dynamic_shapes=({0: batch},))


def _onnx(deployed: nn.Module, pixels: Tensor, facts: dict[str, str]) -> tuple[bytes, list[np.ndarray]]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError:
        raise TreeringError("ONNX files need more packages: pip install 'treering[export]'") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chatty = logging.getLogger("torch.onnx")
        level = chatty.level
        chatty.setLevel(logging.ERROR)
        try:
            outputs = OUTPUTS if "unknown" in facts else OUTPUTS[:1]
            exported: Any = torch.onnx.export(
                _program(deployed, pixels), input_names=["images"], output_names=outputs, verbose=False
            )
        finally:
            chatty.setLevel(level)
    graph = exported.model_proto
    for key, value in facts.items():
        graph.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(graph)
    content = graph.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, _in_batches(lambda part: session.run(None, {"images": part.numpy()}), pixels)


def _pt2(deployed: nn.Module, pixels: Tensor, facts: dict[str, str]) -> tuple[bytes, list[np.ndarray]]:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the weights share memory, since the optimiser keeps them in one tensor
        torch.export.save(_program(deployed, pixels), buffer, extra_files=facts)
    loaded = torch.export.load(io.BytesIO(buffer.getvalue())).module()
    with torch.no_grad():
        return buffer.getvalue(), _in_batches(lambda part: _arrays(loaded(part)), pixels)


def _in_batches(ask: Ask, pixels: Tensor) -> list[np.ndarray]:
    """Return the answers for batches of two sizes at least, so that a fixed batch size would be noticed."""
    at_once = max(2, BATCH_PIXELS // pixels.shape[2:].numel())
    parts = [ask(part) for part in (pixels[:1], *pixels[1:].split(at_once)) if len(part)]
    return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]


def _told(ask: Ask, count: int) -> Ask:
    """Return the same function, which tells how long it takes to ask both models of so many images, if that is long."""
    begun = time.perf_counter()
    calls = iter([True])

    def asked(part: Tensor) -> Sequence[np.ndarray]:
        said = ask(part)
        seconds = 2 * count * (time.perf_counter() - begun) / len(part)
        if next(calls, False) and seconds > LONG:
            logger.warning("to compare the file with the model takes about %s", duration(seconds))
        return said

    return asked


def _arrays(outputs: Tensor | tuple[Tensor, ...]) -> list[np.ndarray]:
    return [output.numpy() for output in (outputs if isinstance(outputs, tuple | list) else (outputs,))]
