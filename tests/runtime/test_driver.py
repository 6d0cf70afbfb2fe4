from pathlib import Path

import llvmlite.binding as llvm
import pytest

from clew.codegen.driver.driver import EXPORTS, driver_text, supports_threads
from clew.codegen.worker import emit_object
from clew.runtime.cache import Cache
from clew.runtime.driver import driver, driver_object


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
