"""What the server answers and is asked, as JSON; the API's own description is made from these."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from treering.photos.outcome import Score as Counted

LONGEST_NAME = 100
"""The most letters of the name of a class or a model."""
MOST_FORGOTTEN = 1000
ClassName = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
Effort = Literal["fast", "usual", "thorough"]
State = Literal["queued", "running", "done", "failed", "cancelled"]
Stage = Literal["waiting", "starting", "reading", "solving", "training", "saving", "ended"]
FINAL = ("done", "failed", "cancelled")


class Strict(BaseModel):
    """What is asked: a field that is misspelt is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Error(BaseModel):
    """What is wrong, and what to do."""

    error: str


class Score(BaseModel):
    """How many of so many photos are told right, and the percentages that hold the truth in 19 of 20 cases."""

    right: int
    images: int
    percent: float
    low: float
    high: float

    @classmethod
    def of(cls, counted: Counted | None) -> Score | None:
        """Return a score with its interval."""
        if counted is None:
            return None
        low, high = counted.range
        return cls(right=counted.right, images=counted.images, percent=counted.percent, low=low, high=high)


class Lost(BaseModel):
    """What a class has lost, by more than chance explains."""

    before: Score
    after: Score


class LostClass(Lost):
    """The same, with the class."""

    name: str = Field(serialization_alias="class", validation_alias="class")
    model_config = ConfigDict(populate_by_name=True)


class Measured(Score):
    """How many photos of a class were told right after a step."""

    step: int

    @classmethod
    def of_step(cls, step: int, counted: Counted) -> Measured:
        """Return what a step has measured, with its interval."""
        score = Score.of(counted)
        assert score is not None
        return cls(step=step, **score.model_dump())


class ModelClass(BaseModel):
    """A class that a model knows."""

    name: str
    step: int
    photos: int
    """The photos that were ever learnt."""
    kept: int
    course: list[Measured]
    lost: Lost | None
    exemplars: list[str]
    """The addresses of the best of the kept photos."""


class ModelStep(BaseModel):
    """A step that a model has learnt."""

    step: int
    time: str
    new_classes: list[str]
    images: int
    all: Score | None
    new: Score | None
    old: Score | None
    old_before: Score | None


class TrayPhoto(BaseModel):
    """A photo that waits to be learnt."""

    id: str
    url: str


class TrayClass(BaseModel):
    """The photos of a class that wait to be learnt."""

    name: str
    known: bool
    photos: list[TrayPhoto]


class Tray(BaseModel):
    """The photos that wait to be learnt."""

    classes: list[TrayClass]
    photos: int
    room: int
    """How many more photos there is room for."""


class Confused(BaseModel):
    """Two classes that are taken for each other."""

    first: str
    second: str
    times: int


class Needy(BaseModel):
    """A class to which more photos would help most."""

    name: str = Field(serialization_alias="class", validation_alias="class")
    photos: int
    model_config = ConfigDict(populate_by_name=True)


class Result(BaseModel):
    """What a step has led to."""

    all: Score | None
    new: Score | None
    old: Score | None
    old_before: Score | None
    lost: list[LostClass]
    confused: list[Confused]
    needy: list[Needy]
    trained: Literal["helped", "did not help"] | None
    seconds: float


class Job(BaseModel):
    """One learning of the photos in a tray."""

    id: str
    model: str
    effort: Effort
    state: State = "queued"
    ahead: int = 0
    """How many jobs are learnt before it."""
    stage: Stage = "waiting"
    done: int = 0
    """How many images have passed through the network in this stage."""
    total: int = 0
    """How many images pass through the network in this stage."""
    rate: float | None = None
    """Images per second."""
    seconds_left: float | None = None
    epoch: int | None = None
    epochs: int | None = None
    classes: dict[str, int]
    """How many photos of each class are learnt."""
    solved: Score | None = None
    """What is told right by what was solved, by which the model answers while its network is trained."""
    result: Result | None = None
    warnings: list[str] = []
    error: str | None = None
    created: str
    ended: str | None = None


class Model(BaseModel):
    """A model with all that a person may want to see of it."""

    name: str
    backbone: str | None
    size: int
    version: str | None
    """What tells two versions apart; none if it has learnt nothing yet."""
    classes: list[ModelClass]
    steps: list[ModelStep]
    memory: dict[str, int]
    bytes: int
    undo: int
    """How many versions `undo` can go back to."""
    unknown: bool
    """Whether it can tell that a photo shows none of its classes."""
    tray: Tray
    job: Job | None


class ModelBrief(BaseModel):
    """A model in a list."""

    name: str
    classes: int
    steps: int
    job: str | None


class Models(BaseModel):
    """The models that are served."""

    models: list[ModelBrief]
    can_add: bool


class Jobs(BaseModel):
    """The jobs that the server remembers, the newest first."""

    jobs: list[Job]


class Probability(BaseModel):
    """How probable a class is."""

    name: str
    probability: float


class Near(BaseModel):
    """A kept photo that is like the one that was asked about."""

    name: str = Field(serialization_alias="class", validation_alias="class")
    exemplar: str
    likeness: float
    """The cosine between the features of both."""
    model_config = ConfigDict(populate_by_name=True)


class Prediction(BaseModel):
    """What a photo shows."""

    name: str | None
    classes: list[Probability]
    unknown: bool | None
    error: str | None = None
    nearest: list[Near] = []


class Predictions(BaseModel):
    """What some photos show, in the order in which they were sent."""

    version: str
    predictions: list[Prediction]


class Added(TrayPhoto):
    """A photo that has been put into the tray."""

    name: str = Field(serialization_alias="class", validation_alias="class")
    model_config = ConfigDict(populate_by_name=True)


class RefusedPhoto(BaseModel):
    """A file that is no photo, and why."""

    name: str | None
    error: str


class AddedPhotos(BaseModel):
    """What has become of the photos that were sent."""

    added: list[Added]
    refused: list[RefusedPhoto]
    room: int
    """How many more photos the tray has room for."""


class Learn(Strict):
    """How to learn the photos of the tray."""

    effort: Effort = "usual"


class NewModel(Strict):
    """The name of a new model."""

    name: ClassName


class Forget(Strict):
    """The classes to take out."""

    classes: Annotated[list[ClassName], Field(min_length=1, max_length=MOST_FORGOTTEN)]


class Rename(Strict):
    """A class and its new name."""

    old: ClassName
    new: ClassName


class Merge(Strict):
    """The class that stays, and the one whose photos become its own."""

    kept: ClassName
    gone: ClassName


class Status(BaseModel):
    """Whether the server runs."""

    status: Literal["UP"] = "UP"


class Ready(BaseModel):
    """Whether all models that are served can answer."""

    ready: bool
