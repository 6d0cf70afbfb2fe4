"""Runs an exported program in torch, and returns its outputs and the results of each layer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec

from clew.frontends.format import FileRun
from clew.frontends.torch.dtypes import PARTS, to_numpy
from clew.frontends.torch.exporting import decomposed
from clew.frontends.torch.file import saved_program
from clew.frontends.torch.places import is_layer, layer_names
from clew.frontends.torch.program import ProgramImporter
from clew.frontends.torch.tensors import writer
from clew.support.errors import PASSED_ON, InputError


class ProgramRun(FileRun):
    """A run of a program that `torch.export.save` wrote, for inputs by name. torch runs the core
    ATen operators that clew imports. Layers in branches and loops are left out.

    Errors: M052 and M053 (it cannot be read), M050, I173 (torch cannot run it).
    """

    def __init__(self, path: str | os.PathLike[str], inputs: Mapping[str, Any]) -> None:
        program = decomposed(saved_program(path))
        importer = ProgramImporter(program)
        importer.run()
        run = _Run(program.graph_module)
        try:
            with torch.no_grad():
                results = run.run(*_arguments(program, inputs))
        except PASSED_ON:
            raise
        except Exception as error:  # of any type: torch raises it
            raise InputError(
                "I173", f"torch cannot run the program: {type(error).__name__}: {error}"
            ) from error
        places = importer.places_of_outputs
        super().__init__({name: _array(results[place]) for name, place in places.items()})
        self._layers: dict[tuple[str, int], Any] = {}
        names = layer_names(filter(is_layer, program.graph.nodes))
        for node, name in names.items():
            value = run.values.get(node)
            several = value if isinstance(value, (list, tuple)) else [value]
            for number, each in enumerate(several):
                if isinstance(each, torch.Tensor) and each.dtype not in PARTS:
                    self._layers[name, number] = to_numpy(each)

    def layers(self) -> Mapping[tuple[str, int], Any]:
        """Returns the values of layers, by layer and number of the result."""
        return self._layers


class _Run(fx.Interpreter):  # type: ignore[misc]
    """A run of a graph that keeps the values of all nodes."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Returns the value of a node."""
        value = self.values[n] = super().run_node(n)
        return value


def _arguments(program: ExportedProgram, inputs: Mapping[str, Any]) -> list[Any]:
    """Returns the arguments of a program's graph: weights, buffers, and the given inputs."""
    fakes = {n.name: n.meta.get("val") for n in program.graph.find_nodes(op="placeholder")}

    def argument(spec: InputSpec) -> Any:
        if isinstance(spec.arg, ConstantArgument):
            return spec.arg.value
        if spec.kind is InputKind.TOKEN:
            return None
        name = spec.arg.name if spec.kind is InputKind.USER_INPUT else str(spec.target)
        if name in inputs:
            return writer(fakes[spec.arg.name].dtype)(inputs[name])
        kept = program.constants if name in program.constants else program.state_dict
        return kept[name]

    return list(map(argument, program.graph_signature.input_specs))


def _array(value: Any) -> Any:
    return value.resolve_conj().numpy() if isinstance(value, torch.Tensor) else value
