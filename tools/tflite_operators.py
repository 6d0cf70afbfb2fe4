"""Random cases of TFLite operators in clew and in LiteRT: the ratchet file, and the docs page.

    python tools/tflite_operators.py                every operator: wrong cases, and the counts
    python tools/tflite_operators.py CONV_2D        these operators: every case that differs
    python tools/tflite_operators.py --compiled     with native kernels instead of NumPy
    python tools/tflite_operators.py --update       writes the ratchet file and the page
    python tools/tflite_operators.py --check        fails if the page is out of date

The exit code is 1 if a case is wrong.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import clew.frontends.tflite.loader  # noqa: F401  registers converters
from clew.frontends.tflite.file.options import OPERATORS
from clew.frontends.tflite.registry import CODES, CONVERTERS, ON_CODES
from tflite_suite import bodies, families, movement, ratchet  # noqa: F401  registers families
from tflite_suite.cases import FAMILIES, drawn

PAGE: Final = ratchet.ROOT / "docs" / "tflite-operators.md"
CELLS: Final = {
    **dict.fromkeys(("LSTM", "SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM"), "exact"),
    **dict.fromkeys(("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN"), "hybrid"),
    **dict.fromkeys(("BIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_LSTM"), "hybrid"),
}
"""Recurrent cells, whose converters themselves tell codes from floats."""
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
    lacking = sorted(set(plain) - have)
    parts = [
        "# TFLite operators",
        "",
        f"clew supports {len(have & set(plain))} of TFLite's {len(plain)} builtin operators, all "
        f"but {_listed(lacking)}; {len(have & set(hlo))} operators of StableHLO; and the custom "
        f"operators {_listed(custom)}. The table shows how each treats quantized tensors, and how "
        "its results compare with LiteRT's.",
        "",
        f"Of {compared} random cases, {total['equal']} are bit-exact with LiteRT's reference "
        f"kernels, {total['close']} have floats within the tolerance, {total['optimized']} agree "
        f"with LiteRT's optimized kernels instead, and {total['step']} have codes within one step. "
        f"`{ratchet.UPDATE}` runs the [cases](../tests/frontends/tflite/operators.txt) and writes "
        "this page.",
        "",
        "| column | meaning |",
        "|---|---|",
        "| codes | quantized tensors: *exact* (LiteRT's integer arithmetic), *moved* (passed on "
        "unchanged), *floats* (dequantized, computed in floats, quantized again), or *hybrid* "
        "(8-bit weights; float inputs are quantized row by row) |",
        "| equal | cases that are bit-exact with LiteRT's reference kernels, or agree with its "
        "optimized ones |",
        "| close | cases whose floats are within the tolerance |",
        "| one step | cases whose codes differ by at most one step |",
        "",
        "| operator | codes | equal | close | one step | remarks |",
        "|---|---|---|---|---|---|",
    ]
    shown = [op for op in builtin if op in have]
    parts += [_row(op, known.get(op, Counter())) for op in sorted(shown) + custom]
    return "\n".join([*map(_wrapped, parts), ""])


def _row(op: str, found: Counter[str]) -> str:
    usual = "exact" if ON_CODES.find(op) else "moved" if op in CODES else "floats"
    equal = found["equal"] + found["optimized"]
    cells = (
        op,
        CELLS.get(op, usual),
        *(str(n or "") for n in (equal, found["close"], found["step"])),
    )
    return f"| {' | '.join(cells)} | {ratchet.NOTES.get(op, '')} |"


def _listed(operators: Sequence[str]) -> str:
    names = [f"`{op}`" for op in operators]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _wrapped(line: str) -> str:
    return line if line.startswith("|") else textwrap.fill(line, 100, break_on_hyphens=False)


if __name__ == "__main__":
    sys.exit(main())
