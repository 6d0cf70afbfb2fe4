from collections.abc import Callable
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from clew.codegen.driver.call import call_text
from clew.codegen.driver.driver import EXPORTS, driver_text, supports_threads
from clew.codegen.worker import emit_object
from clew.machine.needs import has_steady_counter, process_triple
from clew.runtime import driver as module
from clew.runtime.cache import Cache
from clew.runtime.driver import (
    Baseline,
    begin_driver,
    driver,
    driver_object,
    native_object,
)


def test_the_driver_is_compiled_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    first = driver_object(cache)
    second = driver_object(cache)
    assert first == second
    assert cache.stats().hits == 1
    assert first.symbols == EXPORTS


def test_there_is_one_driver() -> None:
    assert driver() is driver()
    assert driver().supports_threads == supports_threads(llvm.get_process_triple())


@pytest.mark.parametrize(
    ("triple", "cpu", "threads"),
    [
        ("x86_64-unknown-linux-gnu", "x86-64", True),
        ("aarch64-unknown-linux-gnu", "generic", True),
        ("arm64-apple-darwin", "generic", False),
        ("riscv64-unknown-linux-gnu", "generic-rv64", False),
    ],
)
def test_it_is_written_for_several_machines(triple: str, cpu: str, threads: bool) -> None:
    assert emit_object(driver_text(triple), triple, cpu, "")
    assert supports_threads(triple) == threads


@pytest.mark.parametrize("triple", ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"])
def test_steps_are_timed_by_the_processors_counter_where_it_runs_steadily(triple: str) -> None:
    cpu = {"x86_64": "x86-64"}.get(triple.split("-")[0], "generic")
    assert emit_object(driver_text(triple, True), triple, cpu, "")
    assert driver_text(triple, True) != driver_text(triple)


def test_a_tick_is_as_long_as_the_clock_says() -> None:
    assert driver().ns_per_tick() == pytest.approx(driver().ns_per_tick(), rel=1e-3)
    assert driver().ns_per_tick() > 0
    assert driver().stamp_ns >= 0


def test_another_process_makes_what_the_cache_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, submitted = Cache(tmp_path), list[str]()
    monkeypatch.setattr(module, "default_cache", lambda: cache)
    monkeypatch.setattr(module, "_asked", [])
    kept = native_object(call_text(), (), cache)

    def submit(text: str, target: Baseline) -> Callable[[], bytes]:
        submitted.append(text)
        return lambda: emit_object(text, target.triple, target.cpu, target.features)

    for _ in range(2):
        begin_driver(submit)
    made = driver_object(cache)
    assert submitted == [driver_text(process_triple(), has_steady_counter())]
    assert made.data == cache.get(made.key) != kept.data
    assert not module._begun
