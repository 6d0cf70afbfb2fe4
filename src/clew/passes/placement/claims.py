"""Finds the calls that a backend claims: operators, and matches of its patterns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from clew.ir.expr import Call, Expr, Function
from clew.ir.outline import Piece
from clew.ir.types import TensorType, TupleType, Type
from clew.ir.visit import post_order
from clew.machine.target import Target
from clew.ops.registry import Op, argument_references
from clew.passes.base import Pass
from clew.patterns import Match, Pattern, partition
from clew.patterns.composites import Finder
from clew.support.dataclass import dataclass
from clew.support.errors import PASSED_ON, ClewError, CompileError


@dataclass(frozen=True, eq=False)
class RegionPattern:
    """Operators that a backend takes together: a name, a pattern and a condition."""

    name: str
    pattern: Pattern
    check: Callable[[Match], Any] | None = None

    @property
    def checked(self) -> Pattern:
        """The pattern with its condition."""
        check = self.check
        if check is None:
            return self.pattern
        return self.pattern.where(lambda found: check(found) is not False)


class Claims(Protocol):
    """The interface of a backend for placement."""

    @property
    def name(self) -> str:
        """The unique name of the backend."""
        ...

    @property
    def key(self) -> str:
        """A text that changes whenever the backend takes or compiles something else."""
        ...

    @property
    def patterns(self) -> Sequence[RegionPattern]:
        """The patterns that the backend takes, in order of preference."""
        ...

    def takes(self, call: Call) -> bool:
        """Whether the backend can run a call of an operator."""
        ...

    def passes(self, target: Target) -> Sequence[Pass]:
        """Returns passes to run just before regions are formed."""
        ...

    def cost(self, region: Function, target: Target) -> float | None:
        """Returns the seconds that a region takes, with the copies at its borders; None to take it
        in any case.
        """
        ...


def keys_of(backends: Sequence[Claims]) -> str:
    """Returns the names and keys of backends, as part of the text of a pass."""
    return f"backends=({', '.join(f'{b.name}:{b.key}' for b in backends)})"


def asked(backend: Claims, what: str, ask: Callable[..., Any], *args: Any) -> Any:
    """Calls a function of a backend and returns its result.

    Errors: C073 if the function fails.
    """
    try:
        return ask(*args)
    except ClewError:
        raise
    except PASSED_ON:
        raise
    except BaseException as error:  # whatever a backend's code raises
        raise CompileError(
            "C073",
            f"the backend {backend.name} failed in {what}: {type(error).__name__}: {error}",
            hint=f"compile without {backend.name} to run all layers on the CPU",
        ) from error


def matches_of(
    function: Function, backend: Claims, among: Callable[[Call], bool] = lambda call: True
) -> list[Piece]:
    """Returns matches of a backend's patterns in a function's body that do not overlap. All their
    calls are placeable, and `among` holds for them.

    Errors: C073 if the backend's code fails.
    """
    taken: set[int] = set()
    found: list[Piece] = []
    for wanted in backend.patterns:
        finder = Finder(function, wanted.checked, False, lambda node, why: None)
        for part in asked(backend, f"the check of {wanted.name}", finder.find):
            calls = [m for m in part.members if isinstance(m, Call)]
            if not part.ids & taken and all(is_placeable(c) and among(c) for c in calls):
                part.attrs = {"composite": wanted.name, "name": wanted.name, "of": backend.name}
                found.append(part)
                taken |= part.ids
    return found


def claimed(call: Call, backend: Claims) -> bool:
    """Whether a backend takes a call of an operator or of a composite function. It takes composite
    functions that were made for it, and others if it takes all calls in them, alone or by its
    patterns.

    Errors: C073 if the backend's code fails.
    """
    called = call.op
    if isinstance(called, Function):
        made_for = called.attrs.get("of") == backend.name
        return "composite" in called.attrs and (made_for or covers(called, backend))
    return is_placeable(call) and bool(asked(backend, "takes", backend.takes, call))


def covers(function: Function, backend: Claims) -> bool:
    """Whether a backend takes all calls in a function's body, alone or by its patterns.

    Errors: C073 if the backend's code fails.
    """
    matched = {id_ for part in matches_of(function, backend) for id_ in part.ids}
    calls = [n for n in post_order(function.body) if isinstance(n, Call)]
    return all(c.id in matched or claimed(c, backend) for c in calls)


def operators_in(call: Call) -> list[Call]:
    """Returns the calls of operators in a call: the call itself, or those in the function that it
    calls, including those in composites inside.
    """
    if not isinstance(call.op, Function):
        return [call]
    inside = (n for n in post_order(call.op.body) if isinstance(n, Call))
    return [c for node in inside for c in operators_in(node)]


def is_placeable(node: Expr) -> bool:
    """Whether a node may be part of a region: a call of an operator whose shapes are known and
    whose attributes do not depend on values.
    """
    if not isinstance(node, Call) or not isinstance(node.op, Op):
        return False
    if argument_references(node.attrs):
        return False
    return all(map(_is_static, (node.type, *(a.type for a in node.args))))


def _is_static(type_: Type) -> bool:
    return isinstance(type_, (TensorType, TupleType)) and type_.is_static


def with_composites(region: Function, backend: Claims) -> Function:
    """Returns a region in the form that its backend receives: each match of a pattern is a call of
    a function with `composite` set to the pattern's name.
    """
    function = Function(region.params, region.body)
    for wanted in backend.patterns:
        function = partition(function, wanted.checked, wanted.name)
    return function
