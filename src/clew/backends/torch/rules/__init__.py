"""Rules that run operators with torch, by kind; each file mirrors one of `clew.ops`."""

from __future__ import annotations

from clew.backends.torch.rules import (  # noqa: F401  registers rules
    activation,
    attention,
    convolution,
    create,
    elementwise,
    images,
    indexing,
    matmul,
    norm,
    pool,
    quantization,
    reduce,
    same,
    scan,
    slicing,
    transform,
    unary,
)
