"""Compares a model's outputs with eager, in the model's precision and in f64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from exports.entries import Entry

TOLERANCE = 1e-4  # of the largest absolute value of an output
_SMALL = 1e-3  # smaller outputs are compared as if they were this large
_SEEDS = (2, 3, 4)  # of inputs with the entry's own sizes, after the example
_OTHER = (5, 6)  # of inputs with other sizes


class TorchError(Exception):
    """torch itself fails, in eager or during export."""


@dataclass
class Result:
    """The outcome of one model's check.

    `error` is the largest difference from eager, relative to the output's largest value. `f64` has
    the errors of clew and of eager against eager in f64, if the difference is above the tolerance.
    `fixed` has the sizes that torch fixed although the export left them free. Under torch.compile,
    `programs` counts clew's programs, and `left` has the calls that stay in eager.
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
    programs: int = 0
    left: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return asdict(self)


def drawn(
    entry: Entry, dynamic: bool, fixed: Mapping[str, int], example: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yields the example and other inputs; sizes in `fixed` stay as they are."""
    yield example
    for seed in _SEEDS:
        yield tensors(entry, seed, fixed)
    for seed in _OTHER if dynamic else ():
        yield tensors(entry, seed, {**entry.others, **fixed})


def torch_call(make: Callable[[], Any]) -> Any:
    """Returns the result of a function. Raises TorchError for any error of the function."""
    try:
        return make()
    except Exception as error:
        text = next((line for line in str(error).splitlines() if line.strip()), "")
        raise TorchError(f"{type(error).__name__}: {text[:200]}") from error


def tensors(entry: Entry, seed: int, dims: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Returns inputs of an entry, drawn from a seed, at its own sizes or others."""
    return {name: torch.from_numpy(value) for name, value in entry.draw(seed, dims).items()}


def _eager(entry: Entry, module: Any, inputs: Mapping[str, Any]) -> Any:
    copies = {name: value.clone() for name, value in inputs.items()}
    return module(**copies) if entry.by_name else module(*copies.values())


def outputs(entry: Entry, module: Any, inputs: Mapping[str, Any]) -> list[Any]:
    """Returns the tensors among a call's results."""
    return leaves(_eager(entry, module, inputs))


def leaves(result: Any) -> list[Any]:
    """Returns the tensors among an output's leaves."""
    leaves = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    if not leaves:
        raise TypeError(f"no tensors in a result of {type(result).__name__}")
    return leaves


def judge(ours: Sequence[Any], wanted: Sequence[Any], found: Result) -> None:
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


def in_f64(
    entry: Entry,
    module: Any,
    inputs: Mapping[str, Any],
    ours: Sequence[Any],
    wanted: Sequence[Any],
    found: Result,
) -> None:
    """Lets eager in f64 decide whether a difference is rounding: some networks amplify rounding,
    and an order or a label may depend on the last bit.
    """
    wide = {n: x.double() if x.dtype == torch.float32 else x for n, x in inputs.items()}
    try:
        with torch.no_grad():
            exact = [x.numpy() for x in outputs(entry, module.double(), wide)]
        mine = max(difference(a, b)[0] for a, b in zip(ours, exact, strict=True))
        eager = max(difference(a.numpy(), b)[0] for a, b in zip(wanted, exact, strict=True))
    except Exception:
        return
    found.f64 = mine, eager
    if mine <= max(TOLERANCE, 2 * eager):
        found.status = "rounding"
