"""Compares outputs with ONNX Runtime's, where that is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clew.support.errors import InputError


class Peer:
    """A model in ONNX Runtime. It is read at once: whether it can be compared is known before clew
    compiles anything.

    Errors: I062 where ONNX Runtime is not installed, or refuses the model.
    """

    def __init__(self, model: Path) -> None:
        if model.suffix.lower() != ".onnx":
            raise InputError(
                "I062",
                f"ONNX Runtime runs .onnx files, and {str(model)!r} is none",
                hint="give the ONNX file that it was made from",
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
        except Exception as error:  # its exceptions have no common base but Exception
            raise _refused(error) from None

    def outputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns its outputs by name.

        Errors: I062 where it does not run on these inputs.
        """
        try:
            values = self._session.run(None, dict(inputs))
        except Exception as error:
            raise _refused(error) from None
        return {o.name: v for o, v in zip(self._session.get_outputs(), values, strict=True)}


def _refused(error: Exception) -> InputError:
    return InputError(
        "I062",
        f"ONNX Runtime refuses the model: {error}",
        hint="clew may run it all the same: leave the comparison out",
    )
