"""Operators of models whose sizes data decide, and the control flow around them.

Each function adds an operator, or several that belong together, to a model that grows. It raises
`Unfit` where no values suit. The file is long because it is one table, like `operators`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from onnx import helper

from fuzz.graph import Unfit
from fuzz.sized_graphs import BOOL, F32, I64, LARGE, Builder, Draw, Size, Value

TABLE: Final[list[Draw]] = []


def _drawn(weight: int = 2) -> Callable[[Draw], Draw]:
    """Decorator: enters a function into the table, so many times."""

    def enter(make: Draw) -> Draw:
        TABLE.extend([make] * weight)
        return make

    return enter


# --- values that decide sizes ---------------------------------------------------------------------


@_drawn(4)
def nonzero(b: Builder) -> None:
    x = b.find(lambda v: v.items < 0 and 1 <= v.rank <= 2 and not v.rough)
    m = b.token(b.elements(x.shape))
    places = b.emit("NonZero", [x], Value("", I64, (x.rank, m), LARGE))
    for axis, size in enumerate(x.shape):
        if b.choices.integer(0, 2):
            row = Value("", I64, (m,), b.most_of(size), below=size)
            b.emit("Gather", [places, b.const(axis)], row, axis=0)
    if b.choices.one_in(3):
        pairs = b.emit("Transpose", [places], Value("", I64, (m, x.rank), LARGE), perm=[1, 0])
        b.emit("GatherND", [x, pairs], replace(x, shape=(m,), below=None))


@_drawn(4)
def compress(b: Builder) -> None:
    x = b.find(lambda v: v.items < 0 and 1 <= v.rank <= 3)
    axis = b.choices.integer(0, x.rank - 1)
    size = x.shape[axis]
    if isinstance(size, int):
        bits = [bool(b.choices.integer(0, 1)) for _ in range(size)]
        mask = b.const(bits, np.bool_)
    else:
        mask = b.find(lambda v: v.items < 0 and v.dtype == BOOL and v.shape == (size,))
    m = b.token(b.most_of(size))
    shape = (*x.shape[:axis], m, *x.shape[axis + 1 :])
    b.emit("Compress", [x, mask], replace(x, shape=shape), axis=axis)


@_drawn(3)
def unique(b: Builder) -> None:
    x = b.find(lambda v: v.items < 0 and v.dtype in (F32, I64) and v.rank in (1, 2) and not v.rough)
    axis = 0 if b.choices.one_in(3) else None
    size = x.shape[0] if axis == 0 or x.rank == 1 else b.token(b.elements(x.shape))
    u = b.token(b.most_of(size))
    shape = (u, *x.shape[1:]) if axis == 0 else (u,)
    made = replace(x, shape=shape)
    first = Value("", I64, (u,), b.most_of(size), below=size)
    inverse = Value("", I64, (size,), b.most_of(size), below=u)
    counts = Value("", I64, (u,), b.most_of(size))
    attrs = {} if axis is None else {"axis": axis}
    count = b.choices.integer(1, 4)
    b.emit("Unique", [x], *(made, first, inverse, counts)[:count],
           sorted=b.choices.pick((1, 0)), **attrs)  # fmt: skip


@_drawn(2)
def suppress(b: Builder) -> None:
    boxes = b.find(lambda v: v.items < 0 and v.dtype == F32 and v.rank == 2 and v.shape[1] == 4)
    n = boxes.shape[0]
    flat = b.emit("ReduceSum", [boxes, b.const([1])], replace(boxes, shape=(n,)), keepdims=0)
    scores = b.emit("Unsqueeze", [flat, b.const([0, 1])], replace(flat, shape=(1, 1, n)))
    whole = b.emit("Unsqueeze", [boxes, b.const([0])], replace(boxes, shape=(1, n, 4)))
    most = b.const([b.choices.pick((5, 1, 200, 0))])
    iou, score = b.const([0.4], np.float32), b.const([b.choices.pick((0.0, 3.0))], np.float32)
    m = b.token(b.most_of(n))
    found = b.emit("NonMaxSuppression", [whole, scores, most, iou, score],
                   Value("", I64, (m, 3), LARGE))  # fmt: skip
    b.emit("Gather", [found, b.const(2)], Value("", I64, (m,), b.most_of(n), below=n), axis=1)


@_drawn(3)
def gather(b: Builder) -> None:
    places = b.find(lambda v: v.items < 0 and v.below is not None and v.rank == 1)
    x = b.find(lambda v: v.items < 0 and places.below in v.shape and v.rank <= 3, among=4)
    axis = x.shape.index(places.below)
    shape = (*x.shape[:axis], places.shape[0], *x.shape[axis + 1 :])
    b.emit("Gather", [x, places], replace(x, shape=shape), axis=axis)


@_drawn(2)
def scatter(b: Builder) -> None:
    places = b.find(lambda v: v.items < 0 and v.below is not None and v.rank == 1)
    data = b.find(
        lambda v: v.items < 0 and v.shape == (places.below,) and v.dtype == F32 and not v.rough
    )
    size = places.shape[0]
    shape = b.emit("Shape", [places], Value("", I64, (1,), LARGE))
    one = b.const([float(b.choices.integer(1, 3))], np.float32)
    updates = b.emit("Expand", [one, shape], Value("", F32, (size,), 3))
    most = data.most + 3 * b.most_of(size)
    b.emit("ScatterElements", [data, places, updates], replace(data, most=most), reduction="add")


@_drawn(2)
def histogram(b: Builder) -> None:
    """How often each number is there: the bins follow from the largest one."""
    w = b.find(lambda v: v.items < 0 and v.dtype == I64 and v.rank == 1 and v.most <= 200)
    more = b.emit("Concat", [w, b.const([0])],
                  replace(w, shape=(b.token(b.most_of(w.shape[0]) + 1),)), axis=0)  # fmt: skip
    top = b.emit("ReduceMax", [more], Value("", I64, (), w.most), keepdims=0)
    bins = b.emit("Add", [top, b.const(1)], Value("", I64, (), w.most + 1))
    m = b.token(w.most + 1)
    most = b.most_of(w.shape[0])
    if b.choices.one_in(3):
        values = b.const([0.0, 1.0], np.float32)
        hot = b.emit("OneHot", [w, b.vector(bins), values], Value("", F32, (w.shape[0], m), 1))
        b.emit("ReduceSum", [hot, b.const([0])], Value("", F32, (m,), most), keepdims=0)
        return
    zeros = b.emit("ConstantOfShape", [b.vector(bins)], Value("", I64, (m,), 0),
                   value=helper.make_tensor("", I64, [1], [0]))  # fmt: skip
    shape = b.emit("Shape", [w], Value("", I64, (1,), LARGE))
    ones = b.emit("Expand", [b.const([1]), shape], replace(w, most=1, below=None))
    b.emit("ScatterElements", [zeros, w, ones], Value("", I64, (m,), most), reduction="add")


# --- values of computed sizes ---------------------------------------------------------------------


@_drawn(3)
def counting(b: Builder) -> None:
    s = b.sized()
    m = b.token(s.most)
    made = Value("", I64, (m,), s.most, below=m)
    if b.choices.one_in(3):
        step = b.choices.pick((2, 3))
        made = replace(made, shape=(b.token(s.most // step + 1),))
        b.emit("Range", [b.const(0), s, b.const(step)], made)
    else:
        b.emit("Range", [b.const(0), s, b.const(1)], made)


@_drawn(2)
def filled(b: Builder) -> None:
    s = b.sized()
    m = b.token(s.most)
    value = helper.make_tensor("", F32, [1], [float(b.choices.integer(0, 3))])
    if b.choices.one_in(2):
        b.emit("ConstantOfShape", [b.vector(s)], Value("", F32, (m,), 3), value=value)
    else:
        b.emit("ConstantOfShape", [b.vector(s, 3)], Value("", F32, (m, 3), 3), value=value)


@_drawn(2)
def expand(b: Builder) -> None:
    x = b.tensor(low=1, high=2)
    s = b.sized()
    m = b.token(s.most)
    wide = b.emit("Unsqueeze", [x, b.const([0])], replace(x, shape=(1, *x.shape)))
    b.emit("Expand", [wide, b.vector(s, *[1] * x.rank)], replace(x, shape=(m, *x.shape)))


@_drawn(2)
def tile(b: Builder) -> None:
    x = b.tensor(low=1, high=2)
    s = b.sized()
    m = b.token(s.most * b.most_of(x.shape[0]))
    b.emit("Tile", [x, b.vector(s, *[1] * (x.rank - 1))], replace(x, shape=(m, *x.shape[1:])))


@_drawn(4)
def cut(b: Builder) -> None:
    x = b.find(lambda v: v.items < 0 and 1 <= v.rank <= 3)
    axis = b.choices.integer(0, x.rank - 1)
    m = b.token(b.most_of(x.shape[axis]))
    made = replace(x, shape=(*x.shape[:axis], m, *x.shape[axis + 1 :]))
    far = b.const([2**31])
    begin, end, step = b.const([0]), far, b.const([1])
    match b.choices.integer(0, 5):
        case 0:
            begin = b.const([1])
        case 1:
            end = b.vector(b.sized())
        case 2:
            begin = b.vector(b.sized())
        case 3:
            begin, end = b.vector(b.sized()), b.vector(b.sized())
        case 4:
            begin, end, step = b.const([-1]), b.const([-(2**31)]), b.const([-1])
        case 5:
            end = b.const([-1])
    b.emit("Slice", [x, begin, end, b.const([axis]), step], made)


@_drawn(2)
def pad(b: Builder) -> None:
    x = b.tensor(low=1, high=2)
    before, after = b.sized(), b.sized()
    m = b.token(b.most_of(x.shape[0]) + before.most + after.most)
    rest = [0] * (x.rank - 1)
    pads = b.vector(before, *rest, after, *rest)
    b.emit("Pad", [x, pads, b.const(float(b.choices.integer(0, 2)), np.float32)],
           replace(x, shape=(m, *x.shape[1:]), most=max(x.most, 2)))  # fmt: skip


@_drawn(2)
def resize(b: Builder) -> None:
    x = b.tensor(low=2, high=2)
    s = b.sized()
    size = b.emit("Add", [s, b.const(1)], replace(s, most=s.most + 1))
    image = b.emit("Unsqueeze", [x, b.const([0, 1])], replace(x, shape=(1, 1, *x.shape)))
    m, k = b.token(size.most), b.choices.pick((3, 4, 7))
    sizes = b.vector(1, 1, size, k)
    b.emit("Resize", [image, None, None, sizes], replace(x, shape=(1, 1, m, k)), mode="nearest",
           coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip


@_drawn(3)
def top(b: Builder) -> None:
    x = b.find(lambda v: v.items < 0 and v.dtype in (F32, I64) and 1 <= v.rank <= 2 and not v.rough)
    axis = b.choices.integer(0, x.rank - 1)
    k = b.within(x.shape[axis], x, axis)
    m = b.token(k.most)
    shape = (*x.shape[:axis], m, *x.shape[axis + 1 :])
    below = x.shape[axis] if x.rank == 1 else None
    places = Value("", I64, shape, b.most_of(x.shape[axis]), below)
    b.emit("TopK", [x, b.vector(k)], replace(x, shape=shape), places, axis=axis,
           largest=b.choices.pick((1, 0)))  # fmt: skip


# --- what maps and reduces ------------------------------------------------------------------------


@_drawn(4)
def elementwise(b: Builder) -> None:
    x = b.small(b.tensor(low=0))
    match b.choices.integer(0, 5):
        case 0:
            b.emit(b.choices.pick(("Neg", "Abs", "Relu", "Identity")), [x], x)
        case 1:
            number = float(b.choices.integer(-2, 3))
            op = b.choices.pick(("Add", "Mul", "Sub", "Max"))
            b.emit(op, [x, b.const(number, np.float32)], replace(x, most=3 * x.most + 3))
        case 2:
            limit = b.const(float(b.choices.pick((0, 2, -3, 6))), np.float32)
            b.emit(b.choices.pick(("Greater", "Less", "Equal")), [x, limit],
                   Value("", BOOL, x.shape))  # fmt: skip
        case 3:
            y = b.small(b.find(lambda v: (v.dtype, v.shape, v.items) == (F32, x.shape, -1)))
            op = b.choices.pick(("Add", "Mul", "Sub", "Max", "Min"))
            b.emit(op, [x, y], replace(x, most=x.most * y.most + x.most + y.most,
                                       rough=x.rough or y.rough))  # fmt: skip
        case 4:
            mask = b.find(lambda v: (v.dtype, v.shape, v.items) == (BOOL, x.shape, -1))
            b.emit("Where", [mask, x, b.const(1.0, np.float32)], x)
        case 5:
            b.emit(b.choices.pick(("Sigmoid", "Tanh")), [x], replace(x, most=1, rough=True))


@_drawn(2)
def numbers(b: Builder) -> None:
    w = b.find(lambda v: v.items < 0 and v.dtype == I64 and v.rank == 1)
    match b.choices.integer(0, 2):
        case 0:
            limit = b.const(b.choices.pick((1, 3, 40)))
            b.emit(b.choices.pick(("Greater", "Less", "Equal")), [w, limit],
                   Value("", BOOL, w.shape))  # fmt: skip
        case 1:
            small = b.emit("Mod", [w, b.const(7)], replace(w, most=6, below=None))
            b.emit("Cast", [small], replace(small, dtype=F32), to=F32)
        case 2:
            b.emit("Mod", [w, b.const(7)], replace(w, most=6, below=None))


@_drawn(3)
def reduction(b: Builder) -> None:
    x = b.small(b.tensor())
    axis = b.choices.integer(0, x.rank - 1)
    most = x.most * max(1, b.most_of(x.shape[axis]))
    if most > 1 << 22:
        raise Unfit
    if b.choices.one_in(3):
        b.emit("CumSum", [x, b.const(axis)], replace(x, most=most))
        return
    keep = b.choices.integer(0, 1)
    shape = (*x.shape[:axis], *([1] if keep else []), *x.shape[axis + 1 :])
    axes = b.const([axis])
    op = b.choices.pick(("ReduceSum", "ReduceMax", "ReduceMin"))
    if op == "ReduceSum":
        b.emit(op, [x, axes], replace(x, shape=shape, most=most), keepdims=keep)
    else:
        b.emit(op, [x, axes], replace(x, shape=shape, most=most, rough=True), keepdims=keep)


@_drawn(2)
def place_of_largest(b: Builder) -> None:
    x = b.tensor()
    axis = b.choices.integer(0, x.rank - 1)
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    made = Value("", I64, shape, b.most_of(x.shape[axis]), below=x.shape[axis])
    b.emit("ArgMax", [x], made, axis=axis, keepdims=0)


@_drawn(2)
def softmax(b: Builder) -> None:
    x = b.small(b.tensor())
    axis = b.choices.integer(0, x.rank - 1)
    b.emit("Softmax", [x], replace(x, most=1, rough=True), axis=axis)


@_drawn(3)
def product(b: Builder) -> None:
    x = b.small(b.tensor(low=2, high=2))
    n, k = x.shape
    if isinstance(k, int) and b.choices.integer(0, 2):
        m = b.choices.pick((4, 1, 9))
        weights = np.arange(k * m).reshape(k, m) % 5 - 2
        b.emit("MatMul", [x, b.const(weights, np.float32)],
               replace(x, shape=(n, m), most=2 * k * x.most))  # fmt: skip
        return
    turned = b.emit("Transpose", [x], replace(x, shape=(k, n)), perm=[1, 0])
    y = b.small(b.find(lambda v: v.items < 0 and v.dtype == F32 and v.rank == 2
                       and v.shape[0] == n and not v.rough))  # fmt: skip
    most = x.most * y.most * b.most_of(n)
    if most > 1 << 23:
        raise Unfit
    b.emit("MatMul", [turned, y], replace(x, shape=(k, y.shape[1]), most=most))


@_drawn(1)
def convolution(b: Builder) -> None:
    x = b.small(b.find(lambda v: v.items < 0 and v.dtype == F32 and v.rank == 2 and not v.rough
                       and isinstance(v.shape[1], int) and v.shape[1] > 0))  # fmt: skip
    n, k = x.shape
    assert isinstance(k, int)
    turned = b.emit("Transpose", [x], replace(x, shape=(k, n)), perm=[1, 0])
    image = b.emit("Unsqueeze", [turned, b.const([0])], replace(x, shape=(1, k, n)))
    weights = np.arange(6 * k * 3).reshape(6, k, 3) % 5 - 2
    b.emit("Conv", [image, b.const(weights, np.float32)],
           replace(x, shape=(1, 6, n), most=6 * k * x.most), pads=[1, 1])  # fmt: skip


@_drawn(3)
def reshaped(b: Builder) -> None:
    x = b.find(lambda v: v.items < 0 and 1 <= v.rank <= 3 and not v.rough)
    made = replace(x, below=None)
    match b.choices.integer(0, 3):
        case 0:
            flat = b.token(b.elements(x.shape))
            b.emit("Reshape", [x, b.const([-1])], replace(made, shape=(flat,)))
        case 1:
            b.emit("Unsqueeze", [x, b.const([0])], replace(made, shape=(1, *x.shape)))
        case 2:
            order = b.choices.order(x.rank)
            b.emit("Transpose", [x], replace(made, shape=tuple(x.shape[a] for a in order)),
                   perm=order)  # fmt: skip
        case 3:
            if x.rank == 1:
                raise Unfit
            flat = b.token(b.elements(x.shape[:2]))
            sizes = b.emit("Shape", [x], Value("", I64, (x.rank - 2,), LARGE), start=2)
            target = b.emit("Concat", [b.const([-1]), sizes],
                            Value("", I64, (x.rank - 1,), LARGE), axis=0)  # fmt: skip
            if any(not isinstance(size, int) or not size for size in x.shape[2:]):
                raise Unfit
            b.emit("Reshape", [x, target], replace(made, shape=(flat, *x.shape[2:])))


@_drawn(4)
def concat(b: Builder) -> None:
    x = b.find(lambda v: v.items < 0 and 1 <= v.rank <= 3 and not v.rough)
    axis = b.choices.integer(0, x.rank - 1)

    def rest(v: Value) -> tuple[Size, ...]:
        return (*v.shape[:axis], *v.shape[axis + 1 :])

    parts = [x]
    for _ in range(b.choices.integer(1, 2)):
        parts.append(b.find(lambda v: v.items < 0 and v.dtype == x.dtype and v.rank == x.rank
                            and rest(v) == rest(x) and not v.rough))  # fmt: skip
    m = b.token(sum(b.most_of(part.shape[axis]) for part in parts))
    made = replace(x, shape=(*x.shape[:axis], m, *x.shape[axis + 1 :]), below=None)
    b.emit("Concat", parts, replace(made, most=max(p.most for p in parts)), axis=axis)


# --- sequences ------------------------------------------------------------------------------------


def _sequence(b: Builder, least: int) -> Value:
    """Returns a sequence of tensors that differ in their first size."""
    if b.choices.integer(0, 1):
        return b.find(lambda v: v.items >= least)
    x = b.tensor(low=1, high=2)
    fits = [v for v in b.scope.visible() if _alike(v, x)]
    parts = [x, *(b.choices.pick(fits[:6]) for _ in range(b.choices.integer(0, 2)))]
    if len(parts) < least:
        raise Unfit
    size = b.token(max(b.most_of(p.shape[0]) for p in parts))
    made = replace(x, shape=(size, *x.shape[1:]), items=len(parts), most=max(p.most for p in parts))
    return b.emit("SequenceConstruct", parts, made)


def _alike(v: Value, x: Value) -> bool:
    same = (v.items, v.dtype, v.rank, v.rough) == (-1, x.dtype, x.rank, False)
    return same and v.shape[1:] == x.shape[1:]


@_drawn(3)
def sequences(b: Builder) -> None:
    way = b.choices.integer(0, 4)
    sequence = _sequence(b, 0 if way == 0 else 1)
    item = replace(sequence, items=-1)
    place = b.const(b.choices.pick((0, -1)))
    size = b.token(b.most_of(sequence.shape[0]))
    match way:
        case 0:
            x = b.find(lambda v: _alike(v, item))
            size = b.token(max(b.most_of(sequence.shape[0]), b.most_of(x.shape[0])))
            b.emit("SequenceInsert", [sequence, x],
                   replace(sequence, items=sequence.items + 1, most=max(x.most, sequence.most),
                           shape=(size, *item.shape[1:])))  # fmt: skip
        case 1:
            b.emit("SequenceAt", [sequence, place], replace(item, shape=(size, *item.shape[1:])))
        case 2:
            b.emit("SequenceErase", [sequence, place],
                   replace(sequence, items=sequence.items - 1))  # fmt: skip
        case 3:
            size = b.token(max(1, sequence.items) * b.most_of(sequence.shape[0]))
            b.emit("ConcatFromSequence", [sequence],
                   replace(item, shape=(size, *item.shape[1:])), axis=0)  # fmt: skip
        case 4:
            b.emit("SequenceLength", [sequence], Value("", I64, (), max(1, sequence.items)))


@_drawn(1)
def split(b: Builder) -> None:
    x = b.tensor(low=1, high=2)
    part = b.choices.pick((1, 2, 5))
    whole = replace(x, items=0, shape=(b.token(part), *x.shape[1:]))
    pieces = b.emit("SplitToSequence", [x, b.const(part)], whole, axis=0)
    extra = b.find(lambda v: _alike(v, x))
    most = max(x.most, extra.most)
    size = b.token(max(part, b.most_of(extra.shape[0])))
    longer = replace(whole, items=1, shape=(size, *x.shape[1:]), most=most)
    longer = b.emit("SequenceInsert", [pieces, extra], longer)
    size = b.token(b.most_of(x.shape[0]) + b.most_of(extra.shape[0]))
    joined = replace(x, shape=(size, *x.shape[1:]), most=most)
    b.emit("ConcatFromSequence", [longer], joined, axis=0)


# --- control flow ---------------------------------------------------------------------------------


def _param(b: Builder, like: Value) -> Value:
    made = replace(like, name=b.fresh("p"))
    b.scope.values.append(made)
    return made


@_drawn(3)
def branches(b: Builder) -> None:
    x = b.tensor(low=1, high=2)
    condition = b.condition()
    outer, bodies, ends = b.scope, [], []
    for _ in range(2):
        b.inside()
        b.grow(b.choices.integer(0, 3))
        end = b.find(lambda v: (v.items, v.dtype, v.rank) == (-1, F32, x.rank), among=3)
        end = b.emit("Identity", [end], end)
        ends.append(end)
        bodies.append(b.body(outer, [], [end]))
    first, second = ends
    shape = tuple(
        s if s == t else b.token(max(b.most_of(s), b.most_of(t)))
        for s, t in zip(first.shape, second.shape, strict=True)
    )
    made = replace(first, shape=shape, most=max(first.most, second.most), below=None,
                   rough=first.rough or second.rough)  # fmt: skip
    b.emit("If", [condition], made, then_branch=bodies[0], else_branch=bodies[1])


def _next(b: Builder, state: Value, was: Value) -> Value:
    """Returns the next value of a loop's state, whose first size may change."""
    rest = state.shape[1:]
    row = (b.choices.integer(1, 2), *rest)
    match b.choices.integer(0, 7):
        case 0 if all(isinstance(size, int) for size in rest):  # grows by a number
            new = b.const(np.ones(row), np.float32 if state.dtype == F32 else np.int64)
            m = b.token(LARGE)
            parts = [state, new] if b.choices.integer(0, 2) else [new, state]
            return b.emit("Concat", parts, replace(state, shape=(m, *rest)), axis=0)
        case 1:  # grows by what data decide
            new = b.find(lambda v: _alike(v, state))
            m = b.token(LARGE)
            longer = b.emit("Concat", [state, new], replace(state, shape=(m, *rest)), axis=0)
            return _limited(b, longer)
        case 2:  # shrinks by a row
            m = b.token(b.most_of(state.shape[0]))
            far = b.const([2**31])
            return b.emit("Slice", [state, b.const([1]), far, b.const([0])],
                          replace(state, shape=(m, *rest)))  # fmt: skip
        case 3:  # shrinks as data decide
            flat = state
            if state.rank == 2:
                flat = b.emit("ReduceSum", [state, b.const([1])],
                              replace(state, shape=state.shape[:1]), keepdims=0)  # fmt: skip
            zero = b.const(b.choices.integer(-1, 2), np.float32 if state.dtype == F32 else np.int64)
            mask = b.emit("Greater", [flat, zero], Value("", BOOL, state.shape[:1]))
            m = b.token(b.most_of(state.shape[0]))
            return b.emit("Compress", [state, mask], replace(state, shape=(m, *rest)), axis=0)
        case 4:  # an earlier value again
            return b.emit("Identity", [was], was)
        case 5:
            return b.emit("Identity", [state], state)
    b.grow(b.choices.integer(1, 2))
    found = b.find(lambda v: _alike(v, state) and v.rank == state.rank, among=3)
    return _limited(b, found)


