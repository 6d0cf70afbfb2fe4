"""Pairs the layers of two models: by name, by weights, by place in the graph.

Names come first, unless they contradict the rest: an exporter that numbers layers gives old names
to other layers when one is inserted. The remaining layers are matched by labels: a label combines a
layer's computation with the known facts about its neighbors; a matched neighbor is known by its
pair. So every match makes the labels around it more specific.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from clew.compare.layers import Layer, of_two_formats

Layers: TypeAlias = Mapping[str, Layer]


@dataclass(frozen=True)
class Match:
    """Why two layers were matched, and the confidence, from 0 to 1.

    `how` is one of `HOW`.
    """

    a: str
    b: str
    how: str
    confidence: float


# The largest share of pairs by name whose operators or attributes differ; above it, names are not
# used.
_MOST_DIFFERENT: Final = 0.2
_ROUNDS: Final = 4


@dataclass(frozen=True)
class Alignment:
    """The pairs in the order of the first model, and the layers without a partner."""

    matches: tuple[Match, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]


def align(a: Layers, b: Layers) -> Alignment:
    """Returns which layers of two models correspond, in time near linear in their number. The
    operators of models of two formats are compared by what they compute.
    """
    if of_two_formats(a, b):
        a, b = _by_essence(a), _by_essence(b)
    pairing = _paired(a, b, named=True)
    if not _names_hold(a, b):
        without = _paired(a, b, named=False)
        pairing = max(pairing, without, key=lambda found: found.exact)
    order = {name: n for n, name in enumerate(a)}
    matches = sorted(pairing.found.values(), key=lambda m: order[m.a])
    return Alignment(tuple(matches), tuple(pairing.left(0)), tuple(pairing.left(1)))


def _by_essence(layers: Layers) -> Layers:
    return {name: replace(layer, op=layer.essence) for name, layer in layers.items()}


def _paired(a: Layers, b: Layers, named: bool) -> _Pairing:
    """Returns the pairs found with names, or without."""
    pairing = _Pairing(a, b, named)
    if named:
        for name, layer in a.items():
            if name in b:
                same = layer.calls == b[name].calls
                sure = 0.8 if layer.op == b[name].op else 0.5
                pairing.add(name, name, "name", 1.0 if same else sure)
    for one, other in _same_weights(a, b).items():
        pairing.add(one, other, "name" if one == other else "weights", 1.0)
    pairing.by_structure()
    pairing.by_order()
    return pairing


def _same_weights(a: Layers, b: Layers) -> dict[str, str]:
    """Returns pairs of layers with the same weights, which no third layer has."""
    ours, theirs = _by_weights(a), _by_weights(b)
    return {
        ours[w][0]: theirs[w][0]
        for w in ours
        if len(ours[w]) == len(theirs.get(w, ())) == 1 and a[ours[w][0]].op == b[theirs[w][0]].op
    }


def _by_weights(layers: Layers) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, layer in layers.items():
        if layer.parameters:
            found.setdefault(layer.weights, []).append(name)
    return found


def _names_hold(a: Layers, b: Layers) -> bool:
    """Whether names are reliable: hardly any pair by name differs, and no layer has the weights of
    another layer.
    """
    shared = [name for name in a if name in b]
    if any(x != y and x in b and y in a for x, y in _same_weights(a, b).items()):
        return False
    return sum(a[name].calls != b[name].calls for name in shared) <= _MOST_DIFFERENT * len(shared)


class _Pairing:
    """The matches found so far."""

    def __init__(self, a: Layers, b: Layers, named: bool) -> None:
        self.sides = (a, b)
        self._named = named
        self.found: dict[tuple[str, str], Match] = {}
        self._partner: tuple[dict[str, str], dict[str, str]] = ({}, {})
        self._numbers: dict[Any, int] = {}

    def add(self, one: str, other: str, how: str, confidence: float) -> bool:
        """Adds a pair, unless either layer already has a partner; returns whether it did."""
        if one in self._partner[0] or other in self._partner[1]:
            return False
        self._partner[0][one], self._partner[1][other] = other, one
        self.found[one, other] = Match(one, other, how, confidence)
        return True

    @property
    def exact(self) -> int:
        """The number of pairs that agree in everything, with weights counted separately."""
        a, b = self.sides
        pairs = [(a[one], b[other]) for one, other in self.found]
        same = [x for x, y in pairs if x.calls == y.calls]
        weighed = [x for x, y in pairs if x.parameters and x.weights == y.weights]
        return len(same) + len(weighed)

    def left(self, side: int) -> list[str]:
        """Returns the layers of a side that have no partner, in order."""
        return [name for name in self.sides[side] if name not in self._partner[side]]

    # --- by labels ---

    def by_structure(self) -> None:
        """Matches layers by their computation and neighbors, the most certain first."""
        exact: _Kind = lambda layer: layer.calls  # noqa: E731
        loose: _Kind = lambda layer: (layer.op, layer.kinds)  # noqa: E731
        none: _Kind = lambda layer: ()  # noqa: E731
        for kind, how, sure in (
            (exact, "structure", 0.9), (loose, "position", 0.7), (none, "place", 0.4),
        ):  # fmt: skip
            for _ in range(_ROUNDS):
                count = len(self.found)
                if kind is not none:
                    self._labeled(self._history, kind, how, sure)
                    self._labeled(self._future, kind, how, sure)
                self._labeled(self._neighbors, kind, how, sure)
                if len(self.found) == count:
                    break

    def _labeled(self, labels: _Labels, kind: _Kind, how: str, sure: float) -> None:
        """Matches layers with equal labels if both sides have equally many of them.

        If several are alike, layers with the same name are paired first (if names are used), then
        the others in order.
        """
        ours, theirs = (_grouped(labels(side, kind), self.left(side)) for side in (0, 1))
        for label, names in ours.items():
            others = theirs.get(label, [])
            if len(names) != len(others):
                continue
            shared = set(names) & set(others) if self._named else set()
            rest = zip(
                [n for n in names if n not in shared],
                [n for n in others if n not in shared],
                strict=True,
            )
            alike = 1.0 if len(names) == 1 else 0.9
            for one, other in [*((n, n) for n in names if n in shared), *rest]:
                self.add(one, other, how, round(sure * alike, 2))

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _known(self, side: int, name: str) -> int | None:
        """Returns the label of a layer that is matched; None for others."""
        partner = self._partner[side].get(name)
        if partner is None:
            return None
        return self._number(("pair", *((name, partner) if side == 0 else (partner, name))))

    def _history(self, side: int, kind: _Kind) -> dict[str, int]:
        """Returns labels of a layer and everything it is computed from."""
        layers = self.sides[side]
        return self._spread(side, kind, layers, lambda layer: layer.reads)

    def _future(self, side: int, kind: _Kind) -> dict[str, int]:
        """Returns labels of a layer and everything computed from it."""
        layers = self.sides[side]
        return self._spread(side, kind, reversed(list(layers)), lambda layer: layer.feeds)

    def _spread(
        self,
        side: int,
        kind: _Kind,
        order: Iterable[str],
        around: Callable[[Layer], Sequence[str]],
    ) -> dict[str, int]:
        layers = self.sides[side]
        labels: dict[str, int] = {}
        for name in order:
            layer = layers[name]
            known = self._known(side, name)
            near = tuple(labels.get(n, -1) for n in around(layer))
            labels[name] = known if known is not None else self._number((kind(layer), near))
        return labels

    def _neighbors(self, side: int, kind: _Kind) -> dict[str, int]:
        """Returns labels of a layer and of its neighbors, if known.

        A layer without a known neighbor has a unique label.
        """
        labels = {}
        for name in self.left(side):
            layer = self.sides[side][name]
            reads = tuple(self._known(side, n) if n else -1 for n in layer.reads)
            feeds = tuple(self._known(side, n) for n in layer.feeds)
            near = [n for n in (*reads, *feeds) if n is not None]
            # If a layer is identified only by its place, require known neighbors on both sides.
            enough = near if kind(layer) else all(n is not None for n in (*reads, *feeds))
            key = (kind(layer), reads, feeds) if enough and near else (side, name)
            labels[name] = self._number(key)
        return labels

    # --- by order ---

    def by_order(self) -> None:
        """Matches remaining layers between pairs that are in the same order on both sides, by the
        longest common subsequence of operators.
        """
        exact: _Kind = lambda layer: layer.calls  # noqa: E731
        loose: _Kind = lambda layer: layer.op  # noqa: E731
        for kind, sure in ((exact, 0.6), (loose, 0.5)):
            for ours, theirs in list(self._gaps()):
                tokens = [
                    [self._number(kind(self.sides[side][n])) for n in names]
                    for side, names in enumerate((ours, theirs))
                ]
                for i, j in common_subsequence(*tokens):
                    self.add(ours[i], theirs[j], "order", sure)

    def _gaps(self) -> Iterable[tuple[list[str], list[str]]]:
        """Yields the unmatched layers of both sides between two pairs."""
        places = {name: n for n, name in enumerate(self.sides[1])}
        pairs = [
            (name, self._partner[0][name]) for name in self.sides[0] if name in self._partner[0]
        ]
        steady = [pairs[n] for n in rising([places[other] for _, other in pairs])]
        ends = dict(steady)
        mine, names_b, at = [], list(self.sides[1]), 0
        for name in [*self.sides[0], None]:
            if name is not None and name not in ends:
                if name not in self._partner[0]:
                    mine.append(name)
                continue
            end = places[ends[name]] if name is not None else len(names_b)
            theirs = [n for n in names_b[at:end] if n not in self._partner[1]]
            if mine and theirs:
                yield mine, theirs
            mine, at = [], end


_Kind: TypeAlias = Callable[[Layer], Any]
_Labels: TypeAlias = Callable[[int, _Kind], dict[str, int]]


def _grouped(labels: Mapping[str, int], names: Iterable[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name in names:
        found.setdefault(labels[name], []).append(name)
    return found


def rising(values: Sequence[int]) -> list[int]:
    """Returns the positions of a longest increasing subsequence of distinct numbers."""
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for position, value in enumerate(values):
        at = bisect_left(tails, value)
        before.append(ends[at - 1] if at else -1)
        tails[at : at + 1] = [value]
        ends[at : at + 1] = [position]
    found: list[int] = []
    position = ends[-1] if ends else -1
    while position >= 0:
        found.append(position)
        position = before[position]
    return found[::-1]


def common_subsequence(a: Sequence[int], b: Sequence[int]) -> list[tuple[int, int]]:
    """Returns positions of a longest common subsequence, in order.

    A row of the table of lengths is one integer with a bit for each flat step, so a row costs as
    much as an addition. Source: H. Hyyrö, Bit-Parallel LCS-length Computation Revisited, AWOCA
    2004.
    """
    where: dict[int, int] = {}
    for position, token in enumerate(b):
        where[token] = where.get(token, 0) | 1 << position
    flat = whole = (1 << len(b)) - 1
    rows = []
    for token in a:
        match = flat & where.get(token, 0)
        flat = ((flat + match) | (flat - match)) & whole
        rows.append(flat)
    found: list[tuple[int, int]] = []
    i, j = len(a), len(b)
    while i and j:
        if rows[i - 1] >> (j - 1) & 1:  # this element of b adds no length
            j -= 1
        elif i > 1 and not rows[i - 2] >> (j - 1) & 1:  # as long without this element of a
            i -= 1
        else:
            i, j = i - 1, j - 1
            found.append((i, j))
    return found[::-1]
