"""Random choices."""

from __future__ import annotations

from clew.frontends.building import call, cast, reshaped, scalar
from clew.ir.expr import Expr


def drawn_classes(x: Expr, count: int, key: Expr) -> Expr:
    """Returns `count` indices for each row of `x[rows, classes]`, `i64`, with probabilities whose
    logarithms `x` holds up to a constant.
    """
    rows, classes = x.tensor.shape
    wide = "f64" if x.tensor.dtype == "f64" else "f32"
    share = call("nn.softmax", cast(x, wide), axis=1)
    # The index is the number of cumulative sums up to the drawn number.
    upto = call("cumsum", share, axis=1)
    total = call("slice", upto, begin=(-1,), end=(2**31 - 1,), strides=(1,), axes=(1,))
    drawn = call("random_uniform", key, shape=(rows, count), dtype=wide)
    drawn = call("multiply", drawn, total)
    passed = call(
        "less_equal", reshaped(upto, (rows, 1, classes)), reshaped(drawn, (rows, count, 1))
    )
    place = call("sum", cast(passed, "i64"), axes=(2,), keepdims=False)
    if isinstance(classes, int):
        number: Expr = scalar(classes, "i64")
    else:
        number = call("gather", call("shape_of", x), scalar(1, "i64"), axis=0)
    return call("minimum", place, call("subtract", number, scalar(1, "i64")))
