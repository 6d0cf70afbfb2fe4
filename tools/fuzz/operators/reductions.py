"""Reductions and normalizations."""

from __future__ import annotations

from onnx import TensorProto

from fuzz.dtypes import BOOL, FLOATS
from fuzz.graph import Grower, Unfit
from fuzz.operators import operator
from fuzz.operators.shapes import axes_of

_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip


@operator(*_REDUCTIONS, weight=3)
def reduction(g: Grower) -> object:
    """Of whole numbers none whose mean, root or logarithm would have to be rounded."""
    op = g.schema.name
    only = FLOATS if op in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean") else None
    positive = op == "ReduceLogSum" and not g.choices.one_in(4)
    x = g.tensor(style="positive" if positive else "usual", among=only)
    if 0 in x.sizes and op in ("ReduceMax", "ReduceMin", "ReduceMean") and not g.choices.one_in(3):
        raise Unfit
    keep = g.choices.pick((None, 0, 1))
    way = g.choices.integer(0, 4)
    if way == 0:
        return g.emit(op, [x], keepdims=keep)
    axes = g.axes(x.rank, 1)
    if g.version("") < 11:
        axes = [a % x.rank for a in axes]
    if not axes and not g.takes("axes"):
        raise Unfit
    if way == 1 and g.takes("axes"):
        noop = g.choices.pick((1, 0))
        return g.emit(
            op,
            [x, g.ints([])] if g.choices.integer(0, 1) else [x],
            noop_with_empty_axes=noop,
            keepdims=keep,
        )
    inputs, attributes = axes_of(g, axes)
    return g.emit(op, [x, *inputs], keepdims=keep, **attributes)


@operator("ArgMax", "ArgMin")
def arg_reduction(g: Grower) -> object:
    x = g.tensor(ranks=(1, 4), nonempty=True)
    last = g.choices.pick((None, 1)) if g.version("") >= 12 else None
    axis = g.axis(x.rank) if g.version("") >= 11 else g.choices.integer(0, x.rank - 1)
    return g.emit(
        g.schema.name, [x], axis=axis, keepdims=g.choices.pick((None, 0)), select_last_index=last
    )


@operator("Softmax", "LogSoftmax", "Hardmax", weight=3)
def softmax(g: Grower) -> object:
    x = g.tensor(ranks=(1, 4))
    axis = g.axis(x.rank) if g.version("") >= 11 else g.choices.integer(0, x.rank - 1)
    default = x.rank > 1 or g.version("") >= 13  # it was the second axis once
    return g.emit(g.schema.name, [x], axis=None if default and g.choices.one_in(4) else axis)


@operator("LayerNormalization", "RMSNormalization", weight=3)
def layer_normalization(g: Grower) -> object:
    op = g.schema.name
    x = g.tensor(ranks=(1, 4), nonempty=True)
    axis = g.axis(x.rank)
    shape = x.sizes[axis % x.rank :]
    scale = g.leaf(x.dtype, shape)
    epsilon = g.choices.pick((None, 1e-3))
    if op == "RMSNormalization":
        return g.emit(op, [x, scale], axis=axis, epsilon=epsilon)
    bias = g.leaf(x.dtype, shape) if g.choices.integer(0, 1) else None
    return g.emit(op, [x, scale, bias], g.choices.pick((1, 1, 1, 3)), axis=axis, epsilon=epsilon)


@operator("BatchNormalization")
def batch_normalization(g: Grower) -> object:
    x = g.tensor(ranks=(2, 4), nonempty=True)
    c = x.sizes[1:2]
    usual = [g.leaf(x.dtype, c, s) for s in ("usual", "usual", "usual", "positive")]
    training = g.version("") >= 14 and g.choices.one_in(5)
    return g.emit(
        "BatchNormalization",
        [x, *usual],
        3 if training else 1,
        epsilon=g.choices.pick((None, 1e-2)),
        training_mode=1 if training else None,
    )


@operator("InstanceNormalization")
def instance_normalization(g: Grower) -> object:
    x = g.tensor(ranks=(3, 4), nonempty=True)
    return g.emit(
        "InstanceNormalization", [x, g.leaf(x.dtype, x.sizes[1:2]), g.leaf(x.dtype, x.sizes[1:2])]
    )


@operator("GroupNormalization")
def group_normalization(g: Grower) -> object:
    x = g.tensor(ranks=(3, 4), nonempty=True)
    if g.version("") < 21:
        raise Unfit
    groups = g.choices.pick([n for n in (1, 2, 3, 4, 8, x.sizes[1]) if x.sizes[1] % n == 0])
    return g.emit(
        "GroupNormalization",
        [x, g.leaf(x.dtype, x.sizes[1:2]), g.leaf(x.dtype, x.sizes[1:2])],
        num_groups=groups,
    )


@operator("LpNormalization")
def lp_normalization(g: Grower) -> object:
    x = g.tensor(ranks=(1, 4), nonempty=True)
    return g.emit("LpNormalization", [x], axis=g.axis(x.rank), p=g.choices.pick((None, 1, 2)))


@operator("MeanVarianceNormalization")
def mean_variance(g: Grower) -> object:
    x = g.tensor(ranks=(2, 4), nonempty=True)
    axes = None if x.rank == 4 and g.choices.integer(0, 1) else g.axes(x.rank, 1)
    return g.emit("MeanVarianceNormalization", [x], axes=axes)


@operator("LRN")
def lrn(g: Grower) -> object:
    x = g.tensor(ranks=(3, 4), nonempty=True)
    return g.emit(
        "LRN",
        [x],
        size=g.choices.pick((3, 1, 5, 2)),
        alpha=g.choices.pick((None, 0.1)),
        beta=g.choices.pick((None, 0.5)),
        bias=g.choices.pick((None, 2.0)),
    )


@operator("Dropout")
def dropout(g: Grower) -> object:
    """As it runs when nothing is learned: chance cannot be compared."""
    x = g.tensor(0, among=FLOATS)
    if not g.takes("ratio"):
        return g.emit(
            "Dropout", [x], g.choices.pick((1, 2)) if g.version("") >= 10 else 1, ratio=0.3
        )
    ratio = g.scalar(0.3, TensorProto.FLOAT, None) if g.choices.one_in(2) else None
    mode = g.scalar(False, BOOL) if ratio and g.choices.one_in(2) else None
    return g.emit("Dropout", [x, ratio, mode], g.choices.pick((1, 2)))


@operator("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(g: Grower) -> object:
    op = g.schema.name
    x = g.tensor(ranks=(2, 4), nonempty=True)
    c = x.sizes[1]
    labels = g.leaf(TensorProto.INT64, (x.sizes[0], *x.sizes[2:]), f"0:{c}")
    weight = g.leaf(x.dtype, (c,), "positive") if g.choices.one_in(2) else None
    outputs = g.choices.pick((1, 2)) if op.startswith("Soft") else 1
    ignore = g.choices.pick((None, 0)) if c > 1 and g.choices.one_in(3) else None
    return g.emit(
        op,
        [x, labels, weight],
        outputs,
        reduction=g.choices.pick((None, "sum", "none", "mean")),
        ignore_index=ignore,
    )
