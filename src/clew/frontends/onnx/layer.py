"""A converter's view of a node: attributes with the defaults of its schema, and subgraphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto
from onnx.helper import get_attribute_value

from clew.frontends import layer as file_layer
from clew.frontends.builder import GraphBuilder
from clew.frontends.lowering.captures import Captures
from clew.frontends.names import display
from clew.frontends.onnx.file.external import ExternalData
from clew.frontends.onnx.file.tensors import to_array
from clew.frontends.onnx.schemas import CustomSchema, Schema
from clew.frontends.onnx.scope import Scope
from clew.ir.expr import Expr
from clew.ir.types import TensorType
from clew.ops.registry import Op


class Importing(Protocol):
    """The import that contains a layer, as converters see it.

    `changing_sizes` are sizes of loop states that change between iterations: by layer, as state and
    axis.
    """

    builder: GraphBuilder
    external: ExternalData
    changing_sizes: dict[str, set[tuple[int, int]]]

    def stated_shape(self, name: str) -> tuple[str, ...] | None:
        """Returns the shape that the model states for one of its outputs, each size as a text; None
        if there is none.
        """
        ...

    @property
    def channel_block(self) -> int:
        """The number of channels in a block of the layout of `com.microsoft.nchwc`."""
        ...

    def import_subgraph(
        self, layer: Layer, name: str, inputs: Sequence[Expr], captures: Captures | None
    ) -> list[Expr]:
        """Returns the outputs of a layer's graph attribute. See `Layer.subgraph`."""
        ...


class Layer(file_layer.Layer):
    """One node of the model at import, checked against the schema of its operator."""

    def __init__(
        self,
        name: str,
        op: str,
        schema: Schema,
        attributes: Mapping[str, AttributeProto],
        inputs: Sequence[Expr | None],
        outputs: Sequence[str],
        importer: Importing,
        scope: Scope,
    ) -> None:
        version: int = schema.since_version
        super().__init__(name, op, inputs, outputs, attributes, importer.builder, version)
        self.importer = importer
        self.scope = scope
        self.schema = schema
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

    def stated_shape(self, output: int) -> tuple[str, ...] | None:
        """Returns the shape that the model states for an output of the layer that is one of its
        own, each size as a text; None if there is none.
        """
        if not self.wants(output) or self.scope.within is not None:
            return None
        return self.importer.stated_shape(self.outputs[output])

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
        return self.results_of(op, [g for g in given if g is not None], values)

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
