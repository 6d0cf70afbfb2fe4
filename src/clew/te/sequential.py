"""Stages that visit the positions of some axes one after another, because they write to
data-dependent positions or read elements that they have just written: they collect, scatter, scan,
sort, select or follow links.

Like a reduction, such an expression is the whole body of a tensor:

```python
i = te.reduce_axis(n, "i")
places = te.compute((count,), lambda _: te.collect(x[i].not_equal(0.0), i, over=[i]), "places")
```
"""

from __future__ import annotations

from collections.abc import Sequence

from clew.te.expr import INDEX, Imm, Index, Scalar, ScalarLike, Sequential, Size, as_scalar
from clew.te.walk import post_order


class Collect(Sequential):
    """The values at the positions for which `where` holds, in order. The tensor has one axis. If
    there are more values than elements, the last values are left out; if fewer, the rest is 0.
    """

    __slots__ = ("value", "where")
    word = "collect"

    def __init__(self, where: Scalar, value: Scalar, over: Sequence[Index]) -> None:
        super().__init__(value.dtype, over)
        self.where = where
        self.value = value

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.where, self.value)

    def over_axes(self, children: Sequence[Scalar], over: Sequence[Index]) -> Scalar:
        return Collect(children[0], children[1], over)

    def visits(self, axes: Sequence[Index]) -> tuple[Index, ...]:
        return self.over


class Scatter(Sequential):
    """`start` with updates applied in order: at each position for which `where` holds, `value` is
    written to the element at `places` (one index for each axis), or combined with it by `combiner`.

    An axis of the tensor that is its own place is visited, too: each of its elements has its own
    updates. `start` ranges over the tensor's axes, all other parts over the visited axes: those
    that are their own places, and `over`. Updates are `apart` if no two are for one element: their
    order does not matter then.
    """

    __slots__ = ("apart", "combiner", "places", "start", "value", "where")
    word = "scatter"

    def __init__(
        self,
        start: Scalar,
        places: Sequence[Scalar],
        value: Scalar,
        where: Scalar,
        combiner: str,
        over: Sequence[Index],
        *,
        apart: bool = False,
    ) -> None:
        super().__init__(start.dtype, over)
        assert value.dtype == start.dtype, (value.dtype, start.dtype)
        self.start = start
        self.places = tuple(places)
        self.value = value
        self.where = where
        self.combiner = combiner
        self.apart = apart

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.start, self.value, self.where, *self.places)

    def over_axes(self, children: Sequence[Scalar], over: Sequence[Index]) -> Scalar:
        start, value, where, *places = children
        return Scatter(start, places, value, where, self.combiner, over, apart=self.apart)

    def visits(self, axes: Sequence[Index]) -> tuple[Index, ...]:
        own = {id(a) for a in self.places}
        return (*(a for a in axes if id(a) in own), *self.over)


class Scan(Sequential):
    """The combination of all values up to each position along the only axis of `over`, which is an
    axis of the tensor. With `exclusive`, the value at the position itself is left out; with
    `reverse`, values are combined from the end.
    """

    __slots__ = ("combiner", "exclusive", "reverse", "value")
    word = "scan"

    def __init__(
        self, combiner: str, value: Scalar, axis: Index, exclusive: bool, reverse: bool
    ) -> None:
        super().__init__(value.dtype, (axis,))
        self.combiner = combiner
        self.value = value
        self.exclusive = exclusive
        self.reverse = reverse

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.value,)

    def over_axes(self, children: Sequence[Scalar], over: Sequence[Index]) -> Scalar:
        return Scan(self.combiner, children[0], over[0], self.exclusive, self.reverse)

    def visits(self, axes: Sequence[Index]) -> tuple[Index, ...]:
        return tuple(axes)


class Sort(Sequential):
    """The positions of the lowest keys for which `where` holds, lowest first; equal keys keep their
    order. Positions are numbered as if all axes of `over` were one. Keys are unsigned integers of
    32 or 64 bits.

    The last axis of the tensor counts the wanted positions. If `where` holds for fewer, the
    remaining elements are unspecified. `key` and `where` range over the tensor's other axes and
    `over`.
    """

    __slots__ = ("key", "where")
    word = "sort"

    def __init__(self, key: Scalar, where: Scalar, over: Sequence[Index]) -> None:
        super().__init__(INDEX, over)
        assert key.dtype in ("u32", "u64"), key.dtype
        self.key = key
        self.where = where

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.key, self.where)

    def over_axes(self, children: Sequence[Scalar], over: Sequence[Index]) -> Scalar:
        return Sort(children[0], children[1], over)

    def visits(self, axes: Sequence[Index]) -> tuple[Index, ...]:
        return (*axes[:-1], *self.over)


