"""The file `.learning` in a model folder: how far an unfinished step has come, and of which step it is."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import safetensors

from treering.core.trainer import InFlight
from treering.learner import Learner
from treering.photos.settings import is_resized
from treering.runtime import files
from treering.storage import resume

logger = logging.getLogger(__name__)


def fingerprint(*parts: str) -> str:
    """Return a digest of all that decides a result."""
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def of_photos(labels: Sequence[str], digests: Sequence[bytes], held_out: bool) -> str:
    """Return the fingerprint of a folder's photos, and of whether some of them are held out."""
    return fingerprint(repr(labels), str(held_out), *(digest.hex() for digest in digests))


class Unfinished:
    """Where a step stands in its training, kept beside the model it is to become."""

    def __init__(self, path: Path, learner: Learner, photos: str) -> None:
        self.file = path / ".learning"
        manifest, recipe = path / "manifest.json", learner.resolved_recipe()
        before_it = manifest.read_bytes().hex() if files.exists(manifest) else recipe.to_toml()
        resized = [str(recipe.memory.size)] if is_resized(learner) else []  # the manifest has the size before
        self.fingerprint = fingerprint(before_it, str(learner.seed), photos, *resized)
        """It tells the model before the step, and all that the step brings."""

    def save(self, state: InFlight) -> None:
        """Keep this state."""
        tensors, fits = resume.pack(state)
        files.write(self.file, resume.to_bytes(tensors, {"fingerprint": self.fingerprint, "fits": fits}))

    def load(self) -> InFlight | None:
        """Return the state of this very step, if an earlier call had begun it."""
        if not files.exists(self.file):
            return None
        try:
            tensors, facts = resume.read(self.file)
            if facts["fingerprint"] != self.fingerprint:
                logger.warning("%s is of a step with other images or settings, and is not taken up", self.file)
                return None
            return resume.unpack(tensors, facts["fits"])
        except (safetensors.SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
            logger.warning("%s cannot be taken up, so the step starts anew: %s", self.file, error)
            return None

    def remove(self) -> None:
        """Forget it: the step is learnt."""
        self.file.unlink(missing_ok=True)
