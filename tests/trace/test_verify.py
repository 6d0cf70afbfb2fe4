from typing import Any

import numpy as np
import pytest
from toys import (
    Block,
    Decompose,
    Drop,
    Fold,
    Fuse,
    Lie,
    Unify,
    applied,
    layer,
    module_of,
    parameter,
    run,
    source_input,
    swish_model,
    traced,
)

from clew.build.tracing import trace_of
from clew.ir.expr import Call, Constant, Expr, Var
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType, to_numpy
from clew.machine.target import target_of
from clew.passes.base import PassContext
from clew.passes.precision.convert_precision import ConvertPrecision
from clew.passes.precision.widen_halves import WidenHalves
from clew.passes.simplify.canonicalize_ops import CanonicalizeOps
from clew.passes.simplify.fold_constant import FoldConstant
from clew.support.errors import InputError
from clew.trace.span import Source, Span
from clew.trace.stages import StageRecord
from clew.trace.verify import difference

RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def test_true_links_hold() -> None:
    trace = traced(swish_model(), Decompose, Fold, Drop, Unify, Fuse)
    report = trace.verify({"x": random(2, 4)})
    assert report.ok, str(report)
    assert report.checked >= 8
    assert str(report).startswith(f"{report.checked} of {report.checked} links hold")


def test_a_planted_false_link_is_caught() -> None:
    x = source_input("x", 2, 4)
    module = module_of([x], layer("act", "nn.swish", layer("e", "exp", x)))
    report = traced(module, Decompose, Lie, Drop).verify({"x": random(2, 4)})
    assert not report.ok
    # Every node downstream of the lie differs as well; the first that does names the culprit.
    first = report.failures[0]
    assert (first.stage, first.layers) == ("Lie", ("e",))
    assert "relative error" in first.reason
    assert str(first) in str(report)


def test_a_lie_inside_a_kernel_is_caught() -> None:
    class LieInside(Rewriter):
        enter_primitive = True

        def rewrite_call(self, old, new):  # type: ignore[no-untyped-def]
            if old.op_name != "sigmoid":
                return new
            from clew.ops.registry import get_op  # noqa: PLC0415

            return get_op("tanh")(new.args[0])

    records = run(swish_model(), **applied(Decompose, Fold, Drop, Fuse, LieInside))
    report = trace_of(records).verify({"x": random(2, 4)})
    assert {f.stage for f in report.failures} == {"LieInside"}
    assert ("act",) in {f.layers for f in report.failures}


def test_a_false_argument_of_an_unchanged_kernel_is_caught() -> None:
    class Swap(Rewriter):
        def rewrite_call(self, old: Call, new: Call) -> Call:
            if old.title != "k":
                return new
            return new.with_args(list(reversed(new.args)))

    x, y = source_input("x", 2, 4), source_input("y", 2, 4)
    module = module_of([x, y], layer("minus", "subtract", x, y))
    trace = trace_of(run(module, **applied(Fuse, Swap)))
    inputs = {"x": random(2, 4), "y": random(2, 4)}
    assert trace_of(run(module, **applied(Fuse))).verify(inputs).ok
    assert not trace.verify(inputs).ok


@pytest.mark.parametrize("channels", [8, 6])
def test_values_are_mapped_between_layouts(channels: int) -> None:
    x = source_input("x", 1, channels, 3, 3)
    trace = traced(module_of([x], layer("act", "nn.relu", x)), Block)
    report = trace.verify({"x": random(1, channels, 3, 3)})
    assert report.ok, str(report)


def test_inputs_must_be_those_of_the_model() -> None:
    with pytest.raises(InputError, match="I041"):
        traced(swish_model(), Drop).verify({"z": random(2, 4)})


@pytest.mark.parametrize(
    ("a", "b", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, 3.0], 0.5),
        ([np.nan, 2.0], [np.nan, 2.0], 0.0),
        ([np.nan, 2.0], [1.0, 2.0], np.inf),
        ([1.0, np.inf], [1.0, np.inf], 0.0),
        ([1.0, np.inf], [1.0, -np.inf], np.inf),
        ([1.0, 2.0], [1.0, np.inf], np.inf),
        ([1.0], [1.0, 1.0], np.inf),
        ([0.0], [0.25], 0.25),
        ([], [], 0.0),
    ],
)
def test_difference(a: list[float], b: list[float], error: float) -> None:
    assert difference(np.array(a), np.array(b, dtype=np.float32)) == error


def test_difference_of_other_values() -> None:
    big = np.array([2**62 + 1])
    assert difference(big, big) == 0.0
    assert difference((np.ones(2), None), (np.ones(2), None)) == 0.0
    assert difference((np.ones(2),), np.ones(2)) == np.inf
    assert difference(None, np.ones(2)) == np.inf
    assert difference(np.array(["a"]), np.array(["b"])) == np.inf
    assert difference(np.zeros(2), np.full(2, 1e-7), floor=1e-3) == pytest.approx(1e-4)


