"""What the simulator finds wrong with programs, and how it names it."""

from __future__ import annotations

import numpy as np
import pytest

from clew.backends.vta import (
    AluOp,
    Buffer,
    Builder,
    Config,
    Engine,
    Memory,
    MicroOp,
    Simulator,
    assemble,
    time,
)
from clew.support.errors import ClewError, ClewWarning

DEFAULT = Config.default()
BUFFERS = """
.buffer x inp input 0x0 16
.buffer w wgt input 0x1000 4
.buffer b acc input 0x2000 16
.buffer k uop constant 0x4000 2
  0 0 0
  1 1 1
.buffer y out output 0x5000 4
.code
"""
VALUES = {
    "x": np.ones((16, 1, 16), np.int8),
    "w": np.ones((4, 16, 16), np.int8),
    "b": np.ones((16, 1, 16), np.int32),
}
# A program without faults, by instruction.
GOOD = (
    "load inp sram=0 dram=0 y=1 x=4",
    "load wgt sram=0 dram=16 y=1 x=4 push=next",
    "load uop sram=0 dram=4096 y=1 x=2",
    "load acc sram=0 dram=128 y=1 x=4",
    "gemm uop=0:2 loop=2x1 dst=2,0 src=2,0 wgt=2,0 pop=prev push=next  @ conv1, relu1: tile 0",
    "store out sram=0 dram=1280 y=1 x=4 pop=prev push=prev  @ conv1: result",
    "finish pop=next",
)


def run(*lines: str, **changes: str) -> dict[str, np.ndarray]:
    """Runs lines; or, with `changes`, the good program with other lines at `i0`, `i1` and so on."""
    code = [changes.get(f"i{at}", line) for at, line in enumerate(GOOD)] if changes else lines
    return Simulator().run(assemble(BUFFERS + "\n".join(code), DEFAULT), VALUES)


def failure(*lines: str, **changes: str) -> ClewError:
    with pytest.raises(ClewError) as caught:
        run(*lines, **changes)
    return caught.value


def test_the_program_without_faults_runs() -> None:
    assert (run(*GOOD)["y"] == 17).all()


