"""Chooses how often slow tests run, from the durations of a run of all tests.

    pytest -n 2 --durations=0 --durations-min=0.01 > durations.txt
    python tools/sweeps.py durations.txt           writes tests/sweeps.toml

Of a test with many cases, so many run at each commit that they take `CASES_SECONDS`, or two; a
test with few cases that takes long runs at one commit in two to eight. A test that the run left out
keeps its entry. `tests/conftest.py` reads the file.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).resolve().parents[1] / "tests" / "sweeps.toml"
CASES_SECONDS: Final = 0.6
MANY: Final = 5
_SHARES: Final = (1, 2, 3, 4, 6, 8, 12, 24)
_LEAST: Final = 2
"""Cases that run at each commit at least."""
_FEW: Final = ((4.0, 8), (2.0, 6), (1.0, 4), (0.5, 3), (0.25, 2))
"""Seconds of tests with few cases, and of how many commits one runs them."""
_LINE: Final = re.compile(r"\s*([\d.]+)s (?:call|setup|teardown)\s+tests/(\S+?::[\w:]+)(\[.*)?")
_HEAD: Final = """\
# One in so many cases of a test runs at each commit; of tests with few cases, all of them at one
# commit in so many. Files stand for their tests. Written by tools/sweeps.py.
[one_in]
"""


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("durations", type=Path, help="what pytest --durations=0 printed")
    lines = parser.parse_args().durations.read_text(encoding="utf-8").splitlines()
    chosen = shares(lines, read())
    entries = "".join(f'"{name}" = {chosen[name]}\n' for name in sorted(chosen))
    FILE.write_text(_HEAD + entries, encoding="utf-8")


def read() -> dict[str, int]:
    """Returns the entries of the file."""
    found: dict[str, int] = tomllib.loads(FILE.read_text(encoding="utf-8"))["one_in"]
    return found


def shares(lines: Iterable[str], before: Mapping[str, int]) -> dict[str, int]:
    """Returns of how many cases, or commits, one runs a test, for tests that do not always run."""
    seconds: dict[str, dict[str, float]] = {}
    for line in lines:
        if match := _LINE.match(line):
            cases = seconds.setdefault(match[2], {})
            case = match[3] or ""
            cases[case] = cases.get(case, 0.0) + float(match[1])
    found = dict(before)
    for name, cases in seconds.items():
        now = before.get(name, before.get(name.partition("::")[0], 1))
        many = len(cases) * now >= MANY and len(cases) > 1
        total = sum(cases.values()) * (now if many else 1)
        share = _of_cases(total, len(cases) * now) if many else _of_commits(total)
        if share > 1:
            found[name] = share
        elif name in found:
            del found[name]
    return found


def _of_cases(seconds: float, count: int) -> int:
    shares = [n for n in _SHARES if n == 1 or n * _LEAST <= count]
    return next((n for n in shares if seconds / n <= CASES_SECONDS), shares[-1])


def _of_commits(seconds: float) -> int:
    return next((share for least, share in _FEW if seconds >= least), 1)


if __name__ == "__main__":
    main()
