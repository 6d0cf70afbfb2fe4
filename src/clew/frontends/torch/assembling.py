"""The common part of importing programs and traced graphs: weights, inputs, and the module they
become.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from clew.frontends.torch.dtypes import check_tensor, to_numpy
from clew.frontends.torch.graph import FRONTEND, GraphImporter
from clew.ir.dims import Dim
from clew.ir.expr import Constant, Expr, Function, Tuple, Var
from clew.ir.late_sizes import Anchors
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op
from clew.trace.lineage import building
from clew.trace.places import PLACES
from clew.trace.span import Source, Span


class Weights:
    """Tensors as constants; tied ones are one constant."""

    def __init__(self) -> None:
        self._known: dict[Any, Constant] = {}

    def constant(self, name: str, tensor: torch.Tensor) -> Constant:
        """Returns a tensor as a parameter. Errors: U061, U062."""
        check_tensor(tensor, f"the tensor {name!r}")
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() == 0 or key not in self._known:
            with building(Span([Source(name, frontend=FRONTEND, kind="parameter")])):
                self._known[key] = Constant(to_numpy(tensor), name=name)
        return self._known[key]


def input_of(name: str, type_: TensorType) -> Var:
    """Returns an input of the module."""
    return Var(name, type_, span=Span([Source(name, frontend=FRONTEND, kind="input")]))


def count_of(name: str, size: Dim) -> Var:
    """Returns an input for an integer that may be a size: a vector of that many elements, which are
    never read.
    """
    return input_of(name, TensorType((size,), "bool"))


def assembled(
    importer: GraphImporter,
    params: Sequence[Var],
    outputs: Sequence[Expr],
    names: Sequence[str],
    attrs: Mapping[str, Any],
) -> Module:
    """Returns the module of an imported graph, with further attributes of its main function. Sizes
    that the data decide are defined where they are used.
    """
    body: Expr = Tuple(outputs, span=Span())
    if importer.sizes.carriers:
        anchors = Anchors(importer.sizes.carriers, get_op("sized"))
        body = anchors.rewrite_function(Function(params, body, span=Span())).body
    whole = {
        "outputs": tuple(names),
        "eliminated": importer.eliminated(body),
        **attrs,
        PLACES: tuple(map(tuple, importer.places)),
    }
    return Module({"main": Function(params, body, whole, span=Span())})
