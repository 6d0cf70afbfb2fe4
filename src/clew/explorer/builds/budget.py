"""How much a schedule that came from a page may ask for: of nests, of code, of work, of memory.

A schedule is a program: ten primitives can unroll a loop a billion times. All of this is estimated
before anything of that size is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clew.loop.ir import Block, For, If, Nest, Stmt, TileProduct, expressions, walk
from clew.support.errors import InputError
from clew.te.expr import Scalar
from clew.te.walk import nodes

STATEMENTS: Final = 3000
"""In a loop nest after any step. Those of the rules have 500 at most."""

INSTRUCTIONS: Final = 400_000
"""As estimated from unrolled loops, which is several times what becomes of them."""

LLVM_LINES: Final = 40_000
"""Of the text that LLVM is given."""

MEMORY_BYTES: Final = 256 << 20
"""Of scratch and workspace, besides what the kernel took before."""

_WORK: Final = 2e9  # in scalar operations and loads
_MORE_WORK: Final = 8.0  # times what the schedule before has, or none at all
_LANES: Final = 8


def check_size(nest: Nest) -> None:
    """Refuses a nest that is too large to go on with.

    Errors: I237.
    """
    count = 0
    for count, _ in enumerate(walk(nest.body), 1):
        if count > STATEMENTS:
            raise too_much(f"more than {STATEMENTS} statements in the loop nest")


@dataclass(frozen=True)
class Estimate:
    """Instructions that a nest becomes, and operations that it executes, about."""

    instructions: float
    operations: float


def estimate(nest: Nest) -> Estimate:
    """Returns what a nest amounts to; takes no longer for loops that run long."""
    return _Estimator().of(nest.body)


def check_estimate(after: Estimate, before: Estimate, plain: Estimate) -> None:
    """Refuses a schedule that would write too much code, or take too long to run: compared with the
    schedule `before` it, and with the `plain` nest.

    Errors: I237.
    """
    if after.instructions > max(INSTRUCTIONS, before.instructions):
        raise too_much(f"about {after.instructions:.2g} instructions, as loops are unrolled")
    most = max(before.operations, plain.operations, 1.0)
    if after.operations > max(_WORK, _MORE_WORK * most):
        times = after.operations / max(before.operations, 1.0)
        raise too_much(f"{times:.2g} times the operations of the schedule before")


def check_code(llvm: str, memory_bytes: int, memory_before: int) -> None:
    """Refuses code that is too long for LLVM, or takes too much memory for temporaries.

    Errors: I237.
    """
    lines = llvm.count("\n")
    if lines > LLVM_LINES:
        raise too_much(f"{lines} lines of LLVM text; {LLVM_LINES} are the limit")
    if memory_bytes > memory_before + MEMORY_BYTES:
        raise too_much(f"{memory_bytes >> 20} MB of temporaries")


def too_much(what: str) -> InputError:
    """Returns the error of a schedule that asks for too much."""
    return InputError(
        "I237", f"the schedule asks for too much: {what}", hint="unroll less, or smaller loops"
    )


class _Estimator:
    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, stmt: Stmt) -> Estimate:
        own = sum(self._nodes(e) for e in expressions(stmt)) + 1
        match stmt:
            case Block():
                inner = [self.of(s) for s in stmt.stmts]
                return Estimate(
                    sum(e.instructions for e in inner), sum(e.operations for e in inner)
                )
            case For():
                body = self.of(stmt.body)
                times = float(max(stmt.extent, 0))
                if stmt.kind == "vector":
                    times = max(1.0, times / _LANES)
                written = times if stmt.kind in ("unroll", "dot", "vector") else 1.0
                return Estimate(own + written * body.instructions, own + times * body.operations)
            case If() | TileProduct():
                body = self.of(stmt.body)
                return Estimate(own + body.instructions, own + body.operations)
        return Estimate(own, own)

    def _nodes(self, expr: Scalar) -> int:
        """Returns how many different nodes an expression has."""
        found = self._known.get(id(expr))
        if found is None:
            found = self._known[id(expr)] = sum(1 for _ in nodes(expr))
        return found
