"""The page's way through the wire format (see `clew.explorer.views.links`), in Python: what a ref
leads to, from the payloads of `overview`, `links` and `code` alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from clew.explorer.routes import answer
from clew.explorer.session import Session
from clew.explorer.wire import to_json


def get(session: Session, path: str) -> Any:
    """Returns what the page gets for a route."""
    return json.loads(to_json(answer(session, path)))


@dataclass
class Reached:
    """What a ref leads to: layers' places, nodes' numbers by stage, `(kernel, line)` of code."""

    layers: set[int] = field(default_factory=set)
    nodes: list[set[int]] = field(default_factory=list)
    kernels: dict[int, set[int] | None] = field(default_factory=dict)
    loops: set[tuple[int, int]] = field(default_factory=set)
    llvm: set[tuple[int, int]] = field(default_factory=set)
    asm: set[tuple[int, int]] = field(default_factory=set)


class Walk:
    """Walks through one build."""

    def __init__(self, session: Session) -> None:
        self.overview = get(session, "overview")
        self.links = get(session, "links")
        self.codes = [get(session, f"code/{n}") for n in range(len(self.overview["kernels"]))]
        self.stages = [get(session, f"stage/{n}") for n in range(len(self.overview["stages"]))]
        self.last = len(self.overview["stages"]) - 1
        self._steps: dict[int, tuple[dict[int, list[int]], dict[int, list[int]]]] = {}

    def of_layer(self, place: int) -> Reached:
        """Returns all that a layer became."""
        start = [n for n, born in enumerate(self.links["born"])
                 if born == 0 and place in self.links["layers"][n]]  # fmt: skip
        nodes = self._walk(0, start, 1)
        return self._with_code(Reached({place}, nodes, self._below(nodes[self.last])))

    def of_line(self, kernel: int, loop: int) -> Reached:
        """Returns all that a line of a loop nest came from; nothing for line 0."""
        if not loop:
            return Reached(kernels={kernel: None})
        op = self.codes[kernel]["loop_op"][loop - 1]
        numbers = self.overview["kernels"][kernel]["numbers"]
        start = numbers if op < 0 else [numbers[op]]
        nodes = self._walk(self.last, start, -1)
        return Reached(self._layers(nodes), nodes, {kernel: None if op < 0 else {op}})

    def of_node(self, stage: int, number: int) -> Reached:
        """Returns all that a node came from and became."""
        up, down = self._walk(stage, [number], -1), self._walk(stage, [number], 1)
        nodes = [*up[:stage], *down[stage:]]
        return self._with_code(Reached(self._layers(up), nodes, self._below(down[self.last])))

    def alive(self, number: int, stage: int) -> bool:
        """Whether a stage has a node."""
        within = self.links["born"][number] <= stage <= self.links["last"][number]
        away = self.links["away"]
        return within and not any(n == number and a <= stage < b for n, a, b in away)

    def _walk(self, stage: int, start: list[int], by: int) -> list[set[int]]:
        reached: list[set[int]] = [set() for _ in self.overview["stages"]]
        reached[stage] = current = set(start)
        at = stage + by
        while 0 <= at <= self.last:
            link = at if by > 0 else at + 1
            if self.overview["stages"][link]["changed"]:
                table = self._step(link)[0 if by > 0 else 1]
                kept = {n for n in current if self.alive(n, link - 1) and self.alive(n, link)}
                current = kept.union(*(table.get(n, ()) for n in current))
            reached[at] = current
            at += by
        return reached

    def _step(self, stage: int) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        if stage not in self._steps:
            forward: dict[int, list[int]] = {}
            backward: dict[int, list[int]] = {}
            links = self.links["stages"][stage]
            for old, new in zip(links["old"], links["new"], strict=True):
                forward.setdefault(old, []).append(new)
                backward.setdefault(new, []).append(old)
            self._steps[stage] = forward, backward
        return self._steps[stage]

    def _layers(self, nodes: list[set[int]]) -> set[int]:
        return {la for found in nodes for n in found for la in self.links["layers"][n]}

    def _below(self, nodes: set[int]) -> dict[int, set[int] | None]:
        found: dict[int, set[int] | None] = {}
        for kernel in self.overview["kernels"]:
            positions = {p for p, n in enumerate(kernel["numbers"]) if n in nodes}
            if positions:
                found[kernel["index"]] = positions
            elif kernel["call"] in nodes:
                found[kernel["index"]] = None
        return found

    def _with_code(self, reached: Reached) -> Reached:
        for kernel, positions in reached.kernels.items():
            code = self.codes[kernel]
            lines = {
                n
                for n, op in enumerate(code["loop_op"], 1)
                if positions is None or op < 0 or op in positions
            }
            reached.loops |= {(kernel, n) for n in lines}
            for level, table in ((reached.llvm, "llvm_loop"), (reached.asm, "asm_loop")):
                level |= {(kernel, n) for n, to in enumerate(code[table], 1) if to in lines}
        return reached
