"""How often slow tests run, from the durations of a run."""

from __future__ import annotations

import sweeps


def test_shares() -> None:
    lines = [
        "============= slowest durations =============",
        *(f"0.90s call     tests/a/test_x.py::test_many[{n}-x::y]" for n in range(12)),
        "0.10s setup    tests/a/test_x.py::test_many[0-x::y]",
        *(f"9.00s call     tests/a/test_x.py::test_long[{n}]" for n in range(9)),
        "5.00s call     tests/a/test_x.py::TestKind::test_one",
        "0.50s teardown tests/a/test_x.py::test_quick",
        "0.50s call     tests/b/test_y.py::test_of_a_swept_file[0]",
        "0.50s call     tests/b/test_y.py::test_of_a_swept_file[1]",
    ]
    before = {"a/test_x.py::test_quick": 2, "b/test_y.py": 8, "c/test_z.py::test_left_out": 3}
    assert sweeps.shares(lines, before) == {
        "a/test_x.py::test_many": 6,  # no more, so that two cases run
        "a/test_x.py::test_long": 4,
        "a/test_x.py::TestKind::test_one": 8,
        "a/test_x.py::test_quick": 3,
        "b/test_y.py": 8,
        "b/test_y.py::test_of_a_swept_file": 8,
        "c/test_z.py::test_left_out": 3,
    }


def test_entries_divide_the_turns() -> None:
    assert all(24 % share == 0 and share > 1 for share in sweeps.read().values())
