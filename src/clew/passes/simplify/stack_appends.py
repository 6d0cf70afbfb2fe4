"""StackAppends: makes loops stack the values that they append to a tensor or a sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from clew.ir.dims import is_unknown
from clew.ir.expr import Call, Expr, Function, Tuple, TupleGetItem, Var, While
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import SequenceType, TensorType, is_native, unknown_sizes
from clew.ir.values import known_value
from clew.ir.visit import free_vars, post_order
from clew.ops.data.structure import axis_moved, elements_of, folded, rows_joined, stacked
from clew.ops.registry import Op, get_op
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass

_READS = frozenset({"sequence.concat", "sequence.length"})


@dataclass(frozen=True)
class StackAppends(Pass):
    """Replaces states of loops to which each iteration only appends: the loop stacks the appended
    values, and after it, the stack joins the first state. A state that grows has another size in
    each iteration and is copied in each; a stack is written once, by native code.

    Before: in the body, `%1 = concatenate(%state, %row, axis=0)`, where `%1` is the next state
    After:  in the body, `%row` is stacked; after it, `concatenate(%first, reshape(%stack), axis=0)`

    Values may be appended at both ends, along any axis. The same holds for `sequence.insert` at
    either end of a sequence that starts empty, or with known elements.

    Preconditions: none. Non-goals: states that the body or the condition read in another way, and
    appended values whose sizes may differ between iterations.
    """

    opt_level: ClassVar[int] = 1
    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        functions = [function for _, function in module]
        nodes = post_order(functions, into_functions=True)
        if not any(isinstance(node, While) and _appends_of(node) for node in nodes):
            return module
        return _Stacker().rewrite_module(module)


@dataclass(frozen=True)
class _Appends:
    """The values that each iteration appends to a state, before and after it, along an axis. For a
    sequence, `axis` is None, and there is one value.
    """

    state: int
    before: Expr | None
    after: Expr | None
    axis: int | None

    @property
    def values(self) -> list[Expr]:
        return [value for value in (self.before, self.after) if value is not None]


class _Stacker(Rewriter):
    def rewrite_control(self, old: Expr, new: Expr) -> Expr:
        if not isinstance(new, While):
            return new
        found = _appends_of(new)
        return _stacking(new, found) if found else new

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        made = new.args[0] if isinstance(new.op, Op) and new.op.name in _READS else None
        if made is None or not _is_call(made, "sequence.split"):
            return new
        with self.covers(old, made):
            return folded(new, known_value)


def _stacking(loop: While, found: Sequence[_Appends]) -> Tuple:
    """Returns the results of a loop that stacks the values appended to some states."""
    gone = {appends.state for appends in found}
    count = len(loop.init)
    kept = [n for n in range(count) if n not in gone]
    assert isinstance(loop.body.body, Tuple)
    fields = loop.body.body.fields
    rows = [_row(value, appends) for appends in found for value in appends.values]
    body = Tuple([*(fields[n] for n in kept), *fields[count:], *rows])
    made = While(
        _without(loop.cond, gone, loop.cond.body),
        _without(loop.body, gone, body),
        [loop.init[n] for n in kept],
        scans=loop.scans + len(rows),
        trips=loop.trips,
    )
    results: dict[int, Expr] = {n: TupleGetItem(made, place) for place, n in enumerate(kept)}
    place = len(kept) + loop.scans
    for appends in found:
        stacks = [TupleGetItem(made, place + n) for n in range(len(appends.values))]
        place += len(stacks)
        results[appends.state] = _joined(loop.init[appends.state], appends, stacks)
    scans = [TupleGetItem(made, len(kept) + n) for n in range(loop.scans)]
    return Tuple([*(results[n] for n in range(count)), *scans])


def _without(function: Function, gone: set[int], body: Expr) -> Function:
    """Returns a function of a loop with another body and without some states."""
    params = [p for n, p in enumerate(function.params) if n - 1 not in gone]
    return Function(params, body, function.attrs)


def _joined(first: Expr, appends: _Appends, stacks: Sequence[Expr]) -> Expr:
    """Returns a state after the loop, from its first value and the stacks of appended values."""
    if appends.axis is None:
        return _sequence(first, stacks[0], is_before=appends.before is not None)
    left, axis = list(stacks), appends.axis
    parts = [first]
    if appends.before is not None:
        last_first = get_op("flip")(left.pop(0), axes=(0,))
        parts.insert(0, _rows_joined(last_first, appends.before, axis))
    if appends.after is not None:
        parts.append(_rows_joined(left.pop(0), appends.after, axis))
    return get_op("concatenate")(*parts, axis=axis)


def _row(value: Expr, appends: _Appends) -> Expr:
    """Returns a value as a row of a stack: without the axis that it is appended along if it has
    size 1 there, so that joined rows need no other shape.
    """
    shape, axis = value.tensor.shape, appends.axis
    if axis is None or shape[axis] != 1:
        return value
    return get_op("reshape")(value, shape=(*shape[:axis], *shape[axis + 1 :]))


def _rows_joined(stack: Expr, value: Expr, axis: int) -> Expr:
    """Returns the rows of a value's stack one after another along the axis of the value."""
    is_one = value.tensor.shape[axis] == 1
    return axis_moved(stack, 0, axis) if is_one else rows_joined(stack, 0, axis)


