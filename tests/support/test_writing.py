"""Files that users name, written: whole or not at all, and only in a regular file's place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from things import MAKERS

from clew.support import writing
from clew.support.files import reason_of


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind != "dangling"])
def test_what_is_no_file_stays(tmp_path: Path, kind: str) -> None:
    make, reason = MAKERS[kind]
    make(tmp_path / "f")
    before = os.lstat(tmp_path / "f")
    with pytest.raises(OSError) as caught:  # noqa: PT011  (of any kind)
        writing.write_bytes(tmp_path / "f", b"1")
    assert reason_of(caught.value) == reason
    assert os.lstat(tmp_path / "f").st_ino == before.st_ino
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def fail() -> None:
        with writing.replacing(path) as stream:
            stream.write(b"ne")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with writing.replacing(path) as stream:
        stream.write(b"new")
        stream.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def test_permissions(tmp_path: Path) -> None:
    path = tmp_path / "f"
    before = os.umask(0o027)
    try:
        writing.write_text(path, "é")
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o604)
        writing.write_text(path, "ü")
        assert path.stat().st_mode & 0o777 == 0o604
        writing.write_bytes(tmp_path / "x", b"", mode=0o777)
        assert (tmp_path / "x").stat().st_mode & 0o777 == 0o750
        with writing.create(tmp_path / "own") as made:
            made.write(b"1")
        assert (tmp_path / "own").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    with pytest.raises(FileExistsError):
        writing.create(tmp_path / "own")


def test_a_link_stays_and_leads_to_the_new_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    for text in ("1", "2"):
        writing.write_text(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "file").read_text() == text


def test_a_file_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    path.chmod(0o444)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may
    with pytest.raises(PermissionError):
        writing.write_bytes(path, b"new")
    assert path.read_bytes() == b"old"


def test_arrays(tmp_path: Path) -> None:
    array = np.arange(6.0).reshape(2, 3)
    writing.write_array(tmp_path / "a.npy", array)
    writing.write_arrays(tmp_path / "a.npz", {"x": array})
    assert (np.load(tmp_path / "a.npy") == array).all()
    assert (np.load(tmp_path / "a.npz")["x"] == array).all()
    assert (tmp_path / "a.npy").read_bytes() == writing.npy_bytes(array)


_SAVING = """
import sys
from clew.support.writing import replacing
with replacing(sys.argv[1]) as stream:
    stream.write(b"half")
    stream.flush()
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_leaves_is_removed_by_the_next_save(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SAVING, str(tmp_path / "f")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as saving:
        assert saving.stdout is not None
        saving.stdout.readline()
        foreign = [".clew-mine", ".clew-0123456789abcdef.txt", ".other-0123456789abcdef"]
        for name in foreign:
            (tmp_path / name).write_bytes(b"kept")
        writing.write_bytes(tmp_path / "other", b"1")  # while it is being written: stays
        (left,) = {p.name for p in tmp_path.iterdir()} - {*foreign, "other"}
        saving.send_signal(signal.SIGKILL)
    folder = tmp_path.resolve()
    writing.write_bytes(folder / "f", b"half")  # a process looks for them once per folder
    assert (folder / left).exists()
    writing._clean.cache_clear()
    writing.write_bytes(tmp_path / "f", b"whole")
    assert {p.name for p in tmp_path.iterdir()} == {*foreign, "other", "f"}, left
    assert (tmp_path / "f").read_bytes() == b"whole"


def test_writers_do_not_remove_each_others_files(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for n in range(100):
                writing.write_bytes(tmp_path / f"f{number}", bytes([n]))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"f{n}" for n in range(6)]
