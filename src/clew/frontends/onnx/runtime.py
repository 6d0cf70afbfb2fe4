"""ONNX Runtime, the reference engine of ONNX: whole models, layer by layer, and single layers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import ModelProto

from clew.frontends.format import FileRun, LoneLayer
from clew.frontends.onnx.file.whole import drop_repeated_names, giving_out, one_layer, read_whole
from clew.support.errors import Hint, InputError
from clew.support.files import reason_of
from clew.support.libraries import optional_library

_MOST_BYTES: Final = (1 << 31) - (1 << 20)
_INSTALL: Final = "pip install onnxruntime"


class OnnxRun(FileRun):
    """A run of a file that clew has loaded. `names` are those of its layers' outputs by clew's name
    of the layer.

    Errors: I173 if the file can no longer be read, ONNX Runtime is not installed or rejects the
    model.
    """

    def __init__(
        self, path: Path, inputs: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]
    ) -> None:
        self._names = names
        self._inputs = inputs
        try:
            self._model = read_whole(path)
        except (OSError, ValueError) as error:
            raise InputError("I173", f"{str(path)!r} cannot be read: {reason_of(error)}") from None
        whole = self._model if drop_repeated_names(self._model) else path
        super().__init__(_run(whole, inputs, plain=False))

    @cached_property
    def _values(self) -> Mapping[str, Any]:
        """The values of all layers' outputs and of the inputs, by their names in the file.

        Errors: I173.
        """
        wanted = [n for names in self._names.values() for n in names if n]
        return {**self._inputs, **_run(giving_out(self._model, wanted), self._inputs)}

    def layers(self) -> Mapping[tuple[str, int], Any]:
        """Returns the values of layers, by layer and number of the result. Errors: I173."""
        values = self._values
        return {
            (layer, n): values[name]
            for layer, outputs in self._names.items()
            for n, name in enumerate(outputs)
            if name in values
        }

    def alone(self, layer: str) -> LoneLayer | None:
        """Returns a model of one layer; None for layers inside functions and branches.

        Errors: I173.
        """
        made = one_layer(self._model, self._names.get(layer, ()), self._values)
        return None if made is None else LoneLayer(made, ".onnx", self._values)


class OnnxPeer:
    """A model in ONNX Runtime. The constructor reads it, so a model that cannot be compared is an
    error before clew compiles anything.

    Errors: I062 if ONNX Runtime is not installed or rejects the model.
    """

    def __init__(self, path: Path) -> None:
        absent = InputError("I062", "ONNX Runtime is not installed", hint=_INSTALL)
        runtime = optional_library("onnxruntime", absent)
        runtime.set_default_logger_severity(3)
        try:
            self._session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
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


def _run(
    model: ModelProto | Path, inputs: Mapping[str, Any], *, plain: bool = True
) -> dict[str, Any]:
    """Returns ONNX Runtime's outputs by name; with `plain`, without graph optimizations.

    Errors: I173 if it is not installed or rejects the model.
    """
    absent = InputError("I173", "ONNX Runtime is not installed", hint=_INSTALL)
    runtime = optional_library("onnxruntime", absent)
    runtime.set_default_logger_severity(4)
    options = runtime.SessionOptions()
    if plain:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        source: Any = str(model) if isinstance(model, Path) else _bytes(model)
        session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
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
