"""Native routines return what the references of their operators return, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew.backends.host.routines import NATIVE_ROUTINES
from clew.backends.host.steps import HostStep
from clew.ops.registry import get_op, register_op
from clew.ops.sample_checks import arrays_of
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0]


@pytest.mark.parametrize("name", sorted(NATIVE_ROUTINES))
def test_samples(name: str) -> None:
    op = get_op(name)
    for sample in (s for s in op.samples if not s.error):
        arrays, attrs = arrays_of(op, sample), op.bind(sample.attrs)
        same(HostStep(op, attrs)(*arrays), op.run_reference(arrays, attrs))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("seed", range(4))
def test_non_max_suppression(dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(60):
        arrays, attrs = drawn(rng, dtype)
        compare(arrays, attrs)


def drawn(rng: np.random.Generator, dtype: str) -> tuple[list[Any], dict[str, Any]]:
    """Returns boxes and scores, many of them equal, some not finite, and attributes."""
    batches, kinds, count = int(rng.integers(1, 3)), int(rng.integers(1, 4)), rng.integers(1, 40)
    boxes = (rng.random((batches, count, 4)) * rng.choice([1, 10])).astype(dtype)
    scores = rng.random((batches, kinds, count)).astype(dtype)
    if rng.integers(2):
        scores = np.round(scores * 4) / 4
        boxes[:, rng.integers(count)] = boxes[:, 0]
    if rng.integers(2):
        boxes.reshape(-1)[rng.integers(0, boxes.size, 3)] = rng.choice(SPECIAL)
        scores.reshape(-1)[rng.integers(0, scores.size, 3)] = rng.choice(SPECIAL)
    attrs = {
        "max_boxes": int(rng.choice([0, 1, 3, 7, 1 << 62])),
        "iou_threshold": float(rng.choice([0, 0.3, 0.5, 1, np.nan, -1])),
        "score_threshold": rng.choice(np.array([None, 0.25, 0.5, np.nan, -np.inf], object)),
        "center": bool(rng.integers(2)),
    }
    return [boxes, scores], attrs


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 2, 0), (0, 0, 0)])
@pytest.mark.parametrize("threshold", [None, 0.5])
def test_nothing_to_suppress(shape: tuple[int, int, int], threshold: float | None) -> None:
    batches, _, count = shape
    arrays = [np.zeros((batches, count, 4), "f4"), np.zeros(shape, "f4")]
    compare(arrays, {"max_boxes": 3, "score_threshold": threshold})


def test_many_boxes_take_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.runtime.overlaps._PAIRS_OF_A_CALL", 50)
    arrays, attrs = drawn(np.random.default_rng(5), "f4")
    for threshold in (0.9, 0.1):
        attrs |= {"max_boxes": 20, "iou_threshold": threshold, "score_threshold": None}
        compare(arrays, attrs)


@pytest.mark.parametrize("boxes", [(1, 3, 4), (1, 9, 3), (2, 9, 4), (9, 4)])
def test_shapes_that_do_not_fit(boxes: tuple[int, ...]) -> None:
    op = get_op("non_max_suppression")
    arrays, attrs = [np.zeros(boxes, "f4"), np.zeros((1, 1, 9), "f4")], {"max_boxes": 9}
    with pytest.raises(ClewError, match="T108"):
        HostStep(op, op.bind(attrs))(*arrays)
    with pytest.raises(ClewError, match="T108"):
        op.run_reference(arrays, op.bind(attrs))


def test_work_is_bounded() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.random((1, 500, 4), "f4"), rng.random((1, 1, 500), "f4")]
    op = get_op("non_max_suppression")
    step = HostStep(op, op.bind({"max_boxes": 500, "iou_threshold": 1.0}))
    with in_force(Budgets(run_operations=1 << 20)), pytest.raises(ClewError, match="I269"):
        step(*arrays)
    with in_force(Budgets(run_operations=1 << 24)):
        assert len(step(*arrays)) == 500


def test_an_operator_of_the_users_own_keeps_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.ops.registry._REGISTRY", {})

    @register_op("non_max_suppression", host=True)
    def mine(x: Any) -> Any:
        return x + 1

    mine.types(lambda x: x)
    step = HostStep(get_op("non_max_suppression"), {})
    np.testing.assert_array_equal(step(np.ones(2, "f4")), [2, 2])


def compare(arrays: list[Any], attrs: dict[str, Any]) -> None:
    """Compares a step with the operator's reference."""
    op = get_op("non_max_suppression")
    bound = op.bind(attrs)
    with np.errstate(all="ignore"):
        same(HostStep(op, bound)(*arrays), op.run_reference(arrays, bound))


def same(found: Any, expected: Any) -> None:
    """Checks dtype, shape and elements."""
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected, strict=True)
