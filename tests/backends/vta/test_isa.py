"""Encoding, decoding, text and configurations."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    Origin,
    Program,
    Store,
    assemble,
    decode,
    disassemble,
    encode,
    instruction_text,
)
from clew.backends.vta.isa import decode_uops, encode_uops, layout
from clew.support.errors import ClewError

DEFAULT = Config.default()
SMALL = DEFAULT.replace(inp_bytes=4096, wgt_bytes=8192, acc_bytes=8192, uop_bytes=1024)


@st.composite
def instructions(draw: st.DrawFn, config: Config = DEFAULT) -> Instruction:
    """Any instruction that can be encoded."""
    made = draw(st.sampled_from([Load, Store, Gemm, Alu, Finish]))
    widths = {name: width for word in layout(made.opcode, config) for name, width in word}
    values: dict[str, Any] = {}
    for field in fields(made):
        if field.name in widths:
            values[field.name] = draw(st.integers(0, 2 ** widths[field.name] - 1))
    for name in ("pop_prev", "pop_next", "push_prev", "push_next", "reset", "use_imm"):
        if name in values:
            values[name] = bool(values[name])
    if made is Alu:
        values["op"] = draw(st.sampled_from(AluOp))
        values["imm"] = draw(st.integers(-(2**15), 2**15 - 1)) if values["use_imm"] else 0
    if made in (Load, Store):
        kinds = [m for m in Memory if m is not Memory.OUT]
        memory = draw(st.sampled_from(kinds)) if made is Load else Memory.OUT
        values["memory"] = memory
        if memory in (Memory.WGT, Memory.UOP, Memory.OUT):
            values.update({f"{a}_pad_{e}": 0 for a in "yx" for e in (0, 1)})
        if memory is Memory.UOP:
            values["y_size"] = values["y_size"] % 2
    engine = made(**values).engine.name
    for end in {"LOAD": ("pop_prev", "push_prev"), "STORE": ("pop_next", "push_next")}.get(
        engine, ()
    ):
        values[end] = False
    return made(**values)


@settings(max_examples=300, deadline=None)
@given(instructions())
def test_encoding_round_trip(instruction: Instruction) -> None:
    data = encode(instruction, DEFAULT)
    assert len(data) == 16
    assert decode(data, DEFAULT) == instruction


@settings(max_examples=100, deadline=None)
@given(instructions(SMALL))
def test_encoding_with_other_widths(instruction: Instruction) -> None:
    assert decode(encode(instruction, SMALL), SMALL) == instruction


NAMES = st.text(min_size=1, max_size=12).filter(lambda n: n == n.strip())
# Characters that split lines are escaped inside of quotes.


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(instructions(), st.none() | st.tuples(st.lists(NAMES, max_size=3), st.text())),
        max_size=6,
    )
)
def test_text_round_trip(code: list[Any]) -> None:
    origins = {
        at: Origin(tuple(origin[0]), origin[1]) for at, (_, origin) in enumerate(code) if origin
    }
    program = Program(tuple(i for i, _ in code), (), origins)
    assert assemble(disassemble(program, DEFAULT), DEFAULT) == program


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.builds(MicroOp, st.integers(0, 2047), st.integers(0, 2047), st.integers(0, 1023)))
)
def test_micro_ops_round_trip(uops: list[MicroOp]) -> None:
    assert decode_uops(encode_uops(uops, DEFAULT), DEFAULT) == tuple(uops)


def bits(instruction: Instruction) -> dict[int, int]:
    """Returns the bits that are set, and are not the opcode's."""
    number = int.from_bytes(encode(instruction, DEFAULT), "little") >> 3
    return {at + 3: 1 for at in range(125) if number >> at & 1}


@pytest.mark.parametrize(
    ("instruction", "begin"),
    [
        (Load(memory=Memory.INP, pop_next=True), {4, 8}),
        (Load(memory=Memory.ACC8, pop_prev=True), {3, 7, 9}),
        (Load(memory=Memory.UOP, push_prev=True), {5}),
        (Load(memory=Memory.UOP, push_next=True), {6}),
        (Load(memory=Memory.UOP, sram=1), {10}),
        (Load(memory=Memory.UOP, dram=1), {26}),
        (Load(memory=Memory.UOP, y_size=1), {64}),
        (Load(memory=Memory.UOP, x_size=1), {80}),
        (Load(memory=Memory.UOP, x_stride=1), {96}),
        (Load(memory=Memory.INP, y_pad_0=1), {8, 112}),
        (Load(memory=Memory.INP, y_pad_1=1), {8, 116}),
        (Load(memory=Memory.INP, x_pad_0=1), {8, 120}),
        (Load(memory=Memory.INP, x_pad_1=1), {8, 124}),
        (Gemm(uop_begin=1, uop_end=0, iter_out=0, iter_in=0, reset=True), {7, 8}),
        (Gemm(uop_begin=0, uop_end=1, iter_out=0, iter_in=0), {21}),
        (Gemm(uop_begin=0, uop_end=0, iter_out=1, iter_in=0), {35}),
        (Gemm(uop_begin=0, uop_end=0, iter_out=0, iter_in=1), {49}),
        (Gemm(uop_begin=0, uop_end=0, iter_out=0, iter_in=0, dst_out=1, dst_in=1), {64, 75}),
        (Gemm(uop_begin=0, uop_end=0, iter_out=0, iter_in=0, src_out=1, src_in=1), {86, 97}),
        (Gemm(uop_begin=0, uop_end=0, iter_out=0, iter_in=0, wgt_out=1, wgt_in=1), {108, 118}),
        (Alu(op=AluOp.MAX, uop_begin=0, uop_end=0, iter_out=0, iter_in=0, src_in=1), {97, 108}),
        (
            Alu(op=AluOp.MUL, uop_begin=0, uop_end=0, iter_out=0, iter_in=0, use_imm=True),
            {110, 111},
        ),
        (Alu(op=AluOp.MIN, uop_begin=0, uop_end=0, iter_out=0, iter_in=0, imm=-(2**15)), {127}),
    ],
)  # fmt: skip
def test_fields_are_where_the_published_layout_has_them(
    instruction: Instruction, begin: set[int]
) -> None:
    assert set(bits(instruction)) == begin


