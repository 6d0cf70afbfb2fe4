"""Checks a kernel against the budgets and the machine: bytes of its values, and operations."""

from __future__ import annotations

from clew.backends.cpu.lowering import KernelSource
from clew.cost.work import most_operations
from clew.ir.expr import Call
from clew.ir.types import TensorType, leaves
from clew.support.budgets import check_kernel_operations, current, exceeded
from clew.support.errors import CompileError


def check_bytes(call: Call) -> None:
    """Errors: C140 for a value larger than the memory of the machine or the budget."""
    budgets = current()
    for value in (*call.args, call):
        for leaf in leaves(value.type):
            if not isinstance(leaf, TensorType) or not leaf.is_static:
                continue  # checked in the run
            size_bytes = leaf.size_bytes
            if size_bytes > budgets.run_bytes:
                what = f"bytes of {leaf}"
                raise exceeded(
                    CompileError, "C140", what, size_bytes, "run_bytes", budgets.run_bytes
                )
            if size_bytes > budgets.allocated_bytes:
                raise CompileError(
                    "C140",
                    f"{leaf} takes {size_bytes} bytes, but this machine has only "
                    f"{budgets.allocated_bytes}",
                    hint="use a machine with more memory, or smaller inputs",
                )


def check_work(source: KernelSource, use: str) -> None:
    """Errors: C141 for a kernel that may take more operations than the budget allows. If the number
    depends on sizes that only a run knows, it is checked then (`runtime.template`).
    """
    if current().bounds_work:
        count = most_operations(source.stages.outputs)
        if isinstance(count, int):
            check_kernel_operations(use, count)
