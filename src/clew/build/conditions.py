"""What must hold for the sizes of a build for all sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clew.backends.cpu.lowering import KernelBinary
from clew.ir.dims import Dim, SymDim, at_least, is_unknown
from clew.ir.expr import Call, Expr, Function, While
from clew.ir.types import TensorType, leaves
from clew.ir.visit import all_nodes
from clew.passes.fusion.views import is_reshape, view_offsets


def conditions_of(main: Function, binaries: Iterable[KernelBinary]) -> tuple[SymDim, ...]:
    """Returns the dimensions that must be at least 0: what kernels need, that views show all of
    their memory or a part of it, that loops run no negative number of times, and that no value is
    empty.
    """
    return tuple(dict.fromkeys(_conditions(main, binaries)))


def _conditions(main: Function, binaries: Iterable[KernelBinary]) -> Iterator[SymDim]:
    for binary in binaries:
        yield from binary.code.needs
    for node in all_nodes(main):
        for rest in _left(node):
            if isinstance(rest, SymDim) and not at_least(rest):
                yield rest
        if isinstance(node, While) and isinstance(node.trips, SymDim) and not at_least(node.trips):
            yield node.trips
        for leaf in leaves(node.type):
            for dim in leaf.shape if isinstance(leaf, TensorType) else ():
                if isinstance(dim, SymDim) and not is_unknown(dim) and not at_least(dim, 1):
                    condition = dim - 1
                    assert isinstance(condition, SymDim)
                    yield condition


def _left(node: Expr) -> list[Dim]:
    """Returns the differences of elements that must be at least 0 for a view."""
    offsets = view_offsets(node) if isinstance(node, Call) else None
    if offsets is None:
        return []
    assert isinstance(node, Call)
    whole, parts = node.args[0].tensor.size, leaves(node.type)
    sizes = [part.size for part in parts if isinstance(part, TensorType)]
    left = [whole - (size + offset) for size, offset in zip(sizes, offsets, strict=True)]
    return [*left, *(-1 * rest for rest in left)] if is_reshape(node) else left
