"""ONNX Runtime's operators, one form of each family, compiled: the other tests of them interpret
what they are imported to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .one_node import RNG, agrees, draw

MS = "com.microsoft"


def ints(most: int, *shape: int, dtype: str = "u1") -> Any:
    return RNG.integers(0, most, shape).astype(dtype)


def f(*values: float) -> Any:
    return np.array(values[0] if len(values) == 1 else values, "f4")


ANGLE = np.arange(16)[:, None] / 7.0 ** np.linspace(0, 1, 8)
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "SkipLayerNormalization": (
        {"x": draw(2, 5, 24), "s": draw(5, 24), "g": draw(24), "b": draw(24), "c": draw(24)},
        ("g", "b", "c"), {"results": ("y", "", "", "sum")},
    ),
    "EmbedLayerNormalization": (
        {"ids": ints(20, 2, 6, dtype="i4"), "seg": ints(2, 2, 6, dtype="i4"), "w": draw(20, 24),
         "p": draw(9, 24), "st": draw(2, 24), "g": draw(24), "b": draw(24)},
        ("w", "p", "st", "g", "b"), {"results": ("y", "lengths")},
    ),
    "Attention": (
        {"x": draw(2, 5, 12), "w": draw(12, 48), "b": draw(48),
         "m": np.array([[0, 1, 1, 1, 1], [1, 1, 0, 1, 1]], "i4")},
        ("w", "b"), {"num_heads": 2, "unidirectional": 1},
    ),
    "MultiHeadAttention": (
        {"q": draw(2, 5, 16), "k": draw(2, 5, 16), "v": draw(2, 5, 16), "b": draw(48), "m": None,
         "a": draw(1, 2, 5, 8), "pk": draw(2, 2, 3, 8), "pv": draw(2, 2, 3, 8)},
        ("b",), {"num_heads": 2, "results": ("y", "keys", "values")},
    ),
    "GroupQueryAttention": (
        {"q": draw(2, 1, 64), "k": draw(2, 1, 32), "v": draw(2, 1, 32), "pk": draw(2, 2, 5, 16),
         "pv": draw(2, 2, 5, 16), "last": np.array([5, 5], "i4"), "total": np.array(6, "i4"),
         "cos": np.cos(ANGLE).astype("f4"), "sin": np.sin(ANGLE).astype("f4")},
        ("total", "cos", "sin"),
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "softcap": 2.0,
         "results": ("y", "keys", "values")},
    ),
    "FusedConv": (
        {"x": draw(1, 4, 7, 9), "w": draw(6, 4, 3, 3), "b": draw(6), "z": draw(1, 6, 5, 7)},
        ("w", "b"), {"activation": "Clip", "activation_params": [-0.4, 0.6]},
    ),
    "FusedMatMul": (
        {"a": draw(5, 2, 3, 6), "b": draw(2, 3, 7, 6)}, (),
        {"transBatchA": 1, "transB": 1, "alpha": 0.5},
    ),
    "QLinearAveragePool": (
        {"x": ints(256, 1, 7, 5, 6), "xs": f(0.03), "xz": ints(99), "ys": f(0.01), "yz": ints(9)},
        ("xs", "xz", "ys", "yz"),
        {"kernel_shape": [3, 3], "pads": [1] * 4, "channels_last": 1, "atol": 1},
    ),
    "DynamicQuantizeMatMul": (
        {"a": draw(5, 16), "w": ints(256, 16, 7), "s": f(0.02), "z": ints(256), "b": draw(7)},
        ("w", "s", "z", "b"), {"atol": 1e-3},
    ),
    "QAttention": (
        {"x": ints(256, 2, 5, 12), "w": ints(256, 12, 48), "b": draw(48), "xs": f(0.01),
         "ws": f(0.01), "m": np.array([4, 2], "i4"), "xz": ints(256), "wz": ints(256)},
        ("w", "b", "xs", "ws", "xz", "wz"), {"num_heads": 2},
    ),
    "DynamicQuantizeLSTM": (
        {"x": draw(4, 2, 5), "w": ints(64, 1, 5, 24, dtype="i1"),
         "r": ints(64, 1, 6, 24, dtype="i1"), "b": draw(1, 48),
         "l": np.array([4, 2], "i4"), "h": None, "c": None, "p": None,
         "ws": f(0.01).reshape(1), "wz": ints(1, 1, dtype="i1"), "rs": f(0.01).reshape(1),
         "rz": ints(1, 1, dtype="i1")},
        ("w", "r", "ws", "wz", "rs", "rz"), {"hidden_size": 6, "count": 3, "atol": 2e-2},
    ),
    "MatMulNBits": (
        {"x": draw(3, 40), "w": ints(256, 24, 3, 8), "s": draw(24, 3), "z": ints(256, 24, 2)},
        ("w", "s", "z"), {"N": 24, "K": 40, "bits": 4, "block_size": 16, "atol": 1e-3},
    ),
    "GatherBlockQuantized": (
        {"data": ints(256, 6, 24), "ids": ints(6, 2, 4, dtype="i8"), "s": draw(6, 3)},
        ("data", "s"), {"block_size": 16, "bits": 4},
    ),
    "NhwcMaxPool": ({"x": ints(256, 2, 7, 9, 4)}, (), {"kernel_shape": [3, 2]}),
    "MoE": (
        {"x": draw(5, 16), "r": draw(5, 4), "w": draw(4, 16, 16), "b": draw(4, 16),
         "v": draw(4, 16, 8), "c": draw(4, 16)},
        ("w", "b", "v", "c"),
        {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "atol": 1e-3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("op", CASES)
def test_compiled(op):
    inputs, known, options = CASES[op]
    agrees(op, inputs, by="ort", domain=MS, known=known, **options)
