"""A kernel's loop nest, LLVM text and instructions, and the links between their lines."""

from __future__ import annotations

from clew.build.kernel_html import loop_ops
from clew.explorer.schema import Code
from clew.explorer.session import Session
from clew.trace.kernels import KernelTrace


def code(session: Session, kernel: int) -> Code:
    """Returns the code of a kernel by its place.

    Errors: I200 for a kernel that does not exist.
    """
    return code_of(kernel, session.kernel(kernel))


def code_of(kernel: int, used: KernelTrace) -> Code:
    """Returns the code of a use of a kernel, which is named by a number."""
    lines = used.llvm_lines
    return Code(
        kernel=kernel,
        loops=list(used.loops),
        loop_op=loop_ops(len(used.loops), used.loop_stages, used.stage_ops),
        llvm=list(used.llvm),
        llvm_loop=[lines.get(n, 0) for n in range(1, len(used.llvm) + 1)],
        asm=[i.text for i in used.asm],
        asm_address=[i.address for i in used.asm],
        asm_loop=[i.loop_line for i in used.asm],
    )
