"""Linking of objects into this process by LLVM: of other architectures than x86-64, and of what
`elf.py` does not know.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm

import clew.codegen.llvm_locks  # noqa: F401  (before the first call of LLVM)
from clew.codegen.artifact import ObjectCode
from clew.support.errors import CompileError
from clew.support.locks import Lock

_numbers = itertools.count()
_initialized = False
_init_lock = Lock()


def _initialize() -> None:
    global _initialized
    with _init_lock:
        if not _initialized:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            _initialized = True


class LinkedByLlvm:
    """Linked objects: `addresses` of their symbols, valid while this object is alive.

    Errors: C003 if an object is damaged, or a symbol is missing or defined twice.
    """

    def __init__(self, objects: Sequence[ObjectCode], imports: Mapping[str, int]) -> None:
        _initialize()
        name = f"clew-{next(_numbers)}"  # LLVM never reuses a name
        builder = llvm.JITLibraryBuilder()
        for code in objects:
            builder.add_object_img(code.data)
            for symbol in code.symbols:
                builder.export_symbol(symbol)
        for symbol, address in imports.items():
            builder.import_symbol(symbol, address)
        builder.add_current_process()
        # One engine per library: a shared one keeps some memory of every library it ever held.
        # JITLink maps an object's sections side by side. The default linker maps them one by one:
        # in a process with gigabytes mapped, they can lie further apart than a 32-bit displacement
        # reaches, and LLVM aborts the process.
        engine = llvm.create_lljit_compiler(suppress_errors=True, use_jit_link=True)
        try:
            self._tracker: Any = builder.link(engine, name)
        except RuntimeError as error:
            raise CompileError(
                "C003",
                f"compiled code could not be linked: {error}",
                hint="clear the disk cache with `clew cache clear`; if that does not help, "
                "this is a bug in clew",
            ) from error
        # After the tracker, so that it is also released after the tracker.
        self._engine: Any = engine
        self.addresses = {
            symbol: self._tracker[symbol] for code in objects for symbol in code.symbols
        }
