"""Operators that go element by element."""

from __future__ import annotations

from typing import Any, Final

from onnx import TensorProto

from fuzz.dtypes import BOOL, EVERYDAY, FLOATS, INTEGERS, UNSIGNED
from fuzz.graph import Grower, Unfit, Value
from fuzz.operators import operator

# Attributes, each with the values that it is drawn from (the first is the default).
_UNARY: Final[dict[str, dict[str, tuple[Any, ...]]]] = {
    "Abs": {}, "Ceil": {}, "Cos": {}, "Erf": {}, "Exp": {}, "Floor": {}, "HardSwish": {},
    "Identity": {}, "IsNaN": {}, "Mish": {}, "Neg": {}, "Not": {}, "Reciprocal": {}, "Relu": {},
    "Round": {}, "Selu": {"alpha": (None, 0.5), "gamma": (None, 2.0)}, "Sigmoid": {}, "Sign": {},
    "Sin": {}, "Sinh": {}, "Cosh": {}, "Asinh": {}, "Atan": {}, "Softplus": {}, "Softsign": {},
    "Tan": {}, "Tanh": {}, "BitwiseNot": {},
    "Celu": {"alpha": (None, 0.5, 2.0)},
    "Elu": {"alpha": (None, 0.5, 2.0)},
    "Gelu": {"approximate": (None, "tanh", "none")},
    "HardSigmoid": {"alpha": (None, 0.5), "beta": (None, 0.1)},
    "IsInf": {"detect_negative": (None, 0, 1), "detect_positive": (None, 0, 1)},
    "LeakyRelu": {"alpha": (None, 0.0, 0.3, -0.5)},
    "Shrink": {"bias": (None, 0.3), "lambd": (None, 1.0)},
    "Swish": {"alpha": (None, 0.7)},
    "ThresholdedRelu": {"alpha": (None, 0.2)},
}  # fmt: skip
# Operators with a limited domain: leaves are sometimes drawn from it, to avoid NaNs.
_LIMITED: Final = {
    "Acos": "unit", "Asin": "unit", "Atanh": "unit", "Acosh": "positive", "Log": "positive",
    "Sqrt": "positive",
}  # fmt: skip
_COMPARISONS: Final = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


@operator(*_UNARY, weight=3)
def unary(g: Grower) -> object:
    op = g.schema.name
    attributes = {k: g.choices.pick(v) for k, v in _UNARY[op].items()}
    x = g.operand(g.dtypes(g.parameter(0), EVERYDAY), known=False)
    return g.emit(op, [x], **attributes)


@operator(*_LIMITED)
def limited(g: Grower) -> object:
    op = g.schema.name
    style = "usual" if g.choices.one_in(3) else _LIMITED[op]
    return g.emit(op, [g.tensor(style=style)])


@operator("Add", "Sub", "Mul", weight=8)
def arithmetic(g: Grower) -> object:
    return g.emit(g.schema.name, _pair(g))


@operator("And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", *_COMPARISONS)
def of_two(g: Grower) -> object:
    return g.emit(g.schema.name, _pair(g))


@operator("Div")
def divide(g: Grower) -> object:
    """Integer divisors cannot be zero: the standard leaves that undefined."""
    x = g.tensor()
    y = g.partner(x, "positive" if x.dtype in INTEGERS else "usual")
    return g.emit("Div", [x, y])


@operator("Mod")
def remainder(g: Grower) -> object:
    x = g.tensor()
    fmod = 1 if x.dtype in FLOATS else g.choices.pick((0, 1))
    return g.emit("Mod", [x, g.partner(x, "positive")], fmod=fmod)


@operator("Pow")
def power(g: Grower) -> object:
    x = g.tensor()
    dtype = x.dtype
    if g.schema.since_version >= 12 and g.choices.one_in(3):
        dtype = g.dtype(g.dtypes("T1"))
    if dtype in INTEGERS:
        y = g.partner(x, "0:4", dtype)
    elif x.dtype in INTEGERS:
        y = g.partner(x, "0:3", dtype)
    else:
        y = g.partner(x, g.choices.pick(("usual", "unit", "0:4")), dtype)
    return g.emit("Pow", [x, y])


@operator("BitShift")
def shift(g: Grower) -> object:
    x = g.tensor(among=UNSIGNED)
    return g.emit("BitShift", [x, g.partner(x, "0:8")], direction=g.choices.pick(("LEFT", "RIGHT")))


@operator("PRelu")
def prelu(g: Grower) -> object:
    """The slope broadcasts one way only."""
    x = g.tensor()
    sizes = [s if g.choices.integer(0, 1) else 1 for s in x.sizes]
    return g.emit("PRelu", [x, g.leaf(x.dtype, tuple(sizes[g.choices.integer(0, x.rank) :]))])


@operator("Max", "Min", "Sum", "Mean")
def of_many(g: Grower) -> object:
    x = g.tensor()
    # Before version 8 they had to be of one shape.
    beside = g.partner if g.schema.since_version >= 8 else g.like
    more = [beside(x) for _ in range(g.choices.pick((1, 0, 2)))]
    return g.emit(g.schema.name, [x, *more])


@operator("Where", weight=3)
def where(g: Grower) -> object:
    x = g.tensor(1)
    return g.emit("Where", [g.partner(x, dtype=BOOL), x, g.partner(x)])


@operator("Clip", weight=3)
def clip(g: Grower) -> object:
    x = g.tensor()
    low, high = g.choices.pick(((-1, 1), (0, 6), (0, 1), (-2, 5)))
    if x.dtype in UNSIGNED:
        low = 0
    if g.schema.since_version < 11:
        return g.emit("Clip", [x], min=float(low), max=float(high))
    ends = [g.scalar(v, x.dtype, None) if g.choices.integer(0, 3) else None for v in (low, high)]
    return g.emit("Clip", [x, *ends])


@operator("Cast", weight=4)
def cast(g: Grower) -> object:
    x = g.tensor()
    allowed = g.dtypes("T2", EVERYDAY)
    to = g.dtype(allowed)
    return g.emit("Cast", [_castable(g, x, to)], to=to)


@operator("CastLike")
def cast_like(g: Grower) -> object:
    x = g.tensor()
    target = g.operand(g.dtypes("T2", EVERYDAY), known=False)
    return g.emit("CastLike", [_castable(g, x, target.dtype), target])


def _castable(g: Grower, x: Value, to: int) -> Value:
    """Returns a value that a cast to a type keeps within its range; other casts are undefined."""
    if x.dtype not in FLOATS or to not in INTEGERS:
        return x
    if g.version("") < 12:
        raise Unfit
    low, high = (0, 100) if to in UNSIGNED else (-100, 100)
    return g.emit("Clip", [x, g.scalar(low, x.dtype), g.scalar(high, x.dtype)])[0]


def _pair(g: Grower) -> list[Value]:
    x = g.tensor()
    pair = [x, g.partner(x)]
    return pair[::-1] if g.choices.one_in(2) else pair


assert TensorProto.STRING not in EVERYDAY
