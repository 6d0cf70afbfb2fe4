"""A model's inputs, with the shapes and values that a user gives for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, TypeProto
from onnx import ValueInfoProto as ValueInfo

from clew.frontends.builder import GraphBuilder
from clew.frontends.deferred import Shapes
from clew.frontends.limits import checked_size
from clew.frontends.names import Symbols, display
from clew.frontends.onnx.file.tensors import dtype_of
from clew.frontends.onnx.scope import Scope
from clew.frontends.onnx.value_types import value_type, with_part_shape
from clew.ir.deferred import DeclaredInput
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Constant, Var
from clew.ir.types import TensorType, Type, from_numpy
from clew.support.arrays import native
from clew.support.budgets import Budgets
from clew.support.errors import Hint, InputError, ModelError, UnsupportedError
from clew.support.near import did_you_mean

# Names that exporters write for an arbitrary size.
_ANY: Final = frozenset(("_", "?", "*", "-1", "None", "none", "unk"))


class Inputs:
    """The inputs of a model's graph. `shapes` and `constants` are given by name; with
    `keep_constants`, a constant also stays a parameter. A number given for a named size applies to
    that name in all other inputs.

    `defaults` names the inputs whose initializers are default values. They are constants of the
    graph, except for those in `shapes`, which are inputs (`opened`), and those in `constants`.
    """

    def __init__(
        self,
        graph: GraphProto,
        budgets: Budgets,
        shapes: Shapes,
        constants: Mapping[str, NDArray[Any]],
        keep_constants: bool,
        defaults: Sequence[str] = (),
    ) -> None:
        self._graph = graph
        self.defaults = tuple(defaults)
        self.opened = frozenset(shapes).intersection(defaults)
        self.replaced = self.opened.union(frozenset(constants).intersection(defaults))
        self._budgets = budgets
        self._shapes = {**_settled(graph, shapes), **shapes}
        self._given = set(shapes)
        self._constants = dict(constants)
        self._keep_constants = keep_constants
        self._symbols = Symbols()

    def bind(self, scope: Scope, builder: GraphBuilder) -> list[Var]:
        """Binds the inputs' names, and returns the parameters.

        Errors: M010 for two inputs of the same name, I004 for shapes and values of inputs that the
        model does not have, I005, M006, U004, U006.
        """
        graph = self._graph
        names = [value.name for value in graph.input]
        if len(set(names)) < len(names):
            raise ModelError("M010", "two inputs of the model have the same name")
        wanted = [value for value in graph.input if value.name not in scope.values]
        unknown = (self._given | self._constants.keys()) - {v.name for v in wanted}
        if unknown:
            raise InputError(
                "I004",
                f"the model has no input {display(min(unknown))!r}",
                hint=did_you_mean(
                    display(min(unknown)), [display(v.name) for v in wanted], "model's inputs"
                ),
            )
        for value in wanted:
            if value.name in self._constants:
                data = native(np.asarray(self._constants[value.name]))
                self._check_constant(value, data)
                span = builder.input_span(value.name)
                scope.values[value.name] = Constant(data, name=value.name, span=span)
                fixed = value.name in self.replaced - self.opened
                if fixed or not self._keep_constants:
                    continue
            var = builder.input(value.name, self._input_type(value))
            scope.values.setdefault(value.name, var)
        return builder.params

    def declared(self) -> list[DeclaredInput]:
        """Returns the model's inputs as declared in the file, with the given shapes. Sizes have the
        names that `bind` gives them.
        """
        graph, symbols = self._graph, Symbols()
        settled = {t.name for t in graph.initializer}
        settled |= {s.values.name for s in graph.sparse_initializer}
        settled = settled - self.opened
        return [self._declared(v, symbols) for v in graph.input if v.name not in settled]

    def declared_shapes(self, names: Collection[str]) -> dict[str, tuple[int | str, ...]]:
        """Returns the declared shapes of defaults; those of their initializers if the model
        declares none.
        """
        symbols, sizes = Symbols(), {t.name: tuple(t.dims) for t in self._graph.initializer}
        found = [self._declared(v, symbols) for v in self._graph.input if v.name in names]
        return {i.name: sizes[i.name] if i.shape is None else i.shape for i in found}

    def _declared(self, value: ValueInfo, symbols: Symbols) -> DeclaredInput:
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            what = f"input {display(value.name)!r}"
            type_ = value_type(value.type, what)
            if value.name in self._shapes:
                type_ = with_part_shape(type_, self._shapes[value.name])
            return DeclaredInput(value.name, None, None, type_)
        dtype = dtype_of(tensor.elem_type, f"input {display(value.name)!r}")
        if value.name in self._shapes:
            given = self._shapes[value.name]
            named = (d if isinstance(d, int) else symbols.named(d) for d in given)
            return DeclaredInput(value.name, dtype, tuple(named))
        if not tensor.HasField("shape"):
            return DeclaredInput(value.name, dtype, None)
        shape: list[int | str] = []
        for axis, dim in enumerate(tensor.shape.dim):
            if _is_fixed(dim, len(tensor.shape.dim)):
                shape.append(int(dim.dim_value))
            elif name := _name(dim):
                shape.append(symbols.named(name))
            else:
                shape.append(symbols.fresh(f"{value.name}_{axis}"))
        return DeclaredInput(value.name, dtype, tuple(shape))

    def _check_constant(self, value: ValueInfo, data: NDArray[Any]) -> None:
        """Errors: I005 for a value of another type than the input's."""
        type_ = self._input_type(value) if value.type.tensor_type.HasField("shape") else None
        if not isinstance(type_, TensorType):
            return
        fits = data.ndim == type_.rank and all(
            not isinstance(d, int) or d == n for d, n in zip(type_.shape, data.shape, strict=False)
        )
        if not fits or from_numpy(data.dtype) != type_.dtype:
            raise InputError(
                "I005",
                f"the value for input {display(value.name)!r} is "
                f"{data.dtype}{list(data.shape)}, expected {type_}",
            )

    def _input_type(self, value: ValueInfo) -> Type:
        what = f"input {display(value.name)!r}"
        given = self._shapes.get(value.name)
        return self._type(value.type, what, value.name, given)

    def _type(
        self, proto: TypeProto, what: str, name: str, given: Sequence[int | str] | None = None
    ) -> Type:
        if proto.WhichOneof("value") != "tensor_type":
            type_ = value_type(proto, what)
            return type_ if given is None else with_part_shape(type_, given)
        dtype = dtype_of(proto.tensor_type.elem_type, what)
        if given is not None:
            shape: list[Dim] = [
                d if isinstance(d, int) else SymDim.symbol(self._symbols.named(d)) for d in given
            ]
        elif proto.tensor_type.HasField("shape"):
            shape = [
                self._dim(dim, len(proto.tensor_type.shape.dim), f"{name}_{axis}")
                for axis, dim in enumerate(proto.tensor_type.shape.dim)
            ]
        else:
            raise UnsupportedError(
                "U006",
                f"{what} has no shape",
                hint=Hint(
                    f"pass inputs={{{name!r}: [...]}}",
                    cli=f"give its shape, as in --shape {name}=1,3,224,224",
                    page=f"compile it with the input shapes {name}=1x3x224x224",
                ),
            )
        checked_size([d for d in shape if isinstance(d, int)], dtype, self._budgets, what)
        return TensorType(tuple(shape), dtype)

    def _dim(self, dim: Any, rank: int, fallback: str) -> Dim:
        if _is_fixed(dim, rank):
            return int(dim.dim_value)
        if name := _name(dim):
            return SymDim.symbol(self._symbols.named(name))
        return SymDim.symbol(self._symbols.fresh(fallback))


