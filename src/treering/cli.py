"""The command line: `treering …`. Errors are one line and exit code 2; a traceback is a bug."""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import treering
from treering import class_commands
from treering.class_commands import ModelPath
from treering.errors import OUT_OF_MEMORY, TreeringError, is_out_of_memory
from treering.experiments import MOST_AT_ONCE
from treering.recipe import MOST_ORDERS, Recipe
from treering.runtime import allocator, threads
from treering.terminal import Bars, Terminal, interruptible, print_error, show_warnings

app = typer.Typer(add_completion=False, invoke_without_command=True, pretty_exceptions_enable=False)
console = Console(emoji=False)

UsageError: Any = typer.BadParameter.__base__  # for example a misspelt option; typer has no public name for this class


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"treering {treering.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def treering_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Teach an image classifier new classes over time, without forgetting the old ones."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("demo"),
    order: Annotated[int, typer.Option(min=0, max=MOST_ORDERS - 1, help="Class order: 0 is the usual one.")] = 0,
) -> None:
    """Learn ten digits in five steps, with and without forgetting, and draw the accuracy."""
    from treering import demo as digits_demo

    with interruptible():
        digits_demo.run(console, out, order)


Data = Annotated[Path, typer.Option(help="Folder that holds the datasets.")]
Results = Annotated[Path, typer.Option(help="Folder of the result files.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch a missing dataset.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Threads = Annotated[int | None, typer.Option(min=1, callback=threads.limit, help="Threads to compute and read with.")]
LOCAL = "127.0.0.1"
AtOnce = Annotated[int, typer.Option(min=1, max=MOST_AT_ONCE, help="Runs that a GPU trains together.")]


@app.command()
def run(
    recipes: Annotated[list[str], typer.Argument(help="TOML files, or names of ready recipes such as cifar100-10.")],
    data: Data = Path("data"),
    results: Results = Path("results"),
    download: Download = False,
    change: Annotated[list[str] | None, typer.Option("--set", help="Change a setting: run.order=1.")] = None,
    device: Device = "auto",
    at_once: AtOnce = 8,
) -> None:
    """Run the method of each recipe over its dataset's stream; on a GPU several runs train at once."""
    changed = [Recipe.find(name).changed(change or []) for name in recipes]
    from treering.experiments.commands import run_all  # which loads PyTorch: a wrong name is told before

    run_all(console, changed, data, results, download, device, at_once)


@app.command()
def reproduce(
    experiment: Annotated[str, typer.Argument(help="table-1a, -1b, -2a, -2b, selection, gem, vehicles or dogs.")],
    orders: Annotated[int | None, typer.Option(min=1, help="Class orders; the paper's number by default.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only some runs: method=icarl, classes_per_step=10.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be run and how long it takes.")] = False,
    data: Data = Path("data"),
    results: Results = Path("results"),
    download: Download = False,
    device: Device = "auto",
    at_once: AtOnce = 8,
) -> None:
    """Do every run of a table of the paper that is not done yet."""
    from treering.experiments import commands, paper

    found = paper.find(experiment)
    runs = paper.chosen(list(found.runs(orders)), only or [])
    Terminal(console).line(f"{found.title}: {len(runs)} runs")
    if dry_run:
        commands.forecast_all(console, runs, data, results, device)
    else:
        commands.run_all(console, runs, data, results, download, device, at_once)


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="A ready recipe or a TOML file whose settings to print.")] = None,
) -> None:
    """List the ready recipes, or print all settings of one as TOML."""
    from treering.recipes import ready_files

    lines = [line for file in ready_files() for line in (*file.overview(), "")]
    text = Recipe.find(name).to_toml() if name else "\n".join(lines)
    for line in text.rstrip().split("\n"):
        Terminal(console).line(line)


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="Folder of the result files.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="Folder for the page, the tables and the figures.")] = Path("report"),
) -> None:
    """Make tables beside the paper's, figures and one self-contained HTML page from result files."""
    from treering.report import build as experiments_report

    with interruptible():
        files = experiments_report.write(results, out)
    Terminal(console).line(f"{len(files)} files; open {(out / 'index.html').resolve()}")


