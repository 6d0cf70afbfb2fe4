"""FlattenSequences: has loops carry sequences of tensors of different sizes as two tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from clew.ir.dims import Dim, is_unknown, product, unknown_dim
from clew.ir.expr import Call, Constant, Expr, Function, If, Tuple, TupleGetItem, Var, While
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import SequenceType, TensorType, Type, is_native, to_numpy
from clew.ir.values import known_value
from clew.ir.visit import post_order
from clew.ops.data.flat_sequences import shape_of_elements
from clew.ops.data.structure import elements_of
from clew.ops.registry import Op, get_op
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class FlattenSequences(Pass):
    """Replaces a loop's state that is a sequence by two tensors: the rows of all elements, one
    after another, and the sizes of each element (`ops.data.flat_sequences`). Sequences that come
    from such loops, or from a tensor that is split, are read likewise. Kernels can read and write
    the tensors; a sequence is handled on the host, element by element.

    Before: in the body, `%1 = sequence.at(%list, %n)` and, as the next state,
        `%2 = sequence.insert(%list, %element)`
    After:  in the body, `%1 = flat.at(%rows, flat.place(%sizes, %n), room(...))` and, as the next
        states, `concatenate(%rows, %element)` and `concatenate(%sizes, ...)`; after the loop,
        `sequence.unpack`

    A branch that inserts an element, or erases one, becomes an insertion of no rows, or an erasure
    of none, where its condition does not hold.

    Preconditions: StackSequences has run, which needs no sizes for elements of one static shape.
    Non-goals: loops with elements of unknown rank or without axes; other branches that read a
    state, such as those that compute the element.
    """

    opt_level: ClassVar[int] = 1
    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        nodes = post_order([function for _, function in module], into_functions=True)
        if not any(isinstance(node.type, SequenceType) for node in nodes):
            return module
        return _Flattener().rewrite_module(module)


class _Flat(NamedTuple):
    """The rows and sizes of a sequence, and the sizes of the first axes of all its elements: -1 for
    those that differ.
    """

    rows: Expr
    sizes: Expr
    shape: tuple[int, ...]

    @property
    def row(self) -> tuple[Dim, ...]:
        """The shape of a row."""
        return self.rows.tensor.shape[1:]


class _Change(NamedTuple):
    """What a branch does to a sequence: the operator and its other operands; "" for nothing."""

    sequence: Expr
    name: str
    rest: Sequence[Expr]


class _Flattener(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        # The flat form of sequences, by the id of the sequence.
        self._flat: dict[int, _Flat] = {}

    def rewrite_control(self, old: Expr, new: Expr) -> Expr:
        if isinstance(new, If):
            return self._branched(new)
        if not isinstance(new, While):
            return new
        types = [param.type for param in new.body.params[1:]]
        states = [n for n, type_ in enumerate(types) if isinstance(type_, SequenceType)]
        # A loop with another sequence runs on the host, where elements are read from lists faster.
        if not states or any(shape_of_elements(types[n]) is None for n in states):
            return new
        return self._flattened(new, states) or new

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if not isinstance(new.op, Op) or not new.args:
            return new
        with self.covers(old, new.args[0]):
            if new.op.name == "sequence.split":
                self._split(new)
            if old.id in self._flat and new.op.name == "sequence.unpack":
                rows, sizes = new.args  # of an inner loop
                self._flat[new.id] = _Flat(rows, sizes, self._flat[old.id].shape)
            flat = self._flat.get(new.args[0].id)
            return new if flat is None else self._read(new, flat)

    # --- sequences ---

    def _split(self, call: Call) -> None:
        """Notes the flat form of a tensor's pieces along axis 0."""
        x = call.args[0]
        shape = shape_of_elements(call.type)
        if len(call.args) < 2 or shape is None or len(shape) > 1 or not is_native(x.type):
            return
        if call.attrs.axis % x.tensor.rank == 0:
            sizes = get_op("sequence.split_sizes")(x, call.args[1])
            self._flat[call.id] = _Flat(x, sizes, shape)

    def _read(self, call: Call, flat: _Flat) -> Expr:
        """Returns what a call reads from a sequence; notes the flat form of a changed one."""
        assert isinstance(call.op, Op)
        match call.op.name:
            case "sequence.length":
                return _length(flat)
            case "sequence.at":
                return self._at(flat, call.args[1])
            case "sequence.pack" if len(flat.shape) == call.attrs.axes:
                return Tuple([flat.rows, flat.sizes])
            case "sequence.concat":
                attrs = call.attrs
                is_rows = len(flat.shape) == 1 and not attrs.new_axis
                if is_rows and attrs.axis % flat.rows.tensor.rank == 0:
                    return get_op("sequence.joined")(flat.rows, flat.sizes)
            case "sequence.insert":
                found = _inserted(flat, *call.args[1:])
                if found is not None:
                    self._flat[call.id] = found
            case "sequence.erase":
                self._flat[call.id] = _erased(flat, *call.args[1:])
        return call

    def _at(self, flat: _Flat, position: Expr) -> Expr:
        place = get_op("flat.place")(flat.sizes, _scalar(position))
        rooms = []
        for n, size in enumerate(flat.shape):
            if size < 0:
                own = get_op("gather")(place, Constant(np.asarray(2 + n)), axis=0)
                rooms.append(get_op("room")(own))
        return get_op("flat.at")(flat.rows, place, *rooms, shape=flat.shape)

    def _unpacked(self, flat: _Flat) -> Expr:
        made = get_op("sequence.unpack")(flat.rows, flat.sizes)
        self._flat[made.id] = flat
        return made

    # --- branches ---

    def _branched(self, node: If) -> Expr:
        """Notes the flat form of the sequences that a branch may change."""
        body, noted = node.then.body, False
        count = len(body.fields) if isinstance(body, Tuple) else 0
        fields = [TupleGetItem(node, n) for n in range(count)]
        for n, field in enumerate(fields):
            if isinstance(field.type, SequenceType):
                flat = self._chosen(node, n)
                if flat is not None:
                    self._flat[field.id] = flat
                    noted = True
        return Tuple(fields) if noted else node

    def _chosen(self, node: If, number: int) -> _Flat | None:
        """Returns the flat form of a result; None if the branches do more than change a sequence
        or leave it as it is.
        """
        changes = [_change(function, node.args, number) for function in (node.then, node.orelse)]
        cond = _scalar(node.cond)
        match changes:
            case [_Change() as own, _Change(name="") as other]:
                pass
            case [_Change() as other, _Change() as own] if not other.name:
                cond = get_op("logical_not")(cond)
            case _:
                return None
        flat = self._flat.get(own.sequence.id)
        if flat is None or own.sequence is not other.sequence:
            return None
        match own.name:
            case "sequence.insert":
                element, *position = own.rest
                return _inserted(flat, element, position[0] if position else None, cond)
            case "sequence.erase":
                return _erased_if(cond, flat, own.rest[0] if own.rest else None)
        return flat

    # --- loops ---

    def _first(self, first: Expr, type_: Type) -> _Flat:
        """Returns the flat form of a state before the loop."""
        found, shape = self._flat.get(first.id), shape_of_elements(type_)
        assert shape is not None
        if found is not None and len(found.shape) == len(shape):
            return found
        assert isinstance(type_, SequenceType)
        assert isinstance(type_.element, TensorType)
        row = tuple(size for size in type_.element.shape[len(shape) :] if isinstance(size, int))
        elements = elements_of(first)
        if elements is not None and not elements:
            return _Flat(
                Constant(np.zeros((0, *row), to_numpy(type_.element.dtype))),
                Constant(np.zeros((0, len(shape)), np.int64)),
                shape,
            )
        if elements is not None and all(_is_of(e.type, type_.element) for e in elements):
            rows = [_rows_of(e, len(shape)) for e in elements]
            sizes = [_sizes_of(e, len(shape)) for e in elements]
            return _Flat(_joined(rows), _joined(sizes), shape)
        dtype = type_.element.dtype
        packed = get_op("sequence.pack")(first, axes=len(shape), row=row, dtype=dtype)
        return _Flat(TupleGetItem(packed, 0), TupleGetItem(packed, 1), shape)

    def _flattened(self, loop: While, states: Sequence[int]) -> Expr | None:
        """Returns the results of a loop that carries states in their flat form; None if one of them
        must stay a sequence.
        """
        firsts = {n: self._first(loop.init[n], loop.body.params[1 + n].type) for n in states}
        body, after, own = self._over(loop.body, firsts)
        assert isinstance(after, Tuple)
        cond, holds, tests = self._over(loop.cond, firsts)
        fields: list[Expr] = []
        if any(after.fields[n].id not in self._flat for n in states):
            return None
        for n, field in enumerate(after.fields):
            flat = self._flat[field.id] if n in firsts else None
            fields += [field] if flat is None else [flat.rows, flat.sizes]
        left = {n.id for n in post_order([*fields, holds])}
        if any(own[n].id in left or tests[n].id in left for n in states):
            return None
        init: list[Expr] = []
        by_list = {loop.init[n].id: flat for n, flat in firsts.items()}
        for n, first in enumerate(loop.init):
            flat = firsts.get(n)
            init += [_counted(first, by_list)] if flat is None else [flat.rows, flat.sizes]
        made = While(
            Function(cond, holds, loop.cond.attrs),
            Function(body, Tuple(fields), loop.body.attrs),
            init,
            scans=loop.scans,
            trips=loop.trips,
        )
        results: list[Expr] = []
        place = 0
        for n in range(len(after.fields)):
            parts = [TupleGetItem(made, place + k) for k in range(1 + (n in firsts))]
            place += len(parts)
            if n in firsts:
                results.append(self._unpacked(_Flat(parts[0], parts[1], firsts[n].shape)))
            else:
                results.append(parts[0])
        return Tuple(results)

    def _over(
        self, function: Function, firsts: dict[int, _Flat]
    ) -> tuple[list[Var], Expr, dict[int, Expr]]:
        """Returns parameters and body of a function of a loop over flat sequences, and the sequence
        of each state, which the body must not read.
        """
        params, own = [function.params[0]], dict[int, Expr]()
        for n, old in enumerate(function.params[1:]):
            if n not in firsts:
                self.memo[old.id] = old
                params.append(old)
                continue
            first = firsts[n]
            rows = Var(old.name, first.rows.tensor.with_(shape=(unknown_dim(), *first.row)))
            axes = len(first.shape)
            sizes = Var(f"{old.name}.sizes", TensorType((unknown_dim(), axes), "i64"))
            params += [rows, sizes]
            own[n] = self.memo[old.id] = self._unpacked(_Flat(rows, sizes, first.shape))
        for node in post_order(function.body):
            if not isinstance(node, Var):
                self.memo.pop(node.id, None)
            self._visit(node)
        return params, self.memo[function.body.id], own


