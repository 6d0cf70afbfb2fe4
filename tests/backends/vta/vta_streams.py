"""Random programs for VTA that are valid: all indices are in range, everything read was written,
and tokens order every pair of accesses that conflict.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from vta_reference import Access, Array, Reference, Sizes

from clew.backends.vta import (
    Alu,
    AluOp,
    Buffer,
    Config,
    Finish,
    Gemm,
    Instruction,
    Load,
    Memory,
    MicroOp,
    Program,
    Store,
    encode,
)
from clew.backends.vta.isa import encode_uops
from clew.backends.vta.program import alignment_bytes

ENGINES = ("load", "compute", "store")
UOPS = 64


def small(**changes: int) -> Config:
    """Returns a small machine: 16 micro-ops, 32 inputs, 8 weights, 16 accumulators."""
    config = Config.default().replace(
        batch=1, block_in=2, block_out=2, uop_bytes=16 * 4, inp_bytes=32 * 2, wgt_bytes=8 * 4,
        acc_bytes=16 * 8,
    )  # fmt: skip
    return config.replace(**changes) if changes else config


CONFIGS = (
    small(),
    small(batch=2, inp_bytes=16 * 4, acc_bytes=32 * 16),
    small(block_in=3, block_out=1, inp_bytes=16 * 3, wgt_bytes=16 * 3, acc_bytes=16 * 4),
    small(inp_bits=16, wgt_bits=16, inp_bytes=16 * 4, wgt_bytes=8 * 8, out_bits=16),
    small(block_in=4, block_out=4, inp_bytes=16 * 4, wgt_bytes=8 * 16, acc_bytes=16 * 16),
)


def sizes_of(config: Config) -> Sizes:
    depths = {
        m.name.lower(): config.depth(m) for m in (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC)
    }
    names = ("batch", "block_in", "block_out", "inp_bits", "wgt_bits", "out_bits")
    return Sizes(**{n: getattr(config, n) for n in names}, **depths)


def random_values(rng: np.random.Generator, buffer: Buffer, config: Config) -> Array:
    dtype = config.element_dtype(buffer.memory)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return rng.integers(low, high, buffer.shape(config), dtype, endpoint=True)


class Stream:
    """A random program, its inputs, and what the reference makes of it."""

    def __init__(self, seed: int, config: Config) -> None:
        self.rng, self.config = np.random.default_rng(seed), config
        self.uops: list[MicroOp] = []
        self.instructions: list[Instruction] = []
        self.in_out = np.zeros(config.depth(Memory.ACC), bool)
        self.buffers: dict[str, Buffer] = {}
        self.end = 0
        acc = config.depth(Memory.ACC)
        for name, memory, elements, role in (
            ("x", Memory.INP, config.depth(Memory.INP) + 8, "input"),
            ("w", Memory.WGT, config.depth(Memory.WGT) + 4, "constant"),
            ("bias", Memory.ACC, acc + 8, "constant"),
            ("k", Memory.UOP, UOPS, "constant"),
            ("y", Memory.OUT, acc + 8, "output"),
            ("all", Memory.OUT, acc, "output"),
        ):
            self.buffers[name] = Buffer(name, memory, self.end, elements, role)  # type: ignore[arg-type]
            step = alignment_bytes(config)
            self.end += -(-self.buffers[name].size_bytes(config) // step) * step
        self.inputs = {
            n: random_values(self.rng, self.buffers[n], config) for n in ("x", "w", "bias")
        }
        self._make()
        self.uops += [MicroOp(0)] * (UOPS - len(self.uops))
        self.inputs["k"] = encode_uops(self.uops, config)

    def below(self, most: int) -> int:
        return int(self.rng.integers(most + 1))

    # -------------------------------------------------------------------------- the instructions

    def _make(self) -> None:
        depth = self.config.depth
        self.load_all()
        self.uops.append(MicroOp(0))
        self.add(
            Load(memory=Memory.UOP, sram=0, dram=self.base("k"), y_size=1, x_size=1, x_stride=1)
        )
        self.touch_all()
        self.store("y", 0, 0, 1, depth(Memory.ACC))
        rest = self.buffers["y"].elements - depth(Memory.ACC)
        self.store("y", 0, depth(Memory.ACC), 1, rest)
        for _ in range(4 + self.below(8)):
            kinds = (
                self.random_load,
                self.random_gemm,
                self.random_gemm,
                self.random_alu,
                self.random_store,
            )
            kinds[self.below(len(kinds) - 1)]()
        self.add(
            Load(memory=Memory.UOP, sram=0, dram=self.base("k"), y_size=1, x_size=1, x_stride=1)
        )
        self.touch_all()
        self.store("all", 0, 0, 1, depth(Memory.ACC))
        self.add(Finish())

    def add(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)

    def base(self, name: str, memory: Memory | None = None) -> int:
        return self.buffers[name].base(self.config, memory)

    def load_all(self) -> None:
        """Fills all memories."""
        for name, memory in (("x", Memory.INP), ("w", Memory.WGT), ("bias", Memory.ACC)):
            n = self.config.depth(memory)
            y = [1, 2, 4][self.below(2)]
            self.add(
                Load(memory=memory, sram=0, dram=self.base(name) + self.below(3), y_size=y,
                     x_size=n // y, x_stride=n // y)
            )  # fmt: skip

    def touch_all(self) -> None:
        """Writes `out` for all accumulators."""
        n = self.config.depth(Memory.ACC)
        self.add(
            Alu(op=AluOp.ADD, uop_begin=0, uop_end=1, iter_out=2, iter_in=n // 2, dst_out=n // 2,
                dst_in=1, use_imm=True)
        )  # fmt: skip
        self.in_out[:] = True

    def shape(self, elements: int) -> tuple[int, int, int, int]:
        """Returns sizes and strides of a random block of up to so many elements: y, x, stride, all
        that it spans.
        """
        y = 1 + self.below(3)
        x = 1 + self.below(max(0, min(5, elements // y - 1)))
        stride = max(0, x - 1 + self.below(3))  # rows may overlap
        while (y - 1) * stride + x > elements:
            y -= 1
        return y, x, stride, (y - 1) * stride + x

    def random_load(self) -> None:
        sources = (("x", Memory.INP), ("w", Memory.WGT), ("bias", Memory.ACC), ("x", Memory.ACC8),
                   ("y", Memory.INP), ("y", Memory.ACC8), ("k", Memory.UOP))  # fmt: skip
        name, memory = sources[self.below(len(sources) - 1)]
        if memory is Memory.UOP:
            self.new_uops([MicroOp(self.below(3), self.below(3), self.below(3))])
            return
        buffer, size = self.buffers[name], self.config.element_bytes(memory)
        if self.config.element_dtype(buffer.memory) != self.config.element_dtype(memory):
            return
        if buffer.address % size:
            return
        elements = buffer.size_bytes(self.config) // size
        y, x, stride, span = self.shape(elements)
        pads = [0] * 4
        if memory is not Memory.WGT and self.below(1):
            pads = [self.below(2) for _ in range(4)]
        held = Memory.ACC if memory is Memory.ACC8 else memory
        count = (y + pads[0] + pads[1]) * (x + pads[2] + pads[3])
        room = self.config.depth(held) - count
        if room < 0:
            return
        sram = self.below(room)
        self.add(
            Load(memory=memory, sram=sram, y_size=y, x_size=x, x_stride=stride,
                 dram=self.base(name, memory) + self.below(elements - span),
                 y_pad_0=pads[0], y_pad_1=pads[1],
                 x_pad_0=pads[2], x_pad_1=pads[3])
        )  # fmt: skip
        if held is Memory.ACC:
            self.in_out[sram : sram + count] = False

    def new_uops(self, uops: list[MicroOp]) -> int:
        """Loads micro-ops, and returns where they begin. Place 0 is kept for `touch_all`."""
        if len(self.uops) + len(uops) > UOPS:
            self.uops = self.uops[: UOPS - len(uops)]  # never: streams are short
        at = len(self.uops)
        self.uops += uops
        sram = self.below(self.config.depth(Memory.UOP) - len(uops))
        self.add(
            Load(memory=Memory.UOP, sram=sram, dram=self.base("k") + at, y_size=1, x_size=len(uops),
                 x_stride=len(uops))
        )  # fmt: skip
        return sram

    def loops(self, memories: tuple[Memory, ...]) -> tuple[dict[str, int], list[int]]:
        """Returns random loops, and for each index the largest value that a micro-op may have."""
        outer, inner = 1 + self.below(2), 1 + self.below(3)
        made = {"iter_out": outer, "iter_in": inner}
        rooms = []
        for name, memory in zip(("dst", "src", "wgt"), memories, strict=False):
            most = self.config.depth(memory) - 1
            if name == "src" and memory is Memory.ACC:
                most = min(most, self.config.depth(Memory.ACC) - 1)
            factors = [self.below(3), self.below(2)]
            while (outer - 1) * factors[0] + (inner - 1) * factors[1] > most:
                factors = [f // 2 for f in factors]
            made[f"{name}_out"], made[f"{name}_in"] = factors
            rooms.append(most - (outer - 1) * factors[0] - (inner - 1) * factors[1])
        return made, rooms

    def random_gemm(self) -> None:
        loops, rooms = self.loops((Memory.ACC, Memory.INP, Memory.WGT))
        uops = [MicroOp(*(self.below(r) for r in rooms)) for _ in range(1 + self.below(3))]
        begin = self.new_uops(uops)
        reset = self.below(5) == 0
        self.add(Gemm(uop_begin=begin, uop_end=begin + len(uops), reset=reset, **loops))  # type: ignore[arg-type]
        self.note(loops, uops, not reset)

    def note(self, loops: dict[str, int], uops: list[MicroOp], in_out: bool) -> None:
        self.in_out[list(touched(loops, "dst", uops))] = in_out

    def random_alu(self) -> None:
        loops, rooms = self.loops((Memory.ACC, Memory.ACC))
        uops = [MicroOp(*(self.below(r) for r in rooms)) for _ in range(1 + self.below(3))]
        begin = self.new_uops(uops)
        op = AluOp(self.below(4))
        use_imm = op is AluOp.SHR or self.below(1) == 1
        imm = (
            (self.below(62) - 31 if op is AluOp.SHR else self.below(65535) - 32768)
            if use_imm
            else 0
        )
        values: dict[str, Any] = {"uop_begin": begin, "uop_end": begin + len(uops), **loops}
        if op is AluOp.SHR and self.below(1):
            # By accumulators, which are first brought to amounts of shifts.
            for limit, by in ((AluOp.MIN, 31), (AluOp.MAX, -31)):
                sources = {**values, "dst_out": loops["src_out"], "dst_in": loops["src_in"]}
                swapped = [MicroOp(u.src) for u in uops]
                first = self.new_uops(swapped)
                sources |= {
                    "uop_begin": first,
                    "uop_end": first + len(uops),
                    "src_out": 0,
                    "src_in": 0,
                }
                self.add(Alu(op=limit, use_imm=True, imm=by, **sources))
                self.note(
                    {**loops, "dst_out": loops["src_out"], "dst_in": loops["src_in"]}, swapped, True
                )
            if touched(loops, "dst", uops) & touched(loops, "src", uops):
                return
            begin = self.new_uops(uops)
            values |= {"uop_begin": begin, "uop_end": begin + len(uops)}
            use_imm, imm = False, 0
        self.add(Alu(op=op, use_imm=use_imm, imm=imm, **values))
        self.note(loops, uops, True)

    def random_store(self) -> None:
        y, x, stride, span = self.shape(8)
        starts = [
            s for s in range(len(self.in_out) - y * x + 1) if self.in_out[s : s + y * x].all()
        ]
        if starts:
            at = self.below(self.buffers["y"].elements - span)
            self.store("y", starts[self.below(len(starts) - 1)], at, y, x, stride)

    def store(
        self, name: str, sram: int, at: int, y: int, x: int, stride: int | None = None
    ) -> None:
        self.add(
            Store(sram=sram, dram=self.base(name, Memory.OUT) + at, y_size=y, x_size=x,
                  x_stride=x if stride is None else stride)
        )  # fmt: skip

    # ------------------------------------------------------------------------------ the reference

    def dram(self) -> Array:
        made = np.zeros(self.end, np.uint8)
        for name, data in self.inputs.items():
            raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            begin = self.buffers[name].address
            made[begin : begin + len(raw)] = raw
        return made

    def outputs(self) -> tuple[dict[str, Array], list[Access]]:
        """Returns what the reference stores, and its accesses."""
        dram = self.dram()
        seen = Reference(sizes_of(self.config), dram).run(self.encoded())
        found = {}
        for name in ("y", "all"):
            buffer = self.buffers[name]
            raw = dram[buffer.address : buffer.address + buffer.size_bytes(self.config)]
            values = raw.view(self.config.element_dtype(Memory.OUT))
            found[name] = values.reshape(buffer.shape(self.config))
        return found, seen

    def encoded(self) -> bytes:
        return b"".join(encode(i, self.config) for i in self.instructions)

    def program(self) -> Program:
        return Program(tuple(self.instructions), tuple(self.buffers.values()))

    def with_tokens(self, seen: list[Access]) -> None:
        """Gives instructions the tokens that order conflicting ones, and now and then others."""
        self.instructions = Tokens(self.rng, self.instructions, seen).made


def touched(loops: dict[str, int], index: str, uops: list[MicroOp]) -> set[int]:
    """Returns the values of an index in all steps of an instruction."""
    return {
        getattr(u, index) + o * loops[f"{index}_out"] + i * loops[f"{index}_in"]
        for u in uops
        for o in range(loops["iter_out"])
        for i in range(loops["iter_in"])
    }


class Tokens:
    """Puts tokens between the instructions of a program, and empty transfers where bits are taken.

    `clocks` has, for each engine, how many instructions of the others its next one certainly
    follows, and `ended` the same of its last one.
    """

    def __init__(
        self, rng: np.random.Generator, instructions: list[Instruction], seen: list[Access]
    ) -> None:
        self.made: list[Instruction] = []
        self.done: list[tuple[Access, int]] = []
        self.counts = dict.fromkeys(ENGINES, 0)
        self.last: dict[str, int] = {}
        self.clocks = {e: dict.fromkeys(ENGINES, 0) for e in ENGINES}
        self.ended = {e: dict.fromkeys(ENGINES, 0) for e in ENGINES}
        self.waiting: dict[str, list[str]] = {e: [] for e in ENGINES}
        for instruction, access in zip(instructions, seen, strict=True):
            for engine in ENGINES:
                if engine != access.engine:
                    late = self.is_late(engine, access, isinstance(instruction, Finish))
                    if late or rng.integers(10) == 0:
                        self.order(engine, access.engine, late)
            self.put(instruction, access)

    def is_late(self, engine: str, access: Access, everything: bool) -> bool:
        """Returns whether an access conflicts with one of an engine that may not have ended."""
        return any(
            each.engine == engine
            and place >= self.clocks[access.engine][engine]
            and (
                everything
                or each.writes & (access.reads | access.writes)
                or each.reads & access.writes
            )
            for each, place in self.done
        )

    def order(self, engine: str, here: str, late: bool) -> None:
        if {engine, here} != {"load", "store"}:
            self.sync(engine, here)
        elif late:
            self.sync(engine, "compute")
            self.put(Load(memory=Memory.UOP), Access("compute"))
            self.sync("compute", here)

    def sync(self, source: str, target: str) -> None:
        """Lets the next instruction of `target` follow all of `source` so far."""
        if source not in self.last:
            return
        if source in self.waiting[target]:
            self.put_empty(target)
        bit = "push_prev" if ENGINES.index(target) < ENGINES.index(source) else "push_next"
        if getattr(self.made[self.last[source]], bit):
            self.put_empty(source)
        last = self.last[source]
        self.made[last] = replace(self.made[last], **{bit: True})  # type: ignore[arg-type]
        self.waiting[target].append(source)
        for engine in ENGINES:
            found = max(self.clocks[target][engine], self.ended[source][engine])
            self.clocks[target][engine] = found
        self.clocks[target][source] = self.counts[source]

    def put_empty(self, engine: str) -> None:
        memory = Memory.INP if engine == "load" else Memory.UOP
        self.put(Store() if engine == "store" else Load(memory=memory), Access(engine))

    def put(self, instruction: Instruction, access: Access) -> None:
        here = access.engine
        for source in self.waiting[here]:
            bit = "pop_prev" if ENGINES.index(source) < ENGINES.index(here) else "pop_next"
            instruction = replace(instruction, **{bit: True})  # type: ignore[arg-type]
        self.waiting[here] = []
        self.done.append((access, self.counts[here]))
        self.counts[here] += 1
        self.ended[here] = dict(self.clocks[here])
        self.last[here] = len(self.made)
        self.made.append(instruction)
