"""Collections are rare inside, as they were outside, and one is done at the end if it is due."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from clew.support import collection
from clew.support.collection import collected_at_the_end, no_collections, rare_collections


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


@pytest.mark.parametrize(("grown", "wanted"), [(0.0, 1), (1e9, 0)])
def test_a_collection_that_is_due_is_done_at_once(
    grown: float, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "_GROWN", grown)
    seen: list[Any] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            seen.append(info)

    gc.callbacks.append(note)
    try:
        with collected_at_the_end():
            seen.clear()
            kept = [[n] for n in range(10_000)]
        assert len(seen) == wanted
    finally:
        gc.callbacks.remove(note)
    assert kept


def test_no_collections_inside_of_rare_ones() -> None:
    before = gc.get_threshold()
    with rare_collections():
        rare = gc.get_threshold()
        with no_collections():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold() == rare
    assert gc.get_threshold() == before
