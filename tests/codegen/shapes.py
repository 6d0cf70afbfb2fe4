"""Operator calls that code generation makes a difference of: extents beside multiples of a vector,
which axis is contiguous, dtypes, no axes and no elements.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import clew.ops  # noqa: F401
from clew.ir.types import TensorType, is_float, to_numpy
from clew.ops.registry import Op, get_op

WIDTHS = (1, 3, 7, 8, 15, 16, 17, 31, 33)
FLOATS = ("f16", "bf16", "f32", "f64")
SIGNED = ("i8", "i16", "i32", "i64")
INTEGERS = (*SIGNED, "u8", "u16", "u32", "u64")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One call. `low` and `high` bound the values of its inputs."""

    op: Op
    args: tuple[TensorType | Array, ...]
    attrs: dict[str, Any]
    low: float
    high: float

    @property
    def name(self) -> str:
        """Names the case in a test report."""
        args = (str(a) if isinstance(a, TensorType) else f"array{a.shape}" for a in self.args)
        attrs = (f"{k}={v}" for k, v in self.attrs.items())
        return f"{self.op.name}({', '.join((*args, *attrs))})"

    def arrays(self) -> list[Array]:
        """Returns inputs, the same at each call."""
        rng = np.random.default_rng(zlib.crc32(self.op.name.encode()))
        return [self._array(rng, a) for a in self.args]

    def _array(self, rng: np.random.Generator, arg: TensorType | Array) -> Array:
        if not isinstance(arg, TensorType):
            return np.asarray(arg)
        if arg.dtype == "bool":
            return rng.random(arg.concrete) < 0.5
        if is_float(arg.dtype):
            values: Array = rng.uniform(self.low, self.high, arg.concrete)
        else:
            low = 0 if arg.dtype[0] == "u" else int(self.low)
            values = rng.integers(low, int(self.high) + 1, arg.concrete)
        return np.asarray(values).astype(to_numpy(arg.dtype))


@dataclass
class _Cases:
    found: dict[str, Case] = field(default_factory=dict)

    def add(self, op: str, *args: Any, low: float = -2.0, high: float = 2.0, **attrs: Any) -> None:
        """Adds a call; inputs are `(dtype, *shape)` or arrays."""
        types = tuple(TensorType(a[1:], a[0]) if isinstance(a, tuple) else a for a in args)
        case = Case(get_op(op), types, attrs, low, high)
        self.found.setdefault(case.name, case)


def _elementwise(c: _Cases) -> None:
    for w in WIDTHS:
        c.add("add", ("f32", 3, w), ("f32", 3, w))
        c.add("add", ("f32", 3, w), ("f32", w))
        c.add("subtract", ("f32", 3, w), ("f32", 3, 1))
        c.add("subtract", ("f32", 1, w), ("f32", 5, 1))
        c.add("multiply", ("f32", 2, 1, w), ("f32", 3, 1))
        c.add("divide", ("f32", w), ("f32",), low=0.5)
        c.add("where", ("bool", 3, w), ("f32", w), ("f32", 3, 1))
        c.add("less", ("f32", 2, w), ("f32", 2, w))
        c.add("logical_not", ("bool", w))
        for dtype in FLOATS:
            c.add("exp", (dtype, w))
            c.add("nn.relu", (dtype, 2, w))
        for dtype in INTEGERS:
            c.add("multiply", (dtype, w), (dtype, w))
    for dtype in (*FLOATS, *INTEGERS):
        for name in ("add", "subtract", "multiply", "maximum", "minimum"):
            c.add(name, (dtype, 17), (dtype, 17))
        for name in ("equal", "less", "greater_equal"):
            c.add(name, (dtype, 17), (dtype, 17))
        for to in (*FLOATS, *INTEGERS, "bool"):
            c.add("cast", (dtype, 19), dtype=to, low=-9.0 if to[0] != "u" else 0.0, high=9.0)
    for dtype in ("bool", *FLOATS, *SIGNED):
        c.add("where", ("bool", 17), (dtype, 17), (dtype, 17))
        c.add("cast", ("bool", 19), dtype=dtype)
    for name in ("log", "tanh", "erf", "sqrt", "sigmoid", "sin"):
        for dtype in FLOATS:
            c.add(name, (dtype, 33), low=0.25)


