"""Limits of a schedule that came from a page: size of nests, code, work and memory.

A schedule is a program: ten primitives can unroll a loop a billion times. These limits are
estimated before anything of that size is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clew.loop.ir import Block, For, If, Nest, Stmt, TileProduct, expressions, walk
from clew.support.errors import InputError
from clew.te.expr import Scalar
from clew.te.walk import nodes

STATEMENTS: Final = 3000
"""Limit for a loop nest after any step; those of the rules have at most 500."""

INSTRUCTIONS: Final = 400_000
"""Estimated from unrolled loops; several times the actual number."""

LLVM_LINES: Final = 40_000
"""Limit for the text passed to LLVM."""

MEMORY_BYTES: Final = 256 << 20
"""Limit for scratch and workspace, in addition to those of the previous schedule."""

_WORK: Final = 2e9  # in scalar operations and loads
_MORE_WORK: Final = 8.0  # times those of the previous schedule, or of the plain nest
_LANES: Final = 8


def check_size(nest: Nest) -> None:
    """Rejects a nest that is too large.

    Errors: I237.
    """
    count = 0
    for count, _ in enumerate(walk(nest.body), 1):
        if count > STATEMENTS:
            raise too_much(f"more than {STATEMENTS} statements in the loop nest")


@dataclass(frozen=True)
class Estimate:
    """Approximate numbers of generated instructions and executed operations."""

    instructions: float
    operations: float


def estimate(nest: Nest) -> Estimate:
    """Returns the estimate of a nest, in a time that does not depend on trip counts."""
    return _Estimator().of(nest.body)


def check_estimate(after: Estimate, before: Estimate, plain: Estimate) -> None:
    """Rejects a schedule that would generate too much code or run too long, compared with the
    schedule `before` it and with the `plain` nest.

    Errors: I237.
    """
    if after.instructions > max(INSTRUCTIONS, before.instructions):
        raise too_much(f"about {after.instructions:.2g} instructions with loops unrolled")
    most = max(before.operations, plain.operations, 1.0)
    if after.operations > max(_WORK, _MORE_WORK * most):
        times = after.operations / max(before.operations, 1.0)
        raise too_much(f"{times:.2g} times the operations of the previous schedule")


def check_code(llvm: str, memory_bytes: int, memory_before: int) -> None:
    """Rejects code that is too long for LLVM, or needs too much memory for temporaries.

    Errors: I237.
    """
    lines = llvm.count("\n")
    if lines > LLVM_LINES:
        raise too_much(f"{lines} lines of LLVM text; the limit is {LLVM_LINES}")
    if memory_bytes > memory_before + MEMORY_BYTES:
        raise too_much(f"{memory_bytes >> 20} MB of temporaries")


def too_much(what: str) -> InputError:
    """Returns the error of a schedule that exceeds a limit."""
    return InputError(
        "I237", f"the schedule exceeds a limit: {what}", hint="unroll less, or smaller loops"
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
                times = float(max(stmt.typical, 0))
                if stmt.kind == "vector":
                    times = max(1.0, times / _LANES)
                written = times if stmt.kind in ("unroll", "dot", "vector") else 1.0
                return Estimate(own + written * body.instructions, own + times * body.operations)
            case If() | TileProduct():
                body = self.of(stmt.body)
                return Estimate(own + body.instructions, own + body.operations)
        return Estimate(own, own)

    def _nodes(self, expr: Scalar) -> int:
        """Returns the number of distinct nodes of an expression."""
        found = self._known.get(id(expr))
        if found is None:
            found = self._known[id(expr)] = sum(1 for _ in nodes(expr))
        return found
