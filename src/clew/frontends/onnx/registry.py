"""Converters: one function per ONNX operator and change of its meaning.

```python
@converter("LeakyRelu")
def leaky_relu(layer: Layer) -> Result:
    return call("nn.leaky_relu", layer.input(0), alpha=layer.real("alpha"))
```

`since` is the first operator version (as ONNX counts them) of the converter; it applies until the
next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from clew.frontends.onnx.layer import Layer
from clew.frontends.registry import Converters
from clew.ir.expr import Expr
from clew.ops.registry import bound_to

Result: TypeAlias = "Expr | Sequence[Expr]"
Converter: TypeAlias = "Callable[[Layer], Result]"

_CONVERTERS: Final[Converters[tuple[str, str], Converter]] = Converters()
_OF_VALUES: Final[set[tuple[str, str]]] = set()

_OLD_FORMS: Final[dict[str, tuple[int, Converter]]] = {}


def converter(
    *op_types: str, since: int = 1, domain: str = "", values: bool = False
) -> Callable[[Converter], Converter]:
    """Decorator: registers a converter for operators. It returns a layer's outputs in order.

    With `values`, it also accepts sequences, optionals and tensors of unknown rank; other
    converters are given only tensors of known rank.
    """
    operators = [(domain, op_type) for op_type in op_types]
    if values:
        _OF_VALUES.update(operators)
    return _CONVERTERS.register(*operators, since=since)


def old_form(*op_types: str, to: int) -> Callable[[Converter], Converter]:
    """Decorator: registers a converter for versions of ONNX's own operators before `to`. It takes
    precedence over those of `converter`.
    """

    def register(function: Converter) -> Converter:
        for op_type in op_types:
            assert op_type not in _OLD_FORMS, f"{op_type} has two old forms"
            _OLD_FORMS[op_type] = (to, function)
        return function

    return register


def find(domain: str, op_type: str, version: int) -> Converter | None:
    """Returns the converter for an operator of the given version, None if there is none.

    A user's binding of the operator takes precedence.
    """
    bound = bound_to(domain, op_type, version)
    if bound is not None:
        return lambda layer: layer.call_of(bound)
    if not domain and op_type in _OLD_FORMS:
        to, function = _OLD_FORMS[op_type]
        if version < to:
            return function
    return _CONVERTERS.find((domain, op_type), version)


def takes_values(domain: str, op_type: str) -> bool:
    """Whether an operator's converter accepts values other than tensors of known rank."""
    return (domain, op_type) in _OF_VALUES


def supported() -> Iterator[tuple[str, str]]:
    """Yields the domain and type of every operator with a converter."""
    yield from sorted(_CONVERTERS)
