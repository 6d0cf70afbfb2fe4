from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew.ir.expr import Constant, If
from clew.passes.simplify.simplify_expr import SimplifyExpr

ONE, ZERO = np.float32(1), np.float32(0)


def _swap(k: Any, x: Any, shape: tuple[int, ...]) -> Any:
    heads = k.layer("exp", k.layer("reshape", x, shape=(1, 2, 2, 6)))
    y = k.layer("transpose", k.layer("reshape", heads, shape=(2, 2, 6)), axes=(0, 2, 1))
    return k.layer("reshape", y, shape=shape)


CASES: list[tuple[str, Any, list[str]]] = [
    ("times one", lambda k, x: k.layer("multiply", k.const(ONE), x), []),
    ("plus zero", lambda k, x: k.layer("add", x, k.const(np.broadcast_to(ZERO, (4, 6)))), []),
    ("minus zero", lambda k, x: k.layer("subtract", x, k.const(ZERO)), []),
    ("zero minus x", lambda k, x: k.layer("subtract", k.const(ZERO), x), ["subtract"]),
    ("over one", lambda k, x: k.layer("divide", x, k.const(ONE)), []),
    ("same cast", lambda k, x: k.layer("cast", x, dtype="f32"), []),
    ("same reshape", lambda k, x: k.layer("reshape", x, shape=(4, 6)), []),
    ("same pad", lambda k, x: k.layer("pad", x, pads=(0, 0, 0, 0)), []),
    ("same tile", lambda k, x: k.layer("tile", x, repeats=(1, 1)), []),
    ("whole slice", lambda k, x: k.layer("slice", x, begin=(0,), end=(4,), axes=(0,)), []),
    ("flipped slice", lambda k, x: k.layer(
        "slice", x, begin=(-1,), end=(-5,), axes=(0,), strides=(-1,)), ["slice"]),
    ("shifting pad", lambda k, x: k.layer("pad", x, pads=(1, 0, -1, 0)), ["pad"]),
    ("concatenation of one", lambda k, x: k.layer("concatenate", x, axis=0), []),
    ("reshapes", lambda k, x: k.layer("reshape", k.layer("reshape", x, shape=(24,)),
                                      shape=(2, 12)), ["reshape"]),
    ("reshape back", lambda k, x: k.layer("reshape", k.layer("reshape", x, shape=(24,)),
                                          shape=(4, 6)), []),
    ("transposes", lambda k, x: k.layer("transpose", k.layer("transpose", x, axes=(1, 0)),
                                        axes=(1, 0)), []),
    ("swap between reshapes", lambda k, x: _swap(k, x, (1, 2, 6, 2)),
     ["reshape", "exp", "transpose"]),
    ("swap before another shape", lambda k, x: _swap(k, x, (1, 2, 2, 6)),
     ["reshape", "exp", "reshape", "transpose", "reshape"]),
    ("transpose of a column", lambda k, x: k.layer(
        "transpose", k.layer("reshape", x, shape=(24, 1)), axes=(1, 0)), ["reshape"]),
    ("clips", lambda k, x: k.layer("clip", k.layer("clip", x, min=-1.0), min=-0.5, max=0.5),
     ["clip"]),
    ("disjoint clips", lambda k, x: k.layer("clip", k.layer("clip", x, min=2.0, max=3.0), min=0.0,
                                            max=1.0), ["clip", "clip"]),
    ("relus", lambda k, x: k.layer("nn.relu", k.layer("nn.relu", x)), ["nn.relu"]),
    ("negatives", lambda k, x: k.layer("negative", k.layer("negative", x)), []),
    ("cast up and back", lambda k, x: k.layer("cast", k.layer("cast", x, dtype="f64"),
                                              dtype="f32"), []),
    ("cast down and back", lambda k, x: k.layer("cast", k.layer("cast", x, dtype="f16"),
                                                dtype="f32"), ["cast", "cast"]),
    ("over eight", lambda k, x: k.layer("divide", x, k.const(np.float32(8))), ["multiply"]),
    ("over three", lambda k, x: k.layer("divide", x, k.const(np.float32(3))), ["divide"]),
    ("square", lambda k, x: k.layer("power", x, k.const(np.float32(2))), ["multiply"]),
    ("root", lambda k, x: k.layer("power", k.layer("abs", x), k.const(np.float32(0.5))),
     ["abs", "sqrt"]),
    ("cube", lambda k, x: k.layer("power", x, k.const(np.float32(3))), ["power"]),
    ("one over root", lambda k, x: k.layer(
        "divide", k.const(ONE), k.layer("sqrt", k.layer("abs", x))), ["abs", "rsqrt"]),
    ("where true", lambda k, x: k.layer("where", k.const(np.bool_(True)), x, k.const(ONE)), []),
    ("where false", lambda k, x: k.layer("where", k.const(np.bool_(False)), x, k.const(ONE)),
     ["broadcast_to"]),
    ("broadcasting zero", lambda k, x: k.layer("add", k.layer("reshape", x, shape=(4, 6, 1)),
                                               k.const(np.broadcast_to(ZERO, (1, 1, 3)))),
     ["reshape", "add"]),
]  # fmt: skip


@pytest.mark.parametrize(("build", "left"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_identities(kit: Any, build: Any, left: list[str]) -> None:
    x = kit.var("x", 4, 6)
    before = kit.module([x], build(kit, x))
    after = kit.apply(before, SimplifyExpr())
    assert kit.op_names(after) == left
    assert (after is before) == (kit.op_names(before) == left)
    kit.same(before, after)


def test_a_decided_if_is_its_branch(kit: Any) -> None:
    x = kit.var("x", 4)
    a, b = kit.var("a", 4), kit.var("b", 4)
    then = kit.function([a], kit.layer("exp", a))
    orelse = kit.function([b], kit.layer("negative", b))
    for condition, left in ((True, ["exp"]), (False, ["negative"])):
        before = kit.module([x], If(Constant(np.bool_(condition)), then, orelse, [x], span=x.span))
        after = kit.apply(before, SimplifyExpr())
        assert kit.op_names(after) == left
        (call,) = after.main.body.fields
        assert call.args == (x,)
