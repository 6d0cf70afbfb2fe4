"""The machine to compile for: its units, its caches, and the costs of work on it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import llvmlite.binding as llvm

from clew.ir.types import bits
from clew.machine.costs import DEFAULTS, Costs
from clew.machine.instructions import DOTS, TILE_PRODUCTS, Instructions, instructions_of
from clew.machine.kept import kept_costs, kept_rates
from clew.machine.rates import Rates, described_rates
from clew.machine.units import TILE_ROWS, CacheLevel, DotUnit, TileUnit, VectorUnit, tile_depth
from clew.support import markup
from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.system import system_text
from clew.support.tiles import matrix_tiles_permitted

HERE: Final = "cpu"
"""The name of this machine as a target."""
_HALF_LINE_BITS: Final = 256


@dataclass(frozen=True, repr=False)
class Target:
    """A machine to compile for.

    `vector_bits` and `vector_registers` limit register tiles; the cache sizes (in bytes; L1 and L2
    per core) limit blocks. `features` is LLVM's comma-separated feature list. `costs` are the costs
    of work on a core, which passes use.

    Native code may depend on any field, so `key` includes all of them.
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
    costs: Costs = DEFAULTS

    def vector_lanes(self, dtype: str) -> int:
        """Returns the number of elements of a dtype in one vector register."""
        return max(1, self.vector_bits // max(8, bits(dtype)))

    def has(self, feature: str) -> bool:
        """Whether the machine has a feature by LLVM's name, such as `avx512vnni`."""
        return self._instructions.has(feature)

    @property
    def has_half_lines(self) -> bool:
        """Whether a vector is half of a cache line, as with AVX2. Some thresholds, measured on such
        machines, are for them only.
        """
        return self.vector_bits == _HALF_LINE_BITS

    @property
    def permutes_bytes(self) -> bool:
        """Whether an instruction takes any of 128 bytes in two vectors."""
        return bool(self._instructions.permutation_of_bytes)

    @property
    def is_microcontroller(self) -> bool:
        """Whether programs have kilobytes of memory and read constants from flash, as on Arm's
        M profile.
        """
        return self.triple.startswith("thumb")

    @property
    def pointer_bytes(self) -> int:
        """The size of an address."""
        return 8 if "64" in self.triple.partition("-")[0] else 4

    @property
    def _instructions(self) -> Instructions:
        return instructions_of(self.features)

    @property
    def vectors(self) -> VectorUnit:
        """The vector registers."""
        return VectorUnit(self.vector_bits, self.vector_registers, self.masked_memory)

    @property
    def dot_units(self) -> tuple[DotUnit, ...]:
        """The profitable dot-product instructions, at full vector width."""
        lanes, found = self.vector_lanes("f32"), []
        for data, weight in DOTS:
            dot = self._instructions.dot(data, weight, lanes, pairs_fit=True)
            if dot is not None:
                found.append(DotUnit(data, weight, lanes, short_pairs=bool(dot.pairs)))
        return tuple(found)

    @property
    def tile_units(self) -> tuple[TileUnit, ...]:
        """The products of the matrix unit; empty without one."""
        shapes = [(data, weight, self.tile_shape(data, weight)) for data, weight in TILE_PRODUCTS]
        return tuple(TileUnit(data, weight, *s) for data, weight, s in shapes if s is not None)

    @property
    def caches(self) -> tuple[CacheLevel, ...]:
        """The caches, nearest first."""
        sizes = {"L1": self.l1_bytes, "L2": self.l2_bytes, "L3": self.l3_bytes}
        return tuple(CacheLevel(name, size, name == "L3") for name, size in sizes.items())

    def dot_lanes(self, data: str, weight: str, *, pairs_fit: bool = False) -> int:
        """Returns the number of 32-bit lanes for sums of products of pairs of `bf16` or `i16`, or
        of groups of four `u8` and `i8`; 0 if there is no fast way. `pairs_fit` promises that 16
        bits hold the sum of any two products.
        """
        lanes = self.vector_lanes("f32")
        if (data, weight) == ("bf16", "bf16"):
            return lanes  # pairs are quick to unpack if needed
        found = self._instructions.dot(data, weight, lanes, pairs_fit=pairs_fit)
        return lanes if found is not None else 0

    def tile_shape(self, data: str, weight: str) -> tuple[int, int, int] | None:
        """Returns rows, columns and depth (elements of a row of `data`) of the largest product that
        a matrix unit computes at once; None if it does not support these operands.
        """
        if not self._instructions.tile_product(data, weight):
            return None
        return TILE_ROWS, TILE_ROWS, tile_depth(data)

    def __repr__(self) -> str:
        vectors = f"{self.vector_bits}-bit vectors, {self.vector_registers} registers"
        return f"<Target {self.name}: {self.cpu}, {vectors}>"

    def _repr_html_(self) -> str:
        shown = {f.name: markup.code(str(getattr(self, f.name))) for f in fields(self)}
        return markup.framed([markup.head(self.name, "target"), markup.facts(shown)])

    @property
    def key(self) -> str:
        """Every field as text: everything that native code may depend on."""
        return "|".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))

    @property
    def identity(self) -> str:
        """A hash of the description without its costs, which identifies the machine of a cost
        table.
        """
        described = replace(self, costs=DEFAULTS).key
        return hashlib.blake2b(described.encode(), digest_size=12).hexdigest()

    def to_record(self) -> dict[str, Any]:
        """Returns the fields as JSON objects."""
        return asdict(self)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Target:
        """Returns the target written by `to_record`.

        Errors: I290 for invalid costs; TypeError for other fields.
        """
        costs = Costs.of_record(record.get("costs", {}))
        return cls(**{**record, "costs": costs})


