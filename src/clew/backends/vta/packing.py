"""Layouts of tensors in VTA's DRAM, in elements of its memories.

Data are `NCHW[b]n[k]c`: images in groups of `batch`, channels in blocks. Sizes that do not fill
their last block are padded with 0.
"""

from __future__ import annotations

import numpy as np

from clew.backends.vta.config import Config
from clew.backends.vta.program import Array


def blocks(size: int, block: int) -> int:
    """Returns the number of blocks that hold `size` elements."""
    return -(-size // block)


def _padded(array: Array, multiples: tuple[int, ...]) -> Array:
    fill = [(0, -size % m) for size, m in zip(array.shape, multiples, strict=True)]
    return np.pad(array, fill)


def pack_data(data: Array, config: Config) -> Array:
    """Returns `[n, c, h, w]` as `[n/batch * c/block_in * h * w, batch, block_in]`."""
    full = _padded(data, (config.batch, config.block_in, 1, 1))
    n, c, h, w = full.shape
    split = full.reshape(
        n // config.batch, config.batch, c // config.block_in, config.block_in, h, w
    )
    packed = split.transpose(0, 2, 4, 5, 1, 3)
    return np.ascontiguousarray(packed).reshape(-1, config.batch, config.block_in)


def unpack_data(elements: Array, shape: tuple[int, int, int, int], config: Config) -> Array:
    """Returns elements of `out` as the tensor `[n, c, h, w]` of a shape."""
    n, c, h, w = shape
    groups, channels = blocks(n, config.batch), blocks(c, config.block_out)
    split = elements.reshape(groups, channels, h, w, config.batch, config.block_out)
    full = split.transpose(0, 4, 1, 5, 2, 3).reshape(
        groups * config.batch, channels * config.block_out, h, w
    )
    return np.ascontiguousarray(full[:n, :c])


def pack_weights(weights: Array, config: Config) -> Array:
    """Returns `[o, c, kh, kw]` as `[o/block_out * c/block_in * kh * kw, block_out, block_in]`."""
    full = _padded(weights, (config.block_out, config.block_in, 1, 1))
    o, c, kh, kw = full.shape
    block_out, block_in = config.block_out, config.block_in
    split = full.reshape(o // block_out, block_out, c // block_in, block_in, kh, kw)
    packed = split.transpose(0, 2, 4, 5, 1, 3)
    return np.ascontiguousarray(packed).reshape(-1, block_out, block_in)


def pack_bias(bias: Array, config: Config) -> Array:
    """Returns `i32[o]` as `[o/block_out, batch, block_out]`, equal for all of a batch."""
    full = _padded(bias.astype(np.int32), (config.block_out,)).reshape(-1, 1, config.block_out)
    return np.ascontiguousarray(np.repeat(full, config.batch, axis=1))
