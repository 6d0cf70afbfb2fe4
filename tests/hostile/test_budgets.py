"""Each budget: what exceeds it is refused by name, and passes where it is raised."""

from __future__ import annotations

import os
import threading
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper, parser
from typer.testing import CliRunner

import clew
from clew.cli.app import app
from clew.ops.registry import get_op
from clew.support import budgets
from clew.support.budgets import Budgets, current, in_force, read_budgets
from clew.support.errors import ClewError, InputError, hint_on
from clew.support.lazy import cached_property
from clew.support.locks import Lock
from hostile.catalog import X, ints, model, node, value
from hostile.growth import computed_size, functions, loop, nested_if

WIDE = [value("x", [64, 64])]
ONES = np.ones((64, 64), np.float32)
RELU = model([node("Relu", ["x"], ["y"])])
NAMED = model([node("Relu", ["x"], ["y"], name="n" * 50)])
EYE = numpy_helper.from_array(np.eye(64, dtype=np.float32), "w")
PRODUCT = model([node("MatMul", ["x", "w"], ["y"])], [EYE], inputs=WIDE)
FREE_PRODUCT = model([node("MatMul", ["x", "w"], ["y"])], [EYE], inputs=[value("x", ["n", 64])])
LOOP = loop(20, [node("Neg", ["s"], ["s2"])])
LATE = computed_size("Tile", np.arange(2, dtype=np.float32))

# What exceeds it, a budget that it exceeds, one that it does not, and the error's code.
CASES = {
    "file_bytes": (RELU.SerializeToString(), 20, 1 << 20, "M011"),
    "nodes": (functions(4, 3), 30, 100, "M009"),
    "nesting": (nested_if(4), 3, 9, "M007"),
    "functions": (functions(4, 1), 3, 4, "M030"),
    "opsets": (functions(2, 1), 1, 2, "M030"),
    "values": (model([node("Sum", ["x"] * 9, ["y"])]), 8, 20, "M030"),
    "name_chars": (NAMED, 49, 50, "M030"),
    "text_chars": (NAMED, 49, 50, "M030"),
    "attribute_bytes": (model([node("Transpose", ["x"], ["y"], perm=[1, 0])]), 4, 40, "M030"),
    "rank": (model([node("Unsqueeze", ["x", "a"], ["y"])], [ints("a", [0])]), 2, 3, "M006"),
    "tensor_bytes": (RELU, 23, 24, "M006"),
    "total_bytes": (model([node("Relu", ["x"], ["a"]), node("Exp", ["a"], ["y"])]), 47, 48, "M030"),
}


@pytest.mark.parametrize("name", CASES)
def test_budgets_of_the_file(name: str, tmp_path: Path) -> None:
    made, less, enough, code = CASES[name]
    path = tmp_path / "model.onnx"
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    with pytest.raises(ClewError) as caught:
        clew.load(path, budgets=replace(Budgets(), **{name: less}))
    assert caught.value.code == code
    assert name in f"{caught.value.message} {caught.value.hint}"
    assert f"--budget {name}=" in hint_on(caught.value.hint, "cli")
    try:
        clew.load(path, budgets=replace(Budgets(), **{name: enough}))
    except ClewError as error:
        assert error.code == "M004", error  # noqa: PT017  (the nest has no condition)


def refused(made: object, given: Budgets, *arrays: np.ndarray) -> ClewError:
    with pytest.raises(ClewError) as caught:
        clew.compile(made, threads=1, cache=False, limits=given)(*arrays)
    return caught.value


@pytest.mark.parametrize(
    ("made", "arrays", "name", "less", "enough", "code"),
    [
        (PRODUCT, [ONES], "run_bytes", 1 << 10, 1 << 20, "C140"),
        (PRODUCT, [ONES], "run_operations", 1 << 10, 1 << 23, "C141"),
        (FREE_PRODUCT, [ONES], "run_operations", 1 << 10, 1 << 23, "C141"),
        (LOOP, [X], "loop_steps", 19, 20, "I266"),
        (LATE, [np.full((2, 3), 700, np.float32)], "run_bytes", 4096, 1 << 20, "I265"),
    ],
)
def test_budgets_of_a_run(made, arrays, name, less, enough, code) -> None:
    error = refused(made, replace(Budgets(), **{name: less}), *arrays)
    assert error.code == code
    given = replace(Budgets(), **{name: enough})
    assert clew.compile(made, threads=1, cache=False, limits=given)(*arrays) is not None


