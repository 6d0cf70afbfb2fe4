"""The file that counts the outcomes of each operator's random cases, and why some are not equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tflite_suite.cases import FAMILIES, drawn
from tflite_suite.running import Outcome, outcome

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "tests" / "frontends" / "tflite" / "operators.txt"
UPDATE: Final = "python tools/tflite_operators.py --update"
CASES: Final = 32
KINDS: Final = ("equal", "close", "optimized", "step", "unsupported", "refused", "wrong")
_HEADER: Final = f"""\
# Outcomes of {CASES} drawn cases of each operator of TFLite in clew and LiteRT, by tflite_suite:
# equal; close (floats within the tolerance); optimized (agrees with LiteRT's optimized kernels, not
# with its reference kernels); step (codes within one); unsupported; refused by LiteRT.
# Written by `{UPDATE}`.
"""

NOTES: Final[Mapping[str, str]] = {
    "DIV": "16-bit codes: in floats, within one step",
    "EXP": "16-bit codes: within one step, from the last bit of the C library's exponential",
    "L2_NORMALIZATION": "codes: within one step; LiteRT uses integer square roots",
    "LOCAL_RESPONSE_NORMALIZATION": "windows as in LiteRT's optimized kernel; its reference kernel "
    "omits the last channel of each window",
    "LOG_SOFTMAX": "codes: within one step; LiteRT uses tables and integer logarithms",
    "REDUCE_PROD": "codes: within one step; LiteRT rounds after each factor",
    "RSQRT": "8-bit codes: within one step; LiteRT uses integer square roots",
    "SOFTMAX": "8-bit codes: within one step; another order of summation",
    "SUM": "signed codes not compared: LiteRT's kernel reads uninitialized memory",
    "RANDOM_UNIFORM": "generates other random numbers than LiteRT",
    "RANDOM_STANDARD_NORMAL": "generates other random numbers than LiteRT",
    "MULTINOMIAL": "generates other random numbers than LiteRT",
    "BITCAST": "not to or from booleans",
    "TFLite_Detection_PostProcess": "one class per box, one suppression for all classes",
}  # fmt: skip


def counts(op: str, numbers: Iterable[int], *, compiled: bool = False) -> Counter[str]:
    """Returns how many cases of an operator have each outcome."""
    return Counter(outcome(drawn(op, n), compiled=compiled).kind for n in numbers)


def outcomes(op: str, numbers: Iterable[int], *, compiled: bool = False) -> dict[int, Outcome]:
    """Returns the outcome of cases by number."""
    return {n: outcome(drawn(op, n), compiled=compiled) for n in numbers}


def read() -> dict[str, Counter[str]]:
    """Returns the counts of each operator in the file."""
    lines = [line.split() for line in FILE.read_text().splitlines() if line[:1] not in ("", "#")]
    return {
        op: Counter(dict(zip(rest[::2], map(int, rest[1::2]), strict=True))) for op, *rest in lines
    }


def write(known: Mapping[str, Counter[str]]) -> None:
    """Writes the file."""
    lines = [
        " ".join([op, *(f"{kind} {found[kind]}" for kind in KINDS if found[kind])])
        for op, found in sorted(known.items())
        if op in FAMILIES
    ]
    FILE.write_text(_HEADER + "\n".join(lines) + "\n")
