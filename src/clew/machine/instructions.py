"""The special instructions of CPUs, by function."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Final

from clew.support.dataclass import dataclass

# By dtypes of operands, unsigned first: LLVM's name of the instruction, and its element type.
DOTS: Final = {
    ("bf16", "bf16"): ("llvm.x86.avx512bf16.dpbf16ps", "bfloat"),
    ("u8", "i8"): ("llvm.x86.avx512.vpdpbusd", "i8"),
    ("i16", "i16"): ("llvm.x86.avx512.vpdpwssd", "i16"),
}
# Products of pairs of i16 that are not added to a sum, by bits of the vector: the feature, and the
# name that LLVM gives the instruction.
_PAIRS: Final = {
    128: ("sse2", "llvm.x86.sse2.pmadd.wd"),
    256: ("avx2", "llvm.x86.avx2.pmadd.wd"),
    512: ("avx512bw", "llvm.x86.avx512.pmaddw.d.512"),
}
# Products of u8 and i8, added in pairs with saturation to 16 bits, likewise.
_SHORT_PAIRS: Final = {
    128: ("ssse3", "llvm.x86.ssse3.pmadd.ub.sw.128"),
    256: ("avx2", "llvm.x86.avx2.pmadd.ub.sw"),
    512: ("avx512bw", "llvm.x86.avx512.pmaddubs.w.512"),
}
# Architectures on which LLVM may call a function to round.
_CALL_TO_ROUND: Final = ("arm", "thumb", "riscv")
# From f32 to i32, by bits of the vector: the feature, and LLVM's names of truncation and rounding.
_TO_INTEGERS: Final = {
    128: ("sse2", "llvm.x86.sse2.cvttps2dq", "llvm.x86.sse2.cvtps2dq"),
    256: ("avx", "llvm.x86.avx.cvtt.ps2dq.256", "llvm.x86.avx.cvt.ps2dq.256"),
    512: ("avx512f", "llvm.x86.avx512.mask.cvttps2dq.512", "llvm.x86.avx512.mask.cvtps2dq.512"),
}
# Loads of 256 bits of floats under a mask in a vector register, by bits of an element.
_MASKED_LOADS: Final = {32: "llvm.x86.avx.maskload.ps.256", 64: "llvm.x86.avx.maskload.pd.256"}
_DOT_BITS: Final = (128, 256, 512)
_NEON_BITS: Final = 128
# By dtypes of operands: the feature and the instruction.
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
    """An instruction that adds the products of a group of neighbors to each 32-bit lane: an LLVM
    function of sums and two vectors of `element`. Unless it `accumulates`, the function takes no
    sums, and an addition follows. With `pairs`, that function first adds products of the vectors in
    pairs of 16 bits; `function` takes these sums, times 1. With `is_signed`, the function takes
    signed bytes only, so unsigned ones are shifted by 128.
    """

    function: str
    element: str
    accumulates: bool = True
    pairs: str = ""
    is_signed: bool = False


@dataclass(frozen=True)
class Instructions:
    """The instructions of a CPU with LLVM's comma-separated `features`."""

    features: str

    @cached_property
    def _listed(self) -> frozenset[str]:
        return frozenset(self.features.split(","))

    def has(self, feature: str) -> bool:
        """Whether the CPU has a feature, by LLVM's name."""
        return f"+{feature}" in self._listed

    def dot(
        self, data: str, weight: str, lanes: int, *, pairs_fit: bool = False
    ) -> DotInstruction | None:
        """Returns the instruction for sums of products in a number of lanes; None if there is none,
        or other instructions are faster.

        On Intel's CPUs (those that also have `avx512fp16`), the one for `bf16` takes four times as
        long as a fused multiply-add. AVX-VNNI is the one for integers without AVX-512, up to 256
        bits. Without either, an addition follows products of pairs of `i16`. Products of bytes are
        then added in pairs of 16 bits if `pairs_fit` promises that these hold all such sums. An
        `i8` beside `i16` is widened when it is loaded.
        """
        bits = lanes * _LANE_BITS
        if (data, weight) == ("i16", "i8"):
            weight = data
        if (data, weight, bits) == ("u8", "i8", _NEON_BITS) and self.has("i8mm"):
            return DotInstruction("llvm.aarch64.neon.usdot.v4i32.v16i8", "i8")
        if (data, weight, bits) == ("u8", "i8", _NEON_BITS) and self.has("dotprod"):
            return DotInstruction("llvm.aarch64.neon.sdot.v4i32.v16i8", "i8", is_signed=True)
        if (data, weight) not in DOTS or bits not in _DOT_BITS:
            return None
        function, element = DOTS[data, weight]
        if data == "bf16":
            there = self.has("avx512bf16") and self.has("avx512vl") and not self.has("avx512fp16")
        else:
            wide = self.has("avx512vnni") and self.has("avx512vl")
            there = wide or (self.has("avxvnni") and bits <= _DOT_BITS[1])
        if there:
            return DotInstruction(f"{function}.{bits}", element)
        feature, pairs = _PAIRS[bits]
        if data == "i16" and self.has(feature):
            return DotInstruction(pairs, element, accumulates=False)
        feature, short = _SHORT_PAIRS[bits]
        if data == "u8" and pairs_fit and self.has(feature):
            return DotInstruction(pairs, element, accumulates=False, pairs=short)
        return None

    def tile_product(self, data: str, weight: str) -> str:
        """Returns LLVM's function for products of tiles; "" if there is none."""
        feature, function = TILE_PRODUCTS.get((data, weight), ("", ""))
        return function if feature and self.has(feature) else ""

    @property
    def has_tiles(self) -> bool:
        """Whether the CPU has tile registers."""
        return self.has("amx-tile")

    @property
    def rounds_to_bf16(self) -> bool:
        """Whether an instruction rounds to `bf16` (it treats denormals as zeros)."""
        return self.has("avx512bf16")

    def to_integers(self, lanes: int, *, rounded: bool) -> str:
        """Returns LLVM's function from vectors of f32 to i32, truncated or rounded to even, which
        gives the lowest integer for numbers out of range; "" if there is none. That for 512 bits
        takes a mask and a rounding mode.
        """
        feature, cut, near = _TO_INTEGERS.get(lanes * _LANE_BITS, ("", "", ""))
        if not feature or not self.has(feature):
            return ""
        return near if rounded else cut

    @property
    def permutation_of_bytes(self) -> str:
        """LLVM's function that takes 64 of the 128 bytes in two vectors; "" if there is none."""
        return "llvm.x86.avx512.vpermi2var.qi.512" if self.has("avx512vbmi") else ""

    def permutation_of_words(self, lanes: int) -> str:
        """Returns LLVM's function that takes `lanes` of the f32 in two vectors; "" if there is
        none.
        """
        bits = lanes * _LANE_BITS
        there = self.has("avx512f") and bits == _DOT_BITS[-1]
        there = there or (self.has("avx512vl") and bits in _DOT_BITS[:-1])
        return f"llvm.x86.avx512.vpermi2var.ps.{bits}" if there else ""

    def masked_load(self, element_bits: int) -> str:
        """Returns LLVM's function that loads 256 bits of floats under a mask in another vector; ""
        if there is none, or masks have registers of their own.
        """
        there = (self.has("avx") or self.has("avx2")) and not self.has("avx512vl")
        return _MASKED_LOADS.get(element_bits, "") if there else ""

    @property
    def packs_integers(self) -> bool:
        """Whether integers are narrowed fastest by instructions that pack two vectors. AVX-512 has
        others; CPUs with dot products of bytes were not measured.
        """
        return self.has("avx2") and not (self.has("avx512bw") or self.has("avxvnni"))

    @property
    def multiplies_even_lanes(self) -> bool:
        """Whether an instruction multiplies the even lanes of `i32` to `i64`, in place."""
        return self.has("avx2")

    def scale(self, lanes: int) -> str:
        """Returns LLVM's masked function for `x * 2**n` of f32; "" if there is none."""
        whole = self.has("avx512f") and lanes * _LANE_BITS == _DOT_BITS[-1]
        part = self.has("avx512vl") and lanes * _LANE_BITS in _DOT_BITS[:-1]
        return f"llvm.x86.avx512.mask.scalef.ps.{lanes * _LANE_BITS}" if whole or part else ""


@lru_cache(maxsize=64)
def instructions_of(features: str) -> Instructions:
    """Returns the instructions of a CPU with LLVM's feature string."""
    return Instructions(features)


def rounds_by_call(triple: str) -> bool:
    """Whether rounding may call a C function. C99 has `rintf`; small C libraries lack `roundevenf`,
    which gives the same numbers in the default rounding mode.
    """
    return triple.startswith(_CALL_TO_ROUND)