def test_the_opcodes_are_the_published_ones() -> None:
    made = (Load(memory=Memory.UOP), Store(), Gemm(uop_begin=0, uop_end=0), Finish(),
            Alu(op=AluOp.MIN, uop_begin=0, uop_end=0))  # fmt: skip
    assert [encode(i, DEFAULT)[0] & 7 for i in made] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\5" + bytes(15), "5 is not an opcode"),
        (bytes(15), "16 bytes, not 15"),
        (b"\0\3" + bytes(14), "6 is no memory"),
        (b"\4" + bytes(12) + b"\x60\0\0", "6 is no op"),
        (b"\3\1" + bytes(14), "bits are set that FINISH lacks"),
        (b"\x84" + bytes(15), "ALU has the bit reset"),
    ],
)
def test_bytes_that_are_no_instruction_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(ClewError, match=text) as caught:
        decode(data, DEFAULT)
    assert caught.value.code == "I432"


@pytest.mark.parametrize(
    ("instruction", "text"),
    [
        (
            Gemm(uop_begin=0, uop_end=1, iter_out=2**14),
            "GEMM: iter_out is 16384, not from 0 to 16383",
        ),
        (Gemm(uop_begin=-1, uop_end=1), "uop_begin is -1"),
        (Alu(op=AluOp.ADD, uop_begin=0, uop_end=1, use_imm=True, imm=2**15), "imm is 32768"),
        (Store(memory=Memory.ACC), "STORE: the memory is acc"),
        (Store(x_pad_0=1), "transfers of out have no padding"),
    ],
)
def test_values_that_do_not_fit_are_refused(instruction: Instruction, text: str) -> None:
    with pytest.raises(ClewError, match=text) as caught:
        encode(instruction, DEFAULT)
    assert caught.value.code == "I431"


def test_micro_ops_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ClewError, match="micro-op: wgt is 1024, not from 0 to 1023"):
        encode_uops([MicroOp(0, 0, 1024)], DEFAULT)


# ---------------------------------------------------------------------------------------- the text


