"""Typed ONNX graphs, grown one operator at a time; the facts of each value are known throughout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    helper,
    numpy_helper,
)
from onnx.defs import OpSchema

from fuzz.choices import Choices
from fuzz.dtypes import EVERYDAY, WEIGHTS, Array, elem_type, filled, name_of, numpy_of

Shape = tuple[int | None, ...]

SIZES: Final = (2, 1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33)
"""Around the widths of vectors. Zero is drawn apart."""
MOST_ELEMENTS: Final = 3000
USER_DOMAIN: Final = "fuzz.ops"
LOCAL_DOMAIN: Final = "fuzz.local"
IR_VERSION: Final = 11


class Unfit(Exception):
    """The available values do not suit the operator; another one is drawn."""


@dataclass(frozen=True)
class Value:
    """A value of the graph. Sizes are None where only a run tells; `array` is what a leaf holds.

    `type` is given for what is no tensor.
    """

    name: str
    dtype: int
    shape: Shape
    array: Array | None = field(default=None, compare=False)
    type: TypeProto | None = field(default=None, compare=False)

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_known(self) -> bool:
        """Whether it is a tensor of which all sizes are known."""
        return self.type is None and None not in self.shape

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, all of which is known."""
        assert self.is_known
        return self.shape  # type: ignore[return-value]

    @property
    def proto(self) -> TypeProto:
        """Its type as ONNX writes it."""
        if self.type is not None:
            return self.type
        made: TypeProto = helper.make_tensor_type_proto(self.dtype, list(self.shape))
        return made


