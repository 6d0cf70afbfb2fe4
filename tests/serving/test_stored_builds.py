"""Whole builds in the disk cache: the second start maps what the first one made."""

from __future__ import annotations

import os

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
from clew import te
from clew.ir.expr import Call, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import register_op

X = np.linspace(-1, 1, 32 * 64, dtype=np.float32).reshape(32, 64)


def write(path, scale=1.0):
    """Writes a model with a weight that is read from the file only while it is used."""
    values = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32) * scale
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="project"),
        helper.make_node("Relu", ["h"], ["y"], name="gate"),
    ]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [32, 64]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [32, 512]),
    ]
    weight = numpy_helper.from_array(values, "w")
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return np.maximum(X @ values, 0)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


def test_the_second_compile_finds_the_build(path):
    want = write(path)
    first = clew.compile(path)
    assert not first.from_cache
    second = clew.compile(path)
    assert second.from_cache
    for compiled in (first, second):
        np.testing.assert_allclose(compiled(X), want, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(first(X), second(X))


def test_a_found_build_can_be_looked_into(path):
    write(path)
    first, second = clew.compile(path), clew.compile(path)
    assert second.from_cache
    assert [k.name for k in second.kernels] == [k.name for k in first.kernels]
    assert second.trace.accounted().keys() == {"project", "gate"}
    assert second.kernels[0].object_code == first.kernels[0].object_code
    assert [t.kernel.name for t in second.time_kernels(X, repeats=1)] == [
        k.name for k in first.kernels
    ]


def test_a_found_build_repeats_its_warnings(path):
    """Also where the model is no file, so that only its build is in the cache."""
    write(path)
    for _ in range(2):
        with pytest.warns(clew.ClewWarning, match="vta takes nothing"):
            compiled = clew.compile(clew.load(path), backends=["vta"])
    assert compiled.from_cache
    with pytest.raises(clew.ClewError, match="vta takes nothing"):
        clew.compile(clew.load(path), backends=["vta"], passes=clew.Passes(required=["vta"]))


def test_another_model_or_option_is_another_build(path):
    write(path)
    clew.compile(path)
    assert not clew.compile(path, opt_level=1).from_cache
    assert not clew.compile(path, passes=clew.Passes(disabled=["CanonicalizeOps"])).from_cache
    assert not clew.compile(path, passes=clew.Passes(fuse=False)).from_cache
    assert not clew.compile(path, cache=False).from_cache
    want = write(path, scale=2.0)
    changed = clew.compile(path)
    assert not changed.from_cache
    np.testing.assert_allclose(changed(X), want, rtol=1e-4, atol=1e-4)


def test_weights_of_the_same_shape_are_not_mixed_up(path):
    """Same size and name, written over in place with its time of change put back."""
    write(path)
    clew.compile(path)
    status = path.stat()
    want = write(path, scale=3.0)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    compiled = clew.compile(path)
    assert not compiled.from_cache
    np.testing.assert_allclose(compiled(X), want, rtol=1e-4, atol=1e-4)


def test_a_damaged_build_is_made_again(path, cache):
    want = write(path)
    clew.compile(path)
    (stored,) = [p for p in cache.rglob("*") if p.is_file() and p.read_bytes()[1:5] == b"CLEW"]
    data = bytearray(stored.read_bytes())
    data[len(data) // 2] ^= 0xFF
    stored.write_bytes(data)
    compiled = clew.compile(path)
    assert not compiled.from_cache
    np.testing.assert_allclose(compiled(X), want, rtol=1e-4, atol=1e-4)
    assert clew.compile(path).from_cache


def test_the_checksum_is_computed_once(path, cache, monkeypatch):
    want = write(path)
    clew.compile(path)
    assert clew.compile(path).from_cache
    with monkeypatch.context() as patched:
        patched.setattr("clew.runtime.container._checksum", lambda content: 0)
        assert clew.compile(path).from_cache
    (stored,) = [p for p in cache.rglob("*") if p.is_file() and p.read_bytes()[1:5] == b"CLEW"]
    data = bytearray(stored.read_bytes())
    data[len(data) // 2] ^= 0xFF
    stored.write_bytes(data)  # in place, and so at another time
    again = clew.compile(path)
    assert not again.from_cache
    np.testing.assert_allclose(again(X), want, rtol=1e-4, atol=1e-4)


def scaling(factor):
    """Registers the operator anew, with another constant in its code."""

    @register_op("test.stored_scale", overwrite=True)
    def scale(x):
        """Multiplies."""
        return te.compute(x.shape, lambda *i: x[i] * factor, "scale")

    return scale


def test_a_users_operator_is_compiled_as_it_is_now():
    """Its name stays while its code changes: nothing made before may be taken for it."""
    for factor in (2.0, 5.0):
        scale = scaling(factor)
        x = Var("x", TensorType((4, 8), "f32"))
        module = Module({"main": Function([x], Tuple([Call(scale, [x], {})]), {"outputs": ["y"]})})
        for _ in range(2):
            compiled = clew.compile(module)
            assert not compiled.from_cache
            given = np.ones((4, 8), np.float32)
            np.testing.assert_array_equal(compiled(given), given * factor)
