"""Writes `docs/exactness.md` from what passes and rules state about their results.

python tools/exactness.py           writes the page
python tools/exactness.py --check   fails if the page is out of date
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import clew.ops  # noqa: F401  (registers the operators)
from clew.passes.base import Pass
from clew.patterns.exactness import Exactness
from clew.pipelines import pipeline

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "exactness.md"

_HEAD: Final = """\
# Exactness

This page lists the steps of the compiler that change values. A step without a license keeps
all bits of all results, for NaN (except its payload), infinities, both zeros, subnormal numbers and
integers that wrap. A step that changes results needs a license, usually an optimization level:

- `opt_level=3` (the default) and `2`: results may be rounded differently from the model as it is
  written, as with other compilers and libraries.
- `opt_level=1` and `0`: arithmetic is computed as the model says.
- `precision=`: products of narrower floats. Nothing is narrowed without it.

## Operations

Operators have these values in kernels, in constants that are folded, and in references:

- `x + 0` is 0 for -0, so only `x + (-0)` and `x - 0` are `x`. Sums, means and products of matrices
  start at 0: the sum of -0 is 0, also of one number. Factors are multiplied and added in one step,
  rounded once.
- Of a 0 and a -0, `maximum` and `minimum` return the second operand, and a constant bound leaves
  the number: `clip(-0, min=0)` and `relu(-0)` are -0, as in ONNX Runtime and PyTorch. Maxima over
  axes or windows return either.
- Maxima, minima, `relu`, `clip` and `sign` keep NaN; the sign of -0 is 0. Comparisons with NaN are
  false, except `not_equal`.
- `power` has the results of C: the power 0.5 of -0 is 0 and that of minus infinity is infinite. For
  models from PyTorch, a constant exponent of 0.5 means the square root, as in eager.
- Integers wrap, also the negative and the absolute value of the least integer. A division by 0
  gives the dividend.
- Floats become integers by truncation; out of range, the result is that of x86, the lowest integer.
- Floats are rounded to nearest even. Values of `f16` and `bf16` are computed in f32 and rounded
  where products read them, where the model returns or casts them, and at the ends of branches and
  iterations; without `WidenHalves`, after every operator. Subnormal numbers are kept, except
  results of `bf16` on processors that round to it by one instruction, which gives zeros.

## Passes and rules

`tools/exactness.py` writes this page from the declarations in the source (`Exactness`).

| pass | rule | exact for | what differs | license |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Stated:
    """What a pass, or a rule of one, states."""

    of: Pass
    rule: str
    what: str
    exactness: Exactness


def stated() -> Iterator[Stated]:
    """Yields the statements of all passes of the pipeline and their rules, in order.

    Asserts that each is complete: a pass has rules or a statement, and a rule has a statement.
    """
    seen: set[str] = set()
    for step in (p for precision in ("f32", "bf16") for p in pipeline(3, precision)):
        if step.name in seen:
            continue
        seen.add(step.name)
        assert bool(step.rules) != (step.exactness is not None), f"{step.name}: rules or exactness"
        if step.exactness is not None:
            yield Stated(step, "", "", step.exactness)
        for rule in step.rules:
            assert rule.exactness is not None, f"{step.name}: {rule.name} states no exactness"
            what = " ".join((rule.build.__doc__ or "").split())
            yield Stated(step, rule.name, what, rule.exactness)


def license(found: Stated) -> str:
    """Returns what allows a step to change results."""
    if not found.exactness.differs:
        return "none needed"
    return found.exactness.license or f"level {found.of.opt_level}"


def page() -> str:
    """Returns the text of `docs/exactness.md`."""
    rows, whole = [], []
    for found in stated():
        if not found.rule and not found.exactness.differs:
            whole.append(f"`{found.of.name}`")
            continue
        name = f"`{found.rule}`: {_cell(found.what)}" if found.rule else "(all)"
        differs = _cell(found.exactness.differs) or "nothing"
        rows.append(
            f"| `{found.of.name}` | {name} | {_cell(found.exactness.exact_for)} | {differs} "
            f"| {license(found)} |"
        )
    end = f"These passes move or group operators and are exact: {', '.join(whole)}."
    lines = textwrap.wrap(end, 100, break_on_hyphens=False)
    return "\n".join([_HEAD.rstrip("\n"), *rows, "", *lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Writes or checks the page."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit("docs/exactness.md is not what the source says: run python tools/exactness.py")


if __name__ == "__main__":
    main()
