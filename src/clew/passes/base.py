"""What a pass is, and what it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeAlias

from clew.ir.expr import Attrs, Call, Expr
from clew.ir.module import Module
from clew.ir.types import Type
from clew.machine.target import Target
from clew.ops.registry import Op, argument_references, runs_on_host
from clew.support.errors import ClewError, ClewWarning
from clew.te.analysis import Kind

Unmet: TypeAlias = ClewError | ClewWarning
"""What is told of a wish that did not come true."""


@dataclass
class PassContext:
    """What a pass may know and say: the target, the optimization level, and remarks."""

    target: Target | None = None
    opt_level: int = 3
    on_remark: Callable[[Expr, str], None] = field(default=lambda node, text: None)
    on_unmet: Callable[[Unmet], None] = field(default=lambda wish: None)
    _kinds: dict[tuple[str, tuple[Type, ...], Attrs], Kind] = field(
        default_factory=dict, repr=False
    )

    # The same by node, for one that is asked about at each of its arguments.
    _kind_of: dict[int, Kind] = field(default_factory=dict, repr=False)

    def remark(self, node: Expr, text: str) -> None:
        """Says why something was or was not done to a node of the module the pass was given."""
        self.on_remark(node, text)

    def unmet(self, wish: Unmet) -> None:
        """Says that something the user asked for did not come about. Where a whole model is
        compiled that is raised, or issued as a warning; where a part of one is, it means nothing.
        """
        self.on_unmet(wish)

    def kind(self, call: Call) -> Kind:
        """Returns how an operator call may be fused; equal calls are analyzed once."""
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
    """A graph pass: a module to a module, the same object if nothing changed.

    Its fields are its options, its name is its class's, and `opt_level` is the level it belongs to.
    """

    opt_level: ClassVar[int] = 1

    @property
    def name(self) -> str:
        """The name pipelines, remarks and errors use."""
        return type(self).__name__

    @property
    def is_builtin(self) -> bool:
        """Whether clew declares the pass and all it does: it changes with clew's version alone."""
        return type(self).__module__.startswith("clew.")

    @property
    def options(self) -> dict[str, Any]:
        """The options by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @abstractmethod
    def run(self, module: Module, ctx: PassContext) -> Module:
        """Returns the module after the pass."""

    def review(self, module: Module, new: Module, ctx: PassContext) -> None:  # noqa: B027
        """Looks at what the pass has made of a module, for remarks and warnings. Nothing that is
        built meanwhile is recorded.
        """

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.name}({options})"
