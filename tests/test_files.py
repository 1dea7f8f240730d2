"""Files that are written whole or not at all, and the lock that one program holds at a time."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import platform
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treering.errors import TreeringError
from treering.runtime import file_lock, files
from treering.storage import lock as folder_lock

GONE = 2**22 + 1
"""A number that no process on Linux has."""


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def abandoned_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if file.name.startswith(files.TEMPORARY)]


KILLED_WHILE_WRITING = """
import os, sys
from pathlib import Path
from treering.runtime import files
files.os = type("os", (), dict(vars(os)))
def fsync(handle):
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), 9)
    print("writing", flush=True)
    input()
files.os.fsync = fsync
files.write(Path(sys.argv[1]), b"half")
"""


def writer(file: Path, what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", KILLED_WHILE_WRITING, str(file), what]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_the_next_write_removes_what_a_killed_program_left_and_nothing_that_is_being_written(tmp_path: Path) -> None:
    with writer(tmp_path / "killed", "kill") as killed:
        killed.wait()
    assert len(abandoned_in(tmp_path)) == 1
    with writer(tmp_path / "slow", "wait") as slow:
        assert slow.stdout is not None
        slow.stdout.readline()
        files.write(tmp_path / "mine", b"whole")
        assert len(abandoned_in(tmp_path)) == 1
        slow.communicate("\n")
    assert names_in(tmp_path) == ["mine", "slow"]


@pytest.mark.parametrize("links", [True, False])
def test_a_file_is_not_replaced_where_that_is_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(target: Path, file: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    files.write(tmp_path / "file", b"first", replace=False)
    with pytest.raises(FileExistsError):
        files.write(tmp_path / "file", b"second", replace=False)
    assert (tmp_path / "file").read_bytes() == b"first"
    assert names_in(tmp_path) == ["file"]


def test_without_locks_only_old_unfinished_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_locks(monkeypatch, errno.ENOLCK)
    old, young = (tmp_path / f"{files.TEMPORARY}{digit * 32}" for digit in "ab")
    for file in (old, young):
        file.write_bytes(b"half")
    os.utime(old, (0, 0))
    files.write(tmp_path / "mine", b"whole")
    assert names_in(tmp_path) == sorted([young.name, "mine"])


def test_links_and_pipes_with_the_names_of_unfinished_files_stay(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / f"{files.TEMPORARY}{'a' * 32}").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / f"{files.TEMPORARY}{'b' * 32}")
    files.write(tmp_path / "mine", b"whole")
    assert len(abandoned_in(tmp_path)) == 2
    assert (tmp_path / "target").read_bytes() == b"precious"


def test_an_error_after_the_rename_does_not_say_that_nothing_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files, "_flush_folder", fails)
    with pytest.raises(TreeringError, match=r"picture.png was written, but may not survive a power failure: "):
        files.write_picture(tmp_path / "picture.png", lambda stream: stream.write(b"drawn"))
    assert (tmp_path / "picture.png").read_bytes() == b"drawn"


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "large"])
def test_only_plain_files_of_a_bounded_size_are_read(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "file"
    make: dict[str, Callable[[], Any]] = {
        "pipe": lambda: os.mkfifo(file),
        "device": lambda: file.symlink_to("/dev/zero"),
        "folder": file.mkdir,
        "large": lambda: file.write_bytes(bytes(101)),
    }
    make[kind]()
    with pytest.raises(OSError):
        files.read(file, 100)


def test_reading_takes_no_more_memory_than_the_file_has(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"small")
    tracemalloc.start()
    try:
        assert files.read(tmp_path / "file", 2**34) == b"small"
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


# The lock


def no_locks(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", refuse)


def note(process: int, host: str | None = None, boot: str | None = None) -> str:
    own = file_lock.Note.own()
    facts = {"process": process, "since": "2026-01-01", "host": host or own.host, "boot": boot or own.boot}
    return json.dumps(facts)


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_one_writer_at_a_time_on_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    no_locks(monkeypatch, error)
    (tmp_path / ".lock").touch()
    with folder_lock.writing(tmp_path):
        with pytest.raises(TreeringError, match=rf"process {os.getpid()}, .* is writing {tmp_path}"):
            folder_lock.writing(tmp_path).__enter__()
        (tmp_path / "previous").mkdir()
    assert len(caplog.records) == 2  # one from each attempt
    with folder_lock.writing(tmp_path):
        pass
    assert not (tmp_path / ".writer").exists()


@pytest.mark.parametrize("left", ["killed", "of an earlier boot", "half written", "without a number"])
def test_a_note_of_a_program_that_has_ended_never_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    no_locks(monkeypatch, errno.ENOSYS)
    texts = {"killed": note(GONE), "of an earlier boot": note(os.getpid(), boot="another"), "half written": "{"}
    texts["without a number"] = '{"process": 1e999, "since": "2026-01-01"}'
    (tmp_path / ".writer").write_text(texts[left])
    os.utime(tmp_path / ".writer", (0, 0))
    with folder_lock.writing(tmp_path):
        assert file_lock.Note.read(tmp_path / ".writer") is not None
    assert list(tmp_path.iterdir()) == []


def test_a_note_of_another_computer_blocks_and_the_message_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_locks(monkeypatch, errno.ENOSYS)
    (tmp_path / ".writer").write_text(note(GONE, host="far\x1baway"))
    words = rf"process {GONE} on far\\x1baway, since 2026-01-01\).*remove {tmp_path}/\.writer"
    with pytest.raises(TreeringError, match=words), folder_lock.writing(tmp_path):
        pass
    assert (tmp_path / ".writer").exists()


@pytest.mark.parametrize("locks", [True, False])
def test_a_folder_in_the_place_of_the_note_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    if not locks:
        no_locks(monkeypatch, errno.ENOSYS)
    (tmp_path / ".writer").mkdir()
    with pytest.raises(TreeringError, match=r"\.writer is a folder: remove it"), folder_lock.writing(tmp_path):
        pass
    assert (tmp_path / ".writer").is_dir()


def test_two_that_take_over_the_same_note_are_not_both_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_locks(monkeypatch, errno.ENOSYS)
    file = tmp_path / ".writer"
    file.write_text(note(GONE))
    stale = file_lock.Note.read(file)
    file.write_text(note(os.getpid()))  # another was faster
    with pytest.raises(file_lock.HeldError):
        file_lock._move_away(file, stale)
    assert file_lock.Note.read(file) == file_lock.Note(os.getpid(), "2026-01-01", platform.node(), file_lock._boot())


@pytest.mark.parametrize("name", [".writer", ".lock"])
@pytest.mark.parametrize("kind", ["link", "pipe", "dangling link"])
def test_the_lock_and_its_note_are_never_reached_through_links(tmp_path: Path, name: str, kind: str) -> None:
    target, folder = tmp_path / "precious", tmp_path / "model"
    target.write_text("precious")
    folder.mkdir()
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to(target if kind == "link" else tmp_path / "nowhere")
    if name == ".writer":  # it is replaced
        with folder_lock.writing(folder):
            assert (folder / name).is_file()
            assert not (folder / name).is_symlink()
    else:
        with pytest.raises(TreeringError, match=r"cannot save to .*: \.lock is "), folder_lock.writing(folder):
            pass
    assert target.read_text() == "precious"
    assert names_in(tmp_path) == ["model", "precious"]


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try_lock, seen = files.try_lock, []

    def removed_first(handle: int) -> bool:
        seen.append(handle)
        if len(seen) == 1:
            (tmp_path / ".lock").unlink()
        return try_lock(handle)

    monkeypatch.setattr(files, "try_lock", removed_first)
    with file_lock.held(tmp_path / ".lock", tmp_path / ".writer"):
        assert len(seen) == 2
        assert not try_lock(files.opened(tmp_path / ".lock", os.O_RDWR))


def test_an_error_after_the_manifest_was_replaced_does_not_say_that_the_old_model_is_there(tmp_path: Path) -> None:
    with (
        pytest.raises(TreeringError, match=r"was changed, but may not survive a power failure: Input/output error"),
        folder_lock.writing(tmp_path),
    ):
        (tmp_path / "manifest.json").write_text("new")
        raise OSError(errno.EIO, "Input/output error")
    with pytest.raises(TreeringError, match="what it held before is intact"), folder_lock.writing(tmp_path):
        raise OSError(errno.EIO, "Input/output error")


def test_warnings_name_the_folder_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    no_locks(monkeypatch, errno.ENOSYS)
    with caplog.at_level(logging.WARNING), folder_lock.writing(tmp_path):
        pass
    assert str(tmp_path) in caplog.text
