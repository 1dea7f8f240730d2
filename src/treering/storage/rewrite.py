"""Changes every version in a model folder, so that what is taken out of a model is in none of its files.

The files of all versions are written first and read again. Then their manifests are replaced, each in one rename, the
earlier ones first and the current one last. So a crash at any moment leaves versions that are whole, and the same call
goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from treering import words
from treering.errors import TreeringError
from treering.storage import lock, model_folder, names
from treering.storage import manifest as manifests
from treering.storage.folder import Folder
from treering.storage.manifest import Manifest
from treering.storage.model_folder import Content

logger = words.logger(__name__)


class Change(Protocol):
    """What is to be done to each version."""

    def require(self, folder: Folder, manifest: Manifest, is_current: bool) -> None:
        """Raise, before anything is changed, if it cannot be done to a version; it is to be done to the current one."""

    def concerns(self, manifest: Manifest) -> bool:
        """Return whether it changes anything in an earlier version."""

    def content(self, folder: Folder, manifest: Manifest) -> Content | None:
        """Return what a version will be; None if nothing is left of it."""

    def examine(self, folder: Folder, manifest: Manifest) -> object:
        """Raise if a version whose files are written cannot be used."""


def every_version(path: Path, change: Change) -> int:
    """Change the model at `path` and all earlier versions that the change concerns; return how many there were."""
    manifests.of(path)  # raises if there is no model
    with lock.writing(path) as folder:
        model_folder.clean(folder, None)  # a writer that was killed may have left files that hold what is to go
        current = manifests.read(folder)
        change.require(folder, current, True)
        versions = {name: manifest for name, manifest in _earlier(folder, current).items() if change.concerns(manifest)}
        for manifest in versions.values():
            change.require(folder, manifest, False)
        versions[manifests.NAME] = current
        for name, manifest in versions.items():
            _require_whole(folder, name, manifest)
        try:
            written = {name: _written(folder, name, manifest, change) for name, manifest in versions.items()}
        except BaseException:
            model_folder.clean(folder, None)
            raise
        if folder.exists(names.LEARNING):
            logger.warning("the unfinished step in %s continues the model as it was, so it is removed", path)
            folder.remove(names.LEARNING)
        _put_in_place(folder, written)
        model_folder.clean(folder, None)
        kept = [
            manifests.read(folder),
            *(manifests.read_earlier(folder, name)[0] for name in manifests.earlier(folder)),
        ]
        if left := model_folder.unnamed(folder, kept):
            raise TreeringError(f"{path / min(left)} could not be removed, though the model is changed: remove it")
        return len(versions)


def _earlier(folder: Folder, current: Manifest) -> dict[str, Manifest]:
    """Return the earlier versions by the names of their manifests, oldest first."""
    found = {}
    for name in manifests.earlier(folder):
        try:
            found[name] = manifests.read_earlier(folder, name)[0]
        except TreeringError as error:
            raise TreeringError(f"{error}; or remove this earlier version, then try again") from None
        if found[name] == current:  # a writer that was killed has put the current one there
            folder.remove(name)
            del found[name]
    return found


def _require_whole(folder: Folder, name: str, manifest: Manifest) -> None:
    try:
        for entry in manifest.files:
            model_folder.require_whole(folder, manifest, entry)
    except TreeringError as error:
        if name == manifests.NAME:
            raise
        raise TreeringError(f"{error}; or remove the earlier version {folder.path / name}, then try again") from None


def _written(folder: Folder, name: str, manifest: Manifest, change: Change) -> bytes | None:
    """Write the files of one version anew beside its old ones; return its manifest, None if nothing is left of it."""
    content = change.content(folder, manifest)
    if content is None:
        return None
    files = model_folder.write_files(folder, content, manifest)
    facts = content.facts | {"generator": asdict(manifest.generator)}  # one of another device is kept too
    made = manifests.made(facts, asdict(files)) | {"saved": manifest.saved}
    try:
        change.examine(folder, manifests.checked(made, folder.path / name))
    except TreeringError as error:
        what = "the change would make a model that cannot be used, so nothing is changed"
        raise TreeringError(f"{what}: {error}") from None
    return manifests.sealed(made)


def _put_in_place(folder: Folder, written: Mapping[str, bytes | None]) -> None:
    """Have the manifest of each version take the place of the old one."""
    for changed, (name, content) in enumerate(written.items()):
        try:
            if content is None:
                folder.remove(name)
            else:
                folder.write(name, content)
        except OSError as error:
            if not changed:
                raise
            what = f"{changed} of {len(written)} versions in {folder.path} are changed already"
            raise TreeringError(f"{what}: {error.strerror or error}; run the same command again to finish") from error
