"""ONNX Runtime's results for a model, layer by layer, and single layers cut out of its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.frontends.onnx import ModelProto
from clew.frontends.onnx.file.whole import drop_repeated_names, giving_out, one_layer, read_whole
from clew.support.errors import Hint, InputError
from clew.support.files import reason_of

_MOST_BYTES: Final = (1 << 31) - (1 << 20)


@dataclass(frozen=True)
class Layers:
    """A model's file, and the names of its layers' outputs by clew's name of the layer. `whole` is
    what ONNX Runtime reads to run the whole model.
    """

    model: ModelProto
    whole: ModelProto | Path
    outputs: Mapping[str, tuple[str, ...]]

    def values(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns ONNX Runtime's values of all layers' outputs, by their names in the file.

        Errors: I173.
        """
        wanted = [n for names in self.outputs.values() for n in names if n]
        return run(giving_out(self.model, wanted), inputs)

    def alone(self, layer: str, values: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]] | None:
        """Returns a model of one layer with its inputs, taken from `values`; None for layers inside
        functions and branches.
        """
        return one_layer(self.model, self.outputs.get(layer, ()), values)


def read(path: Path, outputs: Mapping[str, tuple[str, ...]]) -> Layers:
    """Returns the file of a model that clew has loaded, with its weights, for ONNX Runtime.

    Errors: I173 if it can no longer be read.
    """
    try:
        model = read_whole(path)
    except (OSError, ValueError) as error:
        raise InputError("I173", f"{str(path)!r} cannot be read: {reason_of(error)}") from None
    return Layers(model, model if drop_repeated_names(model) else path, outputs)


def run(
    model: ModelProto | Path, inputs: Mapping[str, Any], *, plain: bool = True
) -> dict[str, Any]:
    """Returns ONNX Runtime's outputs by name; with `plain`, without graph optimizations.

    Errors: I173 if it is not installed or rejects the model.
    """
    try:
        import onnxruntime  # noqa: PLC0415
    except ImportError:
        raise InputError(
            "I173", "ONNX Runtime is not installed", hint="pip install onnxruntime"
        ) from None
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    if plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        source: Any = str(model) if isinstance(model, Path) else _bytes(model)
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        taken = {i.name for i in session.get_inputs()}
        values = session.run(None, {n: _given(v) for n, v in inputs.items() if n in taken})
    except InputError:
        raise
    except Exception as error:  # its exceptions have no common base but Exception
        raise InputError("I173", f"ONNX Runtime rejects the model: {error}") from None
    return {o.name: v for o, v in zip(session.get_outputs(), values, strict=True)}


def _given(value: Any) -> Any:
    """Returns an input in the form that ONNX Runtime takes."""
    if isinstance(value, Mapping):
        return {key: np.asarray(item).item() for key, item in value.items()}
    if isinstance(value, list) or value is None:
        return value
    return np.asarray(value)


def _bytes(model: ModelProto) -> bytes:
    if model.ByteSize() > _MOST_BYTES:
        raise InputError(
            "I173",
            "the model is too large to run in ONNX Runtime layer by layer",
            hint=Hint(
                "compare with a file of layers' values: reference='values.npz'",
                cli="compare with a file of layers' values: --against values.npz",
            ),
        )
    data: bytes = model.SerializeToString()
    return data
