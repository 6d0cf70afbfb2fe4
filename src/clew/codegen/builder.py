"""Writes LLVM IR as text: functions, blocks and instructions, each with its debug line.

The output is text, not objects, because a kernel has thousands of instructions and LLVM parses
text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from clew.ir.types import STORAGE
from clew.machine.instructions import instructions_of

# There is no arithmetic on bf16. Without instructions for it, LLVM converts values even to move
# them, so bf16 values are bits.
_LLVM: Final = {
    "f16": "half", "bf16": "i16", "f32": "float", "f64": "double", "bool": "i1",
    **dict.fromkeys(STORAGE, "i8"),
}  # fmt: skip


def llvm_type(dtype: str, lanes: int = 1) -> str:
    """Returns LLVM's type for a dtype in registers, as a vector for lanes > 1.

    `bool` is i1, `u8` is i8, `bf16` is i16; a storage-only dtype is a byte.
    """
    element = _LLVM.get(dtype) or "i" + dtype[1:]
    return element if lanes == 1 else f"<{lanes} x {element}>"


class Value(NamedTuple):
    """An SSA value or literal: its text, dtype and lanes (1 for a scalar)."""

    text: str
    dtype: str
    lanes: int = 1

    @property
    def type(self) -> str:
        """LLVM's type of the value."""
        return llvm_type(self.dtype, self.lanes)

    @property
    def typed(self) -> str:
        """Type and text, as an operand is written."""
        return f"{llvm_type(self.dtype, self.lanes)} {self.text}"


class Builder:
    """Writes the body of one function. `line` is the loop-nest line that instructions belong to."""

    def __init__(self, module: ModuleBuilder) -> None:
        self.module = module
        self.lines: list[str | list[str]] = []
        self.block = "entry"
        self.line = 0
        self._next = 0
        self._allocas: list[str] = []

    def name(self, hint: str = "v") -> str:
        """Returns a fresh SSA name."""
        self._next += 1
        return f"%{hint}{self._next}"

    def debug(self) -> str:
        """Returns the debug suffix for the current line."""
        return self.module.location(self.line) if self.line else ""

    def emit(self, text: str) -> None:
        """Writes an instruction without a result."""
        self.lines.append(f"  {text}{self.debug()}")

    def value(self, text: str, dtype: str, lanes: int = 1) -> Value:
        """Writes an instruction and returns its result."""
        name = self.name()
        self.lines.append(f"  {name} = {text}{self.debug()}")
        return Value(name, dtype, lanes)

    def pointer(self, text: str) -> str:
        """Writes an instruction with a pointer result; returns its name."""
        name = self.name("p")
        self.lines.append(f"  {name} = {text}{self.debug()}")
        return name

    def alloca(self, type_: str, count: int = 1, align: int = 64) -> str:
        """Reserves stack memory in the entry block."""
        name = self.name("a")
        many = f", i64 {count}" if count != 1 else ""
        self._allocas.append(f"  {name} = alloca {type_}{many}, align {align}")
        return name

    def call(self, function: str, args: list[Value], dtype: str, lanes: int = 1) -> Value:
        """Calls a function or intrinsic, declaring it in the module."""
        result = llvm_type(dtype, lanes)
        self.module.declare(function, result, [a.type for a in args])
        operands = ", ".join(a.typed for a in args)
        return self.value(f"call {result} @{function}({operands})", dtype, lanes)

    def start(self, label: str) -> None:
        """Begins a basic block."""
        self.lines.append(f"{label}:")
        self.block = label

    def label(self, hint: str) -> str:
        """Returns a fresh block label."""
        self._next += 1
        return f"{hint}{self._next}"

    def branch(self, label: str) -> None:
        """Jumps to a block."""
        self.emit(f"br label %{label}")

    def branch_if(self, cond: Value, then: str, orelse: str) -> None:
        """Jumps on a scalar condition."""
        self.emit(f"br i1 {cond.text}, label %{then}, label %{orelse}")

    def splat(self, value: Value, lanes: int) -> Value:
        """Returns a vector with the scalar in every lane."""
        if lanes == 1 or value.lanes == lanes:
            return value
        assert value.lanes == 1
        type_ = llvm_type(value.dtype, lanes)
        first = self.value(
            f"insertelement {type_} poison, {value.typed}, i64 0", value.dtype, lanes
        )
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.value(
            f"shufflevector {first.typed}, {type_} poison, {zeros}", value.dtype, lanes
        )

    def body(self) -> str:
        """Returns the function's text between the braces."""
        text = ["entry:", *self._allocas]
        for line in self.lines:
            if isinstance(line, str):
                text.append(line)
            else:
                text.extend(line)
        return "\n".join(text)

    def section(self) -> list[str]:
        """Returns the current position in the text, for writing to it later (see `writing_to`)."""
        place: list[str] = []
        self.lines.append(place)
        return place

    @contextmanager
    def writing_to(self, place: list[str]) -> Iterator[None]:
        """Redirects output inside the block to an earlier section."""
        before = self.lines
        self.lines = place  # type: ignore[assignment]
        try:
            yield
        finally:
            self.lines = before


