"""ONNX Runtime's Attention and MultiHeadAttention: `nn.attention` with their kinds of masks.

Letters: B batch, S queries, P keys of the past, L new keys, T = P + L keys in all, N heads, H
elements of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clew.frontends.building import call, cast, fields, reshaped, scalar
from clew.frontends.lowering.attention import Attention, part, places
from clew.frontends.onnx.contrib.schemas import MICROSOFT
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.dims import Dim
from clew.ir.expr import Expr
from clew.ops.common import differ

# The addend for the scores of masked keys, unless the model sets it.
_HIDDEN: Final = -10000.0


def in_heads(x: Expr, heads: int, layer: Layer) -> Expr:
    """Returns a tensor [B, S, N * D] as [B, S, N, D]."""
    if x.tensor.rank != 3:
        raise layer.wrong(f"takes operands of three axes, got {x.type}")
    batch, rows, width = x.tensor.shape
    if isinstance(width, int) and width % heads:
        raise layer.wrong(f"divides {width} features among {heads} heads")
    return reshaped(x, (batch, rows, heads, width // heads))


def head_count(layer: Layer, name: str = "num_heads") -> int:
    """Returns the number of heads."""
    heads = layer.integer(name)
    if heads < 1:
        raise layer.wrong(f"has {name} {heads}")
    return heads


# --- masks ----------------------------------------------------------------------------------------


def padding_bias(layer: Layer, mask: Expr, rows: Dim, keys: Dim, dtype: str) -> Expr | None:
    """Returns the addend for the scores, from a mask of any of ONNX Runtime's forms: i32[B] holds
    the ends of the valid keys, i32[2 B] their ends and starts; [B, T] and [B, S, T] are 0 for
    masked keys, as is [B, 1, M, M], whose first rows and columns are used. A mask of a single
    column masks nothing.
    """
    shape = mask.tensor.shape
    batch = layer.type(0).shape[0]
    if len(shape) == 1:
        seen = _between(layer, mask, batch, keys)
    elif len(shape) == 2 and shape[1] == 1 and keys != 1:
        return None
    else:
        if len(shape) == 2:
            mask = reshaped(mask, (shape[0], 1, 1, shape[1]))
        elif len(shape) == 3:
            mask = reshaped(mask, (shape[0], 1, *shape[1:]))
        elif len(shape) == 4:
            mask = part(part(mask, 2, keys - rows, keys), 3, 0, keys)
        else:
            raise layer.wrong(f"has a mask of type {mask.type}")
        if differ(mask.tensor.shape[-1], keys):
            raise layer.wrong(f"has a mask of type {mask.type} for {keys} keys")
        seen = call("greater", mask, scalar(0, mask.tensor.dtype))
    hidden = layer.real("mask_filter_value", _HIDDEN)
    return call("where", seen, scalar(0.0, dtype), scalar(hidden, dtype))


def _between(layer: Layer, ends: Expr, batch: Dim, keys: Dim) -> Expr:
    """Returns the keys before their row's end and not before its start: bool[B, 1, 1, T]."""
    (count,) = ends.tensor.shape
    key = reshaped(places(keys), (1, 1, 1, keys))

    def column(begin: Dim) -> Expr:
        piece = part(ends, 0, begin, begin + batch)
        return reshaped(cast(piece, "i32"), (batch, 1, 1, 1))

    if count not in (batch, 2 * batch):
        raise layer.unsupported(f"a mask of type {ends.type} for {batch} rows")
    seen = call("less", key, column(0))
    if count == batch:
        return seen
    return call("logical_and", seen, call("greater_equal", key, column(batch)))


def _refuse_shared_buffers(layer: Layer, *inputs: int) -> None:
    if any(layer.optional(n) is not None for n in inputs):
        raise layer.unsupported("with a buffer that past and present share")


# --- operators ------------------------------------------------------------------------------------


@converter("Attention", domain=MICROSOFT)
def attention(layer: Layer) -> Result:
    """The products that make queries, keys and values, then attention; also keys and values for the
    next call. Source: ONNX Runtime, `attention_cpu_base.h`.
    """
    weight, bias = layer.input(1), layer.optional(2)
    if layer.rank(0) != 3 or layer.rank(1) != 2:
        raise layer.wrong(f"multiplies {layer.type(0)} by {layer.type(1)}")
    made = call("nn.dense", layer.input(0), weight, weight_layout="KN")
    if bias is not None:
        made = call("add", made, bias)
    return with_projected(layer, made, mask=3, past=4, bias=5)


def with_projected(
    layer: Layer, made: Expr, *, mask: int, past: int, bias: int | None = None
) -> list[Expr]:
    """Returns the results of attention whose queries, keys and values lie side by side. `mask`,
    `past` and `bias` are the numbers of these inputs.
    """
    heads = head_count(layer)
    if layer.integer("do_rotary", 0):
        raise layer.unsupported("with rotary embedding")
    if layer.integer("past_present_share_buffer", 0):
        raise layer.unsupported("with a buffer that past and present share")
    _refuse_shared_buffers(layer, 6) if bias is not None else None
    sizes = _sizes(layer, made.tensor.shape[-1])
    q, k, v = (
        in_heads(x, heads, layer) for x in fields(call("split", made, sizes=sizes, axis=2), 3)
    )
    todo = Attention(q, k, v, scale=layer.real("scale", 0.0))
    results: list[Expr] = []
    before = layer.optional(past)
    if before is not None or layer.wants(1):
        todo.layouts = ("BSHD", "BHSD", "BHSD")
        todo.k, todo.v = (call("transpose", x, axes=(0, 2, 1, 3)) for x in (k, v))
        if before is not None:
            todo.k, todo.v = (
                call("concatenate", _half(layer, before, n), x, axis=2)
                for n, x in enumerate((todo.k, todo.v))
            )
        if layer.wants(1):
            pair = (reshaped(x, (1, *x.tensor.shape)) for x in (todo.k, todo.v))
            results.append(call("concatenate", *pair, axis=0))
    todo.causal = layer.flag("unidirectional")
    finish_scores(layer, todo, mask, bias)
    return [todo.built(), *results]


