from __future__ import annotations

from dataclasses import replace

import pytest

import performance
from harness.results import Moment, Results, Table

NOW = Moment("2026-02-01", "new", 500)
TABLE = Table(
    "1 thread",
    ["model", "clew, ms", "x, ms", "y, ms", "% of peak", "fastest peer ÷ clew", "error"],
    [
        ["a", "1.00", "2.00", "–", "50", "2.00", "1e-7"],
        ["b", "4.00", "9.00", "2.00", "40", "0.50", "1e-7"],
        ["c", "failed", "1.00", "1.00", "–", "–", "–"],
    ],
    note="FMA peak 9",
)
PEERS = Results("AVX2", "1 core", Moment("2026-01-01", "old", 480), [TABLE], "networks", "f32")
SUMMARY = "<!-- begin summary -->\n<!-- end summary -->\n"
PAGE = f"text\n{SUMMARY}<!-- begin one -->\nbefore\n<!-- end one -->\nmore\n"


def test_the_page_is_what_the_results_give() -> None:
    page = performance.PAGE.read_text(encoding="utf-8")
    made = performance.filled(page, performance.found(), performance.as_of())
    assert page == made, "run python benchmarks/performance.py"


def test_a_comparison_has_the_fastest_peer_and_the_summary_the_losers() -> None:
    page = performance.filled(PAGE, {"one": PEERS}, NOW)
    assert "AVX2, 2026-01-01, at `old`, 20 package commits ago; 1 core." in page
    assert "| b | 4.00 | 2.00 | 0.50 | 40 | 1e-7 |" in page
    assert "| c | failed | 1.00 | – | – | – |" in page
    assert (
        "| AVX2 | f32 | networks | 1 | 1 of 2 | 1.00 | b 0.50 | 2026-01-01 | `old` | 20 |" in page
    )
    assert page.startswith("text\n")
    assert "in these comparisons: AVX2 1 of 2." in page
    assert "before" not in page
    assert performance.filled(page, {"one": PEERS}, NOW) == page


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        (Moment("2026-01-01", "old", 399), "at `old`, 101 package commits ago"),
        (Moment("2026-01-01", "", 499), "at an unrecorded commit, at least 1 package commits ago"),
    ],
)
def test_old_tables_are_marked(measured: Moment, says: str) -> None:
    page = performance.filled(PAGE, {"one": replace(PEERS, measured=measured)}, NOW)
    assert f"**Old.** AVX2, 2026-01-01, {says}" in page
    assert "(old) |" in page


def test_results_without_a_section_are_an_error() -> None:
    with pytest.raises(AssertionError, match="no section for two"):
        performance.filled(PAGE, {"one": PEERS, "two": PEERS}, NOW)
