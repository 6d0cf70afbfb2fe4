"""What a run computed, read from the program as it runs, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
import zoo
from clew.api.compiled_model import CompiledModel
from clew.build.observe import Ran, node_values, observe
from clew.build.tracing import relayout
from clew.ir.expr import Call, Function
from clew.ir.interpret import interpret_values
from clew.ir.visit import post_order
from clew.trace.values import layer_values
from clew.trace.verify import difference

MODELS = ["light_squeezenet", "if_branches", "loop_recurrence"]


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest) -> tuple[CompiledModel, list[Any]]:
    compiled = clew.compile(clew.load(str(zoo.path(request.param))), threads=1)
    return compiled, list(zoo.inputs(request.param).values())


def test_observing_changes_nothing(case: tuple[CompiledModel, list[Any]]) -> None:
    compiled, inputs = case
    ran: list[Ran] = []
    results = observe(compiled.build, inputs, ran.append)
    expected = compiled(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for a, b in zip(results, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert {r.use.name for r in ran} <= {k.name for k in compiled.kernels}
    assert ran


def test_each_kernel_computes_its_function(case: tuple[CompiledModel, list[Any]]) -> None:
    compiled, inputs = case

    def check(ran: Ran) -> None:
        function = ran.use.call.op
        assert isinstance(function, Function)
        body = function.body.id
        found = interpret_values(function, ran.operands, {body})[body]
        value = ran.results if isinstance(found, tuple) else ran.results[0]
        assert difference(found, value, 1e-6) < 1e-4, ran.use.name

    observe(compiled.build, inputs, check)


def test_layers_have_their_values(case: tuple[CompiledModel, list[Any]]) -> None:
    compiled, inputs = case
    trace, build = compiled.trace, compiled.build
    values = node_values(build, inputs)
    module = build.stages[0].module
    true = interpret_values(module.main, inputs, {n.id for n in post_order(module.main)}, module)
    compared = 0
    for layer in layer_values(trace):
        assert (layer.gone is None) == bool(layer.last)
        for ref in layer.last:
            if ref.node in values and layer.first.node in true:
                first, last = trace.nodes(0)[layer.first.node], trace.nodes(trace.last)[ref.node]
                like = true[layer.first.node]
                value = relayout(values[ref.node], last.type, first.type, like)
                assert difference(like, value, 1e-6) < 1e-4, layer.layer
                compared += 1
    assert compared >= 2


def test_wanted_nodes_alone(case: tuple[CompiledModel, list[Any]]) -> None:
    compiled, inputs = case
    values = node_values(compiled.build, inputs)
    for node in list(values)[::5]:
        (value,) = node_values(compiled.build, inputs, [node]).values()
        assert difference(values[node], value) == 0


def test_only_some_kernels_are_told_of() -> None:
    compiled = clew.compile(clew.load(str(zoo.path("light_squeezenet"))), threads=1)
    inputs = list(zoo.inputs("light_squeezenet").values())
    wanted = {use.call.id for use in compiled.build.uses[3:5]}
    ran: list[Ran] = []
    observe(compiled.build, inputs, ran.append, only=wanted)
    assert {r.use.call.id for r in ran} == wanted


def test_operands_are_those_before_an_update_in_place() -> None:
    """A kernel that writes its result over its operand is shown both."""
    module = clew.parse(
        """
        def @main(%x: f32[64]) {
          %0 = exp(%x)
          %1 = tanh(%0)
          return %1
        }
        """
    )
    compiled = clew.compile(module, passes=clew.Passes(fuse=False), threads=1)
    ran: list[Ran] = []
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    observe(compiled.build, [x], ran.append)
    calls = [r.use.call for r in ran]
    assert all(isinstance(c, Call) for c in calls)
    np.testing.assert_allclose(ran[1].operands[0], np.exp(x), rtol=1e-5)
    np.testing.assert_allclose(ran[1].results[0], np.tanh(np.exp(x)), rtol=1e-5)