def test_operations_of_a_host_operator() -> None:
    coupled = get_op("svm.coupled")
    pairs, attrs = np.full((50, 6), 0.5, np.float32), coupled.bind({"classes": 4})
    with in_force(Budgets(run_operations=1000)), pytest.raises(ClewError) as caught:
        coupled.run_reference([pairs], attrs)
    assert caught.value.code == "I269"
    assert "svm.coupled" in caught.value.message
    with in_force(Budgets(run_operations=1 << 20)):
        assert coupled.run_reference([pairs], attrs).shape == (50, 4)


def test_budgets_of_layers_that_are_imported_in_a_run() -> None:
    made = parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
    g (seq(float[]) q) => (float[] y) <int64[2] s = {300, 300}>
    { zero = Constant<value_int=0>() x = SequenceAt(q, zero) y = Expand(x, s) }""")
    given = replace(Budgets(), tensor_bytes=1 << 16)
    error = refused(made, given, [np.ones(1, np.float32)])
    assert error.code == "M006"
    assert clew.compile(made, threads=1)([np.ones(1, np.float32)]).shape == (300, 300)
    assert refused(made, given, [np.ones(1, np.float32)]).code == "M006"


def test_budgets_of_the_process_hold_for_builds_that_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"threads": 1, "diagnostics": clew.Diagnostics(trace=False), "cache": True}
    for _ in range(2):
        assert clew.compile(PRODUCT, **options)(ONES).shape == (64, 64)
    monkeypatch.setattr(budgets, "_default", replace(Budgets(), run_operations=1 << 10))
    with pytest.raises(ClewError) as caught:
        clew.compile(PRODUCT, **options)(ONES)
    assert caught.value.code == "C141"


def test_products_of_constants_are_left_to_the_run() -> None:
    many = np.sin(np.arange(1 << 18, dtype=np.float32)).reshape(512, 512)
    stored = [numpy_helper.from_array(many, "a"), numpy_helper.from_array(many, "b")]
    nodes = [node("MatMul", ["a", "b"], ["c"]), node("Add", ["c", "x"], ["y"])]
    made = model(nodes, stored, inputs=[value("x", [512])])
    folded = clew.compile(made, threads=1, cache=False)
    left = clew.compile(
        made,
        threads=1,
        cache=False,
        limits=replace(Budgets(), folded_operations=1000),
    )
    assert len(folded.kernels[0].ops) < sum(len(k.ops) for k in left.kernels)
    x = np.zeros(512, np.float32)
    np.testing.assert_allclose(folded(x), left(x), atol=1e-3)


def test_strict_is_nowhere_wider() -> None:
    strict, usual = Budgets.strict(), Budgets()
    for entry in fields(Budgets):
        assert getattr(strict, entry.name) <= getattr(usual, entry.name)


def test_budgets_are_in_force_in_one_thread() -> None:
    seen = []
    with in_force(Budgets(nodes=7)):
        thread = threading.Thread(target=lambda: seen.append(current().nodes))
        thread.start()
        thread.join()
        with in_force(None):
            assert current().nodes == 7
    assert seen == [Budgets().nodes]
    assert current() == Budgets()


def test_budgets_are_read_from_text() -> None:
    assert read_budgets([]) == Budgets()
    assert read_budgets(["nodes=5", "file_bytes=3K"]) == Budgets(nodes=5, file_bytes=3 << 10)
    assert read_budgets(["strict", "rank=9"]) == replace(Budgets.strict(), rank=9)


WRONG = ["", "nodes", "nodes=", "nodes=-1", "nodes=1x", "_x=1", f"nodes={'9' * 5000}"]


@pytest.mark.parametrize("text", WRONG)
def test_texts_that_are_no_budget(text: str) -> None:
    with pytest.raises(InputError, match="is not a budget"):
        read_budgets([text])


def test_the_command_line_sets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "_default", Budgets())
    path = tmp_path / "model.onnx"
    path.write_bytes(RELU.SerializeToString())
    result = CliRunner().invoke(app, ["--budget", "nodes=0", "run", str(path), "--random"])
    assert isinstance(result.exception, ClewError)
    assert result.exception.code == "M009"


# --- locks and files ------------------------------------------------------------------------------


def test_a_child_finds_a_lock_free() -> None:
    lock = Lock()
    with lock:
        child = os.fork()
        if child == 0:
            with lock:
                os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    with lock:
        pass


def test_who_forks_inside_a_lock_may_leave_it() -> None:
    lock = Lock()
    with lock:
        child = os.fork()
    with lock:
        if child == 0:
            os._exit(6)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6


def test_attributes_are_computed_once() -> None:
    class Made:
        count = 0

        @cached_property
        def value(self) -> int:
            """A number."""
            self.count += 1
            return 3

    made = Made()
    assert (made.value, made.value, made.count) == (3, 3, 1)
    assert Made.value.__doc__ == "A number."
