"""Finds the first layer whose imported form differs from the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew import frontends
from clew.bisection.cases import Case, cut, is_unit
from clew.bisection.numbers import due_of, error_of, narrow_in
from clew.bisection.references import Reference
from clew.frontends.format import LoneLayer
from clew.ir.expr import Constant, Expr
from clew.ir.interpret import interpret_values
from clew.ir.module import Module
from clew.ir.types import TensorType, to_numpy
from clew.ir.visit import post_order


@dataclass(frozen=True)
class WrongLayer:
    """A layer's result that differs although the layer's operands do not."""

    layer: str
    output: int
    op: str
    node: Expr
    error: float
    due: float
    values: Mapping[int, Any]


def wrong_layers(module: Module, inputs: Sequence[Any], reference: Reference) -> list[WrongLayer]:
    """Returns the layers that differ from the reference when given the reference's values of their
    operands, in the order of the graph.
    """
    layers = reference.layers()
    true: dict[int, tuple[str, int, str]] = {}
    for node in post_order(module.main):
        for source in node.span.sources:
            if source.output is not None and (source.layer, source.output) in layers:
                true.setdefault(node.id, (source.layer, source.output, source.op))
    found: list[WrongLayer] = []
    values: dict[int, Any] = dict(zip((p.id for p in module.main.params), inputs, strict=True))

    def instead(node: Expr, value: Any) -> Any:
        known = true.get(node.id)
        if known is None:
            values.setdefault(node.id, value)
            return value
        wanted = np.asarray(layers[known[0], known[1]])
        error, due = error_of(wanted, value), due_of(narrow_in([node]))
        values[node.id] = value
        if error > due:
            found.append(WrongLayer(*known[:2], known[2], node, error, due, values))
        if not isinstance(node.type, TensorType) or np.shape(value) != wanted.shape:
            return value
        values[node.id] = wanted.astype(to_numpy(node.type.dtype), copy=False)
        return values[node.id]

    constants = [n.id for n in post_order(module.main) if isinstance(n, Constant)]
    interpret_values(module.main, inputs, constants, module, instead=instead)
    return found


def layer_case(module: Module, wrong: WrongLayer, reference: Reference) -> Case | None:
    """Returns the operators of a layer alone, with the reference's results."""
    members = {
        n.id for n in post_order(module.main.body) if is_unit(n) and wrong.layer in n.span.layers
    }
    if wrong.node.id not in members:
        return None
    try:
        case = cut(module.main, members, wrong.values, results=[wrong.node.id])
    except KeyError:
        return None
    true = reference.layers()[wrong.layer, wrong.output]
    return Case(case.module, case.inputs, dict.fromkeys(case.expected, true))


def file_case(wrong: WrongLayer, reference: Reference) -> tuple[Case, LoneLayer] | None:
    """Returns a layer alone as a model file, imported, with the result of the file's engine."""
    alone = None if reference.file is None else reference.file.alone(wrong.layer)
    if alone is None:
        return None
    module = frontends.load(alone.data)
    expected = {n: alone.values[n] for n in module.output_names}
    inputs = {n: np.asarray(alone.values[n]) for n in module.input_names}
    return Case(module, inputs, expected), alone
