"""Axes of operands, checked against values: changing one element of an operand along its axis
changes the result along the stated axis only there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew.advice.axes import contraction, operand_axes, result_axis
from clew.ir.expr import Call, Function, Var
from clew.ir.interpret import interpret_values
from clew.ir.types import TensorType
from clew.ops.registry import get_op

CASES: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "nn.relu": ([(2, 3)], {}),
    "add": ([(2, 3, 4), (3, 1)], {}),
    "nn.dense": ([(2, 3, 4), (5, 4)], {}),
    "nn.matmul": ([(2, 3, 4), (4, 5)], {}),
    "nn.conv2d": ([(2, 3, 4, 5), (6, 3, 1, 1)], {}),
    "nn.batch_norm": ([(2, 3, 4, 5), (3,), (3,), (3,), (3,)], {}),
    "nn.softmax": ([(2, 3, 4)], {"axis": 1}),
    "nn.layer_norm": ([(2, 3, 4), (4,), (4,)], {"axis": 2}),
    "sum": ([(2, 3, 4)], {"axes": (1,), "keepdims": False}),
    "mean": ([(2, 3, 4)], {"axes": (1,), "keepdims": True}),
    "transpose": ([(2, 3, 4)], {"axes": (2, 0, 1)}),
    "reshape": ([(2, 3, 4)], {"shape": (2, 12)}),
    "concatenate": ([(2, 3), (2, 3)], {"axis": 1}),
    "slice": ([(4, 5)], {"begin": (1,), "end": (3,), "axes": (0,)}),
    "nn.max_pool2d": ([(2, 3, 4, 4)], {"kernel": (2, 2)}),
    "nn.global_avg_pool2d": ([(2, 3, 4, 4)], {}),
}


def call_of(name: str) -> Call:
    """Returns a call of an operator on inputs."""
    shapes, attrs = CASES[name]
    args = [Var(f"x{n}", TensorType(shape, "f32")) for n, shape in enumerate(shapes)]
    made = get_op(name)(*args, **attrs)
    assert isinstance(made, Call)
    return made


def value_of(call: Call, arrays: list[Any]) -> Any:
    """Returns the value of a call."""
    function = Function([a for a in call.args if isinstance(a, Var)], call)
    return interpret_values(function, arrays, [call.id])[call.id]


@pytest.mark.parametrize("name", CASES)
def test_elements_depend_on_no_other_along_their_axis(name: str) -> None:
    call = call_of(name)
    random = np.random.default_rng(0)
    arrays = [random.uniform(0.5, 1.5, a.tensor.concrete).astype("f") for a in call.args]
    before = value_of(call, arrays)
    known = 0
    for axis in range(call.tensor.rank):
        found = operand_axes(call, axis)
        if found is None:
            continue
        for operand, place in enumerate(found):
            if place is None:
                continue
            known += 1
            assert result_axis(call, operand, place) is not None
            changed = [a.copy() for a in arrays]
            index = [slice(None)] * changed[operand].ndim
            index[place] = slice(0, 1)
            part = changed[operand][tuple(index)]
            changed[operand][tuple(index)] = random.uniform(0.5, 1.5, part.shape)
            after = value_of(call, changed)
            rest = np.moveaxis(after, axis, 0)[1:], np.moveaxis(before, axis, 0)[1:]
            np.testing.assert_array_equal(*rest)
            assert not np.array_equal(after, before)
    assert known


def test_what_is_summed() -> None:
    assert contraction(call_of("nn.dense"), 0, 2) == (1, 1)
    assert contraction(call_of("nn.dense"), 0, 1) is None
    assert contraction(call_of("nn.matmul"), 0, 2) == (1, 0)
    assert contraction(call_of("nn.conv2d"), 0, 1) == (1, 1)
    assert contraction(call_of("nn.softmax"), 0, 1) is None
