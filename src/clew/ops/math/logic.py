"""Elementwise logic, bit operations and selection."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew import te
from clew.ops.common import (
    at,
    boolean,
    broadcast_shapes,
    f32,
    i32,
    i64,
    joint_layout,
    need_bool,
    need_integer,
    same_dtype,
    u8,
)
from clew.ops.math.elementwise import broadcast
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.te import Tensor
from clew.te.expr import binary

Array = np.ndarray[Any, Any]

_TRUTHS = (
    Sample(boolean(3, 5), boolean(3, 5)),
    Sample(boolean(3, 1), boolean(5)),
    Sample(f32(3), f32(3), error="T105"),
    Sample(boolean(3), boolean(4), error="T100"),
)
_BITS = (
    Sample(i32(3, 5), i32(5), low=-99, high=99),
    Sample(u8(17), u8(17), low=0, high=255),
    Sample(f32(3), f32(3), error="T105"),
)
_SHIFTS = (
    Sample(i64(9), i64(9), low=0, high=30),
    Sample(u8(9), u8(1), low=0, high=7),
    Sample(f32(3), f32(3), error="T105"),
)


@register_op(
    "logical_and",
    traits=Traits(sizes="computed"),
    commutative=True,
    associative=True,
    samples=_TRUTHS,
)
def logical_and(a: Tensor, b: Tensor) -> Tensor:
    """Logical and of booleans. Source: ONNX And-7."""
    need_bool("logical_and", a, b)
    return broadcast("logical_and", a, b, lambda x, y: x & y)


@register_op(
    "logical_or",
    traits=Traits(sizes="computed"),
    commutative=True,
    associative=True,
    samples=_TRUTHS,
)
def logical_or(a: Tensor, b: Tensor) -> Tensor:
    """Logical or of booleans. Source: ONNX Or-7."""
    need_bool("logical_or", a, b)
    return broadcast("logical_or", a, b, lambda x, y: x | y)


@register_op(
    "logical_xor",
    traits=Traits(sizes="computed"),
    commutative=True,
    associative=True,
    samples=_TRUTHS,
)
def logical_xor(a: Tensor, b: Tensor) -> Tensor:
    """Exclusive or of booleans. Source: ONNX Xor-7."""
    need_bool("logical_xor", a, b)
    return broadcast("logical_xor", a, b, lambda x, y: x ^ y)


@register_op(
    "logical_not",
    traits=Traits(sizes="computed"),
    samples=(Sample(boolean(3, 5)), Sample(boolean()), Sample(f32(3), error="T105")),
)
def logical_not(x: Tensor) -> Tensor:
    """Logical negation of booleans. Source: ONNX Not-1."""
    need_bool("logical_not", x)
    return te.compute(x.shape, lambda *i: ~x[i], "logical_not", layout=x.layout)


@register_op("bitwise_and", commutative=True, associative=True, samples=_BITS)
def bitwise_and(a: Tensor, b: Tensor) -> Tensor:
    """Bits set in both integers. Source: ONNX BitwiseAnd-18."""
    need_integer("bitwise_and", a)
    return broadcast("bitwise_and", a, b, lambda x, y: x & y)


@register_op("bitwise_or", commutative=True, associative=True, samples=_BITS)
def bitwise_or(a: Tensor, b: Tensor) -> Tensor:
    """Bits set in either integer. Source: ONNX BitwiseOr-18."""
    need_integer("bitwise_or", a)
    return broadcast("bitwise_or", a, b, lambda x, y: x | y)


@register_op("bitwise_xor", commutative=True, associative=True, samples=_BITS)
def bitwise_xor(a: Tensor, b: Tensor) -> Tensor:
    """Bits set in exactly one integer. Source: ONNX BitwiseXor-18."""
    need_integer("bitwise_xor", a)
    return broadcast("bitwise_xor", a, b, lambda x, y: x ^ y)


@register_op(
    "bitwise_not", samples=(Sample(i32(3, 5), low=-99, high=99), Sample(f32(3), error="T105"))
)
def bitwise_not(x: Tensor) -> Tensor:
    """The integer with every bit flipped. Source: ONNX BitwiseNot-18."""
    need_integer("bitwise_not", x)
    return te.compute(x.shape, lambda *i: ~x[i], "bitwise_not", layout=x.layout)


@register_op("left_shift", samples=_SHIFTS)
def left_shift(a: Tensor, b: Tensor) -> Tensor:
    """`a` shifted left by `b` bits (less than its width). Source: ONNX BitShift-11."""
    need_integer("left_shift", a)
    return broadcast("left_shift", a, b, lambda x, y: binary("shl", x, y))


@register_op("right_shift", samples=_SHIFTS)
def right_shift(a: Tensor, b: Tensor) -> Tensor:
    """`a` shifted right by `b` bits (less than its width). Source: ONNX BitShift-11."""
    need_integer("right_shift", a)
    return broadcast("right_shift", a, b, lambda x, y: binary("shr", x, y))


@register_op(
    "where",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(boolean(3, 5), f32(3, 5), f32(3, 5)),
        Sample(boolean(4, 1, 1), f32(5), f32(3, 1)),
        Sample(boolean(), i64(2, 2), i64()),
        Sample(f32(3), f32(3), f32(3), error="T105"),
        Sample(boolean(3), f32(3), i64(3), error="T101"),
        Sample(boolean(3), f32(4), f32(4), error="T100"),
    ),
)
def where(cond: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`a` where `cond` (bool) holds, else `b`; all three broadcast. Source: ONNX Where-16."""
    need_bool("where", cond)
    same_dtype("where", a, b)
    shape = broadcast_shapes("where", cond.shape, a.shape, b.shape)
    return te.compute(
        shape,
        lambda *i: te.select(at(cond, shape, i), at(a, shape, i), at(b, shape, i)),
        "where",
        layout=joint_layout(len(shape), a, b, cond),
    )


@where.reference
def _where_reference(cond: Array, a: Array, b: Array) -> Array:
    return np.where(cond, a, b)
