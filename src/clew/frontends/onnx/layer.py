"""A converter's view of a layer: inputs as expressions, attributes with defaults, known values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto
from onnx.helper import get_attribute_value

from clew.frontends.builder import GraphBuilder
from clew.frontends.captures import Captures
from clew.frontends.names import display
from clew.frontends.onnx.file.external import ExternalData
from clew.frontends.onnx.file.tensors import to_array
from clew.frontends.onnx.schemas import CustomSchema, Schema
from clew.frontends.onnx.scope import Scope
from clew.ir.dims import Dim, SymDim, at_least, is_unknown, substitute
from clew.ir.expr import Expr, TupleGetItem
from clew.ir.types import TensorType, TupleType
from clew.ops.registry import Op
from clew.support.errors import Hint, ModelError, UnsupportedError

INVALID: Final = "the model is invalid: export it again"
FIX_SHAPES: Final = Hint(
    "give fixed input shapes (inputs={...}), or fold it when exporting",
    cli="give fixed input shapes (--shape NAME=1,3,224,224), or fold it when exporting",
    page="give the input shapes when compiling it, or fold it when exporting",
)


class Importing(Protocol):
    """The import that contains a layer, as converters see it.

    `changing_sizes` are sizes of loop states that change between iterations: by layer, as state and
    axis. `without_ones` is whether no named size is 1.
    """

    builder: GraphBuilder
    external: ExternalData
    changing_sizes: dict[str, set[tuple[int, int]]]
    without_ones: bool

    @property
    def channel_block(self) -> int:
        """The number of channels in a block of the layout of `com.microsoft.nchwc`."""
        ...

    def import_subgraph(
        self, layer: Layer, name: str, inputs: Sequence[Expr], captures: Captures | None
    ) -> list[Expr]:
        """Returns the outputs of a layer's graph attribute. See `Layer.subgraph`."""
        ...


