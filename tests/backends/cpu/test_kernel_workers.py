"""Kernels that other processes lower."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.backends.cpu.kernel_workers import KernelWorkers, PendingKernel
from clew.backends.cpu.lowering import KernelSource
from clew.backends.cpu.native import NativeKernels
from clew.backends.cpu.portable import is_portable, packed, unpacked
from clew.codegen import workers
from clew.ir.dims import SymDim
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.types import TensorType
from clew.machine.target import target_of
from clew.ops.registry import get_op

OPERATORS = ("exp", "tanh", "sigmoid", "abs", "sqrt")


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelWorkers]:
    """The pool of a process that may use two cores."""
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CLEW_COMPILE_JOBS", "2")
    made = KernelWorkers()
    monkeypatch.setattr("clew.backends.cpu.native.shared_workers", lambda: made)
    yield made
    made.close()


def chain() -> clew.Module:
    """Returns a model of several kernels, if operators are not fused."""
    x = Var("x", TensorType((4, 16), "f32"))
    body: Expr = x
    for name in OPERATORS:
        body = Call(get_op(name), [body])
    return clew.Module({"main": Function([x], body)})


def compiled() -> tuple[dict[str, bytes], np.ndarray]:
    """Returns the bytes of each kernel of the model, compiled anew, and a result."""
    model = clew.compile(chain(), fuse=False, cache=False)
    result = model(np.linspace(0, 1, 64, dtype="f4").reshape(4, 16))
    binaries = {key: made.to_bytes() for key, made in model.build.binaries.items()}
    return binaries, result


def everything() -> list[Function]:
    """Returns primitive functions with all kinds of nodes that kernels have."""
    rows = SymDim.symbol("rows")
    found = []
    for shape in ((4, 16), (rows, 16)):
        x, y = Var("x", TensorType(shape, "f32")), Var("y", TensorType((16,), "f32"))
        halves = Call(get_op("split"), [x], {"axis": 1, "sizes": (8, 8)})
        two = Constant.splat(2.0, TensorType((), "f32"))
        scaled = Call(get_op("multiply"), [TupleGetItem(halves, 1), two])
        total = Call(get_op("add"), [x, y])
        found.append(Function([x, y], Tuple([scaled, total, x]), {"primitive": True, "name": "k"}))
    x = Var("x", TensorType((4, 16), "f32"))
    found.append(Function([x], x, {"primitive": True, "name": "copy"}))
    return found


@pytest.mark.parametrize("number", range(3))
def test_a_portable_kernel_is_the_same_kernel(number: int) -> None:
    source = KernelSource(everything()[number], target_of("cpu"), expected=(("rows", 7),))
    assert is_portable(source)
    again = unpacked(packed(source))  # it compares the keys
    assert again.emitted.llvm == source.emitted.llvm


def test_code_of_the_user_stays_in_its_process() -> None:
    @clew.register_op("workers.twice", overwrite=True)
    def twice(x: clew.te.Tensor) -> clew.te.Tensor:
        return clew.te.compute(x.shape, lambda *i: x[i] * 2)

    x = Var("x", TensorType((4, 16), "f32"))
    function = Function([x], Call(twice, [x]), {"primitive": True, "name": "twice"})
    assert not is_portable(KernelSource(function, target_of("cpu")))


def test_workers_return_the_same_kernels(
    pool: KernelWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelWorkers, "take_back", lambda self, job: False)
    with monkeypatch.context() as patch:
        patch.setattr(NativeKernels, "_begun", None)  # lowers a kernel here
        there, result = compiled()
    assert [worker.answered for worker in pool._workers] == [len(OPERATORS)]
    pool.count = 0
    here, expected = compiled()
    assert there == here
    np.testing.assert_array_equal(result, expected)


def test_what_workers_cannot_lower_is_lowered_here(
    pool: KernelWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelWorkers, "take_back", lambda self, job: False)
    monkeypatch.setattr("clew.backends.cpu.native.packed", lambda source: b"not a kernel")
    there, _ = compiled()
    assert [worker.answered for worker in pool._workers] == [len(OPERATORS)]
    pool.count = 0
    assert there == compiled()[0]


@pytest.mark.parametrize("ending", ["raise SystemExit('lost')", "raise MemoryError"])
def test_without_workers_all_is_lowered_here(
    pool: KernelWorkers, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(KernelWorkers, "take_back", lambda self, job: False)
    monkeypatch.setattr(pool, "_command", lambda: [sys.executable, "-c", ending])
    monkeypatch.setattr(workers, "_warned", {"once"})
    there, _ = compiled()
    pool.count = 0
    assert there == compiled()[0]


def test_an_error_leaves_nothing_to_the_workers(
    pool: KernelWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_command", lambda: [sys.executable, "-c", "input()"])

    def fails(self: object) -> None:
        raise ArithmeticError

    monkeypatch.setattr(KernelSource, "emitted", property(fails))
    with pytest.raises(ArithmeticError):
        compiled()
    assert not pool._queue


def test_kernels_that_take_longest_are_begun_first(
    pool: KernelWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    begin = NativeKernels._begun

    def noted(self: NativeKernels, kernel: Any) -> Any:
        begun.append(kernel.source.name)
        return begin(self, kernel)

    pool.count = 0
    monkeypatch.setattr(NativeKernels, "_begun", noted)
    x = Var("x", TensorType((4, 16), "f32"))
    weights = Constant.splat(2.0, TensorType((16, 16), "f32"))
    body = get_op("nn.softmax")(get_op("nn.dense")(get_op("exp")(x), weights))
    clew.compile(clew.Module({"main": Function([x], body)}), fuse=False, cache=False)
    assert [name.rpartition("_")[2] for name in begun] == ["dense", "softmax", "exp"]


def test_a_job_that_waits_behind_another_is_the_last_of_the_queue(pool: KernelWorkers) -> None:
    jobs = [PendingKernel(lambda: b"not a kernel") for _ in range(4)]
    pool._queue.extend(jobs)
    pool.warm_up()
    pool._feed(depth=2)
    assert list(pool._workers[0].jobs) == [jobs[0], jobs[3]]
    assert list(pool._queue) == jobs[1:3]
