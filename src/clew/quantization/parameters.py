"""The numbers of quantized layers: integers of weights, scales, zero points, corrected biases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.ir.expr import Constant, Expr
from clew.ir.types import bits, integer_limits, to_numpy
from clew.ops.math.quantization import SUM, quantized_in_own_range
from clew.ops.registry import get_op
from clew.quantization.groups import Grouped
from clew.quantization.migration import over_inputs
from clew.quantization.ranges import Grid, rounded, weight_scales
from clew.quantization.scheme import Scheme
from clew.quantization.sites import Site

Array = NDArray[Any]
_QUARTERS: Final = 4
_LIMITS: Final = integer_limits(SUM)


@dataclass(frozen=True, eq=False)
class Parameters:
    """The quantized form of a site.

    `weight` holds integers in the weight's shape; `scales` and `zeros` have one number per output
    channel, or one in all. `correction` is added to the result, per output channel. The operand
    is divided by `numbers`, one per input channel, before it is rounded, if there are any; the
    weight's integers include them. `grid` is None if each call finds the range of the operand, or
    if it stays in floats. With a `block`, `scales` and `zeros` are `[N, G]`, one for each group of
    that many input channels of a weight `[N, K]`. `decided` weights depend on calibration data.
    """

    site: Site
    scheme: Scheme
    grid: Grid | None
    weight: Array
    scales: Array
    zeros: Array
    correction: Array | None = None
    numbers: Array | None = None
    block: int = 0
    decided: bool = False

    def corrected(self, correction: Array) -> Parameters:
        """Returns the parameters with a correction."""
        return replace(self, correction=correction.astype(np.float32))

    @property
    def per_channel(self) -> bool:
        """Whether each output channel has a scale."""
        return self.scheme.granularity == "channel"

    @property
    def sum_scales(self) -> Array:
        """The scales of sums of products, per output channel or one; if the operand's is not known
        before a call, those of the weight.
        """
        scale = 1.0 if self.grid is None else self.grid.scale
        found: Array = (np.float32(scale) * self.scales).astype(np.float32)
        return found

    @property
    def float_bias(self) -> Array | None:
        """The numbers added per output channel, with the correction; None if there are none."""
        constant = self.site.bias_constant
        if constant is None:
            return self.correction
        bias = constant.data.reshape(-1)
        return bias if self.correction is None else bias + self.correction

    @property
    def bias_integers(self) -> Array | None:
        """The bias in steps of `bias_scales`, if 32 bits hold it, and the layer adds it itself or
        all scales are powers of two.
        """
        bias, add = self.float_bias, self.site.bias
        if bias is None and self.scheme.shifts:
            bias = np.zeros(self.site.channels, np.float32)
        own = add is None or bool(set(self.site.call.span.layers) & set(add.span.layers))
        own = own or self.scheme.shifts
        if bias is None or not own or self.grid is None:
            return None
        steps = np.rint(bias.astype(np.float64) / self.sum_scales)
        if self.scheme.shifts:  # a quarter of a step more: no sum is midway between two integers
            steps = _QUARTERS * steps + 1
        fits = np.abs(steps).max(initial=0) < _LIMITS[1] // 2
        return steps.astype(np.int32) if fits else None

    @property
    def bias_scales(self) -> Array:
        """The step of `bias_integers`, per output channel or one."""
        return self.sum_scales / np.float32(_QUARTERS if self.scheme.shifts else 1)

    # --- as expressions ---

    def quantized_data(self, value: Expr) -> Expr:
        """Returns the operand, rounded to the grid, as integers and back; or, if it stays in
        floats, divided by the `numbers`.
        """
        if self.scheme.is_weight_only:
            if self.reciprocals is None:
                return value
            shape = (-1,) + (1,) * (-1 - self.site.channel_axis)
            return get_op("multiply")(value, Constant(self.reciprocals.reshape(shape)))
        if self.grid is None:
            return get_op("dequantize")(*quantized_in_own_range(value))
        if self.numbers is None:
            return on_grid(value, self.grid)
        shape = (-1,) + (1,) * (-1 - self.site.channel_axis)
        return on_grid(value, self.grid, self.steps.reshape(shape))

    @property
    def steps(self) -> Array:
        """The numbers by which the operand is divided to get integers: one, or one per channel."""
        scale = np.float32(1.0 if self.grid is None else self.grid.scale)
        found: Array = np.asarray(scale if self.numbers is None else self.numbers * scale)
        return found.astype(np.float32)

    @property
    def reciprocals(self) -> Array | None:
        """The numbers by which an operand in floats is multiplied, if there are any."""
        if self.numbers is None or not self.scheme.is_weight_only:
            return None
        found: Array = (np.float32(1) / self.numbers).astype(np.float32)
        return found

    @property
    def converts_data(self) -> bool:
        """Whether the operand that calls bring is changed."""
        return not self.scheme.is_weight_only or self.numbers is not None

    def quantized_weight(self) -> Expr:
        """Returns the weight, dequantized from integers."""
        if self.block:
            return self._blocks()
        args: list[Expr] = [Constant(self.weight), Constant(self._along(self.scales))]
        if self.zeros.any():
            args.append(Constant(self._along(self.zeros.astype(self.weight.dtype))))
        return get_op("dequantize")(*args)

    def _blocks(self) -> Expr:
        """Returns a weight in groups in the form in which `MatMulNBits` is imported: unsigned
        integers, whose zero point is the middle if they are symmetric.
        """
        dtype = f"u{bits(self.scheme.weights)}"
        middle = (1 << bits(dtype) >> 1) if self.scheme.is_symmetric else 0
        integers, zeros = (
            (x.astype(np.int16) + middle).astype(np.uint8).astype(to_numpy(dtype))
            for x in (self.weight, np.zeros(()) if self.scheme.is_symmetric else self.zeros)
        )
        args = [Constant(x) for x in (integers, self.scales, zeros)]
        return get_op("dequantize")(*args, axis=1, block=self.block)

    def quantized_bias(self) -> Expr | None:
        """Returns the corrected bias in the shape of the result, dequantized if it is of integers;
        None if nothing is added.
        """
        bias, integers = self.float_bias, self.bias_integers
        if bias is None and integers is None:
            return None
        shape = (-1,) + (1,) * (-1 - self.site.channel_axis)
        if integers is None:
            assert bias is not None
            return Constant(bias.astype(np.float32).reshape(shape))
        scale = Constant(self.bias_scales.reshape(shape if self.per_channel else ()))
        return get_op("dequantize")(Constant(integers.reshape(shape)), scale)

    @property
    def weight_values(self) -> Array:
        """The numbers that the integers of a weight with scales per channel stand for."""
        assert not self.block
        whole = self.weight.astype(np.int32) - self._along(self.zeros).astype(np.int32)
        found: Array = whole.astype(np.float32) * self._along(self.scales)
        return found

    def bias_numbers(self, *, rounded: bool = True) -> Array:
        """Returns the numbers that `quantized_bias` stands for, or those before they are rounded,
        in the same shape; zeros if nothing is added.
        """
        bias, integers = self.float_bias, self.bias_integers if rounded else None
        if integers is not None:
            bias = integers.astype(np.float32) * self.bias_scales
        elif bias is None:
            bias = np.zeros(self.site.channels)
        shape = (-1,) + (1,) * (-1 - self.site.channel_axis)
        found: Array = bias.astype(np.float32).reshape(shape)
        return found

    def _along(self, numbers: Array) -> Array:
        if not self.per_channel:
            return numbers.reshape(())
        shape = [1] * self.weight.ndim
        shape[self.site.channel] = -1
        return numbers.reshape(shape)


def on_grid(value: Expr, grid: Grid, steps: Array | None = None) -> Expr:
    """Returns a value, divided by the grid's scale, or by other `steps`, and rounded to the grid,
    as integers and back.
    """
    scale = Constant(np.float32(grid.scale))
    zero = Constant(np.array(grid.zero, to_numpy(grid.dtype)))
    divisor = scale if steps is None else Constant(steps)
    integers = get_op("quantize")(value, divisor, zero, dtype=grid.dtype)
    return get_op("dequantize")(integers, scale, zero)


def parameters_of(
    site: Site, scheme: Scheme, grid: Grid | None, numbers: Array | None = None
) -> Parameters:
    """Returns the parameters of a site: its weight, times `numbers` per input channel if given,
    rounded to nearest.
    """
    weight = site.weight.data
    if numbers is not None:
        weight = weight * over_inputs(site, numbers)
    channel = site.channel if scheme.granularity == "channel" else None
    limits = scheme.weight_limits
    method, shifts = scheme.weight_range, scheme.shifts
    scales, zeros = weight_scales(weight, channel, limits, method, shifts=shifts)
    dtype = np.int8 if scheme.weights == "i8" else np.uint8
    integers = rounded(weight, scales, zeros, channel, limits).astype(dtype)
    return Parameters(site, scheme, grid, integers, scales, zeros, numbers=numbers)


def parameters_in_groups(
    site: Site,
    scheme: Scheme,
    found: Grouped,
    numbers: Array | None = None,
    *,
    decided: bool = False,
) -> Parameters:
    """Returns the parameters of a site whose operand stays in floats, for the integers of its
    weight as rows of input channels.
    """
    dtype = to_numpy(scheme.weights)
    weight = found.integers.astype(np.int8 if scheme.is_symmetric else np.uint8).astype(dtype)
    scales, zeros, block = found.scales, found.zeros, found.size
    if not site.is_matrix:
        scales, zeros, block = scales.reshape(-1), zeros.reshape(-1), 0
    return Parameters(
        site,
        scheme,
        None,
        weight.reshape(site.weight.data.shape),
        scales.astype(np.float32),
        zeros.astype(np.int64),
        numbers=numbers,
        block=block,
        decided=decided,
    )