def _reductions(c: _Cases) -> None:
    for w in WIDTHS:
        for name in ("sum", "max", "mean", "prod"):
            c.add(name, ("f32", 3, w), axes=(1,))
            c.add(name, ("f32", 3, w), axes=(0,), keepdims=False)
            c.add(name, ("f32", w, 3), axes=(0, 1), keepdims=False)
        c.add("sum", ("f32", 2, w, 5), axes=(1,))
        c.add("sum", ("f32", 2, w, 5), axes=(0, 2))
        c.add("max", ("f32", 5, 3, w), axes=(0, 2), keepdims=False)
        c.add("min", ("i32", 3, w), axes=(1,))
        c.add("all", ("bool", 3, w), axes=(1,))
        c.add("any", ("bool", w, 3), axes=(0,))
        c.add("logsumexp", ("f32", 3, w), axes=(1,))
        for axis in (0, 1):
            c.add("argmax", ("f32", 3, w), axis=axis)
            c.add("nn.softmax", ("f32", 4, w), axis=axis)
            c.add("nn.log_softmax", ("f32", w, 5), axis=axis)
            c.add("cumsum", ("f32", w, 4), axis=axis)
        c.add("nn.softmax", ("f32", 2, w, 3), axis=1)
        c.add("nn.layer_norm", ("f32", 2, 3, w), ("f32", w), ("f32", w), axis=-1)
        c.add("nn.rms_norm", ("f32", 3, w), ("f32", w), axis=-1)
        c.add("nn.instance_norm", ("f32", 2, 3, w, 2), ("f32", 3), ("f32", 3))
    for dtype in (*FLOATS, *SIGNED, "u8"):
        for axis in (0, 1):
            c.add("sum", (dtype, 5, 33), axes=(axis,))
            c.add("max", (dtype, 5, 33), axes=(axis,))
    for dtype in FLOATS:
        c.add("nn.softmax", (dtype, 3, 33), axis=-1)
        c.add("nn.layer_norm", (dtype, 3, 33), (dtype, 33), (dtype, 33), axis=-1)


def _products(c: _Cases) -> None:
    for w in WIDTHS:
        c.add("nn.matmul", ("f32", w, 5), ("f32", 5, w))
        c.add("nn.matmul", ("f32", 3, w), ("f32", w, 4))
        c.add("nn.matmul", ("f32", w, w), ("f32", w))
        c.add("nn.matmul", ("f32", w), ("f32", w, 3))
        c.add("nn.matmul", ("f32", w), ("f32", w))
        c.add("nn.matmul", ("f32", 2, 1, 3, w), ("f32", 4, w, 2))
        c.add("nn.dense", ("f32", 3, 9), ("f32", w, 9))
        c.add("nn.dense", ("f32", 2, 3, w), ("f32", w, 40), weight_layout="KN")
        c.add("nn.conv2d", ("f32", 1, 3, 5, 6), ("f32", w, 3, 3, 3), padding=(1, 1, 1, 1))
        c.add("nn.conv2d", ("f32", 1, 2, w, w), ("f32", 5, 2, 1, 1), strides=(2, 2))
        c.add("nn.conv2d", ("f32", 1, w, 5, 7), ("f32", w, 1, 3, 3), groups=w)
        c.add("nn.conv1d", ("f32", 2, 3, w + 2), ("f32", 4, 3, 3))
        c.add("nn.conv2d_transpose", ("f32", 1, w, 3, 3), ("f32", w, 2, 2, 2), strides=(2, 2))
        c.add("nn.max_pool2d", ("f32", 1, 2, 6, w + 2), kernel=(3, 3), padding=(1, 1, 1, 1))
        c.add("nn.avg_pool2d", ("f32", 1, w, 6, 6), kernel=(2, 2), strides=(2, 2))
        c.add("nn.global_avg_pool2d", ("f32", 2, w, 3, w))
    for w in (64, 100, 130):  # one row
        c.add("nn.dense", ("f32", 1, 9), ("f32", 9, w), weight_layout="KN")
        c.add("nn.dense", ("f32", 1, 1, 33), ("f32", 33, w), weight_layout="KN")
        c.add("nn.matmul", ("f32", 7), ("f32", 7, w))
    for dtype in (*FLOATS, "i32", "i64"):
        c.add("nn.dense", (dtype, 1, 9), (dtype, 9, 150), weight_layout="KN")
        c.add("nn.matmul", (dtype, 5, 9), (dtype, 9, 33))
        c.add("nn.dense", (dtype, 5, 33), (dtype, 17, 33))
    for dtype in FLOATS:
        c.add("nn.conv2d", (dtype, 1, 3, 6, 6), (dtype, 17, 3, 3, 3))


