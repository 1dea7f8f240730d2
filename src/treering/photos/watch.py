"""Photos that appear in a folder, found by looking into it again and again."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

from treering.errors import TreeringError
from treering.runtime import files

PAUSE = 0.5
"""The least number of seconds between two looks."""
SHARE = 0.05
"""The largest share of the time that looking takes: a folder of very many files is looked into less often."""
SETTLED = 1.0
"""A photo is complete once it has not changed for so many seconds."""
DOWNLOADS = (".part", ".partial", ".crdownload", ".download", ".filepart", ".tmp")
"""How the names of files end that programs rename once they are complete."""

State = tuple[int, int, int]


class Watch:
    """The photos that appear in a folder from now on, those in the folders below it left out.

    A photo is told once, when it is complete; another file under the same name is another photo.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pause = PAUSE
        self._told = self._look()
        """Each file that is known already, with its number in the file system."""
        self._growing: dict[str, tuple[State | None, float]] = {}
        """Each file that may not be complete: how it was, and since when it has been so."""

    def leave_out(self, photos: Sequence[Path]) -> None:
        """Take photos, which may have appeared since the watch began, for ones that are told already."""
        names = {photo.name for photo in photos if photo.parent == self.folder}
        self._told |= {name: number for name, number in self._look().items() if name in names}

    def complete(self) -> list[Path]:
        """Return the photos that have become complete since the last call."""
        found, now = self._look(), time.monotonic()
        self._told = dict(self._told.items() & found.items())
        self._growing = {name: self._growing.get(name, (None, now)) for name in found if name not in self._told}
        complete = []
        for name, (before, since) in self._growing.items():
            try:
                status = (self.folder / name).stat()
            except OSError:  # it is gone again
                continue
            state = (status.st_ino, status.st_size, status.st_mtime_ns)
            if state != before:
                self._growing[name] = (state, now)
            elif status.st_size and now - since >= SETTLED:
                complete.append(self.folder / name)
                self._told[name] = found[name]
        return sorted(complete)

    def unreadable(self, photo: Path) -> None:
        """Tell a photo that could not be read again once it has changed: its copying may have been slow."""
        if self._told.pop(photo.name, None) is not None:
            self._growing[photo.name] = (self._growing[photo.name][0], math.inf)

    def _look(self) -> dict[str, int]:
        """Return each file of the folder with its number in the file system."""
        began = time.perf_counter()
        try:
            with os.scandir(self.folder) as entries:
                found = {entry.name: entry.inode() for entry in entries if _may_be_photo(entry)}
        except OSError as error:
            raise TreeringError(f"cannot watch {self.folder}: {error.strerror}") from None
        self.pause = max(PAUSE, (time.perf_counter() - began) / SHARE)
        return found


def _may_be_photo(entry: os.DirEntry[str]) -> bool:
    name = entry.name
    return not files.is_clutter(name) and not name.lower().endswith(DOWNLOADS) and entry.is_file()
