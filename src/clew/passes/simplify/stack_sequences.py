"""StackSequences: has loops carry a sequence of equal shapes as a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from clew.ir.dims import Dim, SymDim, at_least, substitute, unknown_dim
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var, While
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import SequenceType, TensorType, is_native, to_numpy
from clew.ir.values import known_value
from clew.ir.visit import post_order
from clew.ops.data.structure import axis_moved, elements_of, rows_joined, stacked
from clew.ops.registry import Op, get_op
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class StackSequences(Pass):
    """Replaces a loop's state that is a sequence of tensors of one shape by a tensor of its
    elements, into which iterations insert rows and from which they erase some. Sequences that are
    the rows of a tensor are read and changed likewise outside of loops. Kernels can read and write
    the tensor; a sequence is handled on the host, element by element.

    Before: in the body, `%1 = sequence.at(%list, %n)` and, as the next state,
        `%2 = sequence.insert(%list, %element)`
    After:  in the body, `%1 = gather(%rows, %n, axis=0)` and, as the next state,
        `%2 = concatenate(%rows, reshape(%element), axis=0)`; after the loop, `sequence.split`

    Preconditions: none. Non-goals: sequences that may be empty where they are read or joined, and
    erasures of the only element at a position that only the run knows: errors of the run.
    """

    opt_level: ClassVar[int] = 1
    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        nodes = post_order([function for _, function in module], into_functions=True)
        if not any(_is_rows(node) for node in nodes) and not any(
            isinstance(node, While) and list(_lists_of(node)) for node in nodes
        ):
            return module
        return _Stacker().rewrite_module(module)


class _Stack(NamedTuple):
    """A tensor in place of a sequence, the least number of elements, and whether the loop takes
    elements away until the run finds that there are none.
    """

    rows: Expr
    least: int
    shrinks: bool = False


class _List(NamedTuple):
    """A state that is a sequence, the type of an element, the elements before the first iteration,
    and how many each iteration adds.
    """

    state: int
    element: TensorType
    first: Sequence[Expr]
    added: int

    @property
    def least(self) -> int:
        """The least number of elements before an iteration."""
        return len(self.first) if self.added >= 0 else 0


class _Stacker(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        # The tensors of sequences, by the id of their `sequence.split`.
        self._stacks: dict[int, _Stack] = {}

    def rewrite_control(self, old: Expr, new: Expr) -> Expr:
        found = list(_lists_of(new)) if isinstance(new, While) else []
        return self._stacking(new, found) if found else new  # type: ignore[arg-type]

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if _is_rows(new):
            rows = new.args[0]
            self._stacks.setdefault(new.id, _Stack(rows, _least(rows.tensor.shape[0])))
            return new
        stack = self._stacks.get(new.args[0].id) if new.args else None
        if stack is None or not isinstance(new.op, Op):
            return new
        with self.covers(old, new.args[0]):
            if _changes(new, stack.rows.tensor, stack.least, stack.shrinks):
                changed, step = _changed(new, stack.rows)
                return self._split(changed, max(stack.least + step, 0), stack.shrinks)
            return _read(new, stack) if _is_read(new, stack.least, stack.shrinks) else new

    def _split(self, rows: Expr, least: int, shrinks: bool = False) -> Expr:
        """Returns the sequence of a tensor's rows."""
        made = get_op("sequence.split")(rows, axis=0, keepdims=False)
        self._stacks[made.id] = _Stack(rows, least, shrinks)
        return made

    def _stacking(self, loop: While, lists: Sequence[_List]) -> Tuple:
        """Returns the results of a loop that carries tensors in place of sequences."""
        by_state = {found.state: found for found in lists}
        sizes = {n: unknown_dim() if f.added else len(f.first) for n, f in by_state.items()}
        body, after = self._over(loop.body, by_state, sizes)
        assert isinstance(after, Tuple)
        fields = [
            self._stacks[f.id].rows if n in by_state else f for n, f in enumerate(after.fields)
        ]
        cond, holds = self._over(loop.cond, by_state, sizes)
        init = [
            _first(by_state[n]) if n in by_state else first for n, first in enumerate(loop.init)
        ]
        made = While(
            Function(cond, holds, loop.cond.attrs),
            Function(body, Tuple(fields), loop.body.attrs),
            init,
            scans=loop.scans,
            trips=loop.trips,
        )
        results: list[Expr] = [TupleGetItem(made, n) for n in range(len(fields))]
        for n, found in by_state.items():
            results[n] = self._split(results[n], found.least)
        return Tuple(results)

    def _over(
        self, function: Function, lists: Mapping[int, _List], sizes: Mapping[int, Dim]
    ) -> tuple[list[Var], Expr]:
        """Returns parameters and body of a function of a loop over tensors, which have as many rows
        as `sizes` says.
        """
        params = list(function.params)
        for n, found in lists.items():
            old = params[n + 1]
            shape = (sizes[n], *found.element.shape)
            rows = params[n + 1] = Var(old.name, found.element.with_(shape=shape))
            self.memo[old.id] = self._split(rows, found.least, found.added < 0)
        for node in post_order(function.body):
            if not isinstance(node, Var):
                self.memo.pop(node.id, None)  # unchanged so far
            self._visit(node)
        return params, self.memo[function.body.id]


