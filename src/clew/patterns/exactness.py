"""Statements of how the result of a rewrite differs from the value that it replaces."""

from __future__ import annotations

from typing import Final

from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Exactness:
    """For which values a rewrite keeps all bits (`exact_for`), and how other results `differ`.

    Payloads of NaN do not count. A rewrite that differs needs a license: the optimization level of
    its pass, unless `license` names another.
    """

    exact_for: str = "all values"
    differs: str = ""
    license: str = ""


EXACT: Final = Exactness()
"""Nothing is computed differently."""
ROUNDED: Final = Exactness("none", "rounding, signs of zeros, and overflow of intermediate results")
"""The same formula with other intermediate results."""
ROUNDED_ONCE: Final = Exactness("f32 and f64", "f16 and bf16 are rounded once, not twice")
"""One operator in place of two, between which results of half precision are rounded."""
REORDERED: Final = Exactness("integers", "the order of sums, and so their rounding")
"""The same products and sums in another order."""
EVALUATED: Final = Exactness(
    "arithmetic", "rounding of functions such as `exp`, which NumPy computes here"
)
"""Values that the compiler computes in place of kernels."""
