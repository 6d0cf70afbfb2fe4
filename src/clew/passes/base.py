"""The base class of passes, and the context that a pass runs in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar, TypeAlias

from clew.ir.expr import Attrs, Call, Expr
from clew.ir.module import Module
from clew.ir.types import Type
from clew.machine.target import Target
from clew.ops.registry import Op, argument_references, runs_on_host
from clew.patterns.exactness import Exactness
from clew.patterns.rules import Rule
from clew.support.dataclass import dataclass, fields
from clew.support.errors import ClewError, ClewWarning
from clew.te.analysis import Kind

Unmet: TypeAlias = ClewError | ClewWarning
"""An unmet request of the user, as an error or a warning."""


@dataclass
class PassContext:
    """The context of a pass: the target, the optimization level, and callbacks for remarks."""

    target: Target | None = None
    opt_level: int = 3
    on_remark: Callable[[Expr, str], None] = field(default=lambda node, text: None)
    on_unmet: Callable[[Unmet], None] = field(default=lambda wish: None)
    _kinds: dict[tuple[str, tuple[Type, ...], Attrs], Kind] = field(
        default_factory=dict, repr=False
    )

    # The same kinds by node: one call is queried once per argument that reads it.
    _kind_of: dict[int, Kind] = field(default_factory=dict, repr=False)

    def remark(self, node: Expr, text: str) -> None:
        """Records why the pass did or did not change a node of its input module."""
        self.on_remark(node, text)

    def unmet(self, wish: Unmet) -> None:
        """Reports an unmet request of the user. Compiling a whole model raises it or issues it as a
        warning; compiling a part of a model ignores it.
        """
        self.on_unmet(wish)

    def kind(self, call: Call) -> Kind:
        """Returns the fusion kind of a call; equal calls are analyzed once."""
        kind = self._kind_of.get(call.id)
        if kind is None:
            kind = self._kind_of[call.id] = self._kind(call)
        return kind

    def _kind(self, call: Call) -> Kind:
        if not isinstance(call.op, Op) or argument_references(call.attrs) or runs_on_host(call):
            return Kind.OPAQUE
        types = tuple(a.type for a in call.args)
        key = (call.op.name, types, call.attrs)
        found = self._kinds.get(key)
        if found is None:
            found = call.op.kind(types, call.attrs)  # type: ignore[arg-type]
            self._kinds[key] = found
        return found


@dataclass(frozen=True)
class Pass(ABC):
    """A graph pass: maps a module to a module, and returns the same object if nothing changed.

    Its fields are its options, its class gives its name, `opt_level` the level that enables it.
    """

    opt_level: ClassVar[int] = 1
    exactness: ClassVar[Exactness | None] = None
    """How results differ, of a pass without rules; passes of users need not state it."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of a pass that is made of rules; each states how results differ."""
        return ()

    @property
    def name(self) -> str:
        """The pass's name in pipelines, remarks and errors."""
        return type(self).__name__

    @property
    def is_builtin(self) -> bool:
        """Whether clew defines the whole pass, so that it changes only with clew's version."""
        return type(self).__module__.startswith("clew.")

    @property
    def options(self) -> dict[str, Any]:
        """The options by name."""
        return {f.name: getattr(self, f.name) for f in fields(type(self))}

    @abstractmethod
    def run(self, module: Module, ctx: PassContext) -> Module:
        """Returns the module after the pass."""

    def review(self, module: Module, new: Module, ctx: PassContext) -> None:  # noqa: B027
        """Inspects the result of the pass, for remarks and warnings. Nodes built here are not
        recorded.
        """

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.name}({options})"
