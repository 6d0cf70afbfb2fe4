"""Rules that assign operators to backends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from clew.ir.expr import Call, Expr, Function
from clew.ir.module import Module
from clew.ir.outline import Piece
from clew.ir.visit import post_order
from clew.passes.base import PassContext, Unmet
from clew.passes.placement.claims import Claims, claimed, operators_in
from clew.passes.placement.convex import Regions
from clew.passes.placement.costs import worthwhile
from clew.passes.placement.refusals import claims_any, why_not, why_nothing
from clew.support.dataclass import dataclass
from clew.support.errors import ClewWarning, InputError
from clew.support.near import fitting, is_glob, listed
from clew.support.shown import indented

Chooser: TypeAlias = Callable[[Call], str | None]
"""A user's function: returns the name of the backend for an operator's call; None for the CPU."""


class Rule(ABC):
    """Decides which backends may have a call of an operator."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"

    @property
    def is_builtin(self) -> bool:
        """Whether the rule contains no code of the user."""
        return True

    @property
    def expects_all(self) -> bool:
        """Whether each backend is to get something."""
        return False

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that the rule names."""
        return ()

    @property
    def named_layers(self) -> tuple[str, ...]:
        """The layers, or globs of them, that the rule names."""
        return ()

    @abstractmethod
    def gives(self, call: Call, backend: str) -> bool:
        """Whether the backend of this name may have a call of an operator."""

    def bound(self, module: Module) -> Rule:
        """Returns the rule for one module, whose calls it may look up."""
        return self

    def assigned(
        self, function: Function, backends: Sequence[Claims], ctx: PassContext
    ) -> dict[int, str]:
        """Returns the names of backends for calls in a function's body, of operators or of
        composite functions, by the ids of the calls. If several backends may have a call, the first
        gets it.

        Errors: C073 if a backend's code fails.
        """
        found: dict[int, str] = {}
        for node in post_order(function.body):
            if not isinstance(node, Call):
                continue
            for backend in backends:
                allowed = all(self.gives(c, backend.name) for c in operators_in(node))
                if allowed and claimed(node, backend):
                    found[node.id] = backend.name
                    break
        return found

    def review(  # noqa: B027
        self, module: Module, new: Module, backends: Sequence[Claims], ctx: PassContext
    ) -> None:
        """Reports requests of the user that the backends did not meet."""

    def left_out(
        self, module: Module, new: Module, backends: Sequence[Claims], required: Collection[str]
    ) -> Iterator[Unmet]:
        """Yields I354 for each backend that got nothing: an error for those `required`, and a
        warning if all backends are to get something and no other got its operators.
        """
        got = _by_backend(new)
        for backend in backends:
            if backend.name in got:
                continue
            if backend.name in required:
                yield _nothing(InputError, module, backend)
            elif self.expects_all and not (got and claims_any(module, backend)):
                yield _nothing(ClewWarning, module, backend)


@dataclass(frozen=True)
class First(Rule):
    """A call goes to the first backend that takes it and is faster than the CPU.

    If a backend states a cost, which includes the copies at a region's borders, a region is kept
    only if its cost is less than an estimate for the CPU. Calls of rejected regions are offered to
    the next backends.
    """

    def __str__(self) -> str:
        return "first"

    @property
    def expects_all(self) -> bool:
        return True

    def gives(self, call: Call, backend: str) -> bool:
        return True

    def assigned(
        self, function: Function, backends: Sequence[Claims], ctx: PassContext
    ) -> dict[int, str]:
        pieces: list[Piece] = []
        found: dict[int, str] = {}
        calls = [n for n in post_order(function.body) if isinstance(n, Call)]
        for backend in backends:
            claims = {c.id for c in calls if c.id not in found and claimed(c, backend)}
            if not claims:
                continue
            regions = [Piece(tuple(m)) for m in Regions(function, claims, pieces).members()]
            kept = worthwhile(function, backend, regions, ctx)
            pieces += kept
            found.update(
                (m.id, backend.name) for p in kept for m in p.members if isinstance(m, Call)
            )
        return found


FIRST: Final = First()


@dataclass(frozen=True)
class ByLayers(Rule):
    """Backends by the names of layers, or globs of them.

    A backend gets a call if all layers of the call are its own. Reported: I354 for a name of which
    the backend takes nothing. It is an error for an exact name, and a warning for a glob or for a
    layer all of whose operators also serve other layers.
    """

    layers: Mapping[str, Sequence[str]]

    def __str__(self) -> str:
        return "layers " + "; ".join(f"{b}: {', '.join(n)}" for b, n in self.layers.items())

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(self.layers)

    @property
    def named_layers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n for names in self.layers.values() for n in names))

    def gives(self, call: Call, backend: str) -> bool:
        return _fits(call, self.layers.get(backend, ()))

    def review(
        self, module: Module, new: Module, backends: Sequence[Claims], ctx: PassContext
    ) -> None:
        wanted = _operators(module)
        got = _by_backend(new)
        for backend in backends:
            layers = {la for c in got.get(backend.name, ()) for la in c.layers}
            for name in self.layers.get(backend.name, ()):
                if fitting(name, layers):
                    continue
                calls = [c for c in wanted if _fits(c, [name])]
                if not calls:
                    shared = [c for c in wanted if any(fitting(name, [la]) for la in c.layers)]
                    if shared:
                        ctx.unmet(_shared(name, backend.name, shared))
                    continue
                reasons = dict.fromkeys(why_not(c, backend) for c in calls)
                text = f"{backend.name} takes nothing of {name}: {listed(reasons, 3)}"
                kind = ClewWarning if is_glob(name) else InputError
                hint = f"name other layers, or leave {name} to the CPU"
                ctx.unmet(kind("I354", text, hint=hint))


def _shared(name: str, backend: str, calls: Sequence[Call]) -> ClewWarning:
    """Returns the warning for a layer all of whose operators also serve other layers."""
    others = dict.fromkeys(la for c in calls for la in c.layers if not fitting(name, [la]))
    text = f"{backend} takes nothing of {name}: its operators also serve {listed(others, 3)}"
    return ClewWarning("I354", text, hint=f"give {backend} these layers as well")


def _fits(call: Call, names: Sequence[str]) -> bool:
    layers = call.layers
    return bool(layers) and all(any(fitting(name, [la]) for name in names) for la in layers)


def _operators(module: Module) -> list[Call]:
    nodes = post_order([f for _, f in module], into_functions=True)
    return [n for n in nodes if isinstance(n, Call) and not isinstance(n.op, Function)]


def _by_backend(module: Module) -> dict[str, list[Call]]:
    """Returns the calls of operators in each backend's functions."""
    found: dict[str, list[Call]] = {}
    for node in post_order([f for _, f in module], into_functions=True):
        if isinstance(node, Call) and isinstance(node.op, Function) and node.op.backend:
            found.setdefault(node.op.backend, []).extend(operators_in(node))
    return found


