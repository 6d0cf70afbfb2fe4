"""Decision trees: from the features of a case to a leaf of each tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew import te
from clew.ops.common import differ, f32, f64, i32, i64, need_float, need_integer, same_dtype, u8
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.analysis import Kind

Array = np.ndarray[Any, Any]

EQUAL, MISSING = 1, 2
"""A node's kind is a sum of these: compare by `==`; take the first child if a feature is
missing.
"""
_COMPARISONS = ("less_equal", "equal", "mixed")
_MISSING = ("second", "first", "mixed")

# Two trees over leaves 0 to 4: one node with two leaves, one with a leaf and a node.
_FEATURES = np.array([0] * 5 + [1, 0, 2], "i4")
_SPLITS = np.array([0] * 5 + [0.25, -0.5, 1.0], "f4")
_CHILDREN = np.array([n for n in range(5) for _ in (0, 1)] + [0, 1, 2, 7, 3, 4], "i4")
_KINDS = np.array([0] * 5 + [0, 3, 2], "u1")
_ROOTS = np.array([[5], [6]], "i4")
_LATER = np.array([[5, 0, 7, 1], [6, 7, 2, 4]], "i4")
_FOREST = (_FEATURES, _SPLITS, _CHILDREN, _KINDS)
_WILD = (_FEATURES + 90, _SPLITS, _CHILDREN - 7, _KINDS)
_CASES = np.array([[0, 0.25, 1], [-0.5, 9, 9], [np.nan] * 3, [1, np.nan, 2]], "f4")


@register_op(
    "forest.step",
    kind=Kind.OPAQUE,  # its user reads each of its results several times
    samples=(
        Sample(f32(9, 3), _ROOTS, *_FOREST),
        Sample(_CASES, _LATER, *_FOREST, comparison="mixed", missing="mixed"),
        Sample(_CASES, _ROOTS, *_FOREST, comparison="equal", missing="first"),
        Sample(f32(0, 3), _ROOTS, *_FOREST),
        Sample(f64(3, 3), _ROOTS, _FEATURES, _SPLITS.astype("f8"), _CHILDREN, _KINDS),
        Sample(_CASES, _LATER * 3 - 9, *_WILD),
        Sample(f32(9), _ROOTS, *_FOREST, error="T108"),
        Sample(f64(9, 3), _ROOTS, *_FOREST, error="T101"),
        Sample(f32(9, 3), _ROOTS, *_FOREST[:2], i32(8), u8(8), error="T108"),
        Sample(f32(9, 0), _ROOTS, *_FOREST, error="T108"),
        Sample(f32(9, 3), _LATER, *_FOREST, error="T108"),
        Sample(f32(9, 3), _ROOTS, *_FOREST, missing="never", error="T107"),
        Sample(i64(9, 3), _ROOTS, *_FOREST, error="T105"),
    ),
)
def forest_step(
    x: Tensor,
    at: Tensor,
    features: Tensor,
    splits: Tensor,
    children: Tensor,
    kinds: Tensor,
    *,
    comparison: str = "less_equal",
    missing: str = "second",
) -> Tensor:
    """Advances `N` cases `x[N, F]` in `T` trees by one level, from the nodes `at[T, N]` (or
    `[T, 1]`) to the nodes `i32[T, N]`.

    Of `M` nodes, node `n` leads to `children[2 n]` if feature `features[n]` is at most `splits[n]`,
    else to `children[2 n + 1]`. `comparison` may be `equal` instead, and `missing` (a NaN feature)
    may take the `first` child; `mixed` uses each node's `kinds` (`EQUAL`, `MISSING`). The children
    of a leaf are the leaf itself. Indices are clamped to the tables.

    Errors: T101, T105, T107, T108. Source: ONNX ml TreeEnsemble-5.
    """
    need_float("forest.step", x)
    need_integer("forest.step", at, features, children, kinds)
    same_dtype("forest.step", x, splits)
    _check(x, at, features, splits, children, kinds)
    if comparison not in _COMPARISONS or missing not in _MISSING:
        raise GraphTypeError("T107", f"forest.step: comparison={comparison!r}, missing={missing!r}")
    width, nodes = te.size(x.shape[1]) - 1, te.size(splits.shape[0]) - 1

    def body(t: Scalar, n: Scalar) -> Scalar:
        node = te.cast("i64", at[t, n if at.shape[1] != 1 else 0])
        here = te.minimum(te.maximum(node, 0), nodes)
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
        return te.cast("i32", children[here * 2 + te.select(found, te.as_scalar(0), 1)])

    return te.compute((at.shape[0], x.shape[0]), body, "forest_step")


def _check(
    x: Tensor, at: Tensor, features: Tensor, splits: Tensor, children: Tensor, kinds: Tensor
) -> None:
    tables = (features, splits, children, kinds)
    fits = x.rank == 2 and at.rank == 2 and all(t.rank == 1 for t in tables)
    if fits:
        nodes, cases = splits.shape[0], at.shape[1]
        alike = not any(differ(t.shape[0], nodes) for t in (features, kinds))
        pairs = not differ(children.shape[0], nodes * 2)
        known = cases == 1 or not differ(cases, x.shape[0])
        fits = alike and pairs and known and nodes != 0 and x.shape[1] != 0
    if not fits:
        shown = ", ".join(str(t.type) for t in (x, at, *tables))
        raise GraphTypeError("T108", f"forest.step: expected node tables and a matrix: {shown}")


@forest_step.reference
def _forest_step_reference(
    x: Array,
    at: Array,
    features: Array,
    splits: Array,
    children: Array,
    kinds: Array,
    *,
    comparison: str,
    missing: str,
) -> Array:
    cases = np.arange(len(x))
    here = np.broadcast_to(at, (len(at), len(x))).clip(0, len(splits) - 1)
    value = x[cases, features[here].clip(0, x.shape[1] - 1)]
    found, same = value <= splits[here], value == splits[here]
    equal = (kinds[here] & EQUAL) != 0
    found = {"less_equal": found, "equal": same}.get(comparison, np.where(equal, same, found))
    first = (kinds[here] & MISSING) != 0
    absent = np.isnan(value) & {"second": False, "first": True}.get(missing, first)
    return np.asarray(children[here * 2 + ~(found | absent)], np.int32)


_VOTES = np.array([[0.5, 1], [0, -2], [3, 4], [1, 1], [0.25, 0]], "f4")


@register_op(
    "forest.votes",
    samples=(
        Sample(np.array([[0, 1, 4], [2, 3, 3]], "i4"), _VOTES),
        Sample(np.array([[0, 1, 4], [2, 3, 9]], "i4"), _VOTES.astype("f8"), combine="max"),
        Sample(np.array([[0, -1, 4], [2, 3, 9]], "i4"), _VOTES, combine="min"),
        Sample(np.array([[0, 1]], "i4"), _VOTES > 0, combine="or"),
        Sample(f32(2, 3), _VOTES, error="T105"),
        Sample(i32(2, 3), f32(3), error="T108"),
        Sample(i32(2, 3), f32(0, 2), error="T108"),
        Sample(i32(2, 3), f32(3, 2), combine="mean", error="T107"),
    ),
)
def forest_votes(leaves: Tensor, votes: Tensor, *, combine: str = "sum") -> Tensor:
    """Combines the `votes[L, C]` of the leaves `leaves[T, N]` to `[N, C]`: their sum, max, min or
    `or`. Indices are clamped to the table.

    Errors: T105, T107, T108. Source: ONNX ml TreeEnsemble-5.
    """
    need_integer("forest.votes", leaves)
    if leaves.rank != 2 or votes.rank != 2 or votes.shape[0] == 0:
        raise GraphTypeError("T108", f"forest.votes: leaves {leaves.type} do not fit {votes.type}")
    if combine not in ("sum", "max", "min", "or"):
        raise GraphTypeError("T107", f"forest.votes: combine={combine!r}")
    tree, last = te.reduce_axis(leaves.shape[0], "tree"), te.size(votes.shape[0]) - 1

    def body(n: Scalar, c: Scalar) -> Scalar:
        leaf = te.minimum(te.maximum(te.cast("i64", leaves[tree, n]), 0), last)
        return te.reduce(combine, votes[leaf, c], tree)

    return te.compute((leaves.shape[1], votes.shape[1]), body, "forest_votes")
