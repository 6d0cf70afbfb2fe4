"""Locks that can be tried."""

from __future__ import annotations

from clew.support.locks import Lock


def test_a_lock_is_taken_once_until_it_is_released() -> None:
    lock = Lock()
    assert lock.take()
    assert not lock.take()
    lock.release()
    with lock:
        assert not lock.take()
    assert lock.take()


def test_a_child_has_a_free_lock() -> None:
    lock = Lock()
    assert lock.take()
    lock.renew()  # as a forked child does
    assert lock.take()
