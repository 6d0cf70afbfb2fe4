"""Output of the scripts: tables to stdout, progress to stderr, and tables in documents."""

import datetime
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from clew.machine.target import Target, host
from clew.support.settings import usable_cpus

console = Console(width=None if sys.stdout.isatty() else 120)
progress = Console(stderr=True)

# The LLVM features that affect the choice of kernels.
_FEATURES = ("avx2", "fma", "avx512f", "avx512vnni", "avx512bf16", "amx-bf16", "amx-int8")


def circumstances(target: Target | None = None) -> str:
    """Returns the date and the machine's relevant features, without its name."""
    day = datetime.date.today().isoformat()
    return f"Measured on {day}: {machine(target or host())}."


def machine(target: Target) -> str:
    """Returns the machine's relevant features, without its name."""
    features = [f for f in _FEATURES if target.has(f)]
    return (
        f"{_cores()}, {target.vector_bits}-bit vectors, L1 {target.l1_bytes >> 10} KiB, "
        f"L2 {target.l2_bytes >> 10} KiB a core; {', '.join(features) or 'no feature of interest'}"
    )


def _cores() -> str:
    count = usable_cpus()
    return f"{count} core{'s' * (count > 1)}"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0) -> str:
    """Returns a table. If `numbers` is given, all columns after the first `numbers` hold
    numbers.
    """
    aligned = ["---:" if numbers and n >= numbers else "---" for n in range(len(columns))]
    lines = [columns, aligned, *rows]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in lines)


def fill(document: Path, section: str, text: str) -> None:
    """Puts text between `<!-- begin SECTION -->` and `<!-- end SECTION -->` of a document; appends
    the markers, or creates the document, if missing.
    """
    begin, end = f"<!-- begin {section} -->", f"<!-- end {section} -->"
    whole = document.read_text() if document.exists() else ""
    filled = f"{begin}\n{text.strip()}\n{end}"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if pattern.search(whole):
        whole = pattern.sub(lambda _: filled, whole)
    else:
        whole = f"{whole.rstrip()}\n\n{filled}\n".lstrip()
    document.write_text(whole)
