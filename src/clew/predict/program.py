"""What the program around a kernel leaves in the caches for it: from where its operands will come.

Kernels run in a known order, so the bytes that are touched between two uses of a value are known.
That *distance* tells the level of memory that still holds the value. Weights are read once a run:
theirs is what a whole run touches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from clew.build.lowering import KernelSource
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem
from clew.ir.types import TensorType, TupleType, Type, bits
from clew.te.expr import Reduce
from clew.te.tensor import loads, stages

DISTANCES: Final = (1 << 19, 1 << 20, 2 << 20, 4 << 20, 16 << 20, 64 << 20)
"""Bounds of the classes of distances, in bytes; the last class is beyond all of them."""


@dataclass(frozen=True)
class Operand:
    """What a kernel reads: bytes that it touches of it, whether that is a constant, and the bytes
    that a run touches since it was touched before.
    """

    bytes: int
    constant: bool
    distance: int


@dataclass(frozen=True)
class Surroundings:
    """A kernel's operands, and the program's size: bytes of weights, and all that a run touches."""

    operands: tuple[Operand, ...]
    written_bytes: int
    constant_bytes: int
    program_bytes: int
    position: float
    kernels: int


def surroundings(uses: Sequence[tuple[Call, KernelSource]]) -> list[Surroundings]:
    """Returns the surroundings of each use of a kernel, given in the order in which they run."""
    roots = _Roots()
    read_bytes: dict[str, list[int]] = {}
    steps: list[tuple[list[tuple[frozenset[int], int, bool]], int, int]] = []
    constants: dict[int, int] = {}
    for call, source in uses:
        sizes = read_bytes.get(source.key)
        if sizes is None:
            sizes = read_bytes[source.key] = _reads(source)
        reads = []
        for arg, size in zip(call.args, sizes, strict=True):
            of = roots.of(arg)
            fixed = all(n in roots.constants for n in of) and bool(of)
            reads.append((of, size, fixed))
            if fixed:
                constants.update(dict.fromkeys(of, size))
        steps.append((reads, call.id, _bytes(call.type)))
    total = sum(sum(s for _, s, _ in reads) + written for reads, _, written in steps)
    last: dict[int, int] = {}
    found: list[Surroundings] = []
    for again in (False, True):  # the second time, everything was touched before
        at = total if again else 0
        for number, (reads, made, written) in enumerate(steps):
            operands = []
            for of, size, fixed in reads:
                since = max((last[n] for n in of if n in last), default=0)
                operands.append(Operand(size, fixed, at - since))
            at += sum(size for _, size, _ in reads) + written
            for of, _, _ in reads:
                last.update(dict.fromkeys(of, at))
            last[made] = at
            if again:
                place = number / max(1, len(steps) - 1)
                held = sum(constants.values())
                found.append(Surroundings(tuple(operands), written, held, total, place, len(steps)))
    return found


class _Roots:
    """The values that others are views or parts of: kernels' results, constants, inputs."""

    def __init__(self) -> None:
        self._known: dict[int, frozenset[int]] = {}
        self.constants: set[int] = set()

    def of(self, value: Expr) -> frozenset[int]:
        """Returns the ids of what a value's memory was written by."""
        stack = [value]
        while stack:
            node = stack[-1]
            if node.id in self._known:
                stack.pop()
                continue
            inner = _seen_through(node)
            waiting = [n for n in inner if n.id not in self._known]
            if waiting:
                stack += waiting
                continue
            if isinstance(node, Constant):
                self.constants.add(node.id)
            parts = [self._known[n.id] for n in inner]
            self._known[node.id] = frozenset().union(*parts) if parts else frozenset({node.id})
            stack.pop()
        return self._known[value.id]


def _seen_through(node: Expr) -> Sequence[Expr]:
    match node:
        case TupleGetItem():
            return (node.value,)
        case Tuple():
            return node.fields
        case Call() if not isinstance(node.op, Function):
            return node.args  # a view, or parts placed in one
    return ()


def _reads(source: KernelSource) -> list[int]:
    """Returns the bytes that a kernel reads of each argument, each element once."""
    counts: dict[int, int] = {}
    for stage in stages(source.stages.outputs):
        body = stage.body
        assert body is not None
        over = body.axes if isinstance(body, Reduce) else ()
        points = 1
        for extent in (*stage.shape, *(a.extent for a in over)):
            points *= extent if isinstance(extent, int) else 1
        for load in loads(body):
            counts[id(load.source)] = counts.get(id(load.source), 0) + points
    return [
        min(counts.get(id(t), 0) * max(8, bits(t.dtype)) // 8, t_bytes)
        for t, t_bytes in (
            (t, _size(t.shape) * max(8, bits(t.dtype)) // 8) for t in source.stages.inputs
        )
    ]


def _size(shape: Sequence[object]) -> int:
    size = 1
    for extent in shape:
        size *= extent if isinstance(extent, int) else 1
    return size


def _bytes(type_: Type) -> int:
    if isinstance(type_, TupleType):
        return sum(_bytes(f) for f in type_.fields)
    assert isinstance(type_, TensorType)
    return type_.size_bytes if type_.is_static else 0