@pytest.mark.parametrize(
    ("changes", "code", "texts"),
    [
        # Out of range: SRAM, DRAM.
        ({"i0": "load inp sram=2046 dram=0 y=1 x=4"}, "I435", ["inp[2049]", "2048 elements"]),
        ({"i4": GOOD[4].replace("dst=2,0", "dst=2047,0")}, "I435", ["acc[2048]", "conv1, relu1"]),
        ({"i4": GOOD[4].replace("wgt=2,0", "wgt=1023,0")}, "I435", ["wgt[1024]"]),
        ({"i4": GOOD[4].replace("uop=0:2", "uop=8190:8193")}, "I435", ["uop[8192]"]),
        ({"i5": GOOD[5].replace("sram=0", "sram=2045")}, "I435", ["out[2048]", "conv1"]),
        ({"i0": "load inp sram=0 dram=13 y=1 x=4"}, "I436", ["0xd0 to 0x110", "x ends at 0x100"]),
        ({"i0": "load inp sram=0 dram=0 y=2 x=4 stride=13"}, "I436", ["x ends at 0x100"]),
        ({"i0": "load inp sram=0 dram=16 y=1 x=4"}, "I436", ["0x100 to 0x140", "in no buffer"]),
        ({"i5": GOOD[5].replace("1280", "0")}, "I436", ["writes", "in the input x"]),
        ({"i3": "load acc sram=0 dram=64 y=1 x=4"}, "I436", ["moves int32", "w holds int8"]),
        # Never written.
        ({"i0": "load inp sram=0 dram=0 y=1 x=3"}, "I437", ["reads inp[3]", "nothing has written"]),
        ({"i2": "load uop sram=0 dram=4096 y=1 x=1"}, "I437", ["reads uop[1]"]),
        ({"i3": "load acc sram=0 dram=128 y=1 x=2"}, "I437", ["reads acc[2]", "conv1, relu1"]),
        ({"i4": GOOD[4].replace("gemm", "gemm reset")}, "I437", ["out[0]", "do not write out"]),
        ({"i5": GOOD[5].replace("x=4", "x=3")}, "I437", ["16 bytes of the output y"]),
        # A token that is missing: what the other engine does is named.
        (
            {"i1": GOOD[1].replace(" push=next", ""), "i4": GOOD[4].replace(" pop=prev", "")},
            "I438",
            ["instruction 4 (gemm", "reads inp[0..3]", "the write by instruction 0 (load inp"],
        ),
        (
            {"i0": GOOD[0] + " push=next", "i1": GOOD[1].replace(" push=next", "")},
            "I438",
            ["reads wgt[0..3]", "instruction 1 (load wgt", "a token from load to compute"],
        ),
        (
            {"i4": GOOD[4].replace(" push=next", ""), "i5": GOOD[5].replace(" pop=prev", "")},
            "I438",
            ["reads acc[0..3]", "the write by instruction 4", "conv1"],
        ),
        # Tokens that never come, and an end that comes too early.
        ({"i1": GOOD[1].replace(" push=next", "")}, "I439", ["instruction 4 (gemm", "from load"]),
        ({"i5": GOOD[5].replace(" push=prev", "")}, "I439", ["6 (finish", "from store"]),
        (
            {"i5": GOOD[5].replace(" push=prev", ""), "i6": "finish"},
            "I441",
            ["FINISH does not wait for instruction 5 (store out"],
        ),
        ({"i6": "load uop"}, "I441", ["no FINISH"]),
        ({"i2": "finish"}, "I441", ["instruction 2 is FINISH, and others follow"]),
        # Fields.
        ({"i0": "load inp sram=0 dram=0 y=1 x=4 x_pad=16,0"}, "I431", ["x_pad_0 is 16", "15"]),
        ({"i1": GOOD[1] + ",prev"}, "I431", ["push_prev", "no such neighbour"]),
        ({"i5": GOOD[5].replace("push=prev", "push=prev,next")}, "I431", ["push_next", "conv1"]),
        ({"i1": GOOD[1].replace("x=4", "x=4 y_pad=1,0")}, "I431", ["wgt have no padding"]),
        ({"i0": "load out sram=0 dram=0 y=1 x=4"}, "I431", ["the memory is out"]),
        ({"i2": "load uop sram=0 dram=4096 y=2 x=1"}, "I431", ["one row"]),
    ],
)  # fmt: skip
def test_faults_are_caught_and_named(changes: dict[str, str], code: str, texts: list[str]) -> None:
    error = failure(**changes)
    assert error.code == code
    for text in texts:
        assert text in str(error)


def test_a_load_must_wait_until_its_place_was_read() -> None:
    error = failure(*GOOD[:5], "load inp sram=1 dram=4 y=1 x=4 push=next", GOOD[5],
                    "finish pop=prev,next")  # fmt: skip
    assert error.code == "I438"
    assert "instruction 5 (load inp" in str(error)
    assert "writes inp[1..3]" in str(error)
    assert "the read by instruction 4 (gemm" in str(error)


def test_a_gemm_must_wait_until_its_result_was_stored() -> None:
    again = "gemm uop=0:1 dst=0,0"
    error = failure(*GOOD[:6], again, GOOD[6])
    assert error.code == "I438"
    assert "writes acc[0]" in str(error)
    assert "the read by instruction 5 (store" in str(error)


def test_a_load_must_wait_until_its_source_was_stored() -> None:
    """Through DRAM, and through the compute engine: load and store pass no tokens."""
    load = "load inp sram=0 dram=1280 y=1 x=4"
    error = failure(*GOOD[:6], load + " push=next", "load uop pop=prev", GOOD[6])
    assert error.code == "I438"
    assert "reads the bytes 0x0 to 0x40 of the buffer y" in str(error)
    waiting = "load uop pop=next push=prev"
    out = run(*GOOD[:6], waiting, load + " pop=next push=next", "finish pop=prev")
    assert (out["y"] == 17).all()


