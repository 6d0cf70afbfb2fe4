"""Attention as one operator: scores of queries and keys, softmax, weighted sum of values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from clew import te
from clew.cost.policy.tiles import MOST_ROWS_OF_SCORES
from clew.ir.dims import Dim
from clew.ir.types import to_numpy
from clew.machine.units import tile_depth
from clew.ops.common import (
    accumulator,
    assume_at_least,
    bf16,
    boolean,
    broadcast_place,
    broadcast_shapes,
    differ,
    divides,
    f16,
    f32,
    f64,
    i8,
    i32,
    need_float,
    need_rank,
    same_dtype,
    widen,
)
from clew.ops.convolution.windows import blocks
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor, roles
from clew.te.expr import as_scalar

Array = np.ndarray[Any, Any]

AXES = "BHSD"
"""Axes of an operand: batch, head, position in the sequence, element of the head's vector."""
_CODES = "i8"
_PAIR = 2
"""The number of `bf16` that one instruction multiplies and adds."""
_SCORES = (roles.BATCH, roles.HEAD, roles.KEY, roles.QUERY)
_ROWS_OF_SCORES = (roles.BATCH, roles.HEAD, roles.QUERY, roles.KEY)
_RESULT = (roles.BATCH, roles.HEAD, roles.QUERY, roles.ELEMENT)
_TURNED_RESULT = (roles.BATCH, roles.HEAD, roles.ELEMENT, roles.QUERY)


def _sizes(what: str, x: Tensor, layout: str) -> dict[str, Dim]:
    """Returns the sizes of an operand by axis.

    Errors: T102, T109.
    """
    need_rank("nn.attention", what, x, len(AXES))
    if sorted(layout) != sorted(AXES):
        raise GraphTypeError(
            "T109", f"nn.attention: layout {layout!r} of the {what} does not permute {AXES}"
        )
    return dict(zip(layout, x.shape, strict=True))


def _check(q: dict[str, Dim], k: dict[str, Dim], v: dict[str, Dim]) -> None:
    """Checks that operands are compatible.

    Errors: T103 for mismatched sizes, T107 if the heads of keys do not divide those of queries.
    """
    pairs = [("batch", q["B"], k["B"]), ("batch", q["B"], v["B"]), ("heads", k["H"], v["H"]),
             ("keys", k["S"], v["S"]), ("elements of a head", q["D"], k["D"])]  # fmt: skip
    for what, a, b in pairs:
        if differ(a, b):
            raise GraphTypeError("T103", f"nn.attention: {what} mismatch, {a} and {b}")
    heads, groups = q["H"], k["H"]
    if not divides(groups, heads) if groups else differ(heads, 0):
        raise GraphTypeError(
            "T107", f"nn.attention: {heads} query heads are not a multiple of {groups} key heads"
        )