def _is_fixed(dim: Any, rank: int) -> bool:
    """Whether an input's size is a number. Exporters write -1, 0 or nothing for an arbitrary size;
    but a vector of size 0 is an empty list, of axes for example.
    """
    return bool(
        dim.HasField("dim_value") and (dim.dim_value > 0 or (not dim.dim_value and rank == 1))
    )


def _name(dim: Any) -> str:
    """Returns the name of a size; "" if it has none, or one that exporters write for any size: such
    sizes need not be equal.
    """
    name: str = dim.dim_param
    return "" if name in _ANY else name


def _settled(graph: GraphProto, shapes: Shapes) -> dict[str, tuple[int | str, ...]]:
    """Returns the shapes of inputs without a given shape that share a named size with a given
    one.
    """
    dims = {
        value.name: value.type.tensor_type.shape.dim
        for value in graph.input
        if value.type.tensor_type.HasField("shape")
    }
    sizes: dict[str, set[int]] = {}
    for name, given in shapes.items():
        declared = dims.get(name, ())
        if len(declared) == len(given):
            for dim, size in zip(declared, given, strict=True):
                if _name(dim) and isinstance(size, int):
                    sizes.setdefault(_name(dim), set()).add(size)
    known = {name: min(found) for name, found in sizes.items() if len(found) == 1}
    return {
        name: tuple(
            int(d.dim_value)
            if _is_fixed(d, len(declared))
            else known.get(_name(d), _name(d) or f"{name}_{axis}")
            for axis, d in enumerate(declared)
        )
        for name, declared in dims.items()
        if name not in shapes and any(_name(d) in known for d in declared)
    }
