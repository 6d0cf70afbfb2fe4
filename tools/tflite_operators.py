"""TFLite's operators, drawn, in clew and in LiteRT: a ratchet, and the page of docs.

    python tools/tflite_operators.py                every operator; complaints, and the counts
    python tools/tflite_operators.py CONV_2D        these operators, and the cases that differ
    python tools/tflite_operators.py --compiled     with native kernels instead of NumPy
    python tools/tflite_operators.py --update       writes the ratchet file and the page
    python tools/tflite_operators.py --check        fails if the page is out of date

The exit code is 1 if a case is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Final

import clew.frontends.tflite  # noqa: F401  registers converters
from clew.frontends.tflite.file.options import OPERATORS
from clew.frontends.tflite.registry import CODES, CONVERTERS, ON_CODES
from tflite_suite import families, movement, ratchet  # noqa: F401  registers families
from tflite_suite.cases import FAMILIES, drawn

PAGE: Final = ratchet.ROOT / "docs" / "tflite-operators.md"
NOT_OPERATORS: Final = ("CUSTOM", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES")


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("operator", nargs="*", help="operators (default: all)")
    parser.add_argument("--compiled", action="store_true", help="run native kernels")
    parser.add_argument("--cases", type=int, default=ratchet.CASES, help="cases of each operator")
    parser.add_argument("--update", action="store_true", help="write the ratchet file and the page")
    parser.add_argument("--check", action="store_true", help="check the page")
    options = parser.parse_args()
    if options.check:
        return 0 if PAGE.read_text() == page(ratchet.read()) else 1
    total, found = Counter[str](), dict[str, Counter[str]]()
    for op in options.operator or sorted(FAMILIES):
        results = ratchet.outcomes(op, range(options.cases), compiled=options.compiled)
        found[op] = Counter(result.kind for result in results.values())
        total += found[op]
        for n, result in results.items():
            told = options.operator and result.kind not in ("equal", "close", "refused")
            if told or result.kind == "wrong":
                print(f"{op}/{n} {drawn(op, n).dtypes}: {result.kind} {result.why}")
    print(" ".join(f"{kind} {total[kind]}" for kind in ratchet.KINDS if total[kind]))
    if options.update:
        known = ratchet.read() if options.operator else {}
        ratchet.write({**known, **found})
        PAGE.write_text(page(ratchet.read()))
    return 1 if total["wrong"] else 0


def page(known: Mapping[str, Counter[str]]) -> str:
    """Returns the page."""
    builtin = [op for op in OPERATORS if op not in NOT_OPERATORS]
    plain = [op for op in builtin if not op.startswith("STABLEHLO")]
    hlo = [op for op in builtin if op.startswith("STABLEHLO")]
    custom = sorted(op for op in CONVERTERS if op not in OPERATORS)
    have = {op for op in builtin if CONVERTERS.find(op)}
    total = sum(known.values(), Counter[str]())
    compared = sum(total[kind] for kind in ("equal", "close", "optimized", "step"))
    parts = [
        "# TFLite operators",
        "",
        "The operators of TFLite that clew supports. `python tools/tflite_operators.py --update` "
        "writes this",
        "page from the converters and the [drawn cases](../tests/frontends/tflite/operators.txt).",
        "",
        f"- {len(have & set(plain))} of {len(plain)} builtin operators, {len(have & set(hlo))} of "
        "StableHLO, and these custom ones:",
        f"  {', '.join(f'`{op}`' for op in custom)}.",
        f"- {compared} drawn cases were compared with LiteRT's reference kernels: "
        f"{total['equal']} are equal in",
        f"  all bits, {total['close']} are floats within the tolerance, {total['optimized']} agree "
        "with its optimized kernels instead,",
        f"  and {total['step']} are codes within one step.",
        "- *codes*: what happens to quantized tensors. *exact*: arithmetic of LiteRT's reference "
        "kernels.",
        "  *moved*: as they are. *numbers*: dequantized, computed in floats and quantized again.",
        "",
        "| operator | codes | equal | close | one step | remarks |",
        "|---|---|---|---|---|---|",
    ]
    shown = [op for op in builtin if op in have]
    parts += [_row(op, known.get(op, Counter())) for op in sorted(shown) + custom]
    lacking = sorted(set(plain) - have)
    parts += ["", f"Not supported: {', '.join(lacking)}; of StableHLO, all others.", ""]
    return "\n".join(_wrapped(line) for line in parts)


def _row(op: str, found: Counter[str]) -> str:
    codes = "exact" if ON_CODES.find(op) else "moved" if op in CODES else "numbers"
    equal = found["equal"] + found["optimized"]
    cells = (f"{op}", codes, *(str(n or "") for n in (equal, found["close"], found["step"])))
    return f"| {' | '.join(cells)} | {ratchet.NOTES.get(op, '')} |"


def _wrapped(line: str) -> str:
    if len(line) <= 100 or line.startswith("|"):
        return line
    indent = "  " if line.startswith(("- ", "  ")) else ""
    rows, row = [], ""
    for word in line.split(" "):
        if len(row) + 1 + len(word) > 100:
            rows.append(row)
            row = indent + word
        else:
            row = f"{row} {word}" if row else word
    return "\n".join([*rows, row])


if __name__ == "__main__":
    sys.exit(main())
