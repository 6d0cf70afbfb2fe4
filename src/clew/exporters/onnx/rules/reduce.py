"""Reductions over axes."""

from __future__ import annotations

from typing import Final

import numpy as np

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


@writes("cumsum")
def cumsum(w: Writing) -> str:
    """`CumSum`."""
    return w.emit(
        "CumSum",
        *w.inputs,
        w.constant(np.int64(w.attrs.axis)),
        exclusive=w.attrs.exclusive,
        reverse=w.attrs.reverse,
    )


@writes("top_k", "top_k_ranked")
def top_k(w: Writing) -> tuple[str, ...]:
    """`TopK`, sorted; of equal elements, the first comes first. The place of NaN is left open."""
    return _largest(w, w.attrs.k)


@writes("top_k_into")
def top_k_into(w: Writing) -> tuple[str, ...]:
    """`top_k` of as many elements as the second input has."""
    return _largest(w, w.shape(1)[0])


def _largest(w: Writing, k: int) -> tuple[str, ...]:
    return w.emit_many(
        "TopK",
        w.inputs[0],
        w.integers(k),
        outputs=2,
        axis=w.attrs.axis,
        largest=w.attrs.largest,
        sorted=1,
    )
