"""Convolutions of waveforms with vectors along the signal: values, and when they are chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import clew
from clew.cost.convolution import SignalLayer, SignalPart, signal_parts
from clew.ir.dims import SymDim
from clew.ir.module import Module
from clew.machine.target import Target, target_of
from clew.passes.convolution.lift_signals import LiftSignals
from clew.passes.convolution.vectorize_signals import VectorizeSignals
from clew.runtime.guard import GuardSide

N = SymDim.symbol("n")

# batch, channels, filters, window, attributes
CASES: list[tuple[int, int, int, int, dict[str, Any]]] = [
    (1, 1, 33, 10, {"strides": (5,)}),
    (2, 1, 18, 64, {}),
    (1, 1, 20, 37, {"strides": (16,), "padding": (18, 18)}),  # phases of three and of two taps
    (2, 3, 7, 13, {"strides": (4,), "padding": (2, 5)}),
    (1, 1, 17, 5, {"strides": (7,), "padding": (1, 0)}),  # unread elements between windows
    (1, 2, 9, 7, {"strides": (4,), "dilation": (6,), "padding": (9, 3)}),
    (2, 1, 5, 3, {"strides": (3,), "dilation": (3,)}),
    (1, 1, 40, 8, {"dilation": (5,), "padding": (17, 18)}),
    (1, 6, 24, 9, {"strides": (4,), "groups": 3, "padding": (0, 4)}),
    (2, 2, 12, 16, {"strides": (3,), "groups": 2}),
    (1, 30, 3, 5, {"padding": (2, 2)}),  # few filters
    (1, 1, 1, 21, {"padding": (10, 10)}),
]


def reach(case: Any) -> int:
    """The shortest signal."""
    *_, window, attrs = case
    read = (window - 1) * attrs.get("dilation", (1,))[0] + 1
    return int(max(read - sum(attrs.get("padding", (0, 0))), 1))


def network(kit: Any, case: Any, length: Any, count: Any = None) -> Module:
    batch, channels, filters, window, attrs = case
    x = kit.var("x", count or batch, channels, length)
    shape = filters, channels // attrs.get("groups", 1), window
    weight = kit.const(kit.random(*shape, seed=window) / np.float32(4))
    y = kit.layer("nn.conv1d", x, weight, **attrs)
    bias = kit.const(kit.random(filters, 1, seed=1), "bias")
    return kit.module([x], kit.layer("nn.relu", kit.layer("add", y, bias)))  # type: ignore[no-any-return]


def network_of_run(kit: Any, case: Any, length: int) -> Module:
    """The same with a weight of the run."""
    batch, channels, filters, window, attrs = case
    x = kit.var("x", batch, channels, length)
    weight = kit.var("w", filters, channels // attrs.get("groups", 1), window)
    return kit.module([x, weight], kit.layer("nn.conv1d", x, weight, **attrs))  # type: ignore[no-any-return]


def along(module: Module) -> bool:
    """Whether a convolution has a plain result, whatever layouts come later."""
    return 'out_layout="NCHW")' in str(module)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_kept(kit: Any, case: Any) -> None:
    for length in (reach(case), reach(case) + 1, reach(case) + 400):
        given = network(kit, case, length)
        after = kit.apply(given, LiftSignals(), VectorizeSignals())
        assert "nn.conv1d" not in kit.op_names(after)
        assert along(after) or length < reach(case) + 400
        kit.same(given, after)


@pytest.mark.parametrize("target", [None, "cpu-avx2", "cpu-avx512"])
@pytest.mark.parametrize("n", range(0, len(CASES), 2))
def test_native_code_for_all_lengths(
    kit: Any, n: int, target: str | None, runs_here: Callable[[str | Target], None]
) -> None:
    """One build serves all lengths and batches, and reads nothing outside of the signal."""
    if target:
        runs_here(target)
    case = CASES[(n + (target is not None)) % len(CASES)]
    given = network(kit, case, N, SymDim.symbol("batch"))
    options: dict[str, Any] = {"target": target} if target else {}
    compiled = clew.compile(
        given,
        threads=1 + n % 2,
        diagnostics=clew.Diagnostics(guard=list(GuardSide)[n % 2]),
        **options,
    )
    for batch, more in ((1, 0), (3, 1), (1, 77), (2, 500)):
        x = {"x": kit.random(batch, case[1], reach(case) + more, seed=more)}
        (expected,), found = kit.interpret(given, x), compiled.run(x)
        np.testing.assert_allclose(expected, found["y0"], rtol=1e-4, atol=1e-4)
    assert compiled.builds_made == 1


def test_a_signal_shorter_than_a_window_is_an_error_of_the_call(kit: Any) -> None:
    compiled = clew.compile(network(kit, CASES[0], N), threads=1)
    with pytest.raises(clew.ClewError) as caught:
        compiled.run({"x": kit.random(1, 1, 9)})
    assert caught.value.code != "C080"


def test_whole_builds_verify(kit: Any) -> None:
    given = network(kit, CASES[2], 500)
    compiled = clew.compile(given, threads=1)
    assert compiled.trace.verify({"x": kit.random(1, 1, 500)}).ok
    wide = clew.compile(given, target="cpu-avx512")
    assert "signal_phases" in kit.op_names(wide.build.stages[-1].module)


@pytest.mark.parametrize(
    ("filters", "window", "stride", "length", "wanted"),
    [
        (512, 10, 5, 16000, True),  # a short window: transposing the result would take longer
        (33, 64, 1, 16000, True),  # 15 of 48 lanes would be empty
        (258, 256, 64, 512, False),  # five windows do not fill a vector
        (514, 512, 512, 512, False),
    ],
)
def test_selection_by_cost(
    kit: Any, filters: int, window: int, stride: int, length: int, wanted: bool
) -> None:
    given = network(kit, (1, 1, filters, window, {"strides": (stride,)}), length)
    assert along(kit.apply(given, LiftSignals(), VectorizeSignals())) is wanted


@pytest.mark.parametrize("case", CASES)
def test_weights_of_the_run(kit: Any, case: Any) -> None:
    length = reach(case) + 999
    given = network_of_run(kit, case, length)
    after = kit.apply(given, LiftSignals(), VectorizeSignals())
    assert along(after) is along(
        kit.apply(network(kit, case, length), LiftSignals(), VectorizeSignals())
    )
    shapes = {v.name: v.tensor.concrete for v in given.main.params}
    values = {name: kit.random(*shape) for name, shape in shapes.items()}
    (expected,), (found,) = (kit.interpret(module, values) for module in (given, after))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_results_that_a_convolution_in_blocks_reads_stay_in_blocks(kit: Any) -> None:
    x = kit.var("x", 1, 1, 4000)
    weight = kit.const(kit.random(64, 1, 10))
    y = kit.layer("nn.gelu", kit.layer("nn.conv1d", x, weight, strides=(5,)))
    alone = kit.module([x], y)
    z = kit.layer("nn.conv1d", y, kit.const(kit.random(64, 64, 3)))
    read = kit.module([x], z)
    assert along(kit.apply(alone, LiftSignals(), VectorizeSignals()))
    assert not along(kit.apply(read, LiftSignals(), VectorizeSignals()))


def test_filters_that_fill_no_block_are_stored_in_blocks(
    kit: Any, runs_here: Callable[[str | Target], None]
) -> None:
    """257 filters of a long window: vectors of filters, the last one padded with zeros."""
    runs_here("cpu-avx512")
    given = network(kit, (1, 1, 257, 512, {"strides": (160,)}), 8000)
    compiled = clew.compile(given, threads=1, target="cpu-avx512")
    assert next(str(d).partition(":")[0] for k in compiled.kernels for d in k.choices) == "conv"
    x = {"x": kit.random(1, 1, 8000)}
    (expected,), found = kit.interpret(given, x), compiled.run(x)
    np.testing.assert_allclose(expected, found["y0"], rtol=1e-3, atol=1e-3)


def test_parts_cover_all_taps_once() -> None:
    target = target_of("cpu-avx512")
    for taps, stride, dilation in ((10, 5, 1), (512, 160, 1), (3, 10, 1), (7, 4, 6), (9, 4, 1)):
        layer = SignalLayer(1, 1, 8, 100, taps, stride, dilation)
        parts = signal_parts(layer, target)
        read = [
            part.first + p + n * layer.period
            for part in parts for p in range(part.phases) for n in range(part.taps)
        ]  # fmt: skip
        assert len(set(read)) == len(read)
        assert set(read) >= set(range(taps))
    assert signal_parts(SignalLayer(1, 1, 8, 100, 512, 160), target) == [
        SignalPart(0, 32, 4), SignalPart(32, 128, 3),
    ]  # fmt: skip
