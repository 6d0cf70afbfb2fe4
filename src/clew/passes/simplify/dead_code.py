"""DeadCode: removes computations that no output depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from clew.ir.expr import Call, Expr, Function, GlobalVar, If, Let, Tuple, TupleGetItem, Var, While
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, keep_sizes, rebuild
from clew.ir.types import TupleType
from clew.ir.visit import free_vars, post_order
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class DeadCode(Pass):
    """Removes unused parts that a graph can hold; an unused node is never part of a graph.

    - Functions of the module that `main` does not reach.
    - `Let`s whose variable the body does not use.
    - Arguments of an `If` that neither branch uses, and unread results of an `If`.
    - States of a `While` that are not read after the loop and do not affect it, and unread stacked
      values.

    Before: `%4 = if %c then fn(%a, %b) { (%a, %b) } else fn(%a, %b) { (%b, %a) } (%1, %2)`, `%5 =
    %4.0`
    After:  `%4 = if %c then fn(%a, %b) { (%a,) } else fn(%a, %b) { (%b,) } (%1, %2)`, `%5 = %4.0`

    Preconditions: none. Non-goals: parameters of `main` (the model's interface stays).
    """

    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _reachable(_Pruner().rewrite_module(module))


def _reachable(module: Module) -> Module:
    """Returns the module without functions that `main` does not reach."""
    kept: dict[str, Function] = {}
    pending = ["main"]
    while pending:
        name = pending.pop()
        if name in kept:
            continue
        kept[name] = module.functions[name]
        for node in post_order(kept[name], into_functions=True):
            if isinstance(node, GlobalVar):
                pending.append(node.name)
            elif isinstance(node, Call) and isinstance(node.op, GlobalVar):
                pending.append(node.op.name)
    if len(kept) == len(module.functions):
        return module
    return Module({name: f for name, f in module if name in kept})


class _Pruner(Rewriter):
    """Rewrites projections of a pruned tuple to the new positions of its fields."""

    rebuilds = False

    def __init__(self) -> None:
        super().__init__()
        # Node id -> the fields that are read; None if the tuple is used whole.
        self._read: dict[int, set[int] | None] = {}
        # Pruned node's id -> new position of each old field.
        self._moved: dict[int, dict[int, int]] = {}
        self._used_vars: set[int] = set()

    def enter(self, function: Function) -> None:
        self._read[function.body.id] = None
        for node in post_order(function.body):
            if isinstance(node, TupleGetItem):
                fields = self._read.setdefault(node.value.id, set())
                if fields is not None:
                    fields.add(node.index)
            else:
                for child in node.children:
                    self._read[child.id] = None
            used = node.children[1:] if isinstance(node, Let) else node.children
            self._used_vars.update(c.id for c in used if isinstance(c, Var))

    def dispatch(self, old: Expr, new: Expr) -> Expr:
        children = [self.memo[c.id] for c in old.children]
        if isinstance(old, TupleGetItem) and old.value.id in self._moved:
            return TupleGetItem(children[0], self._moved[old.value.id][old.index])
        return super().dispatch(old, rebuild(old, children))

    def rewrite_other(self, old: Expr, new: Expr) -> Expr:
        if isinstance(new, Let) and new.var.id not in self._used_vars:
            return new.body
        return new

    def rewrite_control(self, old: Expr, new: Expr) -> Expr:
        read = self._read.get(old.id)
        if isinstance(new, If):
            return self._prune_if(old, new, read)
        assert isinstance(new, While)
        return self._prune_while(old, new, read)

    def _prune_if(self, old: Expr, new: If, read: set[int] | None) -> If:
        then, orelse = new.then, new.orelse
        if isinstance(new.type, TupleType) and read is not None:
            kept = sorted(read)
            if len(kept) < len(new.type.fields):
                self._moved[old.id] = {field: place for place, field in enumerate(kept)}
                then, orelse = _with_fields(then, kept), _with_fields(orelse, kept)
        used = [
            place
            for place, params in enumerate(zip(then.params, orelse.params, strict=True))
            if _uses_any((then.body, orelse.body), params)
        ]
        if then is new.then and len(used) == len(new.args):
            return new
        then, orelse = _with_params(then, used), _with_params(orelse, used)
        pruned = If(new.cond, then, orelse, [new.args[place] for place in used])
        _keep_sizes(new, pruned, self._moved.get(old.id))
        return pruned

    def _prune_while(self, old: Expr, new: While, read: set[int] | None) -> While:
        states = len(new.init)
        if read is None:
            return new
        fields = _fields(new.body)
        needed = {f for f in read if f < states} | _places(new.cond, [new.cond.body])
        pending = [fields[f] for f in needed | {f for f in read if f >= states}]
        while pending:
            more = _places(new.body, pending) - needed
            needed |= more
            pending = [fields[f] for f in more]
        kept = [f for f in range(len(fields)) if (f in needed if f < states else f in read)]
        if len(kept) == len(fields):
            return new
        self._moved[old.id] = {field: place for place, field in enumerate(kept)}
        live = [f for f in kept if f < states]
        places = [0, *(f + 1 for f in live)]
        pruned = While(
            _with_params(new.cond, places),
            _with_params(_with_fields(new.body, kept), places),
            [new.init[f] for f in live],
            scans=len(kept) - len(live),
            trips=new.trips,
        )
        _keep_sizes(new, pruned, self._moved[old.id])
        return pruned


def _keep_sizes(whole: Expr, pruned: Expr, moved: Mapping[int, int] | None) -> None:
    """Makes the remaining fields keep the names of their sizes."""
    type_ = whole.type
    if moved is not None:
        assert isinstance(type_, TupleType)
        type_ = TupleType(tuple(type_.fields[field] for field in sorted(moved)))
    keep_sizes(type_, pruned)


def _uses_any(bodies: tuple[Expr, ...], params: tuple[Var, ...]) -> bool:
    wanted = {p.id for p in params}
    return any(v.id in wanted for v in free_vars(bodies))


def _places(function: Function, values: list[Expr]) -> set[int]:
    """Returns which states (parameters after the counter) the values depend on."""
    used = {v.id for v in free_vars(values)}
    return {place for place, p in enumerate(function.params[1:]) if p.id in used}


def _fields(function: Function) -> list[Expr]:
    body = function.body
    if isinstance(body, Tuple):
        return list(body.fields)
    assert isinstance(body.type, TupleType)
    return [TupleGetItem(body, n) for n in range(len(body.type.fields))]


def _with_fields(function: Function, kept: list[int]) -> Function:
    """Returns the function with only some fields of its result."""
    fields = _fields(function)
    return Function(function.params, Tuple([fields[f] for f in kept]), function.attrs)


def _with_params(function: Function, kept: list[int]) -> Function:
    """Returns the function with only some of its parameters; unchanged if those are all."""
    if len(kept) == len(function.params):
        return function
    return Function([function.params[p] for p in kept], function.body, function.attrs)
