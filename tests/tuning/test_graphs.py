"""Decisions about the graph are found, verified, measured, applied, and told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.frontends import onnx
from clew.ir.module import Module
from clew.ir.visit import post_order
from clew.machine.target import host
from clew.passes.decisions import Decision
from clew.predict.network import Network
from clew.records import Store
from clew.records.trial import Outcome
from clew.runtime.cache import Cache
from clew.tuning.graphs import GraphBench, GraphCandidate
from clew.tuning.sequential import Demand
from clew.tuning.verifying import Verifier
from clew.tuning.whole import Whole
from clew.tuning.workbench import Workbench

QUICK = Demand(most=3)


def network() -> Any:
    """Returns an ONNX model of 3x3 convolutions with enough channels for all algorithms."""
    net = Network("convolutions", 3)
    y = net.input("x", (1, 16, 17, 18))
    for number, (inner, outer) in enumerate(((16, 32), (32, 48))):
        weight = net.weight(outer, inner, 3, 3, scale=0.1)
        bias = net.weight(outer)
        y = net.add(
            "Conv", [y, weight, bias], (1, outer, 17, 18), pads=[1] * 4, kernel_shape=[3, 3],
            strides=[1, 1], group=1,
        )  # fmt: skip
        y = net.unary("Relu" if number else "Sigmoid", y)
    return net.model(y)


@pytest.fixture
def convolutions() -> Module:
    return onnx.load(network())


def _bench(module: Module, tmp_path: Path) -> GraphBench:
    target = "cpu-avx512" if host().vector_registers == 32 else "cpu-avx2"
    compiled = clew.compile(module, target, threads=1, tuned=None)
    return GraphBench(Workbench(compiled, Cache(tmp_path / "cache")))


def _candidates(decisions: Sequence[Decision]) -> list[GraphCandidate]:
    return [
        GraphCandidate(d.kind, d.subject, option)
        for d in decisions
        for option in d.options
        if option != d.default
    ]


def test_every_option_of_every_decision_computes_the_same(
    tmp_path: Path, convolutions: Module
) -> None:
    bench = _bench(convolutions, tmp_path)
    decisions = bench.decisions()
    assert {d.kind for d in decisions} == {"convolution", "panel"}
    algorithms = [d for d in decisions if d.kind == "convolution"]
    assert all({"direct", "2x2 tiles", "3x3 tiles"} <= set(d.options) for d in algorithms)
    assert all(d.layers for d in decisions)
    candidates = _candidates(decisions)
    found = bench.run(candidates, decisions, QUICK)
    assert {(o.subject, o.choices) for o in found} == {(c.subject, c.option) for c in candidates}
    for outcome in found:
        assert outcome.state in ("won", "lost", "undecided"), outcome.reason
        assert outcome.ratio is not None
        assert outcome.ratio > 0


def test_wrong_graphs_are_found_one_by_one(
    tmp_path: Path, convolutions: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = _bench(convolutions, tmp_path)
    decisions = bench.decisions()
    wrong = Verifier.wrong

    def fails_with_two_by_two(self: Verifier, subject: str, function: Any, choices: str) -> str:
        tiled = any(getattr(n, "attrs", {}).get("tile") == 2 for n in _nodes(function))
        return "it is wrong" if tiled else wrong(self, subject, function, choices)

    monkeypatch.setattr(Verifier, "wrong", fails_with_two_by_two)
    found = bench.run(_candidates(decisions), decisions, QUICK)
    states = {(o.choices, o.state) for o in found if "tiles" in o.choices or o.state == "wrong"}
    assert ("2x2 tiles", "wrong") in states
    assert all(choices == "2x2 tiles" for choices, state in states if state == "wrong")


def _nodes(function: Any) -> Any:
    return post_order(function.body)


def _preferring(self: GraphBench, candidates: Any, *_: Any) -> list[Outcome]:
    """Measures nothing: the direct algorithm and panels of one vector are faster."""
    faster = {"direct": 0.5, "1": 0.75}
    return [
        Outcome(
            c.subject, c.option, "won" if c.option in faster else "lost", ns=1e3, pairs=9,
            against_ns=2e3, ratio=faster.get(c.option, 1.5),
        )
        for c in candidates
    ]  # fmt: skip


def _whole_calls(monkeypatch: pytest.MonkeyPatch, ratio: float | None) -> None:
    """Whole calls take times of a ratio; None if they are disturbed."""
    found = Whole() if ratio is None else Whole(1e6, ratio, ratio, ratio, 9)
    monkeypatch.setattr(Workbench, "compared", lambda *_: found)


def test_decisions_wait_for_undisturbed_whole_calls(
    tmp_path: Path, convolutions: Module, lawful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GraphBench, "run", _preferring)
    _whole_calls(monkeypatch, None)
    path = tmp_path / "t.db"
    clew.tune(convolutions, minutes=2, trials=8, database=path, threads=1)
    with Store(path) as store:
        direct = [t for t in store.trials(kind="convolution") if t.choices == "direct"]
    assert direct
    assert {t.state for t in direct} == {"won"}


def test_decisions_that_make_whole_calls_slower_are_not_applied(
    tmp_path: Path, convolutions: Module, lawful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GraphBench, "run", _preferring)
    _whole_calls(monkeypatch, 1.1)
    path = tmp_path / "t.db"
    report = clew.tune(convolutions, minutes=2, trials=12, database=path, threads=1)
    assert not report.decisions
    with Store(path) as store:
        direct = [t for t in store.trials(kind="convolution") if t.choices == "direct"]
        assert direct
        assert all((t.state, t.ratio) == ("lost", 0.5) for t in direct)
        assert all("whole calls are not faster" in t.reason for t in direct)


def test_decisions_that_won_are_applied_and_told(
    tmp_path: Path, convolutions: Module, lawful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GraphBench, "run", _preferring)
    _whole_calls(monkeypatch, 0.9)
    path = tmp_path / "t.db"
    report = clew.tune(convolutions, minutes=2, trials=30, database=path, threads=1)
    default = clew.compile(convolutions, tuned=None, threads=1)
    tuned = clew.compile(convolutions, tuned=path, threads=1)
    assert any("winograd" in op for k in default.kernels for op in k.ops)
    assert not any("winograd" in op for k in tuned.kernels for op in k.ops)
    inputs = default.drawn(seed=5)
    np.testing.assert_allclose(tuned(*inputs), default(*inputs), rtol=1e-3, atol=1e-4)
    assert any("convolution: direct" in text for text in report.decisions)
    layers = [layer for kernel in tuned.kernels for layer in kernel.layers]
    stories = [str(tuned.trace.layer(layer)) for layer in layers if "conv" in layer]
    assert stories
    assert all("convolution: direct" in story for story in stories)
    with Store(path) as store:
        kinds = {t.kind for t in store.trials()}
        assert kinds >= {"kernel", "convolution", "panel"}
        # Kernels of the graph that the decisions make were tuned, not those of the default graph.
        uses = {u.kernel for u in store.uses() if u.kind == "kernel" and u.subject in {
            t.subject for t in store.trials() if t.kind == "kernel"}}  # fmt: skip
        assert not any("winograd" in name for name in uses)
    # A second session tries nothing of the graph again.
    before = len(Store(path).trials(kind="convolution"))
    clew.tune(convolutions, minutes=2, trials=4, database=path, threads=1)
    assert len(Store(path).trials(kind="convolution")) == before


def test_options_that_are_gone_are_skipped(
    tmp_path: Path, convolutions: Module, lawful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.db"
    clew.tune(convolutions, minutes=2, trials=12, database=path, threads=1)
    with Store(path) as store:
        store.update(
            *(
                replace(t, state="won", total_ratio=0.5, choices="8x8 tiles")
                for t in store.trials(kind="convolution")
            )
        )
        assert store.trials(kind="convolution")
    report = clew.tune_report(convolutions, database=path, threads=1)
    assert any("'8x8 tiles' is no longer an option" in text for text in report.skipped)
    default = clew.compile(convolutions, tuned=None, threads=1)
    tuned = clew.compile(convolutions, tuned=path, threads=1)
    assert [k.ops for k in tuned.kernels] == [k.ops for k in default.kernels]
