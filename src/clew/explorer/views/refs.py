"""Refs of the wire format (see `schema`), and the things of the trace that they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clew.explorer.session import Session
from clew.support.errors import InputError
from clew.trace.refs import AsmRef, KernelRef, LayerRef, LlvmRef, LoopRef, NodeRef, Ref

KINDS: Final = ("layer", "node", "kernel", "region", "loop", "llvm", "asm", "stage", "source")
_LINES: Final[dict[str, type[LoopRef | LlvmRef | AsmRef]]] = {
    "loop": LoopRef,
    "llvm": LlvmRef,
    "asm": AsmRef,
}


@dataclass(frozen=True)
class Place:
    """The thing that a ref names: a layer's `name`; the number of a kernel, region, stage or node;
    a `line`.
    """

    kind: str
    name: str = ""
    number: int = -1
    line: int = 0


def parse_ref(session: Session, ref: str) -> Place:
    """Returns the thing that a ref names, if it exists.

    Errors: I240 for text that is not a ref; I070 (layer), I071 (stage), I072 (line), I200 (kernel),
    I244 (region), I241 (node) for things that do not exist.
    """
    kind, _, rest = ref.partition(":")
    if kind == "layer":
        return Place(kind, session.trace.need_layer(rest))
    numbers = rest.split(":")
    wanted = 1 if kind in ("kernel", "region", "stage", "source") else 2
    plain = all(n.isascii() and n.isdecimal() and len(n) < 10 for n in numbers)
    if kind not in KINDS or len(numbers) != wanted or not plain:
        raise InputError(
            "I240",
            f"{ref[:80]!r} is not a reference",
            hint="references are layer:NAME, kernel:K, region:R, node:STAGE:N, loop:K:L, llvm:K:L, "
            "asm:K:N",
        )
    first, *more = map(int, numbers)
    if kind == "stage":
        return Place(kind, number=session.stage(first))
    if kind == "source":
        return Place(kind, line=first)
    if kind == "node":
        return Place(kind, number=_node(session, first, more[0]), line=first)
    if kind == "region":
        session.region(first)
        return Place(kind, number=first)
    session.place(first)
    if kind == "kernel":
        return Place(kind, number=first)
    _check_line(session, kind, first, more[0])
    return Place(kind, number=first, line=more[0])


def _node(session: Session, stage: int, number: int) -> int:
    """Returns the id of a node by its number."""
    place = session.stage(stage)
    node = session.ids[number] if number < len(session.ids) else -1
    if node not in session.trace.nodes(place):
        raise InputError("I241", f"stage {stage} has no node {number}")
    return node


def _check_line(session: Session, kind: str, kernel: int, line: int) -> None:
    used = session.kernels[kernel]
    total = len({"loop": used.loops, "llvm": used.llvm, "asm": used.asm}[kind])
    if not 0 < line <= total:
        raise InputError(
            "I072", f"kernel {used.name} has no {kind} line {line}", hint=f"it has {total}"
        )


def wire_ref(session: Session, ref: Ref | int | None) -> str:
    """Returns the ref of a thing of the trace, or of a stage by its place; empty for None."""
    match ref:
        case None:
            return ""
        case int():
            return f"stage:{ref}"
        case LayerRef():
            return f"layer:{ref.layer}" if ref.layer in session.layers else ""
        case NodeRef():
            return session.ref(ref.stage, ref.node)
        case KernelRef():
            return f"kernel:{session.kernel_of_call[ref.call]}"
    kind = {LoopRef: "loop", LlvmRef: "llvm", AsmRef: "asm"}[type(ref)]
    return f"{kind}:{session.kernel_of_call[ref.call]}:{ref.line}"
