"""The instructions beyond LLVM's own that a CPU has, by what they do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

# By operands' dtypes, unsigned first: the instruction's name in LLVM and its elements.
DOTS: Final = {
    ("bf16", "bf16"): ("llvm.x86.avx512bf16.dpbf16ps", "bfloat"),
    ("u8", "i8"): ("llvm.x86.avx512.vpdpbusd", "i8"),
}
_DOT_BITS: Final = (128, 256, 512)
# By operands' dtypes: the feature and the instruction.
TILE_PRODUCTS: Final = {
    ("bf16", "bf16"): ("amx-bf16", "llvm.x86.tdpbf16ps"),
    ("u8", "i8"): ("amx-int8", "llvm.x86.tdpbusd"),
    ("i8", "u8"): ("amx-int8", "llvm.x86.tdpbsud"),
    ("i8", "i8"): ("amx-int8", "llvm.x86.tdpbssd"),
    ("u8", "u8"): ("amx-int8", "llvm.x86.tdpbuud"),
}
_LANE_BITS: Final = 32


@dataclass(frozen=True)
class DotInstruction:
    """Adds the products of a group of neighbors to each lane of 32 bits: a function of LLVM's that
    takes sums and two vectors of `element`.
    """

    function: str
    element: str


@dataclass(frozen=True)
class Instructions:
    """What a CPU of LLVM's comma-separated `features` has."""

    features: str

    @cached_property
    def _listed(self) -> frozenset[str]:
        return frozenset(self.features.split(","))

    def has(self, feature: str) -> bool:
        """Whether a feature is there, by LLVM's name."""
        return f"+{feature}" in self._listed

    def dot(self, data: str, weight: str, lanes: int) -> DotInstruction | None:
        """Returns the instruction for sums of products in so many lanes; None where there is none,
        or others are quicker.

        Intel's CPUs with the one for `bf16` (which have `avx512fp16`, too) take four times as long
        for it as for a fused multiply-add. AVX-VNNI is the one for integers of 8 bits without
        AVX-512, up to 256 bits.
        """
        bits = lanes * _LANE_BITS
        if (data, weight) not in DOTS or bits not in _DOT_BITS:
            return None
        if data == "bf16":
            there = self.has("avx512bf16") and self.has("avx512vl") and not self.has("avx512fp16")
        else:
            wide = self.has("avx512vnni") and self.has("avx512vl")
            there = wide or (self.has("avxvnni") and bits <= _DOT_BITS[1])
        function, element = DOTS[data, weight]
        return DotInstruction(f"{function}.{bits}", element) if there else None

    def tile_product(self, data: str, weight: str) -> str:
        """Returns LLVM's function for products of tiles; "" where there is none."""
        feature, function = TILE_PRODUCTS.get((data, weight), ("", ""))
        return function if feature and self.has(feature) else ""

    @property
    def has_tiles(self) -> bool:
        """Whether there are registers of tiles."""
        return self.has("amx-tile")

    @property
    def rounds_to_bf16(self) -> bool:
        """Whether an instruction rounds to `bf16` (it takes denormals for zeros)."""
        return self.has("avx512bf16")

    def scale(self, lanes: int) -> str:
        """Returns LLVM's masked function for `x * 2**n` of f32; "" where there is none."""
        whole = self.has("avx512f") and lanes * _LANE_BITS == _DOT_BITS[-1]
        part = self.has("avx512vl") and lanes * _LANE_BITS in _DOT_BITS[:-1]
        return f"llvm.x86.avx512.mask.scalef.ps.{lanes * _LANE_BITS}" if whole or part else ""


@lru_cache(maxsize=64)
def instructions_of(features: str) -> Instructions:
    """Returns what a CPU of LLVM's feature string has."""
    return Instructions(features)
