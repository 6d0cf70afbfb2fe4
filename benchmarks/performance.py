"""Fills the tables of docs/performance.md from the files in `benchmarks/results`.

    python benchmarks/performance.py

A table stands between `<!-- begin NAME -->` and `<!-- end NAME -->`, where NAME is its file. The
ages of tables count commits to `src/clew` up to the checked-out one, which `as_of.json` keeps.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import geometric_mean
from typing import Final

import typer

from harness.report import markdown
from harness.results import FOLDER, ROOT, Moment, Results, Table

PAGE: Final = ROOT / "docs" / "performance.md"
OLD: Final = 100  # commits to the package
_RATIO, _ERROR, _PEAK = "fastest peer ÷ clew", "error", "% of peak"
_SUMMARY: Final = "summary"
_AS_OF: Final = "as_of"
_SECTION: Final = re.compile(r"<!-- begin ([\w-]+) -->\n.*?<!-- end \1 -->", re.DOTALL)
_KINDS: Final = ("AMX", "AVX-512", "AVX2")


def main() -> None:
    """Writes the page, with ages up to the checked-out commit."""
    now = Moment.now()
    (FOLDER / f"{_AS_OF}.json").write_text(json.dumps(asdict(now), indent=1) + "\n")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), found(), now), encoding="utf-8")


def found() -> dict[str, Results]:
    """Returns the results in the folder, by name."""
    files = sorted(file for file in FOLDER.glob("*.json") if file.stem != _AS_OF)
    return {file.stem: Results.read(file) for file in files}


def as_of() -> Moment:
    """Returns the commit up to which ages are counted."""
    return Moment(**json.loads((FOLDER / f"{_AS_OF}.json").read_text(encoding="utf-8")))


def filled(page: str, results: Mapping[str, Results], now: Moment) -> str:
    """Returns a page with its sections filled. Results without a section are an error."""

    def section(match: re.Match[str]) -> str:
        name = match[1]
        text = _summary(results, now) if name == _SUMMARY else _section(results[name], now)
        return f"<!-- begin {name} -->\n{text}\n<!-- end {name} -->"

    sections = {match[1] for match in _SECTION.finditer(page)}
    missing = sorted(results.keys() - sections)
    assert not missing, f"{PAGE.name} has no section for {', '.join(missing)}"
    return _SECTION.sub(section, page)


def age(measured: Moment, now: Moment) -> int:
    """Returns the number of commits to the package since a measurement."""
    return now.package_commits - measured.package_commits


def is_old(measured: Moment, now: Moment) -> bool:
    """Whether a table is marked: the compiler has changed much, or its commit is unknown."""
    return not measured.commit or age(measured, now) > OLD


def losers(table: Table) -> list[str]:
    """Returns the models that ran slower than under the fastest peer, slowest first."""
    ratios = _ratios(table)
    return [f"{m} {r:.2f}" for m, r in sorted(ratios.items(), key=lambda each: each[1]) if r < 1]


def _ratios(table: Table) -> dict[str, float]:
    column = table.columns.index(_RATIO)
    return {row[0]: float(row[column]) for row in table.rows if row[column] != "–"}


def _summary(results: Mapping[str, Results], now: Moment) -> str:
    columns = [
        "CPU", "precision", "networks", "threads", "at least as fast", "geometric mean",
        "slower than the fastest peer", "measured", "commit", "commits ago",
    ]  # fmt: skip
    rows = []
    compared = [r for r in results.values() if r.subject]
    for each in sorted(compared, key=lambda r: (_KINDS.index(r.cpu), r.precision)):
        for table in each.tables:
            ratios = _ratios(table)
            slower = losers(table)
            rows.append(
                [
                    each.cpu,
                    each.precision,
                    each.subject,
                    table.title.split()[0],
                    f"{len(ratios) - len(slower)} of {len(ratios)}",
                    f"{geometric_mean(ratios.values()):.2f}",
                    ", ".join(slower) or "none",
                    each.measured.date,
                    f"`{each.measured.commit}`" if each.measured.commit else "unrecorded",
                    _ago(each.measured, now),
                ]
            )
    counts = []
    for cpu in _KINDS:
        tables = [table for each in compared if each.cpu == cpu for table in each.tables]
        found = [ratio for table in tables for ratio in _ratios(table).values()]
        if found:
            counts.append(f"{cpu} {sum(ratio >= 1 for ratio in found)} of {len(found)}")
    lead = (
        f"clew was at least as fast as the fastest peer in these comparisons: {', '.join(counts)}."
    )
    until = f"Ages count commits to `src/clew` up to `{now.commit}` ({now.date})."
    return f"{textwrap.fill(lead, 100)}\n\n{markdown(columns, rows)}\n\n{until}"


def _ago(measured: Moment, now: Moment) -> str:
    least = "" if measured.commit else "at least "
    return f"{least}{age(measured, now)}{' (old)' if is_old(measured, now) else ''}"


def _section(each: Results, now: Moment) -> str:
    measured = each.measured
    commit = f"at `{measured.commit}`" if measured.commit else "at an unrecorded commit"
    old = "**Old.** " if is_old(measured, now) else ""
    ago = _ago(measured, now).removesuffix(" (old)")
    line = f"{old}{each.cpu}, {measured.date}, {commit}, {ago} package commits ago; {each.machine}."
    parts = [textwrap.fill(line, 100)]
    if each.subject:
        return "\n\n".join([*parts, *_comparison(each.tables)])
    for table in each.tables:
        title = f"**{table.title}**; " if table.title else ""
        parts += [textwrap.fill(f"{title}{table.note}", 100)] if title or table.note else []
        parts.append(markdown(table.columns, table.rows, table.names))
    return "\n\n".join(parts)


def _comparison(tables: Sequence[Table]) -> list[str]:
    """Returns one table for all numbers of threads: clew, the fastest peer, and their ratio."""
    peaks = "; ".join(f"{t.title}: {t.note}" for t in tables)
    columns, rows = ["model"], {row[0]: [row[0]] for row in tables[0].rows}
    for table in tables:
        head = f"{table.title}: " if len(tables) > 1 else ""
        columns += [f"{head}clew, ms", "peer, ms", "peer ÷ clew", _PEAK]
        for row in table.rows:
            rows[row[0]] += _cells(dict(zip(table.columns, row, strict=True)))
    errors = {row[0]: row[table.columns.index(_ERROR)] for table in tables for row in table.rows}
    cells = [[*row, errors[name]] for name, row in rows.items()]
    return [textwrap.fill(f"{peaks}.", 100), markdown([*columns, _ERROR], cells, 1)]


def _cells(row: Mapping[str, str]) -> list[str]:
    own, *peers = [text for column, text in row.items() if column.endswith(", ms")]
    times = [text for text in peers if text not in ("–", "failed")]
    return [own, min(times, key=float, default="–"), row[_RATIO], row[_PEAK]]


if __name__ == "__main__":
    typer.run(main)
