"""The layers of a model that are the reason why it cannot be exported, as error messages name
them.
"""

from __future__ import annotations

from collections.abc import Iterable

from clew.ir.deciding import decided_by
from clew.ir.expr import Call, Expr, Function, If, Tuple, While
from clew.ir.types import Type, unknown_sizes
from clew.ir.visit import post_order

_SHOWN = 3


def listed_layers(names: Iterable[str]) -> str:
    """Returns the first of these names, each once, as one text."""
    return ", ".join(list(dict.fromkeys(names))[:_SHOWN])


def sized_by(function: Function, type_: Type) -> str:
    """Returns the layers whose results are the first to have the data-dependent sizes in a type."""
    return _layers(_first_with(function, unknown_sizes(type_)))


def sized_by_data(function: Function) -> set[str]:
    """Returns all layers whose results are the first to have a data-dependent size."""
    nodes = _nodes(function)
    sizes = {size for node in nodes for size in unknown_sizes(node.type)}
    return {layer for node in _first_with(function, sizes) for layer in node.span.layers}


def _first_with(function: Function, sizes: set[str]) -> list[Expr]:
    wanted, found = set(sizes), list[Expr]()
    for node in _nodes(function):
        if isinstance(node, Call) and (new := wanted & unknown_sizes(node.type)):
            found.append(node)
            wanted -= new
    return found


def decided_by_input(function: Function, name: str) -> str:
    """Returns the layers whose attributes the value of an input decides."""
    return _layers(
        call
        for call, _, params in decided_by(function, may=lambda type_: True)
        if any(param.name == name for param in params)
    )


def users_of(function: Function, name: str) -> str:
    """Returns the layers that use an input."""
    own = {param.id for param in function.params if param.name == name}
    return _layers(n for n in _nodes(function) if own & {child.id for child in n.children})


def maker_of_output(function: Function, number: int) -> str:
    """Returns the layers that compute an output."""
    body = function.body
    return _layers([body.fields[number] if isinstance(body, Tuple) else body])


def branches_and_loops(function: Function) -> str:
    """Returns the layers that are branches or loops."""
    return _layers(node for node in _nodes(function) if isinstance(node, If | While))


def growing_loops(function: Function) -> str:
    """Returns the loops with results whose sizes are known only after their last iteration."""
    return _layers(
        node for node in _nodes(function) if isinstance(node, While) and unknown_sizes(node.type)
    )


def _nodes(function: Function) -> list[Expr]:
    return post_order(function, into_functions=True)


def _layers(nodes: Iterable[Expr]) -> str:
    return listed_layers(layer for node in nodes for layer in node.span.layers)
