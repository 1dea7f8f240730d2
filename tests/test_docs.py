"""What the pages show is so: commands parse and run, examples work, links lead somewhere, generated parts are new."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tomllib
import types
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.main
from conftest import RECIPE, examples, state_of
from photo_helper import TINY, command, write_photos

from treering import Learner, Recipe, cli, methods
from treering.data.stream import Dataset, ResidentImages
from treering.experiments import paper
from treering.experiments.run import StreamRun
from treering.recipe import Run

PROJECT = Path(__file__).parent.parent
PAGES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted(PROJECT.glob("docs/**/*.md"))]
TREERING = typer.main.get_command(cli.app)


def name_of(page: Path) -> str:
    return page.relative_to(PROJECT).as_posix()


def blocks(page: Path, language: str = "") -> list[str]:
    """The page's code blocks in this language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [code for named, code in found if named == language]


def commands(page: Path) -> list[list[str]]:
    """The commands in the page's blocks, in words: every line, or those behind a `$` where a block has such lines."""
    found = []
    for block in blocks(page):
        lines = block.splitlines()
        prompted = [line[2:] for line in lines if line.startswith("$ ")]
        found += [shlex.split(line, comments=True) for line in prompted or lines]
    return [words for words in found if words]


def inline_code(page: Path) -> list[str]:
    """What the page's sentences and tables have in backticks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`]+)`", text)


def parsed(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The name and the values of a `treering` command; one that is not written as its `--help` says is an error."""
    name, *arguments = words[1:]
    return name, TREERING.commands[name].make_context(name, arguments).params  # type: ignore[attr-defined]


def options_of(name: str) -> set[str]:
    """The options of a `treering` command."""
    return {"--help"}.union(*(each.opts for each in TREERING.commands[name].params))  # type: ignore[attr-defined]


def make_targets() -> list[str]:
    """The targets of the Makefile."""
    return re.findall(r"^([\w-]+):", (PROJECT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


def files_of(words: list[str]) -> list[Path]:
    """The files of this project that a command names."""
    return [PROJECT / word for word in words if word.endswith(".py")]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_all_their_options_are_there(page: Path) -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for words in commands(page):
        match words:
            case ["treering", *_]:
                name, values = parsed(words)
                if name == "run":
                    assert [Recipe.find(recipe).changed(values["change"] or []) for recipe in values["recipes"]]
                if name == "reproduce":
                    assert paper.chosen(list(paper.find(values["experiment"]).runs(1)), values["only"] or [])
                if name == "recipes" and len(words) > 2:
                    assert Recipe.find(words[2])
            case ["make", target]:
                assert target in make_targets(), words
            case ["pip", "install", what]:
                assert set(re.findall(r"\w+", what.lstrip("."))) <= extras.keys(), words
            case ["python", *rest]:
                (program,) = files_of(words)
                source = program.read_text(encoding="utf-8")
                assert all(f'"{word}"' in source for word in rest if word.startswith("--")), words
            case [".", activate]:
                assert activate == ".venv/bin/activate", words
            case ["git" | "pre-commit" | ".venv/bin/pre-commit", *_]:
                pass
            case [program, *_] if "/" in program:
                assert (PROJECT / program).exists(), words
            case _:
                pytest.fail(f"no program that is known here: {words}")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_options_in_sentences_are_there(page: Path) -> None:
    known: dict[str, set[str]] = {name: options_of(name) for name in TREERING.commands}  # type: ignore[attr-defined]
    for code in inline_code(page):
        words = code.split()
        if words[0] == "treering":
            words = words[1:]
            assert words[0] in known, code
        used = {word for word in words if word.startswith("--")}
        if words[0] in known:
            assert used <= known[words[0]], code
        elif words[0].startswith("--"):
            assert used <= set().union(*known.values()), code
        elif words[0] == "make":
            assert {*words[1:]} <= {*make_targets()}, code
        elif words[0] == "python":
            assert all(file.exists() for file in files_of(words)), code


@pytest.fixture
def tiny_birds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders that the photo example talks of, with tiny photos, as the working folder."""
    first, second = ["Cardinal", "Mallard"], ["Blue Jay"]
    write_photos(tmp_path / "season-1", dict.fromkeys(first, 6))
    write_photos(tmp_path / "season-2", dict.fromkeys(second, 6), seed=1)
    write_photos(tmp_path / "val", dict.fromkeys(first + second, 2), seed=2)
    write_photos(tmp_path / "more", dict.fromkeys(second, 2), seed=3)
    (tmp_path / "more" / "Blue Jay").rename(tmp_path / "inbox")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_photo_commands_work_one_after_the_other(tiny_birds: Path) -> None:
    for package in ("matplotlib", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    shown = [words for words in commands(PROJECT / "docs" / "photos.md") if words[0] == "treering"]
    assert all(words in shown for words in commands(PROJECT / "README.md") if "birds" in words)
    settings = TINY
    for words in shown:
        done = command(*words[1:], *(settings if words[1] == "learn" else []))
        assert (done.code, done.err) == (0, ""), (words, done)
        settings = []
    assert {"confusion.png", "exemplars.png", "birds.onnx"} <= {file.name for file in tiny_birds.iterdir()}


def test_the_commands_for_experiments_work_on_the_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("matplotlib", "sklearn"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    tiny = ["training.epochs=1", "training.drop_at=[]", "balanced.epochs=1", "balanced.drop_at=[]", "memory.size=10"]
    settings = [word for setting in tiny for word in ("--set", setting)]
    done = []
    for words in commands(PROJECT / "docs" / "experiments.md"):
        if words[:3] == ["treering", "run", "digits"]:
            assert command(*words[1:], *settings, "--device", "cpu").code == 0, words
        elif words[:2] in (["treering", "recipes"], ["treering", "report"]):
            if words == ["treering", "report"]:
                shutil.copytree("RESULTS", "results")
            assert command(*words[1:]).code == 0, words
        else:
            continue
        done.append(words[1])
    assert {*done} == {"run", "recipes", "report"}
    assert (tmp_path / "report" / "index.html").exists()


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_python_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (images, labels), (more_images, more_labels) = examples({"cat": 3, "dog": 3}), examples({"owl": 3, "cat": 2})
    names: dict[str, Any] = {"images": images, "labels": labels, "more_images": more_images, "more_labels": more_labels}
    for code in blocks(PROJECT / page, "python"):
        exec(compile(code, page, "exec"), names)
        learner = names["learner"]
        assert set(learner.predict(images)) <= {"cat", "dog", "owl"}
        assert (tmp_path / "model" / "manifest.json").exists()


@pytest.fixture(params=["replay", "focal"])
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a method that the page adds."""
    page = PROJECT / "docs" / "adding-a-method.md"
    names: dict[str, Any] = {}
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), names)
    monkeypatch.setitem(methods.METHODS, request.param, names[request.param.capitalize()])
    return request.param