def _is_rows(node: Expr) -> bool:
    """Whether an expression is the sequence of a tensor's rows."""
    if not isinstance(node, Call) or node.op_name != "sequence.split" or len(node.args) != 1:
        return False
    rows, attrs = node.args[0].type, node.attrs
    is_first = isinstance(rows, TensorType) and rows.rank > 0 and attrs.axis % rows.rank == 0
    return is_first and not attrs.keepdims and is_native(rows)


def _least(size: Dim) -> int:
    """Returns a lower bound of a tensor's number of rows: 0, 1 or 2."""
    names = size.symbols if isinstance(size, SymDim) else ()
    from_zero = substitute(size, {n: SymDim.symbol(n, 0) for n in names if n.startswith("?")})
    return sum(at_least(from_zero, low) for low in (1, 2))


def _row(element: Expr) -> Expr:
    return get_op("reshape")(element, shape=(1, *element.tensor.shape))


def _first(found: _List) -> Expr:
    """Returns the elements before the first iteration as a tensor."""
    rows = stacked(found.first) if found.first else None
    if rows is None:
        shape = (0, *(size for size in found.element.shape if isinstance(size, int)))
        return Constant(np.zeros(shape, to_numpy(found.element.dtype)))
    return rows


def _is_read(call: Expr, least: int, shrinks: bool = False) -> bool:
    """Whether a call reads a sequence of at least so many elements as a tensor can be read."""
    if not isinstance(call, Call) or not isinstance(call.op, Op):
        return False
    match call.op.name:
        case "sequence.length":
            return True
        case "sequence.at":
            return least > 0 or shrinks
        case "sequence.concat":
            return least > 0
    return False


def _read(call: Call, stack: _Stack) -> Expr:
    """Returns what a call reads from the rows of a sequence."""
    rows, attrs = stack.rows, call.attrs
    match call.op_name:
        case "sequence.length":
            zero = Constant(np.asarray(0, np.int64))
            return get_op("gather")(get_op("shape_of")(rows), zero, axis=0)
        case "sequence.at":
            place = get_op("reshape")(call.args[1], shape=())
            return get_op("gather")(rows, place, axis=0)
    rank = rows.tensor.rank
    if attrs.new_axis:
        return axis_moved(rows, 0, attrs.axis % rank)
    return rows_joined(rows, 0, attrs.axis % (rank - 1))


def _changes(call: Expr, row: TensorType, least: int, shrinks: bool) -> bool:
    """Whether a call inserts a tensor in a sequence of at least so many elements, or erases one.
    `row` is the type of an element, or of some as rows. Only the first or the last element may be
    the only one that is erased, since no kernel checks a position if no element is left.
    """
    if not isinstance(call, Call) or not isinstance(call.op, Op):
        return False
    match call.op.name, len(call.args):
        case ("sequence.insert", count):
            shape = row.shape if row.rank == call.args[1].tensor.rank else row.shape[1:]
            at_end = count == 2 or _is_front(call.args[2])
            return call.args[1].type == row.with_(shape=shape) and (at_end or least > 0)
        case ("sequence.erase", count):
            at_end = count == 1 or _is_end(call.args[1])
            return least > 1 or (at_end and (shrinks or least > 0))
    return False


