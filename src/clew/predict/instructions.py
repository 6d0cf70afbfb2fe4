"""Counts the instructions that a kernel will execute, from its LLVM text, without object code.

The LLVM text that clew writes is close to the executed code. Its loops are nested, and
`frequencies.py` finds their trip counts and the share of iterations that pass each guard. The
frequency of an instruction is the product of the trip counts and shares around it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from clew.codegen.artifact import EntryPoint
from clew.machine.costs import Costs
from clew.machine.target import Target
from clew.predict.addresses import ELEMENT_BITS, Addresses
from clew.predict.footprints import Footprint, Nest, footprint
from clew.predict.frequencies import Frequencies, frequencies

CLASSES: Final = (
    "fma", "alu", "shuffle", "divide", "load", "broadcast", "store", "gather", "integer",
    "branch", "prefetch", "tile", "tile_load", "tile_store",
)  # fmt: skip
"""Classes of instructions. Vector instructions count in whole registers."""
PARTS: Final = (
    "all", "product", "vector", "shuffle", "load", "store", "divide", "tile", "latency", "issue",
)  # fmt: skip
"""The categories of cycles of a loop: parts of the core, and the longest of them."""

_LEAST_SHARE: Final = 1e-3

_LABEL: Final = re.compile(r"^([a-z]+)(\d+):$")
_INSTRUCTION: Final = re.compile(
    r"^  (?:(?P<name>%[a-z]\d+) = )?(?:call [^@]*@(?P<callee>[\w.]+)\(|(?P<op>[a-z]+) ?)"
)
_PHI: Final = re.compile(r"phi i64 \[ (\S+), %\w+ \], \[ (%\w+),")
_ADD: Final = re.compile(r"(%\w+) = add i64 (%\w+), (-?\d+)")
_VECTOR: Final = re.compile(r"<(\d+) x (i1|i8|i16|i32|i64|half|bfloat|float|double|ptr)>")
_ALU: Final = {"fadd", "fsub", "fmul", "fneg", "fcmp", "select", "and", "or", "xor", "shl", "lshr",
               "ashr", "fptrunc", "fpext", "zext", "sext", "sitofp", "uitofp", "fptosi", "fptoui",
               "add", "sub", "mul", "icmp", "trunc"}  # fmt: skip
_FREE: Final = {"bitcast", "phi", "ret", "getelementptr"}


@dataclass
class Region:
    """The body of a loop (or a whole phase): the instructions of one iteration, and inner loops.
    `nest` has the addresses of its memory accesses.
    """

    trips: float = 1.0
    nest: Nest = field(default_factory=lambda: Nest(0))
    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    accumulators: int = 0
    inner: list[tuple[float, Region]] = field(default_factory=list)

    def walk(self, times: float = 1.0) -> Iterator[tuple[float, Region]]:
        """Yields each region with its total trip count."""
        own = times * self.trips
        yield own, self
        for share, region in self.inner:
            yield from region.walk(own * share)

    def latency(self, costs: Costs) -> float:
        """Returns the cycles of the dependent sums in one iteration."""
        if not self.accumulators:
            return 0.0
        return costs.multiply_add_latency * self.counts["fma"] / self.accumulators

    def cycles(self, costs: Costs) -> dict[str, float]:
        """Returns the cycles that one iteration's instructions take in each part of a core, without
        those of inner loops, and as `all` the longest of them.
        """
        c = self.counts
        loads = c["load"] + c["broadcast"]
        loads += costs.tile_load * c["tile_load"] + costs.gather * c["gather"]
        vectors = c["fma"] + c["alu"] + c["shuffle"] + c["gather"]
        # An instruction may load one of its operands itself.
        every = max(vectors, c["load"] + c["broadcast"]) + sum(
            c[name] for name in ("store", "integer", "branch", "prefetch", "divide")
        )
        found = {
            "product": c["fma"] / costs.multiply_adds,
            "vector": vectors / costs.multiply_adds,
            "shuffle": c["shuffle"] + c["gather"],
            "load": loads / costs.loads,
            "store": c["store"] + costs.tile_store * c["tile_store"],
            "divide": costs.division * c["divide"],
            "tile": costs.tile_step * c["tile"],
            "latency": self.latency(costs),
            "issue": every / costs.issue,
        }
        return {**found, "all": max(found.values())}


@dataclass(frozen=True)
class Work:
    """The total work of a kernel: registers and instructions by class; cycles of one core with all
    operands in its first-level cache, by the part of the core and, as `all`, in sum over loops of
    the part that takes longest there; the cache lines it touches.
    """

    counts: dict[str, float]
    cycles: dict[str, float]
    iterations: float
    inner_iterations: float
    footprint: Footprint
    deepest: int


def work_of_text(
    text: str,
    entries: Sequence[EntryPoint],
    argument_bytes: Sequence[int],
    caches: Sequence[int],
    target: Target,
    found: Mapping[str, Frequencies] | None = None,
) -> Work:
    """Returns the work of a kernel's LLVM text. `found` has its `frequencies`, if they are known.

    `argument_bytes` are the sizes of the arguments' buffers; `caches` are the sizes of the caches
    to find lines from beyond of. Vector instructions count in registers of the target.
    """
    known = frequencies(text, entries) if found is None else found
    roots, costs = list(_regions(text, known, target.vector_bits)), target.costs
    counts: dict[str, float] = dict.fromkeys(CLASSES, 0.0)
    cycles: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    iterations = innermost = 0.0
    for root in roots:
        for times, region in root.walk():
            iterations += times
            innermost += 0.0 if region.inner else times
            for name, taken in region.cycles(costs).items():
                cycles[name] += times * taken
            for name, count in region.counts.items():
                counts[name] += times * count
    lines = footprint([r.nest for r in roots], argument_bytes, caches)
    deepest = max((_depth(r) for r in roots), default=0)
    return Work(counts, cycles, iterations, innermost, lines, deepest)


def _depth(region: Region) -> int:
    return 1 + max((_depth(inner) for _, inner in region.inner), default=0)


# ------------------------------------------------------------------------------------------ reading


def _regions(text: str, known: Mapping[str, Frequencies], vector_bits: int) -> Iterator[Region]:
    lines: list[str] = []
    own: Frequencies | None = None
    for line in text.splitlines():
        if line.startswith("define "):
            symbol = line.split("@", 1)[1].split("(", 1)[0].strip('"')
            own, lines = known.get(symbol), []
        elif line == "}" and lines:
            if own is not None:
                yield _Reader(lines, own, vector_bits).read()
            lines = []
        else:
            lines.append(line.split(", !dbg", 1)[0])


class _Reader:
    """Reads one function."""

    def __init__(self, lines: list[str], own: Frequencies, vector_bits: int) -> None:
        self.vector_bits = vector_bits
        self.lines = lines
        self.own = own
        self.adds = {found[1]: int(found[3]) for line in lines if (found := _ADD.search(line))}
        self.addresses = Addresses()

    def read(self) -> Region:
        root = Region()
        stack: list[Region] = [root]
        closing: list[str] = []
        entered: list[float] = [1.0]  # share of iterations of the innermost loop, by open label
        fresh = ""
        for line in self.lines:
            if label := _LABEL.match(line):
                kind, number = label[1], label[2]
                if kind == "loop":
                    share = self.own.shares.get(f"loop{number}", 1.0) / entered[-1]
                    region = Region(nest=Nest(int(number), share=share))
                    stack[-1].inner.append((share, region))
                    entered.append(1.0)
                    stack[-1].nest.inner.append(region.nest)
                    stack.append(region)
                    fresh = f"loop{number}"
                    closing.append(f"%{fresh},")
                elif kind == "if":
                    inside = self.own.shares.get(f"if{number}", 1.0)
                    share = inside / entered[-1]
                    region = Region(nest=Nest(0, share=share))
                    stack[-1].inner.append((share, region))
                    entered.append(max(inside, _LEAST_SHARE))
                    stack[-1].nest.inner.append(region.nest)
                    stack.append(region)
                    closing.append("")
                elif kind == "join" and closing and not closing[-1]:
                    stack.pop()
                    closing.pop()
                    entered.pop()
                continue
            if fresh and (phi := _PHI.search(line)):
                trips = self.own.trips.get(int(fresh[4:]), 1.0)
                step = self.adds.get(phi[2], 1)
                stack[-1].trips = stack[-1].nest.trips = trips
                name = line.split(" = ", 1)[0].strip()
                self.addresses.counts(name, phi[1], stack[-1].nest.loop, step)
                fresh = ""
            elif " = phi <" in line:
                stack[-1].accumulators += 1
            self._count(line, stack[-1])
            if closing and closing[-1] and line.startswith("  br i1") and closing[-1] in line:
                stack.pop()
                closing.pop()
                entered.pop()
        return root

    def _count(self, line: str, region: Region) -> None:
        found = _INSTRUCTION.match(line)
        if found is None:
            return
        callee, op = found["callee"] or "", found["op"] or ""
        self.addresses.read(line)
        if op == "getelementptr":
            return
        kind, amount, size = _classified(op, callee, line, self.vector_bits)
        if kind:
            region.counts[kind] += amount
        if size and " load ptr, " not in line:
            pointers = re.findall(r"ptr (?:align \d+ )?(%\w+)", line)
            address = self.addresses.of(pointers[-1] if pointers else "")
            region.nest.accesses.append((address, int(size)))


def _classified(op: str, callee: str, line: str, vector_bits: int) -> tuple[str, float, float]:
    """Returns an instruction's class, the number of registers it stands for, and the bytes it
    touches.
    """
    vector = _VECTOR.search(line)
    size = int(vector[1]) * ELEMENT_BITS[vector[2]] / 8 if vector else 0.0
    registers = max(1.0, 8 * size / vector_bits)
    if callee:
        return _called(callee, registers, size, line)
    if op == "load":
        return ("load", registers, size) if vector else ("broadcast", 1.0, _scalar_bytes(line))
    if op == "store":
        return "store", registers, size or _scalar_bytes(line)
    if op in _FREE:
        return "", 0.0, 0.0
    if op == "br":
        return "branch", 1.0, 0.0
    if not vector:
        return ("divide", 0.3, 0.0) if op == "fdiv" else ("integer", 1.0, 0.0)
    if op == "fdiv":
        return "divide", registers, 0.0
    if op == "shufflevector":
        splat = "zeroinitializer" in line.rsplit(",", 1)[-1] or "zeroinitializer" in line
        return ("", 0.0, 0.0) if splat else ("shuffle", registers, 0.0)
    if op == "insertelement":
        return ("", 0.0, 0.0) if line.rstrip().endswith("i64 0") else ("shuffle", 1.0, 0.0)
    if op == "extractelement":
        return "shuffle", 1.0, 0.0
    return ("alu", registers, 0.0) if op in _ALU else ("integer", 1.0, 0.0)


def _called(callee: str, registers: float, size: float, line: str) -> tuple[str, float, float]:
    if "prefetch" in callee:
        return "prefetch", 1.0, 0.0
    if ".td" in callee:
        return "tile", 1.0, 0.0
    if "tileload" in callee:
        return "tile_load", 1.0, 1024.0
    if "tilestore" in callee:
        return "tile_store", 1.0, 1024.0
    if "tile" in callee:
        return "integer", 4.0, 0.0
    if "masked.gather" in callee:
        return "gather", registers, size
    if "masked.load" in callee:
        return "load", registers, size
    if "masked.store" in callee or "compressstore" in callee:
        return "store", registers, size
    if ".fma." in callee or "dpb" in callee or "dpw" in callee:
        return "fma", registers, 0.0
    if ".sqrt" in callee:
        return "divide", registers, 0.0
    if "reduce" in callee:
        return "shuffle", 8.0, 0.0
    return "alu", registers, 0.0


def _scalar_bytes(line: str) -> float:
    for name, bits in ELEMENT_BITS.items():
        if f" {name}," in line or f" {name} " in line:
            return bits / 8
    return 4.0