@register_op(
    "nn.attention",
    reads_views=True,
    samples=(
        Sample(f32(2, 3, 5, 8), f32(2, 3, 7, 8), f32(2, 3, 7, 8)),
        Sample(f32(1, 2, 40, 8), f32(1, 2, 17, 8), f32(1, 2, 17, 33), scale=0.5),
        Sample(f32(2, 3, 5, 8), f32(2, 3, 7, 8), f32(2, 3, 7, 8), f32(2, 1, 5, 7)),
        Sample(f32(2, 3, 5, 8), f32(2, 3, 7, 8), f32(2, 3, 7, 8), f32(2, 1, 1, 7)),
        Sample(f32(1, 2, 5, 8), f32(1, 2, 7, 8), f32(1, 2, 7, 8), boolean(5, 7), guard="nan"),
        Sample(f32(1, 2, 5, 8), f32(1, 2, 7, 8), f32(1, 2, 7, 8), boolean(5, 1), guard="empty"),
        Sample(f32(1, 2, 19, 8), f32(1, 2, 19, 8), f32(1, 2, 19, 8), causal=True),
        Sample(f32(1, 6, 5, 8), f32(1, 2, 7, 8), f32(1, 2, 7, 8)),
        Sample(
            f32(2, 5, 3, 8), f32(2, 3, 8, 7), f32(2, 7, 3, 8),
            q_layout="BSHD", k_layout="BHDS", v_layout="BSHD", layout="BSHD",
        ),
        Sample(f32(1, 1, 1, 8), f32(1, 1, 7, 8), f32(1, 1, 7, 8)),
        Sample(f32(1, 2, 5, 8), f32(1, 2, 0, 8), f32(1, 2, 0, 8)),
        Sample(f16(1, 2, 5, 8), f16(1, 2, 7, 8), f16(1, 2, 7, 8)),
        Sample(bf16(1, 2, 5, 8), bf16(1, 2, 7, 8), bf16(1, 2, 7, 8)),
        Sample(bf16(2, 4, 40, 8), bf16(2, 2, 18, 8), bf16(2, 2, 18, 24), f32(40, 18)),
        Sample(bf16(2, 4, 40, 8), bf16(2, 2, 67, 8), bf16(2, 2, 67, 24), f32(40, 67),
               transposes_values=True),
        Sample(f16(1, 2, 5, 8), f16(1, 2, 7, 8), f16(1, 2, 7, 8), out_dtype="f32"),
        Sample(f32(1, 4, 1, 8), f16(1, 2, 7, 8), f16(1, 2, 7, 8)),
        Sample(f32(1, 4, 5, 8), bf16(1, 2, 7, 8), bf16(1, 2, 7, 8), boolean(5, 7)),
        Sample(f32(1, 4, 1, 8), i8(1, 2, 7, 8), i8(1, 2, 7, 8), boolean(1, 7),
               f32(1, 2, 7, 1), f32(1, 2, 7, 1)),
        Sample(f32(1, 4, 19, 8), i8(1, 7, 2, 8), i8(1, 7, 2, 8), boolean(19, 7),
               f32(1, 7, 2, 1), f32(1, 7, 2, 1), k_layout="BSHD", v_layout="BSHD"),
        Sample(bf16(1, 3, 2, 6), bf16(1, 7, 2, 6), bf16(1, 7, 2, 4), causal=True,
               q_layout="BSHD", k_layout="BSHD", v_layout="BSHD", layout="BSHD"),
        Sample(f32(1, 2, 5, 8), f32(1, 2, 7, 8), f32(1, 2, 7, 8), out_dtype="bf16", error="T107"),
        Sample(f64(1, 2, 5, 8), f64(1, 2, 7, 8), f64(1, 2, 7, 8), causal=True),
        Sample(f32(1, 2, 5, 8), f32(1, 2, 7, 9), f32(1, 2, 7, 8), error="T103"),
        Sample(f32(1, 2, 5, 8), f32(1, 2, 7, 8), f32(1, 2, 6, 8), error="T103"),
        Sample(f32(1, 3, 5, 8), f32(1, 2, 7, 8), f32(1, 2, 7, 8), error="T107"),
        Sample(f32(1, 2, 5, 8), f32(1, 2, 7, 8), f32(1, 2, 7, 8), f32(5, 6), error="T100"),
        Sample(f32(1, 2, 5, 8), f32(1, 2, 7, 8), f32(2, 7, 8), error="T102"),
        Sample(f32(1, 2, 5, 8), f32(1, 2, 7, 8), f32(1, 2, 7, 8), k_layout="BHS", error="T109"),
        Sample(f32(1, 2, 5, 8), f64(1, 2, 7, 8), f32(1, 2, 7, 8), error="T101"),
        Sample(f32(1, 2, 5, 8), f32(1, 2, 7, 8), f32(1, 2, 7, 8), guard="all", error="T107"),
        Sample(f32(1, 2, 5, 8), f32(1, 2, 7, 8), f32(1, 2, 7, 8), transposes_values=True,
               error="T107"),
        Sample(f32(1, 2, 5, 8), i8(1, 2, 7, 8), i8(1, 2, 7, 8), error="T107"),
        Sample(f32(1, 2, 5, 8), f32(1, 2, 7, 8), f32(1, 2, 7, 8), boolean(5, 7),
               f32(1, 2, 7, 1), f32(1, 2, 7, 1), error="T107"),
        Sample(f32(1, 2, 5, 8), i8(1, 2, 7, 8), i8(1, 2, 7, 8), boolean(5, 7),
               f32(1, 2, 7, 8), f32(1, 2, 7, 1), error="T103"),
        Sample(f32(1, 2, 5, 8), i8(1, 2, 7, 8), i8(1, 2, 7, 8), boolean(5, 7),
               f32(1, 2, 7, 1), f32(1, 2, 6, 1), error="T103"),
        Sample(i32(1, 2, 5, 8), i32(1, 2, 7, 8), i32(1, 2, 7, 8), error="T105"),
    ),
)  # fmt: skip
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    *,
    scale: float = 0.0,
    causal: bool = False,
    guard: str = "",
    q_layout: str = AXES,
    k_layout: str = AXES,
    v_layout: str = AXES,
    layout: str = AXES,
    out_dtype: str = "",
    transposes_values: bool = False,
) -> Tensor:
    """`softmax(scale q kᵀ + mask) v` for each head: `f32[B, H, queries, D]`, with axes in any
    order.

    A `scale` of 0 means 1 / sqrt(D). The mask broadcasts to `[B, H, queries, keys]`. It is added to
    the scores, or, if it is bool, marks the visible keys. With `causal`, query m sees keys up to m.
    Several query heads may share a head of keys and values. A fully masked row is NaN; `guard` sets
    a row to 0 if it is NaN for any reason (`nan`), or if all of its scores are -inf (`empty`).
    Without keys, the result is 0, the sum over no values. Narrow floats accumulate in `f32`, which
    is the dtype of the result with `out_dtype="f32"`; the mask may be `f32`, too. Keys and values
    may be narrow while queries are `f32`, as in a compact cache. If they are `i8`, they are codes,
    and `k_scale` and `v_scale` hold the scale of each position: `f32` in the layouts of the keys
    and the values, with one element. Codes require a mask, without `causal`.

    A row's result, rather than its weights, is divided by the row's sum. Scores are stored with
    queries as the last axis: its elements are lanes, which share every key, and no reduction
    crosses lanes. Those of up to `MOST_ROWS_OF_SCORES` queries, which would leave most lanes empty,
    are stored with keys as the last axis. Both products of `bf16` sum pairs of neighbors, if the
    sizes are known: queries, weights (which are rounded) and values are stored in pairs along what
    is summed. With `transposes_values`, values are stored as rows along the keys, as a matrix unit
    reads them, and keys are zero-padded to whole steps of the unit. This needs pairs.

    Errors: T100, T101, T102, T103, T105, T107, T109. Source: ONNX Attention-23; Dao et al.,
    FlashAttention, 2022.
    """
    need_float("nn.attention", q)
    same_dtype("nn.attention", k, v)
    are_codes = _are_codes(q, k, k_scale, v_scale)
    if q.dtype != accumulator(k.dtype) and not are_codes:
        same_dtype("nn.attention", q, k, v)
    qs, ks = _sizes("query", q, q_layout), _sizes("key", k, k_layout)
    vs = _sizes("value", v, v_layout)
    _check(qs, ks, vs)
    for what, one, place_of, of in (
        ("key", k_scale, k_layout, ks),
        ("value", v_scale, v_layout, vs),
    ):
        if one is not None:
            _check_scale(what, _sizes(f"{what}'s scale", one, place_of), of)
    if sorted(layout) != sorted(AXES):
        raise GraphTypeError("T109", f"nn.attention: layout {layout!r} does not permute {AXES}")
    if guard not in ("", "nan", "empty"):
        raise GraphTypeError("T107", f"nn.attention: guard {guard!r} is not nan or empty")
    batch, heads, rows, width = (qs[axis] for axis in AXES)
    keys, depth = ks["S"], vs["D"]
    dtype = accumulator(q.dtype)
    if out_dtype not in ("", q.dtype, dtype):
        raise GraphTypeError(
            "T107", f"nn.attention: out_dtype is {out_dtype!r}", hint=f"use {dtype} or {q.dtype}"
        )
    if keys != 0:
        assume_at_least(keys, 1)  # the sum of no weights divides nothing
    factor = _factor(scale, width, dtype)
    pairs = q.dtype == k.dtype and can_pair(q.dtype, (batch, rows, width, keys, depth), k_layout)
    if transposes_values and not pairs:
        raise GraphTypeError("T107", "nn.attention: transposes_values needs bf16 in pairs")
    summed = keys  # or as many as are stored
    if pairs:
        assert isinstance(keys, int)
        summed = keys_in_steps(keys)[0] if transposes_values else -(-keys // _PAIR) * _PAIR

    along_keys = not pairs and not causal and scores_lie_along_keys(rows, width, k_layout)

    def place(b: Scalar, h: Scalar, n: Scalar, m: Scalar) -> tuple[Scalar, ...]:
        return (b, h, m, n) if along_keys else (b, h, n, m)

    def of_scores(name: str, element: Callable[..., Scalar]) -> Tensor:
        role = f"attention.{name}"
        if along_keys:
            return te.compute(
                (batch, heads, rows, keys),
                lambda b, h, m, n: element(b, h, n, m),
                name,
                role=role,
                roles=_ROWS_OF_SCORES,
            )
        return te.compute((batch, heads, keys, rows), element, name, role=role, roles=_SCORES)

    def shared(h: Scalar) -> Scalar:
        if heads == ks["H"]:
            return h
        return h // (te.size(heads) // te.size(ks["H"]))

    if pairs:
        queries = te.compute(
            (batch, heads, width // _PAIR, rows, _PAIR),
            lambda b, h, i, m, e: q[_place(q_layout, b, h, m, i * _PAIR + e)],
            "queries",
            role="attention.queries",
        )
    elif along_keys:
        queries = te.compute(
            (batch, heads, rows, width),
            lambda b, h, m, i: widen(q[_place(q_layout, b, h, m, i)]) * factor,
            "queries",
            role="attention.queries",
        )
    else:
        queries = te.compute(
            (batch, heads, width, rows),
            lambda b, h, i, m: widen(q[_place(q_layout, b, h, m, i)]) * factor,
            "queries",
            role="attention.queries",
        )
    i = te.reduce_axis(width, "i")
    read = _keys_of_group(k, k_layout, wide=q.dtype != k.dtype and not along_keys)

    def product(b: Scalar, h: Scalar, n: Scalar, m: Scalar) -> Scalar:
        here = (b, h, m, i) if along_keys else (b, h, i, m)
        query = widen(_paired(queries, b, h, i, m)) if pairs else queries[here]
        return te.sum(query * read(b, shared(h), n, i), i)

    scores = of_scores("scores", product)
    bias = _bias(mask, (batch, heads, rows, keys), q, dtype)

    def visible(b: Scalar, h: Scalar, n: Scalar, m: Scalar) -> Scalar:
        value = scores[b, h, n, m] * factor if pairs else scores[place(b, h, n, m)]
        if k_scale is not None:
            value = value * k_scale[_place(k_layout, b, shared(h), n, as_scalar(0, "i64"))]
        if bias is not None:
            full = (batch, heads, keys, rows)
            value = value + bias[broadcast_place(bias.shape, full, (b, h, n, m))]
        return te.select(n <= m, value, -math.inf) if causal else value

    logits = of_scores("logits", visible)
    over = te.reduce_axis(keys, "n")
    top = te.compute(
        (batch, heads, rows),
        lambda b, h, m: te.max(logits[place(b, h, over, m)], over),
        "top",
        role="attention.top",
    )

    def weight(b: Scalar, h: Scalar, n: Scalar, m: Scalar) -> Scalar:
        # Some processors take 100 cycles for a product with a denormal number.
        return te.call("exp_normal", logits[place(b, h, n, m)] - top[b, h, m])

    if pairs:
        power = te.compute(
            (batch, heads, summed // _PAIR, rows, _PAIR),
            lambda b, h, n, m, e: _up_to(
                keys, summed, n * _PAIR + e, te.cast(q.dtype, weight(b, h, n * _PAIR + e, m))
            ),
            "power",
            role="attention.power",
        )
    else:
        power = of_scores("power", weight)
    along = te.reduce_axis(keys, "n")
    total = te.compute(
        (batch, heads, rows),
        lambda b, h, m: te.sum(
            widen(_paired(power, b, h, along, m)) if pairs else power[place(b, h, along, m)], along
        ),
        "total",
        role="attention.total",
    )

    def divisor(b: Scalar, h: Scalar, m: Scalar) -> Scalar:
        if keys == 0:
            return te.as_scalar(1.0, dtype)
        value = 1.0 / total[b, h, m]  # never 0: 0 marks guarded rows
        if guard == "nan":
            return te.select(te.call("isnan", total[b, h, m]), 0.0, value)
        return te.select(top[b, h, m].equal(-math.inf), 0.0, value) if guard else value

    inverse = te.compute((batch, heads, rows), divisor, "inverse", role="attention.inverse")
    n = te.reduce_axis(summed if transposes_values else keys, "n")

    def terms(b: Scalar, h: Scalar, m: Scalar, d: Scalar) -> Scalar:
        if transposes_values:
            return widen(values[b, shared(h), d, n]) * widen(_paired(power, b, h, n, m))
        if pairs:
            return widen(_paired(power, b, h, n, m)) * widen(_paired(values, b, shared(h), n, d))
        part = power[place(b, h, n, m)]
        if v_scale is not None:  # once for all elements of a value
            part = part * v_scale[_place(v_layout, b, shared(h), n, as_scalar(0, "i64"))]
        return part * _wide(v[_place(v_layout, b, shared(h), n, d)])

    if transposes_values:
        values = te.compute(
            (batch, ks["H"], depth, summed),
            lambda b, h, d, n: _up_to(keys, summed, n, v[_place(v_layout, b, h, n, d)]),
            "values",
            role="attention.values",
        )
    elif pairs:
        values = te.compute(
            (batch, ks["H"], summed // _PAIR, depth, _PAIR),
            lambda b, h, n, d, e: _up_to(
                keys, summed, n * _PAIR + e, v[_place(v_layout, b, h, n * _PAIR + e, d)]
            ),
            "values",
            role="attention.values",
        )
    if transposes_values:
        weighted = te.compute(
            (batch, heads, depth, rows),
            lambda b, h, d, m: te.sum(terms(b, h, m, d), n),
            "weighted",
            role="attention.weighted",
            roles=_TURNED_RESULT,
        )
    else:
        weighted = te.compute(
            (batch, heads, rows, depth),
            lambda b, h, m, d: te.sum(terms(b, h, m, d), n),
            "weighted",
            role="attention.weighted",
            roles=_RESULT,
        )
    sizes = {"B": batch, "H": heads, "S": rows, "D": depth}

    def result(*places: Scalar) -> Scalar:
        here = dict(zip(layout, places, strict=True))
        b, h, m, d = (here[axis] for axis in AXES)
        less = inverse[b, h, m]
        value = weighted[(b, h, d, m) if transposes_values else (b, h, m, d)] * less
        if guard:
            value = te.select(less.equal(0.0), 0.0, value)
        return te.cast(out_dtype or q.dtype, value)

    names = {"B": "b", "H": "h", "S": "m", "D": "d"}
    return te.compute(
        tuple(sizes[axis] for axis in layout),
        result,
        "attention",
        axes=tuple(names[axis] for axis in layout),
    )


def _keys_of_group(k: Tensor, layout: str, *, wide: bool) -> Callable[..., Scalar]:
    """Returns what reads an element of a key: of a stage of their own if they are `wide`, widened
    for other operands.
    """

    def read(b: Scalar, h: Scalar, n: Scalar, i: Scalar) -> Scalar:
        return _wide(k[_place(layout, b, h, n, i)])

    if not wide:
        return read
    sizes = dict(zip(layout, k.shape, strict=True))
    shape = tuple(sizes[axis] for axis in AXES)
    keys = te.compute(shape, read, "keys", role="attention.keys")
    return lambda *place: keys[place]


def _wide(x: Scalar) -> Scalar:
    """Returns an element of a key or value in the dtype of the sums."""
    return te.cast("f32", x) if x.dtype == _CODES else widen(x)


def _are_codes(q: Tensor, k: Tensor, k_scale: Tensor | None, v_scale: Tensor | None) -> bool:
    """Returns whether keys and values are codes.

    Errors: T107 for codes without scales, and for scales without codes.
    """
    scales = [x for x in (k_scale, v_scale) if x is not None]
    if not scales and k.dtype != _CODES:
        return False
    if len(scales) < 2 or k.dtype != _CODES or any(x.dtype != q.dtype for x in (q, *scales)):
        raise GraphTypeError(
            "T107",
            f"nn.attention: keys are {k.dtype}, with {len(scales)} scales",
            hint="i8 keys and values take two f32 scales, after a mask",
        )
    same_dtype("nn.attention", q, *scales)
    return q.dtype == "f32"


def _check_scale(what: str, scale: dict[str, Dim], of: dict[str, Dim]) -> None:
    """Errors: T103 for scales other than one element for each position."""
    for axis in "BHS":
        if differ(scale[axis], of[axis]):
            raise GraphTypeError(
                "T103", f"nn.attention: {what}'s scale, {scale[axis]} and {of[axis]} along {axis}"
            )
    if differ(scale["D"], 1):
        raise GraphTypeError("T103", f"nn.attention: {what}'s scale has {scale['D']} elements")


def _place(layout: str, b: Scalar, h: Scalar, s: Scalar, d: Scalar) -> tuple[Scalar, ...]:
    """Returns the position of an operand's element, in the operand's order of axes."""
    here = dict(zip(AXES, (b, h, s, d), strict=True))
    return tuple(here[axis] for axis in layout)


def _paired(x: Tensor, b: Scalar, h: Scalar, n: Scalar, m: Scalar) -> Scalar:
    """Returns element (n, m) of a head whose elements along n are stored in pairs."""
    return x[b, h, n // _PAIR, m, n % _PAIR]


def can_pair(dtype: str, sizes: tuple[Dim, ...], k_layout: str) -> bool:
    """Whether both products sum pairs of neighbors. `sizes` are those of the batch, the queries,
    the elements of a key, the keys, and the elements of a value.
    """
    known = all(isinstance(size, int) and size > 0 for size in sizes)
    return dtype == "bf16" and known and sizes[2] % _PAIR == 0 and k_layout.endswith("D")


def scores_lie_along_keys(rows: Dim, width: Dim, k_layout: str) -> bool:
    """Whether scores are rows of keys, for a few queries and keys whose elements are contiguous."""
    few = isinstance(rows, int) and 0 < rows <= MOST_ROWS_OF_SCORES
    return few and isinstance(width, int) and width > 1 and k_layout.endswith("D")


def keys_in_steps(keys: int) -> tuple[int, int]:
    """Returns a number of keys rounded up to whole steps of a matrix unit, and the keys of a step,
    an even number.
    """
    steps = -(-keys // tile_depth("bf16"))
    each = -(-keys // (_PAIR * steps)) * _PAIR
    return steps * each, each


def _up_to(size: Dim, stored: Dim, n: Scalar, value: Scalar) -> Scalar:
    """Returns the n-th of `size` elements; 0 beyond them, up to the number that is stored."""
    if size == stored:
        return value
    return te.select(n < te.size(size), value, as_scalar(0, value.dtype))


def _factor(scale: float, width: Dim, dtype: str) -> Scalar:
    """Returns the factor of the queries."""
    if scale:
        return te.as_scalar(scale, dtype)
    if isinstance(width, int):
        return te.as_scalar(1.0 / math.sqrt(width) if width else 1.0, dtype)
    return te.call("rsqrt", te.cast(dtype, te.size(width)))


def _bias(mask: Tensor | None, full: tuple[Dim, ...], q: Tensor, dtype: str) -> Tensor | None:
    """Returns the term that is added to the scores, with keys before queries: a stage
    `[b, h, keys, queries]`, whose axes of size 1 are the mask's.

    Errors: T100, T101.
    """
    if mask is None:
        return None
    if mask.dtype not in ("bool", q.dtype, accumulator(q.dtype)):
        raise GraphTypeError("T101", f"nn.attention: query is {q.type}, mask is {mask.type}")
    joint = broadcast_shapes("nn.attention", full, mask.shape)
    if len(joint) != len(full) or any(map(differ, joint, full)):
        raise GraphTypeError(
            "T100", f"nn.attention: mask {mask.type} does not fit scores {list(full)}"
        )
    missing = len(full) - mask.rank
    b, h, rows, keys = (1,) * missing + mask.shape

    def element(*place: Scalar) -> Scalar:
        here = (*place[:2], place[3], place[2])
        value = mask[here[missing:]]
        if mask.dtype == "bool":
            zero = te.as_scalar(0.0, dtype)
            return te.select(value, zero, te.as_scalar(-math.inf, dtype))
        return widen(value)

    return te.compute(
        (b, h, keys, rows), element, "bias", axes=("b", "h", "n", "m"), role="attention.bias"
    )


@attention.reference
def _attention_reference(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    *,
    scale: float,
    causal: bool,
    guard: str,
    q_layout: str,
    k_layout: str,
    v_layout: str,
    layout: str,
    out_dtype: str,
    transposes_values: bool,
) -> Array:
    if k_scale is not None and v_scale is not None:
        k, v = k * k_scale, v * v_scale
    queries, keys, values = (
        np.transpose(x, [order.index(axis) for axis in AXES])
        for x, order in ((q, q_layout), (k, k_layout), (v, v_layout))
    )
    batch, heads, rows, width = queries.shape
    columns, group = keys.shape[2], heads // keys.shape[1]
    factor = scale or 1.0 / math.sqrt(width or 1)
    masks = None if mask is None else np.broadcast_to(mask, (batch, heads, rows, columns))
    dtype = to_numpy(out_dtype) if out_dtype else q.dtype
    result = np.empty((batch, heads, rows, values.shape[3]), dtype)
    for b, h in np.ndindex(batch, heads):
        there = keys[b, h // group].T.astype(np.float64)
        held = values[b, h // group].astype(np.float64)
        for some in blocks(rows, columns):
            with np.errstate(all="ignore"):
                logits = queries[b, h, some].astype(np.float64) @ there * factor
                if masks is not None:
                    bias = masks[b, h, some]
                    bias = np.where(bias, 0.0, -np.inf) if bias.dtype == bool else bias
                    logits += bias.astype(np.float64)
                if causal:
                    seen = np.arange(columns) <= np.arange(some.start, some.stop)[:, None]
                    logits = np.where(seen, logits, -np.inf)
                result[b, h, some] = _weighted(logits, held, guard).astype(dtype)
    return np.transpose(result, [AXES.index(axis) for axis in layout])


def _weighted(logits: Array, values: Array, guard: str) -> Array:
    """Returns `softmax(logits) values`, with the rows that `guard` selects set to 0."""
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    power = np.exp(logits - top)
    weights = power / power.sum(axis=-1, keepdims=True)
    if guard:
        weights = np.where(np.isnan(weights) if guard == "nan" else np.isneginf(top), 0, weights)
    return np.asarray(weights @ values)
