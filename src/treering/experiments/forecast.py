"""What it would take to run some recipes: image passes, time, and the datasets that are missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treering import data, methods
from treering.data.stream import split_steps
from treering.errors import TreeringError
from treering.experiments.result import finished, run_name, state_file
from treering.experiments.scheduler import Place
from treering.methods import speed
from treering.recipe import Recipe


@dataclass(frozen=True)
class Forecast:
    """What one run would take."""

    name: str
    image_passes: int
    seconds: float
    """The time that it would take alone, at the speed of this device just now."""
    state: str
    """One of "to do", "unfinished", "done" and "another run is in the way"."""
    lacks: str | None
    """A message about its dataset, if that is missing and the run is to do."""

    @property
    def to_do(self) -> bool:
        """Whether anything is left to be run."""
        return self.state in ("to do", "unfinished")


def forecast(recipes: Sequence[Recipe], place: Place) -> list[Forecast]:
    """Forecast what each recipe would take; their datasets must be the paper's."""
    rates: dict[tuple[object, ...], float] = {}
    made = []
    for recipe in recipes:
        facts = data.PAPER[recipe.run.dataset]
        steps = split_steps(range(facts.classes), recipe.run.classes_per_step)
        method = methods.find(recipe.method)
        plan = method.plan(recipe, [dict.fromkeys(step, facts.images_per_class) for step in steps])
        passes = sum(stage.image_passes for step in plan for stage in step)
        network = (recipe.backbone, facts.side, recipe.optimizer.batch_size, recipe.engine)
        if network not in rates:
            rates[network] = speed.images_per_second(recipe, (3, facts.side, facts.side), place.device, method.trains)
        state = _state(recipe, place)
        lacks = data.missing(recipe.run.dataset, place.data) if state in ("to do", "unfinished") else None
        made.append(Forecast(run_name(recipe), passes, passes / rates[network], state, lacks))
    return made


def _state(recipe: Recipe, place: Place) -> str:
    try:
        done = finished(recipe, place.results)
    except TreeringError:
        return "another run is in the way"
    if done:
        return "done"
    return "unfinished" if state_file(recipe, place.results).exists() else "to do"
