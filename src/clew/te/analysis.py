"""Properties of a computation derived from its body: fusion kind, views, loads."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

from clew.ir.dims import Dim, SymDim, is_unknown
from clew.support.walk import post_order
from clew.te.expr import (
    Binary,
    Cast,
    Imm,
    Index,
    Inlined,
    Load,
    Reduce,
    Scalar,
    Sequential,
)
from clew.te.tensor import Tensor, stages
from clew.te.walk import loads, nodes

_Form: TypeAlias = "tuple[dict[int, int], int] | None"


class Kind(IntEnum):
    """The fusion kind of an operator, from the least to the most restrictive."""

    ELEMENTWISE = 0
    """Each element depends on the same element of inputs of the same shape, not on its position."""
    BROADCAST = 1
    """Elementwise, with some inputs broadcast along axes."""
    INJECTIVE = 2
    """Each element depends on known elements in another order or position (transpose, pad, gather),
    or on its own position (trilu).
    """
    REDUCTION = 3
    """Reduces over axes, one value per element, or in several stages (softmax)."""
    ANCHOR = 4
    """Sums of products: convolution, matrix product. A kernel has at most one."""
    OPAQUE = 5
    """Not fused with anything."""


def _identity(load: Load, axes: Sequence[Index]) -> bool:
    return len(load.indices) == len(axes) and all(
        i is a for i, a in zip(load.indices, axes, strict=True)
    )


def _broadcast(load: Load, axes: Sequence[Index]) -> bool:
    """Whether a load uses a subsequence of the axes in order; size-1 axes are indexed by 0."""
    position = -1
    for index in load.indices:
        if isinstance(index, Index):
            found = next((n for n, a in enumerate(axes) if a is index), -1)
            if found <= position:
                return False
            position = found
        elif not _zero(index):
            return False
    return True


def _zero(index: Scalar) -> bool:
    return getattr(index, "value", None) == 0


def is_product_sum(reduce: Reduce) -> bool:
    """Whether a reduction sums products of values that are read from different tensors."""
    value = without_casts(reduce.value)
    return (
        reduce.combiner == "sum"
        and isinstance(value, Binary)
        and value.op == "mul"
        and bool(loads(value.a))
        and bool(loads(value.b))
        and not {id(x.source) for x in loads(value.a)} & {id(x.source) for x in loads(value.b)}
    )


def product_sums_and_stages(outputs: Sequence[Tensor]) -> tuple[int, int]:
    """Returns the number of stages that are sums of products, and that of all stages."""
    bodies = [stage.body for stage in stages(outputs)]
    return sum(isinstance(b, Reduce) and is_product_sum(b) for b in bodies), len(bodies)


def is_aligned(outputs: Sequence[Tensor]) -> bool:
    """Whether all stages read values by their own last axes, as NumPy broadcasts, so that operands
    with more axes give the same elements.
    """
    for stage in stages(outputs):
        assert stage.body is not None
        for load in loads(stage.body):
            own = stage.axes[max(len(stage.axes) - len(load.indices), 0) :]
            if len(own) != len(load.indices):
                return False
            if not all(i is a or _zero(i) for i, a in zip(load.indices, own, strict=True)):
                return False
    return True


def kind_of(outputs: Sequence[Tensor]) -> Kind:
    """Returns the fusion kind of a computation."""
    kind = Kind.ELEMENTWISE
    for stage in stages(outputs):
        assert stage.body is not None
        if isinstance(stage.body, Reduce):
            kind = max(kind, Kind.ANCHOR if is_product_sum(stage.body) else Kind.REDUCTION)
            continue
        if isinstance(stage.body, Sequential):
            kind = Kind.OPAQUE
            continue
        if _depends_on_place(stage.body):
            kind = max(kind, Kind.INJECTIVE)
        for load in loads(stage.body):
            if load.source.body is not None and _identity(load, stage.axes):
                continue
            if not _identity(load, stage.axes) or load.source.shape != stage.shape:
                kind = max(kind, Kind.BROADCAST if _broadcast(load, stage.axes) else Kind.INJECTIVE)
    if not any(t.body is not None for t in outputs):
        return Kind.INJECTIVE
    return kind


def _depends_on_place(body: Scalar) -> bool:
    """Whether an element's own indices are used for anything other than loads."""
    inside = post_order((body,), lambda node: () if isinstance(node, Load) else node.children)
    return any(isinstance(node, Index) for node in inside)


