"""The requirements of native code, compared with the features of this machine."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from typing import Any, Final

from clew.support.dataclass import dataclass
from clew.support.errors import CompileError, Hint
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING
from clew.support.system import system_text
from clew.support.tiles import matrix_tiles_permitted

# Features that code generation never uses by itself: they concern the operating system, or need
# intrinsics that kernels do not use. Machines without them also run the code.
_UNUSED: Final = {
    "64bit", "aes", "cldemote", "clflushopt", "clwb", "clzero", "cmpccxadd", "enqcmd", "fsgsbase",
    "fxsr", "hreset", "invpcid", "kl", "lwp", "movdir64b", "movdiri", "mwaitx", "pclmul",
    "pconfig", "pku", "prefetchi", "prefetchwt1", "prfchw", "ptwrite", "raoint", "rdpid", "rdpru",
    "rdrnd", "rdseed", "rtm", "serialize", "sgx", "sha", "shstk", "tsxldtrk", "uintr", "usermsr",
    "vaes", "vpclmulqdq", "waitpkg", "wbnoinvd", "widekl", "xsave", "xsavec", "xsaveopt", "xsaves",
}  # fmt: skip
# Kernels use the matrix unit's features explicitly.
_MATRIX_UNIT: Final = "amx-"
_MATRIX_FEATURES: Final = ("amx-tile", "amx-bf16", "amx-int8")
# Features that LLVM implies for CPUs named by targets without a feature list.
_IMPLIED: Final[Mapping[str, tuple[str, ...]]] = {
    "x86-64": (),
    "haswell": ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt"),
    "generic": (),
}


@dataclass(frozen=True)
class MachineNeeds:
    """The requirements of native code.

    `triple` and `cpu` are LLVM's; `features` are those the code may use. `same_cpu`: whether these
    are unknown, so only a machine with the same CPU is sure to run the code.
    """

    triple: str
    cpu: str
    features: tuple[str, ...]
    same_cpu: bool = False


def needs_of(triple: str, cpu: str, features: str) -> MachineNeeds:
    """Returns the requirements of code for a CPU and LLVM's feature string."""
    listed = {f[1:] for f in features.split(",") if f.startswith("+")}
    used = {
        f
        for f in listed
        if f in _MATRIX_FEATURES or (f not in _UNUSED and not f.startswith(_MATRIX_UNIT))
    }
    if not features and cpu not in _IMPLIED:
        return MachineNeeds(triple, cpu, (), same_cpu=True)
    return MachineNeeds(triple, cpu, tuple(sorted(used.union(_IMPLIED.get(cpu, ())))))


def check_machine(needs: MachineNeeds) -> None:
    """Raises an error unless this machine can run the code.

    Errors: C056 (another architecture or operating system), C057 (the CPU lacks features).
    """
    here = process_triple()
    if _platform(needs.triple) != _platform(here):
        raise CompileError(
            "C056",
            f"the model is compiled for {needs.triple}, but this machine is {here}",
            hint="compile the model on a machine of this kind",
        )
    llvm = _llvm()
    cpu = llvm.get_host_cpu_name()
    flags = llvm.get_host_cpu_features()
    missing = [f for f in needs.features if not flags.get(f, False)]
    tiles = [f for f in needs.features if f in _MATRIX_FEATURES]
    if tiles and not missing and not matrix_tiles_permitted():
        missing = tiles  # the operating system does not let this process use them
    if missing or (needs.same_cpu and cpu != needs.cpu):
        lacks = f"lacks {', '.join(missing)}" if missing else "may lack features it needs"
        raise CompileError(
            "C057",
            f"the model is compiled for {needs.cpu}, but this machine's CPU ({cpu}) {lacks}",
            hint=Hint(
                'compile it for an older CPU, such as target="cpu-avx2", or on this machine',
                cli="compile it for an older CPU, such as --target cpu-avx2, or on this machine",
                page="compile it for the target cpu-avx2, or on this machine",
            ),
        )


def process_triple() -> str:
    """Returns LLVM's name for this platform."""
    machine = {"AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    if sys.platform == "linux" and machine in ("x86_64", "aarch64"):
        return f"{machine}-unknown-linux-gnu"
    return str(_llvm().get_process_triple())


def _llvm() -> Any:
    with LOADING, held_interrupts():
        import llvmlite.binding  # noqa: PLC0415 - it loads LLVM

    return llvmlite.binding


def has_steady_counter() -> bool:
    """Whether the processor's time-stamp counter runs at a constant rate on all cores, also in
    sleep states.

    On ARM this is always so. On x86 the CPU reports it, and Linux lists it.
    """
    arch, system = _platform(process_triple())
    if arch != "x86_64":
        return arch == "aarch64"
    if system != "linux":
        return False
    try:
        text = system_text("/proc/cpuinfo")
    except OSError:
        return False
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return "constant_tsc" in flags and "nonstop_tsc" in flags


def _platform(triple: str) -> tuple[str, str]:
    """Returns the architecture and operating system in a triple."""
    arch = triple.split("-")[0]
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, arch)
    systems = ("linux", "darwin", "windows")
    return arch, next((s for s in systems if s in triple), triple)
