"""The file with the expected result of each case: passing, or the reason for a failure. A case that
passed must keep passing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import onnx

from onnx_suite.running import Outcome

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "tests" / "frontends" / "onnx" / "backend_suite.txt"
UPDATE: Final = "python tools/backend_suite.py --update"
_HEADER: Final = f"""\
# Cases of onnx.backend.test (onnx {{version}}) through clew.compile, one a line: passed, as native
# kernels only or with host operators, or excluded and why. A case that passed may never fail again.
# Written by `{UPDATE}`.
"""

# Cases that do not pass and are not meant to: starts of their keys, and why.
EXPLAINED: Final[Mapping[str, str]] = {
    "node/test_bernoulli": "random: expected are the numbers that numpy draws for one seed, which "
    "the standard leaves open",
    "node/test_resize_downsample_scales_linear_align_corners": "expected is a length before it is "
    "rounded; the standard's text and ONNX Runtime take the whole number",
    "node/test_resize_downsample_scales_cubic_align_corners": "expected is a length before it is "
    "rounded; the standard's text and ONNX Runtime take the whole number",
    "node/test_dft_inverse": "expected are the last bits of sums in f64 where f32 gives 0, with an "
    "absolute tolerance of 1e-7",
}


def words(key: str, result: Outcome) -> str:
    """Returns a case's outcome as the file writes it."""
    if result.passed or _differs(result):
        for start, why in EXPLAINED.items():
            if key.startswith(start):
                return f"excluded {why}"
    return result.text


def _differs(result: Outcome) -> bool:
    """Whether a case ran, and gave other numbers than are expected."""
    return result.reason.startswith("AssertionError")


def read() -> dict[str, str]:
    """Returns the words for each case by key."""
    lines = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    return {key: words for key, _, words in (line.partition(" ") for line in lines)}


def onnx_version() -> str:
    """Returns the version of `onnx` that the file's cases come from."""
    return FILE.read_text().partition("(onnx ")[2].partition(")")[0]


def write(known: Mapping[str, str]) -> None:
    """Writes the file."""
    body = "".join(f"{key} {words}\n" for key, words in sorted(known.items()))
    FILE.write_text(_HEADER.format(version=onnx.__version__) + body)


def complaint(before: str | None, now: Outcome) -> str | None:
    """Returns a complaint if a case's outcome is worse than in the file, else nothing."""
    if before is None:
        return f"a new case: {now.text}"
    if before.startswith("passed"):
        if not now.passed:
            return f"passed before; now {now.reason}"
        if before == "passed native" and now.how != "native":
            return f"ran as native kernels before; now also {', '.join(now.hosts)} on the host"
        if before != now.text:
            return f"better than before: {now.text}"
        return None
    if before.removeprefix("excluded ") in EXPLAINED.values():
        return None if now.passed or _differs(now) else f"fails in another way: {now.reason}"
    return "passes now" if now.passed else None
