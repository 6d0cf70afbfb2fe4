"""How often blocks of LLVM text run."""

from __future__ import annotations

import pytest

from clew.codegen.artifact import EntryPoint
from clew.predict.frequencies import Frequencies, frequencies

_GUARDED = """
define void @kernel(ptr %args, ptr %scratch, i64 %begin, i64 %end, i64 %first, i64 %last) {
entry:
  br label %loop1
loop1:
  %i2 = phi i64 [ %begin, %entry ], [ %v20, %exit4 ]
  br label %loop3
loop3:
  %i5 = phi i64 [ 0, %loop1 ], [ %v18, %join8 ]
  %v6 = add i64 %i5, %i2
  %v7 = icmp slt i64 %v6, LIMIT
  br i1 %v7, label %if7, label %join8
if7:
  br label %loop9
loop9:
  %i10 = phi i64 [ 2, %if7 ], [ %v11, %loop9 ]
  %v11 = add i64 %i10, 3
  %v12 = icmp slt i64 %v11, 30
  br i1 %v12, label %loop9, label %exit13
exit13:
  br label %join8
join8:
  %v18 = add i64 %i5, 1
  %v19 = icmp slt i64 %v18, 16
  br i1 %v19, label %loop3, label %exit4
exit4:
  %v20 = add i64 %i2, 1
  %v21 = icmp slt i64 %v20, %end
  br i1 %v21, label %loop1, label %done
done:
  ret void
}
"""


def _read(limit: int, grid: int = 16) -> Frequencies:
    entry = EntryPoint("kernel", grid, 1.0)
    return frequencies(_GUARDED.replace("LIMIT", str(limit)), [entry])["kernel"]


def test_trips_follow_from_start_bound_and_step() -> None:
    assert _read(100).trips == {1: 16.0, 3: 16.0, 9: 10.0}
    assert _read(100, grid=5).trips[1] == 5.0


@pytest.mark.parametrize(("limit", "share"), [(100, 1.0), (0, 0.0), (16, 0.53), (8, 0.14)])
def test_guards_are_entered_as_often_as_their_counters_say(limit: int, share: float) -> None:
    found = _read(limit)
    assert found.shares["if7"] == pytest.approx(share, abs=0.1)
    assert found.shares["join8"] == 1.0
    assert found.shares["loop9"] == pytest.approx(found.shares["if7"])


def test_only_entry_points_are_read() -> None:
    assert frequencies(_GUARDED.replace("LIMIT", "1"), [EntryPoint("other", 1, 1.0)]) == {}


def test_unknown_conditions_count_half() -> None:
    text = _GUARDED.replace("icmp slt i64 %v6, LIMIT", "fcmp olt float %f, %g")
    found = frequencies(text, [EntryPoint("kernel", 16, 1.0)])["kernel"]
    assert found.shares["if7"] == pytest.approx(0.5, abs=0.15)
