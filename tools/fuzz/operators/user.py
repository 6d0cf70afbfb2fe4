"""User operators bound to ONNX names, and their definitions as functions of standard operators.

clew uses the bound operator; the other engines get a model that contains the functions.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from onnx import FunctionProto, TensorProto, helper

import clew
from clew import te
from fuzz.graph import USER_DOMAIN, Grower, Value
from fuzz.operators import operator

F32 = TensorProto.FLOAT


@clew.register_op("fuzz.squared_relu", onnx=f"{USER_DOMAIN}::SquaredRelu", overwrite=True)
def squared_relu(x: te.Tensor) -> te.Tensor:
    """The square of the positive part."""

    def element(*i: Any) -> Any:
        positive = te.maximum(x[i], 0.0)
        return positive * positive

    return te.compute(x.shape, element, "squared_relu", layout=x.layout)


squared_relu.reference(lambda x: np.square(np.maximum(x, np.float32(0))))


@clew.register_op("fuzz.turned", onnx=f"{USER_DOMAIN}::Turned", overwrite=True)
def turned(x: te.Tensor) -> te.Tensor:
    """Elements in the opposite order along the last axis."""
    n = x.shape[-1]
    return te.compute(x.shape, lambda *i: x[(*i[:-1], n - 1 - i[-1])], "turned")


turned.reference(lambda x: x[..., ::-1])


@clew.register_op("fuzz.energy", onnx=f"{USER_DOMAIN}::Energy", overwrite=True)
def energy(x: te.Tensor) -> te.Tensor:
    """The sum of squares along the last axis."""
    k = te.reduce_axis(x.shape[-1], "k")
    return te.compute(x.shape[:-1], lambda *i: te.sum(x[(*i, k)] * x[(*i, k)], k), "energy")


energy.reference(lambda x: np.asarray(np.square(x).sum(-1), np.float32))


@clew.register_op("fuzz.ends", onnx=f"{USER_DOMAIN}::Ends", overwrite=True)
def ends(x: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    """The largest element along the last axis, and each element's distance below it."""
    k = te.reduce_axis(x.shape[-1], "k")
    top = te.compute(x.shape[:-1], lambda *i: te.max(x[(*i, k)], k), "top")
    return te.compute(x.shape, lambda *i: top[i[:-1]] - x[i], "below"), top


ends.reference(lambda x: (x.max(-1)[..., None] - x, x.max(-1)))


def meanings(opset: int) -> list[FunctionProto]:
    """Returns the operators as functions, of an opset from 18 on."""
    opsets = [helper.make_opsetid("", opset)]
    return [
        helper.make_function(USER_DOMAIN, name, ["x"], outputs, nodes, opsets)
        for name, (nodes, outputs) in _MEANINGS.items()
    ]


def _ints(name: str, *values: int) -> Any:
    return helper.make_node("Constant", [], [name], value_ints=list(values))


_node = helper.make_node
_MEANINGS: Final = {
    "SquaredRelu": ([_node("Relu", ["x"], ["r"]), _node("Mul", ["r", "r"], ["y"])], ["y"]),
    "Turned": (
        [_ints("a", -1), _ints("b", -(2**31)), _node("Slice", ["x", "a", "b", "a", "a"], ["y"])],
        ["y"],
    ),
    "Energy": ([_ints("a", -1), _node("ReduceSumSquare", ["x", "a"], ["y"], keepdims=0)], ["y"]),
    "Ends": (
        [
            _ints("a", -1),
            _node("ReduceMax", ["x", "a"], ["t"]),
            _node("Sub", ["t", "x"], ["y"]),
            _node("Squeeze", ["t", "a"], ["z"]),
        ],
        ["y", "z"],
    ),
}


def _operand(g: Grower) -> Value:
    return g.operand((F32,), (1, 4), nonempty=True)


def _typed(x: Value, whole: bool) -> Any:
    return helper.make_tensor_type_proto(F32, list(x.sizes if whole else x.sizes[:-1]))


@operator("SquaredRelu", "Turned", domain=USER_DOMAIN, weight=1)
def same_shape(g: Grower) -> object:
    x = _operand(g)
    op = g.choices.pick(("SquaredRelu", "Turned"))
    return g.emit(op, [x], domain=USER_DOMAIN, types=[_typed(x, True)])


@operator("Energy", domain=USER_DOMAIN, weight=1)
def energy_of(g: Grower) -> object:
    x = _operand(g)
    return g.emit("Energy", [x], domain=USER_DOMAIN, types=[_typed(x, False)])


@operator("Ends", domain=USER_DOMAIN, weight=1)
def ends_of(g: Grower) -> object:
    x = _operand(g)
    return g.emit("Ends", [x], 2, domain=USER_DOMAIN, types=[_typed(x, True), _typed(x, False)])
