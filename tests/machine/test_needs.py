"""What code needs of a machine is what its kernels may use, no more."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
import zoo
from clew.api.loaded_model import load_compiled
from clew.machine.needs import MachineNeeds, check_machine, needs_of
from clew.machine.target import host
from clew.support.errors import ClewError

LINUX = "x86_64-unknown-linux-gnu"


def test_needs_are_the_features_that_code_may_use() -> None:
    needs = needs_of(LINUX, "cascadelake", "+avx2,-avx512f,+sgx,+amx-tile,+amx-fp16,+fma,+pku")
    assert needs == MachineNeeds(LINUX, "cascadelake", ("amx-tile", "avx2", "fma"))


def test_needs_of_a_named_cpu_are_what_it_implies() -> None:
    assert "avx2" in needs_of(LINUX, "haswell", "").features
    assert needs_of(LINUX, "x86-64", "") == MachineNeeds(LINUX, "x86-64", ())


def test_a_cpu_of_unknown_features_is_needed_itself() -> None:
    needs = needs_of(LINUX, "znver9", "")
    assert needs.same_cpu
    assert not needs_of(LINUX, "znver9", "+avx2").same_cpu


def test_this_machine_runs_what_is_compiled_for_it() -> None:
    target = host()
    needs = needs_of(target.triple, target.cpu, target.features)
    assert needs.features
    check_machine(needs)


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("C056", {"triple": "sparc-sun-solaris"}),
        ("C057", {"features": ("avx2", "warp-drive")}),
        ("C057", {"cpu": "znver9", "same_cpu": True}),
    ],
)
def test_other_machines_are_refused(code: str, changed: dict[str, Any]) -> None:
    fields = {"triple": host().triple, "cpu": host().cpu, "features": ()}
    with pytest.raises(ClewError, match=code) as caught:
        check_machine(MachineNeeds(**{**fields, **changed}))
    assert caught.value.hint


def test_tiles_that_the_system_keeps_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    if not host().has("amx-tile"):
        pytest.skip("this machine has no matrix tiles")
    monkeypatch.setattr("clew.machine.needs.matrix_tiles_permitted", lambda: False)
    with pytest.raises(ClewError, match=r"C057.*lacks amx-tile"):
        check_machine(MachineNeeds(host().triple, host().cpu, ("amx-tile",)))


@pytest.mark.parametrize("name", ["cpu-avx2", "cpu-sse"])
def test_a_model_for_an_older_cpu_runs_here(
    name: str, tmp_path: Path, runs_here: Callable[[Any], None]
) -> None:
    runs_here(name)
    compiled = clew.compile(zoo.path("if_branches"), target=name, threads=1)
    compiled.save(tmp_path / "older.clew")
    feed = zoo.inputs("if_branches")
    loaded = load_compiled(tmp_path / "older.clew", threads=1)
    for output, value in compiled.run(feed).items():
        np.testing.assert_array_equal(loaded.run(feed)[output], value)
