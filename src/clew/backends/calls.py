"""Calls of kernels and regions in a fused graph, and their names."""

from __future__ import annotations

from typing import Any, Final

from clew.ir.expr import Call, Constant, Function
from clew.ir.module import Module
from clew.ir.visit import inner_functions, post_order
from clew.passes.fusion.views import is_kernel

_SMALL: Final = 16  # elements of constants that may be axes, sizes or the like


def kernel_calls(module: Module) -> list[Call]:
    """Returns a call of each primitive function that becomes a kernel before the run."""
    roots = [function for _, function in module]
    found: dict[int, Call] = {}
    for node in post_order(roots, into_functions=True):
        called = node.op if isinstance(node, Call) else None
        if isinstance(called, Function) and is_kernel(called):
            assert isinstance(node, Call)
            found.setdefault(called.id, node)
    return list(found.values())


def kernel_names(main: Function) -> dict[int, str]:
    """Returns the names of kernel uses and regions by the id of the call, in execution order. Names
    are unique.
    """
    names: dict[int, str] = {}
    taken: dict[str, int] = {}

    def visit(function: Function) -> None:
        for node in post_order(function.body):
            called = node.op if isinstance(node, Call) else None
            if isinstance(called, Function) and (is_kernel(called) or called.backend):
                base = name_of(called)
                count = taken.get(base, 0)
                taken[base] = count + 1
                names[node.id] = base if not count else f"{base}_{count}"
            else:
                for inner in inner_functions(node):
                    visit(inner)

    visit(main)
    return names


def name_of(function: Function) -> str:
    """Returns the name of the kernels of a primitive function; equal functions share it."""
    return str(function.attrs.get("name", "kernel"))


def kind_of(call: Call) -> Any:
    """Returns what decides whether an engine runs a call: not the elements of large constants."""
    operands = [
        (a.type, a.data.tobytes() if isinstance(a, Constant) and a.data.size <= _SMALL else b"")
        for a in call.args
    ]
    fixed = tuple(isinstance(a, Constant) for a in call.args)
    return call.op_name, call.attrs, call.type, tuple(operands), fixed
