"""Calls programs on torch's memory, without arrays in between, if they are one native call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from clew.api.compiled_model import CompiledModel
from clew.frontends.torch.tensors import reader
from clew.frontends.torch.traced import TracedInput, TracedOutput
from clew.support.arrays import ALIGNMENT_BYTES

Direct: TypeAlias = Callable[[Sequence[Any]], "list[Any] | None"]
# The function that torch's own compiled code calls. It is faster than torch.empty_strided.
_empty: Final = torch._C._dynamo.guards._empty_strided_cpu
_KINDS: Final = (torch.Tensor, torch.nn.Parameter)
_MISALIGNED: Final = ALIGNMENT_BYTES - 1


def direct_call(
    compiled: CompiledModel, inputs: Sequence[TracedInput], outputs: Sequence[TracedOutput]
) -> Direct | None:
    """Returns a function from a graph's arguments to the program's results, or None if the program
    needs more than one native call at fixed sizes. The function returns None, and runs nothing, for
    arguments that the kernels cannot read in place.
    """
    segment = compiled.segment
    if segment is None or not segment.runs_in_place:
        return None
    taken, made = [], []
    for given, spec in zip(inputs, compiled.inputs, strict=True):
        if given.dtype is None or not _is_stored_as(given.dtype, spec.dtype):
            return None
        odd = given.dtype.itemsize - 1
        taken.append((given.position, spec.shape, given.dtype, odd))
    for output, found in zip(outputs, compiled.outputs, strict=True):
        if output.dtype is None or found.shape is None or 0 in found.shape:
            return None
        if not _is_stored_as(output.dtype, found.dtype):
            return None
        made.append((*_layout(found.shape, output.order), output.dtype))
    run = segment.run_at

    def call(args: Sequence[Any]) -> list[Any] | None:
        addresses = []
        for position, shape, dtype, odd in taken:
            tensor = args[position]
            if (
                type(tensor) not in _KINDS
                or tensor.shape != shape
                or tensor.dtype is not dtype
                or not tensor.is_contiguous()
                or not tensor.is_cpu
                or tensor.is_neg()
                or (address := tensor.data_ptr()) & odd
            ):
                return None
            addresses.append(address)
        results = []
        for sizes, strides, dtype in made:
            try:
                result = _empty(sizes, strides, dtype)
            except RuntimeError:  # memory is short: a call by way of arrays says so
                return None
            address = result.data_ptr()
            if address & _MISALIGNED:
                return None
            addresses.append(address)
            results.append(result)
        try:
            run(addresses)
        except (MemoryError, OSError):  # a call by way of arrays says what is short
            return None
        return results

    return call


def _is_stored_as(dtype: torch.dtype, stored: Any) -> bool:
    """Whether tensors of a dtype have the memory format of a NumPy dtype, `stored`."""
    if dtype.is_complex or stored is None or stored.kind not in "biufV":
        return False
    try:
        return bool(reader(dtype)(torch.empty(0, dtype=dtype)).dtype == np.dtype(stored))
    except (TypeError, RuntimeError):  # NumPy lacks it
        return False


def _layout(stored: Sequence[Any], order: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the sizes and strides of a tensor whose axis `n` is axis `order[n]` of the stored
    one, which is C-contiguous. Without an order, both have the same axes.
    """
    strides = list(accumulate(reversed(stored[1:]), mul, initial=1))[::-1] if stored else []
    axes = order or range(len(stored))
    return tuple(stored[a] for a in axes), tuple(strides[a] for a in axes)
