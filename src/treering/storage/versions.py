"""The manifests of earlier versions in `previous/`, which are numbered in the order in which they were saved."""

from __future__ import annotations

from treering.storage import manifest as manifests
from treering.storage.folder import Folder


def add(folder: Folder, content: bytes) -> None:
    """Keep this content of a manifest as that of the last earlier version, unless it is there already."""
    earlier = manifests.earlier(folder)
    if earlier and folder.read(earlier[-1], manifests.LARGEST) == content:  # a writer was killed just then
        return
    following = manifests.number(earlier[-1]) + 1 if earlier else 1
    if following >= manifests.HIGHEST:
        following = _renumber(folder, earlier)
    folder.write(manifests.earlier_name(following), content)


def _renumber(folder: Folder, earlier: list[str]) -> int:
    """Give earlier versions the numbers from 0, in their order; return the number that follows.

    No version gets a higher number than it had. All copies are written before the first file goes, so that the last
    version stays the last whenever a writer is killed.
    """
    names = [manifests.earlier_name(number) for number in range(len(earlier))]
    for old, new in zip(earlier, names, strict=True):
        if old != new:
            folder.write(new, folder.read(old, manifests.LARGEST))
    for old in earlier:
        if old not in names:
            folder.remove(old)
    return len(names)
