"""Attention, fused where torch gives the same result."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from clew.backends.torch.registry import Building, Step, builds
from clew.ops.math.attention import AXES


@builds("nn.attention")
def attention(b: Building) -> Step:
    """`scaled_dot_product_attention` if all scores are finite and each query sees a key, else its
    formula: torch makes rows without visible keys, and short ones with NaN, 0. Narrow floats are
    computed in f32.
    """
    attrs, dtype = b.attrs, b.dtype
    layouts = (attrs.q_layout, attrs.k_layout, attrs.v_layout)
    orders = [[layout.index(a) for a in AXES] for layout in layouts]
    back = [AXES.index(a) for a in attrs.layout]
    wide = torch.float64 if b.types[0].dtype == "f64" else torch.float32
    (_, heads, rows, width), (_, groups, columns, _) = (
        [b.shape(n)[axis] for axis in orders[n]] for n in (0, 1)
    )
    scale, causal = attrs.scale or 1 / math.sqrt(width), attrs.causal
    later = None
    if causal:
        later = torch.ones((rows, columns), dtype=torch.bool).triu(1)
    fits = len(b.types) == 3 or not causal

    def step(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor
    ) -> torch.Tensor:
        masks, scales = more[:1], more[1:]
        if scales:  # of codes
            k, v = (x.to(wide) * scale for x, scale in zip((k, v), scales, strict=True))
        q, k, v = (x.permute(order).to(wide) for x, order in zip((q, k, v), orders, strict=True))
        if heads != groups:
            k, v = (x.repeat_interleave(heads // groups, 1) for x in (k, v))
        mask = _mask(masks[0], wide, rows, columns) if masks else None
        if fits and _is_finite(q, k, scale) and _is_visible(mask):
            found = functional.scaled_dot_product_attention(
                q, k, v, mask, is_causal=causal, scale=scale
            )
        else:
            found = _formula(q * scale, k, v, mask, later, attrs.guard)
        return found.to(dtype).permute(back)

    return step


def _mask(mask: torch.Tensor, wide: torch.dtype, rows: int, columns: int) -> torch.Tensor:
    """Returns a mask with four axes, of which the first two may be 1."""
    mask = mask if mask.dtype == torch.bool else mask.to(wide)
    mask = mask.expand((*mask.shape[:-2], rows, columns))
    return mask.reshape((1,) * (4 - mask.dim()) + mask.shape)


def _is_finite(q: torch.Tensor, k: torch.Tensor, scale: float) -> bool:
    """Whether no score can be infinite or NaN."""
    most = q.abs().amax() * k.abs().amax() * (q.shape[-1] * max(abs(scale), 1))
    return bool(torch.isfinite(most))


def _is_visible(mask: torch.Tensor | None) -> bool:
    """Whether each query sees a key, and adds no infinity to a score or NaN."""
    if mask is None:
        return True
    if mask.dtype == torch.bool:
        return bool(mask.any(-1).all())
    return bool(torch.isfinite(mask.amax(-1)).all())


def _formula(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    later: torch.Tensor | None,
    guard: str,
) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(2, 3))
    if mask is not None and mask.dtype == torch.bool:
        scores = scores + torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    if later is not None:
        scores = scores.masked_fill(later, -math.inf)
    weights = torch.softmax(scores, -1)
    if guard == "nan":
        weights = weights.masked_fill(torch.isnan(weights), 0)
    elif guard:
        weights = weights.masked_fill(scores.amax(-1, keepdim=True) == -math.inf, 0)
    return torch.matmul(weights, v)