class Greedy(Sequential):
    """The values of the candidates that a greedy selection keeps, in order: each candidate is kept
    unless it clashes with one that was kept before.

    `over` holds two axes of the same extent: the first for a candidate, the second for a kept one.
    `clash` is true if these two clash. Candidates are the positions below `count`. The selection
    ends when `most` are kept, or as many as the last axis of the tensor has elements; the remaining
    elements are -1.

    `count` and `most` range over the tensor's axes without the last, `value` also over the
    candidate's axis, `clash` also over both axes of `over`. Parts of `clash` that depend on only
    one of the two candidates are computed for every visited candidate, even in branches of selects
    that are not taken.
    """

    __slots__ = ("clash", "count", "most", "value")
    word = "greedy"

    def __init__(
        self, value: Scalar, clash: Scalar, count: Scalar, most: Scalar, over: Sequence[Index]
    ) -> None:
        super().__init__(value.dtype, over)
        assert len(over) == 2, over
        self.value = value
        self.clash = clash
        self.count = count
        self.most = most

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.value, self.clash, self.count, self.most)

    def over_axes(self, children: Sequence[Scalar], over: Sequence[Index]) -> Scalar:
        value, clash, count, most = children
        return Greedy(value, clash, count, most, over)

    def visits(self, axes: Sequence[Index]) -> tuple[Index, ...]:
        return (*axes[:-1], self.over[0])

    def parts(self) -> tuple[list[Scalar], list[Scalar]]:
        """Returns the largest parts of `clash` that do not depend on the kept candidate, and the
        largest that depend on it alone. A part of another part precedes it; literals and sizes are
        left out.
        """
        uses: dict[int, frozenset[int]] = {}
        order = post_order(self.clash)
        for node in order:
            own = frozenset({id(node)} & set(map(id, self.over)))
            uses[id(node)] = own.union(*(uses[id(c)] for c in node.children))
        tops, stack = set[int](), [self.clash]
        while stack:
            node = stack.pop()
            if len(uses[id(node)]) == len(self.over):
                stack.extend(node.children)
            else:
                tops.add(id(node))
        found = [n for n in order if id(n) in tops and not isinstance(n, (Imm, Size))]
        other = id(self.over[1])
        fixed = [n for n in found if other not in uses[id(n)]]
        return fixed, [n for n in found if other in uses[id(n)]]


class Follow(Sequential):
    """The end of a chain of places: from `start`, each place leads to `following`, until a place is
    negative or as many steps are done as the first axis of `over` counts. The value is `found` for
    the last place.

    Each element has its own chain. `start` ranges over the tensor's axes; `following` and
    `found` also over a place, the second axis of `over`. `following` is also computed for places at
    which chains end, so its reads must be valid for all numbers.
    """

    __slots__ = ("following", "found", "start")
    word = "follow"

    def __init__(
        self, start: Scalar, following: Scalar, found: Scalar, over: Sequence[Index]
    ) -> None:
        super().__init__(found.dtype, over)
        assert len(over) == 2, over
        assert start.dtype == following.dtype == INDEX, (start.dtype, following.dtype)
        self.start = start
        self.following = following
        self.found = found

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.start, self.following, self.found)

    def over_axes(self, children: Sequence[Scalar], over: Sequence[Index]) -> Scalar:
        start, following, found = children
        return Follow(start, following, found, over)

    def visits(self, axes: Sequence[Index]) -> tuple[Index, ...]:
        return (*axes, self.over[0])


def collect(where: Scalar, value: ScalarLike, over: Sequence[Index]) -> Scalar:
    """Returns the values at the positions for which `where` holds; see `Collect`."""
    return Collect(where, as_scalar(value), over)


def scatter(
    start: Scalar,
    places: Sequence[ScalarLike],
    value: Scalar,
    over: Sequence[Index],
    where: Scalar | None = None,
    combiner: str = "",
    *,
    apart: bool = False,
) -> Scalar:
    """Returns `start` with updates; see `Scatter`. Without `where`, every position writes."""
    held = Imm(True, "bool") if where is None else where
    where_to = tuple(map(as_scalar, places))
    return Scatter(start, where_to, value, held, combiner, over, apart=apart)


def scan(
    combiner: str, value: Scalar, axis: Index, *, exclusive: bool = False, reverse: bool = False
) -> Scalar:
    """Returns running combinations along an axis of the tensor; see `Scan`."""
    return Scan(combiner, value, axis, exclusive, reverse)


def sort(key: Scalar, over: Sequence[Index], where: Scalar | None = None) -> Scalar:
    """Returns the positions of the lowest keys; see `Sort`. Without `where`, all keys take part."""
    return Sort(key, Imm(True, "bool") if where is None else where, over)


def greedy(
    value: ScalarLike, clash: Scalar, count: ScalarLike, most: ScalarLike, over: Sequence[Index]
) -> Scalar:
    """Returns the values of the candidates that a greedy selection keeps; see `Greedy`."""
    return Greedy(as_scalar(value), clash, as_scalar(count), as_scalar(most), over)


def follow(
    start: ScalarLike, following: Scalar, found: ScalarLike, over: Sequence[Index]
) -> Scalar:
    """Returns a value of the place at which a chain ends; see `Follow`."""
    return Follow(as_scalar(start), following, as_scalar(found), over)
