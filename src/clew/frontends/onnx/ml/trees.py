"""Tree ensembles: a walk through all trees, then a sum over the votes of the reached leaves."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clew.frontends.building import call, cast, filled, reshaped, scalar
from clew.frontends.limits import checked_size
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.ml.forest import (
    MEMBER,
    Branches,
    Forest,
    Named,
    branches_by_name,
    forest_of,
    malformed,
)
from clew.frontends.onnx.ml.scores import (
    DOMAIN,
    TRANSFORMS,
    Labels,
    column,
    features,
    largest,
    opposed,
    rows,
    transform_of,
    transformed,
)
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Constant, Expr
from clew.ir.types import to_numpy
from clew.support.budgets import Budgets
from clew.support.dataclass import dataclass
from clew.support.text_arrays import is_text

Array = np.ndarray[Any, Any]

_DENSE: Final = 1 << 24
"""The most elements of a table of every leaf's vote for every target."""
_AGGREGATES: Final = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass(frozen=True)
class _Votes:
    """The votes of leaves: a weight for one target each."""

    leaves: Array
    targets: Array
    weights: Array

    def checked(self, leaves: int, targets: int) -> _Votes:
        """Errors: T164 for a target that does not exist."""
        if self.targets.size and not 0 <= self.targets.min() <= self.targets.max() < targets:
            raise malformed(f"a leaf votes for a target that is not among the {targets}")
        assert not self.leaves.size or self.leaves.max() < leaves
        return self


def _walked(forest: Forest, x: Expr) -> Expr:
    """Returns the leaves that cases `[N, F]` end at, `i32[T, N]`."""
    return call(
        "forest.leaves",
        x,
        Constant(forest.roots),
        Constant(forest.nodes),
        depth=forest.depth,
        comparison=forest.comparison,
        missing=forest.missing,
    )


def _aggregated(
    kind: str, leaves: Expr, votes: _Votes, count: int, targets: int, dtype: str, budgets: Budgets
) -> Expr:
    """Returns scores `[N, targets]` of the leaves `[T, N]` that cases reached, out of `count`
    leaves: 0 if no leaf voted.

    Errors: M006 for tables beyond the budget.
    """
    per_leaf = np.bincount(votes.leaves, minlength=count)
    most = int(per_leaf.max(initial=0))
    op = {"MIN": "min", "MAX": "max"}.get(kind, "sum")
    if targets == 1 or (count * targets <= _DENSE and (most > 1 or targets <= 4)):
        table, voted = _dense(kind, votes, count, targets, dtype)
        scores: Expr = call("forest.votes", leaves, Constant(table), combine=op)
    else:
        for shape in ((count, most), (targets,)):
            checked_size(shape, dtype, budgets, "a table of the leaves' votes")
        found, voted, axes = _sparse(kind, leaves, votes, count, most, targets, dtype)
        scores = call(op, found, axes=axes, keepdims=False)
    if kind == "AVERAGE":
        trees = leaves.tensor.shape[0]
        assert isinstance(trees, int)
        scores = call("divide", scores, scalar(trees, dtype))
    if not voted:  # the extreme of no votes at all
        none = scalar(_start(kind), dtype)
        scores = call("where", call("equal", scores, none), scalar(0, dtype), scores)
    return scores


def _start(kind: str) -> float:
    return {"MIN": np.inf, "MAX": -np.inf}.get(kind, 0.0)


def _dense(kind: str, votes: _Votes, count: int, targets: int, dtype: str) -> tuple[Array, bool]:
    """Returns a table of each leaf's vote for each target, and whether it has no infinities, which
    stand for missing votes.
    """
    table = np.full((max(count, 1), targets), _start(kind), to_numpy(dtype))
    combine = {"MIN": np.minimum, "MAX": np.maximum}.get(kind, np.add)
    combine.at(table, (votes.leaves, votes.targets), votes.weights.astype(table.dtype))
    return table, kind in ("SUM", "AVERAGE") or not np.isinf(table).any()


