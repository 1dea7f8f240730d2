"""The outcome of a step of photos: how many images are told right, before and after it, and what would help most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from treering.core.metrics import interval
from treering.methods.left_out import Trial

Said = Mapping[str, Sequence[str]]
"""What each image of a class is taken for, by class."""
MOST_PAIRS = 3
"""The most pairs of classes that are told to be confused."""
FEWEST_PHOTOS = 20
"""A class with fewer photos is told to need more, if it has less than half of the usual number."""
FEWEST_COMPARED = 5
"""A loss is told only of classes with so many images that measure it."""
MOST_TIMES = 100
"""A class with this many times the photos of another is reported."""


class Score(NamedTuple):
    """How many of so many images are right."""

    right: int
    images: int

    @property
    def percent(self) -> float:
        return 100 * self.right / self.images

    @property
    def range(self) -> tuple[float, float]:
        """The percentages between which the true accuracy is in 19 of 20 cases."""
        return interval(self.percent, self.images)


def has_fallen(before: Score, after: Score) -> bool:
    """Return whether chance does not explain that fewer images are right now; of very few it always may."""
    return min(before.images, after.images) >= FEWEST_COMPARED and after.percent < before.range[0]


@dataclass(frozen=True)
class Outcome:
    """What a step has led to."""

    classes: int
    """The number of classes of the model."""
    known: Sequence[str]
    """The classes that were known before the step."""
    before: Said
    """Before the step, for images of the known classes."""
    old_after: Said
    """After the step, for the same images."""
    after: Said
    """After the step, for all images that measure it."""
    left_out: bool
    """Whether each image was told by all others, rather than by a model that never saw it."""
    tuned: bool
    """Whether a trained network answers too, so that only images count which it has not seen."""
    trial: Trial | None
    """What training the network has brought, if it was trained beside one that stays as it came."""
    photos: Mapping[str, int]
    """The number of photos of each class that the model ever learnt."""
    seconds: float

    @property
    def all(self) -> Score | None:
        return _score(self.after)

    @property
    def new(self) -> Score | None:
        """The score on the classes that came with the step."""
        return _score({name: said for name, said in self.after.items() if name not in self.known})

    @property
    def old(self) -> tuple[Score, Score] | None:
        """The scores on the known classes before and after the step, on the same images."""
        before, after = _score(self.before), _score(self.old_after)
        return (before, after) if before and after else None

    def forgotten(self) -> list[tuple[str, Score, Score]]:
        """Return the known classes that have lost more than chance explains, the worst first, before and after."""
        lost = []
        for name in self.known:
            before, after = (_score({name: part.get(name, ())}) for part in (self.before, self.old_after))
            if before and after and has_fallen(before, after):
                lost.append((name, before, after))
        return sorted(lost, key=lambda one: one[2].percent - one[1].percent)

    def confused(self) -> list[tuple[str, str, int]]:
        """Return the pairs of classes that are most often taken for each other, and how often."""
        pairs = Counter(
            tuple(sorted((name, other))) for name, said in self.after.items() for other in said if other != name
        )
        return [(first, second, count) for (first, second), count in pairs.most_common(MOST_PAIRS) if count > 1]

    def needy(self) -> list[tuple[str, int]]:
        """Return the classes to which more photos would help most, and how many photos each has."""
        usual = median(self.photos.values())
        few = [(name, count) for name, count in self.photos.items() if count < FEWEST_PHOTOS and count <= usual / 2]
        return sorted(few, key=lambda one: one[1])

    def unequal(self) -> tuple[str, str] | None:
        """Return the largest class and the smallest, if one has many times the photos of the other."""
        largest, smallest = (choose(self.photos, key=self.photos.__getitem__) for choose in (max, min))
        return (largest, smallest) if self.photos[largest] >= MOST_TIMES * self.photos[smallest] else None

    def for_history(self) -> dict[str, Any]:
        """Return the part that the model's history records."""
        before, after = self.old or (None, None)
        parts = {"all": self.all, "old": after, "old_before": before, "new": self.new}
        scores = {name: _score({name: said}) for name, said in self.after.items()}
        return {
            **{what: score.percent if score else None for what, score in parts.items()},
            "images": self.all.images if self.all else 0,
            "classes": {name: list(score) for name, score in scores.items() if score},
        }


def _score(said: Said) -> Score | None:
    """Return how many images are taken for their own class; None if there are none."""
    right = [name == other for name, part in said.items() for other in part]
    return Score(sum(right), len(right)) if right else None
