"""Reductions over axes."""

from __future__ import annotations

from typing import Final

from clew.exporters.onnx.registry import Rule, Writing, writes

_DIRECT: Final = {
    "sum": ("ReduceSum", "Identity"),
    "prod": ("ReduceProd", "Identity"),
    "max": ("ReduceMax", "Identity"),
    "min": ("ReduceMin", "Identity"),
    "mean": ("ReduceMean", "Identity"),
    "l1": ("ReduceL1", "Abs"),
    "l2": ("ReduceL2", "Abs"),
    "log_sum": ("ReduceLogSum", "Log"),
    "logsumexp": ("ReduceLogSumExp", "Identity"),
    "all": ("ReduceMin", "Identity"),
    "any": ("ReduceMax", "Identity"),
}
"""The operator, and the one that equals it for single elements: without axes nothing is reduced."""


def _reduced(op: str, single: str) -> Rule:
    def rule(w: Writing) -> str:
        if not w.attrs.axes:
            return w.emit(single, *w.inputs)
        return w.emit(op, *w.inputs, w.integers(*w.attrs.axes), keepdims=w.attrs.keepdims)

    return rule


for _name, (_op, _single) in _DIRECT.items():
    writes(_name)(_reduced(_op, _single))


@writes("sum_square")
def sum_square(w: Writing) -> str:
    """`ReduceSumSquare`; without axes, the squares."""
    (x,) = w.inputs
    if not w.attrs.axes:
        return w.emit("Mul", x, x)
    return w.emit("ReduceSumSquare", x, w.integers(*w.attrs.axes), keepdims=w.attrs.keepdims)


@writes("argmax", "argmin")
def place(w: Writing) -> str:
    """`ArgMax`, `ArgMin`. For rows with NaN, the standard leaves the place open."""
    op = "ArgMax" if w.call.op_name == "argmax" else "ArgMin"
    return w.emit(
        op,
        *w.inputs,
        axis=w.attrs.axis,
        keepdims=w.attrs.keepdims,
        select_last_index=w.attrs.select_last,
    )


@writes("count_nonzero")
def count_nonzero(w: Writing) -> str:
    """The sum of ones."""
    ones = w.cast(w.cast(w.inputs[0], "bool"), "i64")
    if not w.types[0].rank:
        return ones
    return w.emit("ReduceSum", ones, keepdims=0)