@app.command()
def learn(
    model: ModelPath,
    folder: Annotated[Path, typer.Argument(help="FOLDER/<class>/<image>", readable=False)],
    backbone: Annotated[
        str | None, typer.Option(help="efficientnet-lite0 to -lite2, resnet18, resnet32, timm:NAME, torchvision:NAME.")
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(min=0, help="Images to keep of each class, unless memory.kind says otherwise; 30 in a new model."),
    ] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="Change a setting: training.epochs=30.")] = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            help="Folder of other photos, VALIDATION/<class>/<photo>, to measure the accuracy on.",
            readable=False,
        ),
    ] = None,
    keep: Annotated[int, typer.Option(min=0, max=100, help="Earlier versions that undo can go back to.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of a new model's weights, augmentation and batches.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    size: Annotated[int | None, typer.Option(min=32, max=1024, help="Pixels a side of photos in a new model.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Solve for a classifier in seconds, and stop there.")] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="Train three times as long, on any number.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would learn and how long it takes.")] = False,
) -> None:
    """Teach a model the classes of a folder; the model is created if it does not exist."""
    from treering.photos import learn as photos
    from treering.photos.console import Printer
    from treering.photos.outcome import Outcome
    from treering.photos.plan import Plan
    from treering.storage import lock

    if fast and thorough:
        raise TreeringError("--fast and --thorough exclude each other: give one of them")
    printer = Printer(console)
    before = lock.version(model)
    plans: list[Plan] = []
    solved_versions: list[object] = []

    def tell(plan: Plan) -> None:
        plans.append(plan)
        solved_versions.extend([before] * plan.is_solved)
        printer.plan(plan, model, folder)

    def solved(outcome: Outcome) -> None:
        printer.solved(outcome)
        solved_versions.append(lock.version(model))

    def interrupted() -> str:
        if lock.version(model) in solved_versions:
            again = "run the same command again to go on with the training"
            return f"interrupted; {model} can be used and knows the classes of this step: {again}"
        if lock.version(model) != before:
            return f"interrupted; {model} has learnt the step"
        saved = (model / ".learning").exists()
        where = "to go on from the last saved state" if saved else "to begin the step again"
        return f"interrupted; {model} is as it was: run the same command again {where}"

    with interruptible(interrupted), Bars(console) as bars:
        outcome = photos.learn(
            model,
            folder,
            backbone=backbone,
            memory=memory,
            changes=change or [],
            validation=validation,
            keep=keep,
            seed=seed,
            device=device,
            size=size,
            effort="fast" if fast else "thorough" if thorough else "usual",
            dry_run=dry_run,
            tell=tell,
            solved=solved,
            progress=bars,
        )
    if outcome:
        printer.outcome(outcome, plans[0])


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="The model's folder, or an exported .onnx file.", readable=False)],
    inputs: Annotated[list[Path] | None, typer.Argument(help="Images, or folders of images.", readable=False)] = None,
    top: Annotated[int, typer.Option(min=1, help="Classes to name for each image.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    watch: Annotated[Path | None, typer.Option(help="Tell each photo that appears here, until Ctrl-C.")] = None,
    sort_into: Annotated[Path | None, typer.Option(help="Copy each photo to FOLDER/<class>/<name>.")] = None,
    unknown: Annotated[float | None, typer.Option(help="Share of known photos to call unknown, 0 for none.")] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Say what images show; the exit code is 1 if any image could not be read."""
    from treering.photos.answers import Answers, Question, answer

    question = Question(model, inputs or [], top, device, threads, watch, sort_into, unknown)
    with interruptible(f"no longer watching {watch}" if watch else "interrupted"):
        good = answer(question, Answers(console, Console(stderr=True), as_json))
    if not good:
        sys.exit(1)


@app.command()
def evaluate(
    model: ModelPath,
    folder: Annotated[Path, typer.Argument(help="FOLDER/<class>/<image>, images not trained on.", readable=False)],
    picture: Annotated[Path | None, typer.Option(help="Draw the confusion matrix to this PNG file.")] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Count how many images of a folder the model gets right, class by class."""
    from treering import evaluation
    from treering.learner import Learner
    from treering.photos.console import Printer

    if picture:
        evaluation.require_drawing(picture)
    with interruptible():
        result = Learner.load(model, device=device).evaluate(folder)
        printer = Printer(console)
        printer.evaluation(result)
        if picture:
            evaluation.draw_confusion(result, picture)
            printer.line(f"The confusion matrix is in {picture}")


@app.command()
def info(
    model: ModelPath,
    gallery: Annotated[Path | None, typer.Option(help="Draw the exemplars to this PNG file.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw each class's accuracy over time to this PNG file.")] = None,
) -> None:
    """Show what a model knows and keeps."""
    from treering import evaluation
    from treering.learner import Learner
    from treering.photos import accuracies, overview
    from treering.photos.console import Printer
    from treering.runtime import files

    if gallery:
        files.require_png(gallery)
    if picture:
        evaluation.require_drawing(picture)
    printer = Printer(console)
    found = overview.of(model)
    printer.overview(found)
    if picture:
        accuracies.draw(accuracies.courses(found.steps), picture)
        printer.line(f"The accuracies are in {picture}")
    if gallery:
        overview.draw_gallery(Learner.load(model, device="cpu"), gallery)
        printer.line(f"The exemplars are in {gallery}")


@app.command()
def export(model: ModelPath, out: Annotated[Path, typer.Argument(help="OUT.onnx or OUT.pt2")]) -> None:
    """Write the model as one file for other programs, checked against the model first."""
    from treering.export import require_name
    from treering.learner import Learner

    require_name(out)
    with interruptible():
        difference = Learner.load(model, device="cpu").export(out)
    Terminal(console).line(
        f"{out}: {out.stat().st_size / 1e6:.1f} MB; differs from the model by {difference:.1g} at most"
    )


@app.command()
def serve(
    model: Annotated[Path, typer.Argument(help="The folder of a model, new or not, or of models.", readable=False)],
    host: Annotated[str, typer.Option(help="Address to listen at; others than this computer need a token.")] = LOCAL,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes any free one.")] = 8470,
    name: Annotated[list[str] | None, typer.Option(help="Further host name that it may be asked under.")] = None,
    models: Annotated[bool, typer.Option("--models", help="MODEL is a folder of models, even if it is empty.")] = False,
    label_studio: Annotated[str | None, typer.Option(help="Address of the Label Studio to learn from.")] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Open a page in the browser on which anyone can teach a model and ask it."""
    try:
        from treering.server import run
    except ImportError as error:
        raise TreeringError(f"serving needs {error.name}: pip install 'treering[serve]'") from None
    run.serve(model, host, port, name or [], device, models, label_studio, console)


@app.command()
def check(
    model: ModelPath,
    repair: Annotated[
        bool, typer.Option("--repair", help="Go back to the last whole version, and remove what is left over.")
    ] = False,
) -> None:
    """Look at every file of a model and of its earlier versions; the exit code is 1 if something is wrong."""
    from treering import model as models
    from treering.photos.console import Printer
    from treering.storage import check as checks

    with interruptible():
        found = (checks.repair if repair else checks.check)(model, models.examine)
    if not Printer(console).findings(model, found):
        sys.exit(1)


class_commands.add_to(app)


def _usage(error: Any) -> str:
    """Return what is wrong with a command, and which help to read."""
    where = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
    return error.format_message().rstrip(".") + where


def main() -> None:
    """Run the `treering` command."""
    allocator.keep()
    threads.sleep_soon()
    show_warnings()
    warnings.filterwarnings("ignore", module=r"PIL\.")  # large photos and damaged camera data are fine
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # letters that the terminal's encoding lacks
    try:
        if "" in sys.argv[1:]:  # an empty path would mean the current folder
            raise TreeringError("an argument is empty: check that its variable is set")
        code = app(prog_name="treering", standalone_mode=False)
    except TreeringError as error:
        print_error(error)
    except UsageError as error:
        print_error(_usage(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        print_error(OUT_OF_MEMORY)
    except OSError as error:
        print_error(f"{error.filename or 'the output'}: {error.strerror or error}")
    else:
        sys.exit(code or 0)
    sys.stdout = None  # Python would flush it on exit, and its disk may be full
    sys.exit(2)
