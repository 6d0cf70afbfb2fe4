"""Binds one set of inputs to two models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.ir.types import TensorType, TupleType, Type
from clew.runtime.input_spec import InputSpec
from clew.serving.built_model import BuiltModel
from clew.support.errors import ClewError, Hint, InputError


@dataclass(frozen=True)
class Feeds:
    """Two models, and arrays for each in the order of its inputs."""

    models: tuple[BuiltModel, BuiltModel]
    arrays: tuple[Sequence[Any], Sequence[Any]]

    def run(self) -> tuple[list[Any], list[Any]]:
        """Returns copies of both models' outputs."""
        first, second = (
            outputs_of(m, given) for m, given in zip(self.models, self.arrays, strict=True)
        )
        return first, second


def outputs_of(model: BuiltModel, arrays: Sequence[Any]) -> list[Any]:
    """Returns copies of a model's outputs for checked inputs, including those that are not
    tensors.
    """
    results = model.run_checked(list(arrays))
    return [np.array(r) if isinstance(r, np.ndarray) else r for r in results]


def feeds_of(a: BuiltModel, b: BuiltModel, inputs: Any) -> Feeds:
    """Returns the arrays for both models, from inputs of A by name or in order.

    Errors: I040 to I043 for inputs that do not match A, I160 if A's inputs do not match B's.
    """
    ours = a.checked(list(a.named_inputs(inputs).values()))
    a.run_checked(ours)  # raises an error if the inputs do not match A
    names = b.input_names
    if set(names) == set(a.input_names):
        theirs = [ours[a.input_names.index(name)] for name in names]
    elif len(names) == len(a.input_names):
        theirs = list(ours)
    else:
        raise _other_inputs(a, b, "")
    try:
        theirs = [spec.check(x) for spec, x in zip(b.inputs, theirs, strict=True)]
    except ClewError as error:
        raise _other_inputs(a, b, f": {error.message}") from None
    return Feeds((a, b), (ours, theirs))


def _other_inputs(a: BuiltModel, b: BuiltModel, why: str) -> InputError:
    return InputError(
        "I160",
        f"the inputs of A do not match B{why}",
        hint=f"A takes {_specs(a.inputs)}; B takes {_specs(b.inputs)}; without inputs the models "
        "are compared without being run",
    )


def _specs(inputs: Sequence[InputSpec]) -> str:
    return ", ".join(f"{i.name}: {i.dtype}[{', '.join(map(str, i.shape))}]" for i in inputs)


def check_outputs(a: BuiltModel, b: BuiltModel) -> None:
    """Checks that the outputs of two models can be compared.

    Errors: I161.
    """
    ours, theirs = (_outputs(m) for m in (a, b))
    if len(ours) != len(theirs) or not all(map(_alike, ours, theirs)):
        gives = f"A gives {', '.join(map(str, ours))}; B gives {', '.join(map(str, theirs))}"
        raise InputError(
            "I161",
            "the outputs of A and B cannot be compared",
            hint=Hint(
                f"{gives}; numerics=False compares everything else",
                cli=f"{gives}; --no-numerics compares everything else",
                page=gives,
            ),
        )


def _outputs(model: BuiltModel) -> tuple[Type, ...]:
    type_ = model.module.main.body.type
    return type_.fields if isinstance(type_, TupleType) else (type_,)


def _alike(ours: Type, theirs: Type) -> bool:
    if not isinstance(ours, TensorType) or not isinstance(theirs, TensorType):
        return isinstance(ours, TensorType) == isinstance(theirs, TensorType)
    pairs = zip(ours.shape, theirs.shape, strict=False)
    sized = [(x, y) for x, y in pairs if isinstance(x, int) and isinstance(y, int)]
    return ours.rank == theirs.rank and all(x == y for x, y in sized)
