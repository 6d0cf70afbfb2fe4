"""What shows the builds of a compiled model, imported when a reader first asks for one."""

from clew.build.all_sizes import build_at
from clew.build.kernel import Kernel, never_built
from clew.build.kernel_trace import kernel_traces
from clew.build.tracing import VERIFY_OPTIONS, trace_of, verify
from clew.ir.module import Module

__all__ = [
    "VERIFY_OPTIONS",
    "Kernel",
    "Module",
    "build_at",
    "kernel_traces",
    "never_built",
    "trace_of",
    "verify",
]
