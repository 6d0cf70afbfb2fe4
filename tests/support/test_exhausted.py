"""What has run out is a coded error, of the kind that Python has for it, too."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

import clew
from clew.quantization.recipe import Recipe
from clew.runtime.limits import within
from clew.support.background import start_thread
from clew.support.exhausted import coded_exhaustion, exhausted

_CASES: list[tuple[BaseException, str]] = [
    (MemoryError(), "C160"),
    (MemoryError("Unable to allocate 4 TiB"), "C160"),
    (SystemError("error return without exception set"), "C160"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 4 TiB"), "C160"),
    (ImportError("x.so: failed to map segment from shared object"), "C160"),
    (OSError("Could not find/load shared object file 'libllvmlite.so'"), "C160"),
    (RecursionError("maximum recursion depth exceeded"), "C161"),
    (RuntimeError("can't start new thread"), "C162"),
    (OSError(errno.ENOSPC, "No space left on device", "/tmp/f"), "C163"),
    (OSError(errno.EMFILE, "Too many open files"), "C163"),
]


@pytest.mark.parametrize(("error", "code"), _CASES, ids=str)
def test_codes(error: BaseException, code: str) -> None:
    @coded_exhaustion
    def fails() -> None:
        raise error

    with pytest.raises(clew.ClewError) as caught:
        fails()
    assert caught.value.code == code
    assert caught.value.__cause__ is error
    if isinstance(error, (MemoryError, RecursionError)):
        assert isinstance(caught.value, type(error))


@pytest.mark.parametrize(
    "error", [ValueError("x"), FileNotFoundError(errno.ENOENT, "no"), clew.ClewError("C001", "x")]
)
def test_others_stay(error: BaseException) -> None:
    assert exhausted(error) is None


def test_public_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("clew.frontends.load_or_defer", no_room)
    with pytest.raises(MemoryError) as caught:
        clew.compile("m.onnx")
    assert isinstance(caught.value, clew.ClewError)


def test_a_recipe_nested_deep(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text("[" * 100_000)
    with pytest.raises(clew.ClewError, match="nested too deeply") as caught:
        Recipe.load(path)
    assert caught.value.code == "I398"


def test_threads_that_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert start_thread(print, "x") is None
    assert within(1.0, lambda: 5) == 5
