"""Conditions on the sizes of a build for all sizes.

A size of 0 makes values empty. Kernels expect this: loops over an empty value run no iterations, so
a sum over it is 0, and `loop.needs` proves that nothing of an empty operand is read. An operator
that is not defined there says so (`ops.common.assume_at_least`). Operators on the host, and
branches and loops, read only values with elements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from clew.backends.cpu.lowering import KernelBinary
from clew.ir.dims import Dim, SymDim, at_least, is_unknown, substitute
from clew.ir.expr import Call, Expr, Function, Tuple, TupleGetItem, Var, While
from clew.ir.types import MAX_EXTENT, TensorType, dims_in, extent, is_empty, leaves
from clew.ir.visit import all_nodes
from clew.ops.common import assumptions
from clew.ops.registry import Op, argument_references, runs_on_host
from clew.passes.fusion.views import is_kernel, is_reshape, view_offsets
from clew.support.errors import GraphTypeError
from clew.te.analysis import Kind


def conditions_of(
    main: Function, binaries: Iterable[KernelBinary], imported: Function | None = None
) -> tuple[SymDim, ...]:
    """Returns the dimensions that must be at least 0: the needs of kernels, that views show all of
    their memory or a part of it, that no trip count is negative, that values are not empty where
    operators do not expect it, and that operands fit the operators of the imported graph.
    """
    return tuple(dict.fromkeys(_conditions(main, binaries, imported)))


def sizes_from_zero(main: Function, conditions: Sequence[SymDim]) -> frozenset[str]:
    """Returns the names of sizes that may be 0: all but those for which a condition rules this
    out.
    """
    names = {name for p in main.params for dim in dims_in(p.type) for name in dim.from_zero}
    return frozenset([name for name in names if not _must_be_positive(name, conditions)])


def _must_be_positive(name: str, conditions: Sequence[SymDim]) -> bool:
    try:
        return any(
            at_least(-1 - substitute(condition, {name: 0}))
            for condition in conditions
            if name in condition.symbols
        )
    except GraphTypeError:  # a size is divided by 0
        return True


def _conditions(
    main: Function, binaries: Iterable[KernelBinary], imported: Function | None
) -> Iterator[SymDim]:
    for binary in binaries:
        yield from binary.code.needs
    readers = _readers(main)
    yield from _assumed_at_import(imported) if imported is not None else ()
    yield from _within_64_bits(main)
    for node in all_nodes(main):
        if isinstance(node, Call) and view_offsets(node) is not None:
            yield from _assumed(node)
        for rest in _left(node):
            if isinstance(rest, SymDim) and not at_least(rest):
                yield rest
        if isinstance(node, While) and isinstance(node.trips, SymDim) and not at_least(node.trips):
            yield node.trips
        dims = [
            dim
            for leaf in leaves(node.type)
            for dim in (leaf.shape if isinstance(leaf, TensorType) else ())
            if isinstance(dim, SymDim) and not is_unknown(dim) and not at_least(dim, 1)
        ]
        least = 0 if dims and _may_be_empty(node, readers) else 1
        for dim in dims:
            condition = dim - least
            assert isinstance(condition, SymDim)
            if not at_least(condition):
                yield condition


def _assumed_at_import(imported: Function) -> Iterator[SymDim]:
    """Yields what the operators of the imported graph assume. What replaces them may accept more
    sizes (a product by a weight in blocks, rounded up), for which it computes other values.
    """
    seen: set[object] = set()
    for node in all_nodes(imported):
        if not isinstance(node, Call):
            continue
        if any(map(is_empty, leaves(node.type))):  # it has no kernel
            yield from _assumed(node)
        elif any(dims_in(arg.type) for arg in node.args) and _combines(node):
            key = node.op, tuple(arg.type for arg in node.args), node.attrs
            if key not in seen:
                seen.add(key)
                yield from (dim for dim in _assumed(node) if not is_unknown(dim))


def _combines(node: Call) -> bool:
    """Whether an operator sums products, or combines elements in another way."""
    if not isinstance(node.op, Op) or runs_on_host(node) or argument_references(node.attrs):
        return False
    return node.op.kind([arg.tensor for arg in node.args], node.attrs) > Kind.INJECTIVE


def _within_64_bits(main: Function) -> Iterator[SymDim]:
    """Yields the dimensions that are at least 0 where positions in all values, also in those that
    only a kernel computes, and all sizes in attributes fit in 64 bits.
    """
    types: dict[TensorType, None] = {}
    attributes: dict[SymDim, None] = {}
    for node in all_nodes(main):
        if isinstance(node, Call):
            attributes.update(dict.fromkeys(_sizes(node.attrs.values())))
        if not isinstance(node, Function):
            types.update({t: None for t in leaves(node.type) if isinstance(t, TensorType)})
    for type_ in types:
        if not type_.is_static and not any(map(is_unknown, type_.shape)):
            bound = extent(type_)
            if isinstance(bound, SymDim):  # that of at most one element is a number
                yield MAX_EXTENT - bound  # type: ignore[misc]
    shapes = {dim for type_ in types for dim in type_.shape}
    for dim in attributes:
        if dim not in shapes and not is_unknown(dim):
            yield MAX_EXTENT - dim  # type: ignore[misc]
            if not at_least(dim):
                yield MAX_EXTENT + dim  # type: ignore[misc]


def _sizes(values: Iterable[object]) -> Iterator[SymDim]:
    for value in values:
        if isinstance(value, SymDim):
            yield value
        elif isinstance(value, tuple):
            yield from _sizes(value)


def _readers(main: Function) -> dict[int, list[Expr]]:
    """Returns the nodes that read each value, by its id."""
    found: defaultdict[int, list[Expr]] = defaultdict(list)
    for node in all_nodes(main):
        for child in node.children:
            found[child.id].append(node)
    return found


def _may_be_empty(node: Expr, readers: dict[int, list[Expr]]) -> bool:
    """Whether what computes and reads a value remains correct if it is empty."""
    return (isinstance(node, Var) or _has_loops(node)) and all(
        map(_has_loops, readers.get(node.id, ()))
    )


def _has_loops(node: Expr) -> bool:
    """Whether a kernel computes a node's results, or they are values that it passes on."""
    if isinstance(node, (Function, Tuple, TupleGetItem)):
        return True
    if not isinstance(node, Call):
        return False
    if isinstance(node.op, Function):
        return is_kernel(node.op)
    return isinstance(node.op, Op) and not runs_on_host(node)


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
