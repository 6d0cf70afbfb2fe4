"""Measures how many f32 operations a second this machine's vector units do, through llvmlite."""

import ctypes
import threading
import time

import llvmlite.binding as llvm
import numpy as np

_CHAINS = 20  # independent accumulators: more than latency × units on any current core
_STEPS = 400_000


class FmaPeak:
    """A kernel of nothing but fused multiply-adds on registers, callable on several threads."""

    def __init__(self) -> None:
        """Compiles the kernel for the machine it runs on."""
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self.lanes = 16 if features.get("avx512f") else 8 if features.get("fma") else 4
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3
        )
        module = llvm.parse_assembly(_source(self.lanes))
        module.verify()
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        address = self._engine.get_function_address("fma_peak")
        self._kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)

    def gflops(self, threads: int) -> float:
        """Returns GFLOP/s of one short run (about a millisecond) on `threads` threads at once."""
        buffers = [np.full(_CHAINS * self.lanes, 0.5, np.float32) for _ in range(threads)]
        start = threading.Barrier(threads)
        spans: list[tuple[float, float]] = []

        def work(buffer: np.ndarray) -> None:
            address = buffer.ctypes.data
            start.wait()
            began = time.perf_counter()
            self._kernel(address)
            spans.append((began, time.perf_counter()))

        workers = [threading.Thread(target=work, args=(buffer,)) for buffer in buffers]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        elapsed = max(end for _, end in spans) - min(begin for begin, _ in spans)
        return threads * _STEPS * _CHAINS * self.lanes * 2 / elapsed / 1e9


def _source(lanes: int) -> str:
    """Returns LLVM text: a loop over `_CHAINS` independent chains x = x · 0.999 + 0.001."""
    vector = f"<{lanes} x float>"

    def splat(value: float) -> str:
        bits = int(np.float64(np.float32(value)).view(np.uint64))
        return "<" + ", ".join([f"float 0x{bits:016X}"] * lanes) + ">"

    chains = range(_CHAINS)
    loads = "\n".join(
        f"  %p{i} = getelementptr {vector}, ptr %buffer, i64 {i}\n"
        f"  %x{i} = load {vector}, ptr %p{i}, align 4"
        for i in chains
    )
    phis = "\n".join(f"  %a{i} = phi {vector} [ %x{i}, %entry ], [ %b{i}, %loop ]" for i in chains)
    fmas = "\n".join(
        f"  %b{i} = call {vector} @llvm.fma.v{lanes}f32"
        f"({vector} %a{i}, {vector} {splat(0.999)}, {vector} {splat(0.001)})"
        for i in chains
    )
    stores = "\n".join(f"  store {vector} %b{i}, ptr %p{i}, align 4" for i in chains)
    return f"""
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})
define void @fma_peak(ptr %buffer) {{
entry:
{loads}
  br label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
{fmas}
  %next = add i64 %n, 1
  %more = icmp ult i64 %next, {_STEPS}
  br i1 %more, label %loop, label %done
done:
{stores}
  ret void
}}
"""
