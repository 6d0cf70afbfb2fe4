"""The operators of torch's own tests: a list of those that pass, and a few of them run.

`python -m opinfo` runs all, and writes the list with `--update`.
"""

from __future__ import annotations

import pytest
import torch

from opinfo import passing
from opinfo.entries import Sample, Task, entries, samples_of
from opinfo.outcomes import Exact, _nearer
from opinfo.pool import Options, check
from opinfo.quick import quicken
from opinfo.report import by_entry

# The list may grow. A lower number means that operators were lost.
LEAST = 578
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


def single(task: Task, n: int = 0) -> Sample:
    return samples_of(task, None)[n]


def test_errors_that_roundings_explain():
    sample = single(Task("nn.functional.conv2d", "f32"), 1)
    want, exact = sample(*sample.inputs), Exact(sample)
    unit = torch.finfo(torch.float32).eps
    scale = exact.results[0].abs().max().item()
    assert _nearer(want + unit / 4 * scale, want, exact, 0)
    assert not _nearer(want + 1e-3 * scale, want, exact, 0)
    assert not _nearer(want.roll(1, -1), want, exact, 0)


def test_integers_and_dtypes_in_f64():
    sample = single(Task("fft.fft", "i64"))
    exact = Exact(sample)
    assert exact.results[0].dtype == torch.complex128
    assert 0 < exact.changed_by(1e-7, 0).max() < 1e-3
    tensors = torch.tensor(4.3, dtype=torch.bfloat16), torch.tensor(0.0, dtype=torch.bfloat16)
    entry = entries()["logspace:tensor_overload"]
    given = type(next(entry.sample_inputs("cpu", torch.bfloat16)))(
        tensors[0], args=(tensors[1], 2), kwargs={"dtype": torch.bfloat16}
    )
    power = Exact(Sample(entry, given)).results[0][0].item()
    assert power == pytest.approx(10 ** tensors[0].item(), rel=1e-12)
