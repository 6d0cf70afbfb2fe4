"""The names of sizes in parts of a graph, and their values in a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from clew.ir.dim_places import size_places
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Call, Expr, Var, While
from clew.ir.types import TensorType, Type, leaves
from clew.support.errors import GraphTypeError


def names_in(nodes: Iterable[Expr]) -> set[str]:
    """Returns the names of sizes in the types and attributes of nodes, without those that only a
    run determines.
    """
    found: set[str] = set()
    for node in nodes:
        found |= _names(_dims([node.type]))
        if isinstance(node, Call):
            found |= _names(node.attrs.values())
        elif isinstance(node, While):
            found |= _names([node.trips])
    return {name for name in found if not name.startswith("?")}


def attribute_names(calls: Iterable[Call]) -> set[str]:
    """Returns the names of sizes in the attributes of calls."""
    return set[str]().union(*(_names(call.attrs.values()) for call in calls))


def plain_names(types: Iterable[Type]) -> set[str]:
    """Returns the names of sizes that the shape of an array of one of these types gives."""
    return {place.name for place in size_places([tuple(_dims(types))])}


def sizes_in(params: Sequence[Var], values: Mapping[str, Any] | Sequence[Any]) -> dict[str, int]:
    """Returns the sizes that the shapes of parameters' values give, in order or by name."""
    found: dict[str, int] = {}
    if all(isinstance(p.type, TensorType) and p.type.is_static for p in params):
        return found
    given = [values[p.name] for p in params] if isinstance(values, Mapping) else values
    shapes = [
        p.type.shape if isinstance(p.type, TensorType) and p.type.rank == np.ndim(value) else ()
        for p, value in zip(params, given, strict=True)
    ]
    for place in size_places(shapes):
        if not place.name.startswith("?"):
            elements = np.shape(given[place.argument])[place.axis]
            found.setdefault(place.name, place.size(int(elements)))
    return found


class SizeReader:
    """Reads the named sizes in the types of parameters from the arguments of a call."""

    def __init__(self, params: Sequence[Var]) -> None:
        self._params = tuple(params)
        tensors = [(n, p.type) for n, p in enumerate(params) if isinstance(p.type, TensorType)]
        self._ranks = [(number, type_.rank) for number, type_ in tensors]
        shapes = [p.type.shape if isinstance(p.type, TensorType) else () for p in params]
        self._places = size_places(shapes)

    def read(
        self, arguments: Sequence[Any], known: Mapping[str, int] = MappingProxyType({})
    ) -> dict[str, int]:
        """Returns the sizes of a call's arguments, and those that are already known.

        Errors: T030 if a size has two values, or the rank of an array differs.
        """
        for number, rank in self._ranks:
            if len(arguments[number].shape) != rank:
                param = self._params[number]
                raise GraphTypeError(
                    "T030",
                    f"{param.name} has rank {len(arguments[number].shape)}, expected {param.type}",
                )
        sizes = dict(known)
        for place in self._places:
            size = place.size(int(arguments[place.argument].shape[place.axis]))
            bound = sizes.setdefault(place.name, size)
            if bound != size:
                param = self._params[place.argument]
                raise GraphTypeError(
                    "T030",
                    f"size {place.name} is {bound} in one input and {size} in {param.name}",
                )
        return sizes


def _dims(types: Iterable[Type]) -> Iterator[Dim]:
    for type_ in types:
        for leaf in leaves(type_):
            if isinstance(leaf, TensorType):
                yield from leaf.shape


def _names(values: Iterable[Any]) -> set[str]:
    found: set[str] = set()
    for value in values:
        if isinstance(value, SymDim):
            found |= value.symbols
        elif isinstance(value, tuple):
            found |= _names(value)
    return found
