"""Converts values of an FX graph to graph IR: numbers, sizes and tensor types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from clew.frontends.builder import GraphBuilder
from clew.frontends.building import call, cast, reshaped, scalar
from clew.frontends.torch.dtypes import PARTS, dtype_of
from clew.frontends.torch.sizes import Sizes
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Constant, Expr
from clew.ir.size_rules import Comparison
from clew.ir.types import TensorType
from clew.support.errors import UnsupportedError

Value: TypeAlias = Any
"""An expression, a dimension, a number, a text, None, a dtype, or a list of these."""


class Values(ABC):
    """The part of a graph's importer that converters use."""

    def __init__(self, builder: GraphBuilder, sizes: Sizes) -> None:
        self.builder = builder
        self.sizes = sizes

    @abstractmethod
    def inner(self, module: fx.GraphModule, inputs: Sequence[Value], prefix: str) -> list[Value]:
        """Returns the results of a module inside the graph for values of its inputs."""

    @abstractmethod
    def first_in_memory(self, node: fx.Node) -> tuple[Expr, Any]:
        """Returns the first tensor of the graph in the memory of a node's tensor: its value, and
        what torch knows of it.
        """

    @abstractmethod
    def require(self, node: fx.Node, layer: str, compared: Comparison) -> None:
        """Adds a check of the module's calls for a comparison of sizes that a layer needs."""

    def type_of(self, fake: torch.Tensor) -> TensorType:
        """Returns the type of a tensor that torch traced; complex numbers are pairs."""
        if fake.dtype in PARTS:
            return TensorType((*self.sizes.shape(fake.shape), 2), dtype_of(PARTS[fake.dtype]))
        return TensorType(self.sizes.shape(fake.shape), dtype_of(fake.dtype))

    def dim_of(self, value: Value, fake: Any = None) -> Dim:
        """Returns an integer as a dimension; `fake` is what torch knows of it. Errors: U060."""
        if isinstance(value, Expr) and isinstance(fake, torch.SymInt):
            return self.sizes.dim(fake)
        if isinstance(value, (int, SymDim)):
            return value if isinstance(value, SymDim) else int(value)
        if isinstance(value, (torch.SymInt, float)):
            return self.sizes.dim(value if isinstance(value, torch.SymInt) else int(value))
        raise UnsupportedError("U060", f"the size {value} is not an integer that torch names")

    def scalar_of(self, value: Value, dtype: str) -> Expr:
        """Returns a number, or a dimension, as a scalar."""
        if isinstance(value, SymDim):
            last = call("arange", start=value, stop=value + 1, step=1, dtype="i64")
            return cast(reshaped(last, ()), dtype)
        return scalar(value, dtype)

    def as_dtype(self, value: Value, dtype: str) -> Expr:
        """Returns a tensor or a number in a dtype."""
        if isinstance(value, Constant) and value.tensor.rank == 0 and not value.name:
            return scalar(value.data.astype(object).item(), dtype)
        return cast(value, dtype) if isinstance(value, Expr) else self.scalar_of(value, dtype)
