"""The inputs of a graph: its parameters as inputs of a run, before and after compilation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from clew.ir.deferred import DeferredModule
from clew.ir.dims import SymDim
from clew.ir.expr import Var
from clew.ir.module import Module
from clew.ir.own_sizes import size_rules_of
from clew.ir.state import states_of
from clew.ir.types import (
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    UnrankedType,
    is_unranked,
    to_numpy,
)
from clew.ir.usual_shapes import usual_shapes_of
from clew.runtime.drawing import complete
from clew.runtime.first_values import named_with_sizes, with_sizes
from clew.runtime.input_spec import ANY_SHAPE, InputSpec
from clew.runtime.kinds import Kind
from clew.runtime.output_spec import OutputSpec
from clew.support.call_form import FORM, CallForm
from clew.support.calling import in_order, one_argument
from clew.support.shown import Shown


class Inputs(Shown):
    """The inputs of a module: `inputs` and `input_names` of its compiled model."""

    def __init__(self, module: Module | DeferredModule) -> None:
        found = inputs_of(module) if isinstance(module, Module) else declared_inputs(module)
        self.inputs = tuple(found)
        self.input_names = tuple(spec.name for spec in found)
        self._maps = [i.name for i in self.inputs if i.takes_mapping]
        self._initial = {i.name: i.initial for i in self.inputs if i.initial is not None}

    def _about(self) -> str:
        return ", ".join(map(repr, self.inputs))

    def named_inputs(self, inputs: Any) -> dict[str, Any]:
        """Returns inputs by name, as arrays that the model accepts, from one argument: a mapping, a
        tuple or list in order, or the only input.

        Errors: I040 to I043.
        """
        found = one_argument(self.input_names, inputs, maps=self._maps, defaults=self._initial)
        found = named_with_sizes(self.inputs, found)
        return {spec.name: spec.check(found[spec.name]) for spec in self.inputs}

    def checked(
        self,
        given: Sequence[Any],
        named: Mapping[str, Any] | None = None,
        *,
        options: Collection[str] = (),
    ) -> list[Any]:
        """Returns inputs, given as in a call, in order and as arrays that the model accepts.
        `options` are the other keywords of the called function.

        Errors: I040 to I043, I300, I301.
        """
        found = in_order(
            self.input_names,
            given,
            named or {},
            maps=self._maps,
            options=options,
            defaults=self._initial,
        )
        return list(map(InputSpec.check, self.inputs, with_sizes(self.inputs, found)))

    def drawn(self, given: Mapping[str, Any] | None = None, *, seed: int = 0) -> list[Any]:
        """Returns inputs in order: those in `given`, by name, and random values for the others.

        Errors: I041 to I043 for `given`, I061 for sizes that are still unknown.
        """
        return list(complete(self.inputs, given or {}, seed).values())


def module_for(model: Module | DeferredModule, inputs: Any) -> Module:
    """Returns the module of a model. If the graph depends on inputs of a run, that is the graph for
    these, given in one argument: a mapping, a tuple or list in order, or the only input.

    Errors: I040 to I043, and those of an import.
    """
    return (
        model if isinstance(model, Module) else model.module_for(Inputs(model).named_inputs(inputs))
    )


def inputs_of(module: Module) -> list[InputSpec]:
    """Returns the inputs of a module."""
    found, states = list(map(_input, module.main.params)), states_of(module)
    for spec in found:
        if spec.name in states:
            state = states[spec.name]
            # As kernels read it in place: zeros in a model are broadcast.
            spec.initial = np.require(state.initial, requirements=("C", "A"))
            spec.fed_by = state.output
    usual = usual_shapes_of(module)
    for spec in found:
        spec.usual = usual.get(spec.name)
    form = form_of(module)
    counts = form.counts if form is not None else ()
    if module.by_ranks is not None:
        for spec, param in zip(found, module.main.params, strict=True):
            spec.by_rank = is_unranked(param.type)
    for number, spec in enumerate(found):
        spec.is_count = number in counts
    _give_rules(module, found)
    return found


def _give_rules(module: Module, inputs: Sequence[InputSpec]) -> None:
    """Gives each rule to the first input with which all of its sizes are known."""
    open_, known = size_rules_of(module), set[str]()
    for spec in inputs if open_ else ():
        known |= {name for dim in spec.dims if isinstance(dim, SymDim) for name in dim.symbols}
        spec.rules = tuple(rule for rule in open_ if rule.names <= known)
        open_ = [rule for rule in open_ if not rule.names <= known]


def declared_inputs(module: DeferredModule) -> list[InputSpec]:
    """Returns the inputs of a model that is imported when it is called."""
    found = [
        InputSpec(i.name, None, (), kind=None if i.type is None else _kind(i.type))
        if i.dtype is None
        else InputSpec(i.name, to_numpy(i.dtype), ANY_SHAPE if i.shape is None else i.shape)
        for i in module.inputs
    ]
    if any(spec.takes_any_shape for spec in found):  # its variants have ranks
        for spec, declared in zip(found, module.inputs, strict=True):
            spec.by_rank = declared.type is not None and is_unranked(declared.type)
    return found


def outputs_of(module: Module | DeferredModule) -> list[OutputSpec]:
    """Returns the outputs of a module. Those of a model that is imported when it is called have no
    types.
    """
    if not isinstance(module, Module):
        return [OutputSpec(name, is_known=False) for name in module.output_names]
    result = module.main.body.type
    types = result.fields if isinstance(result, TupleType) else (result,)
    return [_output(n, t) for n, t in zip(module.output_names, types, strict=True)]


def form_of(module: Module | DeferredModule) -> CallForm | None:
    """Returns the form of a module's calls, None if inputs and outputs are not nested."""
    return CallForm.of(module.main.attrs.get(FORM)) if isinstance(module, Module) else None


def _output(name: str, type_: Type) -> OutputSpec:
    match type_:
        case TensorType(shape, dtype):
            sizes = tuple(d if isinstance(d, int) else str(d) for d in shape)
            return OutputSpec(name, to_numpy(dtype), sizes)
        case UnrankedType(dtype):
            return OutputSpec(name, to_numpy(dtype))
    return OutputSpec(name)


def _input(param: Var) -> InputSpec:
    if not isinstance(param.type, TensorType):
        return InputSpec(param.name, None, (), kind=_kind(param.type))
    dims = param.type.shape
    shape = [d if isinstance(d, int) else str(d) for d in dims]
    found = InputSpec(param.name, to_numpy(param.type.dtype), shape)
    found.expressions = {
        axis: d for axis, d in enumerate(dims) if isinstance(d, SymDim) and str(d) not in d.symbols
    }
    return found


def _kind(type_: Type) -> Kind:
    """Returns the kind of value that a run must pass for a type."""
    match type_:
        case TensorType(shape, dtype):
            sizes = tuple(d if isinstance(d, int) else None for d in shape)
            return Kind("tensor", to_numpy(dtype), sizes)
        case UnrankedType(dtype):
            return Kind("tensor", to_numpy(dtype), None)
        case SequenceType(element):
            return Kind("sequence", parts=(_kind(element),))
        case OptionalType(element):
            return Kind("optional", parts=(_kind(element),))
        case MapType(key, value):
            return Kind("map", to_numpy(key), parts=(_kind(value),))
    raise AssertionError(type_)
