"""Scaled dot-product attention."""

from __future__ import annotations

import math

import numpy as np

from clew.frontends.building import call, cast, reshaped, scalar
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter
from clew.ir.dims import Dim, product
from clew.ir.expr import Constant, Expr
from clew.ir.types import to_numpy


@converter(
    "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_attention_math",
)
def attention(layer: Layer) -> Result:
    """`softmax(scale q k' + mask) v`: products and a softmax, which fusion makes one kernel."""
    q, k, v = (layer.tensor(n) for n in ("query", "key", "value"))
    wanted = layer.result()
    if layer.number("dropout_p", 0.0):
        raise layer.unsupported("dropout")
    k, v = (_repeated(x, q) for x in (k, v))
    axes = (*range(k.tensor.rank - 2), k.tensor.rank - 1, k.tensor.rank - 2)
    scores: Expr = call("nn.matmul", q, call("transpose", k, axes=axes))
    scores = call("multiply", scores, _scale(layer, q.tensor.shape[-1], scores.tensor.dtype))
    mask = _mask(layer, scores)
    if mask is not None:
        scores = call("add", scores, mask)
    last = scores.tensor.rank - 1
    weights: Expr = call("nn.softmax", scores, axis=last)
    if mask is not None and layer.has("attn_mask"):
        # A query that sees nothing gets zeros.
        low, zero = (scalar(n, weights.tensor.dtype) for n in (float("-inf"), 0))
        top = call("max", mask, axes=(mask.tensor.rank - 1,), keepdims=True)
        weights = call("where", call("equal", top, low), zero, weights)
    found = layer.to_result(call("nn.matmul", weights, v))
    if len(layer.fakes) == 1:
        return found if found.tensor.shape == wanted.shape else reshaped(found, wanted.shape)
    if layer.op.startswith("_scaled_dot_product_flash"):
        sums = call("logsumexp", cast(scores, layer.result(1).dtype), axes=(last,), keepdims=False)
        return [found, layer.shaped(sums, 1)]
    return [found, layer.to_result(weights, 1)]


def _scale(layer: Layer, width: Dim, dtype: str) -> Expr:
    """Returns the factor of the scores: by default, that for the size of a head, which may be
    free.
    """
    if layer.has("scale"):
        return scalar(float(layer.number("scale")), dtype)
    if isinstance(width, int):
        return scalar(1 / math.sqrt(width) if width else 1.0, dtype)
    wide = "f64" if dtype == "f64" else "f32"
    return cast(call("rsqrt", layer.importer.scalar_of(width, wide)), dtype)


def _mask(layer: Layer, scores: Expr) -> Expr | None:
    """Returns the term added to the scores: minus infinity for keys that a query does not see."""
    dtype = scores.tensor.dtype
    low, zero = scalar(float("-inf"), dtype), scalar(0, dtype)
    mask = layer.optional("attn_mask")
    if mask is not None and mask.tensor.dtype == "bool":
        mask = call("where", mask, zero, low)
    elif mask is not None:
        mask = cast(mask, dtype)
    if not layer.flag("is_causal"):
        return mask
    rows, columns = scores.tensor.shape[-2:]
    if isinstance(rows, int) and isinstance(columns, int):
        seen = np.arange(columns) <= np.arange(rows)[:, None]
        causal: Expr = Constant(np.where(seen, 0, -np.inf).astype(to_numpy(dtype)))
    else:
        row = call("arange", start=0, stop=rows, step=1, dtype="i64")
        column = call("arange", start=0, stop=columns, step=1, dtype="i64")
        causal = call("where", call("less_equal", column, reshaped(row, (rows, 1))), zero, low)
    return causal if mask is None else call("add", mask, causal)


def _repeated(x: Expr, q: Expr) -> Expr:
    """Returns keys or values with each head repeated for the heads of queries that share it."""
    if x.tensor.rank < 4 or q.tensor.rank < 4:
        return x
    own, heads = x.tensor.shape[-3], q.tensor.shape[-3]
    if own == heads or own == 1 or not isinstance(own, int) or not isinstance(heads, int):
        return x
    shape = x.tensor.shape
    one = reshaped(x, (*shape[:-2], 1, *shape[-2:]))
    wide = call("broadcast_to", one, shape=(*shape[:-2], heads // own, *shape[-2:]))
    return reshaped(wide, (product(shape[:-3]), heads, *shape[-2:]))
