"""The ready recipes, several in a file, and how recipe files are read.

A recipe file is TOML with settings of `treering.recipe.Recipe`; what it leaves out has its default. It may also have
- `base`: the recipe that it builds on instead of the defaults: a ready recipe by its name or, in a file of your own,
  another file in the same folder by its name;
- `about`: what the recipe is, in one line;
- `[names]`, only in the files of this folder: the recipes of the file, each with the settings that set it apart from
  the others. A file without this table is one recipe, which bears the file's name.
"""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from treering.checked import brief
from treering.errors import TreeringError, nearest
from treering.runtime.files import exists
from treering.runtime.files import read as read_file

Table = Mapping[str, Any]
"""Settings by their names; those of a section are in a table of their own, as in TOML."""
LARGEST = 2**16
"""The most bytes of a recipe file; the ready ones have fewer than a thousand."""
MOST_PARTS = 1000
"""The most dots and opening brackets in a recipe file: long keys and deep lists take far more memory than space."""
MOST_FILES = 10
"""The most recipes that build on each other."""


@dataclass(frozen=True)
class RecipeFile:
    """The content of one file."""

    source: str
    """The file's path or, of ready recipes, its name."""
    settings: Table
    base: str = ""
    about: str = ""
    names: Mapping[str, Table] = field(default_factory=dict)
    """The recipes of the file, each with the settings that it adds to those of the file."""

    def overview(self) -> list[str]:
        """What the file's recipes are, in a line each, below a common heading where there are several."""
        if len(self.names) == 1:
            return [f"{name:<28}{self.about}" for name in self.names]
        lines = {name: " ".join(_as_changes(own)) for name, own in self.names.items()}
        return [self.about, *(f"  {name:<26}{line}" for name, line in lines.items())]


def _as_changes(table: Table, section: str = "") -> Iterator[str]:
    """Settings as `--set` takes them, such as "run.order=1"."""
    for name, value in table.items():
        yield from _as_changes(value, f"{name}.") if isinstance(value, Mapping) else [f"{section}{name}={value}"]


@functools.cache
def ready_files() -> list[RecipeFile]:
    """The files of all ready recipes."""
    contents = {file.name: file.read_bytes() for file in files(__name__).iterdir() if file.name.endswith(".toml")}
    found = [_parse(contents[name], name) for name in sorted(contents, key=lambda name: name.removesuffix(".toml"))]
    return [replace(file, names=file.names or {file.source.removesuffix(".toml"): {}}) for file in found]


@functools.cache
def _ready() -> dict[str, tuple[RecipeFile, Table]]:
    """Every ready recipe by its name: its file, and the settings that it adds to those of the file."""
    return {name: (file, own) for file in ready_files() for name, own in file.names.items()}


def ready_names() -> list[str]:
    """The names of all ready recipes, sorted."""
    return sorted(_ready())


def find(name: str, folder: Path = Path(), above: tuple[str, ...] = ()) -> list[tuple[str, Table]]:
    """What a ready recipe or a file sets, as pairs of a source and its settings; each pair builds on those before it.

    A path is relative to `folder`; `above` are the recipes that build on this one, which then must not be a link.
    """
    if name in _ready():
        file, own = _ready()[name]
        return [*_with_bases(file, name, folder, above), (name, own)]
    if not name.endswith(".toml") and not exists(folder / name):
        raise TreeringError(f"no file and no ready recipe is called {name}; {nearest(name, ready_names())}")
    return read(folder / name, above)


def read(path: Path, above: tuple[str, ...] = ()) -> list[tuple[str, Table]]:
    """What a file sets, in the form of `find`."""
    try:
        file = _parse(read_file(path, LARGEST, through_links=not above), str(path))
    except OSError as error:
        raise TreeringError(f"cannot read the recipe {path}: {error.strerror}") from None
    if file.names:
        raise TreeringError(f"{path}: only ready recipes have a table [names]: write a file for each recipe")
    return _with_bases(file, os.path.realpath(path), path.parent, above)


def _with_bases(file: RecipeFile, identity: str, folder: Path, above: tuple[str, ...]) -> list[tuple[str, Table]]:
    """What the bases of a file set, the lowest first, and what the file itself sets."""
    if identity in above:
        raise TreeringError(f"{file.source} builds on itself: remove a base from this circle")
    if len(above) == MOST_FILES:
        raise TreeringError(f"{file.source} is beyond the {MOST_FILES} recipes of a chain: write some of them as one")
    if {"/", "\\", ":", "\0"} & set(file.base):
        wrong = f"not {brief(file.base)}"
        raise TreeringError(f"{file.source}: base must be a ready recipe or the name of a file beside it, {wrong}")
    try:
        bases = find(file.base, folder, (*above, identity)) if file.base else []
    except TreeringError as error:
        raise TreeringError(f"the base of {file.source}: {error}") from None
    return [*bases, (file.source, file.settings)]


def _parse(content: bytes, source: str) -> RecipeFile:
    if sum(content.count(letter) for letter in (b".", b"[", b"{")) > MOST_PARTS:
        raise TreeringError(
            f"{source} has more than {MOST_PARTS:,} dots and brackets, which no recipe needs: shorten it"
        )
    try:
        settings = tomllib.loads(content.decode())
    except RecursionError:
        raise TreeringError(f"{source} has lists or tables that lie too deep within each other: remove them") from None
    except ValueError as error:  # of the encoding, of TOML, or of a number with thousands of digits
        raise TreeringError(f"{source} is not a TOML file: {error}") from None
    special = {key: settings.pop(key) for key in ("base", "about", "names") if key in settings}
    for key in ("base", "about"):
        if not isinstance(special.get(key, ""), str):
            raise TreeringError(f"{source}: {key} must be a text, not {brief(special[key])}")
    return RecipeFile(source, settings, **special)
