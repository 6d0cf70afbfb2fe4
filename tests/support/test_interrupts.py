"""Interrupts: none is lost."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
import weakref
from collections.abc import Iterator

import pytest

from clew.runner.local import LocalRunner
from clew.support.interrupts import lasting_interrupts, repeated_interrupts


@pytest.fixture(autouse=True)
def _interrupted_as_usual() -> Iterator[None]:
    """Tests in the background of a shell ignore Ctrl-C, and callbacks of the collector lose it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    collects = gc.isenabled()
    gc.disable()
    yield
    if collects:
        gc.enable()
    signal.signal(signal.SIGINT, before)


class Thing:
    """May be referred to weakly."""


def interrupt(reference: object = None) -> None:
    """Presses Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):  # handlers run between two instructions
        pass


def lose() -> None:
    """Presses Ctrl-C where Python ignores exceptions."""
    thing = Thing()
    _kept = weakref.ref(thing, interrupt)
    del thing


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_in_the_callback_of_a_weak_reference_is_raised_later() -> None:
    with lasting_interrupts() as check:
        check()
        lose()
        with pytest.raises(KeyboardInterrupt):
            check()
        check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_others_are_raised_at_once() -> None:
    with lasting_interrupts(), pytest.raises(KeyboardInterrupt):
        interrupt()


def test_one_in_the_callback_of_a_weak_reference_is_repeated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(KeyboardInterrupt), repeated_interrupts():  # noqa: PT012
        lose()
        end = time.monotonic() + 10
        while time.monotonic() < end:
            pass
    assert capsys.readouterr().err == ""


def test_one_that_a_library_makes_another_error_of_is_raised_later() -> None:
    with lasting_interrupts() as outer:
        with lasting_interrupts() as check:
            with contextlib.suppress(KeyboardInterrupt):
                interrupt()
            with pytest.raises(KeyboardInterrupt):
                check()
        with pytest.raises(KeyboardInterrupt):
            outer()


def test_a_handler_of_the_program_stays() -> None:
    seen = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with lasting_interrupts() as check:
            interrupt()
            check()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert seen == [signal.SIGINT]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_measurements_end() -> None:
    def items() -> Iterator[int]:
        for i in range(10):
            if i == 2:
                lose()
            yield i

    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        done.extend(item for item, _ in LocalRunner().run(lambda i: i, items()))
    assert done == [0, 1]
