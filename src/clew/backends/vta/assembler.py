"""The text form of programs.

```
.buffer x inp input 0x0 196
.buffer kernel uop constant 0x1000 1
  0 0 0
.code
  0: load inp sram=0 dram=0 y=14 x=14 push=next  @ conv1: input tile
  1: gemm uop=0:1 loop=14x14 dst=14,1 src=14,1 pop=prev  @ conv1
```

A buffer has a name, a memory, a role, an address in bytes and a number of elements; micro-ops
follow theirs. `;` begins a comment. The text after `@` is the origin: layers, separated by commas,
and a label. Numbers of instructions may be left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn, get_args

from clew.backends.vta.config import Config
from clew.backends.vta.isa import (
    Alu,
    Finish,
    Gemm,
    Instruction,
    Load,
    MicroOp,
    Store,
    decode_uops,
    encode_uops,
)
from clew.backends.vta.names import AluOp, Memory
from clew.backends.vta.program import Array, Buffer, Origin, Program, Role
from clew.support.errors import TextError

_MNEMONICS: Final[Mapping[str, type[Instruction]]] = {
    "load": Load,
    "store": Store,
    "gemm": Gemm,
    "alu": Alu,
    "finish": Finish,
}
_TRANSFER: Final = (
    ("sram", ("sram",), ""),
    ("dram", ("dram",), ""),
    ("y", ("y_size",), ""),
    ("x", ("x_size",), ""),
    ("stride", ("x_stride",), ""),
    ("y_pad", ("y_pad_0", "y_pad_1"), ","),
    ("x_pad", ("x_pad_0", "x_pad_1"), ","),
)
_LOOP: Final = (
    ("uop", ("uop_begin", "uop_end"), ":"),
    ("loop", ("iter_out", "iter_in"), "x"),
    ("dst", ("dst_out", "dst_in"), ","),
    ("src", ("src_out", "src_in"), ","),
)
# The operands of each instruction: its key, the fields it sets, and what separates their values.
_OPERANDS: Final[Mapping[str, tuple[tuple[str, tuple[str, ...], str], ...]]] = {
    "load": _TRANSFER,
    "store": _TRANSFER[:5],
    "gemm": (*_LOOP, ("wgt", ("wgt_out", "wgt_in"), ",")),
    "alu": (*_LOOP, ("imm", ("imm",), "")),
    "finish": (),
}
_ALWAYS: Final = ("sram", "dram", "y", "x", "uop")
_TOKENS: Final = ("pop", "push")
_PLAIN: Final = re.compile(r"[^\s,:;@\"]+")
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUMBER: Final = re.compile(r"^\s*\d+:\s")


def instruction_text(instruction: Instruction) -> str:
    """Returns an instruction as text, without the operands that have their defaults."""
    mnemonic = next(n for n, made in _MNEMONICS.items() if isinstance(instruction, made))
    words = [mnemonic]
    empty = False
    if isinstance(instruction, Load | Store):
        words.append(instruction.memory.name.lower())
        empty = not any(getattr(instruction, f) for _, names, _ in _TRANSFER for f in names)
    if isinstance(instruction, Alu):
        words.append(instruction.op.name.lower())
    for key, names, separator in _OPERANDS[mnemonic]:
        values = [getattr(instruction, name) for name in names]
        default = [_default(instruction, name) for name in names]
        shown = instruction.use_imm if key == "imm" and isinstance(instruction, Alu) else None
        if shown is None:
            shown = (key in _ALWAYS and not empty) or values != default
        if shown:
            words.append(f"{key}={separator.join(map(str, values))}")
    if isinstance(instruction, Gemm) and instruction.reset:
        words.append("reset")
    for kind in _TOKENS:
        ends = [end for end in ("prev", "next") if getattr(instruction, f"{kind}_{end}")]
        if ends:
            words.append(f"{kind}={','.join(ends)}")
    return " ".join(words)


def _default(instruction: Instruction, name: str) -> int:
    if name == "x_stride":
        return int(getattr(instruction, "x_size", 0))
    return 1 if name in ("iter_out", "iter_in") else 0


def disassemble(program: Program, config: Config) -> str:
    """Returns a program as text. The text has micro-ops, but no other data of constants."""
    lines = []
    for buffer in program.buffers:
        lines.append(
            f".buffer {_quoted(buffer.name)} {buffer.memory.name.lower()} {buffer.role} "
            f"{buffer.address:#x} {buffer.elements}"
        )
        if buffer.memory is Memory.UOP and buffer.data is not None:
            lines += [f"  {u.dst} {u.src} {u.wgt}" for u in decode_uops(buffer.data, config)]
    lines.append(".code")
    for index, instruction in enumerate(program.instructions):
        line = f"  {index}: {instruction_text(instruction)}"
        origin = program.origins.get(index)
        lines.append(f"{line}  {_origin_text(origin)}" if origin else line)
    return "\n".join(lines) + "\n"


def _origin_text(origin: Origin) -> str:
    text = f"@ {', '.join(map(_quoted, origin.layers))}".rstrip()
    return f"{text}: {_quoted(origin.label, label=True)}" if origin.label else text


def _quoted(name: str, *, label: bool = False) -> str:
    plain = (
        re.fullmatch(r"[^;\"]+", name) and name == name.strip() if label else _PLAIN.fullmatch(name)
    )
    return name if plain and name.isprintable() else json.dumps(name)


def assemble(text: str, config: Config, data: Mapping[str, Array] | None = None) -> Program:
    """Returns the program of a text. `data` has the values of constants other than micro-ops.

    Errors: P030; those of `Program.check`.
    """
    return _Reader(text, config, data or {}).program()


class _Reader:
    """Reads the text of a program, line by line."""

    def __init__(self, text: str, config: Config, data: Mapping[str, Array]) -> None:
        self._config, self._data = config, data
        self._lines = list(_lines_of(text))
        self._line = 0

    def program(self) -> Program:
        """Returns the program."""
        buffers: list[Buffer] = []
        uops: dict[str, list[MicroOp]] = {}
        instructions: list[Instruction] = []
        origins: dict[int, Origin] = {}
        in_code = False
        for number, line in self._lines:
            self._line = number
            if line == ".code":
                in_code = True
            elif in_code:
                code, _, origin = _NUMBER.sub("", line, count=1).partition("@")
                if "@" in line:
                    origins[len(instructions)] = self._origin(origin)
                instructions.append(self._instruction(code.split()))
            elif line.startswith(".buffer"):
                buffers.append(self._buffer(line.removeprefix(".buffer")))
            elif buffers and buffers[-1].memory is Memory.UOP:
                indices = [self._int(word) for word in line.split()]
                if len(indices) != 3:
                    self._fail("a micro-op has three indices: acc, source and wgt")
                uops.setdefault(buffers[-1].name, []).append(MicroOp(*indices))
            else:
                self._fail(f"{line!r} is neither .buffer nor .code")
        made = tuple(self._with_data(b, uops.get(b.name, [])) for b in buffers)
        program = Program(tuple(instructions), made, origins)
        program.check(self._config)
        return program

    def _with_data(self, buffer: Buffer, uops: list[MicroOp]) -> Buffer:
        data = encode_uops(uops, self._config) if uops else self._data.get(buffer.name)
        if data is None:
            return buffer
        return Buffer(
            buffer.name, buffer.memory, buffer.address, buffer.elements, buffer.role, data
        )

    def _buffer(self, text: str) -> Buffer:
        name, rest = self._name(text)
        words = rest.split()
        if len(words) != 4:
            self._fail("a buffer has a name, a memory, a role, an address and elements")
        memory, role, address, elements = words
        if role not in get_args(Role):
            self._fail(f"{role!r} is not a role: {', '.join(get_args(Role))}")
        chosen: Any = role
        return Buffer(
            name, self._member(Memory, memory), self._int(address), self._int(elements), chosen
        )

    def _instruction(self, words: list[str]) -> Instruction:
        mnemonic, *operands = words or [""]
        made = _MNEMONICS.get(mnemonic)
        if made is None:
            self._fail(f"{mnemonic!r} is not an instruction: {', '.join(_MNEMONICS)}")
        values: dict[str, Any] = {}
        if mnemonic in ("load", "store", "alu"):
            if not operands:
                self._fail(
                    f"{mnemonic} needs {'an operation' if mnemonic == 'alu' else 'a memory'}"
                )
            kind, *operands = operands
            values["op" if mnemonic == "alu" else "memory"] = (
                self._member(AluOp, kind) if mnemonic == "alu" else self._member(Memory, kind)
            )
        keys = {key: (names, separator) for key, names, separator in _OPERANDS[mnemonic]}
        seen: set[str] = set()
        for operand in operands:
            key, _, value = operand.partition("=")
            if key in seen:
                self._fail(f"{key} is given twice")
            seen.add(key)
            if key in _TOKENS:
                for end in value.split(","):
                    if end not in ("prev", "next"):
                        self._fail(f"{end!r} is neither prev nor next")
                    values[f"{key}_{end}"] = True
            elif operand == "reset" and mnemonic == "gemm":
                values["reset"] = True
            elif key in keys:
                names, separator = keys[key]
                parts = value.split(separator) if separator else [value]
                if len(parts) != len(names):
                    self._fail(f"{key} has {len(parts)} values, not {len(names)}")
                values.update(zip(names, map(self._int, parts), strict=True))
            else:
                self._fail(f"{mnemonic} has no operand {operand!r}")
        if "imm" in values:
            values["use_imm"] = True
        if mnemonic in ("load", "store"):
            values.setdefault("x_stride", values.get("x_size", 0))
        if mnemonic in ("gemm", "alu") and "uop_begin" not in values:
            self._fail(f"{mnemonic} needs uop=BEGIN:END")
        return made(**values)

    def _origin(self, text: str) -> Origin:
        layers = []
        rest = text.strip()
        while rest and not rest.startswith(":"):
            name, rest = self._name(rest)
            layers.append(name)
            rest = rest.strip()
            if rest.startswith(","):
                rest = rest[1:].strip()
            elif rest and not rest.startswith(":"):
                self._fail(f"{rest!r} follows a layer")
        label = rest.removeprefix(":").strip()
        if label.startswith('"'):
            label, rest = self._name(label)
            if rest:
                self._fail(f"{rest!r} follows a label")
        return Origin(tuple(layers), label)

    def _name(self, text: str) -> tuple[str, str]:
        """Returns the name that a text begins with, and the rest of the text."""
        text = text.strip()
        match = _QUOTED.match(text) or _PLAIN.match(text)
        if match is None:
            self._fail(f"{text!r} is not a name")
        word = match[0]
        try:
            name = json.loads(word) if word.startswith('"') else word
        except ValueError:
            self._fail(f"{word} is no JSON string")
        return str(name), text[match.end() :]

    def _member(self, kind: Any, word: str) -> Any:
        try:
            return kind[word.upper()]
        except KeyError:
            named = ", ".join(m.name.lower() for m in kind)
            self._fail(f"{word!r} is none of {named}")

    def _int(self, word: str) -> int:
        try:
            return int(word, 0)
        except ValueError:
            self._fail(f"{word!r} is not a number")

    def _fail(self, why: str) -> NoReturn:
        raise TextError("P030", f"VTA assembly, line {self._line}: {why}")


def _lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Yields the lines of a text that say something, with their numbers and without comments."""
    for number, line in enumerate(text.splitlines(), 1):
        kept = re.match(r'(?:[^;"]|"(?:[^"\\]|\\.)*")*', line)
        said = (kept[0] if kept else "").strip()
        if said:
            yield number, said
