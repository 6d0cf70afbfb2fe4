"""The converters of TFLite operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from clew.frontends.registry import Converters
from clew.frontends.tflite.layer import TfliteLayer
from clew.ir.expr import Expr

Result: TypeAlias = "Expr | Sequence[Expr]"
Converter: TypeAlias = Callable[[TfliteLayer], Result]

CONVERTERS: Final[Converters[str, Converter]] = Converters()
CODES: Final[set[str]] = set()
"""Operators that move quantized codes as they are: their operands are not dequantized."""


def converter(*operators: str, codes: bool = False) -> Callable[[Converter], Converter]:
    """Decorator: registers a converter. `codes` says that it also takes quantized codes."""
    if codes:
        CODES.update(operators)
    return CONVERTERS.register(*operators)
