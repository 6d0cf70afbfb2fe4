"""Collections are rare inside, and as they were outside; new objects are old at the end."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from clew.support.collection import (
    no_collections,
    no_collections_of_imports,
    old_at_the_end,
    rare_collections,
)


def test_thresholds_are_those_of_before_at_the_end() -> None:
    before = gc.get_threshold()
    with rare_collections():
        inside = gc.get_threshold()
        assert inside[0] > before[0]
        with rare_collections():
            assert gc.get_threshold() == inside
        assert gc.get_threshold() == inside
    assert gc.get_threshold() == before


def test_errors_and_several_threads_leave_them_too() -> None:
    before = gc.get_threshold()

    def fail() -> None:
        for _ in range(200):
            with pytest.raises(ZeroDivisionError), rare_collections():
                _ = 1 / 0

    threads = [threading.Thread(target=fail) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gc.get_threshold() == before


def test_thresholds_that_a_user_sets_inside_stay() -> None:
    before = gc.get_threshold()
    with rare_collections():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5)
    gc.set_threshold(*before)


def test_no_collections_inside_of_rare_ones() -> None:
    before = gc.get_threshold()
    with rare_collections():
        rare = gc.get_threshold()
        with no_collections():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold() == rare
    assert gc.get_threshold() == before


@pytest.mark.parametrize("context", [no_collections_of_imports, old_at_the_end])
def test_what_is_left_is_old_without_a_collection(context: Callable[[], Any]) -> None:
    # In a new process: in this one, pytest's objects may be frozen.
    program = (
        "import gc\n"
        f"from clew.support.collection import {context.__name__} as context\n"
        "for count, wanted in ((100, 0), (20_000, 2)):\n"
        "    gc.collect()\n"
        "    before = gc.get_stats()[2]['collections']\n"
        "    with context():\n"
        "        kept = [[n] for n in range(count)]\n"
        "    assert gc.get_stats()[2]['collections'] == before\n"
        "    assert any(each is kept for each in gc.get_objects(wanted))\n"
        "    assert gc.get_freeze_count() == 0 and gc.get_count()[0] < 5_000\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_objects_that_a_user_froze_stay_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with no_collections_of_imports():
            kept = [[n] for n in range(20_000)]
        assert gc.get_freeze_count() > frozen / 2  # some of them die
    finally:
        gc.unfreeze()
    assert kept