def _nothing(kind: type[InputError | ClewWarning], module: Module, backend: Claims) -> Unmet:
    """Returns the report that a backend takes nothing of a module, with the nearest refusals."""
    text = f"{backend.name} takes nothing of the model"
    hint = f"all of it runs elsewhere:\n{indented(why_nothing(module, backend))}"
    return kind("I354", text, hint=hint)


@dataclass(frozen=True)
class Between(Rule):
    """One backend for the operators on paths between layers, both ends included. Without an end, it
    gets all that depend on the start; without a start, all that the end depends on.
    """

    backend: str
    start: Sequence[str] = ()
    end: Sequence[str] = ()
    among: frozenset[int] | None = None

    def __str__(self) -> str:
        return f"{self.backend} from {list(self.start)} to {list(self.end)}"

    @property
    def backends(self) -> tuple[str, ...]:
        return (self.backend,)

    @property
    def named_layers(self) -> tuple[str, ...]:
        return (*self.start, *self.end)

    def gives(self, call: Call, backend: str) -> bool:
        assert self.among is not None, "the rule is bound to a module"
        return backend == self.backend and call.id in self.among

    def bound(self, module: Module) -> Rule:
        function = module.main
        order = [n for n in post_order(function.body) if not isinstance(n, Function)]
        after = _reached(order, [n for n in order if _is_of(n, self.start)])
        before = _needed(order, [n for n in order if _is_of(n, self.end)])
        inside = {n.id for n in order}
        inside &= after if self.start else inside
        inside &= before if self.end else inside
        found = [c for n in order if n.id in inside and isinstance(n, Call) for c in _own(n)]
        return Between(self.backend, self.start, self.end, frozenset(found))


