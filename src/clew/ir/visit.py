"""Walking graphs without recursion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from clew.ir.expr import Call, Expr, Function, If, Tuple, Var, While
from clew.support import walk


def post_order(root: Expr | Iterable[Expr], *, into_functions: bool = False) -> list[Expr]:
    """Returns every expression under `root` once, uses after their operands.

    Inner functions (branches, loop bodies, primitive functions) are listed, but entered only with
    `into_functions`. A function given as the root is entered.
    """
    roots = [root] if isinstance(root, Expr) else list(root)
    entered = {id(r) for r in roots if isinstance(r, Function)}

    def below(node: Expr) -> Sequence[Expr]:
        closed = isinstance(node, Function) and not into_functions and id(node) not in entered
        return () if closed else node.children

    return walk.post_order(roots, below)


def calls(function: Function) -> Iterator[Call]:
    """Yields the calls of a function's own body in post-order."""
    for node in post_order(function):
        if isinstance(node, Call):
            yield node


def users(function: Function) -> dict[int, list[Expr]]:
    """Returns, for each node id of the function's own body, the nodes that use it."""
    found: dict[int, list[Expr]] = {}
    for node in post_order(function):
        if isinstance(node, Function) and node is not function:
            continue
        for child in node.children:
            found.setdefault(child.id, []).append(node)
    return found


def inner_functions(node: Expr) -> tuple[Function, ...]:
    """Returns the functions in an expression: branches, loop parts, a called function."""
    match node:
        case If():
            return (node.then, node.orelse)
        case While():
            return (node.cond, node.body)
        case Call(op=Function() as function):
            return (function,)
    return ()


def free_vars(roots: Iterable[Expr]) -> list[Var]:
    """Returns the variables that the expressions use, in order of first use."""
    return [node for node in post_order(list(roots)) if isinstance(node, Var)]


def passed_on(loop: While) -> list[int]:
    """Returns the positions of the states that a loop body returns unchanged, in order."""
    result = loop.body.body
    fields = result.fields if isinstance(result, Tuple) else ()
    params = loop.body.params[1:]
    return [n for n, (field, p) in enumerate(zip(fields, params, strict=False)) if field is p]


def all_nodes(function: Function) -> Iterator[Expr]:
    """Yields the parameters and nodes of a function, and of all functions inside it."""
    pending = [function]
    while pending:
        current = pending.pop()
        yield from current.params
        for node in post_order(current.body):
            yield node
            pending += inner_functions(node)