@dataclass
class Scope:
    """The main graph or one inside it."""

    parent: Scope | None = None
    nodes: list[NodeProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    leaves: list[tuple[Value, TensorProto]] = field(default_factory=list)

    def visible(self) -> Iterator[Value]:
        """Yields the values that may be used here, the newest first."""
        yield from reversed(self.values)
        if self.parent is not None:
            yield from self.parent.visible()


class Grower:
    """Grows one graph. Operators' entries draw from it what they need (see `operators`)."""

    def __init__(self, choices: Choices, opset: int) -> None:
        self.choices = choices
        self.opsets: dict[str, int] = {"": opset}
        self.top = self.scope = Scope()
        self.inputs: list[Value] = []
        self.functions: dict[tuple[str, str], FunctionProto] = {}
        self._count = 0
        self._schema: OpSchema | None = None
        self.sizes = [choices.pick(SIZES) for _ in range(3)]
        self.odd_values = choices.one_in(12)
        self.zero_sizes = choices.one_in(20)

    # --- the operator at hand ---

    @property
    def schema(self) -> OpSchema:
        """The ONNX schema of the current operator; users' operators have none."""
        assert self._schema is not None
        return self._schema

    @schema.setter
    def schema(self, schema: OpSchema | None) -> None:
        self._schema = schema

    def version(self, domain: str) -> int:
        """Returns the opset version of a domain in the model."""
        if domain not in self.opsets:
            self.opsets[domain] = onnx.defs.onnx_opset_version() if not domain else _NEWEST[domain]
        return self.opsets[domain]

    def takes(self, name: str) -> bool:
        """Whether the operator at hand has an input of this name (and not an attribute)."""
        return any(i.name == name for i in self.schema.inputs)

    def dtypes(self, parameter: str, among: Iterable[int] | None = None) -> list[int]:
        """Returns the element types that the schema allows for a type parameter (`T`)."""
        for constraint in self.schema.type_constraints:
            if constraint.type_param_str == parameter:
                found = [elem_type(t) for t in constraint.allowed_type_strs]
                return [t for t in found if t is not None and t in (among or EVERYDAY)]
        exact = elem_type(parameter)
        assert exact is not None, (self.schema.name, parameter)
        return [exact]

    def parameter(self, index: int) -> str:
        """Returns the type parameter of an input."""
        return str(self.schema.inputs[min(index, len(self.schema.inputs) - 1)].type_str)

    # --- values ---

    def fresh(self, prefix: str = "v") -> str:
        """Returns a name that nothing has."""
        self._count += 1
        return f"{prefix}{self._count}"

    def size(self) -> int:
        """Returns a size; few different ones in a graph, so that values fit each other."""
        if self.zero_sizes and self.choices.one_in(6):
            return 0
        if self.choices.one_in(4):
            return self.choices.pick(SIZES)
        return self.choices.pick(self.sizes)

    def shape(self, low: int = 0, high: int = 4) -> tuple[int, ...]:
        """Returns a shape with so many axes that is not too large."""
        ranks = [r for r in (2, 1, 3, 4, 0, 5) if low <= r <= high]
        found: list[int] = []
        for _ in range(self.choices.pick(ranks or [low])):
            size = self.size()
            while size > 3 and np.prod(found, initial=1) * size > MOST_ELEMENTS:
                size //= 2
            found.append(size)
        return tuple(found)

    def dtype(self, allowed: Sequence[int]) -> int:
        """Returns one of the element types, the common ones more often."""
        if not allowed:
            raise Unfit
        weighted = [t for t in allowed for _ in range(WEIGHTS.get(t, 1))]
        return self.choices.pick(weighted)

    def leaf(
        self, dtype: int, shape: tuple[int, ...], style: str = "usual", constant: bool | None = None
    ) -> Value:
        """Returns a new input or constant. Inside a body it is a constant of the body's.

        `constant` says which, where it is not left to chance.
        """
        if style == "usual" and self.odd_values and self.choices.one_in(4):
            style = "wild"
        array = filled(dtype, shape, style, self.choices.integer(0, 2**16))
        return self.known(array, dtype, constant)

    def known(self, array: Array, dtype: int, constant: bool | None = None) -> Value:
        """Returns a new input or constant with these values."""
        way = self.choices.integer(0, 9)
        if constant is None:
            constant = way >= 5
        value = Value(self.fresh("x" if not constant else "c"), dtype, array.shape, array)
        if not constant and self.scope is self.top:
            self.inputs.append(value)
        elif way == 9 and self.opsets[""] >= 9:
            node = helper.make_node("Constant", [], [value.name], value=_tensor(value))
            self.scope.nodes.append(node)
        else:
            self.scope.leaves.append((value, _tensor(value)))
        self.scope.values.append(value)
        return value

    def ints(self, values: Sequence[int], constant: bool | None = None) -> Value:
        """Returns an operand of 64-bit integers: mostly a constant, now and then an input."""
        if constant is None:
            constant = not self.choices.one_in(8)
        return self.known(
            np.array(values, np.int64).reshape(len(values)), TensorProto.INT64, constant
        )

    def scalar(self, value: Any, dtype: int, constant: bool | None = True) -> Value:
        """Returns an operand without axes."""
        return self.known(np.asarray(value, numpy_of(dtype)), dtype, constant)

    def operand(
        self,
        dtypes: Sequence[int],
        ranks: tuple[int, int] = (0, 5),
        style: str = "usual",
        nonempty: bool = False,
        known: bool = True,
    ) -> Value:
        """Returns a suitable value: mostly an existing one, or a new leaf.

        `style` other than usual requests a leaf with such values. `known` requests known sizes.
        """
        low, high = ranks
        if style == "usual" and not self.choices.one_in(5):
            fitting = [
                v
                for v in self.scope.visible()
                if v.type is None
                and v.dtype in dtypes
                and low <= v.rank <= high
                and (v.is_known or not known)
                and not (nonempty and 0 in v.shape)
                and not v.name.startswith("c")
            ]
            if fitting:
                return self.choices.pick(fitting[:6])
        shape = self.shape(low, min(high, 4) if low <= 4 else high)
        if nonempty:
            shape = tuple(max(1, s) for s in shape)
        return self.leaf(self.dtype(dtypes), shape, style)

    def tensor(
        self,
        index: int = 0,
        ranks: tuple[int, int] = (0, 5),
        among: Iterable[int] | None = None,
        style: str = "usual",
        nonempty: bool = False,
    ) -> Value:
        """Returns an operand for an input of the operator at hand, of a type its schema allows."""
        allowed = self.dtypes(self.parameter(index), among)
        return self.operand(allowed, ranks, style, nonempty)

    def like(self, x: Value, style: str = "usual") -> Value:
        """Returns a value of the same type: an old one, `x` itself, or a new one."""
        if style == "usual":
            same = [
                v
                for v in self.scope.visible()
                if (v.dtype, v.shape, v.type) == (x.dtype, x.shape, None)
            ]
            if same and not self.choices.one_in(4):
                return self.choices.pick(same[:6])
        return self.leaf(x.dtype, x.sizes, style)

    def partner(self, x: Value, style: str = "usual", dtype: int | None = None) -> Value:
        """Returns a value that broadcasts with `x`, to at most the usual size."""
        dtype = dtype or x.dtype
        way = self.choices.integer(0, 4)
        if way == 0 and dtype == x.dtype:
            return self.like(x, style)
        if way <= 2:
            found = [
                v
                for v in self.scope.visible()
                if v.dtype == dtype
                and v.is_known
                and style == "usual"
                and _joined(v.sizes, x.sizes) is not None
            ]
            if found:
                return self.choices.pick(found[:6])
        sizes = [s if self.choices.integer(0, 2) else 1 for s in x.sizes]
        sizes = sizes[self.choices.integer(0, len(sizes)) :]
        if self.choices.one_in(10):
            sizes = [
                self.size() if s == 1 and x.sizes[len(x.sizes) - len(sizes) + n] == 1 else s
                for n, s in enumerate(sizes)
            ]
        if self.choices.one_in(15) and x.rank < 4:
            sizes = [2, *[1] * (x.rank - len(sizes)), *sizes]
        joined = _joined(tuple(sizes), x.sizes)
        if joined is None or np.prod(joined) > MOST_ELEMENTS:
            raise Unfit
        return self.leaf(dtype, tuple(sizes), style)

    # --- attributes ---

    def axis(self, rank: int) -> int:
        """Returns an axis, from the front or from the back.

        Errors: Unfit without axes.
        """
        if rank == 0:
            raise Unfit
        return (
            self.choices.integer(0, 2 * rank - 1) - rank
            if self.choices.integer(0, 1)
            else (self.choices.integer(0, rank - 1))
        )

    def axes(self, rank: int, low: int = 0) -> list[int]:
        """Returns different axes in some order, each from the front or from the back."""
        found = self.choices.some(range(rank), min(low, rank), rank)
        return [a - rank if self.choices.one_in(3) else a for a in found]

    # --- growing ---

    def emit(
        self,
        op: str,
        inputs: Sequence[Value | None],
        outputs: int = 1,
        domain: str = "",
        types: Sequence[TypeProto] | None = None,
        **attributes: Any,
    ) -> list[Value]:
        """Adds a node and returns its results, with the types of ONNX's inference (or `types`).

        Attributes that are None are omitted. There may be fewer `outputs` than the operator has.

        Errors: Unfit if ONNX rejects the node, or a result would be too large.
        """
        arguments = list(inputs)
        while arguments and arguments[-1] is None:
            arguments.pop()
        given = {k: v for k, v in attributes.items() if v is not None and self._has(op, domain, k)}
        names = [self.fresh() for _ in range(outputs)]
        node = helper.make_node(
            op, [v.name if v else "" for v in arguments], names,
            name=self.fresh(f"{op.lower()}_"), domain=domain,
        )  # fmt: skip
        for key, value in given.items():
            kind = AttributeProto.INTS if value == [] else None
            node.attribute.append(helper.make_attribute(key, value, attr_type=kind))
        if types is None:
            types = self._infer(node, [v for v in arguments if v])
        results = [_value(n, t) for n, t in zip(names, types, strict=False)]
        for value in results:
            if value.is_known and np.prod(value.sizes) > MOST_ELEMENTS:
                raise Unfit
        self.scope.nodes.append(node)
        self.scope.values.extend(results)
        return results

    def _has(self, op: str, domain: str, attribute: str) -> bool:
        """Whether this version of an operator has an attribute; the newest has all asked for."""
        if domain in (USER_DOMAIN, LOCAL_DOMAIN):
            return True
        schema = onnx.defs.get_schema(op, self.version(domain), domain)
        there = attribute in schema.attributes
        assert there or attribute in _OLD_ATTRIBUTES or self.version("") < 20, (op, attribute)
        return there

    def _infer(self, node: NodeProto, arguments: Sequence[Value]) -> list[TypeProto]:
        version = self.version(node.domain)
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        data = {
            v.name: _tensor(v)
            for v in arguments
            if v.array is not None and v.array.size <= 64 and v.array.dtype != object
        }
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema, node, {v.name: v.proto for v in arguments}, data,
                opset_imports=[helper.make_opsetid(d, n) for d, n in self.opsets.items()],
                ir_version=IR_VERSION,
            )  # fmt: skip
        except Exception as error:
            raise Unfit(str(error)) from None
        if any(n and n not in found for n in node.output):
            raise Unfit("no type")
        return [found[n] for n in node.output]

    def mark(self) -> tuple[Any, ...]:
        """Returns the state of the graph, for `back_to`."""
        s = self.scope
        counts = (len(s.nodes), len(s.values), len(s.leaves), len(self.inputs))
        return (s, *counts, dict(self.functions), dict(self.opsets))

    def back_to(self, mark: tuple[Any, ...]) -> None:
        """Removes everything added since."""
        self.scope, nodes, values, leaves, inputs, self.functions, self.opsets = mark
        del self.scope.nodes[nodes:], self.scope.values[values:]
        del self.scope.leaves[leaves:], self.inputs[inputs:]

    # --- the result ---

    def body(self, scope: Scope, inputs: Sequence[Value], outputs: Sequence[Value]) -> GraphProto:
        """Returns a scope as the graph of an attribute."""
        made: GraphProto = helper.make_graph(
            scope.nodes, self.fresh("body"), [_info(v) for v in inputs],
            [_info(v) for v in outputs], [t for _, t in scope.leaves],
        )  # fmt: skip
        return made

    def model(self, outputs: Sequence[Value], symbols: Mapping[int, str]) -> ModelProto:
        """Returns the model; `symbols` are names for sizes of its inputs."""
        graph = helper.make_graph(
            self.top.nodes,
            "fuzz",
            [_info(v, symbols) for v in self.inputs],
            [_info(v, unsized=bool(symbols)) for v in outputs],
            [t for _, t in self.top.leaves],
        )
        opsets = [helper.make_opsetid(d, n) for d, n in self.opsets.items()]
        made: ModelProto = helper.make_model(
            graph, opset_imports=opsets, functions=list(self.functions.values()),
            ir_version=IR_VERSION,
        )  # fmt: skip
        return made

    @property
    def feeds(self) -> dict[str, Array]:
        """Values for the inputs."""
        return {v.name: v.array for v in self.inputs if v.array is not None}


