"""Operators of ATen that equal one of clew's, and functions of `torch` of the same names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from clew.vocabularies.same import Same

Operands: TypeAlias = Literal["numbers", "floats", "compared", "rounded", "tested", "truths"]


@dataclass(frozen=True)
class SameInTorch(Same):
    """A pair with the dtypes that torch computes in.

    - `numbers`: the common dtype of the operands.
    - `floats`: that dtype, but the default float for integers.
    - `compared`: that dtype; the result is `bool`.
    - `rounded`: of integers, the operand is the result.
    - `tested`: of integers, the result is false.
    - `truths`: numbers are true if they are not zero.

    `of_truths` is the operator of clew for operands that are all `bool`.
    """

    operands: Operands = "numbers"
    of_truths: str = ""


_Pair = SameInTorch

ATEN: Final = (
    # Functions of one element.
    _Pair("abs", "abs"),
    _Pair("acos", "acos", operands="floats"),
    _Pair("acosh", "acosh", operands="floats"),
    _Pair("asin", "asin", operands="floats"),
    _Pair("asinh", "asinh", operands="floats"),
    _Pair("atan", "atan", operands="floats"),
    _Pair("atanh", "atanh", operands="floats"),
    _Pair("bitwise_not", "bitwise_not", of_truths="logical_not"),
    _Pair("ceil", "ceil", operands="rounded"),
    _Pair("cos", "cos", operands="floats"),
    _Pair("cosh", "cosh", operands="floats"),
    _Pair("erf", "erf", operands="floats"),
    _Pair("exp", "exp", operands="floats"),
    _Pair("floor", "floor", operands="rounded"),
    _Pair("isinf", "isinf", direction="read", operands="tested"),
    _Pair("isnan", "isnan", operands="tested"),
    _Pair("log", "log", operands="floats"),
    _Pair("logical_not", "logical_not", operands="truths"),
    _Pair("negative", "neg"),
    _Pair("reciprocal", "reciprocal", operands="floats"),
    _Pair("round", "round", direction="written"),
    _Pair("rsqrt", "rsqrt", operands="floats"),
    _Pair("sigmoid", "sigmoid", operands="floats"),
    _Pair("sin", "sin", operands="floats"),
    _Pair("sinh", "sinh", operands="floats"),
    _Pair("sqrt", "sqrt", operands="floats"),
    _Pair("tan", "tan", operands="floats"),
    _Pair("tanh", "tanh", operands="floats"),
    _Pair("trunc", "trunc", operands="rounded"),
    # Functions of two or three.
    _Pair("add", "add", direction="written"),
    _Pair("bitwise_and", "bitwise_and", of_truths="logical_and"),
    _Pair("bitwise_or", "bitwise_or", of_truths="logical_or"),
    _Pair("bitwise_xor", "bitwise_xor", of_truths="logical_xor"),
    _Pair("equal", "eq", operands="compared"),
    _Pair("floor_mod", "remainder", direction="read"),
    _Pair("greater", "gt", operands="compared"),
    _Pair("greater_equal", "ge", operands="compared"),
    _Pair("left_shift", "__lshift__", direction="read"),
    _Pair("left_shift", "bitwise_left_shift"),
    _Pair("less", "lt", operands="compared"),
    _Pair("less_equal", "le", operands="compared"),
    _Pair("logical_and", "logical_and", operands="truths"),
    _Pair("logical_or", "logical_or", operands="truths"),
    _Pair("logical_xor", "logical_xor", operands="truths"),
    _Pair("maximum", "maximum", of_truths="logical_or"),
    _Pair("minimum", "minimum", of_truths="logical_and"),
    _Pair("mod", "fmod", direction="read"),
    _Pair("multiply", "mul", of_truths="logical_and"),
    _Pair("not_equal", "ne", operands="compared"),
    _Pair("right_shift", "__rshift__", direction="read"),
    _Pair("right_shift", "bitwise_right_shift"),
    _Pair("subtract", "sub", direction="written"),
    _Pair("where", "where", direction="written"),
    # Activations.
    _Pair("nn.celu", "celu", {"alpha": "alpha"}, "read"),
    _Pair("nn.elu", "elu", {"alpha": "alpha"}, "written"),
    _Pair("nn.gelu", "gelu", {"approximate": "approximate", "accuracy": ""}),
    _Pair("nn.leaky_relu", "leaky_relu", {"alpha": "negative_slope"}),
    _Pair("nn.mish", "mish", operands="floats"),
    _Pair("nn.relu", "relu"),
    _Pair("nn.selu", "selu", direction="read"),
    _Pair("nn.silu", "silu", operands="floats"),
    _Pair("nn.softsign", "softsign", direction="written"),
    # Along axes.
    _Pair("flip", "flip", {"axes": "dims"}, "written"),
    _Pair("nn.log_softmax", "log_softmax", {"axis": "dim"}, "written"),
    _Pair("nn.softmax", "softmax", {"axis": "dim"}, "written"),
    _Pair("tile", "tile", {"repeats": "dims"}, "written"),
    _Pair("transpose", "permute", {"axes": "dims"}, "written"),
)
