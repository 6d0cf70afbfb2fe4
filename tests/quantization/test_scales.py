"""Scales that are powers of two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from small_models import convolutional, drawn, model, node

import clew
from clew.quantization import Scheme
from clew.quantization.ranges import power_of_two
from clew.support.errors import InputError

DATA = drawn(6, 3, 8, 8)


def is_power(x: Any) -> bool:
    return bool((np.frexp(np.asarray(x, np.float64))[0] == 0.5).all())


@pytest.mark.parametrize(
    "fields",
    [
        {"scales": "power_of_two"},
        {"scales": "power_of_two", "activations": "i8", "weights": "u8"},
        {"scales": "power_of_two", "weights": "i8", "activations": "dynamic"},
        {"scales": "shifts"},
        {"sums": "rounded"},
        {"sums": "integer", "activations": "dynamic"},
        {"sums": "integer", "activations": "float", "weights": "u4"},
    ],
)
def test_wrong_fields(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError) as error:
        Scheme(**fields)
    assert error.value.code == "I390"


def test_the_scheme_for_shifting() -> None:
    scheme = Scheme.shifting(range="minmax")
    assert scheme.shifts
    assert scheme.rounds_sums
    assert scheme.range == "minmax"
    assert (scheme.activations, scheme.weights, scheme.granularity) == ("i8", "i8", "tensor")
    assert not scheme.migration


@pytest.mark.parametrize(
    ("least", "power"), [(1.0, 1.0), (0.26, 0.5), (0.25, 0.25), (3.0, 4.0), (2**-20 * 1.01, 2**-19)]
)
def test_the_next_power_of_two(least: float, power: float) -> None:
    assert power_of_two(least) == power


@pytest.mark.parametrize("method", ["mse", "minmax", "percentile", "entropy"])
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_all_scales_are_powers_of_two(method: str, granularity: str) -> None:
    weights = "mse" if method == "mse" else "minmax"
    scheme = Scheme.shifting(range=method, granularity=granularity, weight_range=weights)
    q = clew.quantize(convolutional(), DATA, scheme=scheme, threads=1)
    assert len(q.parameters) == 3
    for p in q.parameters:
        assert p.grid is not None
        assert is_power(p.grid.scale)
        assert p.grid.zero == 0
        assert is_power(p.scales)
        assert not p.zeros.any()
        assert len(p.scales) == (p.site.channels if granularity == "channel" else 1)
        largest = np.abs(p.site.weight.data).max()
        assert np.abs(p.weight * p.scales.max()).max() > largest / 4
    if method == "minmax":
        for p, row in zip(q.parameters, q.layers, strict=True):
            assert p.grid is not None
            assert row.low is not None
            assert row.high is not None
            extreme = max(-row.low, row.high)
            assert p.grid.scale / 2 < extreme / 127 <= p.grid.scale


NETWORKS = {
    "bias": (
        [node("Conv", ["x", "w", "b"], ["y"], name="c")],
        {"w": drawn(4, 3, 1, 1), "b": drawn(4)},
    ),
    "no bias": ([node("Conv", ["x", "w"], ["y"], name="c")], {"w": drawn(4, 3, 1, 1)}),
    "bias in a layer of its own": (
        [
            node("Conv", ["x", "w"], ["a"], name="c"),
            node("Add", ["a", "b"], ["y"], name="add"),
        ],
        {"w": drawn(4, 3, 1, 1), "b": drawn(4, 1, 1)},
    ),
}


@pytest.mark.parametrize("case", NETWORKS)
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_biases_have_a_quarter_of_a_step(case: str, granularity: str, tmp_path: Path) -> None:
    network = model(NETWORKS[case][0], {"x": [1, 3, 4, 4]}, {"y": [1, 4, 4, 4]}, NETWORKS[case][1])
    scheme = Scheme.shifting(granularity=granularity)
    q = clew.quantize(network, drawn(4, 3, 4, 4), scheme=scheme, threads=1)
    (p,) = q.parameters
    integers = p.bias_integers
    assert integers is not None
    assert (integers % 4 == 1).all()
    np.testing.assert_array_equal(p.bias_scales * 4, p.sum_scales)
    wanted = np.zeros(4) if p.float_bias is None else p.float_bias
    off = np.abs(integers * p.bias_scales - wanted) / p.sum_scales
    assert off.max() <= 0.75

    path = tmp_path / "int8.onnx"
    q.save(path)
    x = drawn(1, 3, 4, 4, seed=9)
    read = clew.load(path)
    results = [clew.compile(m, threads=1).run({"x": x})["y"] for m in (q.module, read)]
    np.testing.assert_array_equal(*results)
    sums = results[0] / p.sum_scales.reshape(-1, 1, 1)
    np.testing.assert_array_equal(sums % 1, np.full(sums.shape, 0.25, np.float32))
    if case == "bias":
        held = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
        in_file = held["c.bias.quantized"] * held["c.bias.scale"]
        np.testing.assert_array_equal(in_file, integers * p.bias_scales)
