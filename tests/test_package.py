"""The package that others install: its archives are complete, and the wheel works in an empty environment.

The archives are built from a copy of the project among whose files strangers lie, the wheel from the source archive.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement

PROJECT = Path(__file__).parent.parent
PARTS = (
    ".gitignore",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "benchmarks",
    "constraints.txt",
    "docs",
    "hashes.txt",
    "pyproject.toml",
    "results",
    "src",
    "tests",
)
STRANGERS = (
    ".venv/lib/module.py",
    "build/lib/treering/cli.py",
    "demo/digits.png",
    "notes.txt",
    "photos/owl/1.jpg",
    "report/index.html",
    "results/.unfinished/run.json",
    "src/treering/__pycache__/cli.cpython-311.pyc",
)


@dataclass(frozen=True)
class Package:
    """The two archives, and the names of the project's files, relative to its folder."""

    wheel: Path
    source: Path
    files: frozenset[str]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    folder = tmp_path_factory.mktemp("package")
    copy = folder / "project"
    copy.mkdir()
    for part in PARTS:
        if (PROJECT / part).is_dir():
            shutil.copytree(PROJECT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", ".unfinished"))
        else:
            shutil.copy(PROJECT / part, copy / part)
    files = frozenset(path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file())
    for stranger in STRANGERS:
        (copy / stranger).parent.mkdir(parents=True, exist_ok=True)
        (copy / stranger).write_bytes(b"")
    out = folder / "out"
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)], folder)
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return Package(wheel, source, files)


@pytest.fixture(scope="module")
def scripts(package: Package, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that has the wheel and what its metadata asks for, and nothing else.

    What it asks for is linked from the environment of the tests, so that nothing is downloaded.
    """
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    python = str(environment / "bin" / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps"]
    _run([*install, str(package.wheel)], environment)
    (installed,) = metadata.distributions(name="treering", path=[str(packages)])
    for distribution in _needed(installed, "demo"):
        entries = {PurePosixPath(file).parts[0] for file in distribution.files or ()}
        for entry in entries - {"..", "__pycache__"}:
            if not (packages / entry).exists():
                (packages / entry).symlink_to(distribution.locate_file(entry))
    return environment / "bin"


def _needed(distribution: metadata.Distribution, extra: str = "") -> list[metadata.Distribution]:
    """Find what a distribution requires with an extra, and what that requires in turn, in this environment."""
    found: dict[tuple[str, str], metadata.Distribution] = {}
    waiting = [(distribution, extra)]
    while waiting:
        parent, wanted = waiting.pop()
        for requirement in map(Requirement, parent.requires or ()):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": wanted}):
                continue
            for needed in ("", *requirement.extras):
                if (requirement.name, needed) not in found:
                    child = metadata.distribution(requirement.name)
                    found[requirement.name, needed] = child
                    waiting.append((child, needed))
    return list(found.values())


def _run(command: list[str], folder: Path) -> str:
    """Run a command that has nothing of this process but the PATH, and give what it prints."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_source_archive_holds_the_projects_files_and_no_others(package: Package) -> None:
    with tarfile.open(package.source) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert names == package.files | {"PKG-INFO"}


def test_the_wheel_holds_every_file_of_the_package_and_the_licence(package: Package) -> None:
    names = set(zipfile.ZipFile(package.wheel).namelist())
    about = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    assert names - about == {name.removeprefix("src/") for name in package.files if name.startswith("src/")}
    kinds = {PurePosixPath(name).suffix for name in names - about}
    assert {".py", ".typed", ".toml", ".csv", ".html", ".css", ".js"} <= kinds, "the comparison above is not of nothing"
    assert any(name.endswith("/LICENSE") for name in about)


def test_the_demo_runs_from_the_wheel_alone(scripts: Path, tmp_path: Path) -> None:
    """The wheel, with the dependencies that it declares and the extra `demo`, is enough for the command and the demo.

    This shows that the wheel lacks no file and that its metadata names every package the demo imports: the checkout and
    the other packages of the tests are out of reach. It does not show that a package index has these dependencies,
    that the oldest versions in their ranges work, or anything about the other extras.
    """
    where = "import treering, sys; print(treering.__file__, treering.__version__)"
    file, version = _run([str(scripts / "python"), "-c", where], tmp_path).split()
    assert Path(file).is_relative_to(scripts.parent)
    assert version in _run([str(scripts / "treering"), "--version"], tmp_path)

    _run([str(scripts / "treering"), "demo", "--out", "pictures"], tmp_path)
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"digits.png", "digits.svg"}


def test_every_tool_has_one_version_that_the_tests_run_with() -> None:
    """An unpinned tool changes what `make test` and `make lint` say from one day to the next."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (PROJECT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}
    named = sum(project["optional-dependencies"].values(), project["dependencies"])
    assert {Requirement(line).name for line in named} <= pinned


def test_every_pinned_package_but_pytorch_has_checksums() -> None:
    pinned = {line for line in (PROJECT / "constraints.txt").read_text().splitlines() if "==" in line}
    entries = (PROJECT / "hashes.txt").read_text().replace("\\\n", " ").splitlines()
    hashed = {Requirement(entry.partition("--hash")[0]).name for entry in entries if "--hash=sha256:" in entry}
    assert {Requirement(pin).name for pin in pinned} - hashed == {"torch"}
    assert all(
        entry.partition(" ")[0] in {pin.partition(" ")[0] for pin in pinned} for entry in entries if "==" in entry
    )
