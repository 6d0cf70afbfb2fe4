"""What a file of a quantized model says: the products and operands that are rounded."""

from __future__ import annotations

from typing import Any, Final

from numpy.typing import NDArray

from clew.ir.types import bits, from_numpy
from clew.support.dataclass import dataclass
from clew.support.errors import InputError

Array = NDArray[Any]
FORMS: Final = ("qdq", "matmulnbits")
"""The forms of weights whose operand stays in floats: DequantizeLinear of the standard, or the
operator of ONNX Runtime.
"""


@dataclass(frozen=True, eq=False)
class Product:
    """A product to quantize: the layer that computes it, and the numbers of its operands.

    `channel` is the axis of the weight for output channels. `scales` and `zeros` have one number
    per channel, or one. The operand is divided by `steps`, one per channel along `axis`, or one;
    its integers stand for multiples of `scale`. With a `scale` of None, each call finds the range
    of the operand. `bias` is added per output channel, in floats or in integers with the scales
    `bias_scales`. It includes the bias of the layer itself if `own_bias`, or that of the layer
    `adds`; `norm` is a batch norm that is part of weight and bias, if there are such.

    If `weight_only`, the operand stays in floats, times one of the `factors` per channel if there
    are any. With a `block`, scales and zero points are `[N, G]` for groups of that many columns of
    a weight `[N, K]`. A `symmetric` weight has no zero points. `rank` is that of the operand.
    """

    layer: str
    scale: float | None
    steps: Array
    axis: int
    zero: Array
    weight: Array
    channel: int
    scales: Array
    zeros: Array
    bias: Array | None = None
    bias_scales: Array | None = None
    own_bias: bool = False
    adds: str = ""
    norm: str = ""
    weight_only: bool = False
    factors: Array | None = None
    block: int = 0
    symmetric: bool = False
    rank: int = 0

    @property
    def bits(self) -> int:
        """The bits of the weight's integers."""
        return bits(from_numpy(self.weight.dtype))


@dataclass(frozen=True, eq=False)
class Operand:
    """An operand of an addition or of a max pool that is rounded: the layer that reads it, its
    place among the layer's operands, and the grid.
    """

    layer: str
    place: int
    scale: float
    zero: Array


def check_form(form: str) -> None:
    """Errors: I390 for a form of weights that is unknown."""
    if form not in FORMS:
        raise InputError("I390", f"form is {form!r}", hint=f"one of {', '.join(FORMS)}")
