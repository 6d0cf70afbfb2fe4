"""Kernels in a form that another process can lower; also the program of a process that does."""

from __future__ import annotations

import gc
import json

from clew.backends.cpu.kernel_stages import operator_calls
from clew.backends.cpu.lowering import KernelSource
from clew.codegen.worker import emit_object, serve
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.ir.printer import printed
from clew.machine.target import Target
from clew.ops.registry import Op
from clew.support.collection import rare_collections


def is_portable(source: KernelSource) -> bool:
    """Whether another process can lower a kernel: none of its code is the user's."""
    ops = [call.op for call in operator_calls(source.function)]
    return not source.by_hand and all(isinstance(op, Op) and op.is_builtin for op in ops)


def packed(source: KernelSource) -> bytes:
    """Returns a portable kernel as bytes."""
    record = {
        "function": printed(Module({"main": source.function}), notes=False).text,
        "target": source.target.to_record(),
        "bounds": source.bounds,
        "expected": source.expected,
        "key": source.key,
    }
    return json.dumps(record).encode()


def unpacked(data: bytes) -> KernelSource:
    """Returns the kernel of `packed`."""
    record = json.loads(data)
    function = parse_module(record["function"]).main
    target = Target.of_record(record["target"])
    expected = tuple((name, size) for name, size in record["expected"])
    source = KernelSource(function, target, (), record["bounds"], expected=expected)
    # Text does not show which sizes may be 0.
    assert source.key == record["key"], "another kernel"
    return source


def run() -> None:
    """Is the program of a worker, which has imported this file without collections: no later one
    looks at what stays.
    """
    gc.freeze()
    gc.enable()
    with rare_collections():
        serve(_answer)


def _answer(request: bytes) -> bytes:
    source = unpacked(request)
    text, target = source.emitted.llvm, source.target
    return source.binary(emit_object(text, target.triple, target.cpu, target.features)).to_bytes()
