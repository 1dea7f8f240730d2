"""A check of a model folder: whether every file of every version is there, right and what its manifest says of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from treering.errors import TreeringError, UnjudgedError
from treering.runtime import files
from treering.storage import lock, model_folder, names
from treering.storage import manifest as manifests
from treering.storage.folder import Folder
from treering.storage.manifest import Manifest

MOST_PROBLEMS = 100
"""The most files that are told of a version: who knows so many restores it from a copy."""
Examine = Callable[[Folder, Manifest], object]
"""Reads a version completely and raises a TreeringError if it cannot be used."""


@dataclass(frozen=True)
class Version:
    """What was found of one version."""

    name: str
    """The file of its manifest."""
    manifest: Manifest | None
    """None if it cannot be read."""
    bytes: int
    problems: list[str]
    """What is wrong with it, a line each; empty if it is whole."""
    unjudged: bool = False
    """Whether the problems are only that it cannot be looked at here and now, so that it may be whole."""


@dataclass(frozen=True)
class Findings:
    """What was found in a model folder."""

    versions: list[Version]
    """The current version, then the earlier ones, the last first."""
    leftovers: dict[str, int]
    """The files that no version names although treering made them, and their sizes."""
    foreign: list[str]
    """What treering did not make, links among it."""

    @property
    def problems(self) -> list[str]:
        """What is wrong with any version."""
        return [problem for version in self.versions for problem in version.problems]


def check(path: Path, examine: Examine) -> Findings:
    """Look at every version in a model folder; look again if a writer replaces the model meanwhile."""
    with manifests.opened(path) as folder:
        while True:
            before = _content(folder)
            found = _findings(folder, examine)
            if _content(folder) == before:
                return found


def repair(path: Path, examine: Examine) -> Findings:
    """Go back to the last version that is whole, if the current one is not, and remove what is left over."""
    with manifests.opened(path):
        pass  # there is such a folder, so none is made
    with lock.writing(path) as folder:
        found = _findings(folder, examine)
        whole = next((number for number, version in enumerate(found.versions) if not version.problems), None)
        for version in found.versions[:whole]:
            if version.unjudged:
                raise TreeringError(f"{version.problems[0]}; it may be whole, so nothing is repaired")
        if whole is None:
            raise TreeringError(f"no version in {path} is whole: restore it from a copy of the model folder")
        if whole:
            newer = [version.name for version in found.versions[1:whole]]
            chosen = found.versions[whole].name
            model_folder.put_back(folder, chosen, manifests.read_earlier(folder, chosen)[1], newer)
        else:
            model_folder.clean(folder, None)
        return _findings(folder, examine)


def _content(folder: Folder) -> bytes | None:
    try:
        return folder.read(manifests.NAME, manifests.LARGEST)
    except (OSError, TreeringError):
        return None


def _findings(folder: Folder, examine: Examine) -> Findings:
    versions = [_version(folder, manifests.NAME, examine)]
    try:
        versions += [_version(folder, name, examine) for name in reversed(manifests.earlier(folder))]
    except TreeringError as error:  # there are too many, or something else is in the place of their folder
        versions.append(Version("previous", None, 0, [str(error)]))
    known = [version.manifest for version in versions if version.manifest]
    foreign = [
        item.name
        for item in folder.walk()
        if not (names.is_ours(item.name) and item.kind != "other")
        and not (item.kind == "file" and files.is_clutter(item.name.rpartition("/")[2]))
    ]
    hidden = any(version.unjudged and not version.manifest for version in versions)  # which may name any of the files
    return Findings(versions, {} if hidden else model_folder.unnamed(folder, known), foreign)


def _version(folder: Folder, name: str, examine: Examine) -> Version:
    try:
        manifest = manifests.read(folder) if name == manifests.NAME else manifests.read_earlier(folder, name)[0]
    except TreeringError as error:
        return Version(name, None, 0, [str(error)], isinstance(error, UnjudgedError))
    problems, size = list[TreeringError](), folder.size(name)
    try:
        examine(folder, manifest)
    except TreeringError as error:
        problems = _problems(folder, manifest, error)
    for entry in manifest.files:
        with contextlib.suppress(TreeringError):  # it is a problem already
            size += folder.size(entry.name)
    unjudged = bool(problems) and all(isinstance(problem, UnjudgedError) for problem in problems)
    return Version(name, manifest, size, [str(problem) for problem in problems], unjudged)


def _problems(folder: Folder, manifest: Manifest, first: TreeringError) -> list[TreeringError]:
    """Return the problem at which the examination of a version has ended, and those of its other files."""
    problems = [first]
    for entry in manifest.files:
        if len(problems) == MOST_PROBLEMS:
            return [*problems, TreeringError(f"{folder.path} may have more problems, which were not looked for")]
        if entry.name not in str(first):  # a file that is too large has not been read, and is not
            try:
                model_folder.require_whole(folder, manifest, entry)
            except TreeringError as error:
                problems.append(error)
    return problems
