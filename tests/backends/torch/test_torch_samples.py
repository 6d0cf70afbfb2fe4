"""Every sample of every operator with a rule, on torch and in NumPy."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Final

import numpy as np
import pytest
from region_samples import Case, same

import clew.frontends.onnx  # noqa: F401  registers an operator
from clew.backends.torch.backend import Torch
from clew.backends.torch.region import TorchRegion
from clew.backends.torch.registry import built_operators
from clew.ir.expr import Function
from clew.ops.registry import Op, Sample, all_ops, get_op

from ...operator_groups import ELSEWHERE_UNKNOWN

_OPS: Final = [op for op in all_ops() if op.is_builtin and op.name in built_operators()]

# Operators whose calls torch does not run, by reason.
_WITHOUT_RULE: Final = {
    **ELSEWHERE_UNKNOWN,
    "no operator of torch, or none with the same result for all values": """
        cholesky complex_multiply det dft extremes forest.leaves forest.votes frames inverse
        mel_weight_matrix nn.col2im nn.deform_columns nn.max_pool_places nn.max_roi_pool
        nn.roi_align rescale rescale_away resize_u8 reverse_sequence scale_fixed stft
        svm.coupled tensor_scatter window
    """,
    "storage": "block_steps dequantize_offset nn.dense_codes round_blocks to_exponent",
    "cheap enough elsewhere": "count_nonzero",
}

# Samples whose accuracy is stated to be lower.
_LOOSE: Final = {"nn.gelu-5": 5e-5, "nn.gelu-6": 5e-5}


def _on_torch(region: Function) -> TorchRegion:
    return TorchRegion(region, 1)


def _samples(op: Op) -> list[tuple[int, Sample]]:
    return [(n, s) for n, s in enumerate(op.samples) if not s.error]


@pytest.mark.parametrize("op", _OPS, ids=[op.name for op in _OPS])
@pytest.mark.parametrize("brought", [None, 0], ids=["values", "constants"])
def test_samples(op: Op, brought: int | None) -> None:
    for n, sample in _samples(op):
        case = Case(op, n, sample, brought=brought)
        if Torch().takes(case.call):
            same(case.found(_on_torch), case.expected(), _LOOSE.get(case.name, 1e-5))


_VALUES: Final = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 300.5, -129.7, 65500.0, 1e-40, 2.5, -2.5, 0.5,
     3e9, -3e9, 1e10]
)  # fmt: skip
# Sums round differently where numbers of all magnitudes meet; others are exact.
_EXACT: Final = """
    abs add argmax argmin cast ceil clip concatenate cummax cummin divide equal exp flip floor
    floor_mod gather gather_elements greater isinf isnan less max maximum min minimum mod multiply
    negative nn.celu nn.elu nn.global_max_pool2d nn.hard_sigmoid nn.hard_swish nn.leaky_relu
    nn.log_softmax nn.max_pool2d nn.mish nn.prelu nn.relu nn.selu nn.shrink nn.silu nn.softmax
    nn.softplus nn.softsign nn.swish nn.thresholded_relu pad power reciprocal quantize reshape
    round rsqrt scatter_elements sign sigmoid sqrt subtract tanh top_k transpose trilu trunc where
"""


@pytest.mark.parametrize("name", _EXACT.split())
def test_extreme_values(name: str) -> None:
    """NaN, infinities and numbers beyond the range of integers, in place of drawn numbers."""
    op, rng, ran = get_op(name), np.random.default_rng(5), 0
    for dtype in ("f4", "f8", "f2"):
        for n, sample in _samples(op):
            if not any(map(_is_f32, sample.args)):
                continue
            with np.errstate(over="ignore"):
                args = [
                    rng.choice(_VALUES, a.concrete).astype(dtype) if _is_f32(a) else a
                    for a in sample.args
                ]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                case = Case(op, n, Sample(*args, **sample.attrs))
                if Torch().takes(case.call):
                    same(case.found(_on_torch), case.expected())
                    ran += 1
    assert ran


def _is_f32(arg: object) -> bool:
    return not isinstance(arg, np.ndarray) and getattr(arg, "dtype", "") == "f32"


def test_operators_without_a_rule_are_known() -> None:
    known = [name for part in _WITHOUT_RULE.values() for name in part.split()]
    assert sorted(known) == sorted(
        op.name for op in all_ops() if op.is_builtin and op.name not in built_operators()
    )


def test_reasons_of_refused_samples() -> None:
    """All samples run on torch, except those refused for one of these reasons."""
    found: Counter[str] = Counter()
    for op in _OPS:
        for n, sample in _samples(op):
            reason = Torch().why_not(Case(op, n, sample).call)
            found[next((part for part in _PARTS if part in reason), reason)] += 1
    assert found == _REFUSED


_REFUSED: Final = {
    "": 679,
    "has no elements": 50,
    "layout": 17,
    "laid out": 17,
    "does not compute in": 9,
    "packed": 9,
    "in parts": 4,
    "without dilation": 3,
    "nonzero bits": 2,
    "infinite positions": 3,
    "axes in mode": 2,
    "positions in the dtype": 2,
    "no regions": 2,
    "exponents": 1,
    "out of the range": 1,
    "single element": 1,
}
_PARTS: Final = [part for part in _REFUSED if part]


@pytest.mark.parametrize("dtype", ["u2", "u4", "u8"])
def test_unsigned_integers_are_refused(dtype: str) -> None:
    array = np.arange(3, dtype=dtype)
    reason = Torch().why_not(Case(get_op("add"), 0, Sample(array, array)).call)
    assert reason == f"torch does not compute in u{8 * int(dtype[1])}"


@pytest.mark.parametrize("depth", [3, 200, 70_000])
@pytest.mark.parametrize("brought", [None, 0], ids=["values", "constants"])
def test_sums_of_integers_are_exact(depth: int, brought: int | None) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(200, 255, (2, depth), endpoint=True).astype(np.uint8)
    w = rng.integers(100, 127, (3, depth), endpoint=True).astype(np.int8)
    w[0] = -128  # 70,000 products of 255 and -128 wrap
    case = Case(get_op("nn.dense"), 0, Sample(x, w), brought=brought)
    same(case.found(_on_torch), case.expected())


@pytest.mark.parametrize("name", ["i1", "i2", "i4", "i8"])
def test_divisors_that_trap(name: str) -> None:
    least = np.iinfo(name).min
    a = np.array([least, least, 7, -7, 7, 0], name)
    b = np.array([-1, 0, -1, 0, -2, 0], name)
    for op in ("divide", "mod", "floor_mod"):
        for brought in (None, 0):
            case = Case(get_op(op), 0, Sample(a, b), brought=brought)
            with np.errstate(all="ignore"):
                expected = case.expected()
            same(case.found(_on_torch), expected)


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1), (2, 1, 0, 2)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i1"])
def test_maxima_of_many_channels(padding: tuple[int, ...], dtype: str) -> None:
    """Torch has another kernel for these."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((2, 37, 9, 8)) * 50).astype(dtype)
    if dtype != "i1":
        x[rng.random(x.shape) < 0.05] = np.nan
        x[rng.random(x.shape) < 0.05] = -np.inf
    window = {"kernel": (3, 2), "strides": (2, 1), "padding": padding}
    case = Case(get_op("nn.max_pool2d"), 0, Sample(x, **window))
    if dtype != "i1" or padding[0] == padding[2]:
        found = case.found(_on_torch)
        same(found, case.expected())
        assert found[0].flags.c_contiguous
    else:
        assert "padding of integers" in Torch().why_not(case.call)