def test_a_program_as_text() -> None:
    uops = np.array(encode_uops([MicroOp(0, 0, 0), MicroOp(1, 16, 2)], DEFAULT))
    program = Program(
        (
            Load(memory=Memory.INP, sram=4, dram=256, y_size=14, x_size=16, x_stride=56,
                 y_pad_0=1, x_pad_1=2, push_next=True),
            Gemm(uop_begin=0, uop_end=2, iter_out=14, iter_in=16, dst_out=16, dst_in=1,
                 src_out=18, src_in=1, pop_prev=True),
            Alu(op=AluOp.SHR, uop_begin=0, uop_end=1, use_imm=True, imm=-3, push_next=True),
            Load(memory=Memory.UOP, pop_next=True, push_prev=True),
            Finish(),
        ),
        (Buffer("x", Memory.INP, 0, 4096, "input"),
         Buffer("micro ops", Memory.UOP, 0x10000, 2, "constant", uops)),
        {0: Origin(("conv1",), "tile 0"), 1: Origin(("conv1", "relu; 1"))},
    )  # fmt: skip
    text = disassemble(program, DEFAULT)
    assert (
        text
        == """\
.buffer x inp input 0x0 4096
.buffer "micro ops" uop constant 0x10000 2
  0 0 0
  1 16 2
.code
  0: load inp sram=4 dram=256 y=14 x=16 stride=56 y_pad=1,0 x_pad=0,2 push=next  @ conv1: tile 0
  1: gemm uop=0:2 loop=14x16 dst=16,1 src=18,1 pop=prev  @ conv1, "relu; 1"
  2: alu shr uop=0:1 imm=-3 push=next
  3: load uop push=prev pop=next
  4: finish
""".replace("push=prev pop=next", "pop=next push=prev")
    )
    back = assemble("; a comment\n" + text.replace("tile 0", "tile 0  ; more"), DEFAULT)
    assert back == program
    assert back.buffers[1].data is not None
    assert decode_uops(back.buffers[1].data, DEFAULT) == (MicroOp(0, 0, 0), MicroOp(1, 16, 2))
    assert back.instructions_of("conv1") == (0, 1)
    assert instruction_text(back.instructions[4]) == "finish"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("jump 3", "'jump' is not an instruction"),
        ("load", "load needs a memory"),
        ("load ram sram=0", "'ram' is none of uop, wgt, inp"),
        ("alu xor uop=0:1", "'xor' is none of min, max"),
        ("gemm loop=1x1", "gemm needs uop="),
        ("gemm uop=0", "uop has 1 values, not 2"),
        ("gemm uop=0:x", "'x' is not a number"),
        ("gemm uop=0:1 uop=0:1", "uop is given twice"),
        ("gemm uop=0:1 imm=4", "gemm has no operand 'imm=4'"),
        ("store out y_pad=1,1", "store has no operand"),
        ("finish pop=up", "'up' is neither prev nor next"),
        ("finish @ a b", "'b' follows a layer"),
        ('finish @ a: "b" c', "' c' follows a label"),
        ("finish @ ,", "',' is not a name"),
    ],
)
def test_text_that_does_not_parse_names_its_line(line: str, text: str) -> None:
    with pytest.raises(ClewError, match=text) as caught:
        assemble(f"\n.code\nfinish\n0: {line}\n", DEFAULT)
    assert caught.value.code == "P030"
    assert "line 4:" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (".buffer x inp input 0", "a buffer has a name"),
        (".buffer x inp in 0 1", "'in' is not a role"),
        ("0 0 0", "neither .buffer nor .code"),
        (".buffer k uop constant 0 1\n1 2", "three indices"),
        ('.buffer "\\x" inp input 0 1', "no JSON string"),
    ],
)
def test_buffers_that_do_not_parse_are_refused(line: str, text: str) -> None:
    with pytest.raises(ClewError, match=text) as caught:
        assemble(line, DEFAULT)
    assert caught.value.code == "P030"


# ------------------------------------------------------------------------------ the configuration


def test_the_default_has_the_published_sizes() -> None:
    depths = {m.name: DEFAULT.depth(m) for m in Memory}
    assert depths == {"UOP": 8192, "WGT": 1024, "INP": 2048, "ACC": 2048, "OUT": 2048, "ACC8": 2048}
    sizes = {m.name: DEFAULT.element_bytes(m) for m in Memory}
    assert sizes == {"UOP": 4, "WGT": 256, "INP": 16, "ACC": 64, "OUT": 16, "ACC8": 16}
    assert DEFAULT.macs_per_uop == 256


def test_a_configuration_in_json(tmp_path: Path) -> None:
    other = DEFAULT.replace(batch=2, dram_bytes_per_cycle=4)
    path = tmp_path / "vta.json"
    path.write_text(other.to_json())
    assert Config.from_json(path) == other
    path.write_text('{"clock_mhz": 333}')
    assert Config.from_json(path) == DEFAULT.replace(clock_mhz=333)


def test_the_published_keys_are_read(tmp_path: Path) -> None:
    published: dict[str, object] = {"TARGET": "sim", "HW_VER": "0.0.2"}
    published |= {"LOG_INP_WIDTH": 3, "LOG_WGT_WIDTH": 3, "LOG_ACC_WIDTH": 5, "LOG_BATCH": 0}
    published |= {"LOG_BLOCK": 5, "LOG_UOP_BUFF_SIZE": 15, "LOG_INP_BUFF_SIZE": 15}
    published |= {"LOG_WGT_BUFF_SIZE": 18, "LOG_ACC_BUFF_SIZE": 17}
    path = tmp_path / "vta_config.json"
    path.write_text(json.dumps(published))
    found = Config.from_json(path)
    assert (found.block_in, found.block_out, found.depth(Memory.INP)) == (32, 32, 1024)
    assert found.depth(Memory.WGT) == 256


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be read"),
        ("[]", "no JSON object"),
        ('{"blocks": 1}', "unknown field 'blocks'"),
        ('{"batch": 0}', "batch is 0, not an integer ≥ 1"),
        ('{"batch": 1.5}', "batch is 1.5"),
        ('{"batch": true}', "batch is True"),
        ('{"inp_bits": 4}', "inp_bits is 4, not 8 or 16"),
        ('{"inp_bytes": 48}', "inp_bytes is 48, not a power of two"),
        ('{"LOG_BATCH": -1}', "LOG_BATCH is -1, not a logarithm"),
        ('{"inp_bytes": 65536}', "a micro-op needs 33 bits of 32"),
        ('{"acc_bytes": 262144, "wgt_bytes": 65536}', "second word of ALU needs 68 bits of 64"),
        ('{"uop_bytes": 131072, "acc_bytes": 32768}', "first word of GEMM and ALU needs 67 bits"),
    ],
)
def test_configurations_that_make_no_sense_are_refused(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "vta.json"
    path.write_text(text)
    with pytest.raises(ClewError, match=why) as caught:
        Config.from_json(path)
    assert caught.value.code == "I430"
