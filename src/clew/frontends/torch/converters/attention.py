"""Scaled dot-product attention."""

from __future__ import annotations

import math

from clew.frontends.building import call, cast, reshaped, scalar
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter
from clew.ir.dims import product
from clew.ir.expr import Expr


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
    if layer.has("scale"):
        scale = float(layer.number("scale"))
    else:
        width = q.tensor.shape[-1]
        if not isinstance(width, int):
            raise layer.unsupported(f"heads of the free size {width}")
        scale = 1 / math.sqrt(width)
    k, v = (_repeated(x, q) for x in (k, v))
    axes = (*range(k.tensor.rank - 2), k.tensor.rank - 1, k.tensor.rank - 2)
    scores: Expr = call("nn.matmul", q, call("transpose", k, axes=axes))
    scores = call("multiply", scores, scalar(scale, scores.tensor.dtype))
    mask = layer.optional("attn_mask")
    low = scalar(float("-inf"), scores.tensor.dtype)
    if mask is not None and mask.tensor.dtype == "bool":
        scores = call("where", mask, scores, low)
    elif mask is not None:
        scores = call("add", scores, cast(mask, scores.tensor.dtype))
    if layer.flag("is_causal"):
        rows, columns = scores.tensor.shape[-2:]
        row = call("arange", start=0, stop=rows, step=1, dtype="i64")
        column = call("arange", start=0, stop=columns, step=1, dtype="i64")
        seen = call("less_equal", column, reshaped(row, (rows, 1)))
        scores = call("where", seen, scores, low)
    weights: Expr = call("nn.softmax", scores, axis=scores.tensor.rank - 1)
    if mask is not None and mask.tensor.dtype == "bool":
        # A query that sees nothing gets zeros.
        top = call("max", scores, axes=(scores.tensor.rank - 1,), keepdims=True)
        empty = call("isinf", top, positive=False)
        weights = call("where", empty, scalar(0, weights.tensor.dtype), weights)
    found = layer.to_result(call("nn.matmul", weights, v))
    if len(layer.fakes) == 1:
        return found if found.tensor.shape == wanted.shape else reshaped(found, wanted.shape)
    if layer.is_used(1):
        raise layer.unsupported("results other than the first")
    return [found, layer.filled(0, 1)]


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
