"""The matcher: a bounded backtracking search for one match of a pattern at a node.

The remaining work is a linked list of goals. Each kind of goal has a step (`steps.py`), which binds
its pattern and returns the remaining goals, several lists if there are alternatives, or `FAILED`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias

from clew.ir.expr import (
    Attrs,
    Call,
    Constant,
    Expr,
    If,
    Let,
    Tuple,
    TupleGetItem,
    While,
)
from clew.patterns.base import PatternBase
from clew.patterns.goals import FAILED, Goals, Outcome
from clew.support.dataclass import dataclass
from clew.support.shown import counted

# The step for each class of goal; its arguments are the match, the goal, the node and the rest.
Steps: TypeAlias = Mapping[type, Callable[..., Outcome]]
Uses: TypeAlias = Callable[[Expr], int]
# A search gives up after this many steps: some patterns have exponentially many ways to fail.
STEP_LIMIT: Final = 20_000


@dataclass(frozen=True, eq=False, repr=False)
class Inside(PatternBase):
    """In a match, the `place`th node that a pattern covers without naming it: between a parent and
    its child, or inside a sum with a different bracketing.
    """

    is_naming: ClassVar[bool] = True
    of: PatternBase
    place: int

    def written(self, parts: Sequence[str]) -> str:
        return f"inside {self.place}"


_COVERED: Final = (Call, Constant, TupleGetItem, Tuple, If, While, Let)


class Match(Mapping[PatternBase, Expr]):
    """A mapping from patterns to the nodes they matched.

    `nodes` are the nodes that the pattern names, once each, the root first: calls, projections,
    tuples, branches and constants. Nodes matched by wildcards are not included. `steps` is the
    length of the search.
    """

    __slots__ = ("_bound", "_step_of", "on_failure", "root", "steps", "uses")

    def __init__(self, root: Expr, uses: Uses, step_of: Steps) -> None:
        self.root = root
        self._step_of = step_of
        self.uses = uses
        self.steps = 0
        self.on_failure: Callable[[Any, Expr], None] | None = None
        self._bound: dict[PatternBase, Expr] = {}

    def __repr__(self) -> str:
        return f"<Match of {counted(len(self), 'pattern')} at {self.root!r}>"

    def __getitem__(self, pattern: PatternBase) -> Expr:
        found = self._bound.get(pattern)
        if found is None:
            raise KeyError(f"{pattern} has no node: test `pattern in found`")
        return found

    def __contains__(self, pattern: object) -> bool:
        return pattern in self._bound

    def __iter__(self) -> Iterator[PatternBase]:
        return iter(self._bound)

    def __len__(self) -> int:
        return len(self._bound)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def nodes(self) -> tuple[Expr, ...]:
        """The nodes that the pattern names, the root first."""
        named = {self.root.id: self.root}
        for pattern, node in self._bound.items():
            if pattern.is_naming and isinstance(node, _COVERED):
                named[node.id] = node
        return tuple(named.values())

    @property
    def attrs(self) -> Attrs:
        """The root's attributes. Asserts that it is a call."""
        assert isinstance(self.root, Call), self.root
        return self.root.attrs

    def call(self, pattern: PatternBase) -> Call:
        """Returns the call that a pattern matched. Asserts that it is one."""
        node = self._bound[pattern]
        assert isinstance(node, Call), node
        return node

    def constant(self, pattern: PatternBase) -> Constant:
        """Returns the constant that a pattern matched. Asserts that it is one."""
        node = self._bound[pattern]
        assert isinstance(node, Constant), node
        return node

    def inside(self, pattern: PatternBase) -> tuple[Expr, ...]:
        """Returns the nodes that a pattern covers without naming them: between a parent and its
        child, or in a sum whose bracketing differs from the pattern's.
        """
        return tuple(n for p, n in self._bound.items() if isinstance(p, Inside) and p.of is pattern)

    # --- for the steps ---

    def bind(self, pattern: PatternBase, node: Expr) -> None:
        """Binds a pattern to a node, until the search backtracks."""
        self._bound[pattern] = node

    def cover(self, pattern: PatternBase, nodes: Iterable[Expr]) -> None:
        """Records nodes that a pattern covers without naming them."""
        for place, node in enumerate(nodes):
            self._bound[Inside(pattern, place)] = node

    def again(self, pattern: PatternBase, node: Expr) -> bool:
        """Whether a pattern matches a node independently of the current match."""
        inner = Match(node, self.uses, self._step_of)
        inner.steps = self.steps
        fits = inner.solve((pattern, node, None))
        self.steps = inner.steps
        return fits

    def solve(self, goals: Goals) -> bool:
        """Whether the goals can be met; if so, their bindings are kept."""
        bound, start, steps = self._bound, len(self._bound), self.steps
        step_of = self._step_of
        # Choice points: the number of bindings at that point, and the remaining alternatives.
        trail: list[tuple[int, Iterator[Goals]]] = []
        while goals is not None:
            pattern, node, rest = goals
            steps += 1
            known = bound.get(pattern)
            outcome: Any
            if known is not None:
                outcome = rest if known is node else FAILED
            elif steps > STEP_LIMIT:
                trail.clear()
                outcome = FAILED
            else:
                self.steps = steps
                outcome = step_of[type(pattern)](self, pattern, node, rest)
                steps = self.steps
            if outcome is None or type(outcome) is tuple:
                goals = outcome
                continue
            if outcome is FAILED:
                if self.on_failure is not None:
                    self.on_failure(pattern, node)
            else:
                trail.append((len(bound), iter(outcome)))
            while trail:
                mark, others = trail[-1]
                while len(bound) > mark:
                    bound.popitem()
                self.steps = steps
                following: Any = next(others, FAILED)
                steps = self.steps
                if following is not FAILED:
                    goals = following
                    break
                trail.pop()
            else:
                while len(bound) > start:
                    bound.popitem()
                self.steps = steps
                return False
        self.steps = steps
        return True
