"""Rewrite rules: a pattern, and a function that builds the replacement of a match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, TypeAlias, TypeVar

from clew.ir.expr import Call, Expr, Function, If, Tuple, TupleGetItem, While
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, rebuild
from clew.ir.types import TensorType, TupleType, Type
from clew.ir.visit import post_order
from clew.patterns.cycles import Firing, story
from clew.patterns.exactness import Exactness
from clew.patterns.found import Match
from clew.patterns.pattern import Pattern, as_pattern
from clew.patterns.steps import STEPS
from clew.support import walk
from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.scoped import scoped
from clew.trace.lineage import Origins

Target = TypeVar("Target", Module, Function)


@dataclass(frozen=True, eq=False)
class Rule:
    """Replaces a match of `pattern` by the result of `build`; if that is `None`, nothing changes.

    The result computes the value of the match's root. If that value is a tuple, the result is one
    as well, and users of one field get that field. `name` is the function's name. `exactness` says
    how the result's bits differ from those of the match; rules of users need not state it.
    """

    name: str
    pattern: Pattern
    build: Callable[[Match], Expr | None]
    exactness: Exactness | None = None


class Rewrite:
    """A rule as a class: `pattern`, and the method `rewrite`, which builds the replacement.

    ```python
    class FoldX(Rewrite):
        def __init__(self):
            self.x = wildcard()
            self.pattern = is_op("exp")(is_op("log")(self.x))

        def rewrite(self, found):
            return found[self.x]
    ```
    """

    pattern: Pattern

    def accepts(self, found: Match) -> bool:
        """Whether to accept a match. This is part of the search: after a rejection, it tries the
        next.
        """
        return True

    def rewrite(self, found: Match) -> Expr | None:
        """Returns the replacement of the match's root; `None` changes nothing."""
        return None

    def as_rule(self) -> Rule:
        """Returns the rule.

        Errors: I025 if the class lacks a pattern or `rewrite`.
        """
        name = type(self).__name__
        if type(self).rewrite is Rewrite.rewrite:
            raise InputError(
                "I025", f"the rewrite {name} builds nothing", hint="define rewrite(self, found)"
            )
        pattern = getattr(self, "pattern", None)
        if not isinstance(pattern, Pattern):
            raise InputError(
                "I025", f"the rewrite {name} has no pattern", hint="set `pattern = ...`"
            )
        if type(self).accepts is not Rewrite.accepts:
            pattern = pattern.where(self.accepts, f"{name}.accepts")
        return Rule(name, pattern, self.rewrite)


AnyRule: TypeAlias = "Rule | Rewrite | type[Rewrite]"


def rule(
    pattern: Pattern, exactness: Exactness | None = None
) -> Callable[[Callable[[Match], Expr | None]], Rule]:
    """Decorator: turns a function of a match into a rule.

    Errors: I026 if the argument is not a pattern.
    """
    checked = as_pattern(pattern)

    def make(build: Callable[[Match], Expr | None]) -> Rule:
        return Rule(getattr(build, "__name__", "rule"), checked, build, exactness)

    return make


def rewrite(target: Target, *rules: AnyRule) -> Target:
    """Returns a module, or a function, rewritten by rules until none matches; the same object if
    nothing changed.

    Errors: I021 if rules keep firing at one node, I024 for a result of another type, I025 for an
    argument that is not a rule.
    """
    rewriter = RuleRewriter(rules)
    if isinstance(target, Module):
        return rewriter.rewrite_module(target)
    return rewriter.rewrite_function(target)


def _as_rule(given: Any) -> Rule:
    if isinstance(given, Rule):
        return given
    if isinstance(given, type) and issubclass(given, Rewrite):
        given = given()
    if isinstance(given, Rewrite):
        return given.as_rule()
    raise InputError(
        "I025", f"{given!r} is not a rule", hint="decorate a function with @rule(pattern)"
    )


_unfired: ContextVar[list[Rule] | None] = ContextVar("unfired", default=None)


@contextmanager
def unfired() -> Iterator[list[Rule]]:
    """Yields a list of the rules that matched nothing in a module they were applied to in the
    block.
    """
    found: list[Rule] = []
    with scoped(_unfired, found):
        yield found


