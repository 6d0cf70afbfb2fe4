"""What programs and traced graphs have in common: weights, integers, and the finished module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from clew.frontends.builder import GraphBuilder
from clew.frontends.torch.dtypes import check_tensor, frozen
from clew.frontends.torch.graph import GraphImporter
from clew.ir.dims import Dim
from clew.ir.expr import Constant, Expr, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.trace.places import PLACES


def weight(builder: GraphBuilder, name: str, tensor: torch.Tensor) -> Constant:
    """Returns a tensor as a parameter; tied ones are one constant. Errors: U061, U062."""
    check_tensor(tensor, f"the tensor {name!r}")
    place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
    return builder.constant(name, lambda: frozen(tensor), place if tensor.numel() else None)


def count(builder: GraphBuilder, name: str, size: Dim) -> Var:
    """Returns an input for an integer that may be a size: a vector of that many elements, which are
    never read.
    """
    return builder.input(name, TensorType((size,), "bool"))


def assembled(
    importer: GraphImporter,
    outputs: Sequence[Expr],
    names: Sequence[str],
    attrs: Mapping[str, Any],
) -> Module:
    """Returns the module of an imported graph, with further attributes of its main function."""
    places = tuple(map(tuple, importer.places))
    return importer.builder.module(outputs, names, {**attrs, PLACES: places})
