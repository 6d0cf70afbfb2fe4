"""Which machines can run native code: what it needs, and what this one has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import llvmlite.binding as llvm

from clew.support.errors import CompileError, Hint
from clew.support.system import system_text
from clew.support.tiles import matrix_tiles_permitted

# Features that code generation never uses on its own: they concern the system, or need intrinsics
# that kernels do not have. A machine without them runs the code all the same.
_UNUSED: Final = {
    "64bit", "aes", "cldemote", "clflushopt", "clwb", "clzero", "cmpccxadd", "enqcmd", "fsgsbase",
    "fxsr", "hreset", "invpcid", "kl", "lwp", "movdir64b", "movdiri", "mwaitx", "pclmul",
    "pconfig", "pku", "prefetchi", "prefetchwt1", "prfchw", "ptwrite", "raoint", "rdpid", "rdpru",
    "rdrnd", "rdseed", "rtm", "serialize", "sgx", "sha", "shstk", "tsxldtrk", "uintr", "usermsr",
    "vaes", "vpclmulqdq", "waitpkg", "wbnoinvd", "widekl", "xsave", "xsavec", "xsaveopt", "xsaves",
}  # fmt: skip
# Of the matrix unit, kernels use these.
_MATRIX_UNIT: Final = "amx-"
_MATRIX_FEATURES: Final = ("amx-tile", "amx-bf16", "amx-int8")
# What LLVM takes for granted on CPUs that targets name without listing features.
_IMPLIED: Final[Mapping[str, tuple[str, ...]]] = {
    "x86-64": (),
    "haswell": ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt"),
    "generic": (),
}


@dataclass(frozen=True)
class MachineNeeds:
    """What native code needs of a machine.

    `triple` and `cpu` are LLVM's; `features` are those that the code may use. `same_cpu` says that
    they are not known, so that only a machine with this very CPU is sure to run it.
    """

    triple: str
    cpu: str
    features: tuple[str, ...]
    same_cpu: bool = False


def needs_of(triple: str, cpu: str, features: str) -> MachineNeeds:
    """Returns what code for a CPU and LLVM's feature string needs."""
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
    """Raises unless this machine can run the code.

    Errors: C056 (another architecture or operating system), C057 (the CPU lacks features).
    """
    here = llvm.get_process_triple()
    if _platform(needs.triple) != _platform(here):
        raise CompileError(
            "C056",
            f"the model is compiled for {needs.triple}, this machine is {here}",
            hint="compile the model on a machine of this kind",
        )
    cpu = llvm.get_host_cpu_name()
    flags = llvm.get_host_cpu_features()
    missing = [f for f in needs.features if not flags.get(f, False)]
    tiles = [f for f in needs.features if f in _MATRIX_FEATURES]
    if tiles and not missing and not matrix_tiles_permitted():
        missing = tiles  # the system keeps them from this process
    if missing or (needs.same_cpu and cpu != needs.cpu):
        lacks = f"lacks {', '.join(missing)}" if missing else "may lack what it needs"
        raise CompileError(
            "C057",
            f"the model is compiled for {needs.cpu}, this machine's CPU ({cpu}) {lacks}",
            hint=Hint(
                'compile it for an older CPU, such as target="cpu-avx2", or on this machine',
                cli="compile it for an older CPU, such as --target cpu-avx2, or on this machine",
                page="compile it for the target cpu-avx2, or on this machine",
            ),
        )


def has_steady_counter() -> bool:
    """Whether the processor's counter of ticks runs at one rate, on all cores, asleep or not.

    ARM's always does. x86 says so, and Linux lists it.
    """
    arch, system = _platform(llvm.get_process_triple())
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
    """Returns architecture and operating system of a triple."""
    arch = triple.split("-")[0]
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, arch)
    systems = ("linux", "darwin", "windows")
    return arch, next((s for s in systems if s in triple), triple)
