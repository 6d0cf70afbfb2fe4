"""`clew.torch.compare`, and the trace of graphs of `torch.compile`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import fx, nn

import clew
import clew.torch
import clew.torch.backend
from clew.frontends.torch import from_torch, registry
from clew.frontends.torch.places import is_layer, layer_names, line_of
from clew.ir.expr import Constant
from clew.patterns import RuleRewriter, is_op, rule, wildcard
from clew.torch.compare import WHOLE
from clew.trace.fates import FateKind
from clew.trace.refs import LayerRef


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


class Block(nn.Module):
    """Two layers, of which the first is called twice, and calls that change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm, self.act = nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU()
        self.drop, self.same = nn.Dropout(0.1), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.act(self.lin(self.drop(x.float())))
        (y * 2).sum()  # not used
        return self.norm(self.lin(y) + self.same(x))


class Network(nn.Module):
    """A block that is called twice, whose results are nested."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = Block(), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, Any]:
        y = self.block(self.block(x)) * scale
        return {"y": y, "scores": (self.head(y), y.shape[0], None)}


def given() -> tuple[tuple[torch.Tensor], dict[str, torch.Tensor]]:
    return (torch.randn(3, 8),), {"scale": torch.randn(8)}


x = wildcard()


@rule(is_op("nn.relu")(x))
def by_maximum(found: Any) -> Any:
    return clew.get_op("maximum")(found[x], Constant(np.float32(0.1)))


@clew.graph_pass(before="FuseOps")
def relu_by_maximum(module: Any, ctx: Any) -> Any:
    return RuleRewriter([by_maximum]).rewrite_module(module)


def test_the_first_module_that_differs_is_named_and_bisected() -> None:
    network, (args, kwargs) = Network().eval(), given()
    graph = from_torch(network, args, kwargs)
    compiled = clew.compile(graph, threads=1, extend=[relu_by_maximum])
    report = clew.torch.compare(compiled, network, args, kwargs)
    first = report.first
    assert first is not None
    assert (first.module, first.kind, first.layers) == ("block.act", "ReLU", ("block.act",))
    assert "the first to differ is block.act (ReLU), by 0." in str(report)
    inputs = dict(zip(compiled.input_names, compiled.checked(args, kwargs), strict=True))
    found = clew.bisect(graph, inputs, reference=report.reference, extend=[relu_by_maximum])
    assert (found.kind, found.pass_name) == ("pass", "relu_by_maximum")
    assert set(found.layers) <= {"block.act", "block.act@1"}


def test_each_module_is_a_row_and_says_why_it_is_not_compared() -> None:
    network, (args, kwargs) = Network().eval(), given()
    compiled = clew.compile(from_torch(network, args, kwargs), threads=1)
    before = [a.clone() for a in args]
    report = clew.torch.compare(compiled, network, args, kwargs)
    assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True))
    assert report.first is None
    rows = {row.module: row for row in report.rows}
    assert list(rows)[-1] == WHOLE
    assert [n for n in rows if n.startswith("block") and "." not in n] == ["block", "block@1"]
    assert rows["block"].layers == ("block.norm",)
    assert rows["block@1"].layers == ("block.norm@1",)
    assert rows["block.same"].reason == "it returns its argument"
    inside = rows["block.lin"]
    assert inside.error is None
    assert inside.reason.startswith("inside dense_")
    assert "block.act" in str(inside.refusal)
    forced = clew.torch.compare(compiled, network, args, kwargs, force=True)
    assert forced.first is None
    assert [r.module for r in forced.rows if r.error is None] == ["block.same", "block.same@1"]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())


def test_changed_weights_and_buffers_are_seen() -> None:
    class Averages(nn.Module):
        mean: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(8, 8)
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.up(x)
            self.mean.mul_(0.5).add_(y.mean(0))
            return y - self.mean

    module, (args, _) = Averages().eval(), given()
    compiled = clew.compile(from_torch(module, args), threads=1)
    with torch.no_grad():
        module(*args)  # both start from the buffer's value now
        state = module.mean.clone()
        report = clew.torch.compare(compiled, module, args)
        assert report.first is None
        assert torch.equal(module.mean, state)
        assert [(r.module, r.kind) for r in report.compared[-2:-1]] == [("mean", "buffer")]
        assert set(report.reference) >= {"up", "output", "mean_new"}
        module.up.weight.mul_(2)
        assert clew.torch.compare(compiled, module, args, force=True).first.module == "up"  # type: ignore[union-attr]


def test_programs_of_torch_compile_are_compared() -> None:
    network, (args, kwargs) = Network().eval(), given()
    fast = torch.compile(network, backend="clew")
    report = clew.torch.compare(fast, network, args, kwargs, force=True)
    assert report.first is None
    assert [r.module for r in report.rows if r.error is None] == ["block.same", "block.same@1"]
    with pytest.raises(clew.ClewError, match="I416"):
        clew.torch.compare(lambda x: x, nn.Identity(), args)


def test_each_call_that_dynamo_records_is_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[tuple[fx.GraphModule, fx.GraphModule]] = []
    run_by_parts = clew.torch.backend.run_by_parts

    def seen(graph: Any, given: Any, *rest: Any) -> Any:
        graphs.append((given.earlier.before, graph))
        return run_by_parts(graph, given, *rest)

    monkeypatch.setattr(clew.torch.backend, "run_by_parts", seen)
    network, (args, kwargs) = Network().eval(), given()
    with torch.no_grad():
        torch.compile(network, backend="clew")(*args, **kwargs)
    ((before, after),) = graphs
    ((program),) = clew.torch.last()
    trace = program.compiled.trace
    fates = trace.accounted()
    assert trace.check() == []
    names = layer_names(filter(is_layer, after.graph.nodes))
    assert set(names.values()) <= set(fates) == set(trace.places)
    for name, fate in fates.items():
        assert fate.kind is not FateKind.KERNEL or trace.forward(LayerRef(name)).asm, name
        assert trace.places[name].file == __file__
        assert trace.places[name].line, name
    modules = {name for name, _ in network.named_modules()}
    assert {place.module.partition("@")[0] for place in trace.places.values()} <= modules
    assert {"block.lin", "block.lin@1", "block.lin@3", "block.norm@1", "head"} <= set(fates)
    kept = {source.name for node in after.graph.nodes for source in node.meta.get("from_node", ())}
    calls = [n for n in before.graph.nodes if n.op in ("call_function", "call_method")]
    left = Counter(line_of(node)[1] for node in calls if node.name not in kept)
    settled = {name: fate for name, fate in fates.items() if name not in names.values()}
    assert left == Counter(trace.places[name].line for name in settled)
    assert {str(fate).partition(": ")[2].partition(",")[0] for fate in settled.values()} == {
        "a no-op", "result not used",
    }  # fmt: skip


def test_calls_left_in_eager_are_the_only_ones_outside_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(registry._CONVERTERS, "sin")

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.sin(self.first(x.float())))

    module, (args, _) = Mixed().eval(), given()
    report = clew.torch.compare(torch.compile(module, backend="clew"), module, args)
    assert [row.module for row in report.compared] == ["first", "last", WHOLE]
    assert report.first is None
    programs = clew.torch.last()
    layers = [name for p in programs for name in p.compiled.trace.accounted()]
    assert sorted(layers) == ["first", "float", "last"]
    assert [left.op for left in programs.left] == ["sin"]


def test_modules_with_several_paths_and_several_results() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.b = self.a
            self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = (self.b(x) + self.a(x * 2))[None]
            found, weights = self.attend(y, y, y)
            return found + weights.sum()

    module, (args, _) = Shared().eval(), given()
    compiled = clew.compile(from_torch(module, args), threads=1)
    report = clew.torch.compare(compiled, module, args, force=True)
    assert report.first is None
    rows = {row.module: row.layers for row in report.compared}
    assert (rows["a"], rows["a@1"]) == (("b",), ("a",))
    assert len(rows["attend"]) == 2


class Chosen(nn.Module):
    """Calls one of two modules, and one before them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return torch.cond(x.sum() > 0, self.left, self.right, (x,)) + 1


def test_modules_in_branches_are_listed_without_an_error() -> None:
    model, x = Chosen().eval(), torch.randn(3, 8)
    report = clew.torch.compare(clew.compile(from_torch(model, (x,)), threads=1), model, (x,))
    rows = {row.module: row for row in report.rows}
    assert rows["first"].error is not None
    for name in ("left", "right"):
        assert rows[name].error is None
        assert rows[name].reason == "not called outside of branches and loops"
    assert str(report).count("not called outside") == 2
