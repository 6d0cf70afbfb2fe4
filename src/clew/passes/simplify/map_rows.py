"""MapRows: computes all elements of a sequence at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from clew.ir.dims import Dim
from clew.ir.expr import Call, Constant, Expr, Tuple, TupleGetItem, Var, While
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import SequenceType, TensorType, is_native
from clew.ir.values import known_value
from clew.ir.visit import post_order
from clew.ops.data.flat_sequences import shape_of_elements
from clew.ops.data.structure import elements_of
from clew.ops.registry import Op, get_op
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass
from clew.te.analysis import Kind


@dataclass(frozen=True)
class MapRows(Pass):
    """Replaces a loop that computes a new sequence from each element of another one by operators on
    the rows of all elements (`ops.data.flat_sequences`), if these are pointwise: the new elements
    have the sizes of the old ones. There is one call of a kernel instead of several per element.

    Before: in the body, `%1 = sequence.at(%list, %i)`, `%2 = tanh(%1)` and, as the next state,
        `sequence.insert(%state, %2)`
    After:  `%1 = sequence.pack(%list)`, `%2 = tanh(%1[0])`, `sequence.unpack(%2, %1[1])`

    Preconditions: none. Non-goals: elements of one static shape, which StackSequences handles;
    several sequences, whose elements may differ in size; loops that compute anything else.
    """

    opt_level: ClassVar[int] = 1
    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        nodes = post_order([function for _, function in module], into_functions=True)
        if not any(isinstance(node, While) and _source(node) for node in nodes):
            return module
        return _Mapper().rewrite_module(module)


class _Mapper(Rewriter):
    def rewrite_control(self, old: Expr, new: Expr) -> Expr:
        if not isinstance(new, While):
            return new
        return _mapped(new) or new


def _source(loop: While) -> Expr | None:
    """Returns the sequence of which a loop has as many iterations as elements; None if there is
    none with a flat form and elements of different sizes.
    """
    counter, *params = loop.cond.params
    kept = _kept(loop, params)
    tests, sources = [loop.cond.body], list[Expr]()
    while tests:
        match tests.pop():
            case Call(op=Op(name="logical_and"), args=[a, b]):
                tests += [a, b]
            case Call(op=Op(name="less"), args=[index, count]) if index is counter:
                match kept.get(count.id):
                    case Call(op=Op(name="sequence.length"), args=[source]):
                        sources.append(source)
                    case _:
                        return None
            case test:
                known = known_value(kept.get(test.id, test))
                if known is None or not known.all():
                    return None
    shapes = [shape_of_elements(source.type) for source in sources]
    return sources[0] if len(sources) == 1 and -1 in (shapes[0] or ()) else None


def _kept(loop: While, params: Sequence[Var]) -> dict[int, Expr]:
    """Returns the values of the states that stay the same, by parameters for the states."""
    fields = _fields(loop)
    own = zip(params, loop.body.params[1:], loop.init, fields, strict=False)
    return {param.id: first for param, mine, first, field in own if field is mine}


def _fields(loop: While) -> Sequence[Expr]:
    assert isinstance(loop.body.body, Tuple)
    return loop.body.body.fields


def _mapped(loop: While) -> Tuple | None:
    """Returns the results of a loop, computed for all elements at once; None if it does anything
    else than compute new elements from those at their places.
    """
    source = _source(loop)
    if source is None or loop.scans:
        return None
    shape, element = shape_of_elements(source.type), source.type
    assert shape is not None
    assert isinstance(element, SequenceType)
    assert isinstance(element.element, TensorType)
    row, dtype = element.element.shape[len(shape) :], element.element.dtype
    packed = get_op("sequence.pack")(source, axes=len(shape), row=row, dtype=dtype)
    results: list[Expr] = []
    for state, first, field in zip(loop.body.params[1:], loop.init, _fields(loop), strict=True):
        if field is state:
            results.append(first)
            continue
        match field:
            case Call(op=Op(name="sequence.insert"), args=[old, value]) if old is state:
                made = _over_rows(value, loop, source, TupleGetItem(packed, 0))
            case _:
                made = None
        before = elements_of(first)
        if made is None or before is None or len(before):
            return None
        results.append(get_op("sequence.unpack")(made, TupleGetItem(packed, 1)))
    return Tuple(results)


def _over_rows(value: Expr, loop: While, source: Expr, rows: Expr) -> Expr | None:
    """Returns a new element computed for the rows of all elements of a sequence; None if it is not
    computed from the element in the same place, and scalars, by pointwise operators.
    """
    made: dict[int, Expr] = dict(_kept(loop, loop.body.params[1:]))
    over: set[int] = set()  # the nodes that are computed for rows
    shape: tuple[Dim, ...] | None = None
    for node in post_order(value):
        match node:
            case Constant():
                made[node.id] = node
            case Call(op=Op(name="sequence.at"), args=[of, index]):
                if made.get(of.id) is not source or index is not loop.body.params[0]:
                    return None
                assert isinstance(node.type, TensorType)
                if shape is not None:  # each read names its sizes anew
                    return None
                shape, made[node.id] = node.type.shape, rows
                over.add(node.id)
            case Call(op=Op() as op):
                inside = any(arg.id in over for arg in node.args)
                if not inside or not _is_pointwise(op, node, over, shape):
                    return None
                made[node.id] = node.with_args([made[arg.id] for arg in node.args])
                over.add(node.id)
            case Var():
                pass
            case _:
                return None
    return made[value.id] if value.id in over and is_native(value.type) else None


def _is_pointwise(op: Op, call: Call, over: set[int], shape: tuple[Dim, ...] | None) -> bool:
    """Whether an operator computes each element from those at the same place and from scalars."""
    types = [arg.type for arg in call.args if isinstance(arg.type, TensorType)]
    if len(types) < len(call.args) or not isinstance(call.type, TensorType):
        return False
    if call.type.shape != shape or not call.attrs.keys().isdisjoint(("axis", "axes", "shape")):
        return False
    for arg, type_ in zip(call.args, types, strict=True):
        if arg.id not in over and type_.rank:
            return False
    return op.kind(tuple(types), call.attrs) <= Kind.BROADCAST
