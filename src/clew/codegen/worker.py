"""LLVM text to object bytes; also the program of a compile worker process.

A worker imports only llvmlite and the standard library, so that it starts quickly: it runs from
this file, not through the package. It answers requests one by one until its input closes.

Request and reply are a 4-byte length (little endian) and that many bytes. A request for an object
is triple, CPU, features, pipeline and module text, joined by NUL. A reply starts with `+` before
the answer or `-` before an error text. The first reply is `+ready`.
"""

from __future__ import annotations

import functools
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import llvmlite.binding as llvm

PIPELINES = ("fast", "quick", "none", "O3")
"""`quick`, the default: promote stack slots to registers, without loop strength reduction. Code
generation gives every loop the few pointers that it needs; LLVM would make one of each offset,
which takes half of the compile time and registers that the tile then lacks. `fast`: with strength
reduction. `none`: no passes. `O3`: LLVM's default pipeline, for comparison.
"""

NEXT_MODULE = "\n; the next module\n"
"""The separator between modules that are linked into one object."""

_LENGTH = struct.Struct("<I")


def configure_llvm() -> None:
    """Sets the process-wide options of LLVM. Call once, before the first module.

    LLVM's machine scheduler hoists broadcasts over register tiles until they spill.
    """
    llvm.set_option("", "--enable-misched=false")
    # Else instructions that belong to no line, such as spills, would take their neighbor's.
    llvm.set_option("", "--use-unknown-locations=Enable")
    # No variable has debug information, and following variables through instructions, as LLVM does
    # by default in functions with line numbers, takes a fifth of code generation.
    llvm.set_option("", "--experimental-debug-variable-locations=false")
    # Otherwise a heuristic that loads early would order instructions; code generation orders them
    # itself.


@functools.lru_cache(maxsize=8)
def _target_machine(triple: str, cpu: str, features: str) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError:  # another architecture than the host's
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple(triple)
    arch = triple.split("-")[0]
    return target.create_target_machine(
        cpu=cpu,
        features=features,
        opt=3,
        reloc="static" if _is_bare(triple) else "pic",
        codemodel="small",
        abiname="lp64d" if arch == "riscv64" else "",
    )


def _is_bare(triple: str) -> bool:
    """Whether code for a platform is linked at fixed addresses."""
    return triple.startswith("wasm") or "-none-" in triple


def _reduce_strength(wanted: bool) -> None:
    """Switches loop strength reduction, a process-wide option, unless it is already so."""
    if wanted != _strength_reduction[0]:
        llvm.set_option("", f"--disable-lsr={str(not wanted).lower()}")
        _strength_reduction[0] = wanted


_strength_reduction = [True]


def _link(module: Any, others: list[Any]) -> None:
    """Links other modules into one, and gives their functions internal linkage."""
    visible = {f.name for f in module.functions if not f.is_declaration}
    for other in others:
        module.link_in(other)
    for function in module.functions:
        if not function.is_declaration and function.name not in visible:
            function.linkage = llvm.Linkage.internal


def _optimize(module: Any, machine: Any, pipeline: str) -> None:
    if pipeline == "none":
        return
    assert pipeline in PIPELINES, f"no pipeline named {pipeline!r}"
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine, options)
    if pipeline == "O3":
        builder.getModulePassManager().run(module, builder)
        return
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


def emit_object(text: str, triple: str, cpu: str, features: str, pipeline: str = "quick") -> bytes:
    """Returns the object file of a module. The same arguments give the same bytes.

    The text may be several modules, separated by `NEXT_MODULE`. They are linked into one, which
    exports only the functions of the first module.

    Errors: RuntimeError with LLVM's message if the module is invalid. A CPU name that LLVM does not
    know ends the process.
    """
    with _optimized(text, triple, cpu, features, pipeline) as (machine, module):
        return cast(bytes, machine.emit_object(module))


def emit_assembly(text: str, triple: str, cpu: str, features: str, pipeline: str = "quick") -> str:
    """Returns the assembly of a module, with LLVM's comments on blocks and loops. Its instructions
    are those of the object file.

    Errors: those of `emit_object`.
    """
    with _optimized(text, triple, cpu, features, pipeline) as (machine, module):
        machine.set_asm_verbosity(True)
        return cast(str, machine.emit_assembly(module))


@contextmanager
def _optimized(
    text: str, triple: str, cpu: str, features: str, pipeline: str
) -> Iterator[tuple[Any, Any]]:
    """Yields LLVM's target machine and the optimized module, which is closed at the end."""
    machine = _target_machine(triple, cpu, features)
    module, *others = map(llvm.parse_assembly, text.split(NEXT_MODULE))
    try:
        for each in (module, *others):
            each.triple = triple
            each.data_layout = str(machine.target_data)
        if others:
            _link(module, others)
        module.verify()
        _optimize(module, machine, pipeline)
        _reduce_strength(pipeline != "quick")
        yield machine, module
    finally:
        module.close()


def _read_exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:  # the caller has closed its end
        raise EOFError
    return data


def _object(request: bytes) -> bytes:
    triple, cpu, features, pipeline, text = request.decode().split("\0", 4)
    return emit_object(text, triple, cpu, features, pipeline)


def serve(answer: Callable[[bytes], bytes] = _object) -> None:
    """Answers requests from standard input on standard output until the input closes, by default
    those for objects.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C
    with os.fdopen(os.dup(0), "rb") as requests, os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)  # nothing else may write into the replies
        configure_llvm()
        try:
            reply = b"+ready"
            while True:
                replies.write(_LENGTH.pack(len(reply)) + reply)
                replies.flush()
                (length,) = _LENGTH.unpack(_read_exactly(requests, _LENGTH.size))
                request = _read_exactly(requests, length)
                try:
                    reply = b"+" + answer(request)
                except Exception as error:  # of any kind: the caller must receive it
                    reply = b"-" + f"{type(error).__name__}: {error}".encode()
        except (EOFError, BrokenPipeError):
            return


if __name__ == "__main__":
    serve()
    sys.exit(0)
