"""Types of writes to parts of tensors, without decisions on sizes.

torch checks that a tensor which is written to does not overlap itself, and copies the strides of a
part that is replaced. For a part of a free size, both compare sizes: the guards would exclude parts
of size 1 and those that are the whole tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor

_COPY: Final = torch.ops.aten.copy.default
_TOO_HARD: Final = 2  # torch's answer (`MemOverlap`) where it does not know


@contextmanager
def free_writes() -> Iterator[None]:
    """A context in which writes to parts of free sizes record no guards."""
    overlaps, rules = torch._debug_has_internal_overlap, fake_impls.op_implementations_dict
    rule = rules[_COPY]

    def overlap(x: torch.Tensor) -> int:
        # Only an axis of stride 0 is known to overlap.
        repeats = any(isinstance(stride, int) and stride == 0 for stride in x.stride())
        return int(overlaps(x)) if repeats or not _is_free(x) else _TOO_HARD

    def copy(mode: Any, func: Any, x: Any, src: Any, non_blocking: bool = False) -> Any:
        if not isinstance(x, FakeTensor) or not _is_free(x):
            return rule(mode, func, x, src, non_blocking)
        with mode:
            if isinstance(src, torch.Tensor):
                torch._refs.expand(src, x.size())  # fails, or records that the shapes fit
            return x.new_empty_strided(x.size(), x.stride())

    torch._debug_has_internal_overlap = overlap
    rules[_COPY] = copy
    try:
        yield
    finally:
        torch._debug_has_internal_overlap = overlaps
        rules[_COPY] = rule


def _is_free(x: torch.Tensor) -> bool:
    return any(isinstance(size, torch.SymInt) for size in (*x.shape, *x.stride()))
