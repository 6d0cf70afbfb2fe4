"""Facts about operators derived from their tensor expressions, other than the fusion kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from clew.ir.dims import SymDim, at_least, is_unknown
from clew.support.dataclass import dataclass
from clew.te.analysis import linear_form
from clew.te.expr import (
    COMPARISONS,
    Binary,
    Cast,
    Checked,
    Imm,
    Index,
    Inlined,
    Intrinsic,
    Load,
    Reduce,
    Scalar,
    Select,
    Size,
    Unary,
)
from clew.te.tensor import Tensor, stages
from clew.te.walk import loads, nodes

# Intrinsics that are finite for every finite argument.
_BOUNDED: Final = frozenset((
    "tanh", "erf", "sigmoid", "sin", "cos", "atan", "floor", "ceil", "round", "trunc", "isnan",
    "isinf", "fma", "copysign", "normal_cdf",
))  # fmt: skip
_SUMS: Final = frozenset(("add", "sub", "mul", "min", "max"))


@dataclass(frozen=True)
class Moved:
    """The contents of results of data movement: elements of the inputs with these names, and other
    values (those that `pad` writes).
    """

    inputs: frozenset[str]
    values: tuple[Any, ...] = ()


def moved_by(outputs: Sequence[Tensor]) -> Moved | None:
    """Returns the contents of results if each element is a constant, or an element of an input at a
    position that does not depend on the moved inputs; else None.
    """
    inputs: dict[str, None] = {}
    values: dict[str, Any] = {}
    deciding: list[Scalar] = []
    stack: list[Scalar | Tensor] = list(outputs)
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        match node:
            case Tensor(body=None):
                inputs[node.name] = None
            case Tensor():
                assert node.body is not None
                stack.append(node.body)
            case Load():
                stack.append(node.source)
                deciding += node.indices
            case Inlined():
                stack.append(node.value)
            case Select():
                stack += [node.a, node.b]
                deciding.append(node.cond)
            case Imm():
                values[repr(node.value)] = node.value  # 0.0 and -0.0 are two
            case _:
                return None
    if inputs.keys() & _read_by(deciding):
        return None
    return Moved(frozenset(inputs), tuple(values.values()))


def _read_by(scalars: Sequence[Scalar]) -> set[str]:
    """Returns the names of the inputs that expressions depend on."""
    sources = {id(n.source): n.source for s in scalars for n in nodes(s) if isinstance(n, Load)}
    reached = {id(s): s for t in sources.values() for s in stages([t])}
    found = {t.name for t in sources.values() if t.body is None}
    return found | {t.name for s in reached.values() for t in s.inputs if t.body is None}


def view_steps(outputs: Sequence[Tensor]) -> list[tuple[int, int] | None] | None:
    """Returns, for each axis of the only result, the axis of the only input that it steps along,
    and the step; None for an axis of one element without a step. Returns None as a whole if
    elements are not at constant strides in the input, or if an axis repeats them.
    """
    tensor, *more = outputs
    body = tensor.body
    while isinstance(body, Inlined):
        body = body.value
    if more or not isinstance(body, Load) or body.source.body is not None:
        return None
    places = {id(axis): n for n, axis in enumerate(tensor.axes)}
    found: list[tuple[int, int] | None] = [None] * len(tensor.axes)
    for number, index in enumerate(body.indices):
        form = linear_form(index)
        if form is None or len(form[0]) > 1:
            return None
        for key, factor in form[0].items():
            if key not in places or found[places[key]] is not None or not factor:
                return None
            found[places[key]] = number, factor
    repeats = any(
        f is None and axis.extent != 1 for f, axis in zip(found, tensor.axes, strict=True)
    )
    return None if repeats else found


def reads_unevenly(outputs: Sequence[Tensor]) -> bool:
    """Whether neighbors in a result are read at uneven distances: at positions that values
    determine, or at clamped ones, as in a resized image.
    """
    indices = [
        index
        for stage in stages(outputs)
        if stage.body is not None
        for load in loads(stage.body)
        for index in load.indices
    ]
    return any(_is_uneven(node) for index in indices for node in nodes(index))


def _is_uneven(position: Scalar) -> bool:
    is_clamp = isinstance(position, Binary) and position.op in ("min", "max")
    if not is_clamp and not isinstance(position, Load):
        return False
    return any(isinstance(node, Index) for node in nodes(position))


def checks_indices(outputs: Sequence[Tensor]) -> bool:
    """Whether indices that are read are checked."""
    bodies = (stage.body for stage in stages(outputs) if stage.body is not None)
    return any(isinstance(node, Checked) for body in bodies for node in nodes(body))


def skips_checks(outputs: Sequence[Tensor]) -> bool:
    """Whether kernels skip a check of an index if the results have no elements: a size of the
    results may be 0, and the indices do not vary along it. Positions in an axis that shrinks or
    grows with the results (rows that are erased) are left out.
    """
    sizes = {d for tensor in outputs for d in tensor.shape}
    empty = {d for d in sizes if is_unknown(d) or not at_least(d, 1)}
    if not empty:
        return False
    for stage in stages(outputs):
        for check in () if stage.body is None else nodes(stage.body):
            if isinstance(check, Checked):
                varying = {n.extent for n in nodes(check) if isinstance(n, Index)}
                own = check.places.size.symbols if isinstance(check.places.size, SymDim) else ()
                left = {d for d in empty if not isinstance(d, SymDim) or d.symbols.isdisjoint(own)}
                if left and 0 not in varying and not left <= varying:
                    return True
    return False


def is_finite_of_finite(outputs: Sequence[Tensor]) -> bool:
    """Whether a computation without reductions has finite results for all finite inputs, except for
    overflow.
    """
    return _all(outputs, _keeps_finite)


def _keeps_finite(node: Scalar) -> bool:
    match node:
        case Load() | Index() | Size() | Inlined() | Cast() | Select() | Unary():
            return True
        case Imm():
            return math.isfinite(node.value)
        case Binary(op="div" | "floordiv" | "mod", b=Imm(value=by)):
            return bool(by != 0)
        case Binary():
            return node.op in _SUMS or node.dtype == "bool"
        case Intrinsic():
            return node.name in _BOUNDED
    return False


def is_well_conditioned(outputs: Sequence[Tensor]) -> bool:
    """Whether a computation without reductions consists of sums, products, scales and extremes, so
    that rounding an input has no larger effect than rounding the result.
    """
    return _all(outputs, _conditions_well)


def _conditions_well(node: Scalar) -> bool:
    match node:
        case Load() | Index() | Size() | Inlined() | Select() | Imm():
            return True
        case Cast():
            return node.dtype[0] in "fb" and node.a.dtype[0] in "fb"
        case Unary():
            return node.op in ("neg", "abs")
        case Binary(op="div", b=Imm()):
            return True
        case Binary():
            return node.op in _SUMS or node.op in COMPARISONS
    return False


def _all(outputs: Sequence[Tensor], holds: Callable[[Scalar], bool]) -> bool:
    """Whether a predicate holds for all expressions that compute values; indices are not tested."""
    made = stages(outputs)
    return all(holds(node) for stage in made for node in _values(stage.body))


def _values(body: Scalar | None) -> Iterator[Scalar]:
    stack, seen = [body], set[int]()
    while stack:
        node = stack.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, Reduce):
            return  # no predicate holds for it
        if not isinstance(node, Load):
            stack += node.children
