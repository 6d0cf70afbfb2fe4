"""What calibration compiles and computes: two programs that share kernels, sums by channel, and
progress with the time that is left.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_models import convolutional, drawn

import clew
from clew.quantization import Quantized, Scheme
from clew.quantization import observe as observed
from clew.quantization.progress import Progress
from clew.quantization.ranges import (
    Histogram,
    Histograms,
    _squared_error,
    chosen_grid,
    grid_of,
)
from clew.quantization.totals import channels_first, highest, lowest, squared, total, totals

Array = NDArray[Any]
SAMPLES = drawn(6, 3, 8, 8, seed=60)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[clew.CompiledModel]:
    """The models that are compiled during a test, for calibration."""
    made: list[clew.CompiledModel] = []
    original = clew.compile

    def kept(*args: Any, **options: Any) -> clew.CompiledModel:
        made.append(original(*args, **options))
        return made[-1]

    monkeypatch.setattr(observed, "compile", kept)
    return made


def quantized(**more: Any) -> Quantized:
    return clew.quantize(convolutional(), SAMPLES, **{"threads": 1, **more})


def relative(q: Quantized, **options: Any) -> float:
    """The error of the outputs of the quantized model as it is compiled for users."""
    exact, integers = (clew.compile(m, threads=1, **options) for m in (q.original, q.module))
    samples = SAMPLES[:, None]
    wanted, found = (
        np.stack([m.run({"image": s})["scores"] for s in samples]) for m in (exact, integers)
    )
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize(
    "more", [{}, {"sensitivities": True}, {"max_error": 1e-4}], ids=["plain", "alone", "bound"]
)
def test_two_programs_are_compiled(
    compiled: list[clew.CompiledModel], more: dict[str, Any]
) -> None:
    quantized(**more)
    assert len(compiled) == 2


def test_both_forms_of_a_layer_share_the_kernels_of_the_float_model(
    compiled: list[clew.CompiledModel],
) -> None:
    quantized()
    first, second = (
        {_anonymous(k.loops) for k in m.kernels if any("conv" in op for op in k.ops)}
        for m in compiled
    )
    assert second
    assert second <= first
    rounded = [k.ops for k in compiled[1].kernels if "dequantize" in k.ops]
    assert rounded
    assert all(ops[-1] == "dequantize" for ops in rounded)


def _anonymous(loops: Any) -> str:
    """The text of a kernel's loops without its name and comments."""
    return re.sub(r"kernel \w+| *//.*", "", str(loops))


@pytest.mark.parametrize("sums", ["float", "integer"])
@pytest.mark.parametrize("bias_correction", [True, False])
def test_the_error_is_that_of_the_quantized_model(sums: str, bias_correction: bool) -> None:
    q = quantized(scheme=Scheme(sums=sums, bias_correction=bias_correction))
    assert q.error == pytest.approx(relative(q), rel=1e-3)


@pytest.mark.parametrize("scheme", [Scheme.shifting(), Scheme(activations="dynamic")])
def test_the_error_of_other_schemes(scheme: Scheme) -> None:
    q = quantized(scheme=scheme)
    assert q.error == pytest.approx(relative(q), rel=1e-3)


