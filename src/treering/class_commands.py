"""The commands that change which classes a model knows, without learning: `forget`, `rename`, `merge` and `undo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from treering.terminal import Terminal, interruptible
from treering.words import counted

if TYPE_CHECKING:
    from treering.storage.manifest import Manifest

ModelPath = Annotated[Path, typer.Argument(help="The model's folder.", readable=False)]
"""A path that typer does not check, so that treering itself can say what is wrong with it."""
AGAIN = "interrupted; every version of the model is whole: run the same command again to finish"


def forget(
    model: ModelPath,
    classes: Annotated[list[str], typer.Argument(metavar="CLASS...", help="The names of the classes.")],
) -> None:
    """Take classes out of a model and out of all its earlier versions."""
    from treering import changes
    from treering.storage import manifest

    before = manifest.of(model)
    known = [changes.label_of(name, before.classes) for name in dict.fromkeys(classes)]
    with interruptible(AGAIN):
        versions = changes.in_folder(model, changes.Forget(known))
    for label in known:
        _line(_forgotten(before, before.classes.index(label)))
    changed = f"{counted(versions, 'version')} {'was' if versions == 1 else 'were'} changed"
    _line(f"{changed}; what {'it' if len(known) == 1 else 'they'} shared stays {_what_stays(before)}")


def rename(
    model: ModelPath,
    old: Annotated[str, typer.Argument(help="The class.")],
    new: Annotated[str, typer.Argument(help="Its new name.")],
) -> None:
    """Give a class another name."""
    from treering import changes
    from treering.storage import manifest

    known = manifest.of(model).classes
    change = changes.Rename(changes.label_of(old, known), changes.new_label(new, known))
    with interruptible(AGAIN):
        versions = changes.in_folder(model, change)
    _line(f"{change.old} is called {change.new} now, in {counted(versions, 'version')}")


def merge(
    model: ModelPath,
    kept: Annotated[str, typer.Argument(metavar="A", help="The class that stays.")],
    gone: Annotated[str, typer.Argument(metavar="B", help="The class whose photos become A's.")],
) -> None:
    """Make the photos of a class photos of another."""
    from treering import changes
    from treering.storage import manifest

    known = manifest.of(model).classes
    change = changes.Merge(*(changes.label_of(name, known) for name in (kept, gone)))
    with interruptible(AGAIN):
        versions = changes.in_folder(model, change)
    after = manifest.of(model)
    count = len(after.files.memory[after.classes.index(change.kept)])
    what = f"the photos of {change.gone} are of {change.kept} now, in {counted(versions, 'version')}"
    _line(f"{what[0].upper()}{what[1:]}; of both together {counted(count, 'exemplar')} stay")


def undo(model: ModelPath) -> None:
    """Go back to the model before its last step."""
    from treering import undo as go_back
    from treering.storage import manifest

    go_back(model)
    classes = manifest.of(model).classes
    _line(f"{model} knows {len(classes)} classes again: {', '.join(map(str, classes))}")


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    for command in (forget, rename, merge, undo):
        app.command()(command)


def _forgotten(before: Manifest, column: int) -> str:
    """Return what went with a class."""
    files, solved = before.files, _is_solved(before)
    parts = [counted(len(files.memory[column]), "exemplar")] if files.memory[column] else []
    parts += [counted(len(files.held_out[column]), "held-out photo")] if files.held_out[column] else []
    parts += ["its head", "its sums"] if solved else ["its head"]
    what = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    verb = "is" if parts == ["its head"] else "are"
    return f"{before.classes[column]}: {what} {verb} gone"


def _what_stays(before: Manifest) -> str:
    """Return what a model keeps of a class that it has forgotten."""
    covariance = "in the covariance of all classes and in hashes of photos that match none any more"
    if not _is_solved(before):
        return "in the weights that were trained on its photos"
    trained = ", and in the network's weights if training them has helped"
    return covariance + trained * (before.recipe["method"] == "tuned")


def _is_solved(before: Manifest) -> bool:
    from treering import methods

    return methods.find(before.recipe["method"]).merges


def _line(text: str) -> None:
    Terminal(Console(emoji=False)).line(text)
