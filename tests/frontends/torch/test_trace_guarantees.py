"""The trace of PyTorch modules: each call accounted for, *same* links proven on the values that
eager computes for each module, and equal code with the trace on and off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram, export

import clew
from clew.api.compiled_model import CompiledModel
from clew.frontends.torch import from_torch
from clew.frontends.torch.exporting import decomposed
from clew.frontends.torch.omitted import Undecomposed
from clew.frontends.torch.places import is_layer, layer_names, line_of
from clew.ir.module import Module
from clew.torch.compare import WHOLE, EagerReport, ModuleRow, compare
from clew.trace.fates import FateKind
from clew.trace.refs import LayerRef
from opinfo.quick import quicken

quicken()


class Residual(nn.Module):
    """Convolutions with batch norms, and a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)
        for norm in (self.stem[1], self.body[1]):
            nn.init.uniform_(norm.running_mean), nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x.float())  # a no-op
        y = torch.relu(y + self.body(y))
        return self.head(self.pool(y).flatten(1))


class Tagger(nn.Module):
    """A recurrent network, whose state nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8), nn.Linear(16, 4)
        self.lstm = nn.LSTM(8, 8, batch_first=True, bidirectional=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows, (state, _) = self.lstm(self.table(ids))
        state.sum()  # not used
        return self.head(rows)


class Branches(nn.Module):
    """A branch between two layers, with a no-op inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.yes, self.no = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        y = torch.cond(
            x.sum() > 0, lambda x: self.yes(x).float().relu(), lambda x: self.no(x).tanh(), (x,)
        )
        return self.last(y)


