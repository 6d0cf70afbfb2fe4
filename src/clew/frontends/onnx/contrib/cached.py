"""ONNX Runtime's operators of language models: rotary embedding, and attention over a cache of keys
and values, in which each row of the batch fills its own part.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from clew.frontends.building import call, cast, reshaped, scalar
from clew.frontends.lowering.attention import Attention, part, places
from clew.frontends.lowering.norm import root_mean_square
from clew.frontends.lowering.rotary import Rotation
from clew.frontends.onnx.contrib.attention import head_count, in_heads
from clew.frontends.onnx.contrib.schemas import MICROSOFT
from clew.frontends.onnx.held import held as held_by
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.dims import Dim, dim_max
from clew.ir.expr import Expr
from clew.ops.common import differ
from clew.support.dataclass import dataclass


def rotation(layer: Layer, where: Expr, caches: tuple[int, int], *, interleaved: bool) -> Rotation:
    """Returns the rotation for positions [B or 1, S]; `caches` are the inputs with all cosines and
    sines, [positions, D / 2].
    """
    tables = [layer.input(n) for n in caches]
    if any(t.tensor.rank != 2 for t in tables) or differ(*(t.tensor.shape[1] for t in tables)):
        raise layer.wrong(f"has cosines {tables[0].type} and sines {tables[1].type}")
    rows = []
    for table in tables:
        found = call("gather", table, where, axis=0)
        batch, count, half = found.tensor.shape
        rows.append(reshaped(found, (batch, count, 1, half)))
    return Rotation(rows[0], rows[1], interleaved)


@converter("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(layer: Layer) -> Result:
    """Pairs of elements rotated by angles that depend on their row's position. Source: Su et al.,
    RoFormer, 2021.
    """
    x, where = layer.input(0), layer.input(1)
    if layer.integer("is_packed_batching", 0):
        raise layer.unsupported("of packed batches")
    half = layer.type(2).shape[-1] if layer.rank(2) else 0
    shape = x.tensor.shape
    width = layer.integer("rotary_embedding_dim", 0)
    if len(shape) == 4:
        data: Expr = call("transpose", x, axes=(0, 2, 1, 3))
    elif len(shape) == 3:
        heads = layer.integer("num_heads", 0) if width else 0
        if width and heads < 1:
            raise layer.wrong(f"has num_heads {heads} with a rotary_embedding_dim")
        data = reshaped(x, (*shape[:2], *_heads_of(layer, shape[2], heads, half)))
    else:
        raise layer.wrong(f"rotates {x.type}")
    rows = data.tensor.shape[1]
    if where.tensor.rank == 1:
        start = reshaped(cast(where, "i64"), (1, 1))
        where = call("add", start, cast(reshaped(places(rows), (1, rows)), "i64"))
    if differ(2 * half, width or data.tensor.shape[3]):
        raise layer.wrong(f"has {half} cosines for {width or data.tensor.shape[3]} elements")
    turn = rotation(layer, where, (2, 3), interleaved=bool(layer.integer("interleaved", 0)))
    result = turn.of(data)
    if len(shape) == 4:
        return call("transpose", result, axes=(0, 2, 1, 3))
    return reshaped(result, shape)


def _heads_of(layer: Layer, width: Dim, heads: int, half: Dim) -> tuple[Dim, Dim]:
    """Returns the number of heads and their size; without a number of heads in the model, the size
    is the number of rotated elements.
    """
    size = width // heads if heads else 2 * half
    if size == 0 or (isinstance(width, int) and isinstance(size, int) and width % size):
        raise layer.wrong(f"divides {width} features into heads of {size}")
    return width // size, size


# --- attention over a cache -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Sizes:
    """Sizes of attention over a cache: rows and keys of this call, valid keys (None if their number
    is known only in the run), and positions of the cache afterwards.
    """

    batch: Dim
    rows: Dim
    total: Dim | None
    room: Dim


@converter("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(layer: Layer) -> Result:
    """Attention of queries to all keys before them, cached ones and those of this call, which are
    appended to each row's part of the cache; also the cache afterwards.

    The cache has room for its previous number of keys, or for the total, if that is more; if the
    model declares that its size stays the same, the total must fit. Source: ONNX Runtime,
    `gqa_attention_base.h`.
    """
    _refuse(layer)
    q, k, v = _heads(layer)
    batch, rows = q.tensor.shape[:2]
    past = [layer.optional(3), layer.optional(4)]
    total, room = _total_and_room(layer, past[0], rows)
    sizes = _Sizes(batch, rows, total, room)
    start = _start(layer, sizes)
    if layer.optional(14) is not None:
        epsilons = [layer.real(n, layer.real("qk_norm_epsilon")) for n in _EPSILONS]
        q = root_mean_square(q, layer.input(14), 3, epsilons[0])
        k = root_mean_square(k, layer.input(15), 3, epsilons[1])
    if layer.integer("do_rotary", 0):
        where = layer.optional(9)
        if where is None:
            where = call("add", reshaped(start, (batch, 1)), reshaped(places(rows), (1, rows)))
        interleaved = bool(layer.integer("rotary_interleaved", 0))
        turn = rotation(layer, where, (7, 8), interleaved=interleaved)
        q, k = turn.of(q), turn.of(k)
    caches = [_put(x, before, start, sizes) for x, before in zip((k, v), past, strict=True)]
    keys, values = (_valid(layer, cache, sizes) for cache in caches)
    sizes = replace(sizes, total=keys.tensor.shape[2])
    todo = Attention(q, keys, values, ("BSHD", "BHSD", "BHSD"))
    todo.scale, todo.softcap = layer.real("scale", 0.0), layer.real("softcap", 0.0)
    todo.sink = layer.optional(11)
    if layer.integer("smooth_softmax") == 1 and todo.sink is None:
        todo.sink = call("full", shape=(q.tensor.shape[2],), value=0.0, dtype=q.tensor.dtype)
    if (todo.softcap or todo.sink is not None) and not isinstance(q.tensor.shape[3], int):
        raise layer.unsupported(f"with a head of {q.tensor.shape[3]} elements")
    if (bias := layer.optional(10)) is not None:
        todo.add(bias)
    _mask(layer, todo, start, sizes, alone=past[0] is None)
    return [todo.built(), *caches]


_EPSILONS = ("q_norm_epsilon", "k_norm_epsilon")


def _refuse(layer: Layer) -> None:
    """Errors: U005 for unsupported forms."""
    if layer.wants(3):
        raise layer.unsupported("with the scores as a result")
    if layer.integer("kv_cache_bit_width", 0) or layer.optional(12) or layer.optional(13):
        raise layer.unsupported("with a quantized cache")
    if layer.flag("sliding_window_cache"):
        raise layer.unsupported("with a cache of the window's size")
    if layer.optional(16) is not None:
        raise layer.unsupported("with padded queries (query_seqlens)")


def _heads(layer: Layer) -> tuple[Expr, Expr, Expr]:
    """Returns queries, keys and values, [B, S, N, D]. They may lie side by side in one tensor."""
    heads, groups = head_count(layer), head_count(layer, "kv_num_heads")
    if heads % groups:
        raise layer.wrong(f"has {heads} heads of queries for {groups} of keys")
    if (layer.optional(1) is None) != (layer.optional(2) is None):
        raise layer.wrong("has keys or values alone")
    if layer.optional(1) is not None:
        q, k, v = (
            in_heads(layer.input(n), count, layer)
            for n, count in enumerate((heads, groups, groups))
        )
        return q, k, v
    packed = in_heads(layer.input(0), heads + 2 * groups, layer)
    ends = (0, heads, heads + groups, heads + 2 * groups)
    q, k, v = (part(packed, 2, a, b) for a, b in pairwise(ends))
    return q, k, v


def _start(layer: Layer, sizes: _Sizes) -> Expr:
    """Returns the number of keys of each row before this call, i32[B]. At the first call, where all
    keys are this call's, it is 0, regardless of how many of the keys are valid.
    """
    last, batch = layer.input(5), sizes.batch
    if last.tensor.is_static and isinstance(batch, int) and last.tensor.size != batch:
        raise layer.wrong(f"has lengths of type {last.type} for {batch} rows")
    last = reshaped(cast(last, "i32"), (batch,))
    none = call("multiply", last, scalar(0, "i32"))
    if sizes.total == sizes.rows:
        return none
    rows = scalar(sizes.rows, "i32") if isinstance(sizes.rows, int) else _size(layer)
    before = call("add", call("subtract", last, rows), scalar(1, "i32"))
    if isinstance(sizes.total, int) and isinstance(sizes.rows, int):
        return before
    total = reshaped(cast(layer.input(6), "i32"), ())
    return call("where", call("equal", total, rows), none, before)


def _total_and_room(layer: Layer, past: Expr | None, rows: Dim) -> tuple[Dim | None, Dim]:
    """Returns the number of keys in all, None if only the run knows it, and the room of the cache
    afterwards. A cache of which the model states that its size stays needs no number; without the
    number, any other cache gets room for all keys of this call.

    Errors: U002.
    """
    held: Dim = 0 if past is None else past.tensor.shape[2]
    shape = layer.stated_shape(1)
    is_fixed = past is not None and shape is not None and len(shape) == 4 and shape[2] == str(held)
    if past is not None and layer.builder.known.get(layer.input(6)) is None:
        return None, held if is_fixed else held + rows
    total: Dim = layer.one(6, "the number of keys in all")
    return total, dim_max(held, total)


def _valid(layer: Layer, cache: Expr, sizes: _Sizes) -> Expr:
    """Returns the part of a cache that holds keys."""
    if sizes.total is not None:
        return part(cache, 2, 0, sizes.total)
    end = reshaped(cast(layer.input(6), "i64"), (1,))
    return held_by(layer, "slice", [cache], {"end": end}, begin=(0,), strides=(1,), axes=(2,))


def _size(layer: Layer) -> Expr:
    """Returns the number of rows of the query, `i32[]`."""
    sizes = call("shape_of", layer.input(0))
    return cast(call("gather", sizes, scalar(1, "i64"), axis=0), "i32")


def _put(x: Expr, past: Expr | None, start: Expr, sizes: _Sizes) -> Expr:
    """Returns a cache [B, N, T, D] with new keys or values [B, S, N, D] inserted."""
    new = call("transpose", x, axes=(0, 2, 1, 3))
    if past is None and sizes.room == sizes.rows:
        return new
    batch, heads, _, width = new.tensor.shape
    if past is None:
        shape = (batch, heads, sizes.room, width)
        past = call("full", shape=shape, value=0.0, dtype=x.tensor.dtype)
    elif past.tensor.shape[2] != sizes.room:
        more = sizes.room - past.tensor.shape[2]
        past = call("pad", past, pads=(0, 0, 0, 0, 0, 0, more, 0))
    return call("tensor_scatter", past, new, start, axis=2)


def _mask(layer: Layer, todo: Attention, start: Expr, sizes: _Sizes, *, alone: bool) -> None:
    """Adds conditions: a query sees keys up to its own position and, with a window, only the last
    of these; without causal attention it sees all keys of its row.
    """
    window = layer.integer("local_window_size")
    causal = layer.flag("causal")
    if causal and window < 1 and alone and sizes.total == sizes.rows:
        todo.causal = True
        return
    batch, rows, keys = sizes.batch, sizes.rows, sizes.total
    assert keys is not None
    key = reshaped(places(keys), (1, 1, 1, keys))
    if not causal:
        last = reshaped(cast(layer.input(5), "i32"), (batch, 1, 1, 1))
        todo.masks.append(call("less_equal", key, last))
        return
    row = reshaped(places(rows), (1, 1, rows, 1))
    row = call("add", row, reshaped(start, (batch, 1, 1, 1)))
    todo.masks.append(call("less_equal", key, row))
    if window > 0:
        first = call("subtract", row, scalar(window, "i32"))
        todo.masks.append(call("greater", key, first))
