"""The analytic estimate of a kernel's time: each part of it, from one row of facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clew.ir.dims import SymDim
from clew.ir.expr import Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.machine import target as targets
from clew.machine.rates import DEFAULT_RATES
from clew.machine.target import host, rates_of, target_of
from clew.ops.registry import get_op
from clew.predict import forecast
from clew.predict.analytic import USED, Analytic, core_cycles
from clew.predict.frequencies import frequencies
from clew.predict.plan import plan
from clew.predict.program import DISTANCES

_RATES = replace(DEFAULT_RATES, ghz=2.0, start=100.0)


@pytest.fixture(autouse=True)
def known_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "kept_rates", lambda identity: _RATES)


def _ns(**given: float) -> float:
    columns = {name: np.zeros(1) for name in USED}
    columns |= {"span": np.ones(1), "phases": np.ones(1), "threads": np.ones(1)}
    columns |= {name: np.full(1, value) for name, value in given.items()}
    return float(Analytic.of(host()).estimate(columns)[0][0])


def test_cycles_become_nanoseconds_after_a_start() -> None:
    assert _ns(core_cycles=1900.0) == pytest.approx(1000)
    assert _ns(core_cycles=1900.0, phases=2) == pytest.approx(1050)


def test_fetching_overlaps_with_computing() -> None:
    lines = {"lines_0_2": 1e5, "lines_2_2": 1e5}
    fetching = _ns(**lines)
    assert fetching == pytest.approx((1e5 * _RATES.l3_line + 100) / 2)
    assert fetching < _ns(core_cycles=2e5, **lines) < fetching + 1e5
    assert _ns(core_cycles=1e7, **lines) == pytest.approx(_ns(core_cycles=1e7), rel=0.01)


def test_lines_come_from_where_they_were_left() -> None:
    lines, size = {"lines_0_2": 1e5, "lines_2_2": 1e5}, 64 * 10**5
    within = {limit: next(n for n, d in enumerate(DISTANCES) if d >= limit) for limit in
              (1 << 13, 1 << 18, 1 << 23)}  # fmt: skip
    near, second, third = (_ns(**lines, **{f"value_bytes_{n}": size}) for n in within.values())
    memory = _ns(**lines, **{f"value_bytes_{len(DISTANCES)}": size})
    assert near < second < third < memory
    assert second == pytest.approx((1e5 * _RATES.l2_line + 100) / 2)
    assert memory == pytest.approx((1e5 * _RATES.memory_line + 100) / 2)


def test_threads_divide_the_span_and_wait_for_each_other() -> None:
    alone = _ns(core_cycles=1e6)
    both = _ns(core_cycles=1e6, span=0.5, threads=2)
    assert alone / 2 < both < alone / 2 + 1000


def test_only_this_machine_is_measured() -> None:
    assert rates_of(host()) == (_RATES, True)
    found, measured = rates_of(target_of("cpu-avx512"))
    assert not measured
    assert found.vectors == 2.0


def test_a_model_is_predicted_for_any_target_without_a_table(small_module: Any) -> None:
    module: Module = small_module(0)
    here = forecast(module, threads=1)
    assert here.total_ns > 0
    assert here.low_ns < here.total_ns < here.high_ns
    assert all(k.ns > 0 and not k.unfamiliar for k in here.kernels)
    assert sum(here.layers.values()) == pytest.approx(sum(k.ns for k in here.kernels))
    for name in ("cpu-avx512", "cpu-neon"):
        there = forecast(module, threads=1, target=name)
        assert there.total_ns > 0
        assert any("description" in note for note in there.notes)
        assert there.high_ns / there.total_ns > here.high_ns / here.total_ns


def test_more_channels_take_longer(small_module: Any) -> None:
    times = [forecast(small_module(n), threads=1).total_ns for n in (0, 6)]
    assert times[0] < times[1]


def test_the_assembly_has_the_multiply_adds_of_a_product(small_module: Any) -> None:
    made = plan(small_module(4), threads=1)
    for use in made.uses:
        text, code = use.source.emitted.llvm, use.source.code
        found = frequencies(text, code.entries)
        cycles = core_cycles(text, found, host())
        if host().triple.startswith("x86_64"):
            assert cycles is not None
            assert cycles > 0
        assert core_cycles(text, found, target_of("cpu-neon")) is None


def test_free_sizes_are_bound_without_compiling() -> None:
    x = Var("x", TensorType((SymDim.symbol("n"), 64), "f32"))
    function = Function([x], Tuple([get_op("nn.relu")(x)]), {"outputs": ("y",)})
    module = Module({"main": function})
    small, large = (forecast(module, threads=1, sizes={"n": n}).total_ns for n in (64, 65536))
    assert small < large