_OLD_ATTRIBUTES: Final = ("axes", "split", "k", "pads", "min", "max", "value", "scales")
"""Attributes that newer versions take as inputs."""

_NEWEST: Final = {
    **{s.domain: 0 for s in onnx.defs.get_all_schemas_with_history()},
    "ai.onnx.ml": 5,
    "ai.onnx.preview": 1,
    "ai.onnx.preview.training": 1,
    USER_DOMAIN: 1,
    LOCAL_DOMAIN: 1,
}


def _joined(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return tuple(np.broadcast_shapes(a, b))
    except ValueError:
        return None


def _tensor(value: Value) -> TensorProto:
    assert value.array is not None
    made: TensorProto
    if value.dtype == TensorProto.STRING:
        flat = [s.encode() for s in value.array.reshape(-1)]
        made = helper.make_tensor(value.name, value.dtype, value.array.shape, flat)
    else:
        made = numpy_helper.from_array(value.array, value.name)
    return made


def _value(name: str, proto: TypeProto) -> Value:
    if proto.HasField("tensor_type"):
        tensor = proto.tensor_type
        if not tensor.HasField("shape"):
            return Value(name, tensor.elem_type, (None,), type=proto)
        sizes = tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
        return Value(name, tensor.elem_type, sizes)
    return Value(name, 0, (), type=proto)


def _info(
    value: Value, symbols: Mapping[int, str] | None = None, unsized: bool = False
) -> onnx.ValueInfoProto:
    if value.type is not None:
        return helper.make_value_info(value.name, value.type)
    shape = [None if unsized or s is None else (symbols or {}).get(s, s) for s in value.shape]
    return helper.make_tensor_value_info(value.name, value.dtype, shape)


def describe(value: Value) -> str:
    """Returns a value's type in a few letters."""
    return f"{name_of(value.dtype)}{list(value.shape)}" if value.type is None else "no tensor"
