"""What must hold for the sizes of a build for all sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clew.backends.cpu.lowering import KernelBinary
from clew.ir.dims import Dim, SymDim, at_least, is_unknown
from clew.ir.expr import Call, Expr, Function, While
from clew.ir.types import TensorType, is_empty, leaves
from clew.ir.visit import all_nodes
from clew.ops.common import assumptions
from clew.ops.registry import Op, argument_references
from clew.passes.fusion.views import is_reshape, view_offsets


def conditions_of(
    main: Function, binaries: Iterable[KernelBinary], imported: Function | None = None
) -> tuple[SymDim, ...]:
    """Returns the dimensions that must be at least 0: what kernels need, that views show all of
    their memory or a part of it, that loops run no negative number of times, and that no value is
    empty. Operators of the imported graph with empty results have no kernel, but their operands
    must fit as well.
    """
    return tuple(dict.fromkeys(_conditions(main, binaries, imported)))


def _conditions(
    main: Function, binaries: Iterable[KernelBinary], imported: Function | None
) -> Iterator[SymDim]:
    for binary in binaries:
        yield from binary.code.needs
    for node in all_nodes(imported) if imported is not None else ():
        if isinstance(node, Call) and any(map(is_empty, leaves(node.type))):
            yield from _assumed(node)
    for node in all_nodes(main):
        if isinstance(node, Call) and view_offsets(node) is not None:
            yield from _assumed(node)
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


def _assumed(call: Call) -> Iterator[SymDim]:
    """Yields the dimensions that an operator without a kernel assumes to be at least 0."""
    if isinstance(call.op, Op) and not argument_references(call.attrs):
        with assumptions() as found:
            call.op.infer(call.args, call.attrs, again=True)
        yield from (dim for dim in found if not at_least(dim))


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
