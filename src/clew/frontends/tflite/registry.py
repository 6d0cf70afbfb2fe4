"""The converters of TFLite operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from clew.frontends.registry import Converters
from clew.frontends.tflite.layer import TfliteLayer
from clew.ir.expr import Expr

Result: TypeAlias = "Expr | Sequence[Expr]"
Converter: TypeAlias = Callable[[TfliteLayer], Result]
Quantized: TypeAlias = "Result | None"
OnCodes: TypeAlias = Callable[[TfliteLayer], Quantized]

CONVERTERS: Final[Converters[str, Converter]] = Converters()
CODES: Final[set[str]] = set()
"""Operators that move quantized codes as they are: their operands are not dequantized."""
ON_CODES: Final[Converters[str, OnCodes]] = Converters()
"""The converters that compute with codes."""


def converter(*operators: str, codes: bool = False) -> Callable[[Converter], Converter]:
    """Decorator: registers a converter. With `codes`, quantized operands reach it as codes."""
    if codes:
        CODES.update(operators)
    return CONVERTERS.register(*operators)


def on_codes(*operators: str) -> Callable[[OnCodes], OnCodes]:
    """Decorator: registers a converter for layers with quantized tensors. Operands and results are
    codes. It returns None for a form that has no integer arithmetic, which is then computed in
    floats.
    """
    return ON_CODES.register(*operators)
