"""The weights and constants of an exported program, from the bytes in its archive."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._export.serde import schema
from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE

from clew.frontends.torch.file.reading import PickledError
from clew.support.archives import Archive
from clew.support.budgets import current, exceeded
from clew.support.errors import ModelError


class TensorReader:
    """Reads tensors of one archive, whose dtypes and sizes `reading.py` has checked. Tensors of one
    record share its memory, as they did when they were saved.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._records: dict[str, torch.Tensor] = {}
        self._read_bytes = 0

    def read(self, folder: str, config: schema.PayloadConfig) -> dict[str, Any]:
        """Returns tensors by name, whose records lie in a folder of the archive.

        Errors: ValueError; PickledError; I331 and M030 for tensors that exceed the budgets.
        """
        return {name: self._tensor(name, folder, m) for name, m in config.config.items()}

    def _tensor(self, name: str, folder: str, given: schema.PayloadMeta) -> torch.Tensor:
        meta = given.tensor_meta
        if given.use_pickle or meta is None:
            raise PickledError(f"{name!r}")
        if meta.layout is not schema.Layout.Strided:
            raise ValueError(f"the tensor {name!r} is of no known kind")
        dtype = _SERIALIZE_TO_TORCH_DTYPE[meta.dtype]
        sizes, strides, (offset,) = map(_numbers, (meta.sizes, meta.strides, [meta.storage_offset]))
        if len(sizes) != len(strides):
            raise ValueError(f"the tensor {name!r} has other axes than strides")
        data = self._record(f"{folder}{given.path_name}")
        if len(data) % dtype.itemsize:
            raise ValueError(f"the tensor {name!r} has {len(data)} bytes")
        last = offset + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
        if 0 not in sizes and last >= len(data) // dtype.itemsize:
            raise ValueError(f"the tensor {name!r} exceeds its {len(data)} bytes")
        self._count(math.prod(max(size, 1) for size in sizes) * dtype.itemsize)
        if dtype is torch.bool and bool((data > 1).any()):
            raise ValueError(f"a Boolean of {name!r} is neither 0 nor 1")
        if 0 in sizes:
            made = torch.empty(sizes, dtype=dtype)
        else:
            made = torch.as_strided(data.view(dtype), sizes, strides, offset)
        if given.is_param:
            differentiable = dtype.is_floating_point or dtype.is_complex
            return torch.nn.Parameter(made, requires_grad=meta.requires_grad and differentiable)
        return made

    def _record(self, name: str) -> torch.Tensor:
        if name not in self._records:
            try:
                self._records[name] = torch.from_numpy(self._archive.record(name))
            except KeyError:
                raise ValueError(f"it lacks {name!r}") from None
        return self._records[name]

    def _count(self, size_bytes: int) -> None:
        """Compares the bytes of all tensors with the budget: strides of 0 repeat a few bytes."""
        self._read_bytes += size_bytes
        most = current().total_bytes
        if self._read_bytes > most:
            raise exceeded(
                ModelError, "M030", "bytes of all tensors", self._read_bytes, "total_bytes", most
            )


def _numbers(found: list[schema.SymInt]) -> list[int]:
    values = [size.as_int if size.type == "as_int" else -1 for size in found]
    if min(values, default=0) < 0:
        raise ValueError("a tensor has a size that is not a number of at least 0")
    return values
