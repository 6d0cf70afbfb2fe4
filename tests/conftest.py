"""What all tests share: a disk cache of their own, and no event loop from elsewhere.

It also keeps what is not tested cheap: compiled Python files and garbage collection.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest

# Several processes run the tests, and faults that tests plant in the compiler are in this one only.
os.environ.setdefault("CLEW_COMPILE_JOBS", "1")

# Before anything of clew is imported; processes that tests start inherit it.
CACHE = Path(__file__).parents[1] / ".cache" / "tests"
os.environ["CLEW_CACHE_DIR"] = str(CACHE)
os.environ["CLEW_TUNING"] = str(CACHE / "absent" / "tuning.db")  # no test makes the default file

# Tests start hundreds of processes that import clew, which takes twice the time from source. Where
# the environment forbids to keep compiled files (containers do), it is for these to be kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

from clew.machine.needs import check_machine, needs_of  # noqa: E402
from clew.machine.target import Target, target_of  # noqa: E402
from clew.runtime.cache import Cache  # noqa: E402
from clew.support.errors import ClewError  # noqa: E402
from clew.version import VERSION  # noqa: E402

# Collecting makes few cycles and some 400,000 objects that stay, which the collector would look
# through again and again, here and while tests run.
gc.disable()


# Parametrized tests of many similar cases (shapes, dtypes, targets, seeds), by file or test. The
# first case runs each time, and of the others one in so many: which ones rotates with the commit.
# The rest is marked exhaustive. Tests of fewer than `_MANY` cases are left alone, as are those
# with cases that are marked exhaustive where they are defined.
_MANY = 5
SWEEPS = {
    "backends/cpu/test_one_row.py::test_one_row_has_a_rule_of_its_own": 3,
    "backends/test_backends.py::test_random_placements_change_no_value": 2,
    "backends/vta/test_backend.py::test_random_networks": 2,
    "backends/vta/test_convolution.py::test_random_convolutions": 3,
    "backends/vta/test_pooled_convolution.py::test_random_layers_on_a_small_machine": 2,
    "backends/vta/test_pooled_convolution.py::test_windows": 2,
    "backends/vta/test_search.py::test_a_search_is_never_slower_than_the_estimate": 3,
    "browser/test_links.py::test_a_layer_lights_its_lines_in_four_panes": 2,
    "build/test_all_sizes.py": 2,
    "build/test_growing_stacks.py::test_drawn_loops_agree": 3,
    "build/test_in_place.py": 4,
    "codegen/test_arith.py": 2,
    "codegen/test_column_stages.py::test_stages_along_an_axis": 3,
    "codegen/test_conv_parts.py": 4,
    "codegen/test_dot_convs.py": 2,
    "codegen/test_dot_convs.py::test_values": 4,
    "codegen/test_indices.py::test_an_index_of_any_dtype": 3,
    "codegen/test_lane_patterns.py": 3,
    "codegen/test_moving.py": 2,
    "codegen/test_moving.py::test_any_transpose": 4,
    "codegen/test_parts.py": 2,
    "codegen/test_parts.py::test_native": 4,
    "codegen/test_products.py::test_native_products": 4,
    "codegen/test_separable.py": 2,
    "codegen/test_separable.py::test_gives_the_bits_of_kernels_apart": 4,
    "codegen/test_shared.py::test_random_shared_parts_compute_what_they_say": 2,
    "codegen/test_shapes.py::test_agrees_with_the_references": 3,
    "codegen/test_sizes.py::test_samples_with_names_for_their_sizes": 6,
    "codegen/test_storage.py": 2,
    "codegen/test_tables.py::test_places_and_weights_of_regions": 3,
    "codegen/test_targets.py": 2,
    "codegen/test_winograd.py::test_error_is_within_what_is_stated": 2,
    "codegen/test_winograd_integers.py": 2,
    "correlate/test_document.py": 2,
    "frontends/onnx/test_free_sizes.py::test_expand_by_both_shapes": 2,
    "frontends/onnx/test_index_operators.py::test_scatter": 2,
    "frontends/onnx/test_nothing_found.py": 2,
    "frontends/onnx/test_tree_ensembles.py": 2,
    "frontends/onnx/test_windows_and_regions.py::test_deformable_convolution": 2,
    "frontends/onnx/test_windows_and_regions.py::test_resize": 2,
    "frontends/torch/test_indexing.py::test_reduced_segments": 2,
    "frontends/torch/test_windows.py::test_images_of_free_size_scaled": 2,
    "frontends/torch/test_windows.py::test_means_of_uneven_windows": 2,
    "frontends/torch/test_windows.py::test_windows_that_divide_images_of_free_size": 2,
    "ir/test_dim_code.py::test_values_are_those_of_sizes": 4,
    "loop/test_products.py": 2,
    "loop/test_products.py::test_rules_compute_the_product": 4,
    "loop/test_sequential.py": 2,
    "loop/test_tails.py": 2,
    "ops/test_native.py": 3,
    "ops/test_sorting.py": 3,
    "ops/test_suppression.py": 2,
    "passes/test_every_pass.py": 2,
    "passes/test_flatten_clips.py::test_native_code": 3,
    "passes/test_join_columns.py::test_kernels_stay_inside_the_image": 3,
    "passes/test_lift_signals.py::test_native_code": 3,
    "passes/test_multiply_codes.py::test_native_kernels": 2,
    "passes/test_stack_appends.py::test_tensors": 2,
    "passes/test_vectorize_signals.py::test_native_code_for_all_lengths": 3,
    "quantization/test_random_shapes.py::test_layers_of_random_shapes": 24,
    "runtime/test_company.py::test_any_limits_give_right_results": 3,
    "schedules/test_crowded_images.py::test_copied_bands_give_the_same_sums": 2,
    "serving/test_variants.py": 2,
    "tap/test_tap.py": 2,
    "test_fusion_edges.py": 3,
    "test_no_elements.py": 2,
    "test_precision.py": 2,
    "test_random_graphs.py": 3,
    "test_random_operators.py": 3,
}

TURNS = math.lcm(*SWEEPS.values())


def turn_of(given: str | None, folder: Path) -> int:
    """Returns which cases of sweeps run, as a number below `TURNS`: the given one, or else one that
    changes with the commit of a folder's repository; without a repository, with clew's version.
    """
    if given is not None:
        if not given.isdecimal() or int(given) >= TURNS:
            raise pytest.UsageError(f"CLEW_SWEEP is {given!r}, expected a number below {TURNS}")
        return int(given)
    head = ["git", "-C", str(folder), "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        commit = subprocess.run(head, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # there is no git
        commit = ""
    return crc32((commit or VERSION).encode()) % TURNS


# Workers and processes that tests start inherit it, so a run keeps its turn when HEAD moves.
TURN = turn_of(os.environ.get("CLEW_SWEEP"), Path(__file__).parent)
os.environ["CLEW_SWEEP"] = str(TURN)
_REPLAY = f"sweeps: turn {TURN} of {TURNS}, which CLEW_SWEEP={TURN} replays"


def pytest_report_header() -> str:
    return _REPLAY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if any(terminalreporter.getreports(outcome) for outcome in ("failed", "error")):
        terminalreporter.write_line(_REPLAY)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if hasattr(item, "callspec") and tests in item.path.parents:
            cases.setdefault((item.path, getattr(item, "originalname", "")), []).append(item)
    for (path, test), similar in cases.items():
        file = path.relative_to(tests).as_posix()
        one_in = SWEEPS.get(f"{file}::{test}", SWEEPS.get(file, 1))
        if len(similar) < _MANY or any(i.get_closest_marker("exhaustive") for i in similar):
            continue
        for item in similar[1:]:
            if (crc32(item.name.encode()) - TURN) % one_in:
                item.add_marker(pytest.mark.exhaustive)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)  # most tests make graphs, of objects that live as long as the test
    gc.enable()


@pytest.fixture
def runs_here() -> Callable[[str | Target], None]:
    """Returns a function that skips the test if this machine cannot run code for a target."""

    def check(target: str | Target) -> None:
        found = target_of(target) if isinstance(target, str) else target
        try:
            check_machine(needs_of(found.triple, found.cpu, found.features))
        except ClewError as error:
            pytest.skip(error.message)

    return check


@pytest.fixture(autouse=True)
def _no_loop_from_elsewhere(request: pytest.FixtureRequest) -> Iterator[None]:
    """Playwright leaves its loop running in this thread between browser tests; to `asyncio.run` of
    another test that shares the process, the thread would look taken.
    """
    running = asyncio._get_running_loop()
    if running is None or "browser" in request.path.parts:
        yield
        return
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(running)


class _KernelCache(Cache):
    """The tests' cache of kernels, but not of builds: for these, it is a cache without a folder."""

    def __init__(self) -> None:
        super().__init__(None)
        self._kernels = Cache(CACHE)

    def get(self, key: str) -> bytes | None:
        return self._kernels.get(key)

    def put(self, key: str, data: bytes) -> None:
        self._kernels.put(key, data)


@pytest.fixture
def shared_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that are compiled with `cache=False` share their kernels with other tests. For tests
    that compile the same operators in many ways: passes, plans and calls are their own.
    """
    monkeypatch.setattr("clew.compiling.compile.Cache", lambda _: _KernelCache())
