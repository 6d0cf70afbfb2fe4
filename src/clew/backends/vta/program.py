"""A program for VTA: instructions, buffers in DRAM, and the layers that instructions come from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from clew.backends.vta.config import Config
from clew.backends.vta.isa import Instruction, check, encode
from clew.backends.vta.names import Memory
from clew.support.errors import InputError
from clew.support.shown import Shown, counted

Array: TypeAlias = "np.ndarray[Any, Any]"
Role: TypeAlias = Literal["input", "output", "constant", "scratch"]
"""Inputs are given to a run and outputs returned. Only outputs and scratch are stored to."""


@dataclass(frozen=True)
class Buffer:
    """A range of DRAM: `elements` elements of a memory from the byte `address` on.

    `data` has the values of a constant, in the shape `(elements, *element)`.
    """

    name: str
    memory: Memory
    address: int
    elements: int
    role: Role
    data: Array | None = field(default=None, compare=False, repr=False)

    def size_bytes(self, config: Config) -> int:
        """Returns the bytes that the buffer takes."""
        return self.elements * config.element_bytes(self.memory)

    def base(self, config: Config, memory: Memory | None = None) -> int:
        """Returns the address in elements, as `dram` of an instruction; `memory` is the memory that
        the instruction moves, by default the buffer's.
        """
        return self.address // config.element_bytes(self.memory if memory is None else memory)

    def shape(self, config: Config) -> tuple[int, ...]:
        """Returns the shape of the buffer's values."""
        return (self.elements, *config.element_shape(self.memory))


@dataclass(frozen=True)
class Origin:
    """Where an instruction comes from: layers of the model, and its work for them."""

    layers: tuple[str, ...] = ()
    label: str = ""


@dataclass(frozen=True, repr=False)
class Program(Shown):
    """Instructions in the order in which they are fetched, with the buffers that they use.

    `origins` has the origins of instructions by index.
    """

    instructions: tuple[Instruction, ...]
    buffers: tuple[Buffer, ...]
    origins: Mapping[int, Origin] = field(default_factory=dict)

    def _about(self) -> str:
        return (
            f"{counted(len(self.instructions), 'instruction')}, "
            f"{counted(len(self.buffers), 'buffer')}"
        )

    def buffer(self, name: str) -> Buffer:
        """Returns a buffer.

        Errors: I433.
        """
        for buffer in self.buffers:
            if buffer.name == name:
                return buffer
        raise InputError("I433", f"VTA: the program has no buffer {name!r}")

    def layers(self, index: int) -> tuple[str, ...]:
        """Returns the layers that an instruction serves."""
        found = self.origins.get(index)
        return found.layers if found else ()

    def instructions_of(self, layer: str) -> tuple[int, ...]:
        """Returns the indices of the instructions that serve a layer."""
        return tuple(i for i in sorted(self.origins) if layer in self.origins[i].layers)

    def encoded(self, config: Config) -> bytes:
        """Returns the instructions as bytes.

        Errors: I431.
        """
        return b"".join(encode(i, config) for i in self.instructions)

    def check(self, config: Config) -> None:
        """Checks the fields of instructions, and the buffers.

        Errors: I431; I433 for buffers that overlap, are misaligned or outside of DRAM, share a name
        or have other values than their elements say.
        """
        for at, instruction in enumerate(self.instructions):
            try:
                check(instruction, config)
            except InputError as error:
                error.message += f" (instruction {at})"
                error.layer = error.layer or ", ".join(self.layers(at))
                raise
        _check_buffers(self.buffers, config)


def alignment_bytes(config: Config) -> int:
    """Returns the alignment of buffers, at which an element of any memory may begin."""
    return math.lcm(*(config.element_bytes(m) for m in Memory))


def _check_buffers(buffers: Sequence[Buffer], config: Config) -> None:
    before: Buffer | None = None
    for buffer in sorted(buffers, key=lambda b: (b.address, b.elements)):
        end = buffer.address + buffer.size_bytes(config)
        if buffer.elements < 1 or buffer.address < 0 or end > config.dram_bytes:
            raise InputError(
                "I433",
                f"VTA: the buffer {buffer.name} takes the bytes {buffer.address:#x} to {end:#x} of "
                f"a DRAM of {config.dram_bytes:#x}",
            )
        if buffer.address % config.element_bytes(buffer.memory):
            raise InputError(
                "I433",
                f"VTA: the buffer {buffer.name} at {buffer.address:#x} is not aligned to its "
                f"elements of {config.element_bytes(buffer.memory)} bytes",
            )
        if before is not None and before.address + before.size_bytes(config) > buffer.address:
            raise InputError(
                "I433",
                f"VTA: the buffers {before.name} (to "
                f"{before.address + before.size_bytes(config):#x}) and {buffer.name} (from "
                f"{buffer.address:#x}) overlap",
            )
        if buffer.data is not None and buffer.data.shape != buffer.shape(config):
            raise InputError(
                "I433",
                f"VTA: the data of {buffer.name} have the shape {buffer.data.shape}, not "
                f"{buffer.shape(config)}",
            )
        before = buffer
    names = [b.name for b in buffers]
    for name in _repeated(names):
        raise InputError("I433", f"VTA: there are two buffers {name}")


def _repeated(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [n for n in names if n in seen or seen.add(n)]  # type: ignore[func-returns-value]