def _sequence(first: Expr, stack: Expr, *, is_before: bool) -> Expr:
    """Returns the sequence of known elements and, behind or before them, the values of a stack. The
    last values come first before them.
    """
    if is_before:
        stack = get_op("flip")(stack, axes=(0,))
    elements = elements_of(first)
    if elements:
        rows = stacked(elements)
        assert rows is not None
        parts = (stack, rows) if is_before else (rows, stack)
        stack = get_op("concatenate")(*parts, axis=0)
    return get_op("sequence.split")(stack, axis=0, keepdims=False)


def _appends_of(loop: While) -> list[_Appends]:
    """Returns the values that a loop appends to each state used for nothing else."""
    if loop.trips == 0 or not isinstance(loop.body.body, Tuple):
        return []
    own = [node for node in post_order(loop.body.body) if not isinstance(node, Function)]
    uses = Counter(child.id for node in own for child in node.children)
    read = {var.id for var in free_vars([loop.cond.body])}
    known = {name for first in loop.init for name in unknown_sizes(first.type)}
    found = []
    for state, value in enumerate(loop.body.body.fields[: len(loop.init)]):
        if loop.cond.params[1 + state].id in read:
            continue
        appends = _appends(state, _alone(value, uses), loop.body.params[1 + state], uses)
        if appends is not None and _fits(appends, loop.init[state], known):
            found.append(appends)
    return found


def _alone(value: Expr, uses: Counter[int]) -> Expr | None:
    """Returns the value that a chain of identities passes on; None if any of them has other
    uses.
    """
    while uses[value.id] == 1:
        if not _is_call(value, "identity"):
            return value
        value = value.children[0]
    return None


def _appends(state: int, value: Expr | None, param: Var, uses: Counter[int]) -> _Appends | None:
    if not isinstance(value, Call) or not isinstance(value.op, Op):
        return None
    args = value.args
    at = [n for n, arg in enumerate(args) if _alone(arg, uses) is param]
    if len(at) != 1 or len(args) < 2:
        return None
    if value.op.name == "sequence.insert" and at == [0]:
        if len(args) == 2:
            return _Appends(state, None, args[1], None)
        place = known_value(args[2])
        return None if place is None or place.any() else _Appends(state, args[1], None, None)
    if value.op.name != "concatenate":
        return None
    axis = value.attrs.axis % value.tensor.rank
    before, after = (_one(part, axis) for part in (args[: at[0]], args[at[0] + 1 :]))
    return _Appends(state, before, after, axis)


def _one(parts: Sequence[Expr], axis: int) -> Expr | None:
    """Returns the concatenation of tensors, if there are any."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return get_op("concatenate")(*parts, axis=axis)


def _fits(appends: _Appends, first: Expr, known: set[str]) -> bool:
    """Whether all iterations append values of the same sizes, that can follow the first state.
    `known` are the sizes that do not change during the loop.
    """
    for value in appends.values:
        if not isinstance(value.type, TensorType) or not is_native(value.type):
            return False
        if not unknown_sizes(value.type) <= known:
            return False
    if appends.axis is not None:
        return isinstance(first.type, TensorType)
    elements = elements_of(first)
    shape = appends.values[0].tensor.shape
    if elements is None or any(is_unknown(size) for size in shape):
        return isinstance(first.type, SequenceType) and first.type.empty
    return all(isinstance(e.type, TensorType) and e.tensor.shape == shape for e in elements)


def _is_call(expr: Expr, name: str) -> bool:
    return isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.name == name
