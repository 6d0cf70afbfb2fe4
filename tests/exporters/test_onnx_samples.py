"""Every sample of every operator with an ONNX form, in ONNX Runtime and read back by clew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import (  # type: ignore[import-untyped]
    Fail,
    InvalidArgument,
    InvalidGraph,
    NotImplemented,
    RuntimeException,
)

import clew.ops  # noqa: F401
from clew.exporters.onnx import can_write, write, written_operators
from clew.frontends.onnx import load
from clew.ir.interpret import interpret
from clew.ir.types import TensorType
from clew.ops.registry import Op, Sample, all_ops
from clew.support.errors import ClewError
from clew.te.convert import convert

from ..operator_groups import ELSEWHERE_UNKNOWN
from .onnx_models import Case, function_of, run, same, samples_of

_OPS: Final = [op for op in all_ops() if op.is_builtin and op.name in written_operators()]

# Operators whose calls no ONNX operators can stand for, by reason.
_WITHOUT_RULE: Final = {
    **ELSEWHERE_UNKNOWN,
    "no operators of this opset": """
        cholesky cummax cummin cumprod dequantize_offset extremes forest.leaves forest.votes inverse
        nn.deform_columns resize_u8 svm.coupled
    """,
}

# What ONNX Runtime does not run, or runs with another result where the standard is silent.
_NOT_RUN: Final = {
    "no kernel": """
        acos-1 acosh-1 asin-1 atanh-1 det-2 det-7 grid_sample-8 grid_sample-9 grid_sample-12
        nn.col2im-4 nn.lrn-1 nn.max_roi_pool-0 nn.max_roi_pool-1 nn.max_roi_pool-2 nn.prelu-2
        nn.roi_align-0 nn.roi_align-1 nn.roi_align-2 nn.roi_align-3 nn.roi_align-4 nn.roi_align-5
        nn.roi_align-6 nn.roi_align-9 nn.roi_align-11 one_hot-1 scatter_elements-3
        scatter_elements_few-3 scatter_elements_many-3 scatter_nd-4 scatter_nd_few-4
        scatter_nd_many-4 tan-1
    """,
    "rows with NaN": "argmax-4 argmin-4",
    "rounding up to infinity": "cast-9",
    "only the last axes are cropped": "resize-10 resize-11",
}

# Likewise, in dtypes that the samples do not have.
_NOT_RUN_IN_OTHER_DTYPES: Final = {
    "antialiasing of integers": "resize-3 resize-6 resize-7 resize-8 resize-9 resize-15",
    "no combination of narrow floats": """
        scatter_elements-2 scatter_elements_few-2 scatter_elements_many-2 scatter_nd-1
        scatter_nd_few-1 scatter_nd_many-1
    """,
    "powers of large integers": "to_exponent-5",
    "one result of bf16 near a tie": "nn.attention-14",
}

# Samples whose accuracy is stated to be lower, or that ONNX Runtime computes less accurately.
_LOOSE: Final = {"nn.gelu-5": 5e-5, "nn.gelu-6": 5e-5, "dft-11": 5e-5}


def _names(text: dict[str, str]) -> list[str]:
    return [name for part in text.values() for name in part.split()]


def _cases(op: Op, constants: bool) -> list[Case]:
    made = [Case(op, n, s, constants=constants) for n, s in samples_of(op)]
    return [case for case in made if can_write(case.call) is None]


def _agree(cases: Sequence[Case], *, read_back: bool) -> None:
    inputs = {k: v for case in cases for k, v in case.inputs.items()}
    written = write(function_of(cases))
    if read_back:
        results = list(interpret(load(written.model), inputs).values())
    else:
        results = run(written, inputs)
    place = 0
    for case in cases:
        count = len(case.expected)
        tolerance = _LOOSE.get(case.name, 1e-5)
        same(results[place : place + count], case.expected, tolerance)
        place += count


@pytest.mark.parametrize("op", _OPS, ids=[op.name for op in _OPS])
@pytest.mark.parametrize("constants", [False, True], ids=["values", "constants"])
def test_samples(op: Op, constants: bool) -> None:
    left_out = _names(_NOT_RUN)
    cases = _cases(op, constants)
    if cases:
        _agree(cases, read_back=True)
    run_cases = [case for case in cases if case.name not in left_out]
    if run_cases:
        _agree(run_cases, read_back=False)


# It runs these, and differs.
_DIFFERENT: Final = ("rows with NaN", "rounding up to infinity", "only the last axes are cropped")


@pytest.mark.parametrize(
    ("reason", "name"), [(reason, name) for reason in _NOT_RUN for name in _NOT_RUN[reason].split()]
)
def test_what_onnx_runtime_does_not_run(reason: str, name: str) -> None:
    op_name = name.rpartition("-")[0]
    op = next(op for op in _OPS if op.name == op_name)
    (case,) = (c for c in _cases(op, False) if c.name == name)
    if reason in _DIFFERENT:
        with pytest.raises(AssertionError):
            _agree([case], read_back=False)
        return
    with pytest.raises((Fail, InvalidArgument, InvalidGraph, NotImplemented, RuntimeException)):
        _agree([case], read_back=False)


def _in_dtype(sample: Sample, dtype: str) -> Sample | None:
    """Returns a sample with its f32 arguments in another dtype; None if it has none."""
    args = []
    for arg in sample.args:
        if isinstance(arg, TensorType) and arg.dtype == "f32":
            args.append(arg.with_(dtype=dtype))
        elif isinstance(arg, (np.ndarray, np.generic)) and arg.dtype == np.float32:
            args.append(convert(np.asarray(arg), dtype))
        else:
            args.append(arg)
    if all(a is b for a, b in zip(args, sample.args, strict=True)):
        return None
    low = max(sample.low, 0) if dtype[0] == "u" else sample.low
    return Sample(*args, low=low, high=sample.high, **sample.attrs)


def _cases_in(op: Op, dtype: str) -> list[Case]:
    made = []
    for n, sample in samples_of(op):
        changed = _in_dtype(sample, dtype)
        if changed is None or f"{op.name}-{n}" in _LOOSE:
            continue
        try:
            case = Case(op, n, changed)
        except ClewError:  # the operator does not take the dtype
            continue
        if can_write(case.call) is None:
            made.append(case)
    return made


# The most operators that ONNX Runtime has no kernel for, by dtype; it computes `f16` in `f32`.
_NO_KERNEL: Final = {
    "f16": 0, "f64": 34, "bf16": 110, "i8": 3, "u8": 3, "i16": 18, "i32": 5, "i64": 6,
}  # fmt: skip


@pytest.mark.parametrize("dtype", _NO_KERNEL)
def test_samples_in_other_dtypes(dtype: str) -> None:
    left_out = [*_names(_NOT_RUN), *_names(_NOT_RUN_IN_OTHER_DTYPES)]
    missing = []
    for op in _OPS:
        cases = _cases_in(op, dtype)
        if cases:
            _agree(cases, read_back=True)
        kept = [case for case in cases if case.name not in left_out]
        if not kept:
            continue
        try:
            _agree(kept, read_back=False)
        except (NotImplemented, Fail):
            missing.append(op.name)
    assert len(missing) <= _NO_KERNEL[dtype], missing


def test_operators_without_a_rule_are_known() -> None:
    known = _names(_WITHOUT_RULE)
    assert sorted(known) == sorted(
        op.name for op in all_ops() if op.is_builtin and op.name not in written_operators()
    )


def test_reasons_of_refused_samples() -> None:
    """All samples with a form are written; others are refused for one of these reasons."""
    found: Counter[str] = Counter()
    for op in _OPS:
        for n, sample in samples_of(op):
            found[_kind(can_write(Case(op, n, sample).call))] += 1
    assert found == {
        "": 764,
        "no elements": 54,
        "layouts": 53,
        "bits": 4,
        "beyond the range": 2,
        "one-sided": 3,
        "align_corners": 1,
        "more than once": 1,
        "reflection": 1,
        "wrap": 1,
        "rounded positions": 2,
        "f64": 1,
        "bool": 1,
        "not constants": 12,
    }


def _kind(reason: str | None) -> str:
    if reason is None:
        return ""
    kinds = {
        "no elements": ("no elements",),
        "layouts": ("layout", "laid out", "packed", "in parts"),
        "bits": ("cast of bits",),
        "beyond the range": ("beyond the range",),
        "one-sided": ("one-sided",),
        "align_corners": ("align_corners",),
        "more than once": ("more than once",),
        "wrap": ("wrap",),
        "reflection": ("reflects",),
        "rounded positions": ("rounded to f32",),
        "f64": ("f64",),
        "bool": ("bool",),
        "not constants": ("are not constants",),
    }
    return next(kind for kind, parts in kinds.items() if any(p in reason for p in parts))
