"""References into a trace, from the user's layer down to one instruction.

Lines count from 1. A node is identified by its id and a stage; a kernel by the call in the last
stage that uses it, so two uses of equal kernels have different references.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True, order=True)
class LayerRef:
    """A layer of the user's model, by name."""

    layer: str


@dataclass(frozen=True, slots=True, order=True)
class NodeRef:
    """A graph node at a stage (its position in the list of stages)."""

    stage: int
    node: int


@dataclass(frozen=True, slots=True, order=True)
class KernelRef:
    """One use of a kernel: `call` is the id of the call in the last stage."""

    call: int


@dataclass(frozen=True, slots=True, order=True)
class LoopRef:
    """A line of a kernel's printed loop nest."""

    call: int
    line: int


@dataclass(frozen=True, slots=True, order=True)
class LlvmRef:
    """A line of a kernel's LLVM text."""

    call: int
    line: int


@dataclass(frozen=True, slots=True, order=True)
class AsmRef:
    """An instruction of a kernel, by its number from 1."""

    call: int
    line: int


Ref: TypeAlias = LayerRef | NodeRef | KernelRef | LoopRef | LlvmRef | AsmRef


@dataclass(frozen=True)
class Reach:
    """Everything a reference leads to, per level; its own level holds the reference itself."""

    layers: tuple[LayerRef, ...] = ()
    nodes: dict[int, tuple[NodeRef, ...]] = field(default_factory=dict)
    kernels: tuple[KernelRef, ...] = ()
    loops: tuple[LoopRef, ...] = ()
    llvm: tuple[LlvmRef, ...] = ()
    asm: tuple[AsmRef, ...] = ()

    def at(self, stage: int) -> tuple[NodeRef, ...]:
        """Returns the nodes reached at a stage."""
        return self.nodes.get(stage, ())
