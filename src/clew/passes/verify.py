"""An inexpensive check of a module between passes: functions are closed, outputs agree, and types
are present.
"""

from __future__ import annotations

from clew.ir.expr import Call, Function, GlobalVar, Let, Var
from clew.ir.module import Module
from clew.ir.visit import inner_functions, post_order


def verify(module: Module) -> None:
    """Asserts that a module is well formed; a failure is a bug in the preceding pass.

    Functions, including inner ones, use only variables that are their parameters or that their lets
    bind. Globals exist and have the type they are used at. `main` returns as many values as it
    names.
    """
    seen: set[int] = set()
    pending = [(name, function) for name, function in module]
    while pending:
        name, function = pending.pop()
        if function.id in seen:
            continue
        seen.add(function.id)
        for inner in _verify_function(module, name, function):
            pending.append((f"{name}/{inner.attrs.get('name', 'fn')}", inner))
    names = module.main.attrs.get("outputs")
    if names is not None:
        count = len(getattr(module.main.body, "fields", (None,)))
        assert count == len(names), f"main returns {count} values but names {len(names)}"


def _verify_function(module: Module, name: str, function: Function) -> list[Function]:
    bound = {p.id for p in function.params}
    assert len(bound) == len(function.params), f"{name}: a parameter is listed twice"
    inner: list[Function] = []
    used: list[Var] = []
    for node in post_order(function.body):
        match node:
            case Var():
                used.append(node)
            case Let():
                bound.add(node.var.id)
            case GlobalVar():
                target = module.functions.get(node.name)
                assert target is not None, f"{name}: no function {node.name}"
            case Call(op=GlobalVar() as callee):
                target = module.functions.get(callee.name)
                assert target is not None, f"{name}: no function {callee.name}"
                assert target.type == callee.type, f"{name}: {callee.name} is a {target.type}"
        inner.extend(inner_functions(node))
    for var in used:
        assert var.id in bound, f"{name} uses {var.name}, which is neither parameter nor bound"
    return inner
