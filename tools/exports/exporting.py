"""Exports an entry's network: seeded weights, flat outputs, and the exporter's own defaults."""

from __future__ import annotations

import logging
import random
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from exports.entries import Entry

_SEED = 2027
_RUNS = 3  # that batch norms' statistics are of


def export(entry: Entry, exporter: str, dynamic: bool, path: Path) -> None:
    """Writes the network as `torch.onnx.export` does unless told otherwise: opset and options."""
    import torch  # noqa: PLC0415 - optional

    torch.set_num_threads(1)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters' own deprecations
        module, drawn = made(entry)
        arguments = tuple(drawn.values())
        if exporter == "dynamo":
            program = torch.onnx.export(
                module,
                arguments,
                input_names=list(drawn),
                dynamic_shapes=(tuple(_axes(entry).values()),) if dynamic else None,
                dynamo=True,
                verbose=False,
            )
            program.save(path, external_data=False)
        else:
            torch.onnx.export(
                module,
                arguments,
                str(path),
                input_names=list(drawn),
                dynamic_axes={k: v for k, v in _axes(entry).items() if v} if dynamic else None,
                dynamo=False,
                external_data=False,
            )


def made(entry: Entry) -> tuple[Any, dict[str, Any]]:
    """Returns the module, which gives flat outputs, and example inputs by name."""
    module, drawn = network_and_inputs(entry)
    return _flat(module, list(drawn) if entry.by_name else None), drawn


def network_and_inputs(entry: Entry) -> tuple[Any, dict[str, Any]]:
    """Returns the network itself, weights drawn, in evaluation mode, and example inputs by name."""
    import torch  # noqa: PLC0415 - optional

    from exports import weights  # noqa: PLC0415 - imports torch

    torch.manual_seed(_SEED)
    np.random.seed(_SEED)  # some libraries draw indices when a network is made
    random.seed(_SEED)
    inner = entry.make().eval()
    examples = [
        {name: torch.from_numpy(value) for name, value in entry.draw(_SEED + n).items()}
        for n in range(_RUNS)
    ]
    runs = [
        partial(inner, **drawn) if entry.by_name else partial(inner, *drawn.values())
        for drawn in examples
    ]
    weights.draw(inner, runs)
    if entry.adjust is not None:
        with torch.no_grad():
            entry.adjust(inner, lambda: [run() for run in runs])
    return inner, examples[0]


def _axes(entry: Entry) -> dict[str, dict[int, str]]:
    return {
        spec.name: {axis: dim for axis, dim in enumerate(spec.shape) if isinstance(dim, str)}
        for spec in entry.inputs
    }


def _flat(module: Any, names: list[str] | None) -> Any:
    """Returns a module from positional inputs, passed on by `names`, to the outputs' tensors."""
    from torch import nn  # noqa: PLC0415 - optional

    class Flat(nn.Module):  # type: ignore[misc]  # torch is not followed by the type check
        def __init__(self) -> None:
            super().__init__()
            self.network = module

        def forward(self, *arguments: Any) -> Any:
            if names is None:
                result = self.network(*arguments)
            else:
                result = self.network(**dict(zip(names, arguments, strict=True)))
            found = tuple(_tensors(result))
            return found if len(found) > 1 else found[0]

    return Flat().eval()


def _tensors(value: Any) -> Any:
    """Yields the tensors in nested tuples, lists and mappings; caches of attention have none."""
    import torch  # noqa: PLC0415 - optional

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)
