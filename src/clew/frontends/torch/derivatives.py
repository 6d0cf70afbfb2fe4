"""Decompositions of derivatives that torch has only as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch.nn import functional as F

aten: Final = torch.ops.aten


def _along(gradient: Any, axis: int, matrix: Any) -> Any:
    """Returns the product of a matrix `[out, in]` with each row `[out]` along an axis."""
    return (gradient.movedim(axis, -1) @ matrix.to(gradient.dtype)).movedim(-1, axis)


def _added_up(gradient: Any, axis: int, size: Any, source: Any) -> Any:
    """Returns zeros of a size along an axis, with each row added to the one at its `source`."""
    shape = list(gradient.shape)
    shape[axis] = size
    return gradient.new_zeros(shape).index_add(axis, source, gradient)


def _resizing(mode: str, corners: bool, size: Any, count: Any, scale: float | None) -> Any:
    """Returns the matrix `[count, size]` by which one axis is resized."""
    unit = torch.eye(size, dtype=torch.float64).reshape(1, size, size, 1)
    resize = aten.upsample_bicubic2d if mode == "cubic" else aten.upsample_bilinear2d
    return resize(unit, [count, 1], corners, scale).reshape(size, count).t()


def _of_resize(
    mode: str,
    gradient: Any,
    output_size: Sequence[Any],
    input_size: Sequence[Any],
    align_corners: bool,
    *scales: float | None,
) -> Any:
    for axis, (count, size) in enumerate(zip(output_size, input_size[2:], strict=True)):
        scale = scales[axis] if scales else None
        gradient = _along(gradient, axis + 2, _resizing(mode, align_corners, size, count, scale))
    return gradient.contiguous()


def _of_nearest(
    op: Callable[..., Any],
    gradient: Any,
    output_size: Sequence[Any],
    input_size: Sequence[Any],
    *scales: float | None,
) -> Any:
    """Each element's gradient, added to that of the element it was copied from."""
    for axis, (count, size) in enumerate(zip(output_size, input_size[2:], strict=True)):
        scale = scales[axis] if scales else None
        places = torch.arange(size, dtype=torch.float64).reshape(1, 1, size)
        source = op(places, [count], scale).reshape(count).to(torch.int64)
        gradient = _added_up(gradient, axis + 2, size, source)
    return gradient


def _of_adaptive_mean(gradient: Any, x: Any) -> Any:
    """Each window's gradient, spread evenly over its elements: a product for each axis."""
    for axis in range(-3, 0):
        size, count = x.shape[axis], gradient.shape[axis]
        unit = torch.eye(size, dtype=torch.float64).reshape(1, size, size)
        shares = F.adaptive_avg_pool1d(unit, count).reshape(size, count)
        gradient = _along(gradient, axis % x.dim(), shares.t())
    return gradient.contiguous()


def _of_largest(gradient: Any, x: Any, places: Any, rank: int) -> Any:
    """Each window's gradient, added to that of its largest element."""
    flat = torch.zeros_like(x).flatten(-rank)
    return flat.scatter_add(-1, places.flatten(-rank), gradient.flatten(-rank)).reshape(x.shape)


def _of_max_pool_3d(
    gradient: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any,
    places: Any,
) -> Any:  # fmt: skip
    return _of_largest(gradient, x, places, 3)


def _of_replication(rank: int, gradient: Any, x: Any, padding: Sequence[Any]) -> Any:
    """The gradients at the edges, added up."""
    for n in range(rank):
        axis = x.dim() - 1 - n
        size, count = x.shape[axis], gradient.shape[axis]
        source = (torch.arange(count) - padding[2 * n]).clamp(0, size - 1)
        gradient = _added_up(gradient, axis, size, source)
    return gradient


def _of_linear(x: Any, gradient: Any, weight: Any, mask: Sequence[bool]) -> tuple[Any, Any, Any]:
    rows, columns = gradient.reshape(-1, weight.shape[0]), x.reshape(-1, weight.shape[1])
    return (
        (gradient @ weight) if mask[0] else None,
        (rows.t() @ columns) if mask[1] else None,
        rows.sum(0) if mask[2] else None,
    )


def _of_attention(
    gradient: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> tuple[Any, Any, Any]:
    """Of `softmax(scale q k' + mask) v`, from the logarithms of the softmax's sums."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-1, -2) * factor
    if attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = (scores - logsumexp.unsqueeze(-1)).exp().to(query.dtype)
    of_weights = gradient @ value.transpose(-1, -2)
    own = (gradient * out).sum(-1, keepdim=True)
    of_scores = weights * (of_weights - own) * factor
    return (
        of_scores @ key,
        of_scores.transpose(-1, -2) @ query,
        weights.transpose(-1, -2) @ gradient,
    )


OF_DERIVATIVES: Final[dict[Any, Callable[..., Any]]] = {
    aten._adaptive_avg_pool3d_backward.default: _of_adaptive_mean,
    aten.adaptive_max_pool2d_backward.default: lambda g, x, i: _of_largest(g, x, i, 2),
    aten.adaptive_max_pool3d_backward.default: lambda g, x, i: _of_largest(g, x, i, 3),
    aten.max_pool3d_with_indices_backward.default: _of_max_pool_3d,
    aten.replication_pad1d_backward.default: partial(_of_replication, 1),
    aten.replication_pad2d_backward.default: partial(_of_replication, 2),
    aten.replication_pad3d_backward.default: partial(_of_replication, 3),
    aten.upsample_nearest1d_backward.default: partial(_of_nearest, aten.upsample_nearest1d),
    aten.upsample_nearest2d_backward.default: partial(_of_nearest, aten.upsample_nearest1d),
    aten.upsample_nearest3d_backward.default: partial(_of_nearest, aten.upsample_nearest1d),
    aten._upsample_nearest_exact1d_backward.default: partial(
        _of_nearest, aten._upsample_nearest_exact1d
    ),
    aten._upsample_nearest_exact2d_backward.default: partial(
        _of_nearest, aten._upsample_nearest_exact1d
    ),
    aten._upsample_nearest_exact3d_backward.default: partial(
        _of_nearest, aten._upsample_nearest_exact1d
    ),
    aten.upsample_linear1d_backward.default: partial(_of_resize, "linear"),
    aten.upsample_bilinear2d_backward.default: partial(_of_resize, "linear"),
    aten.upsample_trilinear3d_backward.default: partial(_of_resize, "linear"),
    aten.upsample_bicubic2d_backward.default: partial(_of_resize, "cubic"),
    aten.linear_backward.default: _of_linear,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _of_attention,
}
"""Derivatives by their operators."""
