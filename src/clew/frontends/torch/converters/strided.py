"""Operators that see a tensor's memory: elements by their places in it, and bits as other dtypes.

A view's places are those of the memory that it shares with the first tensor of the graph in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clew.frontends.building import call, cast, constant, reshaped
from clew.frontends.torch.dtypes import PARTS, dtype_of
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, complex_converter, converter
from clew.frontends.torch.sizes import Sizes
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr
from clew.ir.types import bits


@converter("as_strided", "as_strided_copy")
def as_strided(layer: Layer) -> Result:
    """Elements by their places in memory."""
    held = _Held(layer)
    return call("gather", held.flat(), held.numbers(_named(layer)), axis=0)


@complex_converter("as_strided", "as_strided_copy")
def complex_as_strided(layer: Layer) -> Result:
    """Pairs by their places in memory."""
    return as_strided(layer)


@converter("as_strided_scatter")
def as_strided_scatter(layer: Layer) -> Result:
    """Elements replaced by their places in memory. The result is the tensor's own part of it."""
    held = _Held(layer)
    source = cast(layer.tensor("src"), layer.type().dtype)
    size = source.tensor.size
    places = reshaped(held.numbers(_named(layer)), (size, 1))
    found = call("scatter_nd", held.flat(), places, reshaped(source, (size,)))
    own = held.numbers(_Places.of(layer.importer.sizes, layer.fake("self")))
    return call("gather", found, own, axis=0)


