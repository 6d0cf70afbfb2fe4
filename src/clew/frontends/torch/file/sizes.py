"""Checks the needs of a program in a file against the budgets, before torch traces it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from torch._export.serde import schema
from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE

from clew.support.budgets import current, exceeded
from clew.support.errors import ModelError

# Operators with a result for each part of an axis: torch makes all of them in Python.
_MANY: Final = re.compile(
    r"torch\.ops\.aten\.(?P<name>unbind|split|unsafe_split|chunk|unsafe_chunk|tensor_split)"
    r"(?:_copy)?\.(?P<overload>\w+)"
)


def check_size(meta: schema.TensorMeta) -> None:
    """Checks the size of a value. Errors: ValueError; M006."""
    if meta.dtype not in _SERIALIZE_TO_TORCH_DTYPE:
        raise ValueError("a tensor is of no known dtype")
    sizes = [size.as_int for size in meta.sizes if size.type == "as_int"]
    if min(sizes, default=0) < 0:
        raise ValueError("a tensor has a negative size")
    size_bytes = math.prod(max(size, 1) for size in sizes)
    size_bytes *= _SERIALIZE_TO_TORCH_DTYPE[meta.dtype].itemsize
    most = current().tensor_bytes
    if size_bytes > most:
        raise exceeded(ModelError, "M006", "bytes of a tensor", size_bytes, "tensor_bytes", most)


def check_results(graph: schema.Graph) -> None:
    """Checks how many results each operator of a graph has. Errors: ValueError; M030."""
    most = current().values
    for node in graph.nodes:
        found = _MANY.fullmatch(node.target)
        count = 0 if found is None else _results(found["name"], node, graph.tensor_values)
        if count > most:
            raise exceeded(ModelError, "M030", "results of one operator", count, "values", most)


def _results(name: str, node: schema.Node, values: Mapping[str, schema.TensorMeta]) -> int:
    """Returns how many results a division of an axis has; 0 if only a call determines it."""
    given: dict[str, Any] = {argument.name: argument.arg for argument in node.inputs}
    operand, axis = given.get("self"), given.get("dim")
    if operand is None or operand.type != "as_tensor" or operand.as_tensor.name not in values:
        return 0
    sizes = values[operand.as_tensor.name].sizes
    at = axis.as_int if axis is not None and axis.type == "as_int" else 0
    if not -len(sizes) <= at < len(sizes):
        raise ValueError(f"{name} along axis {at} of a tensor with {len(sizes)}")
    if sizes[at].type != "as_int":
        return 0
    size: int = sizes[at].as_int
    part: int | None = next(
        (a.as_int for a in given.values() if a is not axis and a.type == "as_int"), None
    )
    if name == "unbind":
        return size
    if part is None:
        return 0
    if name in ("split", "unsafe_split"):
        return -(-size // part) if part > 0 else 0
    return min(part, size) if "chunk" in name else part
