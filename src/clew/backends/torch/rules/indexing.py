"""Reading and updating elements at indices. An index out of range is the error of the reference."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

import torch

from clew.backends.torch.registry import Building, Step, builds
from clew.backends.torch.tensors import array_of, tensor_of
from clew.ops.movement.indexing import indices_in
from clew.ops.registry import get_op

_REDUCE: Final = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _places(
    b: Building, name: str, n: int, axis: int, from_end: bool = True
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns a function that counts indices from the front of an axis of the first argument, as
    i64. It checks them; without `from_end`, negative ones are out of range.
    """
    size = b.shape()[axis]

    def counted(indices: torch.Tensor) -> torch.Tensor:
        return tensor_of(indices_in(name, array_of(indices), axis, size, from_end))

    known = b.known(n)
    low = -size if from_end else 0
    if known is None or not low <= int(known.min()) <= int(known.max()) < size:
        return counted
    return b.argument(n, counted)


@builds("gather")
def gather(b: Building) -> Step:
    """`index_select` by all indices in a row."""
    axis, shape = b.attrs.axis % b.types[0].rank, b.type.concrete
    places = _places(b, "gather", 1, axis, b.attrs.from_end)
    return lambda x, i: x.index_select(axis, places(i).reshape(-1)).reshape(shape)


@builds("gather_elements")
def gather_elements(b: Building) -> Step:
    """`gather`."""
    axis = b.attrs.axis % b.types[0].rank
    places = _places(b, "gather_elements", 1, axis)
    return lambda x, i: torch.gather(x, axis, places(i))


def _flat(b: Building, name: str, shared: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns a function from index tuples, in the last axis of an argument, to positions in the
    axes that they address, joined to one. The first `shared` axes of both are the same.
    """
    sizes, index = b.shape(), b.shape(1)
    depth = index[-1]

    def joined(indices: torch.Tensor) -> torch.Tensor:
        array = array_of(indices)
        flat = torch.zeros(index[:-1], dtype=torch.int64)
        for n in range(shared):
            along = torch.arange(index[n]).reshape(
                [-1 if k == n else 1 for k in range(len(index) - 1)]
            )
            flat = flat * sizes[n] + along
        for k in range(depth):
            size = sizes[shared + k]
            flat = flat * size + tensor_of(indices_in(name, array[..., k], shared + k, size))
        return flat.reshape(-1)

    return joined


@builds("gather_nd")
def gather_nd(b: Building) -> Step:
    """`index_select` on the axes that the index tuples address, joined to one."""
    shared, shape, sizes = b.attrs.batch_dims, b.type.concrete, b.shape()
    depth = shared + b.shape(1)[-1]
    places, joined = _flat(b, "gather_nd", shared), (prod(sizes[:depth]), *sizes[depth:])
    return lambda x, i: x.reshape(joined).index_select(0, places(i)).reshape(shape)


@builds("apply_table")
def apply_table(b: Building) -> Step:
    """`index_select` by the bits as an unsigned number."""
    shape = b.type.concrete

    def step(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        index = x.contiguous().view(torch.uint8).reshape(-1).to(torch.int32)
        return table.index_select(0, index).reshape(shape)

    return step


@builds("one_hot")
def one_hot(b: Building) -> Step:
    """A comparison with the positions on the new axis: `one_hot` of torch takes no index out of
    range.
    """
    depth, rank = b.attrs.depth, len(b.type.shape)
    axis = b.attrs.axis % rank
    along = torch.arange(depth).reshape([-1 if n == axis else 1 for n in range(rank)])

    def step(indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        wide = indices.to(torch.int64).unsqueeze(axis)
        hot = along == torch.where(wide < 0, wide + depth, wide)
        return torch.where(hot, values[1], values[0])

    return step


def _by_reference(b: Building) -> Step:
    """Returns the reference as a step: NumPy writes one update after another, whose order torch
    leaves open.
    """
    op, attrs = get_op(b.call.op_name), b.attrs

    def step(*xs: torch.Tensor) -> torch.Tensor:
        made: Any = op.run_reference([array_of(x.contiguous()) for x in xs], attrs)
        return tensor_of(made)

    return step


@builds("scatter_elements", "scatter_elements_few", "scatter_elements_many")
def scatter_elements(b: Building) -> Step:
    """`scatter_reduce`; without a reduction, the reference."""
    reduction = b.attrs.reduction
    if reduction == "none" or b.type.dtype == "bool":
        return _by_reference(b)
    axis, kind = b.attrs.axis % b.types[0].rank, _REDUCE[reduction]
    places = _places(b, "scatter_elements", 1, axis)
    return b.widened(lambda x, i, new: x.scatter_reduce(axis, places(i), new, kind))


@builds("index_copy")
def index_copy(b: Building) -> Step:
    """The reference."""
    return _by_reference(b)


@builds("scatter_nd", "scatter_nd_few", "scatter_nd_many")
def scatter_nd(b: Building) -> Step:
    """`scatter_reduce` on the axes that the index tuples address, joined to one; without a
    reduction, the reference.
    """
    reduction, sizes, depth = b.attrs.reduction, b.shape(), b.shape(1)[-1]
    if reduction == "none" or b.type.dtype == "bool":
        return _by_reference(b)
    places, kind = _flat(b, "scatter_nd", 0), _REDUCE[reduction]
    rows, width = prod(sizes[:depth]), prod(sizes[depth:])

    def step(x: torch.Tensor, i: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        index = places(i)[:, None].expand(-1, width)
        flat = x.reshape(rows, width).scatter_reduce(0, index, new.reshape(-1, width), kind)
        return flat.reshape(sizes)

    return b.widened(step)
