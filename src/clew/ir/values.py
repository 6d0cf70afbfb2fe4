"""Values known before the run: evaluates small tensors that determine shapes, symbolically.

Chains such as `Shape -> Gather -> Concat -> Reshape` determine types. They are evaluated over
dimensions: an element is an int, a bool, a float, or a symbolic `Dim`. Constants and values
computed from constants run through the operators' NumPy references. If a symbolic dimension is
involved, data movement moves it, and other operators apply their symbolic rule (`ir.symbolic`), if
they have one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from clew.ir.dims import SizeError, SymDim, check_size
from clew.ir.expr import (
    ArgRef,
    Attrs,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Tuple,
    TupleGetItem,
    Var,
)
from clew.ir.types import TensorType, TupleType, Type, to_numpy
from clew.support.errors import GraphTypeError

Array: TypeAlias = NDArray[Any]
Value: TypeAlias = "Array | tuple[Value, ...] | None"

MAX_ELEMENTS: Final = 4096
"""Tensors with more elements than this do not determine shapes."""


class Runnable(Protocol):
    """The part of an operator's interface used here."""

    traits: Any
    compute: Any
    reference_rule: Any
    host: bool

    def run_reference(self, args: Sequence[Array], attrs: Mapping[str, Any]) -> Any:
        """Returns the result on NumPy arrays."""
        ...

    def moved_operands(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[int, ...]:
        """Returns the positions of the operands whose elements the result consists of, if it is
        data movement.
        """
        ...


class KnownValues:
    """Values of expressions, cached. `alias` maps a function's parameter to an outer expression."""

    def __init__(self) -> None:
        self._found: WeakKeyDictionary[Expr, Value] = WeakKeyDictionary()
        self._aliases: WeakKeyDictionary[Expr, Expr] = WeakKeyDictionary()

    def alias(self, parameter: Var, value: Expr) -> None:
        """Records that a parameter always holds the value of an outer expression."""
        self._aliases[parameter] = value

    def assume(self, expr: Expr, value: Array) -> None:
        """Records the value of an expression, whose elements may be symbolic (dtype object)."""
        self._found[expr] = value

    def stands_for(self, parameter: Var) -> Expr | None:
        """Returns the outer expression whose value a parameter always holds."""
        return self._aliases.get(parameter)

    def get(self, expr: Expr) -> Array | None:
        """Returns the value, or None if unknown. Its dtype is object if an element is symbolic."""
        value = self._value(expr)
        assert not isinstance(value, tuple)
        return value

    def _value(self, expr: Expr) -> Value:
        stack = [expr]
        while stack:
            node = stack[-1]
            if node in self._found:
                stack.pop()
                continue
            waits_for = self._missing(node)
            if waits_for is None:
                self._found[node] = self._evaluate(node)
                stack.pop()
            else:
                stack.append(waits_for)
        return self._found[expr]

    def _missing(self, node: Expr) -> Expr | None:
        """Returns the first operand to evaluate before `node`, or None if `node` can be evaluated
        now.
        """
        for operand in self._operands(node):
            if operand not in self._found:
                return operand
            if self._found[operand] is None:
                return None
        return None

    def _operands(self, node: Expr) -> Sequence[Expr]:
        if not _is_small(node.type):
            return ()
        match node:
            case Var():
                alias = self._aliases.get(node)
                return () if alias is None else (alias,)
            case Call(op=Function() | GlobalVar()):
                return ()
            case Call():
                return () if _reads_sizes(node) else node.args
            case Tuple():
                return node.fields
            case TupleGetItem():
                return (node.value,)
        return ()

    def _evaluate(self, node: Expr) -> Value:
        if not _is_small(node.type):
            return None
        values = [self._found.get(operand) for operand in self._operands(node)]
        if any(value is None for value in values):
            return None
        match node:
            case Constant():
                return node.data
            case Var():
                return values[0] if values else None
            case Tuple():
                return tuple(values)
            case TupleGetItem():
                (fields,) = values
                assert isinstance(fields, tuple)
                return fields[node.index]
            case Call() if not isinstance(node.op, (Function, GlobalVar)):
                return _call(node, values)  # type: ignore[arg-type]
        return None


def is_symbolic(value: Array) -> bool:
    """Whether an element is symbolic. Other arrays of objects hold text."""
    return value.dtype == object and any(isinstance(item, SymDim) for item in value.flat)


def known_value(expr: Expr) -> Array | None:
    """Returns the known elements of a small tensor before the run, or None if unknown."""
    return _shared.get(expr)


_shared: Final = KnownValues()


def _is_small(type_: Type) -> bool:
    if isinstance(type_, TupleType):
        return all(_is_small(f) for f in type_.fields)
    if not isinstance(type_, TensorType):
        return False
    size = type_.size
    return isinstance(size, int) and size <= MAX_ELEMENTS


def _call(call: Call, values: Sequence[Array]) -> Value:
    op: Runnable = call.op  # type: ignore[assignment]
    if any(isinstance(value, tuple) for value in values):
        return None
    if _reads_sizes(call):
        return _packed(op.traits.symbolic(call, ()), call)
    symbolic = any(map(is_symbolic, values))
    open_attrs = any(_holds_symbol(v) for v in call.attrs.values())
    if not symbolic and not open_attrs:
        return _run(op, values, call)
    moved = () if open_attrs else op.moved_operands([a.tensor for a in call.args], call.attrs)
    if moved:
        return _moved(op, moved, values, call)
    rule = op.traits.symbolic
    try:
        result = rule(call, values) if rule is not None else None
        if result is not None:
            for item in np.asarray(result, dtype=object).flat:
                check_size(item)
    except SizeError:  # too long an expression: the run computes it
        return None
    return None if result is None else _packed(result, call)


def _run(op: Runnable, values: Sequence[Array], call: Call) -> Value:
    runs = op.compute is not None or op.reference_rule is not None
    if op.host and not values:  # no inputs: the result may be random
        return None
    if not runs or any(_holds_symbol(v) for v in call.attrs.values()):
        return None
    with np.errstate(all="ignore"):
        try:
            result = op.run_reference(values, call.attrs)
        except (ArithmeticError, IndexError):  # the run will raise the error
            return None
    if isinstance(result, tuple):
        return tuple(np.asarray(r) for r in result)
    return np.asarray(result)


def _holds_symbol(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(_holds_symbol(v) for v in value)
    return isinstance(value, (SymDim, ArgRef))


def _reads_sizes(call: Call) -> bool:
    """Whether a call's value depends only on its operands' types."""
    traits = getattr(call.op, "traits", None)
    return traits is not None and traits.sizes == "read" and traits.symbolic is not None


def _packed(items: Any, call: Call) -> Array:
    """Returns items as an array: in the dtype of the call's type if all are numbers, else as
    objects.
    """
    flat = list(items.reshape(-1)) if isinstance(items, np.ndarray) else list(items)
    array = np.empty(len(flat), dtype=object)
    array[:] = flat
    return _settled(array, call.tensor).reshape(call.tensor.concrete)


def _settled(array: Array, type_: Type) -> Array:
    """Returns elements in the dtype of their type, unless one is symbolic."""
    assert isinstance(type_, TensorType)
    return array if is_symbolic(array) else array.astype(to_numpy(type_.dtype))


# --- rules for symbolic elements ------------------------------------------------------------------


def _moved(op: Runnable, moved: Sequence[int], values: Sequence[Array], call: Call) -> Value:
    """Returns the result of data movement, run on numbers that stand for elements. Operands that
    are not `moved` (conditions, indices) must not be symbolic.
    """
    if any(is_symbolic(v) and n not in moved for n, v in enumerate(values)):
        return None
    elements: list[Any] = []
    given = list(values)
    for n in moved:
        first = len(elements)
        elements.extend(values[n].astype(object).reshape(-1))
        given[n] = np.arange(first, len(elements)).reshape(values[n].shape)
    try:
        result = _run(op, given, call)
    except GraphTypeError:  # an operator for floats only
        return None
    held = np.empty(len(elements), dtype=object)
    held[:] = elements
    return _looked_up(held, result, call.type)


def _looked_up(held: Array, numbers: Value, type_: Type) -> Value:
    """Returns the elements with these numbers."""
    if isinstance(numbers, tuple):
        assert isinstance(type_, TupleType)
        pairs = zip(numbers, type_.fields, strict=True)
        return tuple(_looked_up(held, part, field) for part, field in pairs)
    if numbers is None:
        return None
    return _settled(held[numbers.reshape(-1)].reshape(numbers.shape), type_)
