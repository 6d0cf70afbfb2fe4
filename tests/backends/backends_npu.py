"""A simulated accelerator: memory of its own, a matrix engine with a fused ReLU, and an adder."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import clew
from clew.backends.backend import CompiledRegion
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem
from clew.ir.interpret import interpreted
from clew.ir.visit import post_order
from clew.machine.target import Target
from clew.passes.placement.claims import RegionPattern
from clew.patterns import Match, is_op, wildcard

Array = np.ndarray[Any, Any]


class Tile:
    """A buffer of the accelerator: no array, and NumPy cannot read it."""

    def __init__(self, data: Array) -> None:
        self._data = data
        self.shape, self.dtype = data.shape, data.dtype

    __array__ = None


class Dram(clew.MemorySpace):
    """The accelerator's memory; counts the copies."""

    def __init__(self, name: str = "dram") -> None:
        self.name = name
        self.into = self.out_of = 0

    def from_host(self, array: Array) -> Tile:
        self.into += 1
        return Tile(np.array(array))

    def to_host(self, buffer: Tile) -> Array:
        assert isinstance(buffer, Tile)
        self.out_of += 1
        return buffer._data.copy()


@dataclass
class Listing:
    """A compiled region: what to do with which values, by number, parameters first."""

    parameters: int
    steps: list[tuple[str, tuple[int, ...]]]
    constants: dict[int, Array]
    results: tuple[int, ...]

    def __call__(self, *tiles: Tile) -> tuple[Tile, ...]:
        assert len(tiles) == self.parameters
        values = dict(enumerate(t._data for t in tiles)) | self.constants
        for name, args in self.steps:
            values[len(values)] = _STEPS[name](*(values[a] for a in args))
        return tuple(Tile(values[r]) for r in self.results)


_STEPS: dict[str, Any] = {
    "dense_relu": lambda x, w: np.maximum(x @ w, 0),
    "add": np.add,
}


def _untransposed(found: Match) -> bool:
    return not any(n.attrs.get("transpose_b") for n in found.nodes if isinstance(n, Call))


@dataclass
class Npu(clew.Backend):
    """Takes matrix products with a ReLU, and additions of equal shapes."""

    name: str = "npu"
    key: str = "1"
    seconds: float | None = None
    additions: bool = True
    compiled: int = 0
    regions: list[Function] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory: Dram = Dram(f"{self.name}.dram")
        product = is_op("nn.matmul")(wildcard(), wildcard())
        self.patterns: Sequence[RegionPattern] = (
            RegionPattern("dense_relu", is_op("nn.relu")(product), _untransposed),
        )

    __repr__ = clew.Backend.__str__

    def takes(self, call: Call) -> bool:
        return self.additions and call.op_name == "add" and call.args[0].type == call.args[1].type

    def cost(self, region: Function, target: Target) -> float | None:
        return self.seconds

    def compile(self, region: Function, target: Target) -> CompiledRegion:
        self.compiled += 1
        self.regions.append(region)
        number = {p.id: n for n, p in enumerate(region.params)}
        nodes: list[Expr] = [n for n in post_order(region.body) if n.id not in number]
        constants = [n for n in nodes if isinstance(n, Constant)]
        number |= {c.id: len(number) + n for n, c in enumerate(constants)}
        held = {number[c.id]: c.data for c in constants}
        steps = []
        for node in nodes:
            if isinstance(node, Call):
                steps.append((node.op_name, tuple(number[a.id] for a in node.args)))
                number[node.id] = len(number)
            else:
                assert isinstance(node, (Constant, Tuple, TupleGetItem, Function))
        fields = region.body.fields if isinstance(region.body, Tuple) else (region.body,)
        results = tuple(number[f.id] for f in fields)
        return Listing(len(region.params), steps, held, results)


class SavingNpu(Npu):
    """One whose regions can be saved."""

    def to_record(self, region: CompiledRegion) -> bytes:
        return pickle.dumps(region)

    def of_record(self, record: bytes) -> CompiledRegion:
        found: Listing = pickle.loads(record)
        return found


class _Elsewhere(clew.MemorySpace):
    """A memory of plain copies."""

    def __init__(self, name: str) -> None:
        self.name = name

    def from_host(self, array: Array) -> tuple[Array]:
        return (np.array(array),)

    def to_host(self, buffer: tuple[Array]) -> Array:
        return buffer[0]


class Interpreting(clew.Backend):
    """Runs the operators of some names on their references, in the host's memory or elsewhere."""

    def __init__(self, ops: Sequence[str], name: str = "reference", space: str = "") -> None:
        self.name, self._ops = name, frozenset(ops)
        if space:
            self.memory = _Elsewhere(space)

    def takes(self, call: Call) -> bool:
        return call.op_name in self._ops

    def compile(self, region: Function, target: Target) -> CompiledRegion:
        run = interpreted(region)
        away = isinstance(self.memory, _Elsewhere)

        def call(*buffers: Any) -> Any:
            found = run([b[0] if away else b for b in buffers], {})
            values = found if isinstance(found, tuple) else (found,)
            return tuple((np.asarray(v),) if away else np.asarray(v) for v in values)

        return call