def _sizes(layer: Layer, width: Dim) -> tuple[Dim, ...]:
    """Returns the widths of queries, keys and values, over all heads."""
    given = (
        ()
        if "qkv_hidden_sizes" not in layer.schema.attributes
        else layer.integers("qkv_hidden_sizes")
    )
    if not given:
        if isinstance(width, int) and width % 3:
            raise layer.wrong(f"divides {width} features among queries, keys and values")
        return (width // 3,) * 3
    if len(given) != 3 or differ(sum(given), width):
        raise layer.wrong(f"has qkv_hidden_sizes {list(given)} for {width} features")
    return tuple(given)


def _half(layer: Layer, past: Expr, which: int) -> Expr:
    """Returns the keys or values of a past [2, B, N, P, H]."""
    if past.tensor.rank != 5:
        raise layer.wrong(f"has a past of type {past.type}")
    return reshaped(part(past, 0, which, which + 1), past.tensor.shape[1:])


def finish_scores(layer: Layer, todo: Attention, mask: int, bias: int | None) -> None:
    """Applies the inputs `mask` and `bias` to the scores."""
    dtype = todo.q.tensor.dtype
    if bias is not None and (added := layer.optional(bias)) is not None:
        todo.add(cast(added, dtype))
    if (hiding := layer.optional(mask)) is not None:
        padding = padding_bias(layer, hiding, todo.size(0, "S"), todo.size(1, "S"), dtype)
        if padding is not None:
            todo.add(padding)


@converter("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(layer: Layer) -> Result:
    """Attention over queries, keys and values that may lie in one tensor; also keys and values for
    the next call. Source: ONNX Runtime, `multihead_attention_helper.h`.
    """
    heads = head_count(layer)
    if layer.wants(3):
        raise layer.unsupported("with the scores as a result")
    _refuse_shared_buffers(layer, 8, 9)
    todo = _operands(layer, heads)
    before = [layer.optional(6), layer.optional(7)]
    if None in before and before != [None, None]:
        raise layer.wrong("has a past of keys or values alone")
    if before[0] is not None or layer.wants(1) or layer.wants(2):
        orders = [[layout.index(axis) for axis in "BHSD"] for layout in todo.layouts]
        todo.k, todo.v = (
            x if order == [0, 1, 2, 3] else call("transpose", x, axes=tuple(order))
            for x, order in zip((todo.k, todo.v), orders[1:], strict=True)
        )
        todo.layouts = (todo.layouts[0], "BHSD", "BHSD")
        todo.k, todo.v = (
            x if past is None else call("concatenate", past, x, axis=2)
            for past, x in zip(before, (todo.k, todo.v), strict=True)
        )
    todo.scale = layer.real("scale", 0.0)
    todo.causal = layer.flag("unidirectional")
    finish_scores(layer, todo, 4, 5)
    return [todo.built(), todo.k, todo.v]


def _operands(layer: Layer, heads: int) -> Attention:
    """Returns queries, keys and values with their biases, [B, S, N, D] or in another order."""
    query, key, value = layer.input(0), layer.optional(1), layer.optional(2)
    parts: Sequence[Expr]
    if key is None:
        parts = _packed(layer, query, 3)
    elif value is None:
        parts = [in_heads(query, heads, layer), *_packed(layer, key, 2)]
    elif key.tensor.rank == 4:
        parts = [in_heads(query, heads, layer), key, value]
        if layer.optional(3) is not None:
            raise layer.wrong("has a bias for keys of four axes")
        q, k, v = parts
        return Attention(q, k, v, layouts=("BSHD", "BHSD", "BHSD"))
    else:
        parts = [in_heads(x, heads, layer) for x in (query, key, value)]
    if (bias := layer.optional(3)) is not None:
        sizes = tuple(x.tensor.shape[2] * x.tensor.shape[3] for x in parts)
        biases = fields(call("split", bias, sizes=sizes, axis=0), 3)
        parts = [
            call("add", x, reshaped(b, x.tensor.shape[2:]))
            for x, b in zip(parts, biases, strict=True)
        ]
    q, k, v = parts
    return Attention(q, k, v)


def _packed(layer: Layer, x: Expr, count: int) -> list[Expr]:
    """Returns the tensors [B, S, N, D] that one of [B, S, N, count, D] holds."""
    if x.tensor.rank != 5 or x.tensor.shape[3] != count:
        raise layer.wrong(f"has no values beside {x.type}")
    shape = x.tensor.shape
    return [reshaped(part(x, 3, n, n + 1), (*shape[:3], shape[4])) for n in range(count)]
