"""Steps on the host keep their meaning in a saved model."""

import json
import math

import numpy as np
import pytest

from clew.backends.host.steps import HostStep
from clew.ir.dims import SymDim
from clew.ir.expr import ArgRef, Attrs
from clew.ops.registry import all_ops, argument_references, get_op
from clew.support.bounds import bounds_in_force
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError


def through_json(step: HostStep) -> HostStep:
    return HostStep.from_json(json.loads(json.dumps(step.to_json(), allow_nan=False)))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -1.5, 0.1, "constant", (), (1, 2), ((1, 2), (3.0,)), math.inf, -math.inf,
        ArgRef(2), (1, ArgRef(0)), 1 << 60,
    ],
)  # fmt: skip
def test_attributes_keep_value_and_type(value: object) -> None:
    attrs = through_json(HostStep(get_op("pad"), Attrs({"given": value}))).attrs
    assert attrs["given"] == value
    assert type(attrs["given"]) is type(value)


def test_nan_stays_nan() -> None:
    attrs = through_json(HostStep(get_op("pad"), Attrs({"value": math.nan}))).attrs
    assert math.isnan(attrs["value"])


def test_samples_of_host_operators_survive() -> None:
    seen = 0
    for op in all_ops():
        for sample in op.samples if op.host else ():
            if sample.error:
                continue
            attrs = op.bind(sample.attrs)
            step = through_json(HostStep(op, attrs))
            assert step.op is op
            np.testing.assert_equal(dict(step.attrs), dict(attrs))  # NaN are equal
            seen += 1
    assert seen > 10


def test_an_argument_holds_an_attribute() -> None:
    step = through_json(HostStep(get_op("top_k"), get_op("top_k").bind({"k": ArgRef(1)})))
    assert argument_references(step.attrs) == {"k": 1}
    values, indices = step(np.array([3.0, 1.0, 2.0]), np.array(2))
    np.testing.assert_array_equal(values, [3, 2])
    np.testing.assert_array_equal(indices, [0, 2])


def test_a_symbolic_size_cannot_be_saved() -> None:
    step = HostStep(get_op("top_k"), Attrs({"k": SymDim.symbol("?3")}))
    with pytest.raises(ClewError, match="C059") as caught:
        step.to_json()
    assert "top_k" in caught.value.message


def test_an_operator_that_is_not_registered_is_an_error() -> None:
    with pytest.raises(ClewError, match="C061"):
        HostStep.from_json({"operator": "nobody.registers_this", "attributes": {}})


def test_steps_heed_new_sizes_values_shapes_and_budgets() -> None:
    count = SymDim.symbol("?n")
    slices = HostStep(get_op("slice"), get_op("slice").bind(
        {"begin": (0,), "end": (count,), "strides": (1,), "axes": (0,)}), ("?n",))  # fmt: skip
    top = HostStep(get_op("top_k"), get_op("top_k").bind({"k": ArgRef(1)}))
    for _ in range(2):
        for n in (1, 3, 0, 2):
            x = np.arange(4.0)
            np.testing.assert_array_equal(slices(x, np.array(n)), x[:n])
            np.testing.assert_array_equal(top(x, np.array([n]))[1], [3, 2, 1, 0][:n])
            np.testing.assert_array_equal(top(x[:3], np.array([n]))[0], x[2::-1][:n])
    with in_force(Budgets(run_bytes=4)), pytest.raises(ClewError, match="I265"):
        top(np.arange(4.0), np.array([2]))
    assert len(top(np.arange(4.0), np.array([2]))[0]) == 2


def test_steps_on_ever_new_shapes_keep_few() -> None:
    step = HostStep(get_op("top_k"), get_op("top_k").bind({"k": ArgRef(1)}))
    for n in range(1, 100):
        assert len(step(np.arange(float(n)), np.array([n]))[0]) == n
    assert len(step._met) <= 16


def test_bounds_of_a_step_hold_for_it_alone() -> None:
    op = get_op("scatter_nd_many")
    checks, clamps = (HostStep(op, op.bind({}), bounds=b) for b in ("check", "clamp"))
    x, places, updates = np.zeros(3, "f4"), np.array([[7]]), np.ones(1, "f4")
    np.testing.assert_array_equal(clamps(x, places, updates), [0, 0, 1])
    with pytest.raises(ClewError, match="I320"):
        checks(x, places, updates)
    with bounds_in_force("clamp"), pytest.raises(ClewError, match="I320"):
        checks(x, places, updates)
