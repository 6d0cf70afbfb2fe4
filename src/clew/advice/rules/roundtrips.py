"""Conversions to fewer bits and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from clew.advice.candidate import Candidate, Change
from clew.advice.channels import PRODUCTS
from clew.advice.graphs import dtype_of, op_of, replacing, together
from clew.advice.rule import AdviceRule, register_advice
from clew.advice.subject import Subject, layers_of
from clew.ir.expr import Call, Expr
from clew.ir.types import bits, is_float

_SAVED: Final = 0.5
_LEAST: Final = 0.02  # of a call: the layers around are kept apart, too
_INWARD: Final = {"quantize": "dequantize", "cast": "cast"}


@register_advice
class Roundtrips(AdviceRule):
    """Values that are converted to narrower numbers and back between layers that compute on floats:
    a cast to f16 that autocast left, or a quantizer whose readers are not products on integers.
    Such a pair only loses precision, and keeps the layers around it in separate kernels.
    """

    name: ClassVar[str] = "roundtrips"
    title: ClassVar[str] = "casts and quantizers whose values are converted back immediately"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields a candidate for all casts, one for quantizers that no product reads, and one for
        all quantizers.
        """
        casts = [pair for pair in _pairs(subject) if op_of(pair[0]) == "cast"]
        quantizers = [pair for pair in _pairs(subject) if op_of(pair[0]) == "dequantize"]
        idle = [pair for pair in quantizers if not _feeds_product(subject, pair[0])]
        if casts:
            yield self._candidate(
                f"remove {len(casts)} casts to fewer bits and back",
                "the values are converted back to the wider dtype immediately",
                "turn autocast off around these lines, or export after model.float()",
                casts,
            )
        if idle:
            yield self._candidate(
                f"remove {len(idle)} pairs of quantize and dequantize that no product reads",
                "the layers that read them compute on floats, so they only prevent fusion",
                "exclude these operators from quantization (op_types_to_quantize, or "
                "nodes_to_exclude)",
                idle,
            )
        if len(idle) < len(quantizers):
            yield self._candidate(
                f"remove all {len(quantizers)} pairs of quantize and dequantize",
                "products on floats may be faster here than quantizing for products on integers",
                "export the model before its quantization",
                quantizers,
            )

    def _candidate(
        self, what: str, why: str, how: str, pairs: list[tuple[Call, Call, Expr]]
    ) -> Candidate:
        nodes = [n for outer, inner, _ in pairs for n in (inner, outer)]
        edits = together(
            replacing(self.name, outer, [value], lambda x: x) for outer, _, value in pairs
        )
        return Candidate(
            self.name, what, why, how, layers_of(nodes), "exporter", "approximation",
            Change(edits), share=_SAVED, least=_LEAST,
        )  # fmt: skip


def _pairs(subject: Subject) -> Iterator[tuple[Call, Call, Expr]]:
    """Yields the outer and the inner conversion of each pair, and the value that is converted."""
    for outer in subject.calls:
        inner = outer.args[0] if outer.args else None
        if not isinstance(inner, Call) or _INWARD.get(inner.op_name) != outer.op_name:
            continue
        value = inner.args[0]
        if subject.is_fixed(inner) or value.type != outer.type or not is_float(dtype_of(value)):
            continue
        narrow = dtype_of(inner)
        if narrow and bits(narrow) < bits(dtype_of(value)) and narrow != "bool":
            yield outer, inner, value


def _feeds_product(subject: Subject, node: Call) -> bool:
    """Whether a product reads a value, also through operators that only move it."""
    todo: list[Expr] = [node]
    seen: set[int] = set()
    while todo:
        for reader in subject.readers(todo.pop()):
            if reader.id in seen:
                continue
            seen.add(reader.id)
            if op_of(reader) in PRODUCTS:
                return True
            if op_of(reader) in ("reshape", "transpose", "pad", "slice"):
                todo.append(reader)
    return False
