"""The timing model, its table and its timeline; the speed of the simulator."""

from __future__ import annotations

import json
from pathlib import Path
from time import process_time

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
    timeline,
)
from clew.support.errors import ClewError

CONFIG = Config.default().replace(
    dram_bytes_per_cycle=16, dram_latency_cycles=32, dispatch_cycles=1
)
L, C, S = Engine.LOAD, Engine.COMPUTE, Engine.STORE


def spans(program: Program, config: Config = CONFIG) -> list[tuple[int, int]]:
    slices = sorted(time(program, config).slices, key=lambda s: s.index)
    return [(s.begin, s.end) for s in slices]


def test_what_instructions_cost() -> None:
    b = Builder(CONFIG)
    x, w = b.input("x", Memory.INP, 100), b.input("w", Memory.WGT, 4)
    b.load(Memory.INP, x)  # 100 beats
    b.load(Memory.INP, x, y=3, x=5, stride=20, y_pad=(1, 1), x_pad=(1, 1))  # 15 beats, 20 padded
    b.load(Memory.WGT, w)  # 64 beats
    b.push(L, C)
    b.pop(L, C)
    b.gemm([MicroOp(0)], (3, 5), reset=True)
    b.alu(AluOp.ADD, [MicroOp(0)], (3, 5), imm=1)
    b.alu(AluOp.ADD, [MicroOp(0)], (3, 5))
    timing = time(b.program(), CONFIG)
    cycles = {s.index: s.cycles for s in timing.slices}
    # One micro-op of four bytes is a beat. Its load and the first one share the bandwidth.
    assert cycles[3] == 32 + 2 * 1
    assert [cycles[i] for i in range(3)] == [32 + 100 + 1, 32 + 15 + 20, 32 + 64]
    assert [cycles[i] for i in (4, 5, 6)] == [15 + 5, 15 + 5, 2 * 15 + 5]
    assert timing.macs == 0
    assert timing.bytes_moved == {Memory.INP: 115 * 16, Memory.WGT: 1024, Memory.UOP: 4}


def test_transfers_share_the_bandwidth() -> None:
    """Loads of inputs and of accumulators run at once, each at half the speed."""
    b = Builder(CONFIG)
    x, bias = b.input("x", Memory.INP, 100), b.input("bias", Memory.ACC, 100)
    b.load(Memory.INP, x)
    b.load(Memory.ACC, bias)
    first, second = spans(b.program())[:2]
    # 100 beats and 400. The first load is alone for one, then both have half of the bandwidth.
    assert first == (0, 32 + 1 + 2 * 99)
    assert second == (1, 32 + 500)  # DRAM is never idle


def test_an_engine_waits_for_tokens_and_says_so() -> None:
    b = Builder(CONFIG)
    b.load(Memory.INP, b.input("x", Memory.INP, 100))
    b.push(L, C)
    b.alu(AluOp.ADD, [MicroOp(0)], imm=0)
    b.pop(L, C)
    b.gemm([MicroOp(0)], reset=True)
    timing = time(b.program(), CONFIG)
    slices = {s.index: s for s in timing.slices}
    waiting = slices[3]
    assert waiting.begin == slices[0].end
    assert waiting.waited == slices[0].end - slices[2].end
    assert waiting.waited_for == "a token from load"
    assert waiting.tokens == (0,)
    assert timing.waits(C)["a token from load"] == waiting.waited


def test_a_short_queue_delays_what_follows() -> None:
    """With room for one load, the third is fetched when the second starts, and so is the rest."""
    b = Builder(CONFIG)
    x = b.input("x", Memory.INP, 100)
    for _ in range(3):
        b.load(Memory.INP, x)
    b.gemm([MicroOp(0)], reset=True)
    program = b.program()
    assert spans(program)[3][0] == 3
    assert spans(program, CONFIG.replace(command_queue_depth=1))[3][0] == 133


def layer(builder: Builder, name: str) -> None:
    x = builder.input(f"x of {name}", Memory.INP, 16)
    w = builder.input(f"w of {name}", Memory.WGT, 1)
    with builder.origin(name):
        builder.load(Memory.INP, x)
        builder.load(Memory.WGT, w)
        builder.push(L, C)
        builder.pop(L, C)
        builder.gemm([MicroOp(0)], (1, 16), dst=(0, 1), reset=True)
        with builder.origin(label="multiply"):
            builder.gemm([MicroOp(0)], (1, 16), dst=(0, 1), src=(0, 1))
        builder.push(C, L)
        builder.pop(C, L)


