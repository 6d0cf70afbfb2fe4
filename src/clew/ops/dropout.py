"""Numbers drawn for dropout. They come from numpy, as those of ONNX's reference do."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.ir.types import TensorType, Type
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError

Array = np.ndarray[Any, Any]


@register_op(
    "nn.dropout_draw",
    host=True,
    samples=(
        Sample(shape=(3, 4), seed=7),
        Sample(shape=(), seed=0),
        Sample(shape=(2, -1), seed=0, error="T107"),
    ),
)
def dropout_draw(*, shape: tuple[int, ...], seed: int = -1) -> Array:
    """Numbers spread evenly over [0, 1), `f64`: those of numpy's Mersenne Twister with a `seed`,
    others in each run with -1. Source: ONNX Dropout-22.
    """
    generator = np.random.RandomState(None if seed == -1 else seed % (1 << 32))
    return np.asarray(generator.uniform(0, 1.0, shape))


@dropout_draw.types
def _dropout_draw_types(*, shape: tuple[int, ...], seed: int) -> Type:
    if any(isinstance(n, int) and n < 0 for n in shape):
        raise GraphTypeError("T107", f"nn.dropout_draw: shape {shape}")
    return TensorType(shape, "f64")
