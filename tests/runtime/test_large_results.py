"""Large results use memory that earlier results no longer need."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import clew
from clew.runtime.large_results import LARGE_BYTES, LargeResults
from clew.support.addresses import address_of

MIB = 1 << 20
SHAPE = (LARGE_BYTES // 4096 + 1, 1024)


@pytest.fixture
def memory() -> LargeResults:
    return LargeResults()


def test_memory_is_reused_when_its_array_is_gone(memory: LargeResults) -> None:
    first = memory.lend(8 * MIB)
    place = address_of(first)
    assert place % 64 == 0
    assert first.nbytes == 8 * MIB
    assert address_of(memory.lend(8 * MIB)) != place
    del first
    assert address_of(memory.lend(8 * MIB)) == place


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[5:9],
        lambda a: a.view(np.float32).reshape(2, -1)[1:].T,
        lambda a: np.ndarray((4,), np.int64, a, 64),
        memoryview,
        lambda a: np.frombuffer(memoryview(a)[8:16], np.int32),
        lambda a: np.from_dlpack(a),
        lambda a: a.ctypes,
        iter,
    ],
)
def test_whatever_refers_to_the_memory_keeps_it(
    memory: LargeResults, view: Callable[[Any], object]
) -> None:
    lent = memory.lend(8 * MIB)
    place, kept = address_of(lent), view(lent)
    del lent
    assert address_of(memory.lend(8 * MIB)) != place
    del kept
    gc.collect()
    assert memory.idle_bytes == 16 * MIB


def test_a_block_much_larger_than_needed_stays_idle(memory: LargeResults) -> None:
    memory.lend(40 * MIB)
    assert memory.lend(16 * MIB) is not None
    assert memory.idle_bytes == 56 * MIB
    assert memory.lend(30 * MIB).nbytes == 30 * MIB  # on the block of 40
    assert memory.idle_bytes == 56 * MIB


def test_idle_memory_is_bounded(memory: LargeResults) -> None:
    held = [memory.lend(100 * MIB) for _ in range(10)]  # no page is touched
    del held
    assert memory.idle_bytes == 500 * MIB
    held = [memory.lend(5 * MIB) for _ in range(70)]
    del held
    assert memory.idle_bytes == 64 * 5 * MIB
    memory.lend(600 * MIB)
    assert memory.idle_bytes == 64 * 5 * MIB


def test_threads_never_share_memory(memory: LargeResults) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(200):
            mine = [memory.lend(5 * MIB) for _ in range(1 + turn % 3)]
            for array in mine:
                array[:: MIB // 2] = number
            if any((array[:: MIB // 2] != number).any() for array in mine):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.fixture(scope="module")
def negated() -> clew.CompiledModel:
    kind = f"f32[{SHAPE[0]}, {SHAPE[1]}]"
    text = f"def @main(%x: {kind}) -> {kind} {{\n  %0 = negative(%x)\n  return %0\n}}"
    return clew.compile(clew.parse(text), threads=1)


def test_results_of_calls_use_it(negated: clew.CompiledModel) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    first = negated(x)
    place, copy = address_of(first), first.copy()
    assert address_of(negated(x + 1)) != place  # the first result is still in use
    np.testing.assert_array_equal(first, copy)
    part = first[3]
    del first
    assert address_of(negated(x + 1)) != place
    np.testing.assert_array_equal(part, copy[3])
    del part
    assert place in {address_of(negated(x)) for _ in range(3)}


def test_a_forked_child_has_its_own(negated: clew.CompiledModel) -> None:
    x = np.ones(SHAPE, np.float32)
    kept = negated(x)
    child = os.fork()
    if not child:
        del kept
        os._exit(int(not (negated(2 * x) == -2).all()))
    assert os.waitpid(child, 0)[1] == 0
    assert (kept == -1).all()


def test_many_results_that_are_large_together_use_it() -> None:
    names = [f"y{n}" for n in range(9)]
    outputs = ", ".join(f"float[1024, 1024] {name}" for name in names)
    nodes = " ".join(f"{name} = Add(x, c{n})" for n, name in enumerate(names))
    given = " ".join(f"c{n} = Constant<value_float = {n}.0>()" for n in range(9))
    text = f"(float[1024, 1024] x) => ({outputs}) {{ {given} {nodes} }}"
    model = clew.compile(
        onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> m {text}'), threads=1
    )
    x = np.zeros((1024, 1024), np.float32)
    for _ in range(3):
        results = model(x)
        places = {address_of(each) for each in results}
        kept = results[4]
        del results
    again = model(x)
    assert len({address_of(each) for each in again} & places) == 8
    assert (kept == 4).all()
    assert all((each == n).all() for n, each in enumerate(again))
