"""The editor: inserts operators before, after, around or in place of layers, without a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol, runtime_checkable
from weakref import WeakSet

from clew import frontends
from clew.editing.selection import (
    Part,
    Selection,
    functions_of,
    parts_by_layer,
    parts_by_node,
    parts_by_pattern,
)
from clew.editing.surgery import Build, Insertion, Piece, Plan, Surgeon, follow
from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.types import NARROW_FLOATS, TensorType
from clew.ir.visit import post_order
from clew.ops.registry import get_op
from clew.patterns import Pattern
from clew.support.errors import InputError
from clew.support.shown import Shown
from clew.trace.span import Source, Span

_FLOATS: Final = (*NARROW_FLOATS, "f32", "f64")
_FRONTEND: Final = "clew"


@runtime_checkable
class HasLayers(Protocol):
    """An object that knows its layers: a kernel of a compiled model, a node."""

    @property
    def layers(self) -> Sequence[str]:
        """Their names."""
        ...


class Editor(Shown):
    """A module under edit. The original model does not change.

    Each edit rebuilds the graph, so types are checked at once. An edit with a type error raises the
    operator's error, with the layer's name, and does not change the graph. The added operators form
    a new layer, named after the edit (or by `name`), also in traces and profiles.
    """

    def __init__(self, module: Module) -> None:
        self._module = module
        self._selections: WeakSet[Selection] = WeakSet()
        self._names: set[str] = set()

    def _about(self) -> str:
        return f"of {self._module!r}"

    @property
    def module(self) -> Module:
        """The current graph."""
        return self._module

    def __str__(self) -> str:
        return str(self._module)

    def select(
        self,
        *layers: str | HasLayers,
        op: str | Iterable[str] | None = None,
        pattern: Pattern | None = None,
        where: Callable[[Call], bool] | None = None,
    ) -> Selection:
        """Returns the selected parts: layers by name or glob, or those of a kernel or a trace (any
        object with `layers`); with `op` or `where`, the matching operator calls, of these layers or
        of all; with `pattern`, its matches, in these layers or anywhere.

        Errors: I050 for an unknown layer, I051 if nothing is selected.
        """
        names = [
            n for layer in layers for n in ([layer] if isinstance(layer, str) else layer.layers)
        ]
        parts = parts_by_layer(self._module, names) if names else None
        if op is not None or where is not None:
            wanted = None if op is None else {op} if isinstance(op, str) else set(op)
            for name in wanted or ():
                get_op(name)  # raises an error for an unknown name

            def fits(call: Call) -> bool:
                return (wanted is None or call.op_name in wanted) and (where is None or where(call))

            parts = _among(parts_by_node(self._module, fits), parts)
        if pattern is not None:
            parts = _among(parts_by_pattern(self._module, pattern), parts)
        if not parts:
            raise InputError(
                "I051",
                "nothing in the graph is selected",
                hint="give layers, op=, where= or pattern=; print(edit.module) shows the graph",
            )
        return Selection(parts, self._selections)

    def insert_after(
        self, where: Selection | str, build: Build, *, output: int = 0, name: str = ""
    ) -> Editor:
        """Makes all users of each part's result read `build(result)` instead.

        `output` selects the result. Errors: I052 (not an expression), I054 (unknown result), and
        those of the operators.
        """
        plan = Plan()
        for part in self._parts(where):
            result = _nth(part.results, output, "output", part)
            plan.values[result.id] = Insertion(self._source("insert_after", part, name), build)
        return self._apply(plan)

    def insert_before(
        self, where: Selection | str, build: Build, *, input: int = 0, name: str = ""
    ) -> Editor:
        """Makes each part read `build(value)` instead of one of its inputs.

        `input` counts the part's inputs, parameters included, in order. Errors: those of
        `insert_after`.
        """
        plan = Plan()
        for part in self._parts(where):
            source = self._source("insert_before", part, name)
            value = _nth(self._inputs(part), input, "input", part)
            self._edges(plan, part, [value], Insertion(source, build))
        return self._apply(plan)

    def wrap(
        self, where: Selection | str, before: Build, after: Build, *, name: str = ""
    ) -> Editor:
        """Inserts `before` between each part and its first input, and `after` behind its first
        result: transposes there and back, for instance.

        Errors: those of `insert_after`.
        """
        plan = Plan()
        for part in self._parts(where):
            value = _nth(self._inputs(part), 0, "input", part)
            self._edges(plan, part, [value], Insertion(self._source("before", part, name), before))
            result = _nth(part.results, 0, "output", part)
            plan.values[result.id] = Insertion(self._source("after", part, name), after)
        return self._apply(plan)

    def replace(self, where: Selection | str, build: Build, *, name: str = "") -> Editor:
        """Computes each part's results by `build(*inputs)` instead, which gets all inputs of the
        part, parameters included, in order. For a part with several results, it returns a `Tuple`.

        The types of the results must not change. Errors: I052, I053 (number of results), I055
        (types), and those of the operators.
        """
        plan = Plan()
        for part in self._parts(where):
            source = self._source("replace", part, name)
            insertion = Insertion(source, _same_type(part, build), _spans(part.results))
            inputs = self._inputs(part)
            for number, result in enumerate(part.results):
                output = None if len(part.results) == 1 else number
                plan.pieces[result.id] = Piece(insertion, inputs, output)
        return self._apply(plan)

    def remove(self, where: Selection | str, *, input: int = 0) -> Editor:
        """Makes the users of each part read its input instead of its result.

        Errors: I054; those of operators that reject the input's type.
        """
        plan = Plan()
        for part in self._parts(where):
            value = _nth(self._inputs(part), input, "input", part)
            for result in part.results:
                insertion = Insertion(self._source("remove", part, ""), lambda x: x)
                plan.pieces[result.id] = Piece(insertion, (value,))
        return self._apply(plan)

    def set_dtype(self, where: Selection | str, dtype: str, *, name: str = "") -> Editor:
        """Computes each part in another float dtype: its inputs are cast, and its results are cast
        back.

        Errors: I056 for a dtype that is not a float; those of operators that do not support it.
        """
        if dtype not in _FLOATS:
            raise InputError("I056", f"{dtype!r} is not a float dtype", hint=", ".join(_FLOATS))
        plan = Plan()
        for part in self._parts(where):
            source = self._source(f"set_dtype {dtype}", part, name)
            floats = [i for i in self._inputs(part) if _dtype(i) in _FLOATS and _dtype(i) != dtype]
            self._edges(plan, part, floats, Insertion(source, _cast(dtype)))
            for result in part.results:
                had = _dtype(result)
                if had in _FLOATS and had != dtype:
                    plan.values[result.id] = Insertion(source, _cast(had))
        return self._apply(plan)

    # --- how ---

    def _parts(self, where: Selection | str) -> list[Part]:
        selection = self.select(where) if isinstance(where, str) else where
        if selection not in self._selections:
            raise InputError(
                "I057", "the selection belongs to another editor", hint="select with this one"
            )
        return list(selection)

    def _home(self, part: Part) -> Function:
        """Returns the function whose body a part is in."""
        result = part.results[0]
        for function in functions_of(self._module):
            if any(n is result for n in post_order(function.body)):
                return function
        raise AssertionError(part)

    def _inputs(self, part: Part) -> tuple[Expr, ...]:
        return part.inputs(self._home(part))

    def _edges(self, plan: Plan, part: Part, values: Sequence[Expr], insertion: Insertion) -> None:
        """Puts an insertion on every edge through which the part reads one of the values."""
        wanted = {v.id for v in values}
        for node in post_order(self._home(part).body):
            if node.id in part.nodes:
                for child in node.children:
                    if child.id in wanted:
                        plan.edges[node.id, child.id] = insertion

    def _source(self, what: str, part: Part, name: str) -> Source:
        """Returns the source for the nodes an edit adds, with a unique name."""
        wanted = name or f"{what}({part.name})"
        unique, count = wanted, 1
        while unique in self._names:
            count += 1
            unique = f"{wanted}#{count}"
        self._names.add(unique)
        return Source(unique, what.split()[0], _FRONTEND, "edit")

    def _apply(self, plan: Plan) -> Editor:
        surgeon = Surgeon(plan)
        self._module = surgeon.module(self._module)
        reached = {n.id for f in functions_of(self._module) for n in post_order(f.body)}

        def became(part: Part) -> Part | None:
            results = tuple(surgeon.became[r.id] for r in part.results)
            if not all(r.id in reached for r in results):
                return None
            nodes = follow(part.nodes, surgeon.became) | {r.id for r in results}
            return Part(part.name, results, nodes & reached)

        for selection in list(self._selections):
            selection.follow(became)
        return self


def edit(model: Module | str | Path) -> Editor:
    """Returns an editor of a model: a module from `clew.load`, or a file.

    Errors: those of loading.
    """
    return Editor(model if isinstance(model, Module) else frontends.load(model))


def _among(parts: list[Part], layers: list[Part] | None) -> list[Part]:
    if layers is None:
        return parts
    allowed = frozenset().union(*(p.nodes for p in layers)) if layers else frozenset()
    return [p for p in parts if p.nodes <= allowed]


def _nth(values: Sequence[Expr], number: int, what: str, part: Part) -> Expr:
    if not 0 <= number < len(values):
        raise InputError("I054", f"{part.name} has no {what} {number}; it has {len(values)}")
    return values[number]


def _dtype(value: Expr) -> str:
    return value.type.dtype if isinstance(value.type, TensorType) else ""


def _cast(dtype: str) -> Build:
    def build(value: Expr) -> Expr:
        if isinstance(value, Constant) and _dtype(value) == dtype:
            return value
        return get_op("cast")(value, dtype=dtype)

    return build


def _spans(results: Sequence[Expr]) -> Span:
    span = results[0].span
    for result in results[1:]:
        span |= result.span
    return span


def _same_type(part: Part, build: Build) -> Build:
    """Returns `build` with a check that the result has the part's type."""
    before = [r.type for r in part.results]

    def checked(*values: Expr) -> Expr:
        made = build(*values)
        if isinstance(made, Expr):
            after = [made.type] if len(before) == 1 else list(getattr(made.type, "fields", ()))
            if after != before:
                had, has = ", ".join(map(str, before)), ", ".join(map(str, after))
                raise InputError(
                    "I055",
                    f"the replacement of {part.name} gives {has or made.type}, expected {had}",
                    hint="users of the layer rely on its type; cast or reshape in the replacement",
                    layer=part.name,
                )
        return made

    return checked
