"""Angles of points in the plane."""

from __future__ import annotations

import math

from clew.frontends.building import call, cast_wide, scalar
from clew.ir.expr import Expr


def angle_of(y: Expr, x: Expr) -> Expr:
    """Returns the angle of the point (x, y), by quadrants."""
    dtype = y.tensor.dtype
    zero = scalar(0, dtype)
    pi = scalar(math.pi, dtype)
    steep = call("greater", call("abs", y), call("abs", x))
    # The smaller of the two is divided by the larger, so that no quotient overflows.
    top = call("where", steep, x, y)
    below = call("where", steep, y, x)
    nothing = call("logical_and", call("equal", below, zero), call("equal", top, zero))  # not NaN
    ratio = call("divide", top, call("where", nothing, scalar(1, dtype), below))
    both = call("logical_and", _infinite(x), _infinite(y))
    same = call("equal", call("less", x, zero), call("less", y, zero))
    ratio = call("where", both, call("where", same, scalar(1, dtype), scalar(-1, dtype)), ratio)
    angle = call("atan", ratio)
    quarter = call("where", _negative(y), scalar(-math.pi / 2, dtype), scalar(math.pi / 2, dtype))
    half = call("where", _negative(y), call("negative", pi), pi)
    flat = call("where", _negative(x), call("add", angle, half), angle)
    found = call("where", steep, call("subtract", quarter, angle), flat)
    on_axis = call("where", _negative(x), half, call("multiply", y, scalar(1, dtype)))
    return call("where", nothing, on_axis, found)


def _infinite(x: Expr) -> Expr:
    return call("isinf", x)


def _negative(x: Expr) -> Expr:
    """Whether the sign bit is set: also of a negative zero."""
    wide = cast_wide(x)
    integer = "i64" if wide.tensor.dtype == "f64" else "i32"
    return call("less", call("bitcast", wide, dtype=integer), scalar(0, integer))
