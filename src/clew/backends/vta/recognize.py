"""Recognizes quantized convolutions, with the operators after them, that VTA computes exactly.

    round((conv2d(x, w) + bias + skip) * scale), clipped

where all scales are powers of two. In integers, this is `(sums + bias + skip * 2**k + half) >>
shift`, clipped, if no sum lies midway between two results, since the rounding of ties then has no
effect. A quantized bias with a quarter of a step (`Scheme(scales="power_of_two")`) ensures this.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clew.backends.vta.tiles import Convolution
from clew.ir.expr import Call, Constant, Expr, Function
from clew.patterns import Match, Pattern, is_constant, is_op, wildcard

Array = np.ndarray[Any, Any]
Number = Callable[[Expr], "int | None"]
"""Returns the number of an operand of the recognized function or match; None for other nodes."""
_MOST_BIAS: Final = 1 << 28
# The graph adds in f32, which has all quarters of a step up to 2**22. With these shifts, larger
# sums are clipped in any case: results end at 2**(7 + 14), and an addend is at most 2**(7 + 13).
_MOST_SHIFT: Final = 14
_MOST_SKIP_SHIFT: Final = 13
_QUARTERS: Final = 4


@dataclass(frozen=True, eq=False)
class Layer:
    """A convolution with its epilogue, in integers.

    `data` and `skip` are the numbers of the function's parameters; `skip` is shifted left by
    `skip_shift` and added to the sums, as is `bias`, `i32[outputs]`, with half of the unit of the
    result. The sums are then shifted right by `shift` and clipped to `low` and `high`.
    """

    conv: Convolution
    data: int
    weight: Array
    bias: Array
    shift: int
    low: int
    high: int
    skip: int | None = None
    skip_shift: int = 0


class Refused(Exception):
    """A function that VTA does not compute exactly; the reason is the message."""


def quantized_convolution() -> Pattern:
    """Returns the pattern of a convolution of bytes to bytes: sums, dequantized, plus a bias, plus
    dequantized bytes or not, requantized, clipped or not.
    """
    x, c = wildcard(), is_constant()
    sums = is_op("nn.conv2d")(is_op("pad")(x) | x, is_constant())
    sums = is_op("add")(sums, is_constant()) | sums
    plain = is_op("dequantize")(sums, c)
    biased = is_op("add")(plain, is_constant()) | plain
    skip = is_op("dequantize")(wildcard(), is_constant())
    skip = is_op("dequantize")(wildcard(), is_constant(), is_constant()) | skip
    total = is_op("add")(biased, skip) | is_op("add")(skip, biased) | biased
    return bytes_of(total)


def fits_machine(conv: Call, block_in: int) -> bool:
    """Whether VTA computes a convolution, apart from its padding: one group, a square kernel, equal
    strides, no dilation, and at least `block_in` input channels.
    """
    attrs = conv.attrs
    weight = conv.args[1].tensor.concrete
    return (
        attrs.get("groups", 1) == 1
        and set(attrs.get("dilation", (1, 1))) == {1}
        and weight[2] == weight[3]
        and len(set(attrs.get("strides", (1, 1)))) == 1
        and weight[1] >= block_in
    )


def convolution_of(body: Expr, number: Number, block_in: int) -> Layer:
    """Returns the convolution whose result is `body`; `data` and `skip` are numbers of operands.

    Raises `Refused` with the reason if VTA does not compute it exactly.
    """
    return _Reader(body, number, block_in).layer()


def numbers_of(function: Function) -> Number:
    """Returns the function that numbers the parameters of a function."""
    numbers = {p.id: n for n, p in enumerate(function.params)}
    return lambda node: numbers.get(node.id)


def numbers_of_match(found: Match) -> Number:
    """Returns the function that numbers the operands of a match, in the order in which it is asked
    for them.
    """
    inside = {n.id for n in found.nodes}
    numbers: dict[int, int] = {}

    def number(node: Expr) -> int | None:
        return None if node.id in inside else numbers.setdefault(node.id, len(numbers))

    return number


class _Reader:
    """Reads a graph from the result, `body`, back to the operands, which `number` numbers."""

    def __init__(self, body: Expr, number: Number, block_in: int) -> None:
        self._number = number
        self._body = body
        self._block_in = block_in

    def layer(self) -> Layer:
        scaled = scaled_to_bytes(self._body)
        total, out_scale, low, high = scaled.total, scaled.exponent, scaled.low, scaled.high
        biased, skip = self._split(total)
        sums_scale, sums, bias = self._sums(biased)
        shift = -(sums_scale + out_scale)
        if not 0 <= shift <= _MOST_SHIFT:
            raise Refused(f"its sums are multiplied by 2**{-shift}")
        skip_at, skip_shift = None, 0
        if skip is not None:
            need_no_zero_point(skip.args[2:])
            skip_at = parameter(skip.args[0], self._number)
            skip_shift = scale_exponent(skip.args[1], "the scale of the addend") - sums_scale
            if not 0 <= skip_shift <= _MOST_SKIP_SHIFT:
                raise Refused(f"its addend is multiplied by 2**{skip_shift}")
        conv, data, weight = self._convolution(sums)
        whole = _integers(bias, conv.outputs, ties=shift > 0)
        half = 1 << (shift - 1) if shift else 0
        if np.abs(whole).max(initial=0) > _MOST_BIAS:
            raise Refused("its bias is too large")
        return Layer(
            conv, data, weight, (whole + half).astype(np.int32), shift, low, high, skip_at,
            skip_shift,
        )  # fmt: skip

    def _split(self, total: Any) -> tuple[Expr, Any]:
        """Returns the sums with their bias, and the addend, if there is one."""
        if not is_call(total, "add") or any(isinstance(a, Constant) for a in total.args):
            return total, None
        for biased, skip in (total.args, total.args[::-1]):
            if is_call(skip, "dequantize") and self._number(skip.args[0]) is not None:
                return biased, skip
        raise Refused("it adds floats")

    def _sums(self, node: Any) -> tuple[int, Any, Array]:
        """Returns the exponent of the scale of the sums, the sums, and the bias in this scale."""
        bias = np.zeros(1)
        if is_call(node, "add"):
            node, added = _with_constant(node)
            bias = added.astype(np.float64).reshape(-1)
        if not is_call(node, "dequantize") or len(node.args) != 2:
            raise Refused("its sums have a zero point")
        scale = scale_exponent(node.args[1], "the scale of the sums")
        sums = node.args[0]
        more: Array = np.zeros(1, np.int64)
        if is_call(sums, "add"):
            sums, extra = _with_constant(sums)
            more = extra.astype(np.int64).reshape(-1)
        return scale, sums, bias * 2.0**-scale + more

    def _convolution(self, node: Any) -> tuple[Convolution, int, Array]:
        if not is_call(node, "nn.conv2d") or not fits_machine(node, self._block_in):
            raise Refused("it is not a convolution that VTA computes")
        data, weight = node.args
        pads = [0, 0, 0, 0]
        if is_call(data, "pad"):
            if data.attrs.get("mode", "constant") != "constant" or data.attrs.value != 0:
                raise Refused("it pads with a number other than 0")
            outer = list(data.attrs.pads)
            if any(outer[n] for n in (0, 1, 4, 5)):
                raise Refused("it pads images or channels")
            pads, data = [outer[2], outer[3], outer[6], outer[7]], data.args[0]
        pads = [a + b for a, b in zip(pads, node.attrs.get("padding", (0,) * 4), strict=True)]
        if len(set(pads)) != 1:
            raise Refused("it pads the sides of images by different numbers")
        at = parameter(data, self._number)
        if not isinstance(weight, Constant) or weight.data.dtype != np.int8:
            raise Refused("its weight is not a constant of i8")
        images, inputs, height, width = data.tensor.concrete
        outputs, _, kernel, _ = weight.data.shape
        stride = node.attrs.get("strides", (1, 1))[0]
        if pads[0] >= kernel:
            raise Refused("it pads by as much as the kernel's size")
        conv = Convolution(inputs, outputs, height, width, kernel, stride, pads[0], images)
        return conv, at, weight.data


@dataclass(frozen=True)
class Scaled:
    """How sums become bytes: the sums, n for their scale of 2**n, and the least and the largest
    result.
    """

    total: Any
    exponent: int
    low: int
    high: int


def scaled_to_bytes(node: Any) -> Scaled:
    """Returns how a value of bytes results from sums in floats; raises `Refused` if it does not."""
    low, high = -128, 127
    if is_call(node, "clip"):
        low, high = int(max(low, node.attrs.min)), int(min(high, node.attrs.max))
        node = node.args[0]
    if not is_call(node, "requantize") or node.tensor.dtype != "i8":
        raise Refused("its results are not i8")
    need_no_zero_point(node.args[2:])
    exponent = scale_exponent(node.args[1], "the scale of the result")
    total = node.args[0]
    if is_call(total, "nn.relu"):
        total, low = total.args[0], max(low, 0)
    return Scaled(total, exponent, low, high)


def bytes_of(total: Pattern) -> Pattern:
    """Returns the pattern of sums, clamped or not, that are scaled to bytes, clipped or not."""
    total = is_op("nn.relu")(total) | total
    scaled = is_op("requantize")(total, is_constant(), is_constant())
    scaled = scaled | is_op("requantize")(total, is_constant())
    return is_op("clip")(scaled) | scaled


def is_call(node: Any, name: str) -> bool:
    """Whether a node calls an operator."""
    return isinstance(node, Call) and node.op_name == name


def need_no_zero_point(points: Any) -> None:
    """Raises `Refused` if an operand for zero points is not 0."""
    if any(not isinstance(p, Constant) or p.data.any() for p in points):
        raise Refused("it has a zero point")


def parameter(node: Expr, number: Number) -> int:
    """Returns the number of an operand of bytes; raises `Refused` for others."""
    found = number(node)
    if found is None or node.tensor.dtype != "i8":
        raise Refused("an operand is not i8")
    return found


def _with_constant(node: Any) -> tuple[Any, Array]:
    """Returns the operands of an addition of a constant: the other operand, and the elements of the
    constant.
    """
    for value, constant in (node.args, node.args[::-1]):
        if isinstance(constant, Constant) and constant.data.ndim <= 3:
            return value, constant.data
    raise Refused("it adds a value that is not a constant per channel")


def scale_exponent(node: Expr, what: str) -> int:
    """Returns n for a scale of 2**n; raises `Refused` for others."""
    if not isinstance(node, Constant) or np.unique(node.data).size != 1:
        raise Refused(f"{what} is not one number")
    mantissa, exponent = math.frexp(float(node.data.reshape(-1)[0]))
    if mantissa != 0.5:
        raise Refused(f"{what} is not a power of two")
    return exponent - 1


def _integers(bias: Array, outputs: int, *, ties: bool) -> Array:
    """Returns the bias, `i64[outputs]`, rounded down. With `ties`, each element must be some
    quarters above an integer: a sum of integers and these is never midway between two results.
    Raises `Refused` if it is not, or if it has a fraction without `ties`.
    """
    full = np.broadcast_to(bias, (outputs,))
    whole = np.floor(full)
    rest = full - whole
    if ties and not rest.all():
        raise Refused("its sums may be midway between two integers")
    if ties and np.any(rest * _QUARTERS % 1):
        raise Refused("f32 does not have all of its sums")
    if not ties and rest.any():
        raise Refused("its bias is not an integer")
    found: Array = whole.astype(np.int64)
    return found
