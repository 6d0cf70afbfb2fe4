"""Compiles small functions over arrays, to run operations on one lane and on many.

Puts `shapes`, and the computations of the loop tests, in reach of the tests beside it, too.
"""

from __future__ import annotations

import ctypes
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from clew.codegen.artifact import ObjectCode
from clew.codegen.builder import Builder, ModuleBuilder, Value, llvm_type
from clew.codegen.worker import emit_object
from clew.ir.types import to_numpy
from clew.machine.target import Target, host
from clew.runtime.library import Library

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "loop")]

Emit = Callable[[Builder, Sequence[Value]], Value]


def memory_type(dtype: str, lanes: int) -> str:
    return llvm_type("u8" if dtype == "bool" else dtype, lanes)


def _module_text(
    emit: Emit, inputs: Sequence[str], lanes: int, features: str = ""
) -> tuple[str, str, int]:
    """Returns `void f(ptr inputs..., ptr out, i64 n)` over n groups; the result's dtype, lanes."""
    module = ModuleBuilder("test", host().triple, debug=False, features=features)
    b = Builder(module)
    b.branch("head")
    b.start("head")
    b.emit("%i = phi i64 [ 0, %entry ], [ %next, %latch ]")
    b.emit("%first = mul i64 %i, " + str(lanes))
    args = []
    for k, dtype in enumerate(inputs):
        pointer = b.pointer(f"getelementptr {memory_type(dtype, 1)}, ptr %in{k}, i64 %first")
        kind = "u8" if dtype == "bool" else dtype
        loaded = b.value(f"load {memory_type(dtype, lanes)}, ptr {pointer}, align 1", kind, lanes)
        if dtype == "bool":
            text = f"trunc {loaded.typed} to {llvm_type('bool', lanes)}"
            loaded = b.value(text, "bool", lanes)
        args.append(loaded)
    result = emit(b, args)
    dtype, out_lanes = result.dtype, result.lanes
    b.emit("%out_first = mul i64 %i, " + str(result.lanes))
    pointer = b.pointer(f"getelementptr {memory_type(dtype, 1)}, ptr %out, i64 %out_first")
    if dtype == "bool":
        result = b.value(
            f"zext {result.typed} to {llvm_type('u8', result.lanes)}", "u8", result.lanes
        )
    b.emit(f"store {result.typed}, ptr {pointer}, align 1")
    b.branch("latch")
    b.start("latch")
    b.emit("%next = add i64 %i, 1")
    b.emit("%more = icmp ult i64 %next, %n")
    b.emit("br i1 %more, label %head, label %exit")
    b.start("exit")
    b.emit("ret void")
    params = ", ".join([f"ptr %in{k}" for k in range(len(inputs))] + ["ptr %out", "i64 %n"])
    module.add_function(f"define void @f({params}) nounwind {{\n{b.body()}\n}}")
    return module.text(), dtype, out_lanes


def _compile(
    emit: Emit, inputs: Sequence[str], lanes: int, target: Target | None = None
) -> Callable[..., np.ndarray]:
    target = target or host()
    # Not those of bf16, which take denormals for zeros.
    features = target.features.replace("+avx512bf16", "-avx512bf16")
    text, dtype, out_lanes = _module_text(emit, inputs, lanes, features)
    data = emit_object(text, target.triple, target.cpu, target.features)
    library = Library([ObjectCode("test", data, ("f",))])
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(inputs) + 1), ctypes.c_int64)
    native = prototype(library.address("f"))

    def run(*arrays: np.ndarray) -> np.ndarray:
        prepared = [
            np.ascontiguousarray(a, to_numpy(d)) for a, d in zip(arrays, inputs, strict=True)
        ]
        groups, rest = divmod(prepared[0].size, lanes)
        assert groups
        assert not rest
        out = np.empty(groups * out_lanes, to_numpy(dtype))
        native(*[a.ctypes.data for a in prepared], out.ctypes.data, groups)
        assert library.symbols  # alive until here
        return out

    return run


@pytest.fixture
def undefined_symbols() -> Callable[..., set[str]]:
    """`undefined_symbols(emit, dtypes, triple, cpu)`: what a function needs from outside."""

    def names(emit: Emit, inputs: Sequence[str], triple: str, cpu: str) -> set[str]:
        text = _module_text(emit, inputs, 4)[0].replace(host().triple, triple)
        data = emit_object(text, triple, cpu, "")
        symbols = ELFFile(io.BytesIO(data)).get_section_by_name(".symtab").iter_symbols()
        return {s.name for s in symbols if s["st_shndx"] == "SHN_UNDEF" and s.name}

    return names


@pytest.fixture
def compile_lanes() -> Callable[..., Callable[..., np.ndarray]]:
    """`compile_lanes(emit, dtypes, lanes)`: a function of arrays of whole groups of lanes, for a
    `target` or this machine.
    """
    return _compile


@pytest.fixture
def run_both() -> Callable[..., np.ndarray]:
    """`run_both(emit, dtypes, *arrays)`: results on 16 lanes, which 1 lane gives bit for bit."""

    def run(emit: Emit, inputs: Sequence[str], *arrays: np.ndarray) -> np.ndarray:
        wide = _compile(emit, inputs, 16)(*arrays)
        narrow = _compile(emit, inputs, 1)(*arrays)
        nan = wide != wide
        assert np.array_equal(nan, narrow != narrow)
        different = np.flatnonzero(np.where(nan, False, _raw(wide) != _raw(narrow)))
        assert not different.size, [(a[different[0]], wide[different[0]]) for a in arrays]
        return wide

    return run


def _raw(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}")
