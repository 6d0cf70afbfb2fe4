"""Where ONNX Runtime or ONNX's reference is known to disagree with the standard's text.

One entry each: which engine, when (a narrow predicate on the first node that differs and what it was
given), why, and where the standard says so. The engine's results are then left aside. `UNDEFINED` is
what the standard leaves open: there the engines may differ as they like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fuzz import engines
from fuzz.case import Case
from fuzz.compare import _is_float
from fuzz.locate import Site, first_difference

ORT: Final = "onnxruntime"
REFERENCE: Final = "reference"
_ENGINES: Final = {ORT: engines.onnx_runtime, REFERENCE: engines.reference}


@dataclass(frozen=True)
class Disagreement:
    """What some engines do otherwise. `text` is the operator's page of the standard."""

    engines: tuple[str, ...]
    when: Callable[[Site], bool]
    reason: str
    text: str

    @property
    def link(self) -> str:
        """Where the standard says it."""
        return f"https://onnx.ai/onnx/operators/onnx__{self.text}.html"


def has_nan(value: Any) -> bool:
    """Whether an operand holds a NaN."""
    return (
        isinstance(value, np.ndarray)
        and _is_float(value)
        and bool(np.isnan(value.astype(np.float32)).any())
    )


KNOWN: Final[tuple[Disagreement, ...]] = (
    Disagreement(
        (ORT, REFERENCE),
        lambda s: s.is_a("ArgMax", "ArgMin", "Hardmax", "TopK", "Unique", "NonMaxSuppression") and has_nan(s.operands[0]),
        "the order of NaN among numbers is nowhere defined", "ArgMax",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: s.is_a("LpNormalization") and s.attribute("p", 2) == 1,
        "sums the elements, not their absolute values", "LpNormalization",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: s.is_a("AveragePool", "MaxPool", "LpPool") and s.attribute("ceil_mode", 0) == 1,
        "pads before the first element too when sizes are rounded up, and moves every window", "AveragePool",
    ),
)  # fmt: skip


def excuse(engine: str, case: Case) -> str:
    """Returns why an engine's results do not count in a case, nothing where they do."""
    site = first_difference(case, _ENGINES[engine])
    if site is None:
        return ""
    return next((d.reason for d in KNOWN if engine in d.engines and d.when(site)), "")
