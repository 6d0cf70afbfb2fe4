"""Reading and updating elements at indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from clew.exporters.onnx.registry import Writing, writes

_PLACES: Final = ("i32", "i64")


def _places(w: Writing, n: int, dtypes: Sequence[str] = _PLACES) -> str:
    """Returns an argument that holds indices, in a dtype that ONNX takes."""
    dtype = w.types[n].dtype
    if dtype == "u64":
        w.refuse("indices of u64 may not fit i64")
    return w.inputs[n] if dtype in dtypes else w.cast(w.inputs[n], "i64")


@writes("gather")
def gather(w: Writing) -> str:
    """`Gather`, which takes negative indices even if `from_end` is not set."""
    return w.emit("Gather", w.inputs[0], _places(w, 1), axis=w.attrs.axis)


@writes("gather_elements")
def gather_elements(w: Writing) -> str:
    """`GatherElements`."""
    return w.emit("GatherElements", w.inputs[0], _places(w, 1), axis=w.attrs.axis)


@writes("gather_nd")
def gather_nd(w: Writing) -> str:
    """`GatherND`."""
    indices = _places(w, 1, ("i64",))
    return w.emit("GatherND", w.inputs[0], indices, batch_dims=w.attrs.batch_dims)


@writes("apply_table")
def apply_table(w: Writing) -> str:
    """`Gather`: a negative index counts from the end of the 256 elements, where the bits of a
    negative `i8` lead as well.
    """
    return w.emit("Gather", w.inputs[1], w.cast(w.inputs[0], "i32"), axis=0)


@writes("one_hot")
def one_hot(w: Writing) -> str:
    """`OneHot`."""
    depth = w.constant(np.int64(w.attrs.depth))
    return w.emit("OneHot", _places(w, 0, ("i64",)), depth, w.inputs[1], axis=w.attrs.axis)


def _reduction(w: Writing) -> str:
    reduction: str = w.attrs.reduction
    if reduction != "none" and w.types[0].dtype == "bool":
        w.refuse(f"ONNX does not define the reduction {reduction} of bool")
    return reduction


@writes("scatter_elements", "scatter_elements_few", "scatter_elements_many")
def scatter_elements(w: Writing) -> str:
    """`ScatterElements`. Which of several updates for one position remains, the standard leaves
    open.
    """
    return w.emit("ScatterElements", *w.inputs, axis=w.attrs.axis, reduction=_reduction(w))


@writes("scatter_nd", "scatter_nd_few", "scatter_nd_many")
def scatter_nd(w: Writing) -> str:
    """`ScatterND`; of several updates for one position as for `scatter_elements`."""
    x, indices, updates = w.inputs
    return w.emit("ScatterND", x, w.cast(indices, "i64"), updates, reduction=_reduction(w))


@writes("index_copy")
def index_copy(w: Writing) -> str:
    """`ScatterND` along the first axis."""
    n, rank = w.attrs.axis % w.types[0].rank, w.types[0].rank
    order = [n, *(a for a in range(rank) if a != n)]
    x, updates = (w.emit("Transpose", w.inputs[k], perm=order) for k in (0, 2))
    indices = w.emit("Unsqueeze", _places(w, 1, ("i64",)), w.constant(np.array([1])))
    made = w.emit("ScatterND", x, indices, updates)
    return w.emit("Transpose", made, perm=[order.index(a) for a in range(rank)])


@writes("reverse_sequence")
def reverse_sequence(w: Writing) -> str:
    """`ReverseSequence` along the first two axes."""
    rank = w.types[0].rank
    batch, time = w.attrs.batch_axis % rank, w.attrs.time_axis % rank
    if {batch, time} != {0, 1}:
        w.refuse(f"ONNX reverses along the first two axes, not {batch} and {time}")
    return w.emit(
        "ReverseSequence",
        w.inputs[0],
        _places(w, 1, ("i64",)),
        batch_axis=batch,
        time_axis=time,
    )


@writes("tensor_scatter")
def tensor_scatter(w: Writing) -> str:
    """`TensorScatter`; with `circular`, starts are brought into the axis first."""
    x, updates, _ = w.inputs
    n = w.attrs.axis % w.types[0].rank
    begin = _places(w, 2, ("i64",))
    if w.attrs.circular:
        begin = w.emit("Mod", begin, w.constant(np.int64(w.shape()[n])), fmod=0)
    mode = "circular" if w.attrs.circular else "linear"
    return w.emit("TensorScatter", x, updates, begin, axis=n, mode=mode)
