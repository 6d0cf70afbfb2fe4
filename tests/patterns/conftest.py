"""What tests of patterns share: graphs of whole numbers, on which every rewrite is exact."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.ops.registry import get_op
from clew.patterns import Pattern, is_op, is_tuple_get_item, wildcard
from clew.trace.lineage import building
from clew.trace.span import Source, Span

I = TensorType((4,), "i64")  # noqa: E741
BINARY = ("add", "multiply", "subtract", "maximum")
UNARY = ("negative", "abs")


def op(name: str, *args: Expr, layer: str = "", **attrs: Any) -> Call:
    with building(Span([Source(layer or f"{name}_layer")])):
        return get_op(name)(*args, **attrs)


def graph(seed: int, size: int, outputs: int = 2, near: float = 0.4) -> Function:
    """A random graph over two variables: calls, splits into two, and constants now and then. The
    larger `near`, the deeper; the smaller, the wider.
    """
    rng = random.Random(seed)
    params = [Var(name, I) for name in ("x", "y")]
    values: list[Expr] = [*params]
    for _ in range(size):
        a, b = (values[max(0, len(values) - 1 - int(rng.expovariate(near)))] for _ in range(2))
        kind = rng.random()
        if kind < 0.5:
            values.append(op(rng.choice(BINARY), a, b))
        elif kind < 0.75:
            values.append(op(rng.choice(UNARY), a))
        elif kind < 0.9:
            values.append(op(rng.choice(BINARY), a, Constant.splat(rng.choice([0, 1, 2, 3]), I)))
        else:
            halves = op("split", a, sizes=(1, 3), axis=0)
            parts = [TupleGetItem(halves, n) for n in rng.sample([0, 1], 2)]
            values.append(op("concatenate", *parts, axis=0))
    ends = [values[-1], *rng.choices(values[-4:], k=outputs - 1)]
    names = tuple(f"z{n}" for n in range(outputs))
    return Function(params, Tuple(ends), {"outputs": names})


def pattern_of(node: Expr, rng: random.Random, most: int, loose: bool = False) -> Pattern:
    """A pattern of up to `most` of the nodes under a call, wildcards for the rest. A loose one
    takes any operator of as many inputs.
    """
    made: dict[int, Pattern] = {}
    chosen = {node.id}
    edge = [node]
    while edge and len(chosen) < most:
        at = edge.pop(rng.randrange(len(edge)))
        for child in at.children:
            inner = isinstance(child, (Call, TupleGetItem)) and rng.random() < 0.7
            if inner and child.id not in chosen and len(chosen) < most:
                chosen.add(child.id)
                edge.append(child)
    for n in post_order(node):
        if n.id not in chosen:
            made[n.id] = wildcard()
        elif isinstance(n, TupleGetItem):
            made[n.id] = is_tuple_get_item(made[n.value.id], n.index)
        else:
            assert isinstance(n, Call)
            alike = next((f for f in (BINARY, UNARY) if loose and n.op_name in f), (n.op_name,))
            made[n.id] = is_op(*alike)(*[made[a.id] for a in n.args])
    return made[node.id]


def values(function: Function, seed: int = 0) -> list[Any]:
    """The outputs on random numbers."""
    rng = np.random.default_rng(seed)
    data = {p.name: rng.integers(-9, 9, p.tensor.concrete) for p in function.params}
    found = interpret(Module({"main": function}), data)
    return [found[name] for name in function.attrs["outputs"]]


def equal(a: Function, b: Function) -> bool:
    """Whether two functions give the same outputs."""
    return all(np.array_equal(p, q) for p, q in zip(values(a), values(b), strict=True))


@pytest.fixture
def kit() -> SimpleNamespace:
    return SimpleNamespace(
        I=I, op=op, graph=graph, pattern_of=pattern_of, values=values, equal=equal
    )
