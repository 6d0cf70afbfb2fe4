"""Compares outputs with ONNX Runtime's, where that is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clew.support.errors import InputError


def onnxruntime_outputs(model: Path, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ONNX Runtime's outputs by name.

    Errors: I062 where it is not installed or refuses the model.
    """
    try:
        import onnxruntime  # noqa: PLC0415
    except ImportError:
        raise InputError(
            "I062", "ONNX Runtime is not installed", hint="pip install onnxruntime"
        ) from None
    onnxruntime.set_default_logger_severity(3)
    try:
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        values = session.run(None, dict(inputs))
    except Exception as error:  # its exceptions have no common base but Exception
        raise InputError("I062", f"ONNX Runtime refuses the model: {error}") from None
    return {o.name: v for o, v in zip(session.get_outputs(), values, strict=True)}


def relative_error(value: Any, reference: Any) -> float:
    """Returns the largest difference, relative to the largest magnitude in `reference`.

    Infinite where shapes, NaN or infinities differ, or there is no value.
    """
    if value is None:
        return float("inf")
    a, b = np.asarray(value), np.asarray(reference)
    if a.shape != b.shape:
        return float("inf")
    if b.dtype.kind not in "fiubV":
        return 0.0 if np.array_equal(a, b) else float("inf")
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return float("inf")
    if not np.isfinite(x[finite]).all():
        return float("inf")
    error = float(np.abs(x[finite] - y[finite]).max(initial=0.0))
    scale = float(np.abs(y[finite]).max(initial=0.0))
    return error / scale if scale else error
