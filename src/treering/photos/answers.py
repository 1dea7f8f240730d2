"""The command `predict`: photos are told, one line each, as they are given and as they appear in a folder."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from treering import prediction, words
from treering.errors import TreeringError
from treering.photos.sorting import Copy, Sorter
from treering.photos.watch import Watch
from treering.prediction import Prediction, Teller
from treering.runtime import files
from treering.terminal import Terminal

logger = words.logger(__name__)


@dataclass(frozen=True)
class Question:
    """What a call of `predict` asks."""

    model: Path
    """A model's folder, or an exported .onnx file."""
    inputs: Sequence[Path]
    top: int = 3
    device: str = "auto"
    threads: int | None = None
    watch: Path | None = None
    """A folder whose new photos are told until the command is interrupted."""
    sort_into: Path | None = None
    """The folder that gets a copy of each photo, in a folder of the photo's class."""
    unknown: float | None = None
    """The share of photos of known classes that may be called unknown; None for the usual one where it can be told."""


def answer(question: Question, printer: Answers) -> bool:
    """Tell of every photo; return whether all could be read and copied."""
    if not question.inputs and not question.watch:
        raise TreeringError("no photo is given: name images, folders of images or --watch FOLDER")
    sorter = None
    if question.sort_into:
        places = [question.model, *question.inputs, *([question.watch] if question.watch else [])]
        sorter = Sorter(question.sort_into, places)
    source = Source(question)
    watch = Watch(question.watch) if question.watch else None  # before the inputs are listed: no photo is missed
    good = True

    def tell(paths: Sequence[Path]) -> None:
        nonlocal good
        for start in range(0, len(paths), prediction.BATCH):
            part = paths[start : start + prediction.BATCH]
            for found in source.teller().predictions(part, question.top):
                copied, copy = _sorted(found, sorter)
                printer.show(copied, copy)
                good &= copied.error is None
                if found.error and watch:
                    watch.unreadable(found.file)

    given = prediction.files_in(question.inputs) if question.inputs else []
    if watch:
        watch.leave_out(given)
    tell(given)
    while watch:
        tell(watch.complete())
        time.sleep(watch.pause)
    return good


def _sorted(found: Prediction, sorter: Sorter | None) -> tuple[Prediction, Copy | None]:
    """Copy a photo that could be read; return with it what is known of it, which may be that it cannot be copied."""
    if sorter is None or found.error:
        return found, None
    try:
        return found, sorter.copy(found.file, None if found.unknown else found.classes[0][0])
    except OSError as error:
        return replace(found, error=f"cannot be copied into {sorter.folder}: {error.strerror or error}"), None


class Source:
    """What answers by a model; it is loaded anew when the model has a new version."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.is_folder = files.is_folder(question.model) or question.model.suffix != ".onnx"
        if question.model.suffix == ".pt2" and not files.is_folder(question.model):
            raise TreeringError(f"{question.model} is a program for PyTorch: give the model's folder, or an .onnx file")
        self._version = self._latest()
        self._teller = self._load().refusing(question.unknown)

    def teller(self) -> Teller:
        """Return what answers by the model as it is now; a version that cannot be read leaves the one before it."""
        latest = self._latest()
        if latest != self._version:
            self._version = latest
            try:
                self._teller = self._load().refusing(self.question.unknown)
            except TreeringError as error:
                logger.warning("the model as it was before still answers: %s", error)
        return self._teller

    def _latest(self) -> tuple[int, int, int] | None:
        """Return what tells two versions apart."""
        model = self.question.model
        try:
            status = (model / "manifest.json" if self.is_folder else model).stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _load(self) -> Teller:
        question = self.question
        if not self.is_folder:
            from treering.photos import exported

            if question.device not in ("auto", "cpu"):
                raise TreeringError(f"an exported file answers on the CPU: leave out --device {question.device}")
            return exported.opened(question.model, question.threads)
        from treering import evaluation  # this loads PyTorch, which takes seconds
        from treering.learner import Learner

        return evaluation.teller(Learner.load(question.model, device=question.device).learnt_model())


class Answers(Terminal):
    """Prints what photos show, in words or as JSON, one line for each."""

    def __init__(self, console: Console, error: Console, as_json: bool) -> None:
        super().__init__(console)
        self.error, self.as_json = Terminal(error), as_json

    def show(self, found: Prediction, copy: Copy | None) -> None:
        """Print one line."""
        if self.as_json:
            record: dict[str, Any] = {
                "file": str(found.file),
                "predictions": [{"class": name, "probability": round(value, 6)} for name, value in found.classes],
            }
            if found.unknown is not None:
                record["unknown"] = found.unknown
            record |= {"error": found.error} if found.error else {}
            record |= {"copy": str(copy.file)} if copy else {}
            self.console.file.write(json.dumps(record) + "\n")
            self.console.file.flush()  # another program may wait for this line
        elif found.error:
            self.error.line(f"{found.file}: {found.error}")
        else:
            words = ", ".join(f"{name} {100 * value:.1f} %" for name, value in found.classes)
            words = f"unknown (most like {words})" if found.unknown else words
            where = f"; {'copied to' if copy.is_new else 'already in'} {copy.file}" if copy else ""
            self.line(f"{found.file}: {words}{where}")
