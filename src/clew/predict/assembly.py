"""The loops of a kernel's assembly: the instructions of each loop, with its trip count.

In comments, LLVM prints the loop that each block belongs to, and the name of the block in clew's
text. So the trip counts of the text apply to the exact instructions, without matching addresses or
lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from clew.machine.mnemonics import Instruction, x86

_LABEL: Final = re.compile(r"^(?:(\.L\w+):|# %bb\.\d+:)\s*(?:# %(?:(\w+?)(\d*)))?(?:[.\s]|$)")
_FUNCTION: Final = re.compile(r"^\"?([\w.$]+)\"?:\s+# @")
_HEADER: Final = re.compile(r"#\s+=>.*Loop Header: Depth=(\d+)")
_INSIDE: Final = re.compile(r"#\s+in Loop: Header=(\w+) Depth=\d+")
_PARENT: Final = re.compile(r"#\s+Parent Loop (\w+) Depth=\d+")


@dataclass
class Block:
    """Straight code: its instructions, and the share of the loop's iterations that enter it."""

    share: float
    code: list[Instruction] = field(default_factory=list)


@dataclass
class Loop:
    """A loop, or a function's body: its trip count, the share of iterations of the loop around it
    that enter it, and its blocks and inner loops in order. `number` is that of the loop's label in
    the LLVM text, 0 for a function.
    """

    number: int
    trips: float
    share: float = 1.0
    parts: list[Block | Loop] = field(default_factory=list)

    @property
    def inner(self) -> Iterator[Loop]:
        """The loops directly inside."""
        return (part for part in self.parts if isinstance(part, Loop))


def loops_of(
    assembly: str,
    trips: Mapping[str, Mapping[int, float]],
    shares: Mapping[str, Mapping[str, float]],
) -> dict[str, Loop]:
    """Returns the body of each function in x86-64 assembly with LLVM's comments.

    By function, `trips` has the trip count of each loop by the number of its label, and `shares`
    has the share of iterations that enter each block, by its name; the default is 1.
    """
    found: dict[str, Loop] = {}
    root: Loop | None = None
    headers: dict[str, Loop] = {}
    block: Block | None = None
    label, name, number = "", "", 0
    counts: Mapping[int, float] = {}
    entered: Mapping[str, float] = {}
    pending: tuple[str, str, int] | None = None
    parents: list[str] = []

    def place(inside: str, share: float | None = None) -> Block:
        owner = headers.get(inside, root)
        assert owner is not None
        made = Block(entered.get(f"{name}{number or ''}", 1.0) if share is None else share)
        owner.parts.append(made)
        return made

    for line in assembly.splitlines():
        if begun := _FUNCTION.match(line):
            root = found[begun[1]] = Loop(0, 1.0)
            headers, block, pending, parents = {}, None, None, []
            counts, entered = trips.get(begun[1], {}), shares.get(begun[1], {})
            continue
        if root is None:
            continue
        if at := _LABEL.match(line):
            if at[1] and not at[1].startswith((".LBB", ".Ltmp")):
                if at[1].startswith(".Lfunc_end"):
                    root = None
                continue
            if at[1] and at[1].startswith(".Ltmp"):
                continue
            label, name, number = (at[1] or "")[2:], at[2] or "", int(at[3] or 0)
            pending, block, parents = (label, name, number), None, []
            # The comment on the loop may be on the line of the label.
        if pending is not None:
            if outer := _PARENT.search(line):
                parents.append(outer[1])
            elif _HEADER.search(line):
                loop = Loop(number, counts.get(number, 1.0) if name == "loop" else 1.0)
                loop.share = entered.get(f"{name}{number}", 1.0)
                owner = headers.get(parents[-1], root) if parents else root
                owner.parts.append(loop)
                headers[label] = loop
                block, pending = place(label, 1.0), None
            elif inside := _INSIDE.search(line):
                block, pending = place(inside[1]), None
        if line.startswith("\t") and line[1:2] not in ".#":
            if block is None:
                block, pending = place(""), None
            code = line.partition("#")[0].strip()
            if code:
                block.code.append(x86(code))
    return found