def _is_of(type_: Type, element: TensorType) -> bool:
    """Whether a tensor may be an element of a sequence."""
    return (
        isinstance(type_, TensorType)
        and type_.rank == element.rank
        and all(a == b or is_unknown(b) for a, b in zip(type_.shape, element.shape, strict=True))
    )


def _rows_of(element: Expr, axes: int) -> Expr:
    """Returns an element as rows."""
    shape = element.tensor.shape
    if axes == 1:
        return element
    return get_op("reshape")(element, shape=(product(shape[:axes]), *shape[axes:]))


def _sizes_of(element: Expr, axes: int) -> Expr:
    """Returns the sizes of the first axes of an element as the sizes of a flat sequence."""
    sizes = element.tensor.shape[:axes]
    if all(isinstance(size, int) for size in sizes):
        return Constant(np.array([sizes], np.int64))
    shape: Expr = get_op("shape_of")(element)
    if element.tensor.rank > axes:
        shape = get_op("slice")(shape, begin=(0,), end=(axes,), axes=(0,))
    return get_op("reshape")(shape, shape=(1, axes))


def _joined(parts: Sequence[Expr]) -> Expr:
    return parts[0] if len(parts) == 1 else get_op("concatenate")(*parts, axis=0)


def _length(flat: _Flat) -> Expr:
    return _count(flat.sizes)


