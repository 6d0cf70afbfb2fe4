"""Maps addresses in a library to the layers that the code there computes.

For each function of a library, the file `NAME.trace.json` next to it lists the kernels that the
function is part of, and the layers of each line of their loop nest. The debug information of the
library, or of a program that it was linked into, maps addresses to functions and lines.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from clew.backends.cpu.kernel_stages import operator_calls
from clew.build.result import BuildTemplate, KernelUse
from clew.codegen.disassemble import CodeLines, code_lines
from clew.ir.expr import Function
from clew.libraries.kernels import Kernels
from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.files import read_bytes, read_json_file
from clew.support.shown import Shown

VERSION: Final = 1
SUFFIX: Final = ".trace.json"


@dataclass(frozen=True, repr=False)
class CodePlace(Shown):
    """The code at an address: its function, the kernels that it is part of, the line of their loop
    nest and its text, and the model's layers that the line computes.
    """

    address: int
    function: str
    kernels: tuple[str, ...]
    line: int
    text: str
    layers: tuple[str, ...]

    def _about(self) -> str:
        return f"{self.address:#x}: {', '.join(self.layers)}"

    def to_json(self) -> dict[str, Any]:
        """Returns the place as JSON values."""
        return {
            "address": self.address,
            "function": self.function,
            "kernels": list(self.kernels),
            "line": self.line,
            "text": self.text,
            "layers": list(self.layers),
        }


def trace_record(builds: Sequence[tuple[BuildTemplate, Kernels]]) -> dict[str, Any]:
    """Returns the contents of `NAME.trace.json` for a library of builds with these kernels."""
    functions: dict[str, Any] = {}
    for build, kernels, use in ((*each, use) for each in builds for use in each[1].uses):
        found = functions
        for entry in kernels.binaries[use.source.key].code.entries:
            made = found.setdefault(entry.symbol, {"kernels": [], "layers": {}, "loops": []})
            made["kernels"].append(use.name)
            made["loops"] = list(use.source.printed.lines)
            for line, layers in _layers(build, use).items():
                known = made["layers"].setdefault(str(line), [])
                known += [layer for layer in layers if layer not in known]
    return {"version": VERSION, "functions": functions}


def _layers(build: BuildTemplate, use: KernelUse) -> dict[int, list[str]]:
    """Returns the layers of each line of a kernel's loop nest. Line 1 has all of them."""
    assert isinstance(use.call.op, Function)
    calls, positions = operator_calls(use.call.op), use.source.stages.ops
    found = {1: list(build.kernel_layers(use))}
    for line, names in enumerate(use.source.printed.stages, 1):
        ops = dict.fromkeys(positions.get(name.split("@", 1)[0]) for name in names)
        layers = (sorted(calls[op].span.layers) for op in ops if op is not None)
        found.setdefault(line, list(dict.fromkeys(x for each in layers for x in each)))
    return {line: layers for line, layers in found.items() if layers}


def place_of(path: str | Path, address: int) -> CodePlace:
    """Returns the place of an address in the code of a library. `path` is the library, or a program
    that it was linked into, next to `NAME.trace.json`; addresses in an object are offsets in its
    code.

    Errors: I472 (no trace file, or not an ELF file), I473 (code that computes no layer).
    """
    file = Path(path)
    code = _code(file)
    traces = [_functions(p) for p in sorted(file.parent.glob(f"*{SUFFIX}"))]
    if not traces:
        raise InputError(
            "I472",
            f"there is no trace file next to {file}",
            hint=f"keep NAME{SUFFIX} of the exported library in its folder",
        )
    for name, (start, size) in code.functions.items():
        if start <= address < start + size:
            for trace in traces:
                if name in trace:
                    return _place(address, name, code.line_at(address), trace[name])
            raise _elsewhere(address, f"function {name} computes none")
    raise _elsewhere(address, "no function is there")


def _functions(path: Path) -> dict[str, Any]:
    """Returns the functions of a library's trace; none if it has another version."""
    try:
        record = read_json_file(path)
        return dict(record["functions"]) if record["version"] == VERSION else {}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError("I472", f"{path} is not the trace of a library") from None


def _code(file: Path) -> CodeLines:
    error: type[Exception] = importlib.import_module("elftools.common.exceptions").ELFError
    try:
        found = code_lines(read_bytes(file))
    except OSError as fault:
        raise InputError("I472", f"cannot read {file}: {fault.strerror}") from None
    except error as fault:
        raise InputError("I472", f"{file} is not an ELF file: {fault}") from None
    if not found.functions:
        raise InputError("I472", f"{file} has no symbols", hint="do not strip it")
    return found


def _place(address: int, name: str, line: int, record: dict[str, Any]) -> CodePlace:
    loops: Sequence[str] = record["loops"]
    layers = record["layers"].get(str(line)) or record["layers"].get("1", [])
    text = loops[line - 1].strip() if line <= len(loops) else ""
    return CodePlace(address, name, tuple(record["kernels"]), line, text, tuple(layers))


def _elsewhere(address: int, why: str) -> InputError:
    return InputError(
        "I473",
        f"the code of no layer is at {address:#x}: {why}",
        hint="addresses are those that nm and objdump print: subtract the load address of the file",
    )
