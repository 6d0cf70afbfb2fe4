"""Decision trees: from the features of a case to a leaf of each tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew import te
from clew.ops.common import differ, f32, f64, i32, i64, need_float, need_integer, same_dtype, u8
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]

EQUAL, MISSING = 1, 2
"""What a node's kind is the sum of: it compares by `==`, a missing feature takes the first child."""
_COMPARISONS = ("less_equal", "equal", "mixed")
_MISSING = ("second", "first", "mixed")

# Two trees over leaves 0 to 4: a node of two leaves, one of a leaf and a node.
_FEATURES = np.array([0] * 5 + [1, 0, 2], "i4")
_SPLITS = np.array([0] * 5 + [0.25, -0.5, 1.0], "f4")
_CHILDREN = np.array([n for n in range(5) for _ in (0, 1)] + [0, 1, 2, 7, 3, 4], "i4")
_KINDS = np.array([0] * 5 + [0, 3, 2], "u1")
_STARTS = np.array([[5], [6]], "i4")
_FOREST = (_STARTS, _FEATURES, _SPLITS, _CHILDREN, _KINDS)
_WILD = (_STARTS, _FEATURES + 90, _SPLITS, _CHILDREN - 7, _KINDS)
_CASES = np.array([[0, 0.25, 1], [-0.5, 9, 9], [np.nan] * 3, [1, np.nan, 2]], "f4")


@register_op(
    "forest.walk",
    samples=(
        Sample(f32(9, 3), *_FOREST, steps=2),
        Sample(_CASES, *_FOREST, steps=2, comparison="mixed", missing="mixed"),
        Sample(_CASES, *_FOREST, steps=1, comparison="equal", missing="first"),
        Sample(f32(0, 3), *_FOREST, steps=2),
        Sample(f64(3, 3), _STARTS, _FEATURES, _SPLITS.astype("f8"), _CHILDREN, _KINDS, steps=2),
        Sample(_CASES, *_WILD, steps=3),
        Sample(f32(9), *_FOREST, steps=2, error="T108"),
        Sample(f64(9, 3), *_FOREST, steps=2, error="T101"),
        Sample(f32(9, 3), *_FOREST[:3], i32(8), u8(8), steps=2, error="T108"),
        Sample(f32(9, 0), *_FOREST, steps=2, error="T108"),
        Sample(f32(9, 3), *_FOREST, steps=0, error="T107"),
        Sample(f32(9, 3), *_FOREST, steps=2, missing="never", error="T107"),
        Sample(i64(9, 3), *_FOREST, steps=2, error="T105"),
    ),
)
def forest_walk(
    x: Tensor,
    starts: Tensor,
    features: Tensor,
    splits: Tensor,
    children: Tensor,
    kinds: Tensor,
    *,
    steps: int,
    comparison: str = "less_equal",
    missing: str = "second",
) -> Tensor:
    """The nodes `i32[T, N]` that `N` cases `x[N, F]` stand at in `T` trees after a number of steps
    from `starts[T, N]` (or `[T, 1]`).

    Of `M` nodes, node `n` goes on to `children[2 n]` where feature `features[n]` is at most
    `splits[n]`, else to `children[2 n + 1]`. `comparison` may be `equal` instead, and `missing` (a
    feature that is NaN) may take the `first` child; `mixed` looks at each node's `kinds` (`EQUAL`,
    `MISSING`). A leaf has itself as children. Indices are held inside the tables.

    Errors: T101, T105, T107, T108. Source: ONNX ml TreeEnsemble-5.
    """
    need_float("forest.walk", x)
    need_integer("forest.walk", starts, features, children, kinds)
    same_dtype("forest.walk", x, splits)
    _check(x, starts, features, splits, children, kinds)
    if steps < 1 or comparison not in _COMPARISONS or missing not in _MISSING:
        raise GraphTypeError(
            "T107", f"forest.walk: steps={steps}, comparison={comparison!r}, missing={missing!r}"
        )
    width, nodes = te.size(x.shape[1]) - 1, te.size(splits.shape[0]) - 1

    def body(t: Scalar, n: Scalar) -> Scalar:
        node = starts[t, n if starts.shape[1] != 1 else 0]
        for _ in range(steps):
            here = te.minimum(te.maximum(te.cast("i64", node), 0), nodes)
            feature = te.minimum(te.maximum(te.cast("i64", features[here]), 0), width)
            value, split = x[n, feature], splits[here]
            found = value <= split if comparison != "equal" else value.equal(split)
            kind = kinds[here] if "mixed" in (comparison, missing) else None
            if comparison == "mixed":
                assert kind is not None
                found = te.select((kind & EQUAL).not_equal(0), value.equal(split), found)
            if missing != "second":
                absent = te.call("isnan", value)
                if missing == "mixed":
                    assert kind is not None
                    absent = absent & (kind & MISSING).not_equal(0)
                found = found | absent
            node = children[here * 2 + te.select(found, te.as_scalar(0), te.as_scalar(1))]
        return te.cast("i32", node)

    return te.compute((starts.shape[0], x.shape[0]), body, "forest_walk")


def _check(
    x: Tensor, starts: Tensor, features: Tensor, splits: Tensor, children: Tensor, kinds: Tensor
) -> None:
    tables = (features, splits, children, kinds)
    fits = x.rank == 2 and starts.rank == 2 and all(t.rank == 1 for t in tables)
    if fits:
        nodes, cases = splits.shape[0], starts.shape[1]
        alike = not any(differ(t.shape[0], nodes) for t in (features, kinds))
        pairs = not differ(children.shape[0], nodes * 2)
        known = cases == 1 or not differ(cases, x.shape[0])
        fits = alike and pairs and known and nodes != 0 and x.shape[1] != 0
    if not fits:
        shown = ", ".join(str(t.type) for t in (x, starts, *tables))
        raise GraphTypeError("T108", f"forest.walk: no tables of nodes for a matrix: {shown}")


@forest_walk.reference
def _forest_walk_reference(
    x: Array,
    starts: Array,
    features: Array,
    splits: Array,
    children: Array,
    kinds: Array,
    *,
    steps: int,
    comparison: str,
    missing: str,
) -> Array:
    cases = np.arange(len(x))
    node = np.broadcast_to(starts, (len(starts), len(x))).astype(np.int64)
    for _ in range(steps):
        here = node.clip(0, len(splits) - 1)
        value = x[cases, features[here].clip(0, x.shape[1] - 1)]
        found, same = value <= splits[here], value == splits[here]
        equal = (kinds[here] & EQUAL) != 0
        found = {"less_equal": found, "equal": same}.get(comparison, np.where(equal, same, found))
        first = (kinds[here] & MISSING) != 0
        absent = np.isnan(value) & {"second": False, "first": True}.get(missing, first)
        node = children[here * 2 + ~(found | absent)].astype(np.int64)
    return node.astype(np.int32)