class ModuleBuilder:
    """Collects functions, declarations and debug metadata of one LLVM module.

    `source` names the file that debug lines refer to: the kernel's printed loop nest. `features`
    are the target's features in LLVM's form, for optional instructions.
    """

    def __init__(self, source: str, triple: str, debug: bool = True, features: str = "") -> None:
        self.source = source
        self.triple = triple
        self.debug = debug
        self.instructions = instructions_of(features)
        self._constants: dict[tuple[str, str], str] = {}
        self._functions: list[str] = []
        self._declarations: dict[str, str] = {}
        self._metadata: list[str] = []
        self._locations: dict[tuple[int, int], str] = {}
        self._scope = 0
        self._once = -1
        self._root = self._add_root() if debug else ()

    def _meta(self, text: str) -> int:
        self._metadata.append(f"!{len(self._metadata)} = {text}")
        return len(self._metadata) - 1

    def _add_root(self) -> tuple[int, ...]:
        file = self._meta(f'!DIFile(filename: "{self.source}", directory: "clew")')
        unit = self._meta(
            f"distinct !DICompileUnit(language: DW_LANG_C, file: !{file}, producer: "
            '"clew", isOptimized: true, runtimeVersion: 0, emissionKind: LineTablesOnly)'
        )
        types = self._meta("!{null}")
        kind = self._meta(f"!DISubroutineType(types: !{types})")
        version = self._meta('!{i32 2, !"Debug Info Version", i32 3}')
        return file, unit, kind, version

    def begin_debug_scope(self, function: str) -> str:
        """Begins a function's debug scope; returns the suffix of its definition."""
        if not self.debug:
            return ""
        file, unit, kind, _ = self._root
        self._scope = self._meta(
            f'distinct !DISubprogram(name: "{function}", scope: !{file}, file: !{file}, line: 1, '
            f"type: !{kind}, scopeLine: 1, spFlags: DISPFlagDefinition, unit: !{unit})"
        )
        return f" !dbg !{self._scope}"

    def location(self, line: int) -> str:
        """Returns the debug suffix for a line of the loop nest."""
        if not self.debug:
            return ""
        key = (self._scope, line)
        found = self._locations.get(key)
        if found is None:
            node = self._meta(f"!DILocation(line: {line}, column: 1, scope: !{self._scope})")
            found = self._locations[key] = f", !dbg !{node}"
        return found

    def nontemporal(self) -> str:
        """Returns the suffix of a store that bypasses the caches."""
        if self._once < 0:
            self._once = self._meta("!{i32 1}")
        return f", !nontemporal !{self._once}"

    def declare(self, name: str, result: str, params: list[str]) -> None:
        """Declares an external function or intrinsic once."""
        if name not in self._declarations:
            self._declarations[name] = f"declare {result} @{name}({', '.join(params)})"

    def constant(self, hint: str, typed: str) -> str:
        """Returns the name of a constant in memory, aligned to a cache line."""
        name = self._constants.get((hint, typed))
        if name is None:
            name = self._constants[hint, typed] = f"@{hint}.{len(self._constants)}"
        return name

    def add_function(self, text: str) -> None:
        """Adds a function definition."""
        self._functions.append(text)

    def text(self) -> str:
        """Returns the module."""
        parts = [f'source_filename = "{self.source}"', f'target triple = "{self.triple}"']
        parts += [
            f"{name} = private unnamed_addr constant {typed}, align 64"
            for (_, typed), name in self._constants.items()
        ]
        parts += self._functions + list(self._declarations.values())
        if self.debug:
            _, unit, _, version = self._root
            parts.append(f"!llvm.dbg.cu = !{{!{unit}}}\n!llvm.module.flags = !{{!{version}}}")
        parts += self._metadata
        return "\n".join(parts) + "\n"
