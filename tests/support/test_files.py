"""Files that users name, read: only regular ones, within the budget, whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from things import MAKERS

from clew.support import files
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError
from clew.support.files import open_plain


@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    make, reason = MAKERS[kind]
    make(tmp_path / "f")
    with pytest.raises(OSError) as caught:  # noqa: PT011  (of any kind)
        files.read_bytes(tmp_path / "f")
    assert files.reason_of(caught.value) == reason


def test_a_pipe_with_a_writer_is_refused_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f")
    held = os.open(tmp_path / "f", os.O_RDWR)
    try:
        with pytest.raises(OSError, match="it is a pipe"):
            files.open_plain(tmp_path / "f")
    finally:
        os.close(held)


def test_links_are_followed_unless_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "link").symlink_to("file")
    assert files.read_bytes(tmp_path / "link") == b"1"
    assert files.read_bytes(tmp_path / "file", links=False) == b"1"
    with pytest.raises(OSError, match="it is a link"):
        files.open_plain(tmp_path / "link", links=False)


def test_a_name_with_a_nul(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="its name contains a NUL"):
        files.read_bytes(f"{tmp_path}/a\0b")


def test_a_file_beyond_the_budget_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with in_force(Budgets(file_bytes=1000)), pytest.raises(ClewError, match="I330") as caught:
        files.read_bytes(path)
    assert caught.value.message == (
        f"bytes of {str(path)!r}: {1 << 40}, but the budget file_bytes allows 1000"
    )
    assert "file_bytes" in caught.value.hint


@pytest.mark.parametrize("change", [b"", b"12", b"12345678"])
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, change: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"1234")
    with files.open_plain(path) as file:

        class Changing:
            fileno = staticmethod(file.fileno)

            def read(self, size: int) -> bytes:
                data = file.read(size // 2)
                path.write_bytes(change)
                return data + file.read(size - len(data))

        with pytest.raises(OSError, match=files.CHANGED):
            files.read_opened(Changing(), path)  # type: ignore[arg-type]


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(tmp_path: Path) -> None:
    path, other = tmp_path / "f", tmp_path / "g"
    path.write_bytes(b"1234")
    other.write_bytes(b"5")
    with files.open_plain(path) as file:
        other.replace(path)
        assert files.read_opened(file, path) == b"1234"


def test_files_of_the_system_that_have_no_size() -> None:
    assert files.read_bytes("/proc/self/status") == b""


def test_text_is_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes("é\r\nb\n".encode())
    assert files.read_text(path) == "é\nb\n"
    path.write_bytes(b"ab\xff")
    with pytest.raises(ValueError, match="not UTF-8 text: byte 0xff at 2"):
        files.read_text(path)


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text('{"a": [1, NaN]}')
    assert list(files.read_json_file(path)) == ["a"]
    with pytest.raises(ValueError, match="NaN is not a finite number"):
        files.json_of(path.read_bytes(), finite=True)
    with pytest.raises(ValueError, match="nested too deeply"):
        files.json_of(b"[" * 200_000)
    with pytest.raises(ValueError, match="Expecting property name"):
        files.json_of(b"{]")
    with in_force(Budgets(attribute_bytes=4)), pytest.raises(ClewError, match="I330"):
        files.json_of(b"[1, 2]")


def test_a_program_runs_as_python_runs_it(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(
        "# -*- coding: latin-1 -*-\nfrom __future__ import annotations\n"
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\n"
        "def f():\n    return A(2).x, __file__, __name__\n"
    )
    names = files.run_program(path)
    assert names["f"]() == (2, str(path), "<run_path>")
    path.write_text("def f(:\n")
    with pytest.raises(SyntaxError):
        files.run_program(path)


def test_steps_below_a_folder_follow_no_link(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_bytes(b"1")
    (tmp_path / "b").symlink_to("a")
    os.close(files.open_below(tmp_path, ("a", "f")))
    for parts in (("b", "f"), ("a", "none")):
        with pytest.raises(OSError):  # noqa: PT011
            files.open_below(tmp_path, parts)


class Interrupt(BaseException):
    """Ctrl-C."""


def test_interrupts_close_a_descriptor_once(tmp_path: Path) -> None:
    """Ctrl-C after any call on the way: a second close may close another file."""
    path = tmp_path / "file"
    path.write_bytes(b"data")
    for number in range(1, 60):
        count = 0

        def interrupt(frame: object, event: str, argument: object, after: int = number) -> None:
            nonlocal count
            count += event in ("return", "c_return")
            if count == after:
                sys.setprofile(None)
                raise Interrupt

        try:
            sys.setprofile(interrupt)
            stream = open_plain(path)
            sys.setprofile(None)
        except Interrupt:
            continue
        with stream:
            assert stream.read() == b"data"
        return
    raise AssertionError("it makes more calls")
