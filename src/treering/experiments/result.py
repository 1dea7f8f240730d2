"""Result files: how a run's are called."""

from __future__ import annotations

from treering import methods
from treering.recipe import Recipe


def method_label(recipe: Recipe) -> str:
    """The method's name in results."""
    return methods.find(recipe.method).label(recipe)


def run_name(recipe: Recipe, method: str | None = None) -> str:
    """The name of a run's files; `method` names another readout of it."""
    sizes = recipe.run.classes_per_step
    steps = str(sizes) if isinstance(sizes, int) else "+".join(map(str, sizes))
    memory = f"{recipe.memory.kind}{recipe.memory.size}-{recipe.memory.selection}"
    if not methods.find(recipe.method).keeps_memory:
        memory = "no-memory"
    label = method or method_label(recipe)
    return f"{recipe.run.dataset}-{steps}-{label}-{memory}-order{recipe.run.order}-seed{recipe.run.seed}"
