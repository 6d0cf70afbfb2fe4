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
    run,
    source_input,
    swish_model,
    traced,
)

from clew.build.tracing import trace_of
from clew.ir.expr import Call
from clew.ir.rewrite import Rewriter
from clew.support.errors import InputError
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
