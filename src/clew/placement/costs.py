"""Measures the costs of units on backends, and of borders between backends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from clew.backends.backend import CPU, Backend
from clew.backends.compile_options import CompileOptions, Diagnostics
from clew.backends.registry import FunctionBackend
from clew.compiling.compile import build_model
from clew.cost.regions import region_seconds
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.ir.visit import post_order
from clew.machine.target import Target
from clew.ops.work import call_flops
from clew.passes.placement.claims import with_composites
from clew.placement.book import Book
from clew.placement.clock import alone_seconds, in_turns
from clew.placement.search import Problem
from clew.placement.units import Edge, Unit, UnitGraph
from clew.runtime.spaces import HOST, MemorySpace
from clew.support.errors import PASSED_ON
from clew.tap.capture import Captured, capture

_TINY: Final = parse_module(
    """clew 1
def @main(
  %x: f32[1, 8]  // input x
) -> (f32[1, 8],) with outputs=["y"] {
  %0 = exp(%x)  // before:Exp#0
  %1 = nn.relu(%0)  // between:Relu#0
  %2 = exp(%1)  // after:Exp#0
  %3 = (%2,)
  return %3
}
"""
)
_COPIED: Final = (1 << 12, 1 << 22)  # bytes of the copies that are timed


@dataclass(frozen=True)
class UnitCost:
    """The seconds of a unit on a backend, and their `basis`: `measured` (alone), `kept` (from the
    database), `within a run` (of the model), or `predicted` (from other units).
    """

    seconds: float
    basis: str


@dataclass(eq=False)
class Costs:
    """The costs of one model's placement. `blocked` are the layers whose values the CPU keeps in
    blocks. `units` has costs by the number of the unit and the backend, and `failures` the reasons
    why backends cannot run units. `starts` are the seconds of entering a region, by backend.
    `copies` are the seconds of a copy and of each of its bytes, by memory space.
    """

    graph: UnitGraph
    backends: Sequence[Backend]
    target: Target
    threads: int
    book: Book
    blocked: frozenset[str]
    units: dict[tuple[int, str], UnitCost] = field(default_factory=dict)
    starts: dict[str, float] = field(default_factory=dict)
    failures: dict[tuple[int, str], str] = field(default_factory=dict)
    copies: dict[str, tuple[float, float]] = field(default_factory=dict)

    def problem(self) -> Problem:
        """Returns the problem of placement with these costs."""
        choices, costs = [], []
        for unit in self.graph.units:
            names = [CPU, *(b for b in unit.takers if (unit.number, b) in self.units)]
            choices.append(names)
            costs.append({n: self.units[unit.number, n].seconds for n in names})
        reads: list[list[tuple[int, Callable[[str, str], float]]]] = [[] for _ in choices]
        ends: list[dict[str, float]] = [{} for _ in choices]
        for edge in self.graph.edges:
            if edge.start is not None and edge.end is not None:
                reads[edge.end].append((edge.start, self._border(edge)))
            else:  # inputs and outputs of the model are in the host's memory
                outer = edge.start if edge.end is None else edge.end
                assert outer is not None
                for name in choices[outer]:
                    there = self.copy_seconds(name, CPU, edge.bytes)
                    ends[outer][name] = ends[outer].get(name, 0.0) + there
        return Problem(choices, costs, reads, {CPU: 0.0, **self.starts}, ends)

    def _border(self, edge: Edge) -> Callable[[str, str], float]:
        return lambda start, end: self.border_seconds(edge, start, end)

    def border_seconds(self, edge: Edge, start: str, end: str) -> float:
        """Returns the seconds of passing a value from one backend to another: copies between their
        memories, and a change of layout if one is the CPU and keeps the value in blocks.
        """
        if start == end:
            return 0.0
        seconds = self.copy_seconds(start, end, edge.bytes)
        if CPU in (start, end) and not self.blocked.isdisjoint(edge.layers):
            seconds += region_seconds(0.0, 2 * edge.bytes, self.target)
        return seconds

    def copy_seconds(self, start: str, end: str, size: int) -> float:
        """Returns the seconds of copying `size` bytes between the memories of two backends."""
        spaces = {b.name: b.memory for b in self.backends}
        source, other = spaces.get(start, HOST), spaces.get(end, HOST)
        if source is other:
            return 0.0
        return sum(
            self.copies[s.name][0] + self.copies[s.name][1] * size
            for s in (source, other)
            if s is not HOST
        )

    def takes(self, unit: Unit, backend: str) -> bool:
        """Whether a unit can run on a backend."""
        return backend == CPU or (unit.number, backend) in self.units


def measured_costs(
    graph: UnitGraph,
    backends: Sequence[Backend],
    target: Target,
    threads: int,
    book: Book,
    inputs: Any,
    layer_seconds: Mapping[str, float],
    blocked: frozenset[str],
    seconds: float,
    say: Callable[[str], None],
) -> Costs:
    """Returns the costs of units: on the CPU, from the times of the model's layers in a run
    (`layer_seconds`); on the backends, measured alone, those that take longest on the CPU first.
    After about `seconds` of measuring, which backends share equally, the rest is predicted. `say`
    is called with progress.
    """
    costs = Costs(graph, backends, target, threads, book, blocked)
    _cpu_costs(costs, layer_seconds)
    meter = _Meter(costs, inputs, seconds / max(1, len(backends)), say)
    for backend in backends:
        _copy_costs(costs, backend.memory)
        meter.measure(backend)
    return costs


def _cpu_costs(costs: Costs, layer_seconds: Mapping[str, float]) -> None:
    """Divides the time of each layer among the units that compute it, by their operations."""
    weights: dict[str, dict[int, float]] = {}
    for unit in costs.graph.units:
        flops = sum(map(call_flops, unit.calls))
        assert isinstance(flops, int), "the shapes of units are known"
        for layer in unit.layers:
            weights.setdefault(layer, {})[unit.number] = max(1, flops) / len(unit.layers)
    found = dict.fromkeys(range(len(costs.graph.units)), 0.0)
    for layer, by_unit in weights.items():
        total = sum(by_unit.values())
        for number, weight in by_unit.items():
            found[number] += layer_seconds.get(layer, 0.0) * weight / total
    for number, seconds in found.items():
        costs.units[number, CPU] = UnitCost(seconds, "within a run")


def _copy_costs(costs: Costs, space: MemorySpace) -> None:
    """Times copies into a memory and back: the seconds of a copy each way, and of each byte."""
    if space is HOST or space.name in costs.copies:
        return
    times = []
    for size in _COPIED:
        array = np.zeros(size // 4, np.float32)
        times.append(alone_seconds(lambda a=array: space.to_host(space.from_host(a))) / 2)  # type: ignore[misc]
    by_byte = max(0.0, (times[1] - times[0]) / (_COPIED[1] - _COPIED[0]))
    costs.copies[space.name] = max(0.0, times[0] - by_byte * _COPIED[0]), by_byte


class _Meter:
    """Measures units on backends, on the values that they have in a run of the model."""

    def __init__(
        self, costs: Costs, inputs: Any, seconds: float, say: Callable[[str], None]
    ) -> None:
        self._costs = costs
        self._inputs = inputs
        self._seconds = seconds  # of each backend
        self._say = say

    @cached_property
    def _values(self) -> Captured:
        """The values that the units in `_samples` read in a run."""
        self._say("values inside the model")
        graph = self._costs.graph
        nodes = {n.id: n for unit in self._samples for n in self._operands(unit)}
        return capture(
            graph.module, list(nodes.values()), self._inputs, threads=self._costs.threads
        )

    @cached_property
    def _works(self) -> Mapping[int, str]:
        return {n: work_of(f) for n, f in self._costs.graph.functions.items()}

    @cached_property
    def _samples(self) -> list[Unit]:
        """One unit of each kind of work, those that take longest on the CPU first."""
        found: dict[str, Unit] = {}
        times: dict[str, float] = {}
        for unit in self._costs.graph.units:
            work = self._works.get(unit.number)
            if work is not None:
                found.setdefault(work, unit)
                seconds = self._costs.units[unit.number, CPU].seconds
                times[work] = times.get(work, 0.0) + seconds
        return sorted(found.values(), key=lambda u: -times[self._works[u.number]])

    def _operands(self, unit: Unit) -> list[Expr]:
        """The values that a unit reads, in the order of its function's parameters."""
        own = {c.id for c in unit.calls}
        found: dict[int, Expr] = {}
        for call in unit.calls:
            for node in _outside(call, own):
                found[node.id] = node
        return list(found.values())

    def measure(self, backend: Backend) -> None:
        """Finds the costs of all units that a backend takes."""
        costs = self._costs
        own = costs.starts[backend.name] = self._start(backend)
        left = self._seconds
        known: dict[str, UnitCost] = {}
        wanted = [u for u in self._samples if backend.name in u.takers]
        for number, unit in enumerate(wanted, 1):
            work = self._works[unit.number]
            kept = costs.book.seconds(work, backend)
            if kept is not None:
                known[work] = UnitCost(kept, "kept")
                continue
            if left <= 0 and known:  # the others are predicted from those
                continue
            self._say(f"{backend.name}: unit {number} of {len(wanted)}")
            began = time.perf_counter()
            alone = self._alone(unit, backend)
            left -= time.perf_counter() - began
            if isinstance(alone, str):
                for other in costs.graph.units:
                    if self._works.get(other.number) == work:
                        costs.failures[other.number, backend.name] = alone
                continue
            inner = max(alone - own, 0.02 * alone)
            known[work] = UnitCost(inner, "measured")
            costs.book.note(work, backend, inner)
        self._spread(backend, known)
        costs.starts[backend.name] += _program_seconds(costs)

    def _spread(self, backend: Backend, known: Mapping[str, UnitCost]) -> None:
        """Gives units of equal work the same cost, and predicts the cost of the others: their time
        on the CPU, times the median ratio of the known costs to those on the CPU.
        """
        costs = self._costs
        ratios = []
        for unit in costs.graph.units:
            cost = known.get(self._works.get(unit.number, ""))
            if backend.name not in unit.takers or cost is None:
                continue
            costs.units[unit.number, backend.name] = cost
            here = costs.units[unit.number, CPU].seconds
            if here > 0:
                ratios.append(cost.seconds / here)
        if not ratios:
            return
        ratio = float(np.median(ratios))
        for unit in costs.graph.units:
            place = unit.number, backend.name
            if backend.name in unit.takers and place not in {*costs.units, *costs.failures}:
                here = costs.units[unit.number, CPU].seconds
                costs.units[place] = UnitCost(here * ratio, "predicted")

    def _start(self, backend: Backend) -> float:
        """Returns the seconds of a call of a backend for almost no work, `nn.relu` of 8 elements; 0
        if the backend does not take the operator.
        """
        call = next(n for n in _calls_of(_TINY) if n.op_name == "nn.relu")
        if not backend.takes(call):
            return 0.0
        param = _TINY.main.params[0]
        region = Function([param], Call(call.op, [param], call.attrs))
        found = self._timed(region, [np.ones((1, 8), np.float32)], backend)
        return 0.0 if isinstance(found, str) else found

    def _alone(self, unit: Unit, backend: Backend) -> float | str:
        function = self._costs.graph.functions[unit.number]
        operands = self._operands(unit)
        arrays = [self._values.of(node) for node in operands]
        return self._timed(function, arrays, backend)

    def _timed(self, region: Function, arrays: Sequence[Any], backend: Backend) -> float | str:
        """Returns the seconds of a call of a region; as text, why it cannot be called."""
        try:
            run = backend.compile(with_composites(region, backend), self._costs.target)
            buffers = [backend.memory.from_host(np.asarray(a, order="C")) for a in arrays]
            simulated = getattr(run, "seconds", None)
            if simulated is not None:
                return float(simulated)
            return alone_seconds(lambda: run(*buffers))
        except PASSED_ON:
            raise
        except BaseException as error:  # whatever a backend's code raises
            return f"{type(error).__name__}: {error}"


