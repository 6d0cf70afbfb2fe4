"""Reductions over axes."""

from __future__ import annotations

from typing import Final

from clew.exporters.onnx.registry import Rule, Writing, writes
from clew.vocabularies.onnx import REDUCTIONS
from clew.vocabularies.same import Same, written

_OF_ONE: Final = {"l1": "Abs", "l2": "Abs", "log_sum": "Log"}
"""The operators that equal reductions of single elements: without axes, nothing is reduced."""


def _rule_of(pair: Same) -> Rule:
    def rule(w: Writing) -> str:
        if not w.attrs.axes:
            return _of_one(w)
        return w.emit(pair.foreign, *w.inputs, w.integers(*w.attrs.axes), keepdims=w.attrs.keepdims)

    return rule


def _of_one(w: Writing) -> str:
    """Returns a reduction of single elements."""
    if w.call.op_name == "sum_square":
        return w.emit("Mul", *w.inputs, *w.inputs)
    return w.emit(_OF_ONE.get(w.call.op_name, "Identity"), *w.inputs)


for _pair in written(REDUCTIONS):
    writes(_pair.op)(_rule_of(_pair))


@writes("count_nonzero")
def count_nonzero(w: Writing) -> str:
    """The sum of ones."""
    ones = w.cast(w.cast(w.inputs[0], "bool"), "i64")
    if not w.types[0].rank:
        return ones
    return w.emit("ReduceSum", ones, keepdims=0)
