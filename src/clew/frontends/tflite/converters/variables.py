"""Resource variables: `VAR_HANDLE`, `READ_VARIABLE` and `ASSIGN_VARIABLE`."""

from __future__ import annotations

from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.frontends.tflite.variables import Variable, handle, resource, variable_of


@converter("VAR_HANDLE", codes=True)
def var_handle(layer: TfliteLayer) -> Result:
    """The handle of a variable, by container and name."""
    return handle(resource(layer.text("container"), layer.text("shared_name")))


@converter("READ_VARIABLE", codes=True)
def read_variable(layer: TfliteLayer) -> Result:
    """The value of a variable at this point; its type is that of the result's tensor."""
    result = layer.results[0] if layer.results else None
    if result is None:
        raise layer.wrong("has no result")
    found = layer.importer.variables.read(layer.scope.memory, _variable(layer), result)
    if found.tensor.dtype != result.dtype:
        raise layer.wrong(f"reads {result.dtype} from a variable of {found.tensor.dtype}")
    return found


@converter("ASSIGN_VARIABLE", codes=True)
def assign_variable(layer: TfliteLayer) -> Result:
    """Sets the next value of a variable."""
    value = layer.input(1)
    layer.type_of(value)
    layer.scope.memory.write(_variable(layer), value)
    return []


def _variable(layer: TfliteLayer) -> Variable:
    operand = layer.operands[0] if layer.operands else None
    if operand is None or operand.dtype != "resource":
        raise layer.wrong("needs a variable as input 0")
    return variable_of(layer.value(0, "the variable"))