def _own(call: Call) -> list[int]:
    return [call.id, *(c.id for c in operators_in(call))]


def _is_of(node: Expr, names: Sequence[str]) -> bool:
    return isinstance(node, Call) and any(fitting(n, node.layers) for n in names)


def _reached(order: Sequence[Expr], start: Sequence[Expr]) -> set[int]:
    found = {n.id for n in start}
    for node in order:
        if any(c.id in found for c in node.children):
            found.add(node.id)
    return found


def _needed(order: Sequence[Expr], end: Sequence[Expr]) -> set[int]:
    found = {n.id for n in end}
    for node in reversed(order):
        if node.id in found:
            found.update(c.id for c in node.children)
    return found


@dataclass(frozen=True)
class Chosen(Rule):
    """A user's function, which returns the backend's name for a call; None for the CPU."""

    choose: Chooser
    _known: dict[int, str | None] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        return getattr(self.choose, "__qualname__", type(self.choose).__name__)

    @property
    def is_builtin(self) -> bool:
        return False

    def gives(self, call: Call, backend: str) -> bool:
        if call.id not in self._known:
            self._known[call.id] = self.choose(call)
        return self._known[call.id] == backend


Key: TypeAlias = "tuple[tuple[str, ...], str, str, int]"


@dataclass(frozen=True)
class Fixed(Rule):
    """A backend for each operator of one module, as `clew.place` finds it.

    `choices` has the names of backends by the operators' keys (`operator_keys`); operators that
    stay on the CPU are absent.

    Errors: I355 if the module lacks an operator of the placement.
    """

    choices: Mapping[Key, str] = field(default_factory=dict)
    _names: Mapping[int, str] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        text = repr(sorted(self.choices.items()))
        return f"placed {blake2b(text.encode(), digest_size=12).hexdigest()}"

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.choices.values()))

    def gives(self, call: Call, backend: str) -> bool:
        assert self._names is not None, "the rule is bound to a module"
        return self._names.get(call.id) == backend

    def bound(self, module: Module) -> Rule:
        keys = operator_keys(module)
        missing = next((k for k in self.choices if k not in set(keys.values())), None)
        if missing is not None:
            raise InputError(
                "I355",
                f"the placement is for another graph: this one has no such {missing[1]}",
                hint="place the model again, with the options that it is compiled with",
                layer=listed(missing[0], 3),
            )
        names = {id_: self.choices[key] for id_, key in keys.items() if key in self.choices}
        return Fixed(self.choices, names)


def operator_keys(module: Module) -> dict[int, Key]:
    """Returns a key for each call of an operator, by its id: layers, operator, type, and the number
    of calls before it that are equal in these. Composite functions around a call do not change its
    key.
    """
    found: dict[int, Key] = {}
    counts: dict[Any, int] = {}
    for call in _operators(module):
        alike = (call.layers, call.op_name, str(call.type))
        number = counts[alike] = counts.get(alike, -1) + 1
        found[call.id] = (*alike, number)
    return found
