"""Grows random ONNX models whose sizes data decide.

A size is a number, or a *token*: what stands for it in all values that have it. Floats hold small
whole numbers, so that every engine computes the same ones. The other generator (`fuzz.graph`) knows
the sizes of all values, and draws many more operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from fuzz.choices import Choices
from fuzz.graph import IR_VERSION, Unfit

Size = int | str
F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

_OPSET: Final = 20
_MOST_ELEMENTS: Final = 1 << 16
LARGE: Final = 1 << 16


@dataclass(frozen=True)
class Value:
    """A value: its element type and sizes. Whole numbers are from 0 to `most`, or indices of an
    axis of size `below`; floats are from `-most` to `most`. Results of roundings are `rough`. With
    `items`, it is a sequence, of at least so many tensors.
    """

    name: str
    dtype: int
    shape: tuple[Size, ...]
    most: int = 8
    below: Size | None = None
    rough: bool = False
    items: int = -1

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def proto(self) -> TypeProto:
        """Its type as ONNX writes it, without the sizes that are tokens."""
        shape = [size if isinstance(size, int) else None for size in self.shape]
        made: TypeProto = helper.make_tensor_type_proto(self.dtype, shape)
        return helper.make_sequence_type_proto(made) if self.items >= 0 else made


@dataclass
class _Scope:
    parent: _Scope | None = None
    nodes: list[NodeProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def visible(self) -> Iterator[Value]:
        """Yields the values that may be used here, the newest first."""
        yield from reversed(self.values)
        if self.parent is not None:
            yield from self.parent.visible()


Draw = Callable[["Builder"], object]


class Builder:
    """Grows one model."""

    def __init__(self, choices: Choices, table: Sequence[Draw]) -> None:
        """`table` has what adds an operator, or several."""
        self.choices = choices
        self._table = table
        self.top = self.scope = _Scope()
        self.inputs: list[Value] = []
        self.most: dict[str, int] = {}  # by token
        self._constants: list[TensorProto] = []
        self._count = 0
        self.depth = 0

    # --- values ---

    def fresh(self, prefix: str = "v") -> str:
        """Returns a name that nothing has."""
        self._count += 1
        return f"{prefix}{self._count}"

    def token(self, most: int) -> str:
        """Returns a new size, which is at most a number."""
        made = self.fresh("n")
        self.most[made] = min(most, LARGE)
        return made

    def most_of(self, size: Size) -> int:
        """Returns the largest number that a size can be."""
        return size if isinstance(size, int) else self.most[size]

    def elements(self, shape: Sequence[Size]) -> int:
        """Returns the most elements of a shape."""
        return int(np.prod([max(1, self.most_of(size)) for size in shape], initial=1))

    def const(self, array: Any, dtype: type = np.int64) -> Value:
        """Returns a constant."""
        data: Any = np.asarray(array, dtype)
        name = self.fresh("c")
        self._constants.append(numpy_helper.from_array(data, name))
        kind = {np.int64: I64, np.float32: F32, np.bool_: BOOL}[dtype]
        most = int(np.abs(data.astype(np.float64)).max(initial=0))
        return Value(name, kind, data.shape, most)

    def emit(self, op: str, inputs: Sequence[Value | None], *results: Value, **attrs: Any) -> Value:
        """Adds a node; `results` have no names yet. Returns the first.

        Errors: Unfit for too many elements.
        """
        made = [replace(result, name=self.fresh()) for result in results]
        if any(self.elements(value.shape) > _MOST_ELEMENTS for value in made):
            raise Unfit
        names = [value.name if value else "" for value in inputs]
        node = helper.make_node(
            op, names, [v.name for v in made], self.fresh(f"{op.lower()}_"), **attrs
        )
        self.scope.nodes.append(node)
        self.scope.values.extend(made)
        self.last = made
        return made[0]

    def find(self, fits: Callable[[Value], bool], among: int = 8) -> Value:
        """Returns one of the newest values that fit. Errors: Unfit without any."""
        found = [v for v in self.scope.visible() if fits(v)][:among]
        if not found:
            raise Unfit
        return self.choices.pick(found)

    def tensor(self, dtype: int = F32, low: int = 1, high: int = 3) -> Value:
        """Returns a tensor of a type."""
        return self.find(
            lambda v: v.items < 0 and v.dtype == dtype and low <= v.rank <= high and not v.rough
        )

    def small(self, x: Value) -> Value:
        """Returns floats that are small enough for sums of many."""
        if x.most <= 100:
            return x
        bounds = self.const(-50, np.float32), self.const(50, np.float32)
        return self.emit("Clip", [x, *bounds], replace(x, most=50))

    # --- sizes as values ---

    def sized(self) -> Value:
        """Returns a scalar, 0 or more, that may be a size."""
        way = self.choices.integer(0, 6)
        if way == 0:
            found: Value | None = self.find(
                lambda v: v.items < 0 and v.dtype == I64 and v.shape == () and v.most <= 200
            )
        elif way <= 2:
            mask = self.tensor(BOOL)
            ones = self.emit("Cast", [mask], replace(mask, dtype=I64, most=1), to=I64)
            most = self.elements(mask.shape)
            found = self.emit("ReduceSum", [ones], Value("", I64, (), most), keepdims=0)
        elif way <= 4:
            x = self.find(lambda v: v.items < 0 and v.rank > 0)
            axis = self.choices.integer(0, x.rank - 1)
            shape = self.emit("Shape", [x], Value("", I64, (x.rank,), LARGE))
            most = self.most_of(x.shape[axis])
            place = self.const(axis)
            found = self.emit("Gather", [shape, place], Value("", I64, (), most), axis=0)
        else:
            w = self.find(
                lambda v: v.items < 0 and v.dtype == I64 and v.rank == 1 and v.most <= 200
            )
            more = self.emit(
                "Concat", [w, self.const([0])],
                replace(w, shape=(self.token(self.most_of(w.shape[0]) + 1),), below=None), axis=0,
            )  # fmt: skip
            found = self.emit("ReduceMax", [more], Value("", I64, (), w.most), keepdims=0)
        assert found is not None
        return self._computed(found)

    def _computed(self, s: Value) -> Value:
        """Returns a size computed from another one."""
        match self.choices.integer(0, 6):
            case 1:
                return self.emit("Add", [s, self.const(1)], replace(s, most=s.most + 1))
            case 2:
                return self.emit("Div", [s, self.const(2)], replace(s, most=s.most // 2))
            case 3:
                less = self.emit("Sub", [s, self.const(3)], s)
                return self.emit("Max", [less, self.const(0)], s)
            case 4:
                twice = self.emit("Mul", [s, self.const(2)], replace(s, most=2 * s.most))
                return self.emit("Add", [twice, self.const(1)], replace(s, most=2 * s.most + 1))
        return s

    def within(self, size: Size, x: Value, axis: int) -> Value:
        """Returns a computed size that is at most that of an axis."""
        s = self.sized()
        shape = self.emit("Shape", [x], Value("", I64, (x.rank,), LARGE))
        whole = self.emit(
            "Gather", [shape, self.const(axis)], Value("", I64, (), self.most_of(size)), axis=0
        )
        return self.emit("Min", [s, whole], replace(whole, most=min(s.most, whole.most)))

    def vector(self, *sizes: Value | int) -> Value:
        """Returns sizes as a vector."""
        parts = []
        for size in sizes:
            if isinstance(size, int):
                parts.append(self.const([size]))
            else:
                one = Value("", I64, (1,), size.most)
                parts.append(self.emit("Reshape", [size, self.const([1])], one))
        if len(parts) == 1:
            return parts[0]
        return self.emit("Concat", parts, Value("", I64, (len(parts),), LARGE), axis=0)

    def condition(self) -> Value:
        """Returns a boolean scalar."""
        way = self.choices.integer(0, 3)
        if way == 0:
            return self.find(lambda v: v.items < 0 and v.dtype == BOOL and v.shape == ())
        if way == 1:
            return self.const(bool(self.choices.integer(0, 1)), np.bool_)
        s = self.sized()
        limit = self.const(self.choices.pick((3, 0, 1, 20, 64)))
        return self.emit(self.choices.pick(("Greater", "Less")), [s, limit], Value("", BOOL, ()))

    # --- bodies ---

    def inside(self) -> _Scope:
        """Begins a body; returns the scope outside. Errors: Unfit if it is too deep."""
        if self.depth >= 2:
            raise Unfit
        outer, self.scope = self.scope, _Scope(self.scope)
        self.depth += 1
        return outer

    def body(self, outer: _Scope, inputs: Sequence[Value], outputs: Sequence[Value]) -> GraphProto:
        """Ends a body."""
        made: GraphProto = helper.make_graph(
            self.scope.nodes, self.fresh("body"), [_info(v) for v in inputs],
            [_info(v) for v in outputs],
        )  # fmt: skip
        self.scope = outer
        self.depth -= 1
        return made

    def grow(self, count: int) -> list[str]:
        """Adds some operators."""
        drawn: list[str] = []
        for _ in range(3 * count):
            if len(drawn) == count:
                break
            make = self.choices.pick(self._table)
            scope, depth = self.scope, self.depth
            nodes, values = len(scope.nodes), len(scope.values)
            try:
                make(self)
                drawn.append(make.__name__)
            except Unfit:
                self.scope, self.depth = scope, depth
                del scope.nodes[nodes:], scope.values[values:]
        return drawn

    def model(self, outputs: Sequence[Value]) -> ModelProto:
        """Returns the model."""
        inputs = [
            helper.make_tensor_value_info(v.name, v.dtype, list(v.shape)) for v in self.inputs
        ]
        graph = helper.make_graph(
            self.top.nodes, "sizes", inputs, [_info(v) for v in outputs], self._constants
        )
        made: ModelProto = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=IR_VERSION
        )
        return made


def _info(value: Value) -> onnx.ValueInfoProto:
    return helper.make_value_info(value.name, value.proto)
