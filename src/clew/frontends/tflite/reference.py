"""LiteRT as the reference engine for TFLite: outputs of whole models, and values of all layers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from clew.frontends.format import FileRun
from clew.frontends.names import UniqueNames
from clew.frontends.tflite.file.model import GraphInfo, read
from clew.frontends.tflite.file.names import wanted_name
from clew.ir.types import from_numpy
from clew.support.budgets import current
from clew.support.errors import PASSED_ON, InputError
from clew.support.files import read_bytes
from clew.support.libraries import optional_library

_INSTALL: Final = "pip install ai-edge-litert"
_HINT: Final = "clew may still run it: leave out the comparison"


class LiteRun(FileRun):
    """A run in LiteRT without delegates, which keeps the values of all tensors. `inputs` and
    `outputs` are clew's names of the model's inputs and outputs, in order.

    Errors: I173 if LiteRT is not installed or rejects the model.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        values: Mapping[str, Any],
        inputs: Sequence[str],
        outputs: Sequence[str],
    ) -> None:
        data = read_bytes(os.fspath(path))
        self._graph: Final = read(data, current()).graphs[0]
        given = {
            index: values[name]
            for name, index in zip(inputs, self._graph.inputs, strict=False)
            if name in values
        }
        self._run: Final = _Interpreter(data, "I173", keep=True)
        self._run.run(given)
        found = (self._run.value(self._graph, index) for index in self._graph.outputs)
        super().__init__(dict(zip(outputs, found, strict=False)))

    def layers(self) -> Mapping[tuple[str, int], Any]:
        """Returns the values of layers, by layer name and result number."""
        graph, names = self._graph, UniqueNames()
        found: dict[tuple[str, int], Any] = {}
        for number, operator in enumerate(graph.operators):
            layer = names.claim(wanted_name(graph, operator, number))
            for result, index in enumerate(operator.outputs):
                value = None if index < 0 else self._run.value(graph, index)
                if value is not None:
                    found[layer, result] = value
        return found


class LitePeer:
    """A file in LiteRT with its default delegates. The constructor loads it, so a model that cannot
    be compared raises an error before clew compiles anything.

    Errors: I062 if LiteRT is not installed or rejects the model.
    """

    def __init__(self, path: str | os.PathLike[str], threads: int | None = None) -> None:
        data = read_bytes(os.fspath(path))
        self._graph: Final = read(data, current()).graphs[0]
        self._run: Final = _Interpreter(data, "I062", threads=threads)

    def outputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the outputs by name. Errors: I062 if LiteRT fails on these inputs."""
        graph = self._graph
        given = {index: graph.tensors[index].name for index in graph.inputs}
        self._run.run({index: inputs[name] for index, name in given.items() if name in inputs})
        names = UniqueNames()
        return {
            names.claim(graph.tensors[index].name): self._run.value(graph, index)
            for index in graph.outputs
        }


class _Interpreter:
    """A LiteRT interpreter whose errors have the code `code`. With `keep`, it keeps the values of
    all tensors.
    """

    def __init__(
        self, data: bytes, code: str, *, keep: bool = False, threads: int | None = None
    ) -> None:
        self._code = code
        absent = InputError(code, "LiteRT is not installed", hint=_INSTALL)
        library = optional_library("ai_edge_litert.interpreter", absent)
        kinds = library.OpResolverType
        options: dict[str, Any] = {"num_threads": threads}
        if keep:
            options["experimental_preserve_all_tensors"] = True
            options["experimental_op_resolver_type"] = kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        try:
            self._made = library.Interpreter(model_content=data, **options)
        except PASSED_ON:
            raise
        except Exception as error:  # of any type: LiteRT raises it
            raise self._refused(error) from None
        self._shapes: dict[int, tuple[int, ...]] = {
            each["index"]: tuple(each["shape"]) for each in self._made.get_input_details()
        }
        self._ready = False

    def run(self, given: Mapping[int, Any]) -> None:
        """Runs the model. Errors: as the constructor."""
        try:
            for index, value in given.items():
                if self._shapes.get(index) != np.shape(value):
                    self._made.resize_tensor_input(index, np.shape(value))
                    self._shapes[index] = np.shape(value)
                    self._ready = False
            if not self._ready:
                self._made.allocate_tensors()
                self._ready = True
            for index, value in given.items():
                self._made.set_tensor(index, _given(value))
            self._made.invoke()
        except PASSED_ON:
            raise
        except Exception as error:  # as above
            raise self._refused(error) from None

    def value(self, graph: GraphInfo, index: int) -> Any:
        """Returns a tensor's value; None if LiteRT keeps none, or keeps it as another type."""
        tensor = graph.tensors[index]
        try:
            found = self._made.get_tensor(index)
        except (ValueError, RuntimeError):
            return None
        if tensor.dtype == "str":
            texts = [each.decode("utf-8", "replace") for each in np.ravel(found).tolist()]
            return np.array(texts, object).reshape(np.shape(found))
        return found if from_numpy(found.dtype) == tensor.dtype else None

    def _refused(self, error: Exception) -> InputError:
        return InputError(self._code, f"LiteRT rejects the model: {error}", hint=_HINT)


def _given(value: Any) -> Any:
    """Returns an input in the form that LiteRT expects."""
    array = np.asarray(value)
    if array.dtype != object:
        return array
    texts = [str(each).encode() for each in array.ravel().tolist()]
    return np.array(texts, np.bytes_).reshape(array.shape)
