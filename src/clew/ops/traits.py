"""Traits: facts about an operator that passes ask for, declared where the operator is registered.

No pass keeps a list of operators that it knows a fact of: an operator that a user declares is
treated like clew's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from clew.ir.symbolic import Rule


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Facts about an operator. Those that are None are derived from `compute`, call by call; what
    is declared goes before that.
    """

    moves_data: bool | None = None
    """Every element of the result is an element of an operand, at a place that no operand decides
    whose elements are moved. Read by `ir.values` (sizes that go through it), CombineParallelMatmul
    (a slice fuses into it), FoldConstant (a splat stays one).
    """

    keeps_finite: bool | None = None
    """Results are finite where operands are, and no element depends on another channel. Read by
    AlterLayout: channels that blocks are filled up with hold what becomes of zeros, which a later
    layer multiplies by zero. Derived for elementwise and broadcasting operators and data movement;
    False for others.
    """

    selects: bool | None = None
    """Every element of the result is one of the operands', whichever (a maximum): rounding may
    come before it. Read by ConvertPrecision. Derived for data movement; False for others.
    """

    well_conditioned: bool | None = None
    """Magnifies no rounding of an operand beyond that of the result (sums, scales, means). Read by
    ConvertPrecision. Derived for elementwise and broadcasting operators; False for others.
    """

    product: Literal["", "values", "weights"] = ""
    """Sums products of the first two operands, in the dtype that the attribute `out_dtype` names.
    With `weights` the second is a weight, which is rounded where it is constant. Read by
    ConvertPrecision and the reports on precision.
    """

    sizes: Literal["", "read", "computed", "computed from integers"] = ""
    """How sizes come about: `read` reads the sizes of its operands, and no element; with `computed`
    models compute sizes from the values of operands (with the last: only from integers). Read by
    `ir.deciding`: a model is built anew for each value that decides sizes.
    """

    symbolic: Rule | None = None
    """Computes the result where elements of operands are symbolic sizes (`ir.symbolic`). Read by
    `ir.values`, for shapes that models compute from free sizes. Data movement needs no rule.
    """

    convolves: Literal["", "W", "HW", "DHW"] = ""
    """A convolution over these axes: computes what `nn.conv1d`, `nn.conv2d` or `nn.conv3d` does,
    with its attributes. Read by FoldScaleAxis, SkipPadding and FlattenClips.
    """

    convolves_transposed: Literal["", "W", "HW", "DHW"] = ""
    """The same of `nn.conv1d_transpose`, `nn.conv2d_transpose` and `nn.conv3d_transpose`. Read by
    FoldScaleAxis and SplitTransposed.
    """

    packs_weight: bool = False
    """A convolution with the attributes of `nn.conv2d`, whose layout rule takes `weight_block`:
    data and weight may be packed into blocks of channels. Read by AlterLayout.
    """

    pools: bool = False
    """Reduces windows along any number of axes, with the attributes `kernel`, `strides`, `padding`,
    `dilation` and `layout` of `nn.max_pool2d`. Read by FlattenClips.
    """


NO_TRAITS: Final = Traits()
