"""Boosted trees as plain arrays: converted from scikit-learn's, stored in files without pickles,
evaluated with NumPy.

Source: Friedman, Greedy Function Approximation: A Gradient Boosting Machine, 2001; Ke et al.,
LightGBM, 2017 (histograms), as in scikit-learn's HistGradientBoostingRegressor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clew.predict.extras import needed

Array = np.ndarray[Any, Any]
_REALS: Final = ("threshold", "value")
# Far above the number that training makes: about 750 trees of 12 leaves.
_MOST_NODES: Final = 1 << 20
_MOST_TREES: Final = 10_000
_MOST_LEVELS: Final = 64
_FIELDS: Final = ("feature", "threshold", "left", "right", "value")


@dataclass(frozen=True)
class Forest:
    """Sums of trees. The arrays cover all nodes of all trees: the compared feature (-1 at leaves),
    the threshold, the next node for values up to it and above it, the value at leaves. `roots` are
    the trees' first nodes. `baseline` is added to the sum; `scale` divides it, since forests of
    several seeds are averaged.
    """

    feature: Array
    threshold: Array
    left: Array
    right: Array
    value: Array
    roots: Array
    baseline: float
    scale: float

    def predict(self, features: Array) -> Array:
        """Returns f64[rows] for f64[rows, features]."""
        rows = np.arange(len(features))[:, None]
        nodes = np.broadcast_to(self.roots, (len(features), len(self.roots))).copy()
        while True:
            compared = self.feature[nodes]
            if (compared < 0).all():
                break
            values = features[rows, np.maximum(compared, 0)]
            following = np.where(
                values <= self.threshold[nodes], self.left[nodes], self.right[nodes]
            )
            nodes = np.where(compared < 0, nodes, following)
        sums: Array = self.value[nodes].sum(axis=1)
        return self.baseline + sums / self.scale

    def arrays(self) -> dict[str, Array]:
        """Returns the arrays to store in a file."""
        found = {name: getattr(self, name) for name in (*_FIELDS, "roots")}
        return {**found, "constants": np.array([self.baseline, self.scale])}

    @classmethod
    def of_arrays(cls, arrays: dict[str, Array]) -> Forest:
        """Returns the forest with these `arrays`, after checking that they are trees.

        Raises ValueError or KeyError if they are not.
        """
        fields = {name: _plain(arrays[name], name in _REALS) for name in (*_FIELDS, "roots")}
        count = len(fields["feature"])
        if any(len(fields[name]) != count for name in _FIELDS):
            raise ValueError("arrays of several lengths")
        if count > _MOST_NODES or len(fields["roots"]) > _MOST_TREES:
            raise ValueError("too many trees")
        inner = fields["feature"] >= 0
        own = np.arange(count)
        for name in ("left", "right"):
            nodes = fields[name][inner]
            if len(nodes) and not ((nodes > own[inner]) & (nodes < count)).all():
                raise ValueError("the nodes are not trees")
        if not ((fields["roots"] >= 0) & (fields["roots"] < count)).all():
            raise ValueError("roots are out of range")
        baseline, scale = (float(v) for v in _plain(arrays["constants"], True))
        if not (np.isfinite(baseline) and np.isfinite(scale) and scale > 0):
            raise ValueError("the constants are not numbers")
        if np.isnan(fields["threshold"]).any() or not np.isfinite(fields["value"]).all():
            raise ValueError("a threshold or value is not a number")
        made = cls(**fields, baseline=baseline, scale=scale)
        made._check_depth()
        return made

    def _check_depth(self) -> None:
        nodes = np.unique(self.roots)
        for _ in range(_MOST_LEVELS):
            nodes = nodes[self.feature[nodes] >= 0]
            if not len(nodes):
                return
            nodes = np.unique(np.concatenate([self.left[nodes], self.right[nodes]]))
        raise ValueError("the trees are too deep")


def _plain(array: Array, real: bool) -> Array:
    """Returns an array of one axis as f64 or i64. Raises ValueError if it is not one."""
    if array.ndim != 1 or array.dtype.kind not in ("f" if real else "iu"):
        raise ValueError(f"an array of {array.dtype} with {array.ndim} axes")
    made: Array = array.astype(np.float64 if real else np.int64)
    return made


def fit_forest(
    features: Array,
    wanted: Array,
    seeds: int,
    turns: int,
    weights: Array | None = None,
    leaf_rows: int = 15,
) -> Forest:
    """Returns trees that predict `wanted`: `turns` of them, for each of several seeds. `weights`
    are those of rows (alike by default), `leaf_rows` the fewest rows of a leaf.

    Errors: I180.
    """
    regressor = needed("sklearn.ensemble").HistGradientBoostingRegressor
    limits = needed("threadpoolctl").threadpool_limits
    parts: dict[str, list[Array]] = {name: [] for name in _FIELDS}
    roots: list[int] = []
    baseline, at = 0.0, 0
    for seed in range(seeds):
        model = regressor(
            max_iter=turns,
            learning_rate=0.06,
            max_leaf_nodes=12,
            min_samples_leaf=leaf_rows,
            max_bins=64,
            l2_regularization=1.0,
            max_features=0.4,
            early_stopping=False,
            random_state=seed,
        )
        # Threads gain little on tables of this size, and lose much if cores are shared.
        with limits(1):
            model.fit(features, wanted, sample_weight=weights)
        baseline += float(np.ravel(model._baseline_prediction)[0]) / seeds
        for (tree,) in model._predictors:
            nodes = tree.nodes
            leaf = nodes["is_leaf"].astype(bool)
            parts["feature"].append(np.where(leaf, -1, nodes["feature_idx"]).astype(np.int32))
            parts["threshold"].append(np.where(leaf, 0.0, nodes["num_threshold"]))
            for side in ("left", "right"):
                parts[side].append(np.where(leaf, 0, nodes[side].astype(np.int64) + at))
            parts["value"].append(np.where(leaf, nodes["value"], 0.0))
            roots.append(at)
            at += len(nodes)
    joined = {name: np.concatenate(found) for name, found in parts.items()}
    return Forest(**joined, roots=np.array(roots), baseline=baseline, scale=float(seeds))
