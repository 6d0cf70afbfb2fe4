from __future__ import annotations

from pathlib import Path

import pytest

import peers
import zoo
from clew.bench.measure import Figures, Measured
from clew.machine.probes.peak import FmaPeak
from harness import report, results
from harness.engines import Engine, Runner


def refuses(*_: object) -> Runner:
    raise RuntimeError("cannot\nat all")


RESULTS = [
    peers.Result(
        "a",
        1,
        1.0,
        Measured(
            (Figures("clew", median_ms=1.0, error=0.0), Figures("x", median_ms=4.0, error=0.0)),
            (100.0,),
        ),
    ),
    peers.Result(
        "b",
        1,
        1.0,
        Measured(
            (Figures("clew", median_ms=2.0, error=0.0), Figures("x", median_ms=2.0, error=0.0)),
            (100.0,),
        ),
    ),
    peers.Result("c", 1, 1.0, Measured((Figures("clew", failure="no"),), ())),
]


def test_the_default_models_are_of_the_zoo() -> None:
    assert set(peers.DEFAULT_MODELS.split(",")) <= set(zoo.names())
    assert peers._models("default") == peers.DEFAULT_MODELS.split(",")


def test_a_model_that_no_engine_handles_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine("clew", refuses, ())
    peak = FmaPeak()
    found = peers.measured("if_branches", 1, [engine], 1, peak, "f32")
    assert found.measured.figures == (Figures("clew", "RuntimeError: cannot"),)
    monkeypatch.setattr(zoo, "path", refuses)
    (row,) = peers.measured("if_branches", 1, [engine], 1, peak, "f32").measured.figures
    assert (row.engine, row.failure) == ("model", "RuntimeError: cannot")
    assert peers._is_wrong(row, 1.0)


def test_ratios_have_a_geometric_mean_and_a_least() -> None:
    assert peers.leads(RESULTS) == [("a", 4.0, "x"), ("b", 1.0, "x")]
    assert peers._summary(RESULTS) == (
        "geometric mean 2.00, least 1.00 (b), 2 of 2 models at least as fast"
    )
    assert peers._summary(RESULTS[2:]) == "no model that clew and a peer ran"


def test_tables_are_printed_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert peers._table(RESULTS, 1e-3).row_count == 5
    assert peers._leads_table(RESULTS).row_count == 2
    moment = results.Moment("2026-01-01", "abc", 3)
    monkeypatch.setattr(results.Moment, "now", lambda: moment)
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    results.record("peers-x", peers.tables(RESULTS), subject="networks", precision="f32")
    found = results.Results.read(tmp_path / "peers-x.json")
    (table,) = found.tables
    assert list(table.rows[0]) == ["a", "1.00", "4.00", "0", "4.00", "0.0e+00"]
    assert list(table.rows[2]) == ["c", "failed", "–", "–", "–", "–"]
    assert table.note == "FMA peak 100 GFLOP/s (median; best 100)"
    assert (found.subject, found.precision) == ("networks", "f32")
    assert found.measured == moment
    found.write(tmp_path / "again.json")
    assert results.Results.read(tmp_path / "again.json") == found


def test_a_peer_that_fails_is_no_fault_and_clew_is() -> None:
    assert not peers._is_wrong(Figures("x", failure="no"), 1.0)
    assert peers._is_wrong(Figures("clew", failure="no"), 1.0)
    assert peers._is_wrong(Figures("x", error=2.0), 1.0)
    assert not peers._is_wrong(Figures("clew"), 1.0)  # nothing to compare with


def test_sections_are_added_where_a_document_has_none(tmp_path: Path) -> None:
    page = tmp_path / "new.md"
    for text in ("one", "two"):
        report.fill(page, "s", text)
    report.fill(page, "t", "\\1 | x")
    assert page.read_text() == (
        "<!-- begin s -->\ntwo\n<!-- end s -->\n\n<!-- begin t -->\n\\1 | x\n<!-- end t -->\n"
    )


def test_markdown_tables_escape_bars_and_align_numbers() -> None:
    made = report.markdown(["a", "b"], [["x|y", "1"]], numbers=1)
    assert made == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |"


def test_circumstances_name_features_but_no_machine() -> None:
    text = report.circumstances()
    assert "-bit vectors" in text
    assert "cores" in text
