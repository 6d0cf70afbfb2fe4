"""Values of inputs as sizes: in a graph whose inputs decide sizes by their values, each element of
such an input gets a name, so that one build serves all values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clew.ir.deciding import deciding_params
from clew.ir.dims import SymDim
from clew.ir.expr import Call, Expr, Var
from clew.ir.late_sizes import Anchors, sizes_told
from clew.ir.module import Module
from clew.ir.size_names import names_in
from clew.ir.types import TensorType
from clew.ir.values import KnownValues
from clew.ir.visit import all_nodes, post_order
from clew.ops.registry import Op, argument_references, get_op
from clew.support.dataclass import dataclass
from clew.support.errors import ClewError

_MOST_VALUES = 16


@dataclass(frozen=True)
class NamedValues:
    """A module that is valid if all named values are at least 1, and the names of the elements of
    each deciding input, in order, by the input's position.
    """

    module: Module
    names: Mapping[int, tuple[str, ...]]


def named_values(module: Module, deciding: Sequence[int]) -> NamedValues | None:
    """Returns a module with names for the values of inputs that decide sizes (`deciding`). Returns
    None if there are no such inputs, or if a value decides more than sizes that are polynomials of
    the values.
    """
    params = module.main.params
    if not deciding or not all(_may_be_named(params[n]) for n in deciding):
        return None
    taken = names_in(all_nodes(module.main))
    names = {n: _names_of(params[n], taken) for n in deciding}
    try:
        namer = _Namer({params[n].id: own for n, own in names.items()}, _carriers(module))
        made = namer.rewrite_module(module)
    except (ClewError, AssertionError, TypeError):  # some attribute must be a number
        return None
    return None if deciding_params(made.main) else NamedValues(made, names)


def _carriers(module: Module) -> dict[str, Expr]:
    """Returns a value for each size that only the run determines, one of `main` if possible."""
    found: dict[str, Expr] = {}
    for node in (*post_order(module.main.body), *all_nodes(module.main)):
        for name in sizes_told([node.type]) - found.keys():
            found[name] = node
    return found


def _may_be_named(param: Var) -> bool:
    type_ = param.type
    if not isinstance(type_, TensorType) or not type_.is_static:
        return False
    size = type_.size
    return isinstance(size, int) and size <= _MOST_VALUES and type_.dtype in ("i32", "i64")


def _names_of(param: Var, taken: set[str]) -> tuple[str, ...]:
    """Returns a new name for each element of an input."""
    stem = re.sub(r"\W", "_", param.name, flags=re.ASCII).strip("_") or "value"
    stem = f"v{stem}" if stem[0].isdigit() else stem
    size = param.tensor.size
    assert isinstance(size, int)
    while True:
        names = tuple(f"{stem}_{n}" if size > 1 else stem for n in range(size))
        if taken.isdisjoint(names):
            taken.update(names)
            return names
        stem += "_"


class _Namer(Anchors):
    """Puts polynomials of names in place of attributes held by deciding inputs. Sizes in them that
    only the run determines stay known there.
    """

    def __init__(self, names: Mapping[int, tuple[str, ...]], carriers: Mapping[str, Expr]) -> None:
        super().__init__(carriers, get_op("sized"))
        self._names = names
        self._known = KnownValues()

    def rewrite_var(self, old: Var) -> Expr:
        names = self._names.get(old.id)
        if names is not None:
            self._known.assume(old, _symbols(names, old.tensor))
        return old

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if not isinstance(new.op, Op):
            return new
        held = argument_references(new.attrs)
        values: dict[str, Any] = {}
        for name, index in held.items():
            value = self._known.get(new.args[index])
            if value is None:
                return new
            values[name] = value
        return super().rewrite_call(old, new.op.with_values(new, values)) if values else new


def _symbols(names: Sequence[str], type_: TensorType) -> np.ndarray[Any, Any]:
    array = np.empty(len(names), dtype=object)
    array[:] = [SymDim.symbol(name) for name in names]
    return array.reshape(type_.concrete)