def test_the_gaps_between_rows_in_dram_are_not_written() -> None:
    error = failure(
        *GOOD[:5],
        "store out sram=0 dram=1280 y=2 x=1 stride=2 pop=prev push=prev",
        "load uop pop=next push=prev",
        "load inp sram=8 dram=1281 y=1 x=1 pop=next push=next",
        "finish pop=prev",
    )
    assert error.code == "I437"
    assert "reads the bytes 0x10 to 0x20 of the buffer y" in str(error)


def test_a_load_of_accumulators_does_not_write_out() -> None:
    error = failure(*GOOD[:4], GOOD[4].replace("push=next", ""), GOOD[3] + " push=next", *GOOD[5:])
    assert error.code == "I437"
    assert "reads out[0], and acc[0] was last written by LOAD" in str(error)


def test_without_checks_only_ranges_and_tokens_are_checked() -> None:
    lines = [GOOD[0], *(line.replace(" push=next", "") for line in GOOD[1:2]), *GOOD[2:4],
             GOOD[4].replace(" pop=prev", ""), *GOOD[5:]]  # fmt: skip
    program = assemble(BUFFERS + "\n".join(lines), DEFAULT)
    assert (Simulator(check=False).run(program, VALUES)["y"] == 17).all()
    wrong = lines[0].replace("sram=0", "sram=2047")
    program = assemble(BUFFERS + "\n".join([wrong, *lines[1:]]), DEFAULT)
    with pytest.raises(ClewError, match="I435"):
        Simulator(check=False).run(program, VALUES)


def test_tokens_that_are_left_are_a_warning() -> None:
    with pytest.warns(ClewWarning, match="I440.*1 of the tokens from load to compute"):
        run(GOOD[0], GOOD[1], "load inp push=next", *GOOD[2:])


def test_shifts_are_by_31_bits_at_most() -> None:
    for by in ("imm=32", "imm=-32"):
        shift = f"alu shr uop=0:1 {by}"
        error = failure(*GOOD[:4], shift, *GOOD[4:])
        assert error.code == "I442"
        assert f"shifts by {by[4:]} bits" in str(error)


def test_buffers_that_overlap_are_refused() -> None:
    text = BUFFERS.replace("0x0 16", "0x0 257")
    with pytest.raises(ClewError, match=r"x \(to 0x1010\) and w \(from 0x1000\) overlap") as caught:
        assemble(text, DEFAULT)
    assert caught.value.code == "I433"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("0x1000 4", "0x1010 4", "not aligned to its elements of 256 bytes"),
        ("0x5000 4", "0x3ffffff0 4", "a DRAM of 0x40000000"),
        ("buffer b acc", "buffer x acc", "two buffers x"),
        ("0x4000 2", "0x4000 3", r"the shape \(2,\), not \(3,\)"),
    ],
)
def test_buffers_must_make_sense(old: str, new: str, text: str) -> None:
    with pytest.raises(ClewError, match=text) as caught:
        assemble(BUFFERS.replace(old, new), DEFAULT)
    assert caught.value.code == "I433"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"x": VALUES["x"][:3]}, r"x is int8\[16, 1, 16\], not int8\[3, 1, 16\]"),
        ({"x": VALUES["x"].astype(np.int32)}, r"not int32\[16, 1, 16\]"),
        ({"z": VALUES["x"]}, "no input 'z'"),
        ({"x": None}, "the input x has no values"),
    ],
)
def test_inputs_must_fit(given: dict[str, np.ndarray], text: str) -> None:
    program = assemble(BUFFERS + "\n".join(GOOD), DEFAULT)
    values = {n: v for n, v in {**VALUES, **given}.items() if v is not None}
    with pytest.raises(ClewError, match=text) as caught:
        Simulator().run(program, values)
    assert caught.value.code == "I434"


