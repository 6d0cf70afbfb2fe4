"""Writes the facts about each ONNX operator: data for `clew ops --onnx`, and a page of docs.

    python tools/onnx_operators.py           writes both
    python tools/onnx_operators.py --check   fails if they are out of date

The numbers of passing cases come from the ratchet file of the backend suite: if they have changed,
run `tools/backend_suite.py --update` first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from clew.cli.onnx_operators import FILE, full_name, lacking, support, tests, versions
from clew.frontends.onnx.contrib.schemas import MICROSOFT
from onnx_suite import ratchet
from onnx_suite.operators import facts_of_all

DATA: Final = ratchet.ROOT / "src" / "clew" / "cli" / FILE
PAGE: Final = ratchet.ROOT / "docs" / "onnx-operators.md"
Facts = dict[str, Any]


def main() -> int:
    """Writes or checks the files."""
    wanted = texts()
    if "--check" in sys.argv[1:]:
        old = [p.name for p, text in wanted.items() if not p.exists() or p.read_text() != text]
        if old:
            print(f"not up to date: {', '.join(old)}; run python tools/onnx_operators.py")
        return 1 if old else 0
    for path, text in wanted.items():
        path.write_text(text)
    return 0


def texts() -> dict[Any, str]:
    """Returns the expected contents of each file."""
    every = facts_of_all(ratchet.read())
    lines = ",\n".join(json.dumps(f, ensure_ascii=False) for f in every)
    version = json.dumps(ratchet.onnx_version())
    return {
        DATA: f'{{"onnx": {version}, "operators": [\n{lines}\n]}}\n',
        PAGE: page(every),
    }


def page(every: Sequence[Facts]) -> str:
    """Returns the page."""
    live = [f for f in every if not f["deprecated"]]
    own = [f for f in live if not f["domain"].startswith(MICROSOFT)]
    theirs = [f for f in live if f["domain"].startswith(MICROSOFT)]
    known, more = (sum(f["support"] != "none" for f in part) for part in (own, theirs))
    known_cases = ratchet.read()
    passed = sum(w.startswith("passed") for w in known_cases.values())
    parts = [
        "# ONNX operators",
        "",
        "The ONNX operators that clew supports. `python tools/onnx_operators.py` writes this page "
        "from onnx",
        f"{ratchet.onnx_version()}, the converters, and the [backend "
        "suite](../tests/frontends/onnx/backend_suite.txt). `clew ops --onnx`",
        "prints the same, and `clew ops --onnx Conv` more about one operator.",
        "",
        f"- {known} of {len(own)} operators are supported, in all versions since opset 1.",
        f"- {more} of {len(theirs)} operators of ONNX Runtime (`{MICROSOFT}`), which its optimizer "
        "and",
        "  quantizers write; ONNX has no test cases of these.",
        f"- {passed} of {len(known_cases)} cases of `onnx.backend.test` pass.",
        "- *native*: kernels only. *host*: a NumPy function between kernels, for values other than "
        "tensors",
        "  and for data-dependent shapes.",
        "- *tests*: cases of the suite that contain the operator. *types*: those that the newest "
        "version",
        "  allows for the first input.",
        "",
    ]
    for domain in sorted({f["domain"] for f in every}):
        parts += [f"## {domain or 'ai.onnx'}", ""]
        parts += [
            "| operator | versions | runs | tests | types | not supported |",
            "|---|---|---|---|---|---|",
        ]
        listed = [f for f in every if f["domain"] == domain]
        refused = [f["name"] for f in listed if f["support"] == "none" and domain == MICROSOFT]
        parts += [_row(f) for f in listed if f["name"] not in refused]
        parts.append("")
        if refused:
            parts += [f"Not supported: {', '.join(refused)}.", ""]
    failing = {n: r for f in every for n, r in f["failing"].items()}
    if failing:
        parts += ["## Cases that do not pass", "", "| case | reason |", "|---|---|"]
        parts += [f"| {n} | {_cell(r)} |" for n, r in sorted(failing.items())]
        parts.append("")
    return "\n".join(parts)


def _row(facts: Facts) -> str:
    name = full_name(facts).removeprefix(f"{facts['domain']}.")
    cells = (
        name,
        versions(facts),
        support(facts)
        + (f": {facts['why']}" if facts["support"] == "host" and facts["why"] else ""),
        tests(facts),
        " ".join(facts["dtypes"]),
        lacking(facts),
    )
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main())
