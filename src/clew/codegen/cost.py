"""Cost estimates of kernel phases. They determine which kernels use several threads and how many
chunks, and never affect results.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from clew.codegen.address import element_bytes
from clew.ir.dims import Dim
from clew.loop.ir import Block, Buffer, For, If, Stmt, Store, TileProduct, buffer_loads
from clew.machine.costs import Costs
from clew.te.expr import INDEX, Binary, Inlined, Intrinsic, Scalar


def cost_ns(stmt: Stmt, costs: Costs) -> float:
    """Returns an estimate of the nanoseconds of one run on one core: of its arithmetic, or of
    moving its operands if that takes longer. Sizes that only a run knows are typical ones.
    """
    traffic = _Traffic()
    arithmetic = _arithmetic(stmt, 1, 1, traffic, costs)
    return costs.ns(max(arithmetic, traffic.size_bytes * costs.phase_byte))


def iterations(stmt: Stmt) -> Dim:
    """Returns the number of stores that a run performs, in vectors. A cost grows with it."""
    match stmt:
        case Block():
            total: Dim = 0
            for inner in stmt.stmts:
                total = total + iterations(inner)
            return total
        case For(kind="vector" | "dot"):
            return iterations(stmt.body)
        case For():
            return stmt.size * iterations(stmt.body)
        case TileProduct() | If():
            return iterations(stmt.body)
        case Store():
            return 1
    return 0


@dataclass
class _Traffic:
    """The accessed bytes of each buffer, at most its size."""

    buffers: dict[int, tuple[Buffer, int]] = field(default_factory=dict)

    def add(self, buffer: Buffer, count: int) -> None:
        """Records `count` accesses of elements."""
        if buffer.scope in ("input", "output", "workspace"):
            before = self.buffers.get(id(buffer.root), (buffer, 0))[1]
            self.buffers[id(buffer.root)] = buffer, before + count * element_bytes(buffer.dtype)

    @property
    def size_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(min(b.typical_bytes, accessed) for b, accessed in self.buffers.values())


def _arithmetic(stmt: Stmt, times: int, lanes: int, traffic: _Traffic, costs: Costs) -> float:
    """Returns the cycles of `times` runs of a statement on `lanes` lanes, and adds its traffic."""
    match stmt:
        case Block():
            return sum(_arithmetic(s, times, lanes, traffic, costs) for s in stmt.stmts)
        case For(kind="vector"):
            return _arithmetic(stmt.body, times, stmt.extent, traffic, costs)
        case For(kind="dot"):
            return _arithmetic(stmt.body, times, lanes, traffic, costs)
        case For():
            return _arithmetic(stmt.body, times * stmt.typical, lanes, traffic, costs)
        case TileProduct():
            return _arithmetic(stmt.body, times, lanes, traffic, costs) / costs.tile_speedup
        case If():
            return _arithmetic(stmt.body, times, lanes, traffic, costs)
        case Store():
            traffic.add(stmt.buffer, times * lanes)
            for load in buffer_loads(stmt.value):
                if isinstance(load.source, Buffer):
                    traffic.add(load.source, times * lanes)
            return times * _store_cycles(stmt, costs)
    return 0.0


def _store_cycles(stmt: Store, costs: Costs) -> float:
    if stmt.buffer.scope == "register" and stmt.combiner == "sum" and _is_product(stmt.value):
        return costs.phase_multiply_add
    total, seen, stack = costs.phase_store, set[int](), [stmt.value]
    while stack:
        node = stack.pop()
        if id(node) in seen or node.dtype == INDEX:
            continue
        seen.add(id(node))
        function = isinstance(node, Intrinsic) and node.name != "fma"
        total += costs.phase_function if function else costs.phase_operation
        stack.extend(node.children)
    return total


def _is_product(value: Scalar) -> bool:
    while isinstance(value, Inlined):
        value = value.value
    return isinstance(value, Binary) and value.op == "mul"
