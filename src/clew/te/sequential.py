"""Stages that visit the positions of some axes one after another, because they write to
data-dependent positions or read elements that they have just written: they collect, scatter, scan
or sort.

Like a reduction, such an expression is the whole body of a tensor:

```python
i = te.reduce_axis(n, "i")
places = te.compute((count,), lambda _: te.collect(x[i].not_equal(0.0), i, over=[i]), "places")
```
"""

from __future__ import annotations

from collections.abc import Sequence

from clew.te.expr import INDEX, Imm, Index, Scalar, ScalarLike, Sequential, as_scalar


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
    that are their own places, and `over`.
    """

    __slots__ = ("combiner", "places", "start", "value", "where")
    word = "scatter"

    def __init__(
        self,
        start: Scalar,
        places: Sequence[Scalar],
        value: Scalar,
        where: Scalar,
        combiner: str,
        over: Sequence[Index],
    ) -> None:
        super().__init__(start.dtype, over)
        assert value.dtype == start.dtype, (value.dtype, start.dtype)
        self.start = start
        self.places = tuple(places)
        self.value = value
        self.where = where
        self.combiner = combiner

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.start, self.value, self.where, *self.places)

    def over_axes(self, children: Sequence[Scalar], over: Sequence[Index]) -> Scalar:
        start, value, where, *places = children
        return Scatter(start, places, value, where, self.combiner, over)

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

    The last axis of the tensor counts the wanted positions, and `where` must hold for at least as
    many. `key` and `where` range over the tensor's other axes and `over`.
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
) -> Scalar:
    """Returns `start` with updates; see `Scatter`. Without `where`, every position writes."""
    held = Imm(True, "bool") if where is None else where
    return Scatter(start, tuple(map(as_scalar, places)), value, held, combiner, over)


def scan(
    combiner: str, value: Scalar, axis: Index, *, exclusive: bool = False, reverse: bool = False
) -> Scalar:
    """Returns running combinations along an axis of the tensor; see `Scan`."""
    return Scan(combiner, value, axis, exclusive, reverse)


def sort(key: Scalar, over: Sequence[Index], where: Scalar | None = None) -> Scalar:
    """Returns the positions of the lowest keys; see `Sort`. Without `where`, all keys take part."""
    return Sort(key, Imm(True, "bool") if where is None else where, over)
