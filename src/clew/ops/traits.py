"""Traits: facts about operators that passes query, declared where the operator is registered.

No pass keeps a list of operators for which a fact holds, so users' operators are treated like
clew's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from clew.ir.expr import Attrs
from clew.ir.symbolic import Rule
from clew.ir.types import TensorType


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Facts about an operator. Those that are None are derived from `compute` for each call; a
    declared value takes precedence.
    """

    moves_data: bool | None = None
    """Every element of the result is an element of an operand, and its position does not depend on
    the elements that are moved. Read by `ir.values` (sizes that pass through it),
    CombineParallelMatmul (a slice fuses into it), FoldConstant (a splat stays one).
    """

    keeps_finite: bool | None = None
    """Finite operands give finite results, and no element depends on another channel. Read by
    AlterLayout: channels that pad a block hold results computed from zeros, which a later layer
    multiplies by zero. Derived for elementwise and broadcasting operators and data movement; False
    for others.
    """

    selects: bool | None = None
    """Every element of the result is some element of the operands (as in a maximum), so rounding
    may move before it. Read by ConvertPrecision and WidenHalves. Derived for data movement; False
    for others.
    """

    well_conditioned: bool | None = None
    """Rounding an operand has no larger effect than rounding the result (sums, scales, means). Read
    by ConvertPrecision. Derived for elementwise and broadcasting operators; False for others.
    """

    channels_last: Callable[[Attrs, Sequence[TensorType]], int] | None = None
    """Reads all channels of an image at positions that values determine, so channels should be
    neighbors if they are read often enough. Returns about how many positions a call of these
    attributes and operands reads. Has a layout rule for NHWC. Read by AlterLayout.
    """

    reads_bits: bool = False
    """The result depends on how the dtype stores a value, not only on the value. Read by
    WidenHalves, which computes other operators on narrow floats in f32.
    """

    averages: bool = False
    """Every element of the result is a mean of elements of the operand, over windows or axes. Read
    by `clew.quantize`.
    """

    never_negative: Literal["", "always", "as operands"] = ""
    """No element of a float result is negative or -0 (it may be NaN): always, or if that holds for
    all operands. Read by SimplifyExpr: `x ^ 0.5` is then a square root. Derived for data movement.
    """

    second_zero: bool = False
    """Of a 0 and a -0, the result is the second operand: the order of floats matters. Read by
    EliminateCommonSubexpr and CanonicalizeOps.
    """

    product: Literal["", "values", "weights"] = ""
    """Sums products of the first two operands, in the dtype given by the attribute `out_dtype`.
    With `weights`, the second is a weight, which is rounded if it is constant. Read by
    ConvertPrecision, WidenHalves and the precision reports.
    """

    fits_always: bool = False
    """Operands must fit the result even if it has no elements: an update in an empty axis is an
    error. Read by the CPU backend, which skips other kernels with empty results.
    """

    sizes: Literal["", "read", "computed", "computed from integers"] = ""
    """How the operator relates to sizes: `read` reads the sizes of its operands, and no element;
    with `computed`, models compute sizes from the values of operands (with the last, only from
    integers). Read by `ir.deciding`: each value that decides sizes needs a build.
    """

    symbolic: Rule | None = None
    """Computes the result if elements of operands are symbolic sizes (`ir.symbolic`). Read by
    `ir.values`, for shapes that models compute from free sizes. Data movement needs no rule.
    """

    parameters: tuple[int, ...] = ()
    """Positions of operands that set how others are read, such as scales: numbers that differ from
    layer to layer. Read by FuseOps: constants of one element stay operands of the kernel, so that
    layers that differ only in these share a kernel.
    """

    convolves: Literal["", "W", "HW", "DHW"] = ""
    """A convolution over these axes with the semantics and attributes of `nn.conv1d`, `nn.conv2d`
    or `nn.conv3d`. Read by FoldScaleAxis, SkipPadding, LiftSignals and FlattenClips.
    """

    convolves_transposed: Literal["", "W", "HW", "DHW"] = ""
    """A transposed convolution over these axes, as `nn.conv1d_transpose`, `nn.conv2d_transpose` or
    `nn.conv3d_transpose`. Read by FoldScaleAxis and SplitTransposed.
    """

    per_channel: bool = False
    """Works on each channel (axis 1) of the first operand, for any number of axes after it;
    the others are vectors over the channels. Read by LiftSignals.
    """

    packs_weight: bool = False
    """A convolution with the attributes of `nn.conv2d`, whose layout rule takes `weight_block`:
    data and weight may be packed into blocks of channels. Read by AlterLayout.
    """

    @property
    def is_convolution(self) -> bool:
        """Whether the operator is a convolution."""
        return bool(self.convolves) or self.packs_weight

    pools: bool = False
    """Reduces windows along any number of axes, with the attributes `kernel`, `strides`, `padding`,
    `dilation` and `layout` of `nn.max_pool2d`. Read by LiftSignals and FlattenClips.
    """

    collects: bool = False
    """Where it runs on the host, the operator puts elements, texts, counts or sizes in new
    arrays. Read by the runtime: its results share no memory with operands, NumPy gives no warnings
    about them, and a build for single sizes gains nothing.
    """

    passes_on: bool = False
    """Where it runs on the host, the operator returns operands, parts of operands, or sequences of
    these. Read by the runtime: NumPy gives no warnings about it, and a build for single sizes gains
    nothing.
    """

    splits: bool = False
    """Where it runs on the host, the operator returns a sequence of parts of the first operand that
    share no memory. Read by the runtime: the memory of the sequence is that of the operand.
    Otherwise as `passes_on`.
    """

    reinterprets: bool = False
    """The result is the memory of the only operand, read as another dtype or shape. Read by the
    runtime: such steps before and after a segment are part of its call. Otherwise as `passes_on`.
    """


NO_TRAITS: Final = Traits()
