"""What a machine offers: vector width, registers, caches, dot products, threads."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Final

import llvmlite.binding as llvm

from clew.ir.types import bits
from clew.machine.instructions import Instructions, instructions_of
from clew.support import markup
from clew.support.errors import InputError
from clew.support.system import system_text
from clew.support.tiles import matrix_tiles_permitted


@dataclass(frozen=True, repr=False)
class Target:
    """A machine to compile for.

    `vector_bits` and `vector_registers` bound the register tiles, the cache sizes (bytes; of one
    core for L1 and L2) bound the blocks. `features` is LLVM's comma-separated feature list.
    """

    name: str
    triple: str
    cpu: str
    features: str
    vector_bits: int
    vector_registers: int
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    l3_bytes: int = 8 << 20
    masked_memory: bool = False

    def vector_lanes(self, dtype: str) -> int:
        """Returns how many elements of a dtype one vector register holds."""
        return max(1, self.vector_bits // max(8, bits(dtype)))

    def has(self, feature: str) -> bool:
        """Whether the machine has a feature by LLVM's name, such as `avx512vnni`."""
        return self._instructions.has(feature)

    @property
    def _instructions(self) -> Instructions:
        return instructions_of(self.features)

    @property
    def multiplies_bf16(self) -> bool:
        """Whether products of `bf16` are faster than those of f32."""
        dots = self._instructions.dot("bf16", "bf16", self.vector_lanes("f32")) is not None
        return dots or self.tile_shape("bf16", "bf16") is not None

    def dot_lanes(self, data: str, weight: str) -> int:
        """Returns how many lanes of 32 bits sums of products of pairs of `bf16`, or of fours of
        `u8` and `i8`, are computed in; 0 where there is no quick way.
        """
        lanes = self.vector_lanes("f32")
        if (data, weight) == ("bf16", "bf16"):
            return lanes  # pairs are quickly taken apart, if need be
        return lanes if self._instructions.dot(data, weight, lanes) is not None else 0

    def tile_shape(self, data: str, weight: str) -> tuple[int, int, int] | None:
        """Returns rows, columns and depth (elements of a row of `data`) of the largest product that
        a matrix unit does at once; None where it has none of these operands.
        """
        if not self._instructions.tile_product(data, weight):
            return None
        return 16, 16, 64 * 8 // bits(data)

    def __repr__(self) -> str:
        vectors = f"{self.vector_bits}-bit vectors, {self.vector_registers} registers"
        return f"<Target {self.name}: {self.cpu}, {vectors}>"

    def _repr_html_(self) -> str:
        shown = {f.name: markup.code(str(getattr(self, f.name))) for f in fields(self)}
        return markup.framed([markup.head(self.name, "target"), markup.facts(shown)])

    @property
    def key(self) -> str:
        """All that native code may depend on: every field, as schedules may read any."""
        return "|".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))


_initialized: Final[list[bool]] = []


def initialize_llvm() -> None:
    """Makes LLVM's native target known, once."""
    if not _initialized:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        _initialized.append(True)


def _cache_bytes(index: int, default: int) -> int:
    path = Path(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size")
    try:
        text = system_text(path).strip()
        return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]]
    except (OSError, ValueError, KeyError):
        return default


@cache
def host() -> Target:
    """Returns this machine."""
    initialize_llvm()
    flags = llvm.get_host_cpu_features()
    if not (flags.get("amx-tile") and matrix_tiles_permitted()):
        for feature in [f for f in flags if f.startswith("amx-")]:
            flags[feature] = False
    features = flags.flatten()
    if flags.get("avx512f") and flags.get("avx512vl") and flags.get("avx512bw"):
        vector_bits, registers = 512, 32
    elif flags.get("avx2"):
        vector_bits, registers = 256, 16
    else:
        vector_bits, registers = 128, 32 if "aarch64" in llvm.get_default_triple() else 16
    return Target(
        name="cpu",
        triple=llvm.get_default_triple(),
        cpu=llvm.get_host_cpu_name(),
        features=features,
        vector_bits=vector_bits,
        vector_registers=registers,
        l1_bytes=_cache_bytes(0, 32 << 10),
        l2_bytes=_cache_bytes(2, 512 << 10),
        l3_bytes=_cache_bytes(3, 8 << 20),
        masked_memory=bool(flags.get("avx512vl")),
    )


_AVX512: Final = ",".join(
    f"+{name}"
    for name in (
        "avx2", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl", "bmi", "bmi2", "f16c",
        "fma", "lzcnt", "movbe", "popcnt",
    )
)  # fmt: skip
_NAMED: Final = {
    "cpu-avx512": Target(
        "cpu-avx512", "x86_64-unknown-linux-gnu", "x86-64-v4", _AVX512, 512, 32, 32 << 10, 1 << 20,
        masked_memory=True,
    ),
    "cpu-avx2": Target(
        "cpu-avx2", "x86_64-unknown-linux-gnu", "haswell", "", 256, 16, 32 << 10, 256 << 10
    ),
    "cpu-sse": Target(
        "cpu-sse", "x86_64-unknown-linux-gnu", "x86-64", "", 128, 16, 32 << 10, 256 << 10
    ),
    "cpu-neon": Target(
        "cpu-neon", "aarch64-unknown-linux-gnu", "generic", "", 128, 32, 64 << 10, 512 << 10
    ),
}  # fmt: skip


def target_names() -> tuple[str, ...]:
    """Returns the names that `target_of` knows, this machine's first."""
    return ("cpu", *sorted(_NAMED))


def target_of(target: str | Target) -> Target:
    """Returns the target of a name: `cpu` is this machine.

    Errors: I010 for an unknown name.
    """
    if isinstance(target, Target):
        return target
    if target == "cpu":
        return host()
    if target in _NAMED:
        return _NAMED[target]
    raise InputError(
        "I010", f"no target {target!r}", hint=f"targets are {', '.join(target_names())}"
    )
