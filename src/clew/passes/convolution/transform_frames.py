"""TransformFrames: convolutions whose weight is a Fourier basis, as fast Fourier transforms."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np

from clew.cost.policy.convolutions import FRAME_FILTERS
from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import to_numpy
from clew.ops.math.signal import is_fast
from clew.ops.registry import get_op
from clew.passes.base import Pass, PassContext
from clew.passes.convolution.forms import is_convolution
from clew.patterns.exactness import REORDERED, Exactness
from clew.support.dataclass import dataclass

Array = np.ndarray[Any, Any]

# Units in the last place of f32 by which a weight may differ from the basis.
_ULPS: Final = 2
# The share of a window's largest value below which a filter tells nothing.
_LEAST: Final = 1e-3


@dataclass(frozen=True)
class TransformFrames(Pass):
    """Computes the short-time Fourier transform that models hold as a convolution, whose filters
    are cosines and sines times a window, by fast transforms.

    Filters may have any order, and signs. The window is the filter of frequency 0. All others are
    compared with it: a filter that differs by more than its rounding leaves the convolution as it
    is.

    Before:
        %1: f32[1, 402, 98] = nn.conv1d(%0, w, strides=[160])
    After:
        %2: f32[1, 98, 400, 1] = multiply(frames(%0, step=160, length=400), window)
        %3: f32[1, 98, 201, 2] = dft(%2, axis=2, onesided=True)
        %1 = transpose(gather(reshape(%3), order, axis=2), axes=[0, 2, 1])

    Preconditions: weights are constants and final, layouts are plain; runs before LiftSignals.
    Non-goals: free sizes, lengths without a fast transform, and few filters.
    """

    opt_level: ClassVar[int] = 3
    exactness: ClassVar[Exactness] = REORDERED

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Transformer().rewrite_module(module)


@dataclass(frozen=True)
class _Basis:
    """The window, and for each filter its place among the parts of all bins and its sign."""

    window: Array
    places: Array
    signs: Array


class _Transformer(Rewriter):
    def rewrite_call(self, old: Call, new: Call) -> Expr:
        basis = _basis_of(new)
        if basis is None:
            return new
        with self.covers(old):
            return _transformed(new, basis)


def _basis_of(call: Call) -> _Basis | None:
    """Returns the basis of a convolution of one signal; None if its weight is none."""
    if not is_convolution(call, "W") or not isinstance(call.args[1], Constant):
        return None
    (data, weight), attrs = (a.tensor for a in call.args), call.attrs
    plain = (attrs.data_layout, attrs.weight_layout, attrs.out_layout) == ("NCW", "OIW", "")
    if not plain or not data.is_static or weight.dtype not in ("f32", "f64") or attrs.live:
        return None
    filters, channels, length = weight.concrete
    if channels != 1 or attrs.dilation != (1,) or length % 2 or not call.tensor.size:
        return None
    if not is_fast(length // 2) or filters < FRAME_FILTERS * length:
        return None
    return _basis(call.args[1].data[:, 0].astype(np.float64))


def _basis(filters: Array) -> _Basis | None:
    if not np.isfinite(filters).all():
        return None
    length = filters.shape[1]
    window = filters[filters.sum(1).argmax()]
    limit = _ULPS * np.finfo(np.float32).eps * np.abs(window).max()
    # Without the window, where it is not too small, filters have one frequency each.
    is_kept = np.abs(window) > _LEAST * np.abs(window).max()
    spectra = np.fft.rfft(np.where(is_kept, filters / np.where(is_kept, window, 1.0), 0.0))
    bins = np.abs(spectra).argmax(1)
    peaks = np.take_along_axis(spectra, bins[:, None], 1)[:, 0]
    is_sine = np.abs(peaks.imag) > np.abs(peaks.real)
    # The transform has the negative sines.
    signs = np.where(np.where(is_sine, -peaks.imag, peaks.real) < 0, -1.0, 1.0)
    angles = 2 * np.pi / length * (bins[:, None] * np.arange(length) % length)
    waves = np.where(is_sine[:, None], np.sin(angles), np.cos(angles)) * signs[:, None]
    is_zero = (np.abs(filters) <= limit).all(1)  # the sines of the first and the last bin
    expected = np.where(is_zero[:, None], 0.0, waves * window)
    if not np.abs(filters - expected).max() <= limit or not limit:
        return None
    places = np.where(is_zero, 1, 2 * bins + is_sine)
    return _Basis(window, places, np.where(is_sine & ~is_zero, -signs, signs))


def _transformed(call: Call, basis: _Basis) -> Expr:
    data, attrs, dtype = call.args[0], call.attrs, to_numpy(call.tensor.dtype)
    if any(attrs.padding):
        low, high = attrs.padding
        data = get_op("pad")(data, pads=(0, 0, low, 0, 0, high))
    batch, _, size = data.tensor.concrete
    length = len(basis.window)
    signal = get_op("reshape")(data, shape=(batch, size, 1))
    frames = get_op("frames")(signal, step=attrs.strides[0], length=length)
    window = Constant(basis.window.astype(dtype)[:, None])
    bins = get_op("dft")(get_op("multiply")(frames, window), axis=2, onesided=True)
    parts = get_op("reshape")(bins, shape=(batch, call.tensor.concrete[2], length + 2))
    found = get_op("gather")(parts, Constant(basis.places), axis=2)
    if (basis.signs != 1).any():
        found = get_op("multiply")(found, Constant(basis.signs.astype(dtype)))
    return get_op("transpose")(found, axes=(0, 2, 1))
