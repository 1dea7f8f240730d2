"""What the images of a step say of each other: each is told by all others, or by a network that never saw it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Trial:
    """How many of the images that training did not see are told right by the network as it came, and by both."""

    images: int
    frozen: int
    both: int
    helped: bool
    """Whether both answer from now on."""
    ended_early: bool = False
    """Whether training was ended early, since it made the answers worse."""


@dataclass(frozen=True)
class LeftOut:
    """For each class, what its images are taken for by a solution without that image, exemplars included.

    Where a trained network answers too, only images that it was not trained on are asked about.
    """

    before: dict[int, list[int]]
    """Before the step, for exemplars of the classes known then."""
    old_after: dict[int, list[int]]
    """After the step, for the same exemplars."""
    after: dict[int, list[int]]
    """After the step, for all that can be asked."""
    tuned: bool = False
    """Whether a trained network answers too."""
    trial: Trial | None = None
    """What training the network has brought, if it was trained."""
