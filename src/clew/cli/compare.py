"""Compares outputs with ONNX Runtime's, where that is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
