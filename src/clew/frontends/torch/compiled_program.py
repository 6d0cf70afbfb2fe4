"""Exported programs compiled by torch, as a peer in `clew bench`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from clew.frontends.torch.file import saved_program


def load(
    path: Path, threads: int, backend: str, narrow: bool
) -> Callable[[Mapping[str, np.ndarray]], list[Any]]:
    """Returns a function that runs a program that `torch.export.save` wrote, from inputs by name to
    outputs in order. `backend` is one of `torch.compile`; with `narrow`, products are in bfloat16.

    Errors: M052 and M053 (it cannot be read).
    """
    torch.set_num_threads(threads)
    program = saved_program(path)
    names, taken = program.graph_signature.user_inputs, program.call_spec.in_spec
    compiled = torch.compile(program.module(), backend=backend)

    def run(feed: Mapping[str, np.ndarray]) -> list[Any]:
        values = [torch.from_numpy(feed[n]) if n in feed else n for n in names]
        args, keywords = pytree.tree_unflatten(values, taken)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            found = pytree.tree_leaves(compiled(*args, **keywords))
        wide = [each.float() if each.dtype is torch.bfloat16 else each for each in found]
        return [each.numpy() for each in wide]

    return run