def _outside(call: Call, own: set[int]) -> list[Expr]:
    """Returns the operands of a call that are values of other units or inputs, not constants."""
    found = []
    for node in call.args:
        inner = isinstance(node, TupleGetItem) and node.value.id in own
        if node.id not in own and not inner and not isinstance(node, Constant):
            found.append(node)
    return found


def _calls_of(module: Module) -> list[Call]:
    return [n for n in post_order(module.main.body) if isinstance(n, Call)]


def _program_seconds(costs: Costs) -> float:
    """Returns the seconds that a region adds to a program besides its own call: it ends a native
    segment and begins another.
    """
    empty = FunctionBackend(
        "empty",
        lambda region, target: lambda x: x,
        key="1",
        takes=lambda call: call.op_name == "nn.relu",
    )
    kept = costs.book.seconds("program", empty)
    if kept is not None:
        return kept
    options = CompileOptions(
        threads=costs.threads, tuned=None, diagnostics=Diagnostics(trace=False)
    )
    plain = build_model(_TINY, options)
    split = build_model(_TINY, options.changed(backends=[empty], cache=False))
    x = np.ones((1, 8), np.float32)
    times = in_turns({"plain": lambda: plain(x), "split": lambda: split(x)}, 0.5)
    found = max(0.0, times["split"] - times["plain"])
    costs.book.note("program", empty, found)
    return found


def work_of(function: Function) -> str:
    """Returns a hash of a function's operators, attributes, and types. Of its constants, only small
    ones count with their elements.
    """
    places: dict[int, int] = {p.id: n for n, p in enumerate(function.params)}
    lines = [str(p.type) for p in function.params]
    for node in post_order(function.body):
        if node.id in places or isinstance(node, Function):
            continue
        places[node.id] = len(places)
        operands = [places[c.id] for c in node.children if c.id in places]
        if isinstance(node, Constant):
            what = _settled(node)
        elif isinstance(node, Call):
            what = f"{node.op_name} {node.attrs}"
        else:
            what = type(node).__name__ if isinstance(node, Tuple) else str(node)
        lines.append(f"{what} {operands} {node.type}")
    return blake2b("\n".join(lines).encode(), digest_size=12).hexdigest()


def _settled(constant: Constant) -> str:
    """Returns the text of a constant: its elements, if it is so small that it may be a size."""
    return str(constant.data.tolist()) if constant.data.size <= 8 else "constant"
