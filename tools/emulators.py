"""Runs C libraries for other machines: cross compilers, emulators, and Node.js for WebAssembly."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.libraries import Exported

Array = np.ndarray[Any, Any]
STRICT: Final = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
TOOLS: Final[Mapping[str, tuple[str, str]]] = {
    "aarch64": ("aarch64-linux-gnu-gcc", "qemu-aarch64"),
    "aarch64+dotprod": ("aarch64-linux-gnu-gcc", "qemu-aarch64 -cpu max"),
    "aarch64+i8mm": ("aarch64-linux-gnu-gcc", "qemu-aarch64 -cpu max"),
    "armv7": ("arm-linux-gnueabihf-gcc", "qemu-arm"),
    "riscv64": ("riscv64-linux-gnu-gcc", "qemu-riscv64"),
    "riscv64+v": ("riscv64-linux-gnu-gcc", "qemu-riscv64 -cpu rv64,v=true,vext_spec=v1.0"),
    "x86-64-v2": ("gcc", ""),
    "wasm32": ("clang", "node"),
    "cortex-m4": ("arm-none-eabi-gcc", "qemu-system-arm -M mps2-an386"),
    "cortex-m7": ("arm-none-eabi-gcc", "qemu-system-arm -M mps2-an500"),
    "cortex-m55": ("arm-none-eabi-gcc", "qemu-system-arm -M mps3-an547"),
}
"""The compiler and the emulator of each target that can be run; the emulator is empty where this
machine runs the target itself.
"""

# What a microcontroller needs before `main`, and where its memory is. The emulator reads and writes
# files for it.
_FLOATS: Final = {"cortex-m4": "-mfpu=fpv4-sp-d16", "cortex-m7": "-mfpu=fpv5-d16"}
_RAM: Final = {"cortex-m55": ("0x21000000", "2M")}
_START_C: Final = """
#include <stdint.h>
extern uint32_t stack_top;
extern char end;
void _mainCRTStartup(void);
void _init(void) {}
void _fini(void) {}
void reset(void) {
  *(volatile uint32_t *)0xE000ED88 |= 0xfu << 20; /* floats and vectors */
  __asm volatile("dsb\\n isb");
  _mainCRTStartup();
}
static void fault(void) { for (;;) { } }
__attribute__((section(".vectors"), used)) const void *vectors[16] = {
  &stack_top, (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault};
static char *brk_ = &end;
void *_sbrk(int bytes) {
  char *found = brk_;
  if (found + bytes > (char *)&stack_top - 65536) return (void *)-1;
  brk_ += bytes;
  return found;
}
"""
_LINK: Final = """
ENTRY(reset)
MEMORY
{{
  ROM (rx) : ORIGIN = 0x0, LENGTH = 512K
  RAM (rwx) : ORIGIN = {ram}, LENGTH = {size}
}}
SECTIONS {{
  .text : {{ KEEP(*(.vectors)) *(.text*) *(.rodata*) *(.eh_frame*) }} > ROM
  .ARM.exidx : {{ __exidx_start = .; *(.ARM.exidx*) __exidx_end = .; }} > ROM
  .arrays : {{
    __preinit_array_start = .; __preinit_array_end = .;
    __init_array_start = .; *(.init_array*) __init_array_end = .;
    __fini_array_start = .; *(.fini_array*) __fini_array_end = .;
  }} > ROM
  .data : {{ *(.data*) }} > RAM AT > RAM
  .bss : {{ __bss_start__ = .; *(.bss*) *(COMMON) __bss_end__ = .; end = .; __end__ = .; }} > RAM
  stack_top = ORIGIN(RAM) + LENGTH(RAM);
  __stack = stack_top;
}}
"""

# Memory functions and fused multiply-add, which WebAssembly has no instructions for. The sum in
# double precision is rounded to odd, so that rounding it again to single precision is exact.
_WASM_C: Final = """
typedef __SIZE_TYPE__ size_t;
void *memcpy(void *to, const void *from, size_t n) { return __builtin_memcpy(to, from, n); }
void *memmove(void *to, const void *from, size_t n) { return __builtin_memmove(to, from, n); }
void *memset(void *to, int byte, size_t n) { return __builtin_memset(to, byte, n); }
float fmaf(float a, float b, float c) {
  const double product = (double)a * b, sum = product + c, part = sum - product;
  const double error = (product - (sum - part)) + (c - part);
  long long bits;
  double odd;
  __builtin_memcpy(&bits, &sum, 8);
  if (error != 0 && __builtin_isfinite(sum) && !(bits & 1))
    bits += (error > 0) == (sum > 0) ? 1 : -1;
  __builtin_memcpy(&odd, &bits, 8);
  return (float)odd;
}
"""

_NODE: Final = """
const fs = require("fs");
const told = JSON.parse(fs.readFileSync(process.argv[2]));
const code_of = new WebAssembly.Module(fs.readFileSync(told.wasm));
const run = new WebAssembly.Instance(code_of, {}).exports;
let end = run.__heap_base.value;
function take(bytes) {
  const at = Math.ceil(end / 64) * 64;
  end = at + bytes;
  const missing = end - run.memory.buffer.byteLength;
  if (missing > 0) run.memory.grow(Math.ceil(missing / 65536));
  return at;
}
const given = told.inputs.map((file) => {
  const data = fs.readFileSync(file), at = take(data.length);
  new Uint8Array(run.memory.buffer).set(data, at);
  return at;
});
// A row of the table: name, dtype, shape, rank, bytes of an element, bytes.
const table = run[told.prefix + "_output_table"].value;
const rows = told.outputs.map((file, n) => {
  const words = new Int32Array(run.memory.buffer, table + 32 * n, 8);
  const sizes = new BigInt64Array(run.memory.buffer, words[2], words[3]);
  return {file, rank: words[3], element: words[4], bytes: words[6], counted: sizes.includes(-2n)};
});
for (const row of rows) row.place = take(row.bytes);
for (const row of rows) row.shape = take(8 * row.rank);
const made = rows.map((row) => row.place);
made.push(...rows.filter((row) => row.counted).map((row) => row.shape));
const work = take(told.workspace);
const structs = [given, made].map((pointers) => {
  const at = take(4 * pointers.length + 4);
  new Uint32Array(run.memory.buffer, at, pointers.length).set(pointers);
  return at;
});
const code = run[told.prefix + "_run"](structs[0], structs[1], work);
for (const row of rows) {
  const found = new BigInt64Array(run.memory.buffer, row.shape, row.rank);
  const count = row.counted ? Number(found.reduce((a, b) => a * b, 1n)) * row.element : row.bytes;
  fs.writeFileSync(row.file, new Uint8Array(run.memory.buffer, row.place, count));
}
process.exit(code);
"""


def missing(target: str) -> str:
    """Returns a program that is needed for a target and not installed; "" if there is none."""
    compiler, emulator = TOOLS[target]
    programs = [compiler, *emulator.split()[:1], *(["wasm-ld"] if target == "wasm32" else [])]
    return next((p for p in programs if shutil.which(p) is None), "")


def run(
    target: str,
    made: Exported,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, tuple[Sequence[int], Any]],
) -> dict[str, Array]:
    """Returns the outputs of a library for these inputs, in the order of its header. `outputs` has
    the shape and dtype of each.
    """
    folder = made.folder
    given = [f"in{n}.bin" for n in range(len(inputs))]
    for file, array in zip(given, inputs.values(), strict=True):
        np.ascontiguousarray(array).tofile(folder / file)
    results = [f"out{n}.bin" for n in range(len(outputs))]
    if target == "wasm32":
        _run_in_node(made, given, results)
    elif target.startswith("cortex"):
        _run_bare(target, made, given, results)
    else:
        compiler, emulator = TOOLS[target]
        command = [
            compiler,
            *STRICT,
            "-static",
            "main.c",
            f"lib{made.prefix}.a",
            "-lm",
            "-o",
            "main",
        ]
        _do(command, folder)
        _do([*emulator.split(), "./main", *given, *results], folder)
    return {
        name: np.fromfile(folder / file, dtype).reshape(shape)
        for file, (name, (shape, dtype)) in zip(results, outputs.items(), strict=True)
    }


def _run_in_node(made: Exported, given: Sequence[str], results: Sequence[str]) -> None:
    folder, prefix = made.folder, made.prefix
    (folder / "support.c").write_text(_WASM_C)
    flags = ["--target=wasm32", "-O2", "-ffreestanding", "-fno-builtin", "-mbulk-memory"]
    _do(["clang", *flags, "-c", "support.c"], folder)
    names = ("__heap_base", f"{prefix}_run", f"{prefix}_output_table")
    linked = ["--no-entry", *(f"--export={name}" for name in names), "-o", "model.wasm"]
    _do(["wasm-ld", *linked, f"{prefix}.o", "support.o"], folder)
    told = {
        "wasm": "model.wasm",
        "prefix": prefix,
        "inputs": list(given),
        "outputs": list(results),
        "workspace": made.workspace_bytes,
    }
    (folder / "run.cjson").write_text(json.dumps(told))
    (folder / "run.cjs").write_text(_NODE)
    _do(["node", "run.cjs", "run.cjson"], folder)


def _run_bare(target: str, made: Exported, given: Sequence[str], results: Sequence[str]) -> None:
    folder = made.folder
    compiler, emulator = TOOLS[target]
    ram, size = _RAM.get(target, ("0x20000000", "4M"))
    (folder / "start.c").write_text(_START_C)
    (folder / "link.ld").write_text(_LINK.format(ram=ram, size=size))
    flags = [f"-mcpu={target}", "-mthumb", "-mfloat-abi=hard"]
    flags += [_FLOATS[target]] if target in _FLOATS else []
    asked = [compiler, *flags, "-print-file-name=rdimon-crt0.o"]
    first = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    sources = ["main.c", "start.c", f"{made.prefix}.o", first]
    linked = ["--specs=rdimon.specs", "-nostartfiles", "-T", "link.ld", "-lm", "-o", "main.elf"]
    _do([compiler, *flags, "-std=c99", *sources, *linked], folder)
    words = ",".join(f"arg={word}" for word in ("main", *given, *results))
    console = ["-nographic", "-monitor", "none", "-serial", "none"]
    files = ["-semihosting-config", f"enable=on,target=native,{words}", "-kernel", "main.elf"]
    _do([*emulator.split(), "-cpu", target, *console, *files], folder)


def _do(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[:400]
        raise RuntimeError(f"{command[0]} ends with {done.returncode}: {said}")
