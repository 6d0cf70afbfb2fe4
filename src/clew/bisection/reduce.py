"""Delta debugging on graphs: finds the smallest part of a model that still fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from clew.bisection.cases import (
    Case,
    completed,
    cut,
    is_unit,
    lengths,
    resized,
    units,
    without_inner,
)
from clew.bisection.checks import Check, quietly
from clew.ir.expr import Constant, Function, Tuple, TupleGetItem, While
from clew.ir.interpret import interpret, interpret_values, interpreted
from clew.ir.types import TensorType
from clew.ir.visit import post_order

_SECONDS: Final = 60.0
_SMALL: Final = (1, 2, 3)
_LEFT: Final = 1e-2
_ODD: Final = 64
_MOST_ITERATIONS: Final = 64


@dataclass
class Reducer:
    """Tries cases against a check, within a time limit."""

    check: Check
    say: Callable[[str], None] = lambda text: None
    seconds: float = _SECONDS
    tried: int = 0
    _until: float = field(default=0.0)

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.seconds

    @property
    def late(self) -> bool:
        """Whether the time limit has passed."""
        return time.monotonic() > self._until

    def fails(self, case: Case | None) -> bool:
        """Whether a case shows the failure; a case that cannot run does not."""
        if case is None or not case.expected:
            return False
        self.tried += 1
        self.say(f"reducing: {case.operators} operators, attempt {self.tried}")
        try:
            error = self.check.error(case.module, case.inputs, case.expected)
        except Exception:  # a different failure
            return False
        return error > self.check.tolerance

    # --- fewer nodes ---

    def neighborhood(
        self, function: Function, seeds: Collection[int], make: Callable[[set[int]], Case]
    ) -> set[int] | None:
        """Returns the smallest of the growing neighborhoods of some nodes that fails alone; None if
        even the whole function does not fail.
        """
        near = _Neighbors(function)
        members = {s for s in seeds if s in near.units}
        while members:
            if self.fails(_made(make, members)):
                return members
            grown = near.grown(members)
            if len(grown) > len(near.units) // 2 or grown == members:
                grown = set(near.units)
            if grown == members:
                break
            members = grown
        return None

    def smaller(self, members: set[int], make: Callable[[set[int]], Case]) -> set[int]:
        """Returns a subset that fails and from which no node can be removed."""
        current = sorted(members)
        chunk = max(1, len(current) // 2)
        while True:
            removed = False
            start = 0
            while start < len(current) and len(current) > 1 and not self.late:
                rest = current[:start] + current[start + chunk :]
                if rest and self.fails(_made(make, set(rest))):
                    current, removed = rest, True
                else:
                    start += chunk
            if chunk == 1 and (not removed or self.late):
                return set(current)
            chunk = max(1, chunk // 2)

    def smaller_kernels(self, case: Case) -> Case:
        """Returns the case with fewer operators in its kernels that still fails."""
        progress = True
        while progress and not self.late:
            progress = False
            for made in without_inner(case):
                if not self.late and self.fails(whole := with_expected(made)):
                    assert whole is not None
                    case, progress = whole, True
                    break
        return case

    # --- inside a loop ---

    def inside_loop(self, case: Case) -> tuple[Case, int] | None:
        """Returns the body of the case's only loop at the first iteration that fails alone,
        and that iteration's number; None if there is no such loop or iteration.
        """
        loops = units(case.module.main)
        if len(loops) != 1 or not isinstance(loops[0], While):
            return None
        for iteration, made in enumerate(_iterations(case, loops[0])):
            if self.late or iteration == _MOST_ITERATIONS:
                return None
            if self.fails(made):
                return made, iteration
        return None

    # --- fewer outputs, less of each ---

    def fewer_outputs(self, case: Case, make: Callable[[Sequence[str]], Case]) -> Case:
        """Returns the case with a single output, if one fails alone."""
        if len(case.expected) > 1:
            for name in case.expected:
                if self.fails(one := make([name])):
                    return one
        return case

    def smaller_sizes(self, case: Case) -> Case:
        """Returns the case with shorter axes that still fails: reduces each size in turn, twice."""
        for _ in range(2):
            before = case
            for size in lengths(case):
                while size > 1 and not self.late and (found := self._shorter(case, size)):
                    case, size = found
            if case is before:
                break
        return case

    def _shorter(self, case: Case, size: int) -> tuple[Case, int] | None:
        """Returns the case with one size reduced, and the new size."""
        few = (*_SMALL, size // 4, size // 2, *((size - 1,) if size <= _ODD else ()))
        for new in dict.fromkeys(n for n in few if 0 < n < size):
            for constants in (False, True):
                if self.late:
                    return None
                made = resized(case, size, new, constants=constants)
                whole = None if made is None else with_expected(made)
                if whole is not None and _says_something(whole, case) and self.fails(whole):
                    return whole, new
        return None


def _iterations(case: Case, loop: While) -> Iterator[Case]:
    """Yields each iteration of a loop as a separate module, with its inputs in the case."""
    main, body = case.module.main, loop.body
    names = [p.name for p in body.params]
    if not isinstance(body.body, Tuple) or len(set(names)) < len(names):
        return
    outputs = dict.fromkeys(f"y{n}" for n in range(len(body.body.fields)))
    given = {p.id: case.inputs[p.name] for p in main.params}
    known = given | interpret_values(main, list(given.values()), {i.id for i in loop.init})
    state = [i.data if isinstance(i, Constant) else known[i.id] for i in loop.init]
    goes_on, iteration = interpreted(loop.cond), 0
    while bool(goes_on(values := [np.asarray(iteration, np.int64), *state], case.sizes)):
        inputs = dict(zip(names, values, strict=True))
        made = with_expected(completed(body.params, body.body, inputs, outputs, case.sizes))
        if made is None:
            return
        yield made
        state = list(made.expected.values())[: len(state)]
        iteration += 1


def _says_something(smaller: Case, case: Case) -> bool:
    """Whether no output shrank to near zero, since errors relative to such values mean little."""
    return all(
        _largest(smaller.expected[n]) >= _LEFT * _largest(v) for n, v in case.expected.items()
    )


def _largest(value: Any) -> float:
    array = np.asarray(value)
    if array.dtype.kind not in "fiubV" or not array.size:
        return 0.0
    wide = np.abs(array.astype(np.float64))
    return float(np.max(wide, where=np.isfinite(wide), initial=0.0))


def with_expected(case: Case) -> Case | None:
    """Returns the case with the interpreter's results; None if it fails, or gives a result of
    another shape than its type because operands do not match.
    """
    try:
        with quietly():
            expected = interpret(case.module, case.inputs)
    except Exception:  # shapes that an operator's reference rejects
        return None
    types = [f.type for f in case.module.main.body.children]
    fits = all(
        not isinstance(t, TensorType) or not t.is_static or np.shape(v) == t.concrete
        for t, v in zip(types, expected.values(), strict=True)
    )
    return replace(case, expected=expected) if fits else None


def _made(make: Callable[[set[int]], Case], members: set[int]) -> Case | None:
    try:
        return make(members)
    except Exception:  # a part that cannot stand alone: it needs a value that was not captured
        return None


def maker(
    function: Function,
    values: Mapping[int, Any],
    wrap: Callable[[Function], Function] | None = None,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> Callable[[set[int]], Case]:
    """Returns a function that cuts sets of nodes out of a function; see `cut`."""
    return lambda members: cut(function, members, values, wrap, sizes=sizes)


class _Neighbors:
    """The neighbors of each node of a function, through tuples."""

    def __init__(self, function: Function) -> None:
        self.units: set[int] = set()
        self._near: dict[int, set[int]] = {}
        parts: dict[int, set[int]] = {}
        for node in post_order(function.body):
            if isinstance(node, Function):
                continue
            behind = {u for c in node.children for u in parts.get(c.id, ())}
            if is_unit(node):
                self.units.add(node.id)
                self._near.setdefault(node.id, set()).update(behind)
                for unit in behind:
                    self._near[unit].add(node.id)
                parts[node.id] = {node.id}
            elif isinstance(node, (Tuple, TupleGetItem)) and node is not function.body:
                parts[node.id] = behind

    def grown(self, members: Iterable[int]) -> set[int]:
        """Returns the members and their neighbors."""
        found = set(members)
        for member in list(found):
            found |= self._near.get(member, set())
        return found
