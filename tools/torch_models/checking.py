"""Imports one model, runs it at several sizes with new values, and compares it with eager."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

import clew
from clew.frontends.torch import from_torch
from clew.frontends.torch.recurrent_types import free_time
from exports.entries import Entry
from exports.exporting import network_and_inputs

TOLERANCE = 1e-4  # of the largest absolute value of an output
_SMALL = 1e-3  # outputs no larger are compared as if they were
_SEEDS = (2, 3, 4)  # of inputs with the entry's own sizes, after the example
_OTHER = (5, 6)  # of inputs with other sizes


class TorchError(Exception):
    """torch itself fails: eager, or the export."""


@dataclass
class Result:
    """What was found of one model. `error` is the largest difference from eager, relative to the
    output's largest value; `fixed` are the sizes that torch fixed although they were to be free;
    `f64` holds the errors of clew and of eager against eager in f64, where the difference is above
    the tolerance.
    """

    status: str = "agrees"
    why: str = ""
    error: float = 0.0
    f64: tuple[float, float] | None = None
    largest: float = 0.0
    nodes: int = 0
    runs: int = 0
    export_s: float = 0.0
    compile_s: float = 0.0
    spec: str = ""
    fixed: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return asdict(self)


def check(entry: Entry, dynamic: bool, phase: Callable[[str], None]) -> Result:
    """Returns the outcome of one model, exported at fixed sizes or with free ones."""
    torch.set_num_threads(1)
    found = Result()
    phase("eager")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = _torch(lambda: network_and_inputs(entry)[0])
        # torch fixes sizes that are 1 in the example.
        above_one = dynamic and 1 in entry.dims.values()
        example = _tensors(entry, 1, entry.others if above_one else None)
        _torch(lambda: _outputs(entry, module, example))
    phase("export")
    started = time.perf_counter()
    program = _torch(lambda: _exported(entry, module, example, dynamic, found))
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
    for n, inputs in enumerate(_drawn(entry, dynamic, fixed, example)):
        phase(f"eager {n}")
        with torch.no_grad():
            wanted = _torch(partial(_outputs, entry, module, inputs))
        phase(f"run {n}")
        ours = _run(compiled, inputs)
        found.runs += 1
        _judge(ours, wanted, found)
        if found.status != "agrees":
            phase("f64")
            _in_f64(entry, module, inputs, ours, wanted, found)
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


def _drawn(
    entry: Entry, dynamic: bool, fixed: Mapping[str, int], example: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yields the example and other inputs."""
    yield example
    for seed in _SEEDS:
        yield _tensors(entry, seed, fixed)
    for seed in _OTHER if dynamic else ():
        yield _tensors(entry, seed, {**entry.others, **fixed})


def _torch(make: Callable[[], Any]) -> Any:
    """Returns what a function makes. Raises TorchError for its errors."""
    try:
        return make()
    except Exception as error:
        text = next((line for line in str(error).splitlines() if line.strip()), "")
        raise TorchError(f"{type(error).__name__}: {text[:200]}") from error


def _tensors(entry: Entry, seed: int, dims: Mapping[str, int] | None = None) -> dict[str, Any]:
    return {name: torch.from_numpy(value) for name, value in entry.draw(seed, dims).items()}


def _eager(entry: Entry, module: Any, inputs: Mapping[str, Any]) -> Any:
    copies = {name: value.clone() for name, value in inputs.items()}
    return module(**copies) if entry.by_name else module(*copies.values())


def _outputs(entry: Entry, module: Any, inputs: Mapping[str, Any]) -> list[Any]:
    return _leaves(_eager(entry, module, inputs))


def _leaves(result: Any) -> list[Any]:
    """Returns the tensors among an output's leaves."""
    leaves = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    if not leaves:
        raise TypeError(f"no tensors in a result of {type(result).__name__}")
    return leaves


def _exported(
    entry: Entry, module: Any, inputs: Mapping[str, Any], dynamic: bool, found: Result
) -> Any:
    """Returns the exported program. If torch refuses sizes that are all free, those that it
    must fix are fixed (`Dim.AUTO`).
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


def _judge(ours: Sequence[Any], wanted: Sequence[Any], found: Result) -> None:
    """Compares one run's outputs."""
    if len(ours) != len(wanted):
        found.status, found.why = "differs", f"{len(ours)} outputs, eager has {len(wanted)}"
        return
    for n, (a, tensor) in enumerate(zip(ours, wanted, strict=True)):
        b = tensor.detach().float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()
        if a.shape != b.shape:
            found.status = "differs"
            found.why = f"output {n} has shape {list(a.shape)}, eager's has {list(b.shape)}"
            return
        error, scale = difference(a, b)
        found.largest = max(found.largest, scale)
        found.error = max(found.error, error)
        if not error <= TOLERANCE:
            found.status, found.why = "differs", f"output {n} of {len(ours)}: {error:.1e}"


def difference(a: Any, b: Any) -> tuple[float, float]:
    """Returns the largest difference relative to the scale of `b`, and that scale."""
    if b.size == 0:
        return 0.0, 0.0
    if b.dtype.kind not in "fc":
        unequal = float(np.mean(a != b))
        return unequal, float(np.abs(b.astype(np.float64)).max())
    a, b = a.astype(np.complex128), b.astype(np.complex128)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf"), 0.0
    kept = np.isfinite(b)
    if not kept.any():
        return 0.0, 0.0
    scale = float(np.abs(b[kept]).max())
    return float(np.abs(a[kept] - b[kept]).max()) / max(scale, _SMALL), scale


def _in_f64(
    entry: Entry,
    module: Any,
    inputs: Mapping[str, Any],
    ours: Sequence[Any],
    wanted: Sequence[Any],
    found: Result,
) -> None:
    """Lets eager in f64 decide: a network that amplifies rounding proves nothing, and an order or
    a label may depend on the last bit.
    """
    wide = {n: x.double() if x.dtype == torch.float32 else x for n, x in inputs.items()}
    try:
        with torch.no_grad():
            exact = [x.numpy() for x in _outputs(entry, module.double(), wide)]
        mine = max(difference(a, b)[0] for a, b in zip(ours, exact, strict=True))
        eager = max(difference(a.numpy(), b)[0] for a, b in zip(wanted, exact, strict=True))
    except Exception:
        return
    found.f64 = mine, eager
    if mine <= max(TOLERANCE, 2 * eager):
        found.status = "rounding"
