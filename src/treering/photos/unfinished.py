"""The file `.learning` in a model folder: how far an unfinished step has come, and which step it is.

A model may know the step's classes already, by what was solved before training began. Then training goes on from the
version before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from treering import model, session, words
from treering.core.trainer import InFlight
from treering.errors import TreeringError, is_out_of_memory
from treering.learner import Learner
from treering.methods.base import Method
from treering.photos.settings import is_resized
from treering.recipe import Schedule
from treering.runtime.device import find_device
from treering.storage import manifest as manifests
from treering.storage import names, resume
from treering.storage.folder import Folder
from treering.storage.manifest import LARGEST
from treering.storage.tensors import LARGEST_HEADER

logger = words.logger(__name__)

MOST_OF_GENERATOR = 2**14
"""The most bytes of the state of a random generator."""


def fingerprint(*parts: str) -> str:
    """Return a digest of all parts, which together decide a result."""
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def of_photos(labels: Sequence[str], digests: Sequence[bytes], held_out: bool) -> str:
    """Return the fingerprint of a folder's photos, and of whether some of them are held out."""
    return fingerprint(repr(labels), str(held_out), *(digest.hex() for digest in digests))


class Before(NamedTuple):
    """What a model was before a step."""

    learner: Learner
    file: str | None
    """The manifest of that version; None if it is not of any yet."""


def before_last_step(folder: Folder, learner: Learner) -> Before:
    """Return what the model in an open folder was before its last step; raise if that version cannot be used."""
    if len(learner.history_) == 1:
        return Before(Learner(recipe=learner.resolved_recipe(), seed=learner.seed, device=learner.device), None)
    try:
        file = manifests.earlier_than(folder, manifests.read(folder))[-1]
        read = model.read(None, find_device(learner.device), folder, manifests.read_earlier(folder, file)[0])
        if read.history != learner.history_[:-1]:
            raise LookupError
    except (LookupError, OSError, TreeringError) as error:
        why = "it is gone" if isinstance(error, LookupError) else getattr(error, "strerror", None) or error
        knows = f"{folder.path} knows these classes by what was solved, but cannot be trained on them any more"
        raise TreeringError(f"{knows}, since training begins at the version before this step ({why})") from None
    before = Learner.of(read, device=learner.device)
    before.memory = learner.memory
    return Before(before, file)


class Unfinished:
    """The saved state of a step that is being learnt, in the open folder of its model, if it has one."""

    def __init__(self, folder: Folder | None, before: Before, photos: str, training: Schedule) -> None:
        self.folder, self.learner, self.training = folder, before.learner, training
        learner, recipe = before.learner, before.learner.resolved_recipe()
        before_it = folder.read(before.file, LARGEST).hex() if folder and before.file else recipe.to_toml()
        if training != recipe.training:
            photos += repr(training)
        resized = [str(recipe.memory.size)] if is_resized(learner) else []  # the manifest has the old size
        self.fingerprint = fingerprint(before_it, str(learner.seed), photos, *resized)
        """A digest of the model before the step, and of all that the step brings."""

    def save(self, state: InFlight) -> None:
        """Write this state to the file."""
        tensors, fits = resume.pack(state)
        content = resume.to_bytes(tensors, {"fingerprint": self.fingerprint, "fits": fits})
        self._folder().write(names.LEARNING, content)

    def load(self, new_classes: int) -> InFlight | None:
        """Return the state of this very step, which adds so many classes, if an earlier call has left one."""
        if not self.folder:
            return None
        try:
            return self._read(self.folder, new_classes) if self.folder.exists(names.LEARNING) else None
        except (OSError, LookupError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            file = self.folder.path / names.LEARNING
            logger.warning("%s cannot be restored, so the step starts anew: %s", file, error)
            return None

    def _read(self, folder: Folder, new_classes: int) -> InFlight | None:
        method, recipe = self._method(), replace(self.learner.resolved_recipe(), training=self.training)
        classes = method.network.classes + new_classes
        tensors, momenta = model.trained_specs(method, classes), model.momenta_of(method, classes)
        one = sum(spec.bytes for spec in tensors.values()) + 4 * momenta + MOST_OF_GENERATOR
        content = folder.read(names.LEARNING, 8 + LARGEST_HEADER + 2 * one)
        parts, facts = resume.parse(content)
        if facts["fingerprint"] != self.fingerprint:
            file = folder.path / names.LEARNING
            logger.warning("%s is of a step with other images or settings, so the step starts anew", file)
            return None
        in_flight = resume.unpack(parts, facts["fits"])
        if in_flight:
            model.require_fits(in_flight, method, recipe, classes)
        return in_flight

    def _method(self) -> Method:
        """Return the method before the step; that of a new model is built for this, and for nothing else."""
        if self.learner.model:
            return self.learner.model.method
        recipe, device = self.learner.resolved_recipe(), find_device(self.learner.device)
        blank = torch.zeros(2, 3, recipe.run.image_size, recipe.run.image_size, dtype=torch.uint8)
        return session.begin(recipe, blank, self.learner.seed, device)

    def remove(self) -> None:
        """Remove the file, since the step is learnt."""
        self._folder().remove(names.LEARNING)

    def _folder(self) -> Folder:
        assert self.folder, "a dry run writes nothing"
        return self.folder
