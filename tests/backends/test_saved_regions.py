"""Regions of a user's backend in saved models and in the cache."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends_npu import Npu, SavingNpu
from region_models import LAYERS, agree, compiled_for, inputs

import clew
from clew.ir.expr import Function
from clew.ir.parser import parse_module
from clew.support.errors import ClewError, ClewWarning
from random_graphs import close


def test_a_saved_model_holds_the_regions_of_a_backend_that_keeps_them(tmp_path: Path) -> None:
    compiled_for(SavingNpu()).save(tmp_path / "m.clew")
    with pytest.raises(ClewError) as caught:
        clew.load_compiled(tmp_path / "m.clew")
    assert caught.value.code == "C072"
    with pytest.raises(ClewError) as caught:
        clew.load_compiled(tmp_path / "m.clew", backends=[SavingNpu(key="2")])
    assert caught.value.code == "C072"
    assert "fc" in caught.value.layer
    npu = SavingNpu()
    loaded = clew.load_compiled(tmp_path / "m.clew", backends=[npu])
    agree(parse_module(LAYERS), loaded, inputs())
    assert (npu.compiled, npu.memory.into, npu.memory.out_of) == (0, 3, 2)


def test_a_model_is_not_saved_with_regions_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ClewError) as caught:
        compiled_for(Npu()).save(tmp_path / "m.clew")
    assert caught.value.code == "C071"
    assert "npu" in caught.value.message
    assert "fc" in caught.value.layer
    assert not (tmp_path / "m.clew").exists()


def test_the_key_tells_builds_in_the_cache_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))
    made = []
    for key in ("1", "1", "2"):
        npu = SavingNpu(key=key)
        compiled = compiled_for(npu, cache=True)
        agree(parse_module(LAYERS), compiled, inputs())
        made.append((compiled.from_cache, npu.compiled))
    assert made == [(False, 2), (True, 0), (False, 2)]


class Failing(SavingNpu):
    """An NPU that fails as `how` says: when it compiles, reads or runs a region."""

    limit_s = 0.2

    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.how = how

    def compile(self, region: Function, target: Any) -> Any:
        if self.how == "compile":
            raise RuntimeError("no kernel fits")
        return super().compile(region, target)

    def of_record(self, record: bytes) -> Any:
        made = super().of_record(record)
        if self.how == "slow read":
            time.sleep(5)

        def run(*tiles: Any) -> Any:
            if self.how == "slow run":
                time.sleep(5)
            if self.how == "run":
                raise RuntimeError("the device is gone")
            return made(*tiles)

        return run


def saved(path: Path, backend: clew.Backend, **options: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClewWarning)
        compiled_for(backend, **options).save(path / "m.clew")
    return path / "m.clew"


@pytest.mark.parametrize(("how", "code"), [("slow run", "I363"), ("run", "I361"), ("", "")])
def test_calls_of_a_loaded_model_are_watched(tmp_path: Path, how: str, code: str) -> None:
    loaded = clew.load_compiled(saved(tmp_path, Failing()), backends=[Failing(how)])
    if not code:
        agree(parse_module(LAYERS), loaded, inputs())
        return
    with pytest.raises(ClewError) as caught:
        loaded.run(inputs())
    assert (caught.value.code, caught.value.layer) == (code, "fc, act, sum")


def test_a_backend_that_does_not_read_its_region_is_told(tmp_path: Path) -> None:
    path = saved(tmp_path, Failing())
    with pytest.raises(ClewError, match=r"has not read matmul_relu_add after 0\.2 s") as caught:
        clew.load_compiled(path, backends=[Failing("slow read")])
    assert (caught.value.code, caught.value.layer) == ("C072", "fc, act, sum")


@pytest.mark.parametrize("how", ["run", "slow run"])
def test_a_saved_model_keeps_its_fallback(tmp_path: Path, how: str) -> None:
    path = saved(tmp_path, Failing(), fallback=True)
    loaded = clew.load_compiled(path, backends=[Failing(how)])
    rng = np.random.default_rng(5)
    plain = clew.compile(parse_module(LAYERS), cache=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            x, w = rng.standard_normal((4, 8), "f4"), rng.standard_normal((8, 8), "f4")
            for found, expected in zip(loaded(x, w), plain(x, w), strict=True):
                close(found, expected)
    assert ["on the CPU from now on" in str(w.message) for w in told] == [True, True]


def test_a_region_that_no_backend_compiled_is_saved_for_the_cpu(tmp_path: Path) -> None:
    loaded = clew.load_compiled(saved(tmp_path, Failing("compile"), fallback=True))
    agree(parse_module(LAYERS), loaded, inputs())


def test_a_build_with_a_fallback_does_not_come_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored build would neither warn of a region that moved, nor try its backend again."""
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))
    compiled_for(SavingNpu(), cache=True)
    for how, backend in (("compile", "cpu"), ("compile", "cpu"), ("", "npu")):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            # A separate key: otherwise, the region itself comes from the cache.
            failing = Failing(how)
            failing.key = how or "1"
            compiled = compiled_for(failing, cache=True, fallback=True)
        assert bool(told) is (how == "compile")
        assert {r.backend for r in compiled.regions} == {backend}
