"""Converters: one function for each operator of torch.

```python
@converter("leaky_relu.default")
def leaky_relu(layer: Layer) -> Result:
    return call("nn.leaky_relu", layer.tensor("self"), alpha=layer.number("negative_slope"))
```

A name is that of an overload (`add.Tensor`) or of all overloads of an operator (`add`). Those of
another library than ATen have its name in front: `torchvision.nms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, Final, TypeAlias

from clew.frontends.registry import Converters
from clew.frontends.torch.callbacks import called_back, is_custom
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.values import Value
from clew.ops.registry import bound_in_torch
from clew.support.errors import GraphTypeError

Result: TypeAlias = "Value | Sequence[Value]"
Converter: TypeAlias = "Callable[[Layer], Result]"

_CONVERTERS: Final[Converters[str, Converter]] = Converters()
_OF_COMPLEX: Final[Converters[str, Converter]] = Converters()


def converter(*names: str) -> Callable[[Converter], Converter]:
    """Decorator: registers a converter for operators. It returns a call's results in order."""
    return _registering(_CONVERTERS, names)


def complex_converter(*names: str) -> Callable[[Converter], Converter]:
    """Decorator: registers a converter for calls of operators in which a tensor is complex. A
    complex tensor is a real one with an axis for the two parts behind the others.
    """
    return _registering(_OF_COMPLEX, names)


def _registering(
    table: Converters[str, Converter], names: Sequence[str]
) -> Callable[[Converter], Converter]:
    def register(function: Converter) -> Converter:
        table.register(*names)(_refusing(function))
        return function

    return register


def _refusing(function: Converter) -> Converter:
    """Returns a converter whose call torch has accepted: if an operator of clew does not take the
    types, the form of the call is not supported. Errors: U063.
    """

    @wraps(function)
    def convert(layer: Layer) -> Result:
        try:
            return function(layer)
        except GraphTypeError as error:
            raise layer.unsupported(error.message, error.hint) from error

    return convert


def name_of(target: Any) -> str:
    """Returns the name under which converters of an operator are registered."""
    return str(target).removeprefix("aten.")


def find(target: Any, of_complex: bool = False) -> Converter | None:
    """Returns the converter for an operator of torch, None if there is none.

    A user's binding of the operator takes precedence. A custom operator without one is called back.
    """
    name = name_of(target)
    if of_complex:
        return _of_overload(_OF_COMPLEX, name)
    path = str(target).rpartition(".")[0]  # "" for operators of a higher order
    bound = bound_in_torch(path) if path else None
    if bound is not None:
        return lambda layer: layer.call_of(bound)
    known = _of_overload(_CONVERTERS, name)
    return called_back if known is None and is_custom(target) else known


def _of_overload(table: Converters[str, Converter], name: str) -> Converter | None:
    return table.find(name) or table.find(name.rpartition(".")[0])


def supported() -> Iterator[str]:
    """Yields the names that have a converter."""
    yield from sorted(_CONVERTERS)