def test_values_of_every_kind_are_compared() -> None:
    row, text = np.ones(2, np.float32), np.array(["a", "b"], object)
    assert difference(row + 1j, row + 1.5j) > 0.2  # the imaginary parts, too
    assert difference(row + 1j, row + 1j) == 0
    assert difference(text, np.array(["a", "b"], object)) == 0
    assert difference(text, np.array(["a", "c"], object)) == np.inf
    assert difference([{"a": row}, None], [{"a": row}, None]) == 0
    for other in ([{"a": 2 * row}, None], [{"b": row}, None], [{"a": row}, row], [{"a": row}], row):
        assert difference([{"a": row}, None], other) > 0


class Negligent(Rewriter):
    """Claims that `tanh(x)` is `x`."""

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        return new.args[0] if old.op_name == "tanh" else new


def deep(dtype: str) -> Module:
    """Returns layers of a narrow float, between which roundings add up, and a small correction that
    a false link may leave out.
    """
    rng = np.random.default_rng(3)
    value: Expr = Var("x", TensorType((8, 32), dtype), span=Span([Source("x", "", "toy", "input")]))
    params = [value]

    def of(data: np.ndarray) -> Constant:
        return Constant(data.astype(to_numpy(dtype)))

    for n in range(24):
        weight, scale = rng.normal(0, 1 / 32**0.5, (32, 32)), rng.uniform(0.5, 1.5, 32)
        dense = layer(f"dense{n}", "nn.dense", value, of(weight))
        spread = layer(f"root{n}", "sqrt", layer(f"eps{n}", "add", of(scale), of(np.float64(1e-3))))
        active = layer(f"act{n}", "nn.gelu", layer(f"norm{n}", "divide", dense, spread))
        value = layer(f"sum{n}", "nn.layer_norm", layer(f"add{n}", "add", value, active),
                      of(np.ones(32)), of(np.zeros(32)))  # fmt: skip
    small = layer("tiny", "tanh", layer("tenth", "multiply", value, of(np.float64(0.02))))
    return module_of(params, layer("end", "add", value, small))


def stages_of(module: Module, *passes: Any, **changes: Any) -> list[StageRecord]:
    context = PassContext(target=target_of("cpu"))
    named = {type(p).__name__: (lambda m, p=p: p.run(m, context)) for p in passes}
    return run(module, **named, **changes)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_roundings_of_narrow_floats_do_not_add_up(dtype: str) -> None:
    """Links across passes that round less or differently hold as closely as those of f32."""
    feed = {"x": random(8, 32).astype(to_numpy(dtype))}
    passes = FoldConstant(), WidenHalves(), CanonicalizeOps()
    report = trace_of(stages_of(deep(dtype), *passes)).verify(feed)
    assert report.ok, str(report)
    assert report.checked > 200


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("late", [False, True])
def test_a_false_link_below_the_rounding_of_narrow_floats_is_caught(dtype: str, late: bool) -> None:
    """`tanh(0.02 x)` is `0.02 x` up to 3e-4, less than a rounding of bf16."""
    feed = {"x": random(8, 32).astype(to_numpy(dtype))}
    wrong = applied(Negligent)
    if late:
        trace = trace_of(stages_of(deep(dtype), FoldConstant(), WidenHalves(), **wrong))
    else:
        trace = trace_of(run(deep(dtype), **wrong))
    first = trace.verify(feed).failures[0]
    assert (first.stage, first.layers) == ("Negligent", ("tiny",))


def test_products_rounded_by_a_pass_are_compared_unrounded() -> None:
    x = source_input("x", 16, 64)
    value: Expr = x
    for n in range(12):
        weight = parameter(f"w{n}", np.random.default_rng(n).normal(0, 1 / 8, (64, 64)))
        value = layer(f"act{n}", "nn.relu", layer(f"dense{n}", "nn.dense", value, weight))
    trace = trace_of(stages_of(module_of([x], value), ConvertPrecision("bf16")))
    report = trace.verify({"x": random(16, 64)})
    assert report.ok, str(report)
    assert report.worst < 2.0**-7  # of the weights, which are rounded once


def test_a_constant_rounded_wrongly_is_caught() -> None:
    """A constant may differ by one step of its dtype, not by more."""

    class Careless(Rewriter):
        def rewrite_constant(self, old: Constant) -> Expr:
            return Constant((old.data * 1.02).astype(to_numpy("bf16")).astype(np.float32))

    x, weight = source_input("x", 2, 4), parameter("w", [1.0, 2.0, 3.0, 4.0])
    half = layer("half", "cast", weight, dtype="bf16")
    wide = layer("wide", "cast", half, dtype="f32")
    trace = traced(module_of([x], layer("scale", "multiply", x, wide)), Careless)
    first = trace.verify({"x": random(2, 4)}).failures[0]
    assert first.stage == "Careless"
