"""The work of putting programs together, counted."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import clew
from clew.build.program_builder import ProgramBuilder
from clew.ir.expr import Expr, Function, If, Tuple, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op


def nested_branches(depth: int) -> Module:
    """Returns a module of branches around branches, the innermost of which runs on the host."""

    def parameters() -> list[Var]:
        return [Var("c", TensorType((), "bool")), Var("x", TensorType((4,), "f32"))]

    params = parameters()
    places = get_op("cast")(get_op("nonzero")(params[1]), dtype="f32")
    body: Expr = get_op("add")(params[1], get_op("sum")(places, axes=(0, 1), keepdims=False))
    for _ in range(depth):
        then = Function(params, body)
        other = parameters()
        orelse = Function(other, get_op("nn.relu")(other[1]))
        params = parameters()
        body = If(params[0], then, orelse, params)
    return Module({"main": Function(params, body)})


def test_nested_branches_are_collected_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    count = [0]
    collect = ProgramBuilder.collect

    def counted(self: ProgramBuilder) -> list[int]:
        count[0] += 1
        return collect(self)

    def collected(depth: int) -> int:
        count[0] = 0
        compiled = clew.compile(nested_branches(depth), cache=False)
        x = np.array([1, 0, 2, 3], np.float32)
        assert compiled(c=np.array(True), x=x).tolist() == (x + 5).tolist()
        return count[0]

    monkeypatch.setattr(ProgramBuilder, "collect", counted)
    assert collected(12) < 2.3 * collected(6)


def call(name: str, *args: Expr, **attrs: Any) -> Expr:
    return get_op(name)(*args, **attrs)


def positive(x: Expr) -> Expr:
    """Returns complex numbers with their negative parts as 0."""
    return call("complex_of", call("nn.relu", call("complex_parts", x)))


def negated(x: Expr) -> Expr:
    return call("complex_of", call("negative", call("complex_parts", x)))


def doubled(x: Expr) -> Expr:
    row = call("reshape", x, shape=(6,))
    return call("reshape", call("text.concat", row, row), shape=(3, 2))


# Functions of a value of shape [2, 3], and whether they run as one call.
SHOWN: dict[str, tuple[str, Callable[[Expr], list[Expr]], bool]] = {
    "complex numbers": ("c64", lambda x: [positive(x)], True),
    "several": ("c64", lambda x: [positive(x), negated(x)], True),
    "one result twice": ("c64", lambda x: [y := positive(x), y], False),
    "a result and an input": ("c64", lambda x: [positive(x), x], False),
    "reshaped texts": ("str", lambda x: [doubled(x)], True),
    "two shapes of a value": (
        "f32", lambda x: [y := call("nn.relu", x), call("reshape", y, shape=(6,))], False
    ),
}  # fmt: skip
VALUES = {
    "c64": np.array([[1 - 2j, -3 + 4j, 5j], [-6, 7, -8 - 9j]], np.complex64),
    "f32": np.array([[1, -2, 3], [-4, 5, -6]], np.float32),
    "str": np.array([["a", "", "bc"], ["é", "d", "e"]], object),
}


@pytest.mark.parametrize("name", SHOWN)
def test_steps_that_only_show_values_belong_to_the_call_of_the_other(name: str) -> None:
    dtype, function, is_whole = SHOWN[name]
    x = Var("x", TensorType((2, 3), dtype))
    module = Module({"main": Function([x], Tuple(function(x)))})
    compiled, given = clew.compile(module, threads=1), VALUES[dtype].copy()
    assert (compiled.served(given).program.whole is not None) == is_whole
    wanted = [value.copy() for value in interpret(module, {"x": given}).values()]
    found = compiled(given)
    results = list(found) if isinstance(found, tuple) else [found]
    for written in (given, *results):
        written[...] = "" if dtype == "str" else 0
        for want, got in zip(wanted, results, strict=True):
            if got is written:
                want[...] = "" if dtype == "str" else 0
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)


def test_a_build_leaves_no_builder_behind() -> None:
    """The builder holds the model's weights: they must not wait for a collection."""
    x = Var("x", TensorType((4,), "f32"))
    module = Module({"main": Function([x], get_op("nn.relu")(x))})
    gc.collect()
    gc.disable()
    try:
        model = clew.compile(module, cache=False)
        assert not [each for each in gc.get_objects() if type(each) is ProgramBuilder]
    finally:
        gc.enable()
    np.testing.assert_array_equal(model(np.float32([-1, 0, 1, 2])), [0, 0, 1, 2])
