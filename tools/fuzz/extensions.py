"""Fusions of users', which a case may be compiled with."""

from __future__ import annotations

from typing import Any, Final

import clew
from clew.patterns import is_op, wildcard


@clew.fusion(is_op("multiply")(wildcard(), is_op("sigmoid")(wildcard())), "stack", required=False)
def gated(match: Any) -> None:
    """A product with a gate."""


@clew.fusion(is_op("nn.relu")(is_op("add")(wildcard(), wildcard())), "melt", required=False)
def shifted(match: Any) -> None:
    """A sum and its positive part."""


@clew.fusion(
    is_op("nn.softmax")(is_op("nn.matmul")(wildcard(), wildcard())), "stack", required=False
)
def scores(match: Any) -> None:
    """Scores of a product."""


@clew.fusion(is_op("sum")(is_op("tanh")(wildcard())), "melt", required=False)
def summed(match: Any) -> None:
    """A sum of a bounded value."""


@clew.fusion(
    is_op("add")(is_op("subtract")(wildcard(), wildcard()), wildcard()), "stack", required=False
)
def balanced(match: Any) -> None:
    """A difference and a sum."""


FUSIONS: Final = (gated, shifted, scores, summed, balanced)
