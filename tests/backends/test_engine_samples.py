"""Every sample of every operator that an engine takes, as a region of one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import pytest
from region_samples import Case, same

import clew.frontends.onnx
from clew.backends.registry import backends_of
from clew.exporters.onnx import written_operators
from clew.ir.expr import Call, Function, Var
from clew.ir.parser import parse_module
from clew.ir.types import TensorType
from clew.machine.target import host
from clew.ops.registry import Op, all_ops, get_op

Array = np.ndarray[Any, Any]
ENGINES = [
    pytest.param(
        name,
        marks=[] if find_spec(name) else pytest.mark.skip(f"{name} is not installed"),
    )
    for name in ("onnxruntime", "openvino")
]
_OPS: Final = [op for op in all_ops() if op.is_builtin and op.name in written_operators()]

# Samples whose results differ because of their values.
_DIFFERENT: Final = {
    "onnxruntime": "argmax-4 argmin-4",  # NaN
    "openvino": "fake_quantize-2 requantize-2",  # a quotient close to a tie
}


def _on(name: str) -> tuple[Any, Callable[[Function], Callable[..., Sequence[Array]]]]:
    (backend,) = backends_of([name])
    return backend, lambda region: backend.compile(region, host())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("op", _OPS, ids=[op.name for op in _OPS])
def test_samples(engine: str, op: Op) -> None:
    backend, compile_ = _on(engine)
    for n, sample in enumerate(op.samples):
        if sample.error or f"{op.name}-{n}" in _DIFFERENT[engine].split():
            continue
        for brought in (None, 1):
            case = Case(op, n, sample, brought=brought)
            if backend.takes(case.call):
                same(case.found(compile_), case.expected(), 1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_samples_that_are_left_out_differ(engine: str) -> None:
    _, compile_ = _on(engine)
    for name in _DIFFERENT[engine].split():
        op_name, _, number = name.rpartition("-")
        op = get_op(op_name)
        case = Case(op, int(number), op.samples[int(number)])
        with pytest.raises(AssertionError):
            same(case.found(compile_), case.expected(), 1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_most_samples_are_taken(engine: str) -> None:
    backend, _ = _on(engine)
    good = [(op, n, s) for op in _OPS for n, s in enumerate(op.samples) if not s.error]
    taken = [n for op, n, s in good if backend.takes(Case(op, n, s).call)]
    assert len(taken) > 0.6 * len(good)


SCALARS = """
clew 1
def @main(
  %x: f32[2, 3],  // input x
  %s: f32[]  // input s
) -> (f32[2, 3], f32[]) with outputs=["y", "t"] {
  %0 = multiply(%x, %s)  // scale:Mul#0
  %1 = exp(%s)  // power:Exp#0
  %2 = (%0, %1)
  return %2
}
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_scalars_are_exchanged(engine: str) -> None:
    compiled = clew.compile(parse_module(SCALARS), backends=[engine], cache=False)
    assert {r.backend for r in compiled.regions} == {engine}
    for number in (0.5, -2.0):
        x, s = np.full((2, 3), 3, np.float32), np.array(number, np.float32)
        y, t = compiled(x, s)
        np.testing.assert_allclose(y, x * s)
        np.testing.assert_allclose(t, np.exp(s), rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["bf16", "f8e8m0fnu"])
def test_arrays_that_engines_do_not_exchange_stay_on_the_cpu(engine: str, dtype: str) -> None:
    (backend,) = backends_of([engine])
    call: Call = get_op("cast")(Var("x", TensorType((2, 3), "f32")), dtype=dtype)
    assert backend.why_not(call) == f"it exchanges no arrays of {dtype}"


@pytest.mark.parametrize("engine", ENGINES)
def test_arrays_may_be_read_only_and_have_any_strides(engine: str) -> None:
    compiled = clew.compile(parse_module(SCALARS), backends=[engine], cache=False)
    s = np.array(2, np.float32)
    for x in (
        np.arange(6, dtype=np.float32).reshape(3, 2).T,
        np.ones((4, 6), np.float32)[::2, ::2],
    ):
        s.setflags(write=False)
        x.setflags(write=False)
        np.testing.assert_array_equal(compiled(x, s)[0], x * s)


COUNTS = """
clew 1
def @main(
  %x: i64[4]  // input x
) -> (f32[4],) with outputs=["y"] {
  %0: f32[4] = cast(%x, dtype="f32")  // c:Cast#0
  %1 = (%0,)
  return %1
}
"""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("code", ["l", "q"])
def test_equal_dtypes_of_64_bits_are_exchanged(engine: str, code: str) -> None:
    """NumPy has two dtypes for the integers of 64 bits, which compare equal."""
    region = parse_module(COUNTS).main
    _, compile_ = _on(engine)
    x = np.arange(4, dtype=code)
    (found,) = compile_(Function(region.params, region.body.children[0]))(x)
    np.testing.assert_array_equal(found, x.astype("f4"))
