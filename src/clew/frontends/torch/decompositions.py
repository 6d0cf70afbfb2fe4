"""Decomposes torch operators into core ATen, except those that clew has whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import torch
from torch.nn import functional as F

from clew.frontends.torch.derivatives import OF_DERIVATIVES
from clew.frontends.torch.prims import prims_in_aten
from clew.frontends.torch.registry import find

aten: Final = torch.ops.aten
Table: TypeAlias = "dict[torch._ops.OperatorBase, Callable[..., Any]]"
# Operators that decompositions would take apart although clew has them whole.
WHOLE: Final = (
    aten.linear.default,
    aten.matmul.default,
    aten.scaled_dot_product_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten.layer_norm.default,
    aten.group_norm.default,
    aten.rms_norm.default,
    aten.instance_norm.default,
    aten.silu.default,
    aten.mish.default,
    aten.hardswish.default,
    aten.hardsigmoid.default,
    aten.softplus.default,
    aten.prelu.default,
    aten.selu.default,
    aten.celu.default,
    aten.max_pool1d.default,
    aten.max_pool2d.default,
    aten.max_pool3d.default,
    aten.lstm.input,
    aten.gru.input,
    aten.rnn_tanh.input,
    aten.rnn_relu.input,
    aten.pixel_shuffle.default,
    aten.pixel_unshuffle.default,
    aten.upsample_nearest1d.vec,
    aten.upsample_nearest2d.vec,
    aten.upsample_nearest3d.vec,
    aten._upsample_nearest_exact1d.vec,
    aten._upsample_nearest_exact2d.vec,
    aten._upsample_nearest_exact3d.vec,
    aten.upsample_linear1d.vec,
    aten.upsample_bilinear2d.vec,
    aten.upsample_trilinear3d.vec,
    aten.upsample_bicubic2d.vec,
    aten._upsample_bilinear2d_aa.vec,
    aten._upsample_bicubic2d_aa.vec,
    aten.stack.default,
    aten.unbind.int,
    aten.logsumexp.default,
    aten.tile.default,
    aten.linspace.default,
    aten.linspace.Tensor_Tensor,
    aten.linspace.Tensor_Scalar,
    aten.linspace.Scalar_Tensor,
    aten.triu.default,
    aten.tril.default,
    aten.roll.default,
    aten.reflection_pad1d.default,
    aten.reflection_pad2d.default,
    aten.reflection_pad3d.default,
    aten.replication_pad1d.default,
    aten.replication_pad2d.default,
    aten.replication_pad3d.default,
)
# Operators that torch's default decompositions leave whole, and that clew takes apart by torch's
# other ones.
APART: Final = (
    aten._addmm_activation,
    aten._batch_norm_no_update,
    aten._batch_norm_with_update_functional,
    aten._native_batch_norm_legit_functional,
    aten.alpha_dropout,
    aten.batch_norm_backward,
    aten.embedding_dense_backward,
    aten.lift,
    aten.max_pool2d_with_indices_backward,
    aten.narrow_copy,
    aten.native_group_norm_backward,
    aten.native_layer_norm_backward,
    aten.rrelu_with_noise_backward,
)


def decompositions() -> Table:
    """Returns the decompositions for programs that clew imports: torch's default ones without those
    of `WHOLE` and of their in-place variants, and some of our own.
    """
    table = dict(_default())
    for op in WHOLE:
        if find(op) is not None:
            table.pop(op, None)
            in_place = getattr(aten, f"{op._schema.name.removeprefix('aten::')}_", None)
            for overload in in_place.overloads() if in_place is not None else ():
                table.pop(getattr(in_place, overload), None)
    return {**table, **prims_in_aten(), **OF_DERIVATIVES, **_OWN}


@cache
def _default() -> Table:
    return {
        **torch.export.default_decompositions(),
        **torch._decomp.get_decompositions(APART),
    }


# --- operators that torch has only as a whole -----------------------------------------------------


def _attention_of_module(
    query: Any,
    key: Any,
    value: Any,
    width: int,
    heads: int,
    weight: Any,
    bias: Any,
    out_weight: Any,
    out_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    """`nn.MultiheadAttention` in inference: `_native_multi_head_attention`."""
    batch, rows, _ = query.shape
    own = [
        F.linear(x, w, b)
        for x, w, b in zip((query, key, value), weight.chunk(3), bias.chunk(3), strict=True)
    ]
    q, k, v = (x.reshape(batch, -1, heads, width // heads).transpose(1, 2) for x in own)
    seen = None if mask is None else _seen(mask, mask_type, batch, heads)
    if not need_weights:
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        weights = query.new_empty(0)
    else:
        scores = q @ k.transpose(-1, -2) * (width // heads) ** -0.5
        if seen is not None:
            scores = scores.masked_fill(~seen, float("-inf"))
        weights = scores.softmax(-1)
        found = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    joined = found.transpose(1, 2).reshape(batch, rows, width)
    return F.linear(joined, out_weight, out_bias), weights


def _seen(mask: Any, kind: int | None, batch: int, heads: int) -> Any:
    """Returns where attention looks, for a mask of hidden places: of pairs (0), of keys (1),
    or of both (2).
    """
    hidden = mask.bool()
    if kind == 1:
        hidden = hidden.reshape(batch, 1, 1, -1)
    elif kind == 2:
        hidden = hidden.reshape(batch, -1, *hidden.shape[-2:])
    return ~hidden


def _encoder_layer(
    src: Any,
    width: int,
    heads: int,
    weight: Any,
    bias: Any,
    out_weight: Any,
    out_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    epsilon: float,
    gamma: Any,
    beta: Any,
    gamma_2: Any,
    beta_2: Any,
    up: Any,
    up_bias: Any,
    down: Any,
    down_bias: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """`nn.TransformerEncoderLayer` in inference: `_transformer_encoder_layer_fwd`."""

    def norm(x: Any, g: Any, b: Any) -> Any:
        return F.layer_norm(x, (width,), g, b, epsilon)

    def attend(x: Any) -> Any:
        return _attention_of_module(
            x, x, x, width, heads, weight, bias, out_weight, out_bias, mask, False, True, mask_type
        )[0]

    def feed(x: Any) -> Any:
        inner = F.linear(x, up, up_bias)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), down, down_bias)

    if norm_first:
        src = src + attend(norm(src, gamma, beta))
        return src + feed(norm(src, gamma_2, beta_2))
    src = norm(src + attend(src), gamma, beta)
    return norm(src + feed(src), gamma_2, beta_2)


def _histogram(x: Any, bins: Any, weight: Any = None, density: bool = False) -> tuple[Any, Any]:
    """`torch.histogram` with given edges: elements are counted where they lie between two edges;
    the last bin has both its edges.
    """
    flat, count = x.reshape(-1), bins.shape[0] - 1
    inside = (flat >= bins[0]) & (flat <= bins[-1])
    place = torch.searchsorted(bins, flat, right=True) - 1
    place = torch.where(inside, place.clamp(0, count - 1), 0)
    each = torch.ones_like(flat) if weight is None else weight.reshape(-1)
    found = x.new_zeros(count).scatter_add(0, place, torch.where(inside, each, 0))
    if density:
        found = found / found.sum() / (bins[1:] - bins[:-1])
    return found, bins


def _histogram_of_count(
    x: Any,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Any = None,
    density: bool = False,
) -> tuple[Any, Any]:
    """`torch.histogram` with a number of bins, between bounds or the extremes of the elements."""
    low: Any
    high: Any
    if range is not None:
        low, high = range
        wider = 0.5 if low == high else 0.0
    elif x.numel() == 0:
        low, high, wider = 0.0, 1.0, 0.0
    else:
        low, high = x.amin(), x.amax()
        wider = torch.where(low == high, 0.5, 0.0).to(x.dtype)
    edges = torch.linspace(low - wider, high + wider, bins + 1, dtype=x.dtype)
    return _histogram(x, edges, weight, density)


_NEUTRAL: Final = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf")}
_COMBINED: Final = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "min": "amin"}


def _segment_reduce(
    data: Any,
    reduce: str,
    *,
    lengths: Any = None,
    indices: Any = None,
    offsets: Any = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Any:
    """`torch.segment_reduce` over the axis that is the last one of `lengths` or `offsets`."""
    if lengths is None:
        lengths = offsets[..., 1:] - offsets[..., :-1]
        first = offsets[..., :1]
    else:
        first = torch.zeros_like(lengths[..., :1])
    axis, count = lengths.dim() - 1, lengths.shape[-1]
    inner = data.dim() - axis - 1
    bounds = torch.cat([first, first + lengths.cumsum(-1)], -1)
    rows = torch.arange(data.shape[axis], dtype=bounds.dtype)
    rows = rows.expand(*data.shape[:axis], data.shape[axis]).contiguous()
    place = torch.searchsorted(bounds.contiguous(), rows, right=True) - 1
    place = torch.where(place < 0, count, place)  # in no segment
    place = place.reshape(*place.shape, *(1,) * inner).expand(data.shape)
    shape = [*data.shape[:axis], count + 1, *data.shape[axis + 1 :]]
    start = data.new_full(shape, _NEUTRAL[reduce] if initial is None else initial)
    found = start.scatter_reduce(axis, place, data, _COMBINED[reduce]).narrow(axis, 0, count)
    if reduce == "mean":
        sizes = lengths.reshape(*lengths.shape, *(1,) * inner)
        found = found / sizes.clamp(min=1)
        if initial is None:
            found = torch.where(sizes == 0, float("nan"), found)
    return found.to(data.dtype)


# --- products -------------------------------------------------------------------------------------


def _scaled_product(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Any:
    """A product of 8-bit floats, whose scales are those of tensors, rows and columns."""
    found = (a.float() * scale_a) @ (b.float() * scale_b)
    found = found if bias is None else found + bias.float()
    return found.to(a.dtype if out_dtype is None else out_dtype)


def _product_of_i8_weight(x: Any, weight: Any, scales: Any) -> Any:
    return (x @ weight.to(x.dtype).t()) * scales


def _convolution_over_time(x: Any, weight: Any, bias: Any, pad: int = 0) -> Any:
    """`torch.conv_tbc`: of `x[time, batch, channels]` and `weight[window, channels, features]`."""
    found = F.conv1d(x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return found.permute(2, 0, 1).contiguous()


# --- quantization in training ---------------------------------------------------------------------


def _fake_quantized(x: Any, scale: Any, zero: Any, low: int, high: int) -> tuple[Any, Any]:
    """Values rounded to multiples of a scale, and where these are in range."""
    number = torch.round(x.float() * (1 / scale)) + zero
    found = (number.clamp(low, high) - zero) * scale
    return found.to(x.dtype), (number >= low) & (number <= high)


def _fake_quantized_tensor(
    x: Any, scale: Any, zero: Any, enabled: Any, low: int, high: int
) -> tuple[Any, Any]:
    found, mask = _fake_quantized(x, scale, zero, low, high)
    on = enabled[0] != 0
    return torch.where(on, found, x), mask | ~on


def _fake_quantized_channels(
    x: Any, scale: Any, zero: Any, axis: int, low: int, high: int
) -> tuple[Any, Any]:
    shape = [1] * x.dim()
    shape[axis] = -1
    return _fake_quantized(x, scale.reshape(shape), zero.reshape(shape), low, high)


def _of_threshold(gradient: Any, x: Any, threshold: Any) -> Any:
    dtype = torch.result_type(gradient, x)
    return torch.where(x <= threshold, 0, gradient.to(dtype))


_OWN: Final[Table] = {
    aten.threshold_backward.default: _of_threshold,
    aten._scaled_mm.default: _scaled_product,
    aten._weight_int8pack_mm.default: _product_of_i8_weight,
    aten.conv_tbc.default: _convolution_over_time,
    aten.fake_quantize_per_tensor_affine_cachemask.default: _fake_quantized,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _fake_quantized_tensor,
    aten.fake_quantize_per_channel_affine_cachemask.default: _fake_quantized_channels,
    aten._masked_scale.default: lambda x, mask, scale: x * mask * scale,
    aten._add_relu.Tensor: lambda a, b, *, alpha=1: torch.relu(a.add(b, alpha=alpha)),
    aten._reshape_copy.default: lambda x, shape: x.reshape(shape).clone(),
    aten.segment_reduce.default: _segment_reduce,
    aten.histogram.bins_tensor: _histogram,
    aten.histogram.bin_ct: _histogram_of_count,
    aten._native_multi_head_attention.default: _attention_of_module,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}