_initialized: Final[list[bool]] = []


def initialize_llvm() -> None:
    """Initializes LLVM's native target, once."""
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
    """Returns this machine, with the costs measured by `clew machine`, if any."""
    described = describe_host()
    return replace(described, costs=kept_costs(described.identity))


def rates_of(target: Target) -> tuple[Rates, bool]:
    """Returns the rates of a target's cores, and whether they were measured. Those of this machine
    may have been; all others follow from the description.
    """
    kept = kept_rates(target.identity) if target.name == HERE else None
    if kept is not None:
        return kept, True
    return described_rates(target.vector_bits, target.costs), False


def describe_host() -> Target:
    """Returns this machine with default costs."""
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
        name=HERE,
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
_PLAIN: Final = {
    "cpu-avx512": Target(
        "cpu-avx512", "x86_64-unknown-linux-gnu", "x86-64-v4", _AVX512, 512, 32, 32 << 10, 1 << 20,
        masked_memory=True,
    ),
    "cpu-avx2": Target(
        "cpu-avx2", "x86_64-unknown-linux-gnu", "haswell", "+avx2,+fma", 256, 16, 32 << 10,
        256 << 10,
    ),
    "cpu-sse": Target(
        "cpu-sse", "x86_64-unknown-linux-gnu", "x86-64", "+sse2", 128, 16, 32 << 10, 256 << 10
    ),
    "cpu-neon": Target(
        "cpu-neon", "aarch64-unknown-linux-gnu", "generic", "", 128, 32, 64 << 10, 512 << 10
    ),
    "x86-64-v2": Target(
        "x86-64-v2", "x86_64-unknown-linux-gnu", "x86-64-v2",
        "+cx16,+popcnt,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3", 128, 16, 32 << 10, 256 << 10,
    ),
    "x86-64-v3": Target(
        "x86-64-v3", "x86_64-unknown-linux-gnu", "x86-64-v3",
        "+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+popcnt", 256, 16, 32 << 10, 256 << 10,
    ),
    "x86-64-v4": Target(
        "x86-64-v4", "x86_64-unknown-linux-gnu", "x86-64-v4", _AVX512, 512, 32, 32 << 10, 1 << 20,
        masked_memory=True,
    ),
    "aarch64": Target(
        "aarch64", "aarch64-unknown-linux-gnu", "generic", "+neon", 128, 32, 64 << 10, 512 << 10
    ),
    "riscv64": Target(
        "riscv64", "riscv64-unknown-linux-gnu", "generic-rv64", "+a,+c,+d,+f,+m", 64, 32, 32 << 10,
        128 << 10,
    ),
    "riscv64+v": Target(
        "riscv64+v", "riscv64-unknown-linux-gnu", "generic-rv64", "+a,+c,+d,+f,+m,+v", 128, 32,
        32 << 10, 512 << 10,
    ),
    "armv7": Target(
        "armv7", "armv7-unknown-linux-gnueabihf", "cortex-a7", "+neon,+vfp4", 128, 16, 32 << 10,
        256 << 10,
    ),
    "cortex-m4": Target(
        "cortex-m4", "thumbv7em-unknown-none-eabihf", "cortex-m4", "+dsp,+vfp4d16sp", 64, 16,
        16 << 10, 64 << 10,
    ),
    "cortex-m7": Target(
        "cortex-m7", "thumbv7em-unknown-none-eabihf", "cortex-m7", "+dsp,+fp-armv8d16", 64, 16,
        32 << 10, 256 << 10,
    ),
    "cortex-m55": Target(
        "cortex-m55", "thumbv8.1m.main-unknown-none-eabihf", "cortex-m55", "+mve.fp", 128, 8,
        32 << 10, 256 << 10,
    ),
    "wasm32": Target(
        "wasm32", "wasm32-unknown-unknown", "generic", "+simd128", 128, 16, 32 << 10, 256 << 10
    ),
}  # fmt: skip
_NAMED: Final = {
    **_PLAIN,
    "x86-64-v4+amx": replace(
        _PLAIN["x86-64-v4"], name="x86-64-v4+amx", l2_bytes=2 << 20,
        features=f"{_AVX512},+amx-bf16,+amx-int8,+amx-tile,+avx512bf16,+avx512fp16,+avx512vnni",
    ),
    "aarch64+dotprod": replace(
        _PLAIN["aarch64"], name="aarch64+dotprod", features="+neon,+dotprod,+fullfp16"
    ),
    "aarch64+i8mm": replace(
        _PLAIN["aarch64"], name="aarch64+i8mm", features="+neon,+dotprod,+i8mm,+fullfp16"
    ),
}  # fmt: skip


def target_names() -> tuple[str, ...]:
    """Returns the names accepted by `target_of`, this machine's first."""
    return (HERE, *sorted(_NAMED))


def target_of(target: str | Target) -> Target:
    """Returns the target with a name; `cpu` is this machine.

    Errors: I010 for an unknown name.
    """
    if isinstance(target, Target):
        return target
    if isinstance(target, str) and target == HERE:
        return host()
    if isinstance(target, str) and target in _NAMED:
        return _NAMED[target]
    raise InputError(
        "I010", f"no target {target!r}", hint=f"targets are {', '.join(target_names())}"
    )
