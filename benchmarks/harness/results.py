"""Results of the scripts as JSON files in `benchmarks/results`, from which `performance.py` writes
the tables of docs/performance.md.
"""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from clew.machine.target import Target, host
from harness.report import machine

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Table:
    """A table as it is printed. Columns after the first `names` hold numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1
    note: str = ""


@dataclass(frozen=True)
class Moment:
    """A commit, its date, and how many commits had changed `src/clew` up to it. `commit` is empty
    if it was not recorded; then the date is that of the commit that recorded the figures.
    """

    date: str
    commit: str
    package_commits: int

    @classmethod
    def now(cls) -> Moment:
        """Returns that of the checked-out commit, with today's date."""
        commit = _git("rev-parse", "--short=8", "HEAD")
        count = int(_git("rev-list", "--count", "HEAD", "--", "src/clew"))
        return cls(datetime.date.today().isoformat(), commit, count)


@dataclass(frozen=True)
class Results:
    """The tables of one section of the page, the machine, and when they were measured.

    `subject` and `precision` say what was compared with other engines; otherwise, they are empty.
    """

    cpu: str
    machine: str
    measured: Moment
    tables: Sequence[Table]
    subject: str = ""
    precision: str = ""

    @classmethod
    def read(cls, file: Path) -> Results:
        """Returns the results in a file."""
        data: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        tables = [Table(**each) for each in data["tables"]]
        return cls(**{**data, "measured": Moment(**data["measured"]), "tables": tables})

    def write(self, file: Path) -> None:
        """Writes a file that `read` reads."""
        data = asdict(self)
        tables = ",\n".join(_table_text(table) for table in data.pop("tables"))
        head = _json(data, indent=1).removesuffix("\n}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'{head},\n "tables": [\n{tables}\n ]\n}}\n', encoding="utf-8")


def record(name: str, tables: Sequence[Table], *, subject: str = "", precision: str = "") -> None:
    """Writes the tables of a section with this machine, this commit and the date."""
    here = host()
    found = Results(kind(here), machine(here), Moment.now(), tables, subject, precision)
    found.write(FOLDER / f"{name}.json")


def kind(target: Target) -> str:
    """Returns the kind of CPU, which decides the kernels: AMX, AVX-512 or AVX2."""
    if target.has("amx-bf16"):
        return "AMX"
    return "AVX-512" if target.has("avx512f") else "AVX2"


def _table_text(table: dict[str, Any]) -> str:
    """Returns a table with one line per row, which makes differences readable."""
    rows = ",\n".join(f"   {_json(row)}" for row in table.pop("rows"))
    return f'  {_json(table).removesuffix("}")}, "rows": [\n{rows}\n  ]}}'


def _json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()