class Averages(nn.Module):
    """A buffer that each call changes."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x)
        self.mean.mul_(0.5).add_(y.mean(0))
        return torch.softmax(y - self.mean, -1)


class Tied(nn.Module):
    """A table whose rows are also the weights of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(20, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        rows = self.norm(self.table(ids))
        return {"scores": self.head(rows), "rows": rows}


class Block(nn.Module):
    """A layer that is called twice, and a module that changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm, self.drop = nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.lin(torch.relu(self.lin(self.drop(x)))) + x)


class Twice(nn.Module):
    """A block that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.up = Block(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.block(self.up(x)))


class Encoder(nn.Module):
    """A layer of torch's own transformer."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.stack = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stack(x)


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 20, shape)


@dataclass(frozen=True)
class Case:
    """A module, its arguments, and how many values must at least be proven: those in memory, and
    with those inside kernels.
    """

    make: Callable[[], nn.Module]
    args: Callable[[], tuple[torch.Tensor, ...]]
    proven: int
    forced: int
    dynamic: Any = None


def proven(report: EagerReport) -> list[ModuleRow]:
    """Returns the rows of modules that compute something, and whose result was compared."""
    return [r for r in report.compared if r.kind != "Dropout" and r.module != WHOLE]


CASES = {
    "cnn": Case(Residual, lambda: (torch.randn(1, 3, 8, 8),), 4, 7),
    "encoder": Case(Encoder, lambda: (torch.randn(2, 5, 16),), 4, 7),
    "lstm": Case(Tagger, lambda: (ids(2, 5),), 2, 3),
    "cond": Case(Branches, lambda: (torch.randn(3, 8),), 2, 2),
    "state": Case(Averages, lambda: (torch.randn(3, 8),), 2, 2),
    "twice": Case(Twice, lambda: (torch.randn(3, 8),), 5, 9),
    "tied, free sizes": Case(
        Tied, lambda: (ids(2, 5),), 2, 3, ({0: Dim("batch"), 1: Dim("length")},)
    ),
}


@dataclass(frozen=True)
class Made:
    """A case: its module, arguments and exported program, and what clew makes of it."""

    case: Case
    model: nn.Module
    args: tuple[torch.Tensor, ...]
    program: ExportedProgram
    graph: Module
    compiled: CompiledModel

    @property
    def feed(self) -> dict[str, Any]:
        """The inputs of a run, by name."""
        return dict(zip(self.compiled.input_names, self.compiled.checked(self.args), strict=True))


@pytest.fixture(scope="module", params=CASES)
def made(request: pytest.FixtureRequest) -> Made:
    case = CASES[request.param]
    torch.manual_seed(0)
    model, args = case.make().eval(), case.args()
    with torch.no_grad():
        program = export(model, args, dynamic_shapes=case.dynamic)
    graph = from_torch(program)
    compiled = clew.compile(graph, threads=1)
    compiled(*args)
    return Made(case, model, args, program, graph, compiled)


def layers_of(
    before: fx.GraphModule, after: fx.GraphModule, prefix: str = ""
) -> Iterator[tuple[fx.Node, list[str]]]:
    """Yields each call of a graph as it was exported, with the layers that come from it."""
    found: dict[fx.Node, list[str]] = {node: [] for node in before.graph.nodes if is_layer(node)}
    origins = {(node.name, id(before.graph)): node for node in found}
    for node, name in layer_names(filter(is_layer, after.graph.nodes), prefix).items():
        sources = list(node.meta["from_node"])
        for source in sources:
            sources += source.from_node
            if (source.name, source.graph_id) in origins:
                found[origins[source.name, source.graph_id]].append(name)
    yield from found.items()
    for child, graph in before.named_children():
        if isinstance(graph, fx.GraphModule):
            within = f"{prefix}cond/{child.partition('_')[0]}/"
            yield from layers_of(graph, after.get_submodule(child), within)


def test_each_call_of_the_exported_program_is_accounted_for(made: Made) -> None:
    trace = made.compiled.trace
    fates = trace.accounted()
    passes = {stage.name for stage in trace.stages}
    assert set(trace.places) == set(fates)
    for name, fate in fates.items():
        below = trace.forward(LayerRef(name))
        if fate.kind is FateKind.KERNEL:
            assert all((below.kernels, below.loops, below.asm)), name
        elif fate.kind in (FateKind.FOLDED, FateKind.MERGED, FateKind.DEAD):
            assert fate.pass_name in passes, name
        else:
            assert fate.into, name
        assert trace.places[name].file == __file__
        assert trace.places[name].line, name
    assert trace.check() == []
    calls = list(layers_of(made.program.graph_module, decomposed(made.program).graph_module))
    named = [name for _, names in calls for name in names]
    assert set(named) <= set(fates)
    # The other layers are the calls that decomposition leaves out.
    left = Counter(trace.places[name].line for name in fates if name not in named)
    assert left == Counter(line_of(node)[1] for node, names in calls if not names)
    omitted = {name: fates[name] for name in fates if name not in named}
    assert all(fate.kind is FateKind.IMPORTED for fate in omitted.values())


def test_same_links_are_proven_on_the_values_that_eager_computes(made: Made) -> None:
    report = compare(made.compiled, made.model, made.args, tolerance=1e-5)
    assert report.first is None, str(report)
    assert len(proven(report)) >= made.case.proven, str(report)
    forced = compare(made.compiled, made.model, made.args, tolerance=1e-5, force=True)
    assert forced.first is None, str(forced)
    assert len(proven(forced)) >= made.case.forced, str(forced)


def test_every_same_link_holds(made: Made) -> None:
    assert made.compiled.trace.verify(made.feed).ok
    # With vectors of 256 bits, more passes change each of these graphs.
    compiled = clew.compile(made.graph, target="cpu-avx2", threads=1)
    compiled(*made.args)
    report = compiled.trace.verify(made.feed)
    assert report.ok, str(report)
    assert report.checked > 10


def test_the_trace_changes_no_byte_of_code(made: Made) -> None:
    plain = clew.compile(
        made.graph, threads=1, diagnostics=clew.Diagnostics(trace=False), cache=False
    )
    plain(*made.args)
    assert [k.object_code for k in plain.kernels] == [k.object_code for k in made.compiled.kernels]
    assert [k.llvm for k in plain.kernels] == [k.llvm for k in made.compiled.kernels]


class Repeated(nn.Module):
    """Repeats rows as often as the data say, and gathers some of them."""

    def forward(self, x: torch.Tensor, n: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return x.repeat(n.item(), 1).gather(0, places)


def test_sizes_of_omitted_calls_may_depend_on_data():
    args = torch.randn(1, 3), torch.tensor(4), torch.zeros(2, 3, dtype=torch.int64)
    before = export(Repeated().eval(), args).graph_module
    nothing = fx.GraphModule({}, fx.Graph())
    omitted = Undecomposed(before, nothing).omitted("", ())
    assert [call.name for call in omitted] == ["item", "repeat", "gather"]
