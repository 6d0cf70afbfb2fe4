"""ApplyHistory: has kernels use the schedule choices that were measured to be fastest."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Protocol

from clew.ir.expr import Call, Expr, Function
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.passes.base import Pass, PassContext
from clew.passes.fusion.views import is_kernel
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass

TUNED = "tuned"
"""The attribute of a primitive function that holds the text of its choices."""


@dataclass(frozen=True)
class Advice:
    """The records for a kernel: choices ("" for the default ones), and remarks."""

    choices: str
    remarks: tuple[str, ...] = ()


class History(Protocol):
    """The records of earlier measurements. Its `repr` identifies its content."""

    def advice(self, function: Function) -> Advice:
        """Returns the records for a kernel."""
        ...


class NoHistory:
    """A history without records."""

    def advice(self, function: Function) -> Advice:
        """Returns no choices."""
        return Advice("")

    def __repr__(self) -> str:
        return "none"


@dataclass(frozen=True)
class ApplyHistory(Pass):
    """Gives each kernel the choices of its best record (`clew tune`), as an attribute.

    Before:
        %9 = fn[dense_relu](%6, %7) { ... }(%1, weight)
    After:
        %9 = fn[dense_relu, tuned="matmul: rows=8 vectors=2"](%6, %7) { ... }(%1, weight)

    A record that does not make the schedule again that was measured is skipped, with a remark.

    Preconditions: runs last; kernels do not change any more. Non-goals: choosing among records,
    which `history` does.
    """

    opt_level: ClassVar[int] = 1
    exactness: ClassVar[Exactness] = EXACT

    history: History = field(default_factory=NoHistory)

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Applier(self.history, ctx).rewrite_module(module)


class _Applier(Rewriter):
    def __init__(self, history: History, ctx: PassContext) -> None:
        super().__init__()
        self._history = history
        self._ctx = ctx
        self._made: dict[int, tuple[Function, Advice]] = {}

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        function = new.op
        if not isinstance(function, Function) or not is_kernel(function):
            return new
        if function.id not in self._made:
            self._made[function.id] = self._advised(function)
        advised, advice = self._made[function.id]
        for remark in advice.remarks:
            self._ctx.remark(old, remark)
        return new if advised is function else Call(advised, new.args, new.attrs)

    def _advised(self, function: Function) -> tuple[Function, Advice]:
        advice = self._history.advice(function)
        if advice.choices == function.attrs.get(TUNED, ""):
            return function, advice
        attrs = {name: value for name, value in function.attrs.items() if name != TUNED}
        if advice.choices:
            attrs[TUNED] = advice.choices
        return Function(function.params, function.body, attrs), advice


def untuned(function: Function) -> Function:
    """Returns a primitive function without choices; itself if it has none."""
    if TUNED not in function.attrs:
        return function
    attrs = {name: value for name, value in function.attrs.items() if name != TUNED}
    return Function(function.params, function.body, attrs)
