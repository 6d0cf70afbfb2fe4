"""Locality-sensitive projections."""

from __future__ import annotations

from typing import Final

import numpy as np

from clew.frontends.building import call, cast, constant, reshaped, scalar
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.ir.dims import product

_SPARSE, _DENSE = 1, 2
_MOST_BITS: Final = 32


@converter("LSH_PROJECTION", codes=True)
def projection(layer: TfliteLayer) -> Result:
    """The bits of all hash functions; or in the sparse form one number per function, whose bits
    begin above those of the function before.
    """
    kind, seeds = layer.integer("type", 0), layer.image(0, 2)
    functions, bits = seeds.tensor.shape
    if kind not in (_SPARSE, _DENSE):
        raise layer.wrong(f"has the type {kind}")
    if not isinstance(functions, int) or not isinstance(bits, int) or bits > _MOST_BITS:
        raise layer.wrong(f"has hash functions {layer.type(0)}")
    weight = layer.optional(2)
    given = [layer.input(1)] if weight is None else [layer.input(1), weight]
    signs = cast(call("hash_signs", seeds, *given), "i32")
    if kind == _DENSE:
        return reshaped(signs, (product(seeds.tensor.shape),))
    places = np.arange(bits - 1, -1, -1).astype(np.int32)
    value = call("sum", call("left_shift", signs, constant(places)), axes=(1,), keepdims=False)
    # LiteRT's shift by 32 is one by 0.
    step = scalar(1 << (bits % _MOST_BITS), "i64")
    first = call("multiply", constant(np.arange(functions, dtype=np.int64)), step)
    return call("add", value, cast(first, "i32"))
