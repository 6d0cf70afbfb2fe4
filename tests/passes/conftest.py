"""What tests of passes share: graphs with sources, running both sides, random graphs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clew.ir.expr import Call, Constant, Expr, Function, Tuple, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType, to_numpy
from clew.ir.visit import post_order
from clew.machine.target import Target, target_of
from clew.ops.registry import get_op
from clew.passes.base import Pass
from clew.passes.manager import PassManager
from clew.trace.lineage import building
from clew.trace.span import Source, Span

# For `special_values` and `rule_examples`.
sys.path.insert(0, str(Path(__file__).parent))


def lanes() -> Target:
    """Returns a target with 512-bit vectors, and dot products of `bf16`, and of `u8` and `i8`."""
    wide = target_of("cpu-avx512")
    return replace(wide, features=f"{wide.features},+avx512bf16,+avx512vnni")


def tiles() -> Target:
    """Returns one with a matrix unit for `bf16`, too."""
    wide = lanes()
    return replace(wide, features=f"{wide.features},+amx-tile,+amx-bf16")


class Layer:
    """Calls operators, each result a layer of its own."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, op: str, *args: Expr, **attrs: Any) -> Call:
        self.count += 1
        with building(Span([Source(f"{op}_{self.count}", op, "test")])):
            built = get_op(op)(*args, **attrs)
        return built


def var(name: str, *shape: Any, dtype: str = "f32") -> Var:
    span = Span([Source(name, "", "test", "input")])
    return Var(name, TensorType(shape, dtype), span=span)


def const(data: Any, name: str = "") -> Constant:
    span = Span([Source(name or "weight", "", "test", "parameter")])
    return Constant(data, name=name, span=span)


def module(inputs: Sequence[Var], *outputs: Expr) -> Module:
    with building(Span([Source("main", "", "test")])):
        body = Tuple(outputs)
        main = Function(inputs, body, {"outputs": tuple(f"y{n}" for n in range(len(outputs)))})
    return Module({"main": main})


def function(params: Sequence[Var], body: Expr) -> Function:
    with building(Span([Source("branch", "", "test")])):
        return Function(params, body)


def op_names(target: Module | Function) -> list[str]:
    """Names of the operators called, primitive functions' included, in post-order."""
    root = target.main if isinstance(target, Module) else target
    nodes = post_order(root, into_functions=True)
    return [n.op_name for n in nodes if isinstance(n, Call) and not isinstance(n.op, Function)]


def random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def apply(given: Module, *passes: Pass, **options: Any) -> Module:
    """The module after the passes; every node of it must know where it came from."""
    manager = PassManager(passes, target=lanes(), **options)
    result = manager.run(given)
    for stage in manager.stages:
        assert stage.lineage is not None or stage is manager.stages[0]
    for node in post_order(result.main, into_functions=True):
        recorded = any(s.lineage and node.id in s.lineage.origins for s in manager.stages)
        assert node.span or recorded, node
    return result


def outputs(given: Module, inputs: dict[str, Any]) -> list[Any]:
    found = interpret(given, inputs)
    return [found[name] for name in given.output_names]


def same(before: Module, after: Module, tolerance: float = 2e-5) -> None:
    """Both modules give the same outputs on random inputs, unknown sizes being 3."""
    inputs = {}
    for n, param in enumerate(before.main.params):
        sizes = [d if isinstance(d, int) else 3 for d in param.tensor.shape]
        data = random(*sizes, seed=100 + n)
        inputs[param.name] = data.astype(to_numpy(param.tensor.dtype))
    for a, b in zip(outputs(before, inputs), outputs(after, inputs), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1, np.abs(a).max()))


@pytest.fixture
def kit() -> SimpleNamespace:
    return SimpleNamespace(
        layer=Layer(),
        var=var,
        const=const,
        module=module,
        function=function,
        op_names=op_names,
        random=random,
        apply=apply,
        same=same,
        interpret=outputs,
        lanes=lanes,
        tiles=tiles,
        PassManager=PassManager,
    )
