"""Checks of sizes and counts in a file against the budgets (`support.budgets`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from clew.ir.types import bits
from clew.support.budgets import Budgets, exceeded
from clew.support.errors import ClewError, ModelError


def over(code: str, what: str, asked: int | str, budget: str, limit: int) -> ClewError:
    """Returns the error of a model that exceeds a budget."""
    return exceeded(ModelError, code, what, asked, budget, limit)


def checked_size(shape: Sequence[int], dtype: str, budgets: Budgets, what: str) -> int:
    """Returns the number of elements of a shape.

    Errors: M006 for negative dimensions, too many axes, or more bytes than the budget.
    """
    if len(shape) > budgets.rank:
        raise over("M006", f"axes of {what}", len(shape), "rank", budgets.rank)
    if any(d < 0 for d in shape):
        raise ModelError("M006", f"{what} has a negative dimension: {list(shape)}")
    size = math.prod(int(d) for d in shape)
    size_bytes = (size * bits(dtype) + 7) // 8
    if size_bytes > budgets.memory_bytes:
        what = f"bytes of {what}, {dtype}{list(shape)}"
        if size_bytes > budgets.tensor_bytes:
            raise over("M006", what, size_bytes, "tensor_bytes", budgets.tensor_bytes)
        raise ModelError(
            "M006",
            f"{what}: {size_bytes}, more than this machine's {budgets.memory_bytes}",
            hint="the file is damaged or hostile, or the model needs a larger machine",
        )
    if not size and math.prod(max(int(d), 1) for d in shape) * bits(dtype) >= 1 << 63:
        raise ModelError(
            "M006", f"{what} has no elements, but sizes that are too large: {list(shape)}"
        )
    return size