def test_layers_and_utilization() -> None:
    b = Builder(CONFIG)
    for name in ("conv1", "conv2"):
        layer(b, name)
    timing = time(b.program(), CONFIG)
    one, two, _ = timing.layers()
    assert (one.layers, two.layers) == (("conv1",), ("conv2",))
    assert one.macs == two.macs == 16 * 256
    assert timing.macs == 2 * 16 * 256
    assert timing.utilization == pytest.approx(32 / timing.cycles)
    assert one.busy[C] == two.busy[C] + 34  # the first loads the micro-op, beside the inputs
    text = str(timing)
    assert text.startswith(f"{timing.cycles:,} cycles")
    assert "conv2" in text
    assert "a token from load" in text
    assert repr(timing) == f"<Timing {timing.cycles} cycles, {timing.utilization:.0%} of peak>"


def test_a_slower_datapath_and_a_lower_clock() -> None:
    b = Builder(CONFIG)
    layer(b, "conv1")
    program = b.program()
    fast, slow = time(program, CONFIG), time(program, CONFIG.replace(gemm_cycles=4, clock_mhz=50))
    assert slow.cycles == fast.cycles + 2 * 16 * 3
    assert slow.seconds == pytest.approx(slow.cycles / 50e6)


def test_the_timeline(tmp_path: Path) -> None:
    b = Builder(CONFIG)
    layer(b, "conv1")
    timing = time(b.program(), CONFIG)
    path = tmp_path / "timeline.json"
    made = timeline(timing, path)
    assert json.loads(path.read_text()) == made
    slices = [e for e in made["traceEvents"] if e["ph"] == "X"]
    assert len(slices) == len(timing.slices)
    names = {e["tid"]: e["args"]["name"] for e in made["traceEvents"] if e["name"] == "thread_name"}
    assert names == {1: "load", 2: "compute", 3: "store"}
    multiply = next(e for e in slices if e["name"] == "multiply")
    found = next(s for s in timing.slices if s.index == multiply["args"]["instruction"])
    assert multiply["args"]["layers"] == ["conv1"]
    assert multiply["ts"] == pytest.approx(found.begin / 100)
    assert multiply["dur"] == pytest.approx(found.cycles / 100)
    arrows = [e for e in made["traceEvents"] if e["name"] == "token"]
    assert len(arrows) == 2 * sum(len(s.tokens) for s in timing.slices) > 0
    for begin, end in zip(arrows[::2], arrows[1::2], strict=True):
        assert (begin["ph"], end["ph"]) == ("s", "f")
        assert begin["id"] == end["id"]
        assert begin["ts"] < end["ts"]
    with pytest.raises(ClewError, match="I115"):
        timeline(timing, tmp_path)


def test_the_simulator_does_more_than_50_million_macs_a_second() -> None:
    """A 3×3 convolution of 64 by 64 channels; the simulator is some 40 times as fast."""
    rng, rows = np.random.default_rng(0), 14
    b = Builder()
    x = b.input("x", Memory.INP, 4 * rows**2)
    weights = rng.integers(-128, 128, (144, 16, 16)).astype(np.int8)
    w = b.constant("w", Memory.WGT, weights)
    for channel in range(4):
        b.load(Memory.INP, x, sram=channel * 256, at=channel * rows**2, y=rows, x=rows,
               y_pad=(1, 1), x_pad=(1, 1))  # fmt: skip
    b.load(Memory.WGT, w)
    b.push(L, C)
    b.pop(L, C)
    outs = [MicroOp(o * rows**2) for o in range(4)]
    b.gemm(outs, (rows, rows), dst=(rows, 1), reset=True)
    taps = [(c, ky, kx) for c in range(4) for ky in range(3) for kx in range(3)]
    uops = [
        MicroOp(o * rows**2, c * 256 + ky * 16 + kx, (o * 4 + c) * 9 + ky * 3 + kx)
        for o in range(4)
        for c, ky, kx in taps
    ]
    b.gemm(uops, (rows, rows), dst=(rows, 1), src=(16, 1))
    b.push(C, S)
    b.pop(C, S)
    b.store(b.output("y", 4 * rows**2))
    program, simulator = b.program(), Simulator()
    values = rng.integers(-128, 128, (4 * rows**2, 1, 16)).astype(np.int8)
    seconds = []
    for _ in range(3):
        begin = process_time()
        out = simulator.run(program, {"x": values})["y"]
        seconds.append(process_time() - begin)
    padded = np.pad(values.reshape(4, rows, rows, 16), ((0, 0), (1, 1), (1, 1), (0, 0)))
    expected = np.zeros((4, rows, rows, 16), np.int64)
    for at, u in enumerate(uops):
        c, ky, kx = taps[at % 36]
        image = padded[c, ky : ky + rows, kx : kx + rows].astype(np.int64)
        expected[at // 36] += image @ weights[u.wgt].T.astype(np.int64)
    np.testing.assert_array_equal(out.reshape(expected.shape), expected.astype(np.int8))
    assert time(program).macs / min(seconds) > 50e6
