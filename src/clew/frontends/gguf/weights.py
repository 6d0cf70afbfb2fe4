"""Tensors of a GGUF file as parameters of a graph, which are read on first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.frontends.building import call, scalar
from clew.frontends.gguf.blocks import TensorKind, Unpack
from clew.frontends.gguf.container import Tensor
from clew.ir.expr import Constant, Expr
from clew.ir.types import TensorType, to_numpy
from clew.support.arrays import aligned_empty
from clew.support.dataclass import dataclass

_AT_ONCE: Final = 1 << 20  # elements


@dataclass(frozen=True)
class Stored:
    """A tensor of a file as a weight.

    With `heads`, the rows of each of so many heads are stored as llama.cpp rotates them, with the
    two elements of a rotated pair next to each other. They are moved back, to one half of each head
    for each element of a pair. Source: llama.cpp, `convert_hf_to_gguf.py` (`permute`).
    """

    tensor: Tensor
    heads: int = 0

    @property
    def type(self) -> TensorType:
        """The type of its numbers: `f32` of codes."""
        kind = self.tensor.kind
        return TensorType(self.tensor.shape, "f32" if kind.codes else kind.dtype)

    def constants(self, name: str) -> tuple[Constant, ...]:
        """Returns its parameters: numbers; or codes, scales, and a zero point or offsets. Scales
        and offsets that are codes are followed by their factors.
        """
        kind, shape = self.tensor.kind, self.tensor.shape
        if kind.codes is None or kind.scales is None:
            return (self._lazy(name, "", TensorType(shape, kind.dtype), None),)
        groups = (*shape[:-1], shape[-1] // kind.group)
        found = [self._lazy(name, "codes", TensorType(shape, kind.dtype), kind.codes)]
        wholes = TensorType((*shape[:-1], shape[-1] // kind.elements), "f16")
        for what, dtype, unpack, factors in (
            ("scales", kind.scale_dtype, kind.scales, kind.factors),
            ("offsets", kind.offset_dtype, kind.offsets, kind.offset_factors),
        ):
            if unpack is not None:
                found.append(self._lazy(f"{name}.{what}", what, TensorType(groups, dtype), unpack))
            if factors is not None:
                each = f"{what}.factors"
                found.append(self._lazy(f"{name}.{each}", each, wholes, factors))
        if kind.zero:
            found.append(scalar(kind.zero, kind.dtype))
        return tuple(found)

    def joined(self, parts: Sequence[Expr]) -> Expr:
        """Returns numbers from the parameters, or from the same rows of each of them."""
        kind = self.tensor.kind
        if not kind.codes:
            return parts[0]
        op = "dequantize_offset" if kind.offsets else "dequantize"
        axis = parts[0].tensor.rank - 1
        codes, *rest = parts
        operands = [codes]
        for factors in (kind.factors, kind.offset_factors):
            if factors is not None:
                block = kind.elements // kind.group
                pair, rest = rest[:2], rest[2:]
                operands.append(call("dequantize", *pair, axis=axis, block=block, dtype="f32"))
        return call(op, *operands, *rest, axis=axis, block=kind.group, dtype="f32")

    def _lazy(
        self,
        name: str,
        what: str,
        type_: TensorType,
        unpack: Unpack | None,
    ) -> Constant:
        def read() -> NDArray[Any]:
            data, dtype = self._rows(), to_numpy(type_.dtype)
            if unpack is None:
                return data.view(dtype).reshape(type_.concrete)
            return _unpacked(data, self.tensor.kind, unpack, type_)

        token = f"{self.tensor.part.token} {self.tensor.kind.name} {what} {self.heads}"
        return Constant.lazy(type_, read, name=name, token=token)

    def _rows(self) -> NDArray[np.uint8]:
        """Returns the tensor's bytes."""
        data = self.tensor.part.read()
        if not self.heads:
            return data
        pairs = data.reshape(self.heads, -1, 2, data.size // self.tensor.shape[0])
        return pairs.swapaxes(1, 2).reshape(-1)


def _unpacked(
    data: NDArray[np.uint8], kind: TensorKind, unpack: Unpack, type_: TensorType
) -> NDArray[Any]:
    """Returns a parameter from the blocks of a tensor. Some blocks are unpacked at a time, which
    takes little memory besides the result.
    """
    blocks = data.reshape(-1, kind.size_bytes)
    found = aligned_empty(type_.concrete, to_numpy(type_.dtype)).reshape(len(blocks), -1)
    step = max(1, _AT_ONCE // kind.elements)
    for begin in range(0, len(blocks), step):
        part = unpack(blocks[begin : begin + step])
        found[begin : begin + step] = np.ascontiguousarray(part).view(found.dtype)
    return found.reshape(type_.concrete)
