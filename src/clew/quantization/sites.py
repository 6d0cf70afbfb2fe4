"""The products of a model that can be quantized: layers whose weight is constant."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.ir.expr import Call, Constant, Expr, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ir.visit import post_order, users
from clew.ops.registry import Op

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Site:
    """A product with a constant weight, which is quantized, or stays in floats, as a whole.

    `name` is that of its layer, with a number if the layer has several. `channel` is the axis of
    the weight for output channels. `bias` is the addition of a constant per output channel that
    alone reads the product, if there is one.
    """

    name: str
    call: Call
    channel: int
    bias: Call | None = None

    @property
    def data(self) -> Expr:
        """The operand that calls bring."""
        return self.call.args[0]

    @property
    def weight(self) -> Constant:
        """The constant operand."""
        weight = self.call.args[1]
        assert isinstance(weight, Constant)
        return weight

    @cached_property
    def bias_constant(self) -> Constant | None:
        """The constant that is added."""
        if self.bias is None:
            return None
        return next(a for a in self.bias.args if isinstance(a, Constant))

    @property
    def result(self) -> Call:
        """The product with its bias."""
        return self.bias or self.call

    @property
    def channels(self) -> int:
        """The number of output channels."""
        return int(self.weight.data.shape[self.channel])

    @property
    def inputs(self) -> int:
        """The number of input channels."""
        weight = self.weight.data
        if weight.ndim == 2:
            return int(weight.shape[1 - self.channel])
        return int(weight.shape[1]) * int(self.call.attrs.groups)

    @property
    def is_matrix(self) -> bool:
        """Whether the weight is a matrix, not the taps of a convolution."""
        return self.weight.data.ndim == 2

    @property
    def channel_axis(self) -> int:
        """The axis of channels in the operand and in the result, counted from the end."""
        return -1 - _spatial_of(self.call)


def sites_of(module: Module) -> list[Site]:
    """Returns the sites in `main`, in order. Products inside branches and loops are none."""
    using = users(module.main)
    calls = [n for n in post_order(module.main.body) if isinstance(n, Call)]
    products = [(c, axis) for c in calls if (axis := _channel_axis(c)) is not None]
    layers = [next(iter(c.span.layers), "") or c.op_name for c, _ in products]
    counts, seen = Counter(layers), Counter[str]()
    found: list[Site] = []
    for layer, (call, axis) in zip(layers, products, strict=True):
        seen[layer] += 1
        name = f"{layer}#{seen[layer]}" if counts[layer] > 1 else layer
        found.append(Site(name, call, axis, _bias(call, using, call.args[1].tensor, axis)))
    return found


def point_name(value: Expr) -> str:
    """Returns the name of a value that sites read: of an input, or of the layer that computes
    it.
    """
    if isinstance(value, Var):
        return value.name
    marked = [s for s in value.span.sources if s.output is not None]
    if marked:
        last = marked[-1]
        return last.layer if not last.output else f"{last.layer}:{last.output}"
    return next(iter(value.span.layers), type(value).__name__)


def _channel_axis(call: Call) -> int | None:
    """Returns the weight's axis of output channels if the call is a product that can be
    quantized.
    """
    if not isinstance(call.op, Op) or len(call.args) < 2 or not isinstance(call.args[1], Constant):
        return None
    data, weight = call.args[0], call.args[1].tensor
    if not isinstance(data.type, TensorType):
        return None  # of unknown rank
    if isinstance(data, Constant) or data.tensor.dtype != "f32" or weight.dtype != "f32":
        return None
    if not math.prod(weight.shape) or not np.isfinite(call.args[1].data).all():
        return None
    if call.op.traits.convolves:
        plain = call.attrs.weight_layout == f"OI{call.op.traits.convolves}" and len(call.args) == 2
        return 0 if plain and not call.attrs.get("out_dtype", "") else None
    if call.op_name == "nn.dense" and weight.rank == 2 and call.attrs.parts == 1:
        layouts: Mapping[str, int] = {"KN": 1, "NK": 0}
        return layouts.get(call.attrs.weight_layout)
    if call.op_name == "nn.matmul" and weight.rank == 2:
        return 1
    return None


def _spatial_of(call: Call) -> int:
    return len(call.op.traits.convolves) if isinstance(call.op, Op) else 0


def _bias(
    call: Call, using: Mapping[int, Sequence[Expr]], weight: Any, channel: int
) -> Call | None:
    readers = using.get(call.id, ())
    if len(readers) != 1 or not isinstance(readers[0], Call) or readers[0].op_name != "add":
        return None
    add = readers[0]
    constants = [a for a in add.args if isinstance(a, Constant)]
    if len(constants) != 1 or constants[0].tensor.dtype != "f32" or add.type != call.type:
        return None
    spatial = _spatial_of(call)
    shape = constants[0].tensor.shape
    count = weight.shape[channel]
    aligned = shape[len(shape) - 1 - spatial :] if len(shape) > spatial else ()
    whole = bool(aligned) and aligned[0] == count and all(d == 1 for d in aligned[1:])
    return add if whole and math.prod(shape) == count else None