class RuleRewriter(Rewriter):
    """Applies rules bottom-up until none matches. Earlier rules take precedence.

    The replacement belongs to all old nodes of the match. It is itself rewritten by the rules, so
    one pass reaches a fixed point. A node is tried only with rules whose root may have its kind,
    and a call only with those whose root calls its operator. Variables, constants and functions are
    never replaced. `visits` counts the tried nodes, `steps` the matcher's steps.

    Errors: I021 if rules keep firing at one node, I024 for a result of another type.
    """

    limit: ClassVar[int] = 256

    def __init__(self, rules: Iterable[AnyRule]) -> None:
        super().__init__()
        self.visits = 0
        self.steps = 0
        self._by_kind: dict[type[Expr], list[Rule]] = {}
        self._by_op: dict[str, list[Rule]] = {}
        # For each node of the new graph: the old nodes it was built for, the root first.
        self._stands_for: dict[int, Origins[Expr]] = {}
        # Nodes that replaced an old node; they are final.
        self._placed: set[int] = set()
        self._uses: dict[int, int] = {}
        self._old_uses: dict[int, int] = {}
        self._rules = [_as_rule(r) for r in rules]
        self._fired: set[int] = set()
        self._index(self._rules)

    def rewrite_module(self, module: Module) -> Module:
        new = super().rewrite_module(module)
        seen = _unfired.get()
        if seen is not None:
            seen += [r for r in self._rules if id(r) not in self._fired]
        return new

    def _index(self, rules: list[Rule]) -> None:
        kinds = [(r, r.pattern.root_kinds, r.pattern.root_ops) for r in rules]
        for kind in (Call, TupleGetItem, Tuple, If, While):
            found = [r for r, of, ops in kinds if (of is None or kind in of) and ops is None]
            if found:
                self._by_kind[kind] = found
        for name in {n for _, _, ops in kinds for n in ops or ()}:
            self._by_op[name] = [
                r
                for r, of, ops in kinds
                if (name in ops if ops is not None else of is None or Call in of)
            ]

    def enter(self, function: Function) -> None:
        for node in post_order(function.body):
            for child in node.children:
                self._old_uses[child.id] = self._old_uses.get(child.id, 0) + 1
        body = function.body.id
        self._old_uses[body] = self._old_uses.get(body, 0) + 1

    def uses(self, node: Expr) -> int:
        """Returns how many nodes use a value of the graph being built."""
        return self._uses.get(node.id, 1)

    def originals(self, *nodes: Expr) -> tuple[Origins[Expr], ...]:
        """Returns the nodes of the previous stage that nodes of the new graph were built for,
        together; () if there are none.
        """
        found = [self._stands_for[node.id] for node in nodes if node.id in self._stands_for]
        whole = Origins.of(found)
        return () if whole is None else (whole,)

    def dispatch(self, old: Expr, new: Expr) -> Expr:
        result = super().dispatch(old, new)
        if result.id not in self._placed:
            self._stands_for.setdefault(result.id, Origins(old))
            if isinstance(old, (Call, TupleGetItem)) or self._is_other_root(result):
                result = self._settle(result)
        stands_for = self._stands_for.get(result.id)
        if stands_for is None:
            self._stands_for[result.id] = Origins(old)
        elif stands_for.first is not old:
            self._stands_for[result.id] = Origins(stands_for.first, stands_for, old)
        self._placed.add(result.id)
        self._uses[result.id] = self._uses.get(result.id, 0) + self._old_uses.get(old.id, 0)
        return result

    def _is_other_root(self, node: Expr) -> bool:
        return isinstance(node, (Tuple, If, While)) and type(node) in self._by_kind

    def _settle(self, root: Expr) -> Expr:
        """Returns `root` after applying all rules that match it or their replacements."""
        fired: list[Firing] = []
        tried = set[int]()
        while True:
            for node in self._unplaced(root):
                if node.id in tried:
                    continue
                tried.add(node.id)
                self.visits += 1
                result = self._fire(node, fired)
                if result is not None:
                    root = self._replace(root, node, result)
                    break
            else:
                return root

    def _unplaced(self, root: Expr) -> list[Expr]:
        """Returns the nodes under `root` that were just built, uses after their operands."""

        def below(node: Expr) -> list[Expr]:
            closed = isinstance(node, Function)
            return [] if closed else [c for c in node.children if c.id not in self._placed]

        return walk.post_order([root] if root.id not in self._placed else [], below)

    def _rules_for(self, node: Expr) -> Iterable[Rule]:
        if isinstance(node, Call):
            found = self._by_op.get(node.op_name)
            if found is not None:
                return found
        return self._by_kind.get(type(node), ())

    def _fire(self, node: Expr, fired: list[Firing]) -> Expr | None:
        """Returns the replacement by the first rule that matches, or `None`; records the firing."""
        for candidate in self._rules_for(node):
            found = Match(node, self.uses, STEPS)
            fits = found.solve((candidate.pattern, node, None))
            self.steps += found.steps
            if not fits:
                continue
            self._fired.add(id(candidate))
            stands_for = self.originals(*found.nodes)
            with self.covers(*stands_for):
                result = candidate.build(found)
            if result is None or result is node:
                continue
            fired.append(Firing(candidate.name, node, result))
            if len(fired) > self.limit:
                names, shown = story(fired)
                raise InputError(
                    "I021",
                    f"rules reach no fixed point, {names} keep firing:\n{shown}",
                    hint="no rule may undo the effect of another",
                )
            _check_type(candidate, node, result)
            for built in self._unplaced(result) if stands_for else ():
                self._stands_for.setdefault(built.id, stands_for[0])
            return result
        return None

    def _replace(self, root: Expr, node: Expr, result: Expr) -> Expr:
        """Returns `root` with `node`, which was just built for it, replaced."""
        replaced: dict[int, Expr] = {node.id: result}
        if node is not root:
            for user in self._unplaced(root):
                if user is node:
                    continue
                stands_for = self.originals(user)
                with self.covers(*stands_for):
                    new = rebuild(user, [replaced.get(c.id, c) for c in user.children])
                if stands_for:
                    self._stands_for.setdefault(new.id, stands_for[0])
                replaced[user.id] = new
        return replaced[root.id]


def _check_type(fired: Rule, node: Expr, result: Expr) -> None:
    """Checks the type of a rule's result.

    Errors: I024 if the result cannot replace the node.
    """
    if result.type is not node.type and not _may_be(result.type, node.type):
        raise InputError(
            "I024",
            f"the rule {fired.name} gives a {result.type} for a {node.type}",
            hint="the result must compute the value of the match's root",
        )


def _may_be(given: Type, wanted: Type) -> bool:
    """Whether a value can have both types; sizes known only during the run may be equal."""
    match given, wanted:
        case TensorType(), TensorType():
            known = zip(given.shape, wanted.shape, strict=False)
            return (
                given.dtype == wanted.dtype
                and given.rank == wanted.rank
                and all(not (isinstance(a, int) and isinstance(b, int)) or a == b for a, b in known)
            )
        case TupleType(), TupleType():
            pairs = zip(given.fields, wanted.fields, strict=False)
            return len(given.fields) == len(wanted.fields) and all(_may_be(a, b) for a, b in pairs)
    return type(given) is type(wanted)
