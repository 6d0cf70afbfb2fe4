"""Stages that visit the positions of some axes one after another, and write where values tell: to
collect, to scatter, to sort.

As a reduction, such an expression is the whole body of a tensor:

```python
i = te.reduce_axis(n, "i")
places = te.compute((count,), lambda _: te.collect(x[i].not_equal(0.0), i, over=[i]), "places")
```
"""

from __future__ import annotations

from collections.abc import Sequence

from clew.te.expr import INDEX, Imm, Index, Scalar, ScalarLike, Sequential, as_scalar


class Collect(Sequential):
    """The values at the positions for which `where` holds, in order: as many as the tensor, which
    has one axis, has elements. If there are fewer, the rest is 0.
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
    """`start`, with `value` written to `places` (one index for each axis) at each position for
    which `where` holds, or combined with the element there by `combiner`, in order.

    The axes that are themselves places are visited as well: each of their elements has its own
    updates. `start` is over the tensor's axes, all other parts over those axes and `over`.
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


class Sort(Sequential):
    """The positions in `over`, counted as of one axis, of the lowest keys for which `where` holds,
    lowest first; of equal keys, the first comes first. Keys are unsigned integers of 32 or 64 bits.

    The last axis of the tensor counts the positions that are wanted. `where` must hold for at least
    as many. Key and condition are over the other axes and `over`.
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
    """Returns `start` with updates; see `Scatter`. Without `where`, all positions update."""
    held = Imm(True, "bool") if where is None else where
    return Scatter(start, tuple(map(as_scalar, places)), value, held, combiner, over)


def sort(key: Scalar, over: Sequence[Index], where: Scalar | None = None) -> Scalar:
    """Returns the positions of the lowest keys; see `Sort`. Without `where`, all take part."""
    return Sort(key, Imm(True, "bool") if where is None else where, over)