class Layer:
    """One node of the model at import.

    `version` is the operator's version, `outputs` names the results in use, and `waits` is set if
    the layer needs data-dependent sizes. Methods that read the node raise M012 if it violates the
    operator's schema.
    """

    def __init__(
        self,
        name: str,
        op_type: str,
        schema: Schema,
        attributes: Mapping[str, AttributeProto],
        inputs: Sequence[Expr | None],
        outputs: Sequence[str],
        importer: Importing,
        scope: Scope,
    ) -> None:
        self.name = name
        self.op_type = op_type
        self.version: int = schema.since_version
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.importer = importer
        self.builder = importer.builder
        self.scope = scope
        self.schema = schema
        self.given = attributes
        self.waits = False
        self._check()

    def _check(self) -> None:
        schema, given = self.schema, len(self.inputs)
        if not schema.min_input <= given <= schema.max_input:
            raise self.wrong(f"takes {schema.min_input} to {schema.max_input} inputs, got {given}")
        if len(self.outputs) > schema.max_output:
            raise self.wrong(f"has at most {schema.max_output} outputs, got {len(self.outputs)}")
        if isinstance(schema, CustomSchema):
            return
        for name, attribute in self.given.items():
            if name not in schema.attributes:
                raise self.wrong(f"has no attribute {display(name)!r} in version {self.version}")
            wanted = schema.attributes[name].type.value
            if attribute.type not in (0, wanted):
                raise self.wrong(f"attribute {name!r} has the wrong type")

    def wrong(self, what: str) -> ModelError:
        """Returns the error for a node that violates its operator's schema."""
        return ModelError("M012", f"{display(self.op_type)} {what}", hint=INVALID)

    def unsupported(self, what: str, hint: str = "") -> UnsupportedError:
        """Returns the error for a valid but unsupported form of the operator."""
        return UnsupportedError("U005", f"{display(self.op_type)}: {what}", hint=hint)

    def unknown(self, what: str) -> UnsupportedError:
        """Returns the error for a value that is unknown before the run."""
        return UnsupportedError(
            "U002", f"{self.op_type}: {what} is unknown before the run", hint=FIX_SHAPES
        )

    def open_size(self, what: str, *sizes: Dim) -> UnsupportedError:
        """Returns the error for facts that depend on sizes of the call, or of the data: the layer
        then waits for the run.
        """
        if any(map(is_unknown, sizes)):
            self.waits = True
        return self.unknown(what)

    def is_above_one(self, size: Dim) -> bool:
        """Whether a size is certainly more than 1."""
        if self.importer.without_ones and isinstance(size, SymDim):
            own = (name for name in size.symbols if not name.startswith("?"))
            size = substitute(size, {name: SymDim.symbol(name) + 1 for name in own})
        return at_least(size, 2)

    # --- inputs ---

    def with_inputs(self, *inputs: Expr | None) -> Layer:
        """Returns the layer with other inputs, to pass to another converter."""
        made = copy(self)
        made.inputs = inputs
        return made

    def input(self, index: int) -> Expr:
        """Returns a required input."""
        found = self.optional(index)
        if found is None:
            raise self.wrong(f"needs input {index}")
        return found

    def optional(self, index: int) -> Expr | None:
        """Returns an input, None if the model omits it."""
        return self.inputs[index] if index < len(self.inputs) else None

    def present(self) -> list[Expr]:
        """Returns all inputs of a variadic operator."""
        return [self.input(n) for n in range(len(self.inputs))]

    def type(self, index: int) -> TensorType:
        """Returns an input's type.

        Errors: U004 if it is not a tensor.
        """
        return self.type_of(self.input(index))

    def type_of(self, expr: Expr) -> TensorType:
        """Returns an expression's tensor type.

        Errors: U004 if it is not a tensor.
        """
        if not isinstance(expr.type, TensorType):
            raise UnsupportedError("U004", f"{self.op_type} of a {expr.type}")
        return expr.type

    def rank(self, index: int = 0) -> int:
        """Returns the number of axes of an input."""
        return self.type(index).rank

    def wants(self, output: int) -> bool:
        """Whether the model uses an output."""
        return output < len(self.outputs) and bool(self.outputs[output])

    # --- values that decide types ---

    def known(self, index: int) -> NDArray[Any] | None:
        """Returns an input's value if it is known before the run."""
        expr = self.optional(index)
        return None if expr is None else self.known_value(expr)

    def known_value(self, expr: Expr) -> NDArray[Any] | None:
        """Returns the value of an expression if it is known before the run."""
        found = self.builder.known.get(expr)
        if found is None or found.dtype == object:
            self.builder.asked.unknown(expr)
        return found

    def value(self, index: int, what: str) -> NDArray[Any]:
        """Returns an input's value.

        Errors: U002 if it is known only at run time.
        """
        self.input(index)
        found = self.known(index)
        if found is None:
            raise self.unknown(what)
        return found

    def known_one(self, index: int) -> Any:
        """Returns the single element of an input, None if the input is absent or unknown.

        Errors: M012 for another number of elements.
        """
        found = self.known(index)
        if found is None:
            return None
        if found.size != 1:
            raise self.wrong(f"takes one number as input {index}, got {found.size}")
        return found.reshape(-1).tolist()[0]

    def one(self, index: int, what: str) -> Any:
        """Returns the single element of an input: a number, or a symbolic dimension.

        Errors: U002 if it is known only at run time, M012 for another number of elements.
        """
        self.value(index, what)
        return self.known_one(index)

    def one_int(self, index: int, what: str) -> int:
        """Returns the single element of an input as a plain int.

        Errors: U002 if it is known only at run time, M012 for another number of elements.
        """
        self.one(index, what)
        return self.numbers(index, what)[0]

    def dims(self, index: int, what: str) -> tuple[Dim, ...]:
        """Returns the sizes in an input: ints, or symbolic dimensions.

        Errors: U002 if they are known only at run time.
        """
        return tuple(
            item if isinstance(item, SymDim) else int(item)
            for item in self.value(index, what).reshape(-1).tolist()
        )

    def numbers(self, index: int, what: str) -> tuple[int, ...]:
        """Returns the elements of an input as plain ints.

        Errors: U002 if they are known only at run time.
        """
        dims = self.dims(index, what)
        for dim in dims:
            if isinstance(dim, SymDim):
                raise UnsupportedError("U002", f"{self.op_type}: {what} depends on the size {dim}")
        return dims  # type: ignore[return-value]

    def ints_of(self, name: str, index: int) -> tuple[int, ...] | None:
        """Returns a list that is an attribute in old versions and an input in new ones; None if
        neither.

        Errors: U002 if the input is known only at run time.
        """
        if name in self.schema.attributes:
            given: tuple[int, ...] | None = self.integers(name, None)
            return given
        return None if self.optional(index) is None else self.numbers(index, name)

    # --- attributes ---

    def has(self, name: str) -> bool:
        """Whether the model sets an attribute."""
        return name in self.given

    def _attribute(self, name: str) -> AttributeProto | None:
        found: AttributeProto | None = self.given.get(name)
        if found is None and name in self.schema.attributes:
            default = self.schema.attributes[name]
            if default.default_value.type:
                value: AttributeProto = default.default_value
                return value
            if default.required:
                raise self.wrong(f"needs the attribute {name!r}")
        return found

    def integer(self, name: str, default: int | None = None) -> int:
        """Returns an integer attribute: the given one, the schema's default, or `default`."""
        found = self._attribute(name)
        if found is not None:
            return int(found.i)
        if default is None:
            raise self.wrong(f"needs the attribute {name!r}")
        return default

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Returns an integer attribute that is true or false."""
        return bool(self.integer(name, None if default is None else int(default)))

    def real(self, name: str, default: float | None = None) -> float:
        """Returns a float attribute."""
        found = self._attribute(name)
        if found is None and default is None:
            raise self.wrong(f"needs the attribute {name!r}")
        value = np.float32(default if found is None else found.f)
        if any(x is not None and _is_wide(x) for x in self.inputs):
            return float(value)  # attributes are f32, which shows in f64
        # Use the shortest decimal of the same f32: 0.1 instead of 0.10000000149.
        return float(str(value))

    def text(self, name: str, default: str = "") -> str:
        """Returns a text attribute."""
        found = self._attribute(name)
        return default if found is None else found.s.decode(errors="replace")

    def integers(self, name: str, default: Sequence[int] | None = ()) -> Any:
        """Returns a list of integers as a tuple, or the default."""
        found = self._attribute(name)
        if found is not None:
            return tuple(found.ints)
        return default if default is None else tuple(default)

    def reals(self, name: str, default: Sequence[float] = ()) -> tuple[float, ...]:
        """Returns a list of floats."""
        found = self._attribute(name)
        return tuple(default if found is None else found.floats)

    def texts(self, name: str, default: Sequence[str] = ()) -> tuple[str, ...]:
        """Returns a list of texts."""
        found = self._attribute(name)
        if found is None:
            return tuple(default)
        strings = list(found.strings)  # millions for a forest, of which few are distinct
        known = {s: s.decode(errors="replace") for s in set(strings)}
        return tuple(map(known.__getitem__, strings))

    def tensor(self, name: str) -> NDArray[Any]:
        """Returns a tensor attribute. Errors: those of `to_array`."""
        found = self._attribute(name)
        if found is None:
            raise self.wrong(f"needs the attribute {name!r}")
        return to_array(found.t, self.importer.external, self.builder.budgets)

    def attribute(self, name: str) -> AttributeProto | None:
        """Returns an attribute as stored in the model."""
        return self._attribute(name)

    def axis(self, name: str = "axis", *, rank: int | None = None) -> int:
        """Returns an axis attribute, counted from the front."""
        return self.positive(self.integer(name), self.rank() if rank is None else rank)

    def positive(self, axis: int, rank: int) -> int:
        """Returns an axis counted from the front."""
        if not -rank <= axis < rank:
            raise self.wrong(f"axis {axis} is out of range for rank {rank}")
        return axis % rank

    # --- operators that a user declared ---

    def call_of(self, op: Op) -> list[Expr]:
        """Returns the results of the operator that the user bound this one to: inputs by position,
        attributes by name.

        Errors: U005 for an omitted input before others, or an attribute that is not a number, a
        string or a list of these; those of the operator.
        """
        given = list(self.inputs)
        while given and given[-1] is None:
            given.pop()
        if None in given:
            raise self.unsupported(f"input {given.index(None)} is omitted")
        values = {name: self._plain(name) for name in self.given}
        call = op(*(g for g in given if g is not None), **values)
        if isinstance(call.type, TupleType):
            return [TupleGetItem(call, n) for n in range(len(call.type.fields))]
        return [call]

    def _plain(self, name: str) -> Any:
        value = get_attribute_value(self.given[name])
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if isinstance(value, (int, float)):
            return value
        if isinstance(value, (list, tuple)) and all(
            isinstance(v, (int, float, bytes)) for v in value
        ):
            return tuple(v.decode(errors="replace") if isinstance(v, bytes) else v for v in value)
        raise self.unsupported(f"attribute {name!r} is not a number, a string or a list of these")

    # --- subgraphs ---

    def graph(self, name: str) -> GraphProto:
        """Returns a graph attribute."""
        found = self._attribute(name)
        if found is None:
            raise self.wrong(f"needs the attribute {name!r}")
        return found.g

    def subgraph(
        self, name: str, inputs: Sequence[Expr], captures: Captures | None = None
    ) -> list[Expr]:
        """Returns the outputs of a graph attribute applied to `inputs`.

        With `captures`, outside values become its parameters; without, they are used directly.
        """
        return self.importer.import_subgraph(self, name, inputs, captures)


def _is_wide(x: Expr) -> bool:
    return isinstance(x.type, TensorType) and x.type.dtype == "f64"
