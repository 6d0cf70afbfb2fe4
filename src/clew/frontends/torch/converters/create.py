"""Tensors made from numbers and shapes."""

from __future__ import annotations

import numpy as np
import torch

from clew.frontends.building import call, cast, reshaped, scalar
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter
from clew.frontends.torch.values import Value
from clew.ir.dims import SymDim
from clew.ir.expr import Constant
from clew.ir.types import is_float


@converter("full", "full_like", "new_full")
def full(layer: Layer) -> Result:
    """A tensor of equal elements."""
    return layer.filled(layer["fill_value"])


@converter("fill")
def fill(layer: Layer) -> Result:
    """Another tensor's shape, filled."""
    return layer.filled(layer["value"])


@converter(
    "zeros",
    "zeros_like",
    "new_zeros",
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "empty_permuted",
)
def zeros(layer: Layer) -> Result:
    """Zeros; what torch leaves uninitialized is zero, too."""
    return layer.filled(0)


@converter("ones", "ones_like", "new_ones")
def ones(layer: Layer) -> Result:
    """Ones."""
    return layer.filled(1)


@converter("scalar_tensor")
def scalar_tensor(layer: Layer) -> Result:
    """A number as a tensor without axes."""
    return layer.importer.as_dtype(layer["s"], layer.result().dtype)


@converter("arange")
def arange(layer: Layer) -> Result:
    """Numbers from `start` in steps."""
    start, step = layer.get("start", 0), layer.get("step", 1)
    end = layer["end"]
    _count(layer, start, end, step)
    dtype = layer.result().dtype
    whole = all(isinstance(v, (int, SymDim)) for v in (start, end, step))
    if whole and not isinstance(step, SymDim):
        if not isinstance(start, SymDim):
            return cast(call("arange", start=start, stop=end, step=step, dtype="i64"), dtype)
        places = call("arange", start=0, stop=end - start, step=step, dtype="i64")
        return cast(call("add", places, layer.importer.scalar_of(start, "i64")), dtype)
    known = all(isinstance(v, (int, float)) for v in (start, end, step))
    wide = "f32" if dtype == "f32" and known else "f64"
    if not is_float(dtype):  # torch makes whole numbers of all three first
        wide = "i64"
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    count = call("arange", start=0, stop=layer.result().shape[0], step=1, dtype="i64")
    scaled = call("multiply", cast(count, wide), layer.importer.as_dtype(step, wide))
    return cast(call("add", scaled, layer.importer.as_dtype(start, wide)), dtype)


def _count(layer: Layer, start: Value, end: Value, step: Value) -> None:
    """Computes the number of elements during the run if it is rounded from floats."""
    size, sizes = layer.fakes[0].shape[0], layer.importer.sizes
    if not sizes.is_dim(size):
        first, last, stride = (layer.importer.as_dtype(v, "f64") for v in (start, end, step))
        count = call("ceil", call("divide", call("subtract", last, first), stride))
        sizes.number(size, cast(count, "i64"))


@converter("linspace")
def linspace(layer: Layer) -> Result:
    """Equally spaced numbers, both ends exact."""
    wanted = layer.result()
    count = wanted.shape[0]
    wide = "f64" if wanted.dtype != "f32" else "f32"
    # If the result has integers, torch truncates the ends first.
    ends = (layer.importer.as_dtype(layer[n], wanted.dtype) for n in ("start", "end"))
    start, end = (cast(e, wide) for e in ends)
    if count in (0, 1):
        return layer.shaped(call("broadcast_to", reshaped(start, (1,)), shape=(count,)))
    index = call("arange", start=0, stop=count, step=1, dtype="i64")
    last = layer.importer.scalar_of(count - 1, "i64")
    step = call("divide", call("subtract", end, start), cast(last, wide))
    up = call("add", start, call("multiply", cast(index, wide), step))
    rest = call("subtract", last, index)
    down = call("subtract", end, call("multiply", cast(rest, wide), step))
    first = call("less", call("multiply", index, scalar(2, "i64")), last)
    return layer.shaped(call("where", first, up, down))


@converter("eye")
def eye(layer: Layer) -> Result:
    """Ones on the diagonal."""
    rows, columns = layer.result().shape
    down = call("arange", start=0, stop=rows, step=1, dtype="i64")
    right = call("arange", start=0, stop=columns, step=1, dtype="i64")
    return layer.to_result(call("equal", reshaped(down, (rows, 1)), right))


@converter("tril_indices", "triu_indices")
def triangle_indices(layer: Layer) -> Result:
    """The positions of a triangle's elements, by row."""
    make = np.tril_indices if layer.op.startswith("tril") else np.triu_indices
    found = np.stack(make(layer.integer("row"), layer.integer("offset", 0), layer.integer("col")))
    return layer.to_result(Constant(found.astype(np.int64)))


@converter("_local_scalar_dense")
def item(layer: Layer) -> Result:
    """A scalar read as a number: a size if sizes are made of it."""
    x = reshaped(layer.tensor(), ())
    value = layer.node.meta.get("val")
    if isinstance(value, torch.SymInt):
        x = cast(x, "i64")
        if value.node.expr.is_Symbol:
            layer.importer.sizes.number(value, x)
    return cast(x, "f64") if isinstance(value, torch.SymFloat) else x