def _sparse(
    kind: str, leaves: Expr, votes: _Votes, count: int, most: int, targets: int, dtype: str
) -> tuple[Expr, bool, tuple[int, ...]]:
    """Returns the contribution of each reached leaf to each target, over the axes to be reduced,
    from tables of a leaf's votes: target and weight.
    """
    order = np.argsort(votes.leaves, kind="stable")
    leaf = votes.leaves[order]
    slot = np.arange(len(leaf)) - np.searchsorted(leaf, leaf)
    to = np.full((count, most), -1, np.int32)
    weight = np.zeros((count, most), to_numpy(dtype))
    to[leaf, slot] = votes.targets[order]
    weight[leaf, slot] = votes.weights[order]
    trees, cases = leaves.tensor.shape
    shape = (trees, cases, most, 1)
    found = reshaped(call("gather", Constant(to), leaves, axis=0), shape)
    weights = reshaped(call("gather", Constant(weight), leaves, axis=0), shape)
    mine = call("equal", found, Constant(np.arange(targets, dtype=np.int32)))
    none = scalar(_start(kind), dtype)
    return call("where", mine, weights, none), kind in ("SUM", "AVERAGE"), (0, 2)


# --- version 5 ------------------------------------------------------------------------------------


@converter("TreeEnsemble", domain=DOMAIN, since=5)
def tree_ensemble(layer: Layer) -> Result:
    """Leaves have their own tables, with one vote each."""
    dtype = layer.type(0).dtype
    wide = "f64" if dtype == "f64" else "f32"
    x = cast(rows(layer, layer.input(0)), wide)
    weights = layer.tensor("leaf_weights").reshape(-1).astype(to_numpy(wide))
    count, targets = len(weights), layer.integer("n_targets", 1)
    ids = _ints(layer, "leaf_targetids")
    if len(ids) != count:
        raise layer.wrong(f"has {count} leaf_weights and {len(ids)} leaf_targetids")
    if targets < 1:
        raise layer.wrong(f"has {targets} targets")
    votes = _Votes(np.arange(count), ids, weights).checked(count, targets)
    roots = _ints(layer, "tree_roots")
    given = _branches(layer, count, wide)
    if roots.size and (roots.min() < 0 or roots.max() >= len(given.features)):
        raise malformed("a root is not a node")
    if not roots.size:
        raise malformed("it has no trees")
    kind = _numbered(layer, "aggregate_function", 1, _AGGREGATES)
    transform = _numbered(layer, "post_transform", 0, TRANSFORMS)
    forest = forest_of(roots + count, count, given, features(layer, x))
    budgets = layer.builder.budgets
    scores = _aggregated(kind, _walked(forest, x), votes, count, targets, wide, budgets)
    return cast(transformed(scores, transform), dtype)


def _ints(layer: Layer, name: str) -> Array:
    return np.array(layer.integers(name), np.int64)


def _numbered(layer: Layer, name: str, default: int, names: tuple[str, ...]) -> str:
    number = layer.integer(name, default)
    if not 0 <= number < len(names):
        raise layer.wrong(f"has {name} {number}, expected 0 to {len(names) - 1}")
    return names[number]


def _branches(layer: Layer, leaves: int, dtype: str) -> Branches:
    """Errors: M012 for lists of unequal lengths, T164 for missing leaves."""
    modes = layer.tensor("nodes_modes").reshape(-1).astype(np.int64)
    if modes.size and not 0 <= modes.min() <= modes.max() <= MEMBER:
        raise layer.wrong("has a node mode outside 0 to 6")
    splits = layer.tensor("nodes_splits").reshape(-1).astype(to_numpy(dtype))
    lists = {
        name: _ints(layer, f"nodes_{name}")
        for name in ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    }
    missing = _ints(layer, "nodes_missing_value_tracks_true")
    lists["missing"] = missing if missing.size else np.zeros(len(modes), np.int64)
    for name, values in (*lists.items(), ("splits", splits)):
        if len(values) != len(modes):
            raise layer.wrong(f"has {len(modes)} nodes_modes and {len(values)} nodes_{name}")

    def child(side: str) -> Array:
        ids, leaf = lists[f"{side}nodeids"], lists[f"{side}leafs"].astype(bool)
        limits = np.where(leaf, leaves, len(modes))
        if ((ids < 0) | (ids >= limits)).any():
            raise malformed("a child is neither a node nor a leaf")
        return np.where(leaf, ids, ids + leaves)

    return Branches(
        lists["featureids"],
        modes,
        splits,
        child("true"),
        child("false"),
        lists["missing"],
        _members(layer, int((modes == MEMBER).sum()), dtype),
    )