def _count(rows: Expr) -> Expr:
    """Returns the number of rows."""
    return get_op("gather")(get_op("shape_of")(rows), _number(0), axis=0)


def _counted(first: Expr, by_list: Mapping[int, _Flat]) -> Expr:
    """Returns an initial state; the length of a list that becomes flat before the same loop is read
    from its sizes.
    """
    match first:
        case Call(op=Op(name="sequence.length"), args=[source]) if source.id in by_list:
            return _length(by_list[source.id])
    return first


def _scalar(position: Expr) -> Expr:
    return get_op("reshape")(position, shape=()) if position.tensor.rank else position


def _change(function: Function, args: Sequence[Expr], number: int) -> _Change | None:
    """Returns the change of a sequence that is result `number` of a branch; None if the branch
    computes anything else for it.
    """
    given = dict(zip([param.id for param in function.params], args, strict=True))
    assert isinstance(function.body, Tuple)
    result = function.body.fields[number]
    operands = result.args if isinstance(result, Call) else (result,)
    found = [e if isinstance(e, Constant) else given.get(e.id) for e in operands]
    outside = [e for e in found if e is not None]
    if len(outside) < len(found):
        return None
    match result:
        case Call(op=Op(name="sequence.insert" | "sequence.erase" as name)):
            return _Change(outside[0], name, outside[1:])
        case Var():
            return _Change(outside[0], "", ())
    return None


