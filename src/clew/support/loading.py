"""The lock of imports on first use."""

from __future__ import annotations

import os
from typing import Final

from clew.support.locks import Lock

LOADING: Final = Lock()
"""Held while modules are imported on first use. Of two threads, one of which imports a package and
the other a module of it, each may hold what the other waits for: Python then raises an error.

A fork waits for it: the child could not import what another thread was importing.
"""
os.register_at_fork(
    before=LOADING.__enter__, after_in_parent=LOADING.release, after_in_child=LOADING.release
)