def view_offset(tensor: Tensor) -> Dim | None:
    """Returns the offset, in elements, at which a tensor lies contiguously in its input's memory.

    `None` unless all its elements are there, contiguous and in order, at all sizes. Both tensors
    are stored with the last axis innermost; axes of one element do not count.
    """
    load = _only_load(tensor)
    places = [] if load is None else [linear_form(index) for index in load.indices]
    if load is None or None in places or not _in_order(tensor, load, places):
        return None
    steps = zip(places, _strides(load.source.shape), strict=True)
    offset: Dim = 0
    for place, step in steps:
        assert place is not None
        offset = offset + place[1] * step
    return offset


def view_offsets(outputs: Sequence[Tensor]) -> tuple[Dim, ...] | None:
    """Returns the `view_offset` of each result; `None` if a result has none."""
    found = [view_offset(t) for t in outputs]
    known = [n for n in found if n is not None]
    return tuple(known) if len(known) == len(found) else None


def is_chosen_piece(tensor: Tensor) -> bool:
    """Whether a tensor is contiguous in its input's memory, at a position that values determine, as
    the result of a `gather` with one index.
    """
    load = _only_load(tensor)
    if load is None or view_offset(tensor) is not None:
        return False
    places = [linear_form(i) if _reads_any(i, tensor.axes) else ({}, 0) for i in load.indices]
    return None not in places and _in_order(tensor, load, places)


def _only_load(tensor: Tensor) -> Load | None:
    """Returns the load of an input that is a tensor's whole body, unless a size is 0 or depends on
    values of the run.
    """
    body = tensor.body
    while isinstance(body, Inlined):
        body = body.value
    if not isinstance(body, Load) or body.source.body is not None:
        return None
    sizes = (*tensor.shape, *body.source.shape)
    known = (not is_unknown(d) if isinstance(d, SymDim) else d > 0 for d in sizes)
    return body if all(known) else None


def _in_order(tensor: Tensor, load: Load, places: Sequence[_Form]) -> bool:
    """Whether the elements that a load reads are contiguous and in the tensor's order."""
    found: dict[int, Dim] = dict.fromkeys(map(id, tensor.axes), 0)
    for place, stride in zip(places, _strides(load.source.shape), strict=True):
        assert place is not None
        for key, factor in place[0].items():
            if key not in found:
                return False
            found[key] = found[key] + factor * stride
    axes = zip(tensor.axes, _strides(tensor.shape), strict=True)
    return all(axis.extent == 1 or found[id(axis)] == stride for axis, stride in axes)


def _reads_any(index: Scalar, axes: Sequence[Index]) -> bool:
    own = {id(a) for a in axes}
    return any(id(node) in own for node in nodes(index))


def _strides(shape: Sequence[Dim]) -> list[Dim]:
    steps: list[Dim] = []
    step: Dim = 1
    for extent in reversed(shape):
        steps.append(step)
        step = step * extent
    return steps[::-1]


def linear_form(expr: Scalar) -> tuple[dict[int, int], int] | None:
    """Returns the coefficients of the axes, by id, and the constant of a linear index
    expression.
    """
    return _linear_in(expr, {})


def _linear_in(expr: Scalar, known: dict[int, _Form]) -> _Form:
    if id(expr) not in known:
        known[id(expr)] = _linear_of(expr, known)
    return known[id(expr)]


def _linear_of(expr: Scalar, known: dict[int, _Form]) -> _Form:
    match expr:
        case Imm():
            return {}, int(expr.value)
        case Index():
            return {id(expr): 1}, 0
        case Binary(op="add" | "sub"):
            a, b = _linear_in(expr.a, known), _linear_in(expr.b, known)
            if a is None or b is None:
                return None
            sign = 1 if expr.op == "add" else -1
            factors = dict(a[0])
            for axis, factor in b[0].items():
                factors[axis] = factors.get(axis, 0) + sign * factor
            return factors, a[1] + sign * b[1]
        case Binary(op="mul", b=Imm(value=by)):
            a = _linear_in(expr.a, known)
            return a and ({axis: factor * by for axis, factor in a[0].items()}, a[1] * by)
    return None


def extents_of(stage: Tensor) -> tuple[Dim, ...]:
    """Returns the extents of all axes at whose positions a stage's body is computed."""
    match stage.body:
        case Reduce() as body:
            return (*stage.shape, *(a.extent for a in body.axes))
        case Sequential() as body:
            return tuple(a.extent for a in body.visits(stage.axes))
    return stage.shape


def without_casts(value: Scalar) -> Scalar:
    """Returns the value that is cast."""
    while isinstance(value, (Cast, Inlined)):
        value = value.children[0]
    return value