def _is_end(position: Expr) -> bool:
    """Whether a position is known to be that of the first or the last element."""
    place = known_value(position)
    return place is not None and place.dtype != object and place.reshape(-1).tolist() in ([0], [-1])


def _is_front(position: Expr) -> bool:
    """Whether a position is known to be 0."""
    place = known_value(position)
    return place is not None and place.dtype != object and not place.any()


def _changed(call: Call, rows: Expr) -> tuple[Expr, int]:
    """Returns the rows of a changed sequence, and how many there are more."""
    place: Expr = Constant(np.asarray(-1, np.int64))
    if call.op_name == "sequence.erase":
        if len(call.args) > 1:
            place = get_op("reshape")(call.args[1], shape=())
        return get_op("erase_row")(rows, place), -1
    row = _row(call.args[1])
    if len(call.args) == 2:
        return get_op("concatenate")(rows, row, axis=0), 1
    if _is_front(call.args[2]):
        return get_op("concatenate")(row, rows, axis=0), 1
    place = get_op("reshape")(call.args[2], shape=())
    return get_op("insert_row")(rows, call.args[1], place), 1


def _lists_of(loop: While) -> Iterator[_List]:
    """Yields the states that are sequences of one shape, which the loop reads and changes as a
    tensor can be read and changed.
    """
    body = loop.body.body
    if not isinstance(body, Tuple):
        return
    uses: dict[int, list[Expr]] = {}
    order = post_order([loop.body, loop.cond])
    for node in order:
        for child in node.children if not isinstance(node, Function) else ():
            uses.setdefault(child.id, []).append(node)
    for state, first in enumerate(loop.init):
        param = loop.body.params[1 + state]
        elements = elements_of(first)
        if elements is None or not isinstance(param.type, SequenceType):
            continue
        element = param.type.element
        is_static = isinstance(element, TensorType) and element.is_static and is_native(element)
        if not is_static or any(value.type != element for value in elements):
            continue
        assert isinstance(element, TensorType)
        for shrinks in (False, True):
            found = _found(loop, state, element, elements, order, uses, shrinks)
            if found is not None:
                yield found
                break


def _found(
    loop: While,
    state: int,
    element: TensorType,
    elements: Sequence[Expr],
    order: Sequence[Expr],
    uses: Mapping[int, Sequence[Expr]],
    shrinks: bool,
) -> _List | None:
    """Returns a state whose elements have this type; None if it stays a sequence. `order` has the
    nodes of the loop, and `uses` the readers of each.
    """
    least = 0 if shrinks else len(elements)
    param, body = loop.body.params[1 + state], loop.body.body
    assert isinstance(body, Tuple)
    versions = _versions(order, param, element, least, shrinks)
    added = versions.get(body.fields[state].id)
    if added is None or (added < 0) != shrinks:
        return None
    readers = [(n, least) for n in uses.get(loop.cond.params[1 + state].id, ())]
    for version, step in versions.items():
        readers += [
            (node, least + step)
            for node in uses.get(version, ())
            if node.id not in versions and node is not body
        ]
    shown = sum(value.id in versions for value in body.fields)
    if shown != 1 or not all(_is_read(n, most, shrinks) for n, most in readers):
        return None
    return _List(state, element, elements, added)


def _versions(
    order: Sequence[Expr], param: Var, element: TensorType, least: int, shrinks: bool
) -> dict[int, int]:
    """Returns the sequences that come from a parameter by insertions and erasures, by id, each with
    the number of elements that it has more.
    """
    found = {param.id: 0}
    for node in order:
        step = found.get(node.args[0].id) if isinstance(node, Call) and node.args else None
        if step is not None and _changes(node, element, least + step, shrinks):
            assert isinstance(node, Call)
            found[node.id] = step + (1 if node.op_name == "sequence.insert" else -1)
    return found
