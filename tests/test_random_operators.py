"""Random operators of users' in random graphs survive every pass, at every level, and compute what
their references say, with nothing lost to the trace.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import clew
from clew import te
from clew.ir.expr import Expr, TupleGetItem
from clew.ir.interpret import interpret
from clew.ir.visit import calls
from clew.ops.registry import Op
from clew.runtime.guard import GuardSide
from clew.te.tensor import Tensor
from random_graphs import Array, Graph, Shape, close

pytestmark = pytest.mark.usefixtures("shared_kernels")

CASES = 400
_A_TEST = 20

# Of a scalar or an array, with two numbers that attributes give: te's form and numpy's.
_FORMS: tuple[tuple[Callable[..., Any], Callable[..., Any]], ...] = (
    (lambda v, a, b: v * a + b, lambda v, a, b: v * a + b),
    (lambda v, a, b: te.maximum(v, a) - b, lambda v, a, b: np.maximum(v, a) - b),
    (lambda v, a, b: te.select(v > b, v * a, v), lambda v, a, b: np.where(v > b, v * a, v)),
    (lambda v, a, b: te.call("tanh", v * a) * b, lambda v, a, b: np.tanh(v * a) * b),
    (lambda v, a, b: v * v * a - v * b, lambda v, a, b: v * v * a - v * b),
    (
        lambda v, a, b: te.call("exp", te.minimum(v, a) * b),
        lambda v, a, b: np.exp(np.minimum(v, a) * b),
    ),
)  # fmt: skip


def _elementwise(name: str, form: int) -> Op:
    compute, reference = _FORMS[form]

    @clew.register_op(name)
    def op(x: Tensor, *, a: float = 0.5, b: float = 0.25) -> Tensor:
        return te.compute(x.shape, lambda *i: compute(x[i], a, b), "made", layout=x.layout)

    op.reference(lambda x, *, a, b: reference(x, np.float32(a), np.float32(b)).astype(np.float32))
    return op


def _of_two(name: str, form: int) -> Op:
    compute, reference = _FORMS[form]

    @clew.register_op(name)
    def op(x: Tensor, y: Tensor, *, a: float = 0.5, b: float = 0.25) -> Tensor:
        return te.compute(x.shape, lambda *i: compute(x[i] - y[i], a, b), "made")

    op.reference(lambda x, y, *, a, b: reference(x - y, np.float32(a), np.float32(b)))
    return op


def _moving(name: str, form: int) -> Op:
    """Elements from elsewhere: turned round along the last axis, or shifted."""

    @clew.register_op(name)
    def op(x: Tensor, *, a: int = 1, b: int = 0) -> Tensor:
        n = x.shape[-1]

        def element(*i: Any) -> Any:
            last = n - 1 - i[-1] if form % 2 else (i[-1] + abs(a)) % n
            return x[(*i[:-1], last)] + float(b)

        return te.compute(x.shape, element, "moved")

    def reference(x: Array, *, a: int, b: int) -> Array:
        moved = x[..., ::-1] if form % 2 else np.roll(x, -abs(a), -1)
        return moved + np.float32(b)

    op.reference(reference)
    return op


def _reduction(name: str, form: int) -> Op:
    combiner = ("sum", "max", "min")[form % 3]
    compute, reference = _FORMS[form]

    @clew.register_op(name)
    def op(x: Tensor, *, a: float = 0.5, b: float = 0.25) -> Tensor:
        k = te.reduce_axis(x.shape[-1], "k")
        return te.compute(
            x.shape[:-1], lambda *i: te.reduce(combiner, compute(x[(*i, k)], a, b), k), "reduced"
        )

    whole = {"sum": np.sum, "max": np.max, "min": np.min}[combiner]
    op.reference(
        lambda x, *, a, b: np.asarray(whole(reference(x, np.float32(a), np.float32(b)), -1), "f4")
    )
    return op


def _two_results(name: str, form: int) -> Op:
    """A reduction and what it leaves of each element."""
    compute, reference = _FORMS[form]

    @clew.register_op(name)
    def op(x: Tensor, *, a: float = 0.5, b: float = 0.25) -> tuple[Tensor, Tensor]:
        k = te.reduce_axis(x.shape[-1], "k")
        top = te.compute(x.shape[:-1], lambda *i: te.max(x[(*i, k)], k), "top")
        rest = te.compute(x.shape, lambda *i: compute(x[i] - top[i[:-1]], a, b), "rest")
        return rest, top

    def both(x: Array, *, a: float, b: float) -> tuple[Array, Array]:
        top = x.max(-1)
        return reference(x - top[..., None], np.float32(a), np.float32(b)), top

    op.reference(both)
    return op


_KINDS = (_elementwise, _of_two, _moving, _reduction, _two_results)
OPS = [
    make(f"random.{make.__name__.strip('_')}{form}", form)
    for make in _KINDS
    for form in range(len(_FORMS))
]


def custom(graph: Graph, x: Expr, shape: Shape) -> Expr | None:
    """Returns a call of one of the operators, with attributes or their defaults."""
    op = graph.random.choice(OPS)
    if not shape:
        return None
    attrs: dict[str, Any] = {}
    if graph.random.random() < 0.7:
        whole = "moving" in op.name
        attrs = {
            n: graph.random.randint(0, 2) if whole else round(graph.random.uniform(-1, 1), 2)
            for n in "ab"
        }
    args = [x, graph.like(x)][: len(op.signature.inputs)]
    call = op(*args, **attrs)
    return TupleGetItem(call, graph.random.randrange(2)) if "two_results" in op.name else call


def a_graph(seed: int) -> Graph:
    graph = Graph(seed, [custom] * 10)
    for _ in range(random.Random(seed).randint(2, 4)):
        graph.grow()
    return graph


@pytest.mark.parametrize("first", range(0, CASES, _A_TEST))
def test_operators_survive(first: int) -> None:
    for seed in range(first, first + _A_TEST):
        graph = a_graph(seed)
        module = graph.module()
        with np.errstate(all="ignore"):
            expected = interpret(module, graph.arrays)
        compiled = clew.compile(
            module,
            opt_level=seed % 4,
            threads=1,
            cache=False,
            diagnostics=clew.Diagnostics(guard=list(GuardSide)[seed % 3 % 2]),
        )
        for name, found in compiled.run(graph.arrays).items():
            close(found, expected[name])
        assert compiled.trace.check() == [], seed
        if seed % 5 == 0:
            assert compiled.trace.verify(graph.arrays).ok, seed


def test_the_graphs_hold_operators_of_every_kind() -> None:
    met = [a_graph(seed) for seed in range(200)]
    names = [c.op_name for g in met for c in calls(g.module().main) if "random." in c.op_name]
    assert len(names) > len(met) / 2
    assert {n.rstrip("0123456789") for n in names} == {o.name.rstrip("0123456789") for o in OPS}
