"""The operators of torch's own tests: a list of those that pass, and a few of them run.

`python -m opinfo` runs all, and writes the list with `--update`.
"""

from __future__ import annotations

import pytest

from opinfo import passing
from opinfo.entries import Task, entries
from opinfo.pool import Options, check
from opinfo.quick import quicken
from opinfo.report import by_entry

# The list may grow. A lower number means that operators were lost.
LEAST = 575
# One of each kind of converter.
FEW = (
    Task("bincount", "i64"),
    Task("cummax", "f32"),
    Task("div:floor_rounding", "i64"),
    Task("fmod", "bf16"),
    Task("index_put", "f32"),
    Task("linalg.vector_norm", "f64"),
    Task("nn.functional.adaptive_max_pool2d", "f32"),
    Task("randn", "f32"),
    Task("scatter_reduce:mean", "i64"),
    Task("searchsorted", "f32"),
    Task("sum", "bool"),
)


def test_the_list_does_not_shrink():
    names = passing.read()
    assert len(names) >= LEAST
    assert len(set(names)) == len(names)
    unknown = set(names) - set(entries())
    assert not unknown, f"torch has no such entries: {sorted(unknown)}"


@pytest.mark.parametrize("task", FEW, ids=lambda t: f"{t.entry}-{t.dtype}")
def test_a_few(task):
    quicken()
    outcomes = check(task, Options(samples=2))
    found = by_entry([(task, outcomes)])
    assert found[task.entry].passes, [o for o in outcomes if o.reason]
