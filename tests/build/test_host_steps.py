"""Steps on the host keep their meaning in a saved model."""

import json
import math

import numpy as np
import pytest

from clew.build.host_steps import HostStep
from clew.ir.dims import SymDim
from clew.ir.expr import ArgRef, Attrs
from clew.ops.registry import all_ops, argument_references, get_op
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
    step = HostStep(get_op("top_k"), Attrs({"k": SymDim.symbol("n")}))
    with pytest.raises(ClewError, match="C059") as caught:
        step.to_json()
    assert "top_k" in caught.value.message


def test_an_operator_that_is_not_registered_is_an_error() -> None:
    with pytest.raises(ClewError, match="C061"):
        HostStep.from_json({"operator": "nobody.registers_this", "attributes": {}})
