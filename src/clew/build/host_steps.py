"""Operators that run on numpy arrays between native segments, and their form in a saved model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from clew import ops
from clew.ir.expr import ArgRef, Attrs
from clew.ops.registry import Op, get_op
from clew.support.errors import CompileError, GraphTypeError

__all__ = ["HostStep", "ops"]


class HostStep:
    """Runs an operator's reference with given attributes; `RunHost` holds it as a function."""

    def __init__(self, op: Op, attrs: Mapping[str, Any]) -> None:
        self.op = op
        self.attrs = attrs

    def __call__(self, *arrays: Any) -> Any:
        """Returns the operator's result, a tuple where there are several."""
        return self.op.run_reference(arrays, self.attrs)

    def to_json(self) -> dict[str, Any]:
        """Returns the step as JSON values.

        Errors: C059 for an attribute that has no such form.
        """
        attrs = {name: _to_json(self.op, name, value) for name, value in self.attrs.items()}
        return {"operator": self.op.name, "attributes": attrs}

    @staticmethod
    def from_json(step: Mapping[str, Any]) -> HostStep:
        """Returns the step that `to_json` gave.

        Errors: C061 when no operator of that name is registered.
        """
        name = step["operator"]
        try:
            op = get_op(name)
        except GraphTypeError as error:
            raise CompileError(
                "C061",
                f"the model calls the operator {name}, which is not registered here",
                hint="import the module that registers it before loading the model",
            ) from error
        return HostStep(op, Attrs({n: _from_json(v) for n, v in step["attributes"].items()}))


def _to_json(op: Op, name: str, value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": str(value)}
        case ArgRef():
            return {"argument": value.index}
        case tuple():
            return [_to_json(op, name, item) for item in value]
    raise CompileError(
        "C059",
        f"{op.name} runs between kernels, and its attribute {name}={value!r} cannot be saved",
        hint="numbers, text and tuples of them can",
    )


def _from_json(value: Any) -> Any:
    match value:
        case {"float": text}:
            return float(text)
        case {"argument": index}:
            return ArgRef(index)
        case list():
            return tuple(_from_json(item) for item in value)
    return value