def _inserted(
    flat: _Flat, element: Expr, position: Expr | None = None, cond: Expr | None = None
) -> _Flat | None:
    """Returns a sequence with an element inserted, if a condition holds; None if the element does
    not fit its type.
    """
    axes = len(flat.shape)
    shape = element.tensor.shape if isinstance(element.type, TensorType) else ()
    if len(shape) != axes + len(flat.row) or shape[axes:] != flat.row:
        return None
    if any(size not in (-1, own) for size, own in zip(flat.shape, shape, strict=False)):
        return None
    new, sizes = _rows_of(element, axes), _sizes_of(element, axes)
    if cond is not None:
        new, sizes = _if(cond, new), _if(cond, sizes)
    if position is None:
        return _Flat(_joined([flat.rows, new]), _joined([flat.sizes, sizes]), flat.shape)
    known = known_value(position)
    if known is not None and known.dtype != object and not known.any():
        return _Flat(_joined([new, flat.rows]), _joined([sizes, flat.sizes]), flat.shape)
    at = _scalar(position)
    if cond is not None:
        at = get_op("where")(cond, at, Constant(np.zeros((), to_numpy(at.tensor.dtype))))
    place = get_op("flat.place")(flat.sizes, at, behind=True)
    rows = get_op("flat.insert")(flat.rows, new, place)
    front = _front(place)
    if cond is None:
        size = get_op("reshape")(sizes, shape=(axes,))
        return _Flat(rows, get_op("insert_row")(flat.sizes, size, front), flat.shape)
    row = _place(front, front, _number(1))
    return _Flat(rows, get_op("flat.insert")(flat.sizes, sizes, row), flat.shape)


def _number(value: int) -> Constant:
    return Constant(np.asarray(value, np.int64))


def _place(*numbers: Expr) -> Expr:
    """Returns scalars as the place of an element."""
    parts = [get_op("reshape")(number, shape=(1,)) for number in numbers]
    return get_op("concatenate")(*parts, axis=0)


def _if(cond: Expr, rows: Expr) -> Expr:
    """Returns all rows if a condition holds, otherwise none."""
    size = rows.tensor.shape[0]
    own = _number(size) if isinstance(size, int) else _count(rows)
    count = get_op("where")(cond, own, _number(0))
    place = _place(_number(0), _number(0), count)
    return get_op("flat.at")(rows, place, get_op("room")(count), shape=(-1,))


def _front(place: Expr) -> Expr:
    """Returns the position of an element from its place, which has been checked."""
    return get_op("gather")(place, Constant(np.asarray(0)), axis=0)


def _erased(flat: _Flat, position: Expr | None = None) -> _Flat:
    """Returns a sequence without an element."""
    at = Constant(np.asarray(-1, np.int64)) if position is None else _scalar(position)
    place = get_op("flat.place")(flat.sizes, at)
    rows = _without(flat.rows, place)
    return _Flat(rows, get_op("erase_row")(flat.sizes, _front(place)), flat.shape)


def _erased_if(cond: Expr, flat: _Flat, position: Expr | None = None) -> _Flat:
    """Returns a sequence without an element if a condition holds. Otherwise erases the place behind
    the last element, which has no rows.
    """
    where, equal = get_op("where"), get_op("equal")
    count = _length(flat)
    at: Expr = _number(-1)
    if position is not None:
        at = get_op("cast")(_scalar(position), dtype="i64")
        # If the condition holds, that place is out of range.
        beyond = get_op("add")(count, _number(1))
        at = where(equal(at, count), beyond, at)
    place = get_op("flat.place")(flat.sizes, where(cond, at, count), behind=True)
    front = _front(place)
    row = _place(front, front, where(cond, _number(1), _number(0)))
    return _Flat(_without(flat.rows, place), _without(flat.sizes, row), flat.shape)


def _without(rows: Expr, place: Expr) -> Expr:
    """Returns rows without those of a place."""
    room = get_op("room")(get_op("flat.rest")(rows, place))
    return get_op("flat.erase")(rows, place, room)
