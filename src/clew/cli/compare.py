"""Compares outputs with those of ONNX Runtime, if it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clew.support.errors import InputError
from clew.support.recognize import form_of


class Peer:
    """A model in ONNX Runtime. The constructor reads it, so a model that cannot be compared is an
    error before clew compiles anything.

    Errors: I062 if ONNX Runtime is not installed or rejects the model.
    """

    def __init__(self, model: Path) -> None:
        if form_of(model) != ".onnx":
            raise InputError(
                "I062",
                f"{str(model)!r} is not an ONNX file, so ONNX Runtime cannot run it",
                hint="give the original ONNX file",
            )
        try:
            import onnxruntime  # noqa: PLC0415
        except ImportError:
            raise InputError(
                "I062", "ONNX Runtime is not installed", hint="pip install onnxruntime"
            ) from None
        onnxruntime.set_default_logger_severity(3)
        try:
            self._session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no other common base
            raise _refused(error) from None

    def outputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns its outputs by name.

        Errors: I062 if it fails on these inputs.
        """
        try:
            values = self._session.run(None, dict(inputs))
        except Exception as error:
            raise _refused(error) from None
        return {o.name: v for o, v in zip(self._session.get_outputs(), values, strict=True)}


def _refused(error: Exception) -> InputError:
    return InputError(
        "I062",
        f"ONNX Runtime rejects the model: {error}",
        hint="clew may still run it: leave out the comparison",
    )
