"""Weights that are quantized alone, against references written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto
from small_models import convolutional, drawn, model, node, stack

import clew
from clew.quantization import Quantized, Recipe, Rule, Scheme, Where
from clew.quantization.groups import Grouped, compensated, nearest, output_error
from clew.support.errors import ClewError

Array = NDArray[Any]
ONLY = Scheme.weight_only
K, N = 40, 12
LIMITS = {"i4": (-8, 7), "u4": (0, 15), "i8": (-127, 127), "u8": (0, 255)}


def one_dense(weight: Array, rows: int = 4) -> ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["y"], name="fc")]
    depth, count = weight.shape
    return model(nodes, {"x": [rows, depth]}, {"y": [rows, count]}, {"w": weight})


def result(q: Quantized, x: Array) -> Array:
    (found,) = q.compile(threads=1).run({"x": x}).values()
    return np.asarray(found)


def extremes(group: Array, dtype: str) -> tuple[np.float32, int]:
    """Returns the scale, in `f16`, and the zero point of a group by its extremes."""
    scale, zero = exact_extremes(group, dtype)
    return np.float32(np.float16(scale)), zero


def exact_extremes(group: Array, dtype: str) -> tuple[np.float32, int]:
    low, high = LIMITS[dtype]
    least, most = np.float32(min(group.min(), 0)), np.float32(max(group.max(), 0))
    if dtype[0] == "u":
        scale = (most - least) / np.float32(high)
        return scale, int(np.clip(np.rint(-least / scale), low, high))
    if dtype == "i8":
        return max(-least, most) / np.float32(127), 0
    if -least >= most:  # the larger side gets the larger limit
        return max(-least / np.float32(8), most / np.float32(7)), 0
    return -max(most / np.float32(8), -least / np.float32(7)), 0


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("group", [16, 0])
def test_integers_and_results(dtype: str, group: int) -> None:
    weight = drawn(K, N, scale=0.3) + np.float32(0.1)
    q = clew.quantize(
        one_dense(weight), scheme=ONLY(dtype, group=group, weight_range="minmax"), threads=1
    )
    (p,) = q.parameters
    low, high = LIMITS[dtype]
    values = np.zeros((N, K), np.float32)
    for n in range(N):
        for g, first in enumerate(range(0, K, group or K)):
            part = weight[first : first + (group or K), n]
            scale, zero = extremes(part, dtype)
            whole = np.clip(np.rint(part / scale) + zero, low, high)
            assert (p.scales[n, g], p.zeros[n, g]) == (scale, zero)
            np.testing.assert_array_equal(p.weight[n, first : first + len(part)], whole)
            values[n, first : first + len(part)] = (whole - zero) * scale
    x = drawn(4, K, seed=3)
    np.testing.assert_allclose(result(q, x), x @ values.T, rtol=0, atol=1e-5)
    step = np.abs(p.scales).max()
    assert np.abs(values - weight.T).max() <= step * (0.51 if dtype[0] == "i" else 1.01)


@pytest.mark.parametrize("dtype", ["i4", "u4"])
def test_scales_of_least_error(dtype: str) -> None:
    rows = drawn(30, 16)
    rows[3, 5] = 6.0  # far from the others
    rows[4] = 0
    limits, symmetric = LIMITS[dtype], dtype[0] == "i"
    plain, found = (
        nearest(rows, 16, limits, method, symmetric=symmetric) for method in ("minmax", "mse")
    )
    errors = [((g.values - rows) ** 2).sum(1) for g in (plain, found)]
    assert (errors[1] <= errors[0] * 1.0001).all()
    assert errors[1].sum() < 0.92 * errors[0].sum()
    assert errors[1][4] == 0
    for n in range(4):  # no worse than the best of a thousand
        best = np.inf
        for scale in np.linspace(0.3, 1.1, 1000) * np.abs(rows[n]).max() / 7:
            zeros = [0] if symmetric else [round(-rows[n].min() / scale)]
            for zero in zeros:
                whole = np.clip(np.rint(rows[n] / scale) + zero, *limits)
                best = min(best, float((((whole - zero) * scale - rows[n]) ** 2).sum()))
        assert errors[1][n] < 1.2 * best


def test_importance_of_channels() -> None:
    rows = drawn(20, 32)
    importance = np.geomspace(1, 1000, 32).astype("f")
    errors = []
    for by in (None, importance):
        found = nearest(rows, 32, (0, 15), "mse", symmetric=False, importance=by)
        errors.append(float((importance * (found.values - rows) ** 2).sum()))
    assert errors[1] < 0.9 * errors[0]


def test_data_give_the_importance_of_channels() -> None:
    large = np.ones(K, "f")
    large[7] = 30
    data = drawn(64, K, seed=2) * large
    scheme = ONLY("i4", group=0, migration=False, bias_correction=False)
    networks = [clew.quantize(one_dense(drawn(K, N)), d, scheme=scheme) for d in (None, data)]
    plain, aware = (q.parameters[0] for q in networks)
    assert (plain.decided, aware.decided) == (False, True)
    exact = plain.site.weight.data
    errors = [np.abs((p.weight * p.scales - exact)[:, 7]).mean() for p in (plain, aware)]
    assert errors[1] < 0.5 * errors[0]


def correlated(count: int, depth: int, seed: int = 0) -> Array:
    """Returns inputs of few directions, with little else."""
    rng = np.random.default_rng([seed, 77])
    mixing = np.random.default_rng(5).standard_normal((depth // 4, depth))
    found = rng.standard_normal((count, depth // 4)) @ mixing
    return (found + 0.2 * rng.standard_normal((count, depth))).astype("f")


def by_elimination(rows: Array, start: Grouped, limits: tuple[int, int], gram: Array) -> Array:
    """Returns the integers of optimal brain quantization: each column's error is spread over those
    that are left by the inverse of their part of the Gram matrix.
    """
    depth = rows.shape[1]
    inverse = np.linalg.inv(gram + 0.01 * np.mean(np.diag(gram)) * np.eye(depth))
    left, found = rows.astype(np.float64), np.zeros(rows.shape, np.int64)
    for column in np.argsort(-np.diag(gram), kind="stable"):
        group = column // start.size
        scale, zero = start.scales[:, group].astype(np.float64), start.zeros[:, group]
        found[:, column] = np.clip(np.rint(left[:, column] / scale) + zero, *limits)
        error = left[:, column] - (found[:, column] - zero) * scale
        left -= np.outer(error / inverse[column, column], inverse[column])
        inverse -= np.outer(inverse[:, column], inverse[column]) / inverse[column, column]
        inverse[column, column] = 1.0
    return found


@pytest.mark.parametrize("dtype", ["i4", "u4"])
def test_rounding_compensates_errors(dtype: str) -> None:
    depth, limits = 160, LIMITS[dtype]
    rows, x = drawn(10, depth), correlated(400, depth)
    gram = x.T @ x
    start = nearest(rows, 32, limits, "minmax", symmetric=dtype[0] == "i")
    said: list[str] = []
    found = compensated(rows, start, limits, gram, said.append)
    wanted = by_elimination(rows, start, limits, gram.astype(np.float64))
    assert (found.integers == wanted).mean() > 0.99  # sums of f32 may fall on the other side
    errors = [output_error(rows, g.values, gram) for g in (start, found)]
    assert errors[1] < 0.5 * errors[0]
    exact = (x @ (found.values - rows).T).astype(np.float64)
    assert output_error(rows, found.values, gram) == pytest.approx((exact**2).sum(), rel=1e-3)
    assert said == ["column 128 of 160", "column 160 of 160"]


def test_a_gram_matrix_without_inputs() -> None:
    """Channels that are always 0, or all of them."""
    rows = drawn(3, 8)
    start = nearest(rows, 8, (0, 15), "mse", symmetric=False)
    for gram in (np.zeros((8, 8), "f"), np.diag([0, 1, 0, 2, 0, 0, 3, 0]).astype("f")):
        found = compensated(rows, start, (0, 15), gram, lambda _: None)
        np.testing.assert_array_equal(found.integers, start.integers)


def errors_of(network: ModelProto, data: Array, held: Array, **fields: Any) -> float:
    """Returns the error on inputs that were not used for calibration."""
    q = clew.quantize(network, data, scheme=ONLY(bias_correction=False, **fields), threads=1)
    exact = clew.compile(q.original, threads=1)(held)
    return float(np.linalg.norm(result(q, held) - exact) / np.linalg.norm(exact))


def test_error_compensation_and_scales_of_channels_help() -> None:
    depth = 64
    weight = drawn(depth, 32, scale=0.2)
    network = one_dense(weight, 16)
    data, held = correlated(256, depth), correlated(16, depth, seed=1)
    plain = errors_of(network, data, held, migration=False)
    gptq = errors_of(network, data, held, migration=False, rounding="gptq")
    assert gptq < 0.7 * plain

    large = np.ones(depth, "f")
    large[[3, 17, 40]] = 40  # salient channels
    data, held = (drawn(n, depth, seed=n) * large for n in (256, 16))
    nothing = {"weight_range": "minmax"}
    plain = errors_of(network, data, held, migration=False, **nothing)
    aware = errors_of(network, data, held, **nothing)
    assert aware < 0.6 * plain
    both = errors_of(network, data, held, rounding="gptq", **nothing)
    assert both < 0.6 * plain


def test_numbers_of_channels_are_one_multiplication() -> None:
    """Products of one value share it, and it is part of a kernel that computes the value."""
    large = np.ones(32, "f")
    large[5] = 60
    nodes = [
        node("Mul", ["x", "large"], ["h"], name="gain"),
        node("MatMul", ["h", "v"], ["p"], name="left"),
        node("MatMul", ["h", "w"], ["q"], name="right"),
        node("Mul", ["p", "q"], ["y"], name="gate"),
    ]
    constants = {"large": large, "v": drawn(32, 16, scale=0.2), "w": drawn(32, 16, seed=1)}
    network = model(nodes, {"x": [4, 32]}, {"y": [4, 16]}, constants)
    q = clew.quantize(network, drawn(64, 32), scheme=ONLY("i4"), threads=1)
    first, second = q.parameters
    np.testing.assert_array_equal(first.numbers, second.numbers)
    assert first.numbers[5] > 2 * np.median(first.numbers)
    assert str(q.module).count('"scale(gain)":quantize') >= 1
    assert sum(line.count("multiply(") for line in str(q.module).splitlines()) == 3
    compiled = q.compile(threads=1)
    assert compiled.trace.check() == []
    names = [k.name for k in compiled.kernels]
    before = [k.name for k in clew.compile(q.original, threads=1).kernels]
    assert len(names) == len(before), names
    assert q.times(threads=1)[0].layer == "left"


def test_convolutions_have_a_scale_for_each_output_channel() -> None:
    network, data = convolutional(), drawn(4, 3, 8, 8)
    q = clew.quantize(network, scheme=ONLY("i8", group=0, weight_range="minmax"), threads=1)
    stem, _, head = q.parameters
    weight = stem.site.weight.data.reshape(8, -1)
    scales = (np.abs(weight).max(1) / np.float32(127)).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(stem.scales, scales)
    np.testing.assert_array_equal(
        stem.weight.reshape(8, -1), np.clip(np.rint(weight / scales[:, None]), -127, 127)
    )
    assert head.block == 8
    exact, found = (clew.compile(m, threads=1)(data[:1]) for m in (q.original, q.module))
    assert 0 < np.abs(found - exact).max() < 0.02 * np.abs(exact).max()
    q = clew.quantize(network, data, scheme=ONLY("u4"), threads=1)
    assert [p.site.name for p in q.parameters] == ["head"]
    assert "group=0" in q.recipe.kept["stem.conv"]
    assert "group=0" in str(q)


def test_schemes_mix_in_a_model(tmp_path: Path) -> None:
    weights = [drawn(32, 32, seed=n, scale=0.25) for n in range(4)]
    network, data = stack(weights), drawn(64, 32)
    rules = [
        Rule(Where(first=1), {"weights": "i8", "group": 0, "activations": "u8"}),
        Rule(Where(layers=("fc2",)), {"weights": "i8", "group": 16, "rounding": "gptq"}),
        Rule(Where(last=1), keep=True),
    ]
    q = clew.quantize(network, data, scheme=ONLY(), rules=rules, sensitivities=True, threads=1)
    dtypes = [row.dtypes for row in q.layers]
    assert dtypes == [
        "u8 x i8", "float x u4 in groups of 32", "float x i8 in groups of 16", ""
    ]  # fmt: skip
    assert all(row.alone is not None and row.alone > 0 for row in q.layers[:3])
    again = clew.quantize(network, recipe=q.recipe)
    assert str(again.module) == str(q.module)
    found = q.compile(threads=1)
    for name in ("q.onnx", "q.txt"):
        q.save(tmp_path / name)
        loaded = clew.compile(clew.load(tmp_path / name), threads=1)
        np.testing.assert_array_equal(loaded(data[:4]), found(data[:4]))


def test_the_smallest_set_in_floats() -> None:
    weights = [drawn(32, 32, seed=n, scale=0.25) for n in range(4)]
    network, data = stack(weights), drawn(32, 32)
    whole = clew.quantize(network, data, scheme=ONLY(), threads=1).error
    assert whole is not None
    q = clew.quantize(network, data, scheme=ONLY(), max_error=0.7 * whole, threads=1)
    assert q.floats is not None
    assert 0 < len(q.floats.layers) < 4
    assert all(put.figure > 0.7 * whole for put in q.floats.proof)
    assert len(q.frontier) == 5
    again = clew.quantize(network, recipe=q.recipe)
    assert str(again.module) == str(q.module)


# --- recipes --------------------------------------------------------------------------------------

NET = stack([drawn(40, 40, seed=n, scale=0.2) for n in range(2)])
DATA = correlated(64, 40)
GPTQ = ONLY("i4", group=16, rounding="gptq")


@pytest.fixture(scope="module")
def decided() -> Quantized:
    return clew.quantize(NET, DATA, scheme=GPTQ, threads=1)


@pytest.mark.parametrize("dtype", ["i4", "u8"])
def test_recipes_have_integers_that_depend_on_data(dtype: str, tmp_path: Path) -> None:
    scheme = ONLY(dtype, group=16, rounding="gptq")
    q = clew.quantize(NET, DATA, scheme=scheme, threads=1)
    q.recipe.save(tmp_path / "r.json")
    packed = np.load(tmp_path / "r.npz")["fc0.integers"]
    assert packed.shape == (40, 20 if dtype == "i4" else 40)
    recipe = Recipe.load(tmp_path / "r.json")
    assert recipe == q.recipe
    again = clew.quantize(NET, recipe=recipe)
    assert str(again.module) == str(q.module)
    for a, b in zip(again.parameters, q.parameters, strict=True):
        np.testing.assert_array_equal(a.weight, b.weight)
        np.testing.assert_array_equal(a.scales, b.scales)
        np.testing.assert_array_equal(a.zeros, b.zeros)
    x = DATA[:4]
    np.testing.assert_array_equal(result(again, x), result(q, x))
    assert again.recipe == q.recipe
    assert again.recipe.weights.keys() == {"fc0", "fc1"}


def test_weights_alone_need_no_data_and_no_integers(tmp_path: Path) -> None:
    q = clew.quantize(NET, scheme=ONLY())
    q.recipe.save(tmp_path / "r.json")
    assert not (tmp_path / "r.npz").exists()
    again = clew.quantize(NET, recipe=tmp_path / "r.json")
    assert str(again.module) == str(q.module)


def test_integers_that_are_edited_away_are_rounded_again(decided: Quantized) -> None:
    data = decided.recipe.to_json()
    data["scheme"]["rounding"] = "nearest"
    del data["layers"][0]["integers"], data["layers"][1]["integers"]
    again = clew.quantize(NET, recipe=Recipe.of_json(data))
    assert again.recipe.weights == {}
    first, second = again.parameters[0], decided.parameters[0]
    np.testing.assert_array_equal(first.numbers, second.numbers)
    assert 0.2 < (first.weight == second.weight).mean() < 1


def without_file(folder: Path) -> None:
    (folder / "r.npz").unlink()


def other_numbers(folder: Path) -> None:
    text = (folder / "r.json").read_text()
    (folder / "r.json").write_text(text.replace('"group": 16', '"group": 8'))


def no_integers(folder: Path) -> None:
    text = (folder / "r.json").read_text()
    (folder / "r.json").write_text(text.replace('"integers"', '"whole"'))


def other_arrays(folder: Path) -> None:
    arrays = dict(np.load(folder / "r.npz"))
    arrays["fc0.integers"] = arrays["fc0.integers"][:, ::-1]
    np.savez(folder / "r.npz", **arrays)


def lost_array(folder: Path) -> None:
    arrays = dict(np.load(folder / "r.npz"))
    del arrays["fc1.scales"]
    np.savez(folder / "r.npz", **arrays)


def wide_array(folder: Path) -> None:
    arrays = dict(np.load(folder / "r.npz"))
    arrays["fc1.scales"] = arrays["fc1.scales"].astype("f8")
    np.savez(folder / "r.npz", **arrays)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (without_file, "I398"),
        (lost_array, "I398"),
        (wide_array, "I398"),
        (other_numbers, "I399"),
        (other_arrays, "I399"),
        (no_integers, "I399"),
    ],
)
def test_wrong_recipes(change: Any, code: str, decided: Quantized, tmp_path: Path) -> None:
    decided.recipe.save(tmp_path / "r.json")
    change(tmp_path)
    with pytest.raises(ClewError) as error:
        clew.quantize(NET, recipe=tmp_path / "r.json")
    assert error.value.code == code, error.value


def test_a_recipe_of_plain_data_lacks_integers(decided: Quantized, tmp_path: Path) -> None:
    recipe = Recipe.of_json(decided.recipe.to_json())
    with pytest.raises(ClewError) as error:
        clew.quantize(NET, recipe=recipe)
    assert (error.value.code, error.value.layer) == ("I399", "fc0")
    with pytest.raises(ClewError) as error:
        recipe.save(tmp_path / "r.npz")
    assert error.value.code == "I398"
    other = stack([drawn(32, 32, seed=n, scale=0.2) for n in range(2)])
    with pytest.raises(ClewError) as error:
        clew.quantize(other, recipe=decided.recipe)
    assert error.value.code == "I399"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scheme(weights="u4"),
        lambda: Scheme(group=32),
        lambda: Scheme(rounding="gptq"),
        lambda: Scheme(activations="dynamic", weights="i4"),
        lambda: ONLY("i3"),
        lambda: ONLY(group=-1),
        lambda: ONLY(granularity="tensor"),
        lambda: ONLY(rounding="up"),
        lambda: ONLY(activations="u8"),
        lambda: clew.quantize(NET, scheme=ONLY()).save("q.onnx", form="ggml"),
    ],
)
def test_wrong_schemes(make: Any) -> None:
    with pytest.raises(ClewError) as error:
        make()
    assert error.value.code == "I390"


def test_error_compensation_needs_data() -> None:
    with pytest.raises(ClewError) as error:
        clew.quantize(NET, scheme=GPTQ)
    assert error.value.code == "I392"
