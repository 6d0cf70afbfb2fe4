"""Writes `docs/policy.md` from the thresholds of `clew.cost.policy`.

python tools/policy.py           writes the page
python tools/policy.py --check   fails if the page is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from clew.cost.policy.facts import Value
from clew.cost.policy.table import Threshold, subjects, thresholds

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "policy.md"
_HEAD: Final = """\
# Thresholds

Passes, schedule rules and the CPU backend choose by the numbers below: how large a gain a cost
model must promise, how many rows make it worth packing a matrix, how much of a cache a band may
take. All of them are in `src/clew/cost/policy/`, and `make lint` rejects others
(`tools/thresholds.py`). They are the same on all machines; what work costs on a machine is measured
([machines](machine.md)).

*Tuned* thresholds set the default or the options of a choice that the [tuner](tune.md) makes for
each kernel. *Measured* names the CPUs on which a value was measured, if that was recorded.

`tools/policy.py` writes this page.
"""


def page() -> str:
    """Returns the text of `docs/policy.md`."""
    lines = [_HEAD.rstrip("\n")]
    table = thresholds()
    for subject, about in subjects().items():
        title = subject.capitalize()
        text = about.removeprefix(f"{title}: ")
        lines += ["", f"## {title}", "", text[0].upper() + text[1:], ""]
        lines += [
            "| name | value | unit | reason | tuned | measured |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_row(each) for each in table if each.subject == subject]
    return "\n".join(lines) + "\n"


def _row(threshold: Threshold) -> str:
    facts = threshold.facts
    cells = (
        f"`{threshold.name}`", _shown(facts.value), facts.unit, facts.reason,
        "yes" if facts.tunable else "", facts.measured,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _shown(value: Value) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def main() -> None:
    """Writes or checks the page."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit("docs/policy.md is not what the source says: run python tools/policy.py")


if __name__ == "__main__":
    main()
