"""Graphs of layers that are named after the modules that own their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np

from clew.frontends.builder import GraphBuilder
from clew.frontends.building import call, cast
from clew.frontends.names import display
from clew.ir.expr import Constant, Expr
from clew.ir.types import TensorType, is_float
from clew.support.dataclass import dataclass
from clew.support.errors import ModelError
from clew.trace.span import Source

COMPUTED: Final = "f32"


class Weight(Protocol):
    """A weight in a file: numbers, or codes with their scales."""

    @property
    def type(self) -> TensorType:
        """The type of its numbers."""
        ...

    def constants(self, name: str) -> tuple[Constant, ...]:
        """Returns its parameters. Those with axes have the same number of rows."""
        ...

    def joined(self, parts: Sequence[Expr]) -> Expr:
        """Returns numbers from the parameters, or from the same rows of each of them."""
        ...


@dataclass(frozen=True)
class Origin:
    """The source of the weights: the name of the frontend, the place as messages call it, and the
    hint if a weight is missing.
    """

    frontend: str
    place: str
    hint: str


class WeightedGraph:
    """Builds a module from named weights.

    Errors: M072 for a weight that is missing or has another shape; those of `GraphBuilder`.
    """

    def __init__(self, weights: Mapping[str, Weight], origin: Origin) -> None:
        self._weights = weights
        self._origin = origin
        self._builder = GraphBuilder(origin.frontend)
        self._constants: dict[str, tuple[Constant, ...]] = {}

    def _layer(self, name: str, op: str, make: Callable[[], Expr]) -> Expr:
        """Returns the result of a layer."""
        return self._results_of(name, op, lambda: (make(),))[0]

    def _results_of(self, name: str, op: str, make: Callable[[], Sequence[Expr]]) -> list[Expr]:
        """Returns the results of a layer with several results."""
        self._builder.start_layer()
        source = Source(name, op, self._origin.frontend)
        with self._builder.layer(source) as results:
            values = [results.bind(n, value, name) for n, value in enumerate(make())]
        self._builder.account(source, values)
        return values

    def _weight(self, name: str, *shape: int) -> tuple[Weight, tuple[Constant, ...]]:
        """Returns a weight, whose shape is checked, and its parameters."""
        weight = self._weights.get(name)
        if weight is None:
            raise self._missing(f"lacks the tensor {display(name)!r}")
        if weight.type.shape != shape or not is_float(weight.type.dtype):
            raise self._missing(f"has {display(name)!r} as {weight.type}, expected {list(shape)}")
        if name not in self._constants:
            with self._builder.parameter(name):
                self._constants[name] = weight.constants(name)
        return weight, self._constants[name]

    def _missing(self, what: str) -> ModelError:
        return ModelError("M072", f"{self._origin.place} {what}", hint=self._origin.hint)

    def _wide(self, name: str, *shape: int) -> Expr:
        weight, constants = self._weight(name, *shape)
        return cast(weight.joined(constants), COMPUTED)

    def _bias(self, name: str, size: int) -> Expr | None:
        """Returns a bias; None if the model has none by this name."""
        return self._wide(name, size) if name in self._weights else None

    def _stacked(self, names: Sequence[str], *shape: int) -> Expr:
        """Returns matrices of one shape as a tensor, f32[len(names), *shape], which is read on
        first use.
        """
        found = [self._weight(name, *shape) for name in names]
        dtypes = {weight.type.dtype for weight, _ in found}
        if len(dtypes) > 1 or any(len(parts) != 1 for _, parts in found):
            raise self._missing(
                f"has {display(names[0])!r} in codes, or in another dtype than the other experts"
            )
        parts = [constant for _, (constant,) in found]
        tokens = [part.token for part in parts]
        type_ = TensorType((len(parts), *shape), dtypes.pop())
        with self._builder.parameter(names[0]):
            whole = Constant.lazy(
                type_,
                lambda: np.stack([part.data for part in parts]),
                name=names[0],
                token=f"stack({', '.join(tokens)})" if all(tokens) else "",
            )
        return cast(whole, COMPUTED)

    def _looked_up(self, name: str, indices: Expr, *shape: int) -> Expr:
        """Returns rows of a matrix. Codes are widened after their rows have been gathered."""
        weight, constants = self._weight(name, *shape)
        parts = [
            call("gather", c, indices, axis=0, from_end=False) if c.tensor.rank else c
            for c in constants
        ]
        return cast(weight.joined(parts), COMPUTED)

    def _product(
        self, name: str, x: Expr, inputs: int, outputs: int, *, by_columns: bool = False
    ) -> Expr:
        """Returns the product with a weight, plus the bias if there is one."""
        shape = (inputs, outputs) if by_columns else (outputs, inputs)
        layout = "KN" if by_columns else "NK"

        def make() -> Expr:
            product = call(
                "nn.dense", x, self._wide(f"{name}.weight", *shape), weight_layout=layout
            )
            bias = self._bias(f"{name}.bias", outputs)
            return product if bias is None else call("add", product, bias)

        return self._layer(name, "linear", make)