def _attention(c: _Cases) -> None:
    def add(
        b: int, h: int, m: int, n: int, d: int, *mask: Any, shared: int = 1, **attrs: Any
    ) -> None:
        keys = ("f32", b, h // shared, n, d)
        c.add("nn.attention", ("f32", b, h, m, d), keys, keys, *mask, **attrs)

    for m in (1, 7, 17, 130):
        add(1, 2, m, m, 8)
        add(2, 1, m, 33, 33, causal=True)
        add(1, 2, 5, m, 64, ("f32", 1, 1, m))
        add(1, 2, m, 9, 16, ("f32", m, 9))
    add(2, 6, 40, 19, 33, ("bool", 2, 1, 40, 19), shared=3, guard="nan")
    add(2, 2, 40, 19, 8, ("bool", 40, 1), guard="nan")
    add(1, 1, 3, 4, 8, np.array([[0, -np.inf, 0, 0], [-np.inf] * 4, [-3e38] * 4], "f4"))
    for dtype in ("f16", "f64"):
        c.add("nn.attention", (dtype, 1, 2, 17, 8), (dtype, 1, 2, 9, 8), (dtype, 1, 2, 9, 8))
    orders = {"q_layout": "SBHD", "k_layout": "BHDS", "v_layout": "BSHD", "layout": "BDSH"}
    c.add("nn.attention", ("f32", 35, 2, 4, 8), ("f32", 2, 2, 8, 9), ("f32", 2, 9, 2, 40), **orders)
    orders = {"q_layout": "BHDS", "v_layout": "BHDS", "layout": "BSHD"}
    c.add("nn.attention", ("f32", 2, 4, 8, 20), ("f32", 2, 4, 9, 8), ("f32", 2, 4, 7, 9), **orders)
    for q, k in (((2, 2, 0, 8), (2, 2, 3, 8)), ((0, 2, 3, 8), (0, 2, 3, 8))):
        c.add("nn.attention", ("f32", *q), ("f32", *k), ("f32", *k))


def _windows(c: _Cases) -> None:
    """Depthwise convolutions and pooling: every edge of an image, plain and in blocks."""
    slides: list[dict[str, Any]] = [
        {"padding": (1, 1, 1, 1)},
        {"padding": (0, 2, 1, 0), "strides": (2, 2)},
        {"padding": (2, 1, 0, 3), "strides": (1, 3), "dilation": (2, 1)},
        {"padding": (2, 2, 2, 2), "dilation": (2, 2)},
        {"strides": (2, 1)},
    ]
    for n, w in enumerate(WIDTHS):
        slide = slides[n % len(slides)]
        size = (n % 3 + 3, w + 4)
        for taps in ((3, 3), (1, 5), (3, 2)):
            c.add("nn.conv2d", ("f32", 2, 3, *size), ("f32", 3, 1, *taps), groups=3, **slide)
            for block in (4, 16):
                layouts = {
                    "data_layout": f"NCHW{block}c", "weight_layout": f"OIHW{block}o",
                    "channels": 2 * block, "groups": 2 * block,
                }  # fmt: skip
                x, weight = ("f32", 1, 2, *size, block), ("f32", 2, 1, *taps, block)
                c.add("nn.conv2d", x, weight, **layouts, **slide)
            for op in ("nn.max_pool2d", "nn.avg_pool2d"):
                c.add(op, ("f32", 1, 3, *size), kernel=taps, **slide)
                c.add(op, ("f32", 2, 1, *size, 8), kernel=taps, layout="NCHW8c", **slide)
        c.add("nn.avg_pool2d", ("f32", 1, 2, 7, w + 2), kernel=(3, 3), padding=(1, 1, 1, 1),
              strides=(2, 2), ceil_mode=True, count_include_pad=True)  # fmt: skip
        c.add("nn.conv2d", ("f32", 1, 16, 9, w), ("f32", 16, 1, 7, 7), groups=16,
              padding=(3, 3, 3, 3))  # fmt: skip
        c.add("nn.conv2d", ("f32", 2, 6, 3, w), ("f32", 34, 3, 1, 1), groups=2)
        c.add("nn.lrn", ("f32", 2, n + 1, 3, w), size=n % 4 + 2)
        for dtype, block in (("f32", 16), ("f32", 32), ("bf16", 32), ("f32", 8)):
            c.add("nn.lrn", (dtype, 2, n % 3 + 1, 2, w, block), size=n % 4 + 2,
                  layout=f"NCHW{block}c")  # fmt: skip
    for dtype in FLOATS:
        c.add("nn.conv2d", (dtype, 1, 3, 6, 19), (dtype, 3, 1, 3, 3), groups=3, **slides[0])
    for dtype, block in (("bf16", 16), ("bf16", 32), ("f32", 32), ("f32", 24)):
        for slide in slides[:3]:
            c.add("nn.conv2d", (dtype, 1, 2, 6, 19, block), (dtype, 2, 1, 3, 3, block),
                  groups=2 * block, data_layout=f"NCHW{block}c", weight_layout=f"OIHW{block}o",
                  **slide)  # fmt: skip
    for dtype in (*FLOATS, "i8", "i64"):
        c.add("nn.max_pool2d", (dtype, 1, 3, 6, 19), kernel=(3, 3), **slides[1])
        for op in ("nn.max_pool2d", "nn.avg_pool2d") if dtype in FLOATS else ():
            c.add(op, (dtype, 1, 2, 6, 19, 32), kernel=(3, 3), layout="NCHW32c", **slides[1])
    for block in ((16, 32), (32, 16), (8, 32)):
        layouts = {"src_layout": f"NCHW{block[0]}c", "dst_layout": f"NCHW{block[1]}c"}
        for dtype in ("bf16", "f32"):
            c.add("layout_transform", (dtype, 1, 64 // block[0], 5, 3, block[0]), **layouts)


def _movement(c: _Cases) -> None:
    for w in WIDTHS:
        c.add("transpose", ("f32", w, 5), axes=(1, 0))
        c.add("transpose", ("f32", 3, w, 2), axes=(2, 0, 1))
        c.add("transpose", ("f32", 2, 3, w, 4), axes=(0, 2, 1, 3))
        c.add("reshape", ("f32", w, 6), shape=(3, 2 * w))
        for axis in (0, 1):
            c.add("concatenate", ("f32", w, w), ("f32", w, w), axis=axis)
            c.add("split", ("f32", w + 3, w + 3), sizes=(w, 3), axis=axis)
            c.add("gather", ("f32", w, w), np.array([0, w - 1, -1]), axis=axis)
            c.add("gather_elements", ("f32", 3, w), np.zeros((3, w), np.int64), axis=axis)
        c.add("slice", ("f32", 4, w), begin=(w - 1,), end=(-w - 1,), strides=(-2,), axes=(1,))
        for mode in ("constant", "edge"):
            c.add("pad", ("f32", 2, w), pads=(1, 2, 0, 3), mode=mode)
        c.add("tile", ("f32", 2, w), repeats=(2, 3))
        c.add("flip", ("f32", 2, w), axes=(1,))
        c.add("broadcast_to", ("f32", 3, 1), shape=(2, 3, w))
        c.add("one_hot", np.arange(w) % 5, ("f32", 2), depth=5)
        c.add("trilu", ("f32", w, w), k=1)
    for dtype in ("bool", *FLOATS, *SIGNED):
        c.add("transpose", (dtype, 17, 5), axes=(1, 0))
        c.add("concatenate", (dtype, 3, 5), (dtype, 3, 12), axis=1)
        c.add("gather", (dtype, 5, 17), np.array([[0, 4], [2, 1]]), axis=0)


def _blocks(c: _Cases) -> None:
    """Images in short blocks of channels: vectors over pixels and channels."""
    for n, w in enumerate((*WIDTHS, 64, 70)):
        for dtype, block in (("f32", 4), ("f32", 2), ("bf16", 4), ("bf16", 8), ("f64", 2)):
            c.add("layout_transform", (dtype, 1, n % 3 + block - 1, n % 4 + 1, w),
                  src_layout="NCHW", dst_layout=f"NCHW{block}c")  # fmt: skip
        c.add("transpose", ("f32", 2, 4, 3, w), axes=(0, 2, 3, 1))
        c.add("transpose", ("f16", 2, 3, w), axes=(0, 2, 1))


def _degenerate(c: _Cases) -> None:
    """No axes, and no elements."""
    c.add("add", ("f32",), ("f32",))
    c.add("exp", ("f64",))
    c.add("where", ("bool",), ("i64",), ("i64",))
    c.add("reshape", ("f32", 1, 1), shape=())
    c.add("sum", ("f32", 7), axes=(0,), keepdims=False)
    c.add("gather", ("f32", 7), np.array(3), axis=0)
    for shape in ((0,), (0, 5), (5, 0), (2, 0, 3)):
        c.add("add", ("f32", *shape), ("f32", *shape))
        c.add("cast", ("f32", *shape), dtype="i32")
        c.add("transpose", ("f32", *shape), axes=tuple(reversed(range(len(shape)))))
        c.add("sum", ("f32", *shape), axes=(len(shape) - 1,))
        c.add("sum", ("f32", *shape), axes=(0,), keepdims=False)
    c.add("nn.matmul", ("f32", 3, 0), ("f32", 0, 4))
    c.add("nn.matmul", ("f32", 0, 3), ("f32", 3, 4))
    c.add("nn.softmax", ("f32", 0, 4), axis=-1)
    c.add("concatenate", ("f32", 2, 0), ("f32", 2, 3), axis=1)
    c.add("prod", ("i32", 0, 3), axes=(0,))
    c.add("all", ("bool", 0, 3), axes=(0,))


_GROUPS = (
    _elementwise, _reductions, _products, _attention, _windows, _movement, _blocks, _degenerate,
)  # fmt: skip


def groups() -> dict[str, list[Case]]:
    """Returns the cases by kind."""
    made: dict[str, list[Case]] = {}
    for group in _GROUPS:
        cases = _Cases()
        group(cases)
        made[group.__name__.strip("_")] = list(cases.found.values())
    return made
