"""Weights of low rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Final

import numpy as np

from clew.advice.candidate import Array, Candidate, Change
from clew.advice.graphs import constant, like, op, op_of, replacing, shape_of
from clew.advice.rule import AdviceRule, register_advice
from clew.advice.subject import Subject, layers_of
from clew.ir.expr import Call, Expr

_LEAST_SIZE: Final = 16  # of both sides of a weight
_WORTH: Final = 0.7  # of the products, that may remain
_SAVED: Final = 0.8  # of the time of the products that disappear
_TOLERANCE: Final = 1e-5  # relative to the largest singular value
_MOST_ELEMENTS: Final = 1 << 24
_SKETCHED: Final = 64
_LARGE: Final = 0.03  # of a call, that a layer takes for which more is tried
_MORE: Final = 4  # columns of the sketch beyond the largest useful rank


@register_advice
class LowRank(AdviceRule):
    """A weight of rank r, such as low-rank training or pruning produces, is a product of two
    matrices, so the layer becomes two: one to r channels, and one from r channels.
    """

    name: ClassVar[str] = "low-rank"
    title: ClassVar[str] = "weights that are products of two smaller matrices"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields a candidate for each layer whose weight has a low rank."""
        for call in subject.calls:
            weight = _weight(subject, call)
            if weight is None:
                continue
            matters = subject.ns(layers_of([call])) > _LARGE * subject.call_ns
            rank = _rank(weight, thorough=matters)
            if not rank:
                continue
            outputs, inputs = weight.shape
            before, after = outputs * inputs, rank * (outputs + inputs)
            yield Candidate(
                self.name,
                f"split a layer of {inputs} inputs and {outputs} outputs into two of rank {rank}",
                f"its weight has rank {rank}: {before:,} products become {after:,}",
                "replace the layer by two in the model's source, or let --apply do it",
                layers_of([call]),
                "graph",
                "rounding",
                Change(replacing(self.name, call, [call.args[0]], _split(call, weight, rank))),
                share=_SAVED * (1.0 - after / before),
            )


def _weight(subject: Subject, call: Call) -> Array | None:
    """Returns the weight of a layer as f32[outputs, inputs], if it has one."""
    name = op_of(call)
    if name not in ("nn.dense", "nn.conv2d") or dtype_is_not_f32(call):
        return None
    weight = subject.value(call.args[1]) if subject.is_fixed(call.args[1]) else None
    if weight is None or shape_of(call) is None or op_of(call.args[1]) == "dequantize":
        return None
    if name == "nn.dense":
        layout = call.attrs.weight_layout
        if layout not in ("NK", "KN") or weight.ndim != 2 or call.attrs.rows:
            return None
        return weight if layout == "NK" else weight.T
    plain = call.attrs.weight_layout == "OIHW" and call.attrs.data_layout == "NCHW"
    if not plain or call.attrs.groups != 1 or call.attrs.live:
        return None
    return weight.reshape(weight.shape[0], -1)


def dtype_is_not_f32(call: Call) -> bool:
    """Whether a call computes on values other than f32."""
    return any(getattr(n.type, "dtype", "") != "f32" for n in (call, *call.args))


def _rank(weight: Array, *, thorough: bool) -> int:
    """Returns the rank of a weight if it is low enough to save work, else 0; without `thorough`,
    only one below `_SKETCHED`, whose test takes a fraction of the time. A sketch, the weight times
    a few random vectors, has the weight's rank as long as that is less than their number.
    """
    outputs, inputs = weight.shape
    most = int(_WORTH * outputs * inputs / (outputs + inputs))
    if min(outputs, inputs) < _LEAST_SIZE or weight.size > _MOST_ELEMENTS or most < 1:
        return 0
    for count in (_SKETCHED, most + _MORE) if thorough else (_SKETCHED,):
        count = min(count, most + _MORE, inputs)
        sketch = _sketch(weight, count).astype(np.float64)
        if not np.isfinite(sketch).all():
            return 0
        values = np.sqrt(np.maximum(np.linalg.eigvalsh(sketch.T @ sketch)[::-1], 0.0))
        if not values[0] > 0:
            return 0
        rank = int((values > _TOLERANCE * values[0]).sum())
        if rank < count and rank <= most:
            return rank
    return 0


def _sketch(weight: Array, count: int) -> Array:
    """Returns a weight times random vectors, which span its columns if they are more than its
    rank.
    """
    random = np.random.default_rng(0).standard_normal((weight.shape[1], count))
    found: Array = weight @ random.astype(np.float32)
    return found


def _split(call: Call, weight: Array, rank: int) -> Callable[[Expr], Expr]:
    def build(x: Expr) -> Expr:
        basis, _ = np.linalg.qr(_sketch(weight, min(rank + _MORE, weight.shape[1])))
        left, values, right = np.linalg.svd(basis.T @ weight, full_matrices=False)
        root = np.sqrt(values[:rank])
        first, second = root[:, None] * right[:rank], (basis @ left[:, :rank]) * root
        if op_of(call) == "nn.dense":
            return op("nn.dense", op("nn.dense", x, constant(first)), constant(second))
        _, channels, height, width = call.args[1].tensor.concrete
        inner = like(call, x, constant(first.reshape(rank, channels, height, width)), channels=0)
        return op("nn.conv2d", inner, constant(second.reshape(-1, rank, 1, 1)))

    return build
