"""Functions of one call, written as ONNX models and run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from clew.exporters.onnx import WrittenModel
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.types import STORAGE, TensorType, TupleType, from_numpy
from clew.ops.registry import Op, Sample, get_op
from clew.ops.sample_checks import arrays_of, fields, half_difference

Array = np.ndarray[Any, Any]

# Dtypes that NumPy and ONNX Runtime do not share: values are converted inside the model.
_WIDENED = (*STORAGE, "bf16")


class Case:
    """A sample of an operator. With `constants`, only the first argument is a parameter."""

    def __init__(self, op: Op, number: int, sample: Sample, *, constants: bool = False) -> None:
        self.name = f"{op.name}-{number}"
        self.inputs: dict[str, Array] = {}
        self.params: list[Var] = []
        arrays = arrays_of(op, sample)
        args = [
            self._argument(f"x{number}_{k}", a, constants and k > 0) for k, a in enumerate(arrays)
        ]
        self.call: Call = op(*args, **sample.attrs)
        self._op, self._arrays = op, arrays

    @cached_property
    def expected(self) -> list[Array]:
        with np.errstate(all="ignore"):
            results = fields(self._op.run_reference(self._arrays, self.call.attrs))
        return [_widened(np.asarray(r)) for r in results]

    def _argument(self, name: str, array: Array, constant: bool) -> Expr:
        dtype = from_numpy(array.dtype)
        if constant or dtype in STORAGE:
            return Constant(array)
        wide = "f32" if dtype == "bf16" else dtype
        param = Var(name, TensorType(array.shape, wide))
        self.params.append(param)
        self.inputs[name] = np.asarray(array.astype("f4") if dtype == "bf16" else array)
        return param if wide == dtype else get_op("cast")(param, dtype=dtype)

    @property
    def results(self) -> list[Expr]:
        type_, call = self.call.type, self.call
        many = isinstance(type_, TupleType)
        results = [TupleGetItem(call, n) for n in range(len(type_.fields))] if many else [call]
        cast = get_op("cast")
        return [cast(r, dtype="f32") if r.tensor.dtype in _WIDENED else r for r in results]


def function_of(cases: Sequence[Case]) -> Function:
    """Returns a function whose results are those of all cases."""
    params = [p for case in cases for p in case.params]
    return Function(params, Tuple([r for case in cases for r in case.results]))


def _widened(array: Array) -> Array:
    return array.astype("f4") if from_numpy(array.dtype) in _WIDENED else array


def samples_of(op: Op) -> list[tuple[int, Sample]]:
    """Returns the good samples of an operator and their numbers."""
    return [(n, s) for n, s in enumerate(op.samples) if not s.error]


def run(written: WrittenModel, inputs: Mapping[str, Array]) -> list[Array]:
    """Returns the outputs of a model in ONNX Runtime, which the checker has accepted."""
    onnx.checker.check_model(written.model, full_check=True)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    # By default, products with weights of a few bits round the data to 8 bits.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    text = written.model.SerializeToString()
    session = ort.InferenceSession(text, options, providers=["CPUExecutionProvider"])
    fed = dict(zip(written.inputs, inputs.values(), strict=True))
    values = session.run(list(written.outputs), fed)
    return [np.asarray(v) for v in values]


def same(actual: Sequence[Array], expected: Sequence[Array], tolerance: float = 1e-5) -> None:
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if a.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
            continue
        if a.dtype.itemsize == 2:
            assert half_difference(a, b, units=4) == ""
            continue
        np.testing.assert_allclose(a.astype("f8"), b.astype("f8"), rtol=tolerance, atol=tolerance)