def test_a_program_may_need_longer_queues() -> None:
    """With room for one load, the second is not fetched, nor what would let the first start."""
    short = DEFAULT.replace(command_queue_depth=1, token_queue_depth=1)
    late = assemble(
        BUFFERS + "load inp sram=0 dram=0 y=1 x=1 pop=next\n" * 2 + "load inp\n"
        "load uop push=prev\nload uop push=prev\nload inp push=next\nfinish pop=prev",
        DEFAULT,
    )
    assert time(late).cycles > 0
    with pytest.raises(ClewError, match=r"I439.*queues of 1 instructions and 1 tokens") as caught:
        time(late, short)
    assert "instruction 0 (load inp" in str(caught.value)


def test_an_engine_waits_for_room_for_its_tokens() -> None:
    b = Builder()
    x = b.input("x", Memory.INP, 4)
    b.gemm([MicroOp(0)], (1, 1000), reset=True)
    for _ in range(3):
        b.load(Memory.INP, x)
        b.push(Engine.LOAD, Engine.COMPUTE)
    program = b.program()

    def ends(config: Config) -> list[int]:
        found = time(program, config).slices
        return [s.end for s in sorted(found, key=lambda s: s.index) if s.engine is Engine.LOAD]

    free, full = ends(DEFAULT), ends(DEFAULT.replace(token_queue_depth=1))
    assert max(free) < 1000
    assert full[0] == free[0]
    assert full[1] > 1000  # once compute, after its GEMM, has taken the first token


def test_micro_ops_are_loaded_again_where_their_memory_was_too_small() -> None:
    config = DEFAULT.replace(uop_bytes=16 * 4)
    b = Builder(config)
    b.load(Memory.ACC, b.input("b", Memory.ACC, 40))
    kernels = [[MicroOp(10 * k + i) for i in range(10)] for k in range(4)]
    for _ in range(2):
        for kernel in kernels:
            b.alu(AluOp.ADD, kernel, imm=1)
    b.push(Engine.COMPUTE, Engine.STORE)
    b.pop(Engine.COMPUTE, Engine.STORE)
    b.store(b.output("y", 40))
    program = b.program()
    assert program.buffer("uops").elements == 40  # each once in DRAM
    out = Simulator(config).run(program, {"b": np.full((40, 1, 16), 4, np.int32)})
    assert (out["y"] == 6).all()


def test_the_builder_knows_which_engines_are_neighbours() -> None:
    b = Builder()
    for step in (b.push, b.pop):
        with pytest.raises(ClewError, match="pass no tokens"):
            step(Engine.LOAD, Engine.STORE)


def test_the_builder_takes_all_tokens_before_it_ends() -> None:
    """Unbalanced tokens, more of them than FINISH can take: no warning, no deadlock."""
    b = Builder()
    b.load(Memory.ACC, b.input("b", Memory.ACC, 2))
    b.alu(AluOp.ADD, [MicroOp(0), MicroOp(1)], imm=1)
    for _ in range(3):
        b.push(Engine.COMPUTE, Engine.STORE)
    b.pop(Engine.COMPUTE, Engine.STORE)
    b.store(b.output("y", 2))
    for _ in range(3):
        b.push(Engine.STORE, Engine.COMPUTE)
        b.push(Engine.LOAD, Engine.COMPUTE)
    program = b.program()
    out = Simulator().run(program, {"b": np.full((2, 1, 16), 4, np.int32)})
    assert (out["y"] == 5).all()


def test_a_missing_buffer_is_named() -> None:
    program = assemble(BUFFERS, DEFAULT)
    assert isinstance(program.buffer("w"), Buffer)
    with pytest.raises(ClewError, match="no buffer 'z'"):
        program.buffer("z")
