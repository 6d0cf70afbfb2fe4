"""Rules that run operators with torch, one file per family."""

from __future__ import annotations

from clew.backends.torch.rules import (  # noqa: F401  registers rules
    attention,
    convolution,
    elementwise,
    images,
    indexing,
    matmul,
    norm,
    pool,
    quantization,
    reduce,
    same,
    slicing,
    transform,
)
