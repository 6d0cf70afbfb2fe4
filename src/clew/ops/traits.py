"""Traits: facts about an operator that passes ask for, declared where the operator is registered.

No pass keeps a list of operators that it knows a fact of: an operator that a user declares is
treated like clew's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Facts about an operator. Those that are None are derived from `compute`, call by call; what
    is declared goes before that.
    """

    moves_data: bool | None = None
    """Every element of the result is an element of an operand, at a place that no operand decides
    whose elements are moved. Read by `ir.values` (sizes that go through it), CombineParallelMatmul
    (a slice fuses into it), FoldConstant (a splat stays one).
    """


NO_TRAITS: Final = Traits()
