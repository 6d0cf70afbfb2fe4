"""Decision trees: from the features of a case to a leaf of each tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew import te
from clew.ir.dims import Dim
from clew.ops.common import f32, f64, i32, i64, need_float, need_integer
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.expr import binary

Array = np.ndarray[Any, Any]

EQUAL, MISSING = 1, 2
"""A node's kind is a sum of these: compare by `==`; take the first child if a feature is
missing.
"""
KINDS = 4
_COMPARISONS = ("less_equal", "equal", "mixed")
_MISSING = ("second", "first", "mixed")


def packed(features: Array, splits: Array, children: Array, kinds: Array) -> Array:
    """Returns nodes `[M, 4]` in the form of `forest.leaves`, as integers of the width of `splits`.

    Of node `n`, `children[n]` are two nodes; the leaf `l` is `-1 - l`. Features are below `2**30`.
    """
    wide = np.int32 if splits.dtype.itemsize == 4 else np.int64
    nodes = np.empty((len(features), 4), wide)
    nodes[:, 0] = features.astype(np.int64) * KINDS + kinds
    nodes[:, 1] = splits.view(wide)
    nodes[:, 2:] = children
    return nodes


# Two trees over leaves 0 to 4: one node with two leaves, one with a leaf and a node.
_SPLITS = np.array([0.25, -0.5, 1.0], "f4")
_PARTS = (np.array([1, 0, 2]), np.array([[-1, -2], [-3, 2], [-4, -5]]), np.array([0, 3, 2]))


def _nodes(dtype: str) -> Array:
    return packed(_PARTS[0], _SPLITS.astype(dtype), *_PARTS[1:])


_ROOTS = np.array([0, 1], "i4")
_MANY = np.array([0, 1, 2, -1, 1, 0, 2, 1, -3, 0, 0, 1, 2], "i4")
_CASES = np.array([[0, 0.25, 1], [-0.5, 9, 9], [np.nan] * 3, [1, np.nan, 2]], "f4")
_WILD = np.array([[99, 0, 0, 9], [7, 1, -80, 1], [-9, 3, 2, -9]], "i4")


@register_op(
    "forest.leaves",
    samples=(
        Sample(f32(9, 3), _ROOTS, _nodes("f4"), depth=2),
        Sample(_CASES, _MANY, _nodes("f4"), depth=2, comparison="mixed", missing="mixed"),
        Sample(_CASES, _ROOTS, _nodes("f4"), depth=9, comparison="equal", missing="first"),
        Sample(f32(0, 3), _ROOTS, _nodes("f4"), depth=2),
        Sample(f64(3, 3), _MANY, _nodes("f8"), depth=2),
        Sample(_CASES, _MANY * 3 - 9, _WILD, depth=70, missing="mixed"),
        Sample(f32(9), _ROOTS, _nodes("f4"), depth=2, error="T108"),
        Sample(f64(9, 3), _ROOTS, _nodes("f4"), depth=2, error="T101"),
        Sample(f32(9, 3), _ROOTS, i32(3, 2), depth=2, error="T108"),
        Sample(f32(9, 0), _ROOTS, _nodes("f4"), depth=2, error="T108"),
        Sample(f32(9, 3), _ROOTS, _nodes("f4"), depth=2, missing="never", error="T107"),
        Sample(f32(9, 3), _ROOTS, _nodes("f4"), depth=0, error="T107"),
        Sample(i64(9, 3), _ROOTS, _nodes("f4"), depth=2, error="T105"),
    ),
)
def forest_leaves(
    x: Tensor,
    roots: Tensor,
    nodes: Tensor,
    *,
    depth: int,
    comparison: str = "less_equal",
    missing: str = "second",
) -> Tensor:
    """Returns the leaves `i32[T, N]` that the cases `x[N, F]` reach in `T` trees, at most `depth`
    steps from the `roots[T]`.

    A row of `nodes[M, 4]` is a node: its feature times 4 plus its kind, the bits of its split, and
    two children. Nodes are `i32` for cases of `f32`, `i64` for `f64`. The child `l < 0` is the leaf
    `-1 - l`. The first child follows if the feature is at most the split. `comparison` may be
    `equal` instead, and `missing` (a NaN feature) may take the `first` child; `mixed` uses each
    node's kind (`EQUAL`, `MISSING`). Indices are clamped to the tables; a walk that is still at a
    node after `depth` steps ends at leaf 0.

    Errors: T101, T105, T107, T108. Source: ONNX ml TreeEnsemble-5.
    """
    need_float("forest.leaves", x)
    need_integer("forest.leaves", roots, nodes)
    if x.rank != 2 or roots.rank != 1 or nodes.rank != 2 or 0 in (x.shape[1], nodes.shape[0]):
        fits = False
    else:
        fits = nodes.shape[1] == 4
    if not fits:
        shown = ", ".join(str(t.type) for t in (x, roots, nodes))
        raise GraphTypeError("T108", f"forest.leaves: expected a matrix, roots and nodes: {shown}")
    if nodes.dtype != ("i64" if x.dtype == "f64" else "i32"):
        raise GraphTypeError("T101", f"forest.leaves: {nodes.dtype} nodes for cases of {x.dtype}")
    if comparison not in _COMPARISONS or missing not in _MISSING or depth < 1:
        given = f"comparison={comparison!r}, missing={missing!r}, depth={depth}"
        raise GraphTypeError("T107", f"forest.leaves: {given}")
    bits = "u64" if x.dtype == "f64" else "u32"
    step, place = te.reduce_axis(depth, "step"), te.reduce_axis(nodes.shape[0], "place")

    def below(value: Scalar, extent: Dim) -> Scalar:
        # As an unsigned number, a negative one is beyond every table.
        last = te.cast(value.dtype, te.size(extent) - 1)
        return te.cast("i64", te.minimum(value, last))

    def following(n: Scalar) -> Scalar:
        here = below(te.cast("u64", place), nodes.shape[0])
        word = te.cast(bits, nodes[here, 0])
        value = x[n, below(binary("shr", word, te.as_scalar(2, bits)), x.shape[1])]
        split = te.Bitcast(x.dtype, nodes[here, 1])
        found = value <= split if comparison != "equal" else value.equal(split)

        def is_kind(kind: int) -> Scalar:
            return (word & kind).not_equal(0)

        if comparison == "mixed":
            found = te.select(is_kind(EQUAL), value.equal(split), found)
        if missing != "second":
            absent = te.call("isnan", value)
            found = found | (absent & is_kind(MISSING) if missing == "mixed" else absent)
        return te.cast("i64", nodes[here, te.select(found, te.as_scalar(2), 3)])

    def body(t: Scalar, n: Scalar) -> Scalar:
        leaf = te.cast("i32", te.maximum(-1 - place, 0))
        return te.follow(te.cast("i64", roots[t]), following(n), leaf, [step, place])

    return te.compute((roots.shape[0], x.shape[0]), body, "forest_leaves")


@forest_leaves.reference
def _forest_leaves_reference(
    x: Array, roots: Array, nodes: Array, *, depth: int, comparison: str, missing: str
) -> Array:
    cases = np.arange(len(x))
    splits = nodes[:, 1].copy().view(x.dtype)
    words: Array = nodes[:, 0].astype(np.uint64 if x.dtype == np.float64 else np.uint32)
    place = np.broadcast_to(roots[:, None], (len(roots), len(x))).astype(np.int64)
    for _ in range(depth):
        here = np.where(place < 0, len(nodes) - 1, place.clip(max=len(nodes) - 1))
        features = (words[here] // KINDS).clip(max=x.shape[1] - 1).astype(np.int64)
        value = x[cases, features]
        found, same = value <= splits[here], value == splits[here]
        kinds = words[here] % KINDS
        equal, first = kinds % MISSING == EQUAL, kinds >= MISSING
        found = {"less_equal": found, "equal": same}.get(comparison, np.where(equal, same, found))
        absent = np.isnan(value) & {"second": False, "first": True}.get(missing, first)
        following = nodes[here, np.where(found | absent, 2, 3)]
        place = np.where(place < 0, place, following)
    return np.asarray((-1 - place).clip(min=0), np.int32)


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
