"""Tree ensembles as checked tables for `forest.leaves`, with all comparisons in one form.

The check covers every path from a root: it ends at a leaf, visits no node twice, and reads features
that exist. It takes time linear in the nodes, for any file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from clew.ops.data.forest import EQUAL, MISSING, packed
from clew.support.dataclass import dataclass
from clew.support.errors import ClewError, GraphTypeError

Array = np.ndarray[Any, Any]

MAX_DEPTH: Final = 4096
"""The most steps from a root to a leaf."""
LESS_EQUAL, LESS, GREATER_EQUAL, GREATER, SAME, OTHER, MEMBER = range(7)
"""Comparisons of nodes, as numbered by TreeEnsemble-5."""


def malformed(what: str) -> GraphTypeError:
    """Returns the error for an ensemble that is not a set of trees."""
    return GraphTypeError(
        "T164", f"the tree ensemble is malformed: {what}", hint="the file is damaged"
    )


@dataclass
class Branches:
    """Branch nodes as a model gives them: children are numbers of `leaves + branches`, leaves
    first.
    """

    features: Array
    modes: Array
    splits: Array
    first: Array
    second: Array
    missing: Array
    members: list[Array]
    """For each node of mode MEMBER, in order, its values."""


@dataclass(frozen=True)
class Forest:
    """Operands and attributes of `forest.leaves`."""

    roots: Array
    nodes: Array
    depth: int
    comparison: str
    missing: str


def forest_of(roots: Array, leaves: int, given: Branches, width: int) -> Forest:
    """Returns the tables of an ensemble over `width` features.

    Errors: T164 for nodes that do not form trees, missing features, and depths above `MAX_DEPTH`.
    """
    count = leaves + len(given.features)
    for name, ids in (("root", roots), ("child", given.first), ("child", given.second)):
        if ids.size and (ids.min() < 0 or ids.max() >= count):
            raise malformed(f"a {name} is not a node")
    bad = (given.features < 0) | (given.features >= width)
    if bad.any():
        feature = given.features[bad][0]
        raise malformed(f"feature {feature} is not among the {width} of the input")
    _check_trees(roots, leaves, given)
    _expand_members(given, leaves)
    first, second, kinds = _in_one_form(given)
    children = _places(np.stack([first, second], 1), leaves)
    nodes = packed(given.features, given.splits, children, kinds)
    if not len(nodes):  # every tree is a leaf
        nodes = np.zeros((1, 4), nodes.dtype)
    return Forest(
        _places(roots, leaves).astype(np.int32),
        nodes,
        max(_depth(_places(roots, leaves), children), 1),
        _uniform(kinds & EQUAL, ("less_equal", "equal")),
        _uniform(kinds & MISSING, ("second", "first")),
    )


def _places(ids: Array, leaves: int) -> Array:
    """Returns nodes from 0 on, and leaves as negative numbers."""
    return np.where(ids < leaves, -1 - ids, ids - leaves)


def _uniform(flags: Array, names: tuple[str, str]) -> str:
    if flags.all() and flags.size:
        return names[1]
    return "mixed" if flags.any() else names[0]


def _check_trees(roots: Array, leaves: int, given: Branches) -> None:
    """Checks that no branch node has two parents, or is both a root and a child: then the reachable
    nodes form trees.
    """
    first, second = given.first, given.second
    children = np.concatenate([first, second[second != first]])
    inner = children[children >= leaves] - leaves
    parents = np.bincount(inner, minlength=len(first))
    if (parents > 1).any():
        raise malformed(f"node {int(np.argmax(parents > 1))} is a child twice")
    starts = roots[roots >= leaves] - leaves
    if (parents[starts] > 0).any():
        raise malformed(f"root {int(starts[parents[starts] > 0][0])} is the child of a node")


def _depth(roots: Array, children: Array) -> int:
    """Returns the largest number of steps from a root to a leaf."""
    level, depth = np.unique(roots), 0  # no other node is reached twice
    while (level := level[level >= 0]).size:
        depth += 1
        if depth > MAX_DEPTH:
            raise malformed(f"a tree is deeper than {MAX_DEPTH}")
        first, second = children[level].T
        level = np.concatenate([first, second[second != first]])
    return depth


def _in_one_form(given: Branches) -> tuple[Array, Array, Array]:
    """Returns first children, second children and kinds of nodes that compare by `<=` or `==`.

    `x < v` is `x <= v'` with the next smaller `v'`. The opposite comparisons swap the children, and
    with them the child for NaN. No number is `<=` NaN.
    """
    modes, splits = given.modes, given.splits
    strict = (modes == LESS) | (modes == GREATER_EQUAL)
    least = np.array(-np.inf, splits.dtype)
    below = np.where(splits == least, np.array(np.nan, splits.dtype), np.nextafter(splits, least))
    given.splits = np.where(strict, below, splits)
    opposite = (modes == GREATER) | (modes == GREATER_EQUAL)
    # A comparison with NaN is false, and so is its opposite.
    swapped = (opposite & ~np.isnan(splits)) | (modes == OTHER)
    # `x != v` is true for NaN: it selects the true child, which is the second one.
    missing = np.where(modes == OTHER, False, given.missing.astype(bool) != swapped)
    first = np.where(swapped, given.second, given.first)
    second = np.where(swapped, given.first, given.second)
    equal = (modes == SAME) | (modes == OTHER)
    return first, second, (equal * EQUAL + missing * MISSING).astype(np.uint8)


def _expand_members(given: Branches, leaves: int) -> None:
    """Replaces each membership node by a binary search, whose last nodes compare by `==`."""
    places = np.flatnonzero(given.modes == MEMBER)
    if not len(places):
        return
    columns: dict[str, list[Any]] = {
        name: getattr(given, name).tolist()
        for name in ("features", "modes", "splits", "first", "second", "missing")
    }

    def put(place: int, values: Array) -> None:
        stack: list[tuple[int, Array]] = [(place, values)]
        found, other = columns["first"][place], columns["second"][place]
        while stack:
            n, part = stack.pop()
            if len(part) <= 1:
                columns["modes"][n] = SAME
                columns["splits"][n] = part[0] if len(part) else np.nan
                columns["first"][n], columns["second"][n] = found, other
                continue
            half = (len(part) - 1) // 2
            columns["modes"][n], columns["splits"][n] = LESS_EQUAL, part[half]
            for name, rest in (("first", part[: half + 1]), ("second", part[half + 1 :])):
                new = len(columns["modes"])
                for key in columns:
                    columns[key].append(columns[key][place])
                columns[name][n] = leaves + new
                stack.append((new, rest))

    for place, values in zip(places.tolist(), given.members, strict=True):
        put(place, np.unique(values))
    for name, column in columns.items():
        setattr(given, name, np.array(column, getattr(given, name).dtype))


# --- ensembles of versions 1 and 3: nodes named by tree and number --------------------------------

_MODES: Final = {
    "BRANCH_LEQ": LESS_EQUAL, "BRANCH_LT": LESS, "BRANCH_GTE": GREATER_EQUAL,
    "BRANCH_GT": GREATER, "BRANCH_EQ": SAME, "BRANCH_NEQ": OTHER, "LEAF": -1,
}  # fmt: skip


@dataclass(frozen=True)
class Named:
    """Nodes by tree and number, in the order of a model's attributes."""

    trees: Array
    nodes: Array
    _sorted: Array
    _order: Array
    _tree_ids: Array
    _node_ids: Array

    @staticmethod
    def of(trees: Array, nodes: Array) -> Named:
        """Errors: T164 for a duplicate node."""
        tree_ids, tree_places = np.unique(trees, return_inverse=True)
        node_ids, node_places = np.unique(nodes, return_inverse=True)
        keys = tree_places.astype(np.int64) * len(node_ids) + node_places
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        twice = ordered[1:] == ordered[:-1]
        if twice.any():
            place = order[1:][twice][0]
            raise malformed(f"node {nodes[place]} of tree {trees[place]} is defined twice")
        return Named(trees, nodes, ordered, order, tree_ids, node_ids)

    def places(self, trees: Array, nodes: Array, what: str) -> Array:
        """Returns the positions of the named nodes.

        Errors: T164 for a missing node.
        """
        if not len(trees):
            return np.zeros(0, np.int64)
        tree = np.searchsorted(self._tree_ids, trees).clip(max=len(self._tree_ids) - 1)
        node = np.searchsorted(self._node_ids, nodes).clip(max=len(self._node_ids) - 1)
        known = (self._tree_ids[tree] == trees) & (self._node_ids[node] == nodes)
        keys = tree.astype(np.int64) * len(self._node_ids) + node
        place = np.searchsorted(self._sorted, keys).clip(max=len(self._sorted) - 1)
        known &= self._sorted[place] == keys
        if not known.all():
            n = int(np.argmin(known))
            raise malformed(f"{what} {nodes[n]} of tree {trees[n]} does not exist")
        return np.asarray(self._order[place])

    @property
    def roots(self) -> Array:
        """The first node of each tree, in the order of the trees."""
        _, first = np.unique(self.trees, return_index=True)
        return np.sort(first)


def branches_by_name(
    names: Named,
    columns: dict[str, Array],
    modes: tuple[str, ...],
    wrong: Callable[[str], ClewError],
) -> tuple[Array, Branches]:
    """Returns each node's number (leaves first) and the branch nodes.

    Errors: T164 for missing children, and `wrong` for a mode that ONNX does not define.
    """
    unknown = set(modes) - _MODES.keys()
    if unknown:
        raise wrong(f"has the node mode {min(unknown)[:40]!r}")
    kinds = np.fromiter(map(_MODES.__getitem__, modes), np.int64, len(modes))
    leaf = kinds < 0
    numbers = np.empty(len(kinds), np.int64)
    numbers[leaf] = np.arange(leaf.sum())
    numbers[~leaf] = leaf.sum() + np.arange((~leaf).sum())
    own = ~leaf
    trees = names.trees[own]
    first = numbers[names.places(trees, columns["true"][own], "the child")]
    second = numbers[names.places(trees, columns["false"][own], "the child")]
    branches = Branches(
        columns["features"][own],
        kinds[own],
        columns["splits"][own],
        first,
        second,
        columns["missing"][own],
        [],
    )
    return numbers, branches
