"""Which inputs decide sizes, and what never does."""

from __future__ import annotations

import numpy as np
import pytest

import clew
from clew import te
from clew.ir.deciding import (
    decided_by,
    deciding_leaves,
    deciding_params,
)
from clew.ir.dims import SymDim
from clew.ir.expr import ArgRef, Call, Constant, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops import registry
from clew.ops.registry import get_op
from clew.ops.traits import Traits


def var(name, *shape, dtype="f32"):
    return Var(name, TensorType(shape, dtype))


def layer(name, *args, **attrs):
    return get_op(name)(*args, **attrs)


def function(params, body):
    return Function(params, Tuple([body]))


X = var("x", 2, 8)


def test_sizes_are_computed_with_a_user_s_operator_that_says_so(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    k = var("k", 1, dtype="i64")
    found = {}
    for sizes in ("", "computed", "read"):

        @registry.register_op("user.twice", traits=Traits(sizes=sizes), overwrite=True)
        def twice(x: te.Tensor) -> te.Tensor:
            """`2 * x`."""
            return te.compute(x.shape, lambda *i: x[i] * 2, "twice")

        end = layer("concatenate", twice(k), Constant(np.array([3])), axis=0)
        attrs = {"begin": (0, 0), "end": ArgRef(1), "strides": (1, 1), "axes": (0, 1)}
        found[sizes] = deciding_params(function([X, k], Call(get_op("slice"), [X, end], attrs)))
    assert found == {"": (), "computed": (1,), "read": ()}


def test_the_size_of_an_activation_is_not_its_value():
    grown = layer("nn.relu", X)
    sizes = layer("add", layer("shape_of", grown), Constant(np.array([1, 1])))
    resized = Call(get_op("reshape"), [X, sizes], {"shape": ArgRef(1)})
    assert deciding_leaves([sizes]) == []
    assert deciding_params(function([X], resized)) == ()


def test_a_vector_of_integers_decides_through_arithmetic():
    k = var("k", 1, dtype="i64")
    doubled = layer("add", k, k)
    ends = layer("concatenate", doubled, Constant(np.array([3])), axis=0)
    attrs = {"begin": (0, 0), "end": ArgRef(1), "strides": (1, 1), "axes": (0, 1)}
    cut = Call(get_op("slice"), [X, ends], attrs)
    main = function([X, k], cut)
    assert deciding_params(main) == (1,)
    ((call, attribute, params),) = decided_by(main)
    assert (call, attribute, params) == (cut, "end", (k,))


@pytest.mark.parametrize(
    ("param", "value"),
    [
        # A tensor of a higher rank is data, and so is a long vector.
        (var("x", 1, 4, dtype="i64"), lambda x: layer("reshape", x, shape=(4,))),
        (var("x", 2000, dtype="i64"), lambda x: layer("slice", x, begin=(0,), end=(2,), axes=(0,))),
        # No sizes are computed with these.
        (var("x", 4, dtype="i64"), lambda x: layer("argmax", x, axis=0, keepdims=True)),
        (
            var("x", 4),
            lambda x: layer("cast", layer("max", x, axes=(0,), keepdims=True), dtype="i64"),
        ),
        (var("x", 4), lambda x: layer("cast", layer("exp", x), dtype="i64")),
    ],
    ids=["rank 2", "long", "argmax", "largest float", "exp"],
)
def test_data_do_not_decide(param, value):
    given = value(param)
    attrs = {"shape": ArgRef(0), "value": 1.0, "dtype": "f32"}
    assert deciding_params(function([param], Call(get_op("full"), [given], attrs))) == ()


def test_a_call_that_needs_data_as_well_is_decided_by_nothing():
    """Its sizes are settled in the run, whatever the other attribute is."""
    k, ids = var("k", 2, dtype="i64"), var("ids", 1, 4, dtype="i64")
    attrs = {"begin": ArgRef(1), "end": ArgRef(2), "strides": (1, 1), "axes": (0, 1)}
    cut = Call(get_op("slice"), [X, k, layer("reshape", ids, shape=(4,))], attrs)
    assert deciding_params(function([X, k, ids], cut)) == ()


def test_a_remark_names_the_input_and_what_it_decides():
    k = var("k", 2, dtype="i64")
    attrs = {"begin": (0, 0), "end": ArgRef(1), "strides": (1, 1), "axes": (0, 1)}
    main = Function([X, k], Tuple([Call(get_op("slice"), [X, k], attrs)]), {"outputs": ("y",)})
    compiled = clew.compile(Module({"main": main}), threads=1)
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    assert compiled(x, np.array([1, 3])).tolist() == [[0, 1, 2]]
    assert repr(compiled.inputs[1]) == "<k: int64[2], its value decides sizes (k_0, k_1)>"
    assert compiled(x, np.array([1, -5])).tolist() == [[0, 1, 2]]  # a build for these values
    remarks = [r.text for stage in compiled.build.stages for r in stage.remarks]
    assert any("the value of k decides end of slice" in text for text in remarks)


def test_a_vector_that_is_long_in_a_call_is_data():
    """Of named size, so that only the call tells."""
    ids = var("ids", SymDim.symbol("n"), dtype="i64")
    attrs = {"shape": ArgRef(0), "value": 1.0, "dtype": "f32"}
    most = layer("max", ids, axes=(0,), keepdims=True)
    main = Function([ids], Tuple([Call(get_op("full"), [most], attrs)]), {"outputs": ("y",)})
    compiled = clew.compile(Module({"main": main}), threads=1)
    assert [i.decides for i in compiled.inputs] == [True]
    for largest in (3, 4):
        given = np.minimum(np.arange(2000), largest)
        assert compiled(given).shape == (largest,)
    assert compiled.builds_made == 1
    assert compiled._last_inputs() == {"ids": (2000,)}  # its shape, as its value did not decide
