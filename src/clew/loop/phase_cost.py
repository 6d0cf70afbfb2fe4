"""Cost estimates of kernel phases. They determine which kernels use several threads and how many
chunks, and never affect results.
"""

from __future__ import annotations

from typing import TypeAlias

from clew.ir.dims import Dim, dim_max, dim_min, typical
from clew.ir.types import memory_bytes
from clew.loop.ir import Block, Buffer, For, If, Stmt, Store, TileProduct, buffer_loads
from clew.machine.costs import FS_PER_NS, Costs
from clew.te.expr import INDEX, Binary, Inlined, Intrinsic, Scalar


def cost_fs(stmt: Stmt, costs: Costs) -> Dim:
    """Returns an estimate of the femtoseconds of one run on one core: the time of its arithmetic or
    that of moving its operands, whichever is longer. It is a function of the free sizes.
    """
    arithmetic, accessed = _work(stmt, 1, costs)
    moved: Dim = 0
    for buffer, size_bytes in accessed.values():
        moved = moved + dim_min(buffer.size_bytes, size_bytes)
    return dim_max(arithmetic, moved * _fs(costs.phase_byte, costs))


def ns_of(cost: Dim) -> float:
    """Returns a cost, which is in femtoseconds, as nanoseconds at typical sizes."""
    return typical(cost) / FS_PER_NS


def _fs(cycles: float, costs: Costs) -> int:
    return round(costs.ns(cycles) * FS_PER_NS)


# The bytes accessed in each buffer, by the id of its root.
_Accessed: TypeAlias = "dict[int, tuple[Buffer, Dim]]"


def _work(stmt: Stmt, lanes: int, costs: Costs, speedup: float = 1.0) -> tuple[Dim, _Accessed]:
    """Returns the femtoseconds of a statement's arithmetic, and its accesses. Each store processes
    `lanes` elements. Time is divided by `speedup`, which matrix units provide.
    """
    match stmt:
        case Block():
            total: Dim = 0
            found: _Accessed = {}
            for inner in stmt.stmts:
                cost, accessed = _work(inner, lanes, costs, speedup)
                total = total + cost
                _add(found, accessed)
            return total, found
        case For(kind="vector"):
            return _work(stmt.body, stmt.extent, costs, speedup)
        case For(kind="dot") | If():
            return _work(stmt.body, lanes, costs, speedup)
        case For():
            cost, accessed = _work(stmt.body, lanes, costs, speedup)
            times = {key: (buffer, stmt.size * n) for key, (buffer, n) in accessed.items()}
            return stmt.size * cost, times
        case TileProduct():
            return _work(stmt.body, lanes, costs, costs.tile_speedup)
        case Store():
            found = {}
            loads = [x.source for x in buffer_loads(stmt.value) if isinstance(x.source, Buffer)]
            for buffer in (stmt.buffer, *loads):
                if buffer.scope in ("input", "output", "workspace"):
                    size_bytes = lanes * memory_bytes(buffer.dtype)
                    _add(found, {id(buffer.root): (buffer, size_bytes)})
            return _fs(_store_cycles(stmt, costs) / speedup, costs), found
    return 0, {}


def _add(found: _Accessed, more: _Accessed) -> None:
    """Adds accesses to those already found."""
    for key, (buffer, size_bytes) in more.items():
        known, before = found.get(key, (buffer, 0))
        found[key] = known, before + size_bytes


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
