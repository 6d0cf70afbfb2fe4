"""Formats dimensions as text, from the texts of their parts.

`dims` follows these rules, and so do printers that name or quote the parts in their own way. `dims`
imports this module, not the reverse: an atom's text is made together with the atom, because the
terms of a polynomial are sorted by text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

DIVISIONS: Final = ("//", "%")
"""The infix operations."""


class _Symbolic(Protocol):
    """A symbolic dimension (`SymDim`)."""

    @property
    def is_closed(self) -> bool: ...


def operation_text(op: str, operands: Sequence[str]) -> str:
    """Returns an operation without a polynomial form as text, from the texts of its operands."""
    return f" {op} ".join(operands) if op in DIVISIONS else f"{op}({', '.join(operands)})"


def operand_text(dim: int | _Symbolic, text: str | None = None) -> str:
    """Returns the text of a dimension in a larger expression, in parentheses where needed. `text`
    is the text by itself, by default `str(dim)`.
    """
    text = str(dim) if text is None else text
    is_closed = dim >= 0 if isinstance(dim, int) else dim.is_closed
    return text if is_closed else f"({text})"


def product_text(factors: Iterable[tuple[str, int]]) -> str:
    """Returns a product as text, from the texts of its factors and their powers."""
    return "*".join([text if power == 1 else f"{text}^{power}" for text, power in factors])


def sum_text(terms: Iterable[tuple[str, int]]) -> str:
    """Returns a sum as text, from the texts of its products ("" for 1) and their coefficients."""
    text = ""
    for product_, coefficient in sorted(terms, key=lambda term: term[1] < 0):
        size = abs(coefficient)
        term = product_ if size == 1 else f"{size}*{product_}" if product_ else ""
        sign = (" - " if coefficient < 0 else " + ") if text else "-" * (coefficient < 0)
        text += sign + (term or str(size))
    return text or "0"