def _members(layer: Layer, count: int, dtype: str) -> list[Array]:
    """Returns the values of each membership node; each list ends with a NaN."""
    if not count and not layer.has("membership_values"):
        return []
    given = (
        layer.tensor("membership_values").reshape(-1).astype(to_numpy(dtype))
        if layer.has("membership_values")
        else np.zeros(0, to_numpy(dtype))
    )
    ends = np.flatnonzero(np.isnan(given))
    parts = [p[~np.isnan(p)] for p in np.split(given, ends)]
    if parts and not parts[-1].size and len(parts) > count:
        parts.pop()
    if len(parts) != count:
        raise malformed(f"{len(parts)} sets of members for {count} nodes")
    return parts


# --- versions 1 and 3 -----------------------------------------------------------------------------


def _floats(layer: Layer, name: str) -> Array:
    """Returns a list of f32, or of what its `_as_tensor` holds."""
    if f"{name}_as_tensor" in layer.schema.attributes and layer.has(f"{name}_as_tensor"):
        if layer.has(name):
            raise layer.wrong(f"has both {name} and {name}_as_tensor")
        found = layer.tensor(f"{name}_as_tensor").reshape(-1)
        return found if found.dtype == np.float64 else found.astype(np.float32)
    return np.array(layer.reals(name), np.float32)


@dataclass(frozen=True)
class _Ensemble:
    """The leaves reached `[T, N]`, their votes, and the base values."""

    leaves: Expr
    votes: _Votes
    count: int
    base: Array
    dtype: str
    budgets: Budgets

    def scores(self, kind: str, targets: int) -> Expr:
        """Returns aggregated votes `[N, targets]`, without base values."""
        return _aggregated(
            kind, self.leaves, self.votes, self.count, targets, self.dtype, self.budgets
        )


def _ensemble(layer: Layer, prefix: str, targets: int) -> _Ensemble:
    splits, weights = _floats(layer, "nodes_values"), _floats(layer, f"{prefix}_weights")
    base = _floats(layer, "base_values")
    doubles = any(a.dtype == np.float64 for a in (splits, weights, base))
    dtype = "f64" if doubles or layer.type(0).dtype == "f64" else "f32"
    x = cast(rows(layer, layer.input(0)), dtype)
    trees, nodes = _ints(layer, "nodes_treeids"), _ints(layer, "nodes_nodeids")
    missing = _ints(layer, "nodes_missing_value_tracks_true")
    modes = layer.texts("nodes_modes")
    columns = {
        "features": _ints(layer, "nodes_featureids"),
        "splits": splits.astype(to_numpy(dtype)),
        "true": _ints(layer, "nodes_truenodeids"),
        "false": _ints(layer, "nodes_falsenodeids"),
        "missing": missing if missing.size else np.zeros(len(nodes), np.int64),
    }
    for name, values in (("treeids", trees), ("modes", modes), *columns.items()):
        if len(values) != len(nodes):
            raise layer.wrong(f"has {len(nodes)} nodes_nodeids and {len(values)} of {name}")
    if not len(nodes):
        raise malformed("it has no trees")
    names = Named.of(trees, nodes)
    numbers, given = branches_by_name(names, columns, modes, layer.wrong)
    leaves = len(nodes) - len(given.features)
    forest = forest_of(numbers[names.roots], leaves, given, features(layer, x))
    votes = _named_votes(layer, prefix, names, numbers, weights).checked(leaves, targets)
    kept = votes.leaves < leaves
    votes = _Votes(votes.leaves[kept], votes.targets[kept], votes.weights[kept])
    return _Ensemble(_walked(forest, x), votes, leaves, base, dtype, layer.builder.budgets)


def _named_votes(layer: Layer, prefix: str, names: Named, numbers: Array, weights: Array) -> _Votes:
    trees, nodes = _ints(layer, f"{prefix}_treeids"), _ints(layer, f"{prefix}_nodeids")
    ids = _ints(layer, f"{prefix}_ids")
    if not len(trees) == len(nodes) == len(ids) == len(weights):
        raise layer.wrong(
            f"has {len(trees)} {prefix}_treeids, {len(nodes)} {prefix}_nodeids, "
            f"{len(ids)} {prefix}_ids and {len(weights)} {prefix}_weights"
        )
    return _Votes(numbers[names.places(trees, nodes, "the leaf")], ids, weights)


