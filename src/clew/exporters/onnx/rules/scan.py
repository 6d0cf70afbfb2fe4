"""Running sums, and the largest elements."""

from __future__ import annotations

import numpy as np

from clew.exporters.onnx.registry import Writing, writes


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
