"""Attention, fused where torch gives the same result."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from clew.backends.torch.registry import Building, Step, builds
from clew.backends.torch.tensors import DTYPES
from clew.ops.math.attention import AXES


@builds("nn.attention")
def attention(b: Building) -> Step:
    """`scaled_dot_product_attention` without a mask, else its formula: torch fills fully masked
    rows with 0, clew with NaN unless they are guarded. Narrow floats are computed in f32.
    """
    attrs, dtype = b.attrs, b.dtype
    orders = [
        [layout.index(a) for a in AXES] for layout in (attrs.q_layout, attrs.k_layout, attrs.v_layout)
    ]
    back = [AXES.index(a) for a in attrs.layout]
    wide = torch.float64 if b.types[0].dtype == "f64" else torch.float32
    q_shape, k_shape = (
        [b.shape(n)[axis] for axis in orders[n]] for n in (0, 1)
    )
    scale = attrs.scale or 1 / math.sqrt(q_shape[3])
    repeats = q_shape[1] // k_shape[1]
    fused = len(b.types) == 3 and not attrs.guard
    core = _fused(scale, attrs.causal) if fused else _formula(b, scale, wide, q_shape, k_shape)

    def step(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor
    ) -> torch.Tensor:
        q, k, v = (
            x.permute(order).to(wide) for x, order in zip((q, k, v), orders, strict=True)
        )
        if repeats != 1:
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        found: torch.Tensor = core(q, k, v, *mask)
        return found.to(dtype).permute(back)

    return step


def _fused(scale: float, causal: bool) -> Step:
    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)

    return step


def _formula(
    b: Building, scale: float, wide: torch.dtype, q_shape: list[int], k_shape: list[int]
) -> Step:
    guard = b.attrs.guard
    later = None
    if b.attrs.causal:
        rows, columns = q_shape[2], k_shape[2]
        later = b.keep(torch.ones((rows, columns), dtype=torch.bool).triu(1))
    marks = len(b.types) > 3 and DTYPES[b.types[3].dtype] == torch.bool

    def step(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor
    ) -> torch.Tensor:
        scores = torch.matmul(q * scale, k.transpose(2, 3))
        if marks:
            scores = scores.masked_fill(~mask[0], -math.inf)
        elif mask:
            scores = scores + mask[0].to(wide)
        if later is not None:
            scores = scores.masked_fill(later, -math.inf)
        weights = torch.softmax(scores, -1)
        if guard == "nan":
            weights = weights.masked_fill(torch.isnan(weights), 0)
        elif guard:
            weights = weights.masked_fill(scores.amax(-1, keepdim=True) == -math.inf, 0)
        return torch.matmul(weights, v)

    return step
