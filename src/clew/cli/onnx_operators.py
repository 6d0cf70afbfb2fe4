"""`clew ops --onnx`: support of ONNX operators, from a data file of the package."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from clew.cli.output import stdout
from clew.support.errors import InputError
from clew.support.system import package_text
from clew.support.tables import table

FILE: Final = "onnx_operators.json"
CONTRIB: Final = "com.microsoft"
Facts = dict[str, Any]


def read() -> dict[str, Any]:
    """Returns the data: the version of `onnx` that they describe, and facts by operator."""
    text = package_text("clew.cli", FILE)
    found: dict[str, Any] = json.loads(text)
    return found


def full_name(facts: Facts) -> str:
    """Returns an operator's name, with its domain unless that is ONNX's own."""
    return f"{facts['domain']}.{facts['name']}" if facts["domain"] else str(facts["name"])


def chosen(every: Sequence[Facts], name: str | None) -> list[Facts]:
    """Returns the operators with this name, ignoring case: first those whose full name (with
    domain) equals `name`, then those whose name equals it, then those whose full name contains it.
    So `conv` is ONNX's own even if another domain has one.

    Errors: I064 if there is none, with similar names.
    """
    if name is None:
        return list(every)
    wanted = name.lower()
    whole = [f for f in every if wanted == full_name(f).lower()]
    found = whole or [f for f in every if wanted == f["name"].lower()]
    found = found or [f for f in every if wanted in full_name(f).lower()]
    if not found:
        close = difflib.get_close_matches(name, [f["name"] for f in every], n=3, cutoff=0.5)
        raise InputError(
            "I064",
            f"no ONNX operator {name!r}",
            hint=f"did you mean {', '.join(close)}?" if close else "clew ops --onnx lists them",
        )
    return found


def support(facts: Facts) -> str:
    """Returns how an operator runs, in one to three words."""
    return "not supported" if facts["support"] == "none" else str(facts["support"])


def tests(facts: Facts) -> str:
    """Returns how many of its cases in ONNX's backend suite pass."""
    return f"{facts['passed']} of {facts['cases']}" if facts["cases"] else "none"


def show_all(every: Sequence[Facts]) -> None:
    """Prints a table with a row per operator."""
    made = table("operator", "versions", "runs", "tests", "not supported")
    for column in made.columns[:4]:
        column.no_wrap = True
    for facts in every:
        made.add_row(
            Text(full_name(facts)),
            Text(versions(facts)),
            Text(facts["support"].replace("none", "-")),
            Text(tests(facts), justify="right"),
            Text(lacking(facts)),
        )
    stdout().print(made)
    counted = [f for f in every if not f["deprecated"]]
    for whose, theirs in (("ONNX", False), ("ONNX Runtime", True)):
        part = [f for f in counted if f["domain"].startswith(CONTRIB) == theirs]
        known = sum(f["support"] != "none" for f in part)
        if part:
            stdout().print(Text(f"{known} of {len(part)} operators of {whose} are supported"))


def versions(facts: Facts) -> str:
    """Returns the oldest and newest version that changed an operator."""
    first, last = facts["versions"][0], facts["versions"][-1]
    return str(first) if first == last else f"{first} to {last}"


def lacking(facts: Facts) -> str:
    """Returns a short text on unsupported cases."""
    if facts["deprecated"]:
        return f"deprecated in version {facts['versions'][-1]}"
    if facts["support"] == "none":
        return facts["why"] or "not supported"
    return "; ".join(facts["refuses"])


def show_one(facts: Facts) -> None:
    """Prints all facts about an operator."""
    console = stdout()
    console.print(Text.assemble((full_name(facts), "bold"), f"  {support(facts)}"))
    lines = {
        "versions": ", ".join(map(str, facts["versions"])),
        "imported by": {
            "converter": "its own converter",
            "definition": "its function body in the ONNX standard",
            "none": "nothing",
        }[facts["by"]],
        "why": facts["why"],
        "types": " ".join(facts["dtypes"]),
        "tested with": " ".join(facts["tested"]),
        "tests passed": tests(facts),
        "refused": "; ".join(facts["refuses"]),
    }
    grid = Table.grid(padding=(0, 2))
    for label, text in lines.items():
        if text:
            grid.add_row(Text(label, style="dim"), Text(text))
    console.print(grid)
    for name, reason in facts["failing"].items():
        console.print(Text.assemble((name, "bold"), f" {reason}"))