def test_the_example_learns_remembers_and_is_saved(example: str, tmp_path: Path) -> None:
    learner = Learner(recipe=replace(RECIPE, method=example), device="cpu")
    learner.partial_fit(*examples({"cat": 6, "dog": 5})).partial_fit(*examples({"owl": 4, "cat": 2}))
    assert [len(learner.exemplars_[name]) for name in ("cat", "dog", "owl")] == [4, 4, 4]
    learner.save(tmp_path / "model")
    assert state_of(Learner.load(tmp_path / "model", device="cpu")) == state_of(learner)


def test_the_example_runs_over_a_stream_as_planned(example: str, tmp_path: Path) -> None:
    labels = np.arange(6).repeat(5)
    images, _ = examples(dict.fromkeys(range(6), 5))
    dataset = Dataset("tiny", images, labels, images, labels, tuple("abcdef"))
    recipe = replace(RECIPE, method=example, run=Run("tiny", 2))
    run = StreamRun(recipe, ResidentImages.of(dataset, torch.device("cpu")), tmp_path)
    result = run()
    assert result["method"].partition("-")[0] == example, "EEIL names its ablations"
    assert result["image_passes"] == run.image_passes_planned
    assert len(result["accuracy"]) == 3


def test_every_row_of_the_method_names_code_and_a_test_that_are_there() -> None:
    page = (PROJECT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    tests = "".join(file.read_text(encoding="utf-8") for file in PROJECT.glob("tests/test_*.py"))
    source = PROJECT / "src" / "treering"
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ") and "`test_" in line]
    assert len(rows) > 25
    for _, where, named in rows:
        assert all(f"def {test}(" in tests for test in re.findall(r"`([^`]+)`", named)), named
        file, *names = re.findall(r"`([^`]+)`", where)
        code = (source / file).read_text(encoding="utf-8")
        assert all(f"def {name}(" in code for name in names), where


def heading_names(page: Path) -> set[str]:
    """The names by which links lead to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, PROJECT / "CHANGELOG.md"], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith("https://"):
            path, _, heading = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not heading or heading in heading_names(target), link


def test_the_map_names_modules_that_are_there() -> None:
    page = PROJECT / "docs" / "architecture.md"
    (diagram,) = blocks(page, "text")
    named = re.findall(r"\b[\w/]+(?:/|\.py)(?=\s|$)", diagram)
    named += [code for code in inline_code(page) if re.fullmatch(r"[\w/]+\.py", code)]
    assert len(named) > 20
    for name in named:
        roots = (PROJECT, PROJECT / "src" / "treering")
        assert any((root / name).exists() for root in roots), name


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.SimpleNamespace]:
    """The programs that write parts of the pages."""
    monkeypatch.syspath_prepend(PROJECT / "benchmarks")
    names = ("pages", "table", "transcript")
    yield types.SimpleNamespace(**{name: import_module(name) for name in names})
    for name in names:
        sys.modules.pop(name, None)


def test_generated_tables_are_those_of_the_results(benchmarks: types.SimpleNamespace) -> None:
    for (page, name), text in benchmarks.table.parts().items():
        assert benchmarks.pages.parts(page.read_text(encoding="utf-8"), name) == [text], f"{page}: run `make tables`"


def test_answers_of_commands_are_those_that_were_recorded(benchmarks: types.SimpleNamespace) -> None:
    answers = benchmarks.transcript.recorded()
    for page, most_lines in benchmarks.transcript.MOST_LINES.items():
        text = page.read_text(encoding="utf-8")
        assert benchmarks.transcript.written(text, answers, most_lines) == text, "run python benchmarks/transcript.py"


def test_long_answers_are_shortened_at_their_lists(benchmarks: types.SimpleNamespace) -> None:
    lines = ["found", *(f"  class {number}" for number in range(6)), "done", "  old", "  new"]
    assert benchmarks.transcript.shortened(lines, 10) == lines
    assert benchmarks.transcript.shortened(lines, 7) == [*lines[:3], "  …", *lines[7:]]
    assert benchmarks.transcript.shortened(lines, 5) == [*lines[:2], "…", *lines[8:]]