def _limited(b: Builder, x: Value) -> Value:
    """Returns at most 70 rows of small numbers."""
    m = b.token(70)
    ends = b.const([0]), b.const([70]), b.const([0])
    made = b.emit("Slice", [x, *ends], replace(x, shape=(m, *x.shape[1:]), below=None))
    if x.dtype == F32:
        bounds = b.const(-50, np.float32), b.const(50, np.float32)
        return b.emit("Clip", [made, *bounds], replace(made, most=50))
    return b.emit("Mod", [made, b.const(50)], replace(made, most=49))


@_drawn(8)
def loop(b: Builder) -> None:
    states = [
        b.find(lambda v: v.items < 0 and v.dtype in (F32, I64) and 1 <= v.rank <= 2
               and not v.rough and v.most <= 200)
        for _ in range(b.choices.integer(1, 2))
    ]  # fmt: skip
    trips: Value | None = None
    way = b.choices.integer(0, 3)
    if way == 0:
        trips = b.const(b.choices.pick((3, 0, 1, 2, 9)))
    elif way == 1:
        s = b.sized()
        trips = b.emit("Min", [s, b.const(6)], replace(s, most=6))
    elif way == 2:
        trips = b.const(b.choices.pick((4, 70)))
    start = b.condition() if trips is None or b.choices.one_in(2) else None
    outer = b.inside()
    step = _param(b, Value("", I64, (), 70))
    go_on = _param(b, Value("", BOOL, ()))
    changing = [replace(v, shape=(b.token(70), *v.shape[1:]), below=None) for v in states]
    params = [_param(b, v) for v in changing]
    b.grow(b.choices.integer(0, 2))
    ends = [_next(b, p, b.choices.pick(params) if len({(q.dtype, q.shape[1:]) for q in params}) == 1
                  else p) for p in params]  # fmt: skip
    if trips is None or b.choices.one_in(3):
        way = b.choices.integer(0, 2)
        if way == 0:
            keep = b.emit("Less", [step, b.const(b.choices.pick((3, 0, 1, 20)))],
                          Value("", BOOL, ()))  # fmt: skip
        else:
            of = b.choices.pick(ends)
            whole = b.emit("Shape", [of], Value("", I64, (of.rank,), LARGE))
            size = b.emit("Gather", [whole, b.const(0)], Value("", I64, (), 200), axis=0)
            op, limit = b.choices.pick((("Less", 20), ("Greater", 2), ("Less", 66)))
            more = b.emit(op, [size, b.const(limit)], Value("", BOOL, ()))
            early = b.emit("Less", [step, b.const(12)], Value("", BOOL, ()))
            keep = b.emit("And", [more, early], Value("", BOOL, ()))
    else:
        keep = b.emit("Identity", [go_on], go_on)
    rows, results = [], []
    for state, end in zip(states, ends, strict=True):
        same = end.shape == state.shape
        shape = state.shape if same else (b.token(300), *state.shape[1:])
        results.append(replace(state, shape=shape, below=None, most=max(50, state.most)))
    if b.choices.one_in(2):
        row = b.find(lambda v: v.items < 0 and all(isinstance(s, int) for s in v.shape)
                     and v.rank <= 2 and not v.rough)  # fmt: skip
        rows.append(b.emit("Identity", [row], row))
        results.append(replace(row, shape=(b.token(70), *row.shape), below=None))
    body = b.body(outer, [step, go_on, *params], [keep, *ends, *rows])
    b.emit("Loop", [trips, start, *states], *results, body=body)


@_drawn(2)
def scan(b: Builder) -> None:
    x = b.small(b.tensor(low=2, high=2))
    n, k = x.shape
    if not isinstance(k, int):
        raise Unfit
    state = b.const(np.zeros(k), np.float32)
    outer = b.inside()
    was = _param(b, Value("", F32, (k,), 50))
    item = _param(b, Value("", F32, (k,), x.most))
    both = b.emit("Add", [was, item], Value("", F32, (k,), x.most + 50))
    bounds = b.const(-50, np.float32), b.const(50, np.float32)
    now = b.emit("Clip", [both, *bounds], Value("", F32, (k,), 50))
    out = b.emit("Mul", [now, b.const(2, np.float32)], Value("", F32, (k,), 100))
    body = b.body(outer, [was, item], [now, out])
    b.emit("Scan", [state, x], Value("", F32, (k,), 50), Value("", F32, (n, k), 100),
           body=body, num_scan_inputs=1)  # fmt: skip
