"""VTA in plain loops, from the description of its instructions. It shares no code with clew.

It reads encoded instructions, and runs them one after another in the order of the stream. It also
notes what each instruction reads and writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Place = tuple[str, int]
INTS = {8: np.int8, 16: np.int16, 32: np.int32}


@dataclass(frozen=True)
class Sizes:
    batch: int
    block_in: int
    block_out: int
    inp_bits: int
    wgt_bits: int
    out_bits: int
    uop: int
    inp: int
    wgt: int
    acc: int


@dataclass
class Access:
    engine: str
    pops: list[str] = field(default_factory=list)
    pushes: list[str] = field(default_factory=list)
    reads: set[Place] = field(default_factory=set)
    writes: set[Place] = field(default_factory=set)


class Bits:
    """The fields of an instruction, taken from its lowest bits on."""

    def __init__(self, data: bytes) -> None:
        self.left = int.from_bytes(data, "little")

    def take(self, width: int) -> int:
        value = self.left % (1 << width)
        self.left //= 1 << width
        return value

    def flag(self) -> bool:
        return self.take(1) == 1


def log2(depth: int) -> int:
    return depth.bit_length() - 1


class Reference:
    def __init__(self, sizes: Sizes, dram: Array) -> None:
        s = self.s = sizes
        self.dram = dram  # uint8
        self.uop = [(0, 0, 0)] * s.uop
        self.inp = np.zeros((s.inp, s.batch, s.block_in), np.int64)
        self.wgt = np.zeros((s.wgt, s.block_out, s.block_in), np.int64)
        self.acc = np.zeros((s.acc, s.batch, s.block_out), np.int64)  # values of int32
        self.seen: list[Access] = []

    def run(self, stream: bytes) -> list[Access]:
        for at in range(0, len(stream), 16):
            if not self.step(stream[at : at + 16]):
                break
        return self.seen

    def step(self, data: bytes) -> bool:
        low, high = Bits(data[:8]), Bits(data[8:])
        opcode = low.take(3)
        pop_prev, pop_next, push_prev, push_next = (low.flag() for _ in range(4))
        memory = data[0] >> 7 | (data[1] & 3) << 1
        engine = "compute"
        if opcode == 1:
            engine = "store"
        elif opcode == 0 and memory in (1, 2):
            engine = "load"
        before = {"load": "", "compute": "load", "store": "compute"}[engine]
        after = {"load": "compute", "compute": "store", "store": ""}[engine]
        now = Access(engine)
        now.pops = [name for bit, name in ((pop_prev, before), (pop_next, after)) if bit]
        now.pushes = [name for bit, name in ((push_prev, before), (push_next, after)) if bit]
        self.seen.append(now)
        if opcode in (0, 1):
            self.transfer(opcode == 1, low, high, now)
        elif opcode in (2, 4):
            self.loop(opcode == 4, low, high, now)
        return opcode != 3

    def transfer(self, store: bool, low: Bits, high: Bits, now: Access) -> None:
        memory, sram, dram = low.take(3), low.take(16), low.take(32)
        y_size, x_size, stride = high.take(16), high.take(16), high.take(16)
        y_0, y_1, x_0, x_1 = (high.take(4) for _ in range(4))
        if y_size == 0 or x_size == 0:
            return
        if store:
            for y in range(y_size):
                for x in range(x_size):
                    values = self.acc[sram] & ((1 << self.s.out_bits) - 1)
                    now.reads.add(("acc", sram))
                    raw = values.astype(np.int64).astype(INTS[self.s.out_bits]).tobytes()
                    self.put(dram + y * stride + x, raw, now)
                    sram += 1
            return
        for y in range(-y_0, y_size + y_1):
            for x in range(-x_0, x_size + x_1):
                at = dram + y * stride + x if 0 <= y < y_size and 0 <= x < x_size else None
                self.fill(memory, sram, at, now)
                sram += 1

    def fill(self, memory: int, sram: int, at: int | None, now: Access) -> None:
        s = self.s
        if memory == 0:
            word = int(self.values(at, 32, (), now))
            dst, rest = word % s.acc, word // s.acc
            src, wgt = rest % max(s.inp, s.acc), rest // max(s.inp, s.acc)
            self.uop[sram] = (dst, src, wgt)
            now.writes.add(("uop", sram))
        elif memory == 1:
            self.wgt[sram] = self.values(at, s.wgt_bits, (s.block_out, s.block_in), now)
            now.writes.add(("wgt", sram))
        elif memory == 2:
            self.inp[sram] = self.values(at, s.inp_bits, (s.batch, s.block_in), now)
            now.writes.add(("inp", sram))
        else:
            bits = 32 if memory == 3 else 8
            self.acc[sram] = self.values(at, bits, (s.batch, s.block_out), now)
            now.writes.add(("acc", sram))

    def values(self, at: int | None, bits: int, shape: tuple[int, ...], now: Access) -> Array:
        if at is None:
            return np.zeros(shape, np.int64)
        size = int(np.prod(shape)) * bits // 8
        now.reads.update(("dram", byte) for byte in range(at * size, at * size + size))
        kind = np.uint32 if shape == () else INTS[bits]
        return self.dram[at * size : at * size + size].view(kind).reshape(shape).astype(np.int64)

    def put(self, at: int, raw: bytes, now: Access) -> None:
        begin = at * len(raw)
        self.dram[begin : begin + len(raw)] = np.frombuffer(raw, np.uint8)
        now.writes.update(("dram", byte) for byte in range(begin, begin + len(raw)))

    def loop(self, alu: bool, low: Bits, high: Bits, now: Access) -> None:
        s = self.s
        reset = low.flag()
        begin, end = low.take(log2(s.uop)), low.take(log2(s.uop) + 1)
        outer, inner = low.take(14), low.take(14)
        if alu:
            dst_o, dst_i, src_o, src_i = (high.take(log2(s.acc)) for _ in range(4))
            op, use_imm, imm = high.take(3), high.flag(), high.take(16)
            imm = imm - 65536 if imm > 32767 else imm
            wgt_o = wgt_i = 0
        else:
            dst_o, dst_i = high.take(log2(s.acc)), high.take(log2(s.acc))
            src_o, src_i = high.take(log2(s.inp)), high.take(log2(s.inp))
            wgt_o, wgt_i = high.take(log2(s.wgt)), high.take(log2(s.wgt))
        for o in range(outer):
            for i in range(inner):
                for u in range(begin, end):
                    dst, src, wgt = self.uop[u]
                    dst += o * dst_o + i * dst_i
                    src += o * src_o + i * src_i
                    wgt += o * wgt_o + i * wgt_i
                    now.reads.add(("uop", u))
                    now.writes.add(("acc", dst))
                    if alu:
                        now.reads.add(("acc", dst))
                        if not use_imm:
                            now.reads.add(("acc", src))
                        right = np.full_like(self.acc[dst], imm) if use_imm else self.acc[src]
                        self.acc[dst] = wrapped(result(op, self.acc[dst], right))
                    elif reset:
                        self.acc[dst] = 0
                    else:
                        now.reads |= {("acc", dst), ("inp", src), ("wgt", wgt)}
                        self.acc[dst] = wrapped(self.acc[dst] + self.inp[src] @ self.wgt[wgt].T)


def wrapped(values: Array) -> Array:
    return (values + 2**31) % 2**32 - 2**31


def result(op: int, left: Array, right: Array) -> Array:
    if op == 0:
        return np.minimum(left, right)
    if op == 1:
        return np.maximum(left, right)
    if op == 2:
        return left + right
    if op == 4:
        # The product of two int32 may exceed int64 by its sign only: Python's integers are exact.
        products = [int(a) * int(b) for a, b in zip(left.flat, right.flat, strict=True)]
        return np.array([(p + 2**31) % 2**32 - 2**31 for p in products]).reshape(left.shape)
    return np.array(
        [
            int(a) >> int(b) if b >= 0 else ((int(a) << -int(b)) + 2**31) % 2**32 - 2**31
            for a, b in zip(left.flat, right.flat, strict=True)
        ]
    ).reshape(left.shape)


def unordered(seen: list[Access]) -> list[tuple[int, int]]:
    """Returns the pairs of instructions that conflict and that nothing orders."""
    count = len(seen)
    edges: list[list[int]] = [[] for _ in range(count)]
    pushed: dict[tuple[str, str], list[int]] = {}
    popped: dict[tuple[str, str], list[int]] = {}
    last: dict[str, int] = {}
    for at, each in enumerate(seen):
        if each.engine in last:
            edges[last[each.engine]].append(at)
        last[each.engine] = at
        for name in each.pops:
            popped.setdefault((name, each.engine), []).append(at)
        for name in each.pushes:
            pushed.setdefault((each.engine, name), []).append(at)
    for pair, takers in popped.items():
        for giver, taker in zip(pushed.get(pair, []), takers, strict=False):
            edges[giver].append(taker)
    reached: list[set[int]] = [set() for _ in range(count)]
    for at in reversed(range(count)):  # pushes come first in these streams
        for following in edges[at]:
            reached[at] |= {following} | reached[following]
    found = []
    for second in range(count):
        for first in range(second):
            a, b = seen[first], seen[second]
            conflict = a.writes & (b.reads | b.writes) or a.reads & b.writes
            if conflict and a.engine != b.engine and second not in reached[first]:
                found.append((first, second))
    return found
