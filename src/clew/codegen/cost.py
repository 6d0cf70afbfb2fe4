"""What a phase of a kernel costs, roughly: it decides which kernels get several threads, and in how
many chunks, and never what they compute.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from clew.codegen.address import element_bytes
from clew.loop.ir import Block, Buffer, For, If, Stmt, Store, TileProduct, buffer_loads
from clew.te.expr import INDEX, Binary, Inlined, Intrinsic, Scalar

# Nanoseconds of one core at some 4 GHz, for an operation on one vector (or one number).
_NS_PER_STORE = 0.5
_NS_PER_OPERATION = 0.05
_NS_PER_MULTIPLY_ADD = 0.2
_NS_PER_FUNCTION = 2.0
# Of numbers, that a matrix unit does in the time of one operation.
_PRODUCTS_OF_TILES = 1000
# Through the caches that cores share.
_NS_PER_BYTE = 0.04


def cost_ns(stmt: Stmt) -> float:
    """Returns a rough time of one run on one core in nanoseconds: of its arithmetic, or of moving
    its operands where that takes longer.
    """
    traffic = _Traffic()
    arithmetic = _arithmetic(stmt, 1, 1, traffic)
    return max(arithmetic, traffic.size_bytes * _NS_PER_BYTE)


@dataclass
class _Traffic:
    """The bytes of each buffer that are accessed, at most all of them."""

    buffers: dict[int, tuple[Buffer, int]] = field(default_factory=dict)

    def add(self, buffer: Buffer, count: int) -> None:
        """Notes that so many elements are accessed."""
        if buffer.scope in ("input", "output", "workspace"):
            before = self.buffers.get(id(buffer.root), (buffer, 0))[1]
            self.buffers[id(buffer.root)] = buffer, before + count * element_bytes(buffer.dtype)

    @property
    def size_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(min(b.size_bytes, accessed) for b, accessed in self.buffers.values())


def _arithmetic(stmt: Stmt, times: int, lanes: int, traffic: _Traffic) -> float:
    """Returns the time of a statement run `times` times on so many lanes, and notes its traffic."""
    match stmt:
        case Block():
            return sum(_arithmetic(s, times, lanes, traffic) for s in stmt.stmts)
        case For(kind="vector"):
            return _arithmetic(stmt.body, times, stmt.extent, traffic)
        case For(kind="dot"):
            return _arithmetic(stmt.body, times, lanes, traffic)
        case For():
            return _arithmetic(stmt.body, times * stmt.extent, lanes, traffic)
        case TileProduct():
            return _arithmetic(stmt.body, times, lanes, traffic) / _PRODUCTS_OF_TILES
        case If():
            return _arithmetic(stmt.body, times, lanes, traffic)
        case Store():
            traffic.add(stmt.buffer, times * lanes)
            for load in buffer_loads(stmt.value):
                if isinstance(load.source, Buffer):
                    traffic.add(load.source, times * lanes)
            return times * _store_ns(stmt)
    return 0.0


def _store_ns(stmt: Store) -> float:
    if stmt.buffer.scope == "register" and stmt.combiner == "sum" and _is_product(stmt.value):
        return _NS_PER_MULTIPLY_ADD
    total, seen, stack = _NS_PER_STORE, set[int](), [stmt.value]
    while stack:
        node = stack.pop()
        if id(node) in seen or node.dtype == INDEX:
            continue
        seen.add(id(node))
        function = isinstance(node, Intrinsic) and node.name != "fma"
        total += _NS_PER_FUNCTION if function else _NS_PER_OPERATION
        stack.extend(node.children)
    return total


def _is_product(value: Scalar) -> bool:
    while isinstance(value, Inlined):
        value = value.value
    return isinstance(value, Binary) and value.op == "mul"