@converter("TreeEnsembleRegressor", domain=DOMAIN)
def tree_ensemble_regressor(layer: Layer) -> Result:
    """Aggregated votes for targets, plus base values."""
    targets = layer.integer("n_targets", 1)
    if targets < 1:
        raise layer.wrong(f"has {targets} targets")
    kind = layer.text("aggregate_function", "SUM")
    if kind not in _AGGREGATES:
        raise layer.wrong(f"has aggregate_function {kind[:40]!r}")
    found = _ensemble(layer, "target", targets)
    scores = found.scores(kind, targets)
    if found.base.size:
        if found.base.size not in (1, targets):
            raise layer.wrong(f"has {found.base.size} base values for {targets} targets")
        scores = call("add", scores, Constant(found.base.astype(to_numpy(found.dtype))))
    return cast(transformed(scores, transform_of(layer)), "f32")


@converter("TreeEnsembleClassifier", domain=DOMAIN)
def tree_ensemble_classifier(layer: Layer) -> Result:
    """The class with the most votes, and all votes. If leaves vote for only one of two classes,
    scores separate them at a threshold, as in ONNX Runtime: one half if all weights are positive,
    else 0.
    """
    labels = Labels(layer, "classlabels_int64s")
    if not labels.count:
        raise layer.wrong("has no class labels")
    transform = transform_of(layer)
    found = _ensemble(layer, "class", max(labels.count, 2))
    base = found.base.astype(to_numpy(found.dtype))
    if labels.count > 2:
        if base.size not in (0, 1, labels.count):
            raise layer.wrong(f"has {base.size} base values for {labels.count} classes")
        scores = found.scores("SUM", labels.count)
        voted = _voted(found, labels.count)
        if base.size:
            scores, voted = call("add", scores, Constant(base)), None
        best = scores
        if voted is not None:
            best = call("where", voted, scores, scalar(-np.inf, found.dtype))
        return labels.at(largest(best)), cast(transformed(scores, transform), "f32")
    return _of_two(layer, labels, found, base, transform)


def _voted(found: _Ensemble, classes: int) -> Expr | None:
    """Returns the classes that have a vote of a reached leaf, `bool[N, classes]`: others are not
    selected. None if that makes no difference.
    """
    if found.votes.weights.size and (found.votes.weights > 0).all():
        return None
    table = np.zeros((max(found.count, 1), classes), bool)
    table[found.votes.leaves, found.votes.targets] = True
    if table.all():
        return None
    return call("forest.votes", found.leaves, Constant(table), combine="or")


def _of_two(
    layer: Layer, labels: Labels, found: _Ensemble, base: Array, transform: str
) -> list[Expr]:
    """Returns label and scores for two classes, or for one label and its absence.

    If leaves vote for both classes, the one with more votes wins. If all vote for the first, that
    vote is the weight of the second (boosted trees are exported this way): the first gets the
    remainder to 1 or, with weights of both signs or a transform, the negative.
    """
    ids = set(found.votes.targets.tolist())
    positive = bool((found.votes.weights >= 0).all())
    scores = found.scores("SUM", 2)
    if labels.count == 2 and len(ids) == 2:
        if base.size:
            scores = call("add", scores, Constant(base if base.size == 2 else np.pad(base, (0, 1))))
        return [labels.at(largest(scores)), cast(transformed(scores, transform), "f32")]
    chosen = max(ids, default=0)
    shape = (scores.tensor.shape[0], 1)
    one = reshaped(column(scores, chosen), shape)
    if base.size:
        one = call("add", one, scalar(base[-1], found.dtype))
    above = call("greater", column(one, 0), scalar(0, found.dtype))
    if labels.count == 1:
        none = "" if is_text(labels.values) else 0
        pair = np.array([none, labels.values[0]], labels.values.dtype)
        label = call("gather", Constant(pair), cast(above, "i64"), axis=0)
        return [label, cast(transformed(one, transform), "f32")]
    if (positive and transform == "NONE") or transform == "PROBIT":
        above = call("greater", column(one, 0), scalar(0.5, found.dtype))
    if chosen == 1:
        nothing = filled(0, found.dtype, shape)
        both: Expr = call("concatenate", nothing, one, axis=1)
    else:
        both = opposed(one, complement=(positive and transform == "NONE") or transform == "PROBIT")
    return [labels.by(above, 1, 0), cast(transformed(both, transform), "f32")]
