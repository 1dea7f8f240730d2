"""The file `.learning` in a model folder: how far an unfinished step has come, and which step it is."""

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
    """Return a digest of all parts, which together decide a result."""
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def of_photos(labels: Sequence[str], digests: Sequence[bytes], held_out: bool) -> str:
    """Return the fingerprint of a folder's photos, and of whether some of them are held out."""
    return fingerprint(repr(labels), str(held_out), *(digest.hex() for digest in digests))


class Unfinished:
    """The saved state of a step that is being learnt, in the folder of its model."""

    def __init__(self, path: Path, learner: Learner, photos: str) -> None:
        self.file = path / ".learning"
        manifest, recipe = path / "manifest.json", learner.resolved_recipe()
        before_it = manifest.read_bytes().hex() if files.exists(manifest) else recipe.to_toml()
        resized = [str(recipe.memory.size)] if is_resized(learner) else []  # the manifest has the old size
        self.fingerprint = fingerprint(before_it, str(learner.seed), photos, *resized)
        """A digest of the model before the step, and of all that the step brings."""

    def save(self, state: InFlight) -> None:
        """Write this state to the file."""
        tensors, fits = resume.pack(state)
        files.write(self.file, resume.to_bytes(tensors, {"fingerprint": self.fingerprint, "fits": fits}))

    def load(self) -> InFlight | None:
        """Return the state of this very step, if an earlier call has left one."""
        if not files.exists(self.file):
            return None
        try:
            tensors, facts = resume.read(self.file)
            if facts["fingerprint"] != self.fingerprint:
                logger.warning("%s is of a step with other images or settings, so the step starts anew", self.file)
                return None
            return resume.unpack(tensors, facts["fits"])
        except (safetensors.SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
            logger.warning("%s cannot be restored, so the step starts anew: %s", self.file, error)
            return None

    def remove(self) -> None:
        """Remove the file, since the step is learnt."""
        self.file.unlink(missing_ok=True)
