"""Passes from functions: what a user writes in a notebook, placed among clew's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clew.ir.module import Module
from clew.passes.base import Pass, PassContext
from clew.support.errors import InputError
from clew.support.near import did_you_mean

PassFunction = Callable[[Module, PassContext], Any]


@dataclass(frozen=True)
class GraphPass(Pass):
    """A pass made of a function, and its place: `before` or `after` a pass of that name, else
    first. Made by `graph_pass`.
    """

    function: PassFunction
    before: str = ""
    after: str = ""
    required: bool = True

    @property
    def is_builtin(self) -> bool:
        return False

    def run(self, module: Module, ctx: PassContext) -> Module:
        """Returns what the function returns: a module, or what has one, such as an editor.

        Errors: I082 when it returns something else.
        """
        result = self.function(module, ctx)
        found = result if isinstance(result, Module) else getattr(result, "module", None)
        if not isinstance(found, Module):
            raise InputError(
                "I082",
                f"the pass {self.name} returned a {type(result).__name__}, no module",
                hint="return the module it was given where nothing changes",
            )
        return found

    def __str__(self) -> str:
        return self.name


def graph_pass(
    function: PassFunction | None = None,
    *,
    before: str = "",
    after: str = "",
    opt_level: int = 0,
    required: bool = True,
) -> Any:
    """Decorator: makes a function of a module and a `PassContext` a pass.

    It is checked, timed and recorded as clew's own are: what became what comes from the rewriter it
    uses (`RuleRewriter`, `Rewriter`, `clew.edit`), and a reproducer is written where it fails.
    Where it changes nothing because the rules of its `RuleRewriter` fit nowhere, a warning (I308)
    says so, and which pass took the operators; `required=False` turns that off.

    ```python
    @clew.graph_pass(after="SimplifyExpr")
    def double_relu(module, ctx):
        return RuleRewriter([once]).rewrite_module(module)


    compiled = clew.compile(model, extend=[double_relu])
    ```

    Errors: I083 where both `before` and `after` are given.
    """
    if before and after:
        raise InputError("I083", "a pass goes before or after another", hint="give one of the two")

    def make(found: PassFunction) -> GraphPass:
        namespace = {"opt_level": opt_level, "__doc__": found.__doc__, "__module__": __name__}
        made = type(found.__name__, (GraphPass,), namespace)
        return made(found, before, after, required)  # type: ignore[no-any-return]

    return make if function is None else make(function)


def placed(passes: Sequence[Pass], added: Sequence[GraphPass]) -> list[Pass]:
    """Returns the passes with users' passes in their places, which keep the order they are given
    in.

    Errors: I020 for a place that there is not.
    """
    result = list(passes)
    for new in added:
        where = new.before or new.after
        names = [p.name for p in result]
        if where and where not in names:
            raise InputError(
                "I020",
                f"{new.name} is to go {'before' if new.before else 'after'} {where}, "
                "and no pass is called so",
                hint=did_you_mean(where, names, "passes"),
            )
        if new.before:
            result.insert(names.index(where), new)
        elif new.after:
            at = len(names) - 1 - names[::-1].index(where)
            while at + 1 < len(result) and getattr(result[at + 1], "after", "") == where:
                at += 1
            result.insert(at + 1, new)
        else:
            first = sum(isinstance(p, GraphPass) and not (p.before or p.after) for p in result)
            result.insert(first, new)
    return result
