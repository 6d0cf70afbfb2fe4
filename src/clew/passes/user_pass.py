"""Passes made from user functions, placed among clew's passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from clew.ir.module import Module
from clew.passes.base import Pass, PassContext
from clew.passes.relay_names import counterpart
from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.near import did_you_mean

PassFunction = Callable[[Module, PassContext], Any]


@dataclass(frozen=True)
class GraphPass(Pass):
    """A pass made from a function by `graph_pass`. It runs `before` or `after` the pass of that
    name, or first.
    """

    function: PassFunction
    before: str = ""
    after: str = ""
    required: bool = True

    @property
    def is_builtin(self) -> bool:
        return False

    def run(self, module: Module, ctx: PassContext) -> Module:
        """Returns the function's result: a module, or an object that holds one, such as an editor.

        Errors: I082 if it returns anything else.
        """
        result = self.function(module, ctx)
        found = result if isinstance(result, Module) else getattr(result, "module", None)
        if not isinstance(found, Module):
            raise InputError(
                "I082",
                f"the pass {self.name} returned a {type(result).__name__}, not a module",
                hint="return the input module if nothing changes",
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
    """Decorator: turns a function of a module and a `PassContext` into a pass.

    The pass is checked, timed and recorded like clew's own. The rewriter it uses (`RuleRewriter`,
    `Rewriter`, `clew.edit`) records the links between nodes, and a failure writes a reproducer. If
    the pass changes nothing because no rule of its `RuleRewriter` matches, a warning (I308) says so
    and names the pass that removed the operators; `required=False` turns the warning off.

    ```python
    @clew.graph_pass(after="SimplifyExpr")
    def double_relu(module, ctx):
        return RuleRewriter([once]).rewrite_module(module)


    compiled = clew.compile(model, extend=[double_relu])
    ```

    Errors: I083 if both `before` and `after` are given.
    """
    if before and after:
        raise InputError("I083", "both before and after are given", hint="give only one")

    def make(found: PassFunction) -> GraphPass:
        namespace = {"opt_level": opt_level, "__doc__": found.__doc__, "__module__": __name__}
        made = type(found.__name__, (GraphPass,), namespace)
        return made(found, before, after, required)  # type: ignore[no-any-return]

    return make if function is None else make(function)


def placed(passes: Sequence[Pass], added: Sequence[GraphPass]) -> list[Pass]:
    """Returns the passes with the users' passes inserted; those at the same place keep their order.

    Errors: I020 for an unknown pass name.
    """
    result = list(passes)
    for new in added:
        where = new.before or new.after
        names = [p.name for p in result]
        if where and where not in names:
            raise InputError(
                "I020",
                f"cannot place {new.name} {'before' if new.before else 'after'} {where}: "
                "no pass has that name",
                hint=counterpart(where, names) or did_you_mean(where, names, "passes"),
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