def test_products_in_fewer_bits_do_not_round_integers() -> None:
    q = quantized(precision="bf16")
    assert q.error == pytest.approx(relative(q, precision="bf16"), rel=0.1)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((2, 5, 7, 9), -3),
        ((3, 4, 6), -1),
        ((1, 3, 90, 100), -3),
        ((9000, 4), -1),
        ((6,), -1),
        ((), -1),
    ],
)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_sums_by_channel(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    value = np.asarray(drawn(*shape, seed=61) + 3).astype(dtype)
    rows = channels_first(value, axis)
    wide = np.moveaxis(np.atleast_1d(value), axis, 0)
    wide = wide.reshape(len(wide), -1).astype("f8")
    np.testing.assert_array_equal(lowest(rows), wide.min(1))
    np.testing.assert_array_equal(highest(rows), wide.max(1))
    rtol = 3e-3 if dtype == "f2" else 1e-6
    np.testing.assert_allclose(totals(rows), wide.sum(1), rtol=rtol)
    np.testing.assert_allclose(squared(rows), (wide**2).sum(1), rtol=5e-6)
    assert total(squared(rows)) == pytest.approx(float((wide**2).sum()), rel=5e-6)


def test_sums_of_nothing() -> None:
    rows = channels_first(np.zeros((0, 4), "f"), -1)
    np.testing.assert_array_equal(totals(rows), np.zeros(4))
    np.testing.assert_array_equal(squared(rows), np.zeros(4))


def histograms(*parts: Array, bins: int = 0) -> Histogram:
    """The histogram of all elements of tensors without channels."""
    found = Histograms(bins=bins)
    for part in parts:
        found.add(np.reshape(part, (1, 1, -1)))
    return found.merged()


def test_distributions_are_counted_in_place() -> None:
    values = drawn(3, 40_000, seed=62)
    found = histograms(values)
    places = np.floor(values.reshape(-1).astype("f8") / found.width).astype(int) - found.first
    wanted = np.bincount(places, minlength=len(found.counts))
    assert np.abs(found.counts - wanted).sum() <= 20  # rounded into the next bin
    assert (found.low, found.high) == (values.min(), values.max())


@pytest.mark.parametrize("order", [1, -1])
def test_bins_grow_with_extremes(order: int) -> None:
    scales = np.logspace(-20, 3, 40)[::order]
    parts = [drawn(500, seed=n) * np.float32(s) for n, s in enumerate(scales)]
    parts = [np.zeros(100, np.float32), *parts]
    found, values = histograms(*parts), np.concatenate(parts)
    assert found.counts.sum() == len(values)
    assert len(found.counts) // 2 - 2 <= (found.high - found.low) / found.width <= 4096
    edges = found.width * (found.first + np.arange(len(found.counts) + 1.0))
    wanted = np.histogram(values, edges)[0]
    # Numbers close to 0 may have moved across it; others to the neighbour, where f32 rounds.
    assert np.abs(np.cumsum(found.counts - wanted)).max() <= 0.51 * len(values)
    away = np.abs(found.centers) > 2 * found.width
    assert np.abs(found.counts - wanted)[away].sum() <= 4


@pytest.mark.parametrize("size", [1e-42, 1e-36, 1.0, 1.7e38])
def test_distributions_of_every_scale(size: float) -> None:
    values = (np.linspace(-1, 1, 2049)[:-1] * size).astype("f4")
    found = histograms(values, bins=64)
    assert found.counts.sum() == 2048
    used = found.counts[found.counts > 0]
    assert len(used) in range(32, 35)
    assert np.abs(used[1:-1] - 64).max() <= 1 or size < 1e-40  # too few numbers for even bins


@pytest.mark.parametrize("shape", [(2, 300, 9), (40, 300, 1)])
def test_channels_are_divided_after_they_are_counted(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(64)
    sizes = rng.lognormal(0, 2, 300).astype("f4")
    sizes[7] = 0  # a channel of zeros
    numbers = np.where(sizes > 0, sizes, 1) * rng.uniform(0.5, 2, 300).astype("f4")
    found, divided = Histograms(300), []
    for seed in range(3):
        values = drawn(*shape, seed=seed) * sizes[:, None]
        found.add(values)
        divided.append(values / numbers[:, None])
    merged, wanted = found.merged(numbers), histograms(*divided)
    assert merged.counts.sum() == pytest.approx(wanted.counts.sum())
    assert (merged.low, merged.high) == pytest.approx((wanted.low, wanted.high))
    shares = [
        np.interp(np.linspace(h.low, h.high, 65), h.centers, np.cumsum(h.counts))
        for h in (merged, wanted)
    ]
    np.testing.assert_allclose(shares[0], shares[1], atol=0.01 * wanted.counts.sum())
    for dtype in ("u8", "i8"):
        found_, best = (chosen_grid(h, dtype, "mse", 99.99) for h in (merged, wanted))
        losses = _squared_error(wanted, [found_, best])
        assert losses[0] <= 1.01 * losses[1]


def test_channels_of_zeros() -> None:
    found = Histograms(3)
    found.add(np.zeros((2, 3, 4), "f"))
    assert (found.merged().low, found.merged().high) == (0, 0)
    assert found.merged().counts.sum() == 24


def test_the_errors_of_grids_are_those_of_each_bin() -> None:
    found = histograms(np.append(drawn(20_000, seed=63), np.float32([-3, 5])), bins=512)
    grids = [grid_of(-3 * n / 20, 5 * m / 20, "u8") for n in range(1, 20) for m in (1, 9, 20)]
    grids.append(grid_of(-0.01, 0.01, "u8"))  # whose steps are finer than bins
    centers = found.centers
    for grid, error in zip(grids, _squared_error(found, grids), strict=True):
        inside = (centers >= grid.low) & (centers <= grid.high)
        squares = (grid.quantized(centers) - centers) ** 2
        within = grid.scale**2 / 12 if grid.scale > found.width else squares
        wanted = found.counts @ np.where(inside, within, squares)
        assert error == pytest.approx(wanted, rel=1e-9)


def test_progress_says_how_long_the_rest_takes() -> None:
    said: list[str] = []
    times = iter([0.0, 0.0, 10.0, 400.0, 420.0])
    progress = Progress(said.append, lambda: next(times))
    assert list(progress.over("ranges", "abcd")) == ["a", "b", "c", "d"]
    assert said == [
        "ranges: sample 1 of 4",
        "ranges: sample 2 of 4, 30 s left",
        "ranges: sample 3 of 4, 7 min left",
        "ranges: sample 4 of 4, 2 min left",
    ]