@dataclass(frozen=True)
class _Places:
    """Elements of memory: their sizes and strides, and the place of the first."""

    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    start: Dim

    @staticmethod
    def of(sizes: Sizes, fake: Any) -> _Places:
        """Returns the places of a tensor's own elements."""
        shape, strides = sizes.shape(fake.shape), sizes.shape(fake.stride())
        return _Places(shape, strides, sizes.dim(fake.storage_offset()))

    @property
    def known(self) -> NDArray[np.int64] | None:
        """The places, if no size is free."""
        if not isinstance(self.start, int):
            return None
        found: NDArray[np.int64] = np.full((), self.start, np.int64)
        for size, stride in zip(self.shape, self.strides, strict=True):
            if not isinstance(size, int) or not isinstance(stride, int):
                return None
            found = found[..., None] + np.arange(size, dtype=np.int64) * stride
        return found

    def expr(self, layer: Layer, origin: Dim) -> Expr:
        """Returns the places, counted from an origin."""
        found: Expr = layer.importer.scalar_of(self.start - origin, "i64")
        for axis, (size, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            steps = call("arange", start=0, stop=size, step=1, dtype="i64")
            if stride != 1:
                steps = call("multiply", steps, layer.importer.scalar_of(stride, "i64"))
            shape = (size, *(1,) * (len(self.shape) - axis - 1))
            found = call("add", found, reshaped(steps, shape))
        return found


def _named(layer: Layer) -> _Places:
    """Returns the places that a call names; by default they begin where the tensor does."""
    start = layer.importer.sizes.dim(layer.fake("self").storage_offset())
    return _Places(layer.dims("size"), layer.dims("stride"), layer.dim("storage_offset", start))


class _Held:
    """The memory of a call's tensor: the first tensor of the graph that lies in it."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._value, self._fake = layer.importer.first_in_memory(layer.node.args[0])
        self._own = own = _Places.of(layer.importer.sizes, self._fake)
        self._order = sorted(range(len(own.shape)), key=lambda a: (-_hint(self._fake, a), a))
        held: Dim = 1
        self._is_dense = True
        for axis in reversed(self._order):
            self._is_dense &= own.shape[axis] == 1 or own.strides[axis] == held
            held = held * own.shape[axis]

    def flat(self) -> Expr:
        """Returns the elements as a vector of the dtype of the call's tensor: in the order in which
        they lie in memory, if there are no gaps between them.
        """
        x, wanted = self._value, self._layer.fake("self").dtype
        pair = (2,) if self._fake.dtype in PARTS else ()
        if self._is_dense:
            x = _transposed(x, (*self._order, *range(len(self._order), x.tensor.rank)))
        flat = reshaped(x, (product(self._own.shape), *pair))
        if wanted == self._fake.dtype:
            return flat
        flat = reshaped(flat, (product(flat.tensor.shape),))
        flat = reinterpreted(flat, dtype_of(PARTS.get(wanted, wanted)))
        return reshaped(flat, (flat.tensor.size // 2, 2)) if wanted in PARTS else flat

    def numbers(self, places: _Places) -> Expr:
        """Returns the numbers in `flat` of elements at places in memory. Errors: U063."""
        if self._is_dense:
            start_bytes = self._own.start * self._fake.dtype.itemsize
            return places.expr(self._layer, start_bytes // self._layer.fake("self").dtype.itemsize)
        own, wanted = self._own.known, places.known
        if own is None or wanted is None:
            raise self._layer.unsupported("of a tensor of free sizes with gaps in memory")
        if self._fake.dtype != self._layer.fake("self").dtype:
            raise self._layer.unsupported("of a tensor of another dtype with gaps in memory")
        held, numbers = np.unique(own, return_index=True)
        if not np.isin(wanted, held).all():
            raise self._layer.unsupported("of elements in the gaps of a tensor's memory")
        return constant(numbers[np.searchsorted(held, wanted)])


def _hint(fake: Any, axis: int) -> int:
    stride = fake.stride(axis)
    return int(stride.node.hint or 0) if isinstance(stride, torch.SymInt) else int(stride)


def _transposed(x: Expr, axes: tuple[int, ...]) -> Expr:
    return x if axes == tuple(range(len(axes))) else call("transpose", x, axes=axes)


# --- bits -----------------------------------------------------------------------------------------


@converter("view.dtype", "view_copy.dtype")
def view_of_dtype(layer: Layer) -> Result:
    """The same bits as another dtype; of another width, the last axis shrinks or grows."""
    return layer.shaped(reinterpreted(layer.tensor(), layer.result().dtype))


@complex_converter("view.dtype", "view_copy.dtype")
def complex_view_of_dtype(layer: Layer) -> Result:
    """The same bits as another dtype. Pairs are joined to the last axis for real numbers."""
    x, to_complex = layer.tensor(), layer.fakes[0].dtype in PARTS
    if layer.fake("self").dtype in PARTS:
        shape = x.tensor.shape
        x = reshaped(x, (*shape[:-2], shape[-2] * 2)) if len(shape) > 1 else x
    wanted = layer.result()
    found = reinterpreted(x, wanted.dtype)
    return reshaped(found, wanted.shape) if to_complex else layer.shaped(found)


def reinterpreted(x: Expr, dtype: str) -> Expr:
    """Returns the bits of a tensor as another dtype, in little-endian order on the last axis."""
    old, new = bits(x.tensor.dtype), bits(dtype)
    if old == new:
        return _bitcast(x, dtype)
    wide, narrow = f"u{max(old, new)}", f"u{min(old, new)}"
    count = max(old, new) // min(old, new)
    shifts = constant((np.arange(count) * min(old, new)).astype(f"uint{max(old, new)}"))
    *lead, last = x.tensor.shape
    if new < old:
        parts = call("right_shift", reshaped(_bitcast(x, wide), (*lead, last, 1)), shifts)
        found = reshaped(cast(parts, narrow), (*lead, last * count))
    else:
        apart = cast(reshaped(_bitcast(x, narrow), (*lead, last // count, count)), wide)
        moved = call("left_shift", apart, shifts)
        found = call("sum", moved, axes=(moved.tensor.rank - 1,), keepdims=False)
    return _bitcast(found, dtype)


def _bitcast(x: Expr, dtype: str) -> Expr:
    return call("bitcast", x, dtype=dtype) if x.tensor.dtype != dtype else x
