"""Operators are compiled in many ways, which share their kernels."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _kernels(shared_kernels: None) -> None:
    """Makes all tests of this folder use `shared_kernels`."""
