"""Branches, loops and scans: graphs inside the graph, which read values from outside."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from fuzz.dtypes import BOOL, EVERYDAY, FLOATS
from fuzz.graph import Grower, Scope, Unfit, Value
from fuzz.operators import operator

I64 = TensorProto.INT64
_SHAPES = ("Tanh", "Relu", "Neg", "Abs", "Sigmoid", "Identity")


def _chain(g: Grower, x: Value, steps: int) -> Value:
    """Returns `x` after some operators that keep its type."""
    start = x
    for _ in range(steps):
        way = g.choices.integer(0, 3)
        if way == 0 and x.dtype in FLOATS:
            (x,) = g.emit(g.choices.pick(_SHAPES), [x])
        elif way <= 2 and x.dtype != BOOL and g.version("") >= 14:
            y = g.partner(x)
            if np.broadcast_shapes(y.sizes, x.sizes) != x.sizes:
                raise Unfit
            (x,) = g.emit(g.choices.pick(("Add", "Mul", "Sub")), [x, y])
        else:
            (x,) = g.emit("Identity", [x])
        if (x.dtype, x.shape) != (start.dtype, start.shape):
            raise Unfit
    return x


def _inside(g: Grower) -> Scope:
    depth, scope = 0, g.scope
    while scope.parent is not None:
        depth, scope = depth + 1, scope.parent
    if depth >= 2:
        raise Unfit
    g.scope = Scope(g.scope)
    return g.scope


def _new(g: Grower, scope: Scope, like: Value) -> Value:
    value = Value(g.fresh("p"), like.dtype, like.shape)
    scope.values.append(value)
    return value


def _sometimes_nested(g: Grower, x: Value) -> Value:
    """Returns `x`, perhaps after another construct around it."""
    if not g.choices.one_in(6):
        return x
    make = g.choices.pick((branches_of, loop_of))
    return make(g, x)[0]


def branches_of(g: Grower, x: Value) -> list[Value]:
    """Adds an If whose results are typed like `x`."""
    condition = g.leaf(BOOL, g.choices.pick(((), (1,))))
    outer, bodies = g.scope, []
    for _ in range(2):
        inner = _inside(g)
        result = _sometimes_nested(g, _chain(g, x, g.choices.pick((1, 2, 3))))
        if result.name not in {o for n in inner.nodes for o in n.output}:
            (result,) = g.emit("Identity", [result])
        bodies.append(g.body(inner, [], [result]))
        g.scope = outer
    return g.emit("If", [condition], types=[x.proto], then_branch=bodies[0], else_branch=bodies[1])


def loop_of(g: Grower, x: Value) -> list[Value]:
    """Adds a Loop that carries a value typed like `x`; it may stack something too."""
    outer = g.scope
    trips = g.choices.pick((2, 1, 3, 0, 5))
    count = g.known(np.array(trips, np.int64), I64, None) if g.choices.integer(0, 3) else None
    go_on = g.scalar(True, BOOL, None) if count is None or g.choices.integer(0, 1) else None
    inner = _inside(g)
    step = _new(g, inner, Value("", I64, ()))
    condition = _new(g, inner, Value("", BOOL, ()))
    carried = _new(g, inner, x)
    result = _sometimes_nested(g, _chain(g, carried, g.choices.pick((1, 2))))
    if result is carried:
        (result,) = g.emit("Identity", [result])
    if count is None or g.choices.one_in(3):
        (keep,) = g.emit("Less", [step, g.scalar(trips - 1, I64)])
    else:
        (keep,) = g.emit("Identity", [condition])
    outputs, types = [keep, result], [x.proto]
    if g.choices.one_in(2):
        stacked = g.emit("Identity", [g.choices.pick((result, carried))])[0]
        outputs.append(stacked)
        types.append(helper.make_tensor_type_proto(x.dtype, [None, *x.shape]))
    body = g.body(inner, [step, condition, carried], outputs)
    g.scope = outer
    results = g.emit("Loop", [count, go_on, x], len(types), types=types, body=body)
    return results


@operator("If", weight=4)
def branches(g: Grower) -> object:
    return branches_of(g, g.operand(g.dtypes("V", EVERYDAY)))


@operator("Loop", weight=4)
def loop(g: Grower) -> object:
    return loop_of(g, g.operand(g.dtypes("V", EVERYDAY)))


@operator("Scan", weight=3)
def scan(g: Grower) -> object:
    if g.version("") < 9:
        raise Unfit
    x = g.operand(g.dtypes("V", EVERYDAY), (1, 4), nonempty=True)
    axis = g.axis(x.rank) if g.version("") >= 11 else g.choices.integer(0, x.rank - 1)
    rest = tuple(s for n, s in enumerate(x.sizes) if n != axis % x.rank)
    state = g.leaf(x.dtype, rest)
    outer = g.scope
    inner = _inside(g)
    was = _new(g, inner, state)
    item = _new(g, inner, state)
    op = "Add" if x.dtype != BOOL else "And"
    (now,) = g.emit(op, [was, item])
    (out,) = g.emit("Identity", [_chain(g, now, g.choices.pick((0, 1, 2)))])
    body = g.body(inner, [was, item], [now, out])
    g.scope = outer
    to = g.axis(x.rank) if g.version("") >= 11 and g.choices.one_in(2) else None
    place = 0 if to is None else to % x.rank
    shape = [*rest[:place], x.sizes[axis], *rest[place:]]
    types = [state.proto, helper.make_tensor_type_proto(x.dtype, shape)]
    way = g.choices.pick((None, 1)), g.choices.pick((None, 1))
    return g.emit(
        "Scan", [state, x], 2, types=types, body=body, num_scan_inputs=1,
        scan_input_axes=[axis], scan_output_axes=None if to is None else [to],
        scan_input_directions=way[0] and [1], scan_output_directions=way[1] and [1],
    )  # fmt: skip
