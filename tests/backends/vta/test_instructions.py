"""VTA's own instruction tests, re-made: each runs a short program and compares it with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew.backends.vta import (
    AluOp,
    Builder,
    Config,
    Engine,
    Memory,
    MicroOp,
    Program,
    Simulator,
    time,
)

Array = np.ndarray[Any, Any]
L, C, S = Engine.LOAD, Engine.COMPUTE, Engine.STORE
DEFAULT = Config.default()


def ints(rng: np.random.Generator, *shape: int, low: int = -128, high: int = 127) -> Array:
    kind = np.int8 if low > -129 and high < 128 else np.int32
    return rng.integers(low, high, shape, kind, endpoint=True)


def stored(builder: Builder, name: str, elements: int) -> Program:
    """Returns the program that stores its first accumulators at its end."""
    output = builder.output(name, elements)
    builder.push(C, S)
    builder.pop(C, S)
    builder.store(output)
    return builder.program()


def chain(n: int) -> list[MicroOp]:
    return [MicroOp(i, i) for i in range(n)]


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_save_and_load(batch: int) -> None:
    """Loads, adds nothing, stores; a second part loads what the first stored."""
    config = DEFAULT.replace(batch=batch)
    b = Builder(config)
    x, between = b.input("x", Memory.ACC, 6), b.scratch("between", 6)
    b.load(Memory.ACC, x)
    b.alu(AluOp.ADD, chain(6), imm=0)
    b.push(C, S)
    b.pop(C, S)
    b.store(between)
    b.push(S, C)
    b.pop(S, C)
    b.load(Memory.ACC8, between)
    b.alu(AluOp.SHR, chain(6), imm=0)
    values = ints(np.random.default_rng(1), 6, batch, 16, low=-(2**31), high=2**31 - 1)
    out = Simulator(config).run(stored(b, "y", 6), {"x": values})
    np.testing.assert_array_equal(out["y"], values.astype(np.int8))


@pytest.mark.parametrize("memory", [Memory.ACC, Memory.ACC8])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 2, 0), (0, 3, 0, 1), (2, 1, 1, 15)])
def test_padded_load(memory: Memory, pads: tuple[int, int, int, int]) -> None:
    above, below, left, right = pads
    b = Builder()
    x = b.input("x", memory, 7 * 9)
    width, height = left + 4 + right, above + 3 + below
    # Three rows of four elements, from the middle of seven rows of nine.
    b.load(memory, x, at=2 * 9 + 3, y=3, x=4, stride=9, y_pad=(above, below), x_pad=(left, right))
    b.alu(AluOp.ADD, [MicroOp(0)], (height, width), dst=(width, 1), imm=0)
    low, high = (-128, 127) if memory is Memory.ACC8 else (-(2**31), 2**31 - 1)
    values = ints(np.random.default_rng(2), 63, 1, 16, low=low, high=high)
    out = Simulator().run(stored(b, "y", height * width), {"x": values})["y"]
    block = values.reshape(7, 9, 16)[2:5, 3:7]
    expected = np.pad(block, ((above, below), (left, right), (0, 0))).astype(np.int8)
    np.testing.assert_array_equal(out.reshape(height, width, 16), expected)


def test_padded_load_of_inputs() -> None:
    """A 3×3 sum over a padded image: weights are identities."""
    b = Builder()
    x, eye = b.input("x", Memory.INP, 25), np.eye(16, dtype=np.int8)[None]
    w = b.constant("w", Memory.WGT, eye)
    b.load(Memory.INP, x, y=5, x=5, y_pad=(1, 1), x_pad=(1, 1))
    b.load(Memory.WGT, w)
    b.push(L, C)
    b.pop(L, C)
    b.gemm([MicroOp(0)], (5, 5), dst=(5, 1), reset=True)
    taps = [MicroOp(0, ky * 7 + kx) for ky in range(3) for kx in range(3)]
    b.gemm(taps, (5, 5), dst=(5, 1), src=(7, 1))
    values = ints(np.random.default_rng(3), 25, 1, 16, low=-14, high=14)
    out = Simulator().run(stored(b, "y", 25), {"x": values})["y"].reshape(5, 5, 16)
    padded = np.pad(values.reshape(5, 5, 16).astype(int), ((1, 1), (1, 1), (0, 0)))
    expected = sum(padded[ky : ky + 5, kx : kx + 5] for ky in range(3) for kx in range(3))
    np.testing.assert_array_equal(out, expected)


def matmul(rows: int, inner: int, columns: int, threads: int) -> Program:
    """Returns `y[rows, columns] = x[rows, inner] · w[columns, inner]ᵀ >> 8`, in blocks of 16.

    One *thread* loads a tile, computes it and stores it. Several take turns: each has its own part
    of every memory, so one loads while another one computes.
    """
    b = Builder()
    x = b.input("x", Memory.INP, rows * inner)
    w = b.input("w", Memory.WGT, columns * inner)
    y = b.output("y", rows * columns)
    parts = {m: DEFAULT.depth(m) // 2 for m in (Memory.INP, Memory.WGT, Memory.ACC)}
    for _ in range(threads):  # all parts are free
        b.push(C, L)
        b.push(S, C)
    for column in range(columns):
        part = column % threads
        inp, wgt, acc = (part * parts[m] for m in (Memory.INP, Memory.WGT, Memory.ACC))
        b.pop(C, L)
        with b.origin("fc", label=f"load {column}"):
            b.load(Memory.INP, x, sram=inp)
            b.load(Memory.WGT, w, sram=wgt, at=column * inner, x=inner)
        b.push(L, C)
        b.pop(L, C)
        b.pop(S, C)
        with b.origin("fc", label=f"compute {column}"):
            b.gemm([MicroOp(acc)], (rows, 1), dst=(1, 0), reset=True)
            b.gemm([MicroOp(acc, inp, wgt)], (rows, inner), dst=(1, 0), src=(inner, 1), wgt=(0, 1))
            b.push(C, L)
            b.alu(AluOp.SHR, [MicroOp(acc, acc)], (rows, 1), dst=(1, 0), src=(1, 0), imm=8)
        b.push(C, S)
        b.pop(C, S)
        with b.origin("fc", label=f"store {column}"):
            b.store(y, sram=acc, at=column * rows, x=rows)
        b.push(S, C)
    return b.program()


def product(x: Array, w: Array, rows: int, inner: int, columns: int) -> Array:
    left = x.reshape(rows, inner * 16).astype(np.int64)
    right = w.reshape(columns, inner, 16, 16).transpose(0, 2, 1, 3).reshape(columns * 16, -1)
    sums = (left @ right.T.astype(np.int64) >> 8).astype(np.int8)
    return sums.reshape(rows, columns, 1, 16).transpose(1, 0, 2, 3).reshape(-1, 1, 16)


def test_gemm() -> None:
    rng = np.random.default_rng(4)
    x, w = ints(rng, 8 * 4, 1, 16), ints(rng, 3 * 4, 16, 16)
    out = Simulator().run(matmul(8, 4, 3, 1), {"x": x, "w": w})
    np.testing.assert_array_equal(out["y"], product(x, w, 8, 4, 3))


def test_gemm_with_two_schedules() -> None:
    """Virtual threads change the time and not the result."""
    rng = np.random.default_rng(5)
    rows, inner, columns = 64, 16, 6
    x, w = ints(rng, rows * inner, 1, 16), ints(rng, columns * inner, 16, 16)
    one, two = (matmul(rows, inner, columns, threads) for threads in (1, 2))
    expected = product(x, w, rows, inner, columns)
    for program in (one, two):
        np.testing.assert_array_equal(Simulator().run(program, {"x": x, "w": w})["y"], expected)
    assert time(two).macs == time(one).macs == rows * inner * columns * 256
    assert time(two).cycles < 0.75 * time(one).cycles


OPERATIONS = {
    AluOp.MIN: np.minimum,
    AluOp.MAX: np.maximum,
    AluOp.ADD: np.add,
    AluOp.MUL: np.multiply,
    AluOp.SHR: lambda a, b: np.where(b >= 0, a >> np.maximum(b, 0), a << np.maximum(-b, 0)),
}


@pytest.mark.parametrize("immediate", [True, False])
@pytest.mark.parametrize("op", AluOp)
def test_alu(op: AluOp, immediate: bool) -> None:
    rng = np.random.default_rng(6)
    small = op is AluOp.SHR
    x = ints(rng, 9, 1, 16, low=-(2**31), high=2**31 - 1)
    other = ints(rng, 9, 1, 16, low=-31 if small else -(2**31), high=31 if small else 2**31 - 1)
    other = other.astype(np.int32)
    imm = -3 if small else -1234
    b = Builder()
    b.load(Memory.ACC, b.input("x", Memory.ACC, 9))
    b.load(Memory.ACC, b.input("other", Memory.ACC, 9), sram=100)
    if immediate:
        b.alu(op, [MicroOp(0)], (3, 3), dst=(3, 1), imm=imm)
    else:
        b.alu(op, [MicroOp(0, 100)], (3, 3), dst=(3, 1), src=(3, 1))
    b.alu(AluOp.MUL, [MicroOp(0)], (1, 9), dst=(0, 1), imm=1)
    low = Simulator().run(stored(b, "low", 9), {"x": x, "other": other})["low"]
    right = np.full_like(other, imm) if immediate else other
    with np.errstate(over="ignore"):
        expected = OPERATIONS[op](x, right).astype(np.int32)
    np.testing.assert_array_equal(low, expected.astype(np.int8))


def test_relu() -> None:
    x = ints(np.random.default_rng(7), 20, 1, 16, low=-200, high=200).astype(np.int32)
    b = Builder()
    b.load(Memory.ACC, b.input("x", Memory.ACC, 20))
    b.alu(AluOp.MAX, [MicroOp(0)], (4, 5), dst=(5, 1), imm=0)
    b.alu(AluOp.MIN, [MicroOp(0)], (4, 5), dst=(5, 1), imm=127)
    out = Simulator().run(stored(b, "y", 20), {"x": x})
    np.testing.assert_array_equal(out["y"], np.clip(x, 0, 127))


def test_shift_and_scale() -> None:
    x = ints(np.random.default_rng(8), 8, 1, 16, low=-(2**20), high=2**20)
    scale = ints(np.random.default_rng(9), 1, 1, 16, low=1, high=7).astype(np.int32)
    b = Builder()
    b.load(Memory.ACC, b.input("x", Memory.ACC, 8))
    b.load(Memory.ACC, b.constant("scale", Memory.ACC, scale), sram=50)
    b.alu(AluOp.MUL, [MicroOp(0, 50)], (1, 8), dst=(0, 1), src=(0, 0))
    b.alu(AluOp.ADD, [MicroOp(0)], (1, 8), dst=(0, 1), imm=1 << 14)
    b.alu(AluOp.SHR, [MicroOp(0)], (1, 8), dst=(0, 1), imm=15)
    b.alu(AluOp.MIN, [MicroOp(0)], (1, 8), dst=(0, 1), imm=127)
    b.alu(AluOp.MAX, [MicroOp(0)], (1, 8), dst=(0, 1), imm=-128)
    out = Simulator().run(stored(b, "y", 8), {"x": x})
    np.testing.assert_array_equal(out["y"], np.clip(x * scale + (1 << 14) >> 15, -128, 127))


def test_arrays_of_the_run() -> None:
    """One program runs on the arrays of each call, and leaves them as they are."""
    b = Builder()
    b.load(Memory.ACC8, b.input("x", Memory.INP, 4))
    b.alu(AluOp.ADD, [MicroOp(0)], (1, 4), dst=(0, 1), imm=5)
    program, simulator = stored(b, "y", 4), Simulator()
    first, second = (ints(np.random.default_rng(s), 4, 1, 16) for s in (10, 11))
    kept = first.copy()
    one, two = simulator.run(program, {"x": first}), simulator.run(program, {"x": second})
    np.testing.assert_array_equal(one["y"], first + np.int8(5))
    np.testing.assert_array_equal(two["y"], second + np.int8(5))
    np.testing.assert_array_equal(first, kept)


def test_accumulators_wrap() -> None:
    b = Builder()
    x = b.input("x", Memory.INP, 1)
    b.load(Memory.INP, x)
    b.load(Memory.WGT, b.constant("w", Memory.WGT, np.full((1, 16, 16), -128, np.int8)))
    b.push(L, C)
    b.pop(L, C)
    b.gemm([MicroOp(0)], reset=True)
    # 2**18 each, 2**14 - 1 times: one short of 2**32.
    b.gemm([MicroOp(0)], (1, 2**14 - 1))
    b.alu(AluOp.SHR, [MicroOp(0)], imm=18)
    out = Simulator().run(stored(b, "y", 1), {"x": np.full((1, 1, 16), -128, np.int8)})
    assert (out["y"] == -1).all()


def test_steps_of_an_alu_instruction_see_those_before() -> None:
    """A running sum: each accumulator adds the one before it."""
    b = Builder()
    b.load(Memory.ACC8, b.input("x", Memory.INP, 10))
    b.alu(AluOp.ADD, [MicroOp(1, 0)], (1, 9), dst=(0, 1), src=(0, 1))
    b.alu(AluOp.ADD, [MicroOp(0)], imm=0)
    x = ints(np.random.default_rng(12), 10, 1, 16, low=-9, high=9)
    out = Simulator().run(stored(b, "y", 10), {"x": x})
    np.testing.assert_array_equal(out["y"], np.cumsum(x, axis=0))
