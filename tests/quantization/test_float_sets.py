"""The smallest set in floats: that none of it can be left out, and that it names the culprits."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto
from small_models import drawn, stack, transformer

import clew
from clew.quantization import FloatSet, Quantized, Scheme
from clew.support.errors import ClewError

Array = NDArray[Any]
SIZE, LAYERS = 16, 5
PLAIN = Scheme(migration=False)
DATA = drawn(24, SIZE, seed=50)


def network() -> ModelProto:
    """A network of dense layers."""
    weights = [drawn(SIZE, SIZE, seed=n, scale=(2 / SIZE) ** 0.5) for n in range(LAYERS)]
    return stack(weights)


def error(q: Quantized) -> float:
    """The error of the outputs, of both models as they are compiled for users."""
    exact, integers = (clew.compile(m, threads=1) for m in (q.original, q.module))
    (name,) = exact.output_names
    samples = np.split(DATA, len(DATA) // 4)
    pairs = [(integers.run({"x": x})[name], exact.run({"x": x})[name]) for x in samples]
    found, wanted = (np.concatenate(each) for each in zip(*pairs, strict=True))
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def quantized(**more: Any) -> Quantized:
    return clew.quantize(network(), DATA, **{"scheme": PLAIN, "threads": 1, **more})


def floats_of(q: Quantized) -> FloatSet:
    assert q.floats is not None
    return q.floats


def test_none_of_the_set_can_be_left_out() -> None:
    whole = quantized().error
    assert whole is not None
    bound = 0.7 * whole
    found = quantized(max_error=bound)
    floats = floats_of(found)
    assert 2 <= len(floats.layers) < LAYERS
    assert (floats.whole, floats.bound) == (whole, bound)
    assert floats.figure == found.error
    assert {n for n, why in found.recipe.kept.items() if "bound" in why} == set(floats.layers)
    assert error(found) == pytest.approx(floats.figure, rel=1e-4)
    assert error(found) <= bound
    assert [put.layer for put in floats.proof] == list(floats.layers)
    for put in floats.proof:
        fewer = quantized(keep=[n for n in floats.layers if n != put.layer])
        assert len(fewer.parameters) == len(found.parameters) + 1
        assert error(fewer) == pytest.approx(put.figure, rel=1e-4)
        assert error(fewer) > bound
    assert len(floats.layers) < floats.evaluations < 2**LAYERS
    steps = found.frontier
    assert len(steps) == LAYERS + 1
    assert (steps[0].layer, steps[0].figure, steps[0].evaluated) == ("", whole, True)
    assert {s.layer for s in steps[1:]} == {f"fc{n}" for n in range(LAYERS)}
    assert steps[-1].figure < bound
    alone = {row.layer: row.alone for row in found.layers}
    assert all(a is not None and a > 0 for a in alone.values())
    for text in (str(found), found._repr_html_()):
        assert f"{floats.layers[0]}: " in text
        assert "evaluations" in text


PLANTINGS = (
    ("b0.out",),
    ("b1.up", "b1.down"),
    ("b0.up", "b1.out", "b1.down"),
    *(
        pytest.param(each, marks=pytest.mark.exhaustive)
        for each in (
            ("b1.out",),
            ("b0.down",),
            ("b1.up",),
            ("b0.out", "b0.up"),
            ("b0.down", "b1.out"),
            ("b0.out", "b0.down", "b1.up"),
            ("b0.up", "b1.up", "b1.down"),
        )
    ),
)
TOKENS = drawn(96, 16, seed=60)


@cache
def usual() -> float:
    """The error of int8 where nothing is planted."""
    found = clew.quantize(transformer(), TOKENS, scheme=PLAIN, threads=1).error
    assert found is not None
    return found


@pytest.mark.parametrize("culprits", PLANTINGS, ids=lambda each: " ".join(each))
def test_exactly_the_culprits_are_named(culprits: tuple[str, ...]) -> None:
    """A transformer with channels of large numbers in the operands of some of its 12 products."""
    network = transformer(culprits)
    bound = 2 * usual()
    found = clew.quantize(network, TOKENS, scheme=PLAIN, max_error=bound, threads=1)
    floats = floats_of(found)
    assert sorted(floats.layers) == sorted(culprits)
    assert floats.whole > 2 * bound
    assert floats.figure <= bound
    assert [p.layer for p in floats.proof] == list(floats.layers)
    assert all(p.figure > bound for p in floats.proof)


def test_a_bound_that_holds_needs_no_layer() -> None:
    floats = floats_of(quantized(max_error=0.5))
    assert (floats.layers, floats.proof, floats.evaluations) == ((), (), 1)


def test_no_error_at_all_needs_every_layer() -> None:
    found = quantized(max_error=0.0)
    floats = floats_of(found)
    assert sorted(floats.layers) == [f"fc{n}" for n in range(LAYERS)]
    assert (floats.figure, found.error) == (0.0, 0.0)
    assert all(put.figure > 0 for put in floats.proof)


def labels(outputs: list[dict[str, Array]]) -> Array:
    return np.concatenate([o[f"y{LAYERS - 1}"].argmax(1) for o in outputs])


def test_any_metric_of_the_outputs_can_be_bounded() -> None:
    exact = clew.compile(network(), threads=1)
    wanted = labels([exact.run({"x": x}) for x in np.split(DATA, len(DATA) // 4)])
    seen: list[int] = []

    def accuracy(outputs: list[dict[str, Array]]) -> float:
        seen.append(len(outputs))
        return float((labels(outputs) == wanted).mean())

    bad = Scheme(weight_bits=4, migration=False, granularity="tensor")
    floats = floats_of(quantized(scheme=bad, metric=accuracy, max_drop=0.13))
    assert set(seen) == {len(DATA) // 4}
    assert floats.whole > 0.13 >= floats.figure
    assert 0 < len(floats.layers) < LAYERS
    assert all(put.figure > 0.13 for put in floats.proof)


def _raises(_: Any) -> float:
    raise KeyError("scores")


def _varies() -> Any:
    values = iter([1.0] + [0.0] * 100)
    return lambda _: next(values)


@pytest.mark.parametrize(
    ("metric", "code"),
    [
        (_raises, "I401"),
        (lambda _: float("nan"), "I401"),
        (lambda _: "good", "I401"),
        (lambda _: None, "I401"),
        (_varies(), "I400"),
    ],
)
def test_metrics_that_cannot_be_bounded(metric: Any, code: str) -> None:
    with pytest.raises(ClewError) as caught:
        quantized(metric=metric, max_drop=0.5)
    assert caught.value.code == code
