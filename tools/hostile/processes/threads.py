"""Many threads at once: calls, builds, compiles."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import clew
from hostile.catalog import model, node, value
from hostile.corpus import network
from hostile.processes.setting import IMAGE, ROUNDS, case, compiled, late, symbolic


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Returns the results of calls from as many threads, all started at once."""
    gate = threading.Barrier(count)

    def begin(number: int) -> Any:
        gate.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


@case()
def calls_from_threads(folder: Path) -> None:
    built = compiled(network())
    inputs = [IMAGE * (n + 1) for n in range(8)]
    wanted = [built(x) for x in inputs]

    def work(number: int) -> bool:
        return all(
            np.array_equal(built(inputs[k % 8]), wanted[k % 8])
            for k in range(number, number + 40 * ROUNDS)
        )

    assert all(together(8, work))


@case()
def builds_while_others_run(folder: Path) -> None:
    built = compiled(symbolic())
    reference = compiled(symbolic(), threads=1, cache=False)
    rows = [np.cos(np.arange(n * 16, dtype=np.float32)).reshape(n, 16) for n in range(1, 9)]
    wanted = [reference(x) for x in rows]

    def work(number: int) -> bool:
        draw = random.Random(number)
        order = [draw.randrange(8) for _ in range(20 * ROUNDS)]
        return all(np.array_equal(built(rows[k]), wanted[k]) for k in order)

    assert all(together(6, work))


@case()
def more_sizes_than_are_kept_from_threads(folder: Path) -> None:
    built = compiled(symbolic(), threads=1)
    rows = [np.ones((n, 16), np.float32) for n in range(1, 40)]

    def work(number: int) -> bool:
        return all(built(x).shape == (len(x), 24) for x in rows[number::2] + rows[number::3])

    assert all(together(3, work))


@case()
def saved_models_from_threads(folder: Path) -> None:
    first = compiled(symbolic())
    rows = [np.ones((n, 16), np.float32) for n in (1, 5, 7)]
    wanted = [first(x) for x in rows]
    first.save(folder / "m.clew")
    built = clew.load_compiled(folder / "m.clew", 2)

    def work(number: int) -> bool:
        order = [(number + k) % 3 for k in range(30 * ROUNDS)]
        return all(np.array_equal(built(rows[k]), wanted[k]) for k in order)

    assert all(together(6, work))


@case()
def late_shapes_from_threads(folder: Path) -> None:
    built = compiled(late())
    draw = np.random.default_rng(1)
    inputs = [(draw.random((2, 6)) < p).astype(np.float32) for p in (0.0, 0.2, 0.5, 0.8, 1.0)]
    wanted = [compiled(late(), threads=1)(x) for x in inputs]

    def work(number: int) -> bool:
        order = [(number + k) % 5 for k in range(15 * ROUNDS)]
        # A kernel that is compiled for a size gives other last bits than the references did.
        return all(np.allclose(built(inputs[k]), wanted[k], rtol=1e-6) for k in order)

    assert all(together(5, work))


@case()
def threads_that_compile(folder: Path) -> None:
    def work(number: int) -> bool:
        nodes = [node("Neg", ["x"], ["a"]), node("Exp", ["a"], ["y"])]
        built = compiled(model(nodes, inputs=[value("x", [number % 3 + 1, 5])]))
        x = np.ones((number % 3 + 1, 5), np.float32)
        return bool(np.allclose(built(x), np.exp(-x)))

    assert all(together(6, work))
