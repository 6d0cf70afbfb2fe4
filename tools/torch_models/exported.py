"""Exports one model, runs it at several sizes with new values, and compares it with eager."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

import clew
from clew.frontends.torch import from_torch
from clew.frontends.torch.recurrent_types import free_time
from exports.entries import Entry
from exports.exporting import network_and_inputs
from torch_models.comparing import Result, drawn, in_f64, judge, outputs, tensors, torch_call


def check_exported(entry: Entry, dynamic: bool, phase: Callable[[str], None]) -> Result:
    """Returns the outcome of one model, exported at fixed sizes or with free ones."""
    torch.set_num_threads(1)
    found = Result()
    phase("eager")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch_call(lambda: network_and_inputs(entry)[0])
        # torch fixes sizes that are 1 in the example.
        above_one = dynamic and 1 in entry.dims.values()
        example = tensors(entry, 1, entry.others if above_one else None)
        torch_call(lambda: outputs(entry, module, example))
    phase("export")
    started = time.perf_counter()
    program = torch_call(lambda: _exported(entry, module, example, dynamic, found))
    found.export_s = time.perf_counter() - started
    found.nodes = sum(n.op == "call_function" for n in program.graph.nodes)
    phase("import")
    imported = from_torch(program)
    phase("compile")
    started = time.perf_counter()
    compiled = clew.compile(imported, threads=1, cache=False)
    found.compile_s = time.perf_counter() - started
    fixed = _fixed(entry, program) if dynamic else {}
    found.fixed = sorted(fixed)
    for n, inputs in enumerate(drawn(entry, dynamic, fixed, example)):
        phase(f"eager {n}")
        with torch.no_grad():
            wanted = torch_call(partial(outputs, entry, module, inputs))
        phase(f"run {n}")
        ours = _run(compiled, inputs)
        found.runs += 1
        judge(ours, wanted, found)
        if found.status != "agrees":
            phase("f64")
            in_f64(entry, module, inputs, ours, wanted, found)
            break
    return found


def _fixed(entry: Entry, program: Any) -> dict[str, int]:
    """Returns the named sizes that torch fixed."""
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    given = [nodes[name].meta["val"] for name in program.graph_signature.user_inputs]
    shapes = [x.shape for x in given if isinstance(x, torch.Tensor)]
    found: dict[str, int] = {}
    for spec, shape in zip(entry.inputs, shapes, strict=True):
        for dim, size in zip(spec.shape, shape, strict=True):
            free = isinstance(size, torch.SymInt) and not size.node.expr.is_number
            if isinstance(dim, str) and not free:
                found[dim] = int(size)
    return found


def _exported(
    entry: Entry, module: Any, inputs: Mapping[str, Any], dynamic: bool, found: Result
) -> Any:
    """Returns the exported program. If torch cannot export it with all named sizes free, torch
    chooses the sizes to fix (`Dim.AUTO`).
    """
    args = () if entry.by_name else tuple(inputs.values())
    kwargs = dict(inputs) if entry.by_name else {}

    def export(spec: Any) -> Any:
        with torch.no_grad(), warnings.catch_warnings(), free_time():
            warnings.simplefilter("ignore")
            return torch.export.export(module, args, kwargs, dynamic_shapes=spec, strict=False)

    if not dynamic:
        return export(None)
    dims = {name: torch.export.Dim(name) for name in entry.dims}
    found.spec = "named"
    try:
        return export(_axes(entry, module, inputs, dims))
    except Exception:
        found.spec = "auto"
        free = dict.fromkeys(dims, torch.export.Dim.AUTO)
        return export(_axes(entry, module, inputs, free))


def _axes(entry: Entry, module: Any, inputs: Mapping[str, Any], dims: Mapping[str, Any]) -> Any:
    """Returns the free axes of the inputs, in the form of the module's signature."""
    shapes = torch.export.ShapesCollection()
    for spec in entry.inputs:
        shapes[inputs[spec.name]] = {
            axis: dims[dim] for axis, dim in enumerate(spec.shape) if isinstance(dim, str)
        }
    args = () if entry.by_name else tuple(inputs.values())
    return shapes.dynamic_shapes(module, args, dict(inputs) if entry.by_name else {})


def _run(compiled: Any, inputs: Mapping[str, Any]) -> list[Any]:
    arrays = [value.numpy() for value in inputs.values()]
    return list(compiled.run(*arrays).values())
