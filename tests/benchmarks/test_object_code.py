"""Versions are compared kernel by kernel; a version that is not changed has no differences."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from typer.testing import CliRunner

import object_code
import zoo
from harness.report import console
from object_code import Compared, compared, jobs, report


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}, Compared(2)),
        ({"a": "1", "b": "2"}, {"a": "3", "c": "2"}, Compared(2, ["a"], ["b"], ["c"])),
        ({"error": "U001"}, {"error": "U001"}, Compared(0, failed="U001")),
        ({"error": "U001"}, {"error": "U002"}, Compared(0, ["error"])),
        ({"a": "1"}, {"error": "U001"}, Compared(1, [], ["a"], ["error"])),
    ],
)
def test_kernels_are_compared(
    old: Mapping[str, str], new: Mapping[str, str], found: Compared
) -> None:
    assert compared(dict(old), dict(new)) == found


def test_the_last_line_sums_up() -> None:
    found = {"x": Compared(5, ["a", "b"]), "y": Compared(7), "z": Compared(0, failed="U001")}
    *_, line = report(found)
    assert (
        line
        == "3 builds, 12 kernels: 2 kernels differ, in 1 builds; 1 builds fail in both versions"
    )


def test_precisions_and_sizes_follow_from_the_model() -> None:
    names = "loop_recurrence,bert_tiny_dynamic,qdq_resnet_tiny"
    made = list(jobs(names, "cpu,cpu-avx2", "f32,bf16,int8"))
    of = {(job.model, job.precision, job.shapes is None) for job in made}
    assert of == {
        ("loop_recurrence", "f32", False),
        ("loop_recurrence", "bf16", False),
        *(("bert_tiny_dynamic", p, free) for p in ("f32", "bf16") for free in (False, True)),
        ("qdq_resnet_tiny", "int8", False),
    }
    assert len(made) == 2 * len(of)
    assert not zoo.dims("loop_recurrence")


def test_a_version_equals_itself() -> None:
    options = [".", ".", "--models", "loop_recurrence", "--targets", "cpu-avx2"]
    with console.capture() as shown:
        done = CliRunner().invoke(object_code.app, options)
    assert done.exit_code == 0, done.output
    assert "2 builds, " in shown.get()
    assert ": 0 kernels differ, in 0 builds; 0 builds fail" in shown.get()


def test_neither_a_folder_nor_a_revision() -> None:
    done = CliRunner().invoke(object_code.app, ["no-such-revision", "."])
    assert done.exit_code == 2
    assert "no-such-revision" in done.output
