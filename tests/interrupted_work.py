"""Interrupts one kind of work again and again, and checks that it still works afterwards.

    python tests/interrupted_work.py KIND COUNT [SEED]

A signal raises KeyboardInterrupt after a random time, as Ctrl-C does. Every few interrupts, another
thread does the work: what an interrupt has left locked or claimed stops it there. Prints the number
of interrupts that arrived; a traceback of all threads and code 1 if something waits for ever.
"""

from __future__ import annotations

import faulthandler
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

import clew
from clew.codegen.objects import shared_compiler
from clew.explorer.actions.table import ACTIONS, act
from clew.explorer.routes import answer
from clew.explorer.session import Session
from clew.records.store import Store
from clew.support.locks import Lock, Turn, _renewed

_PATIENCE_S = 200.0
_CHECK_EVERY = 10

Work = Callable[[], Any]


def _model(rows: int | str, *, depth: int = 1, seed: int = 0) -> ModelProto:
    rng = np.random.default_rng(seed)
    nodes, weights, name = [], [], "x"
    for n in range(depth):
        weight = rng.standard_normal((16, 16)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{n}"))
        nodes.append(helper.make_node("MatMul", [name, f"w{n}"], [f"a{n}"]))
        nodes.append(helper.make_node("Relu", [f"a{n}"], [f"b{n}"]))
        name = f"b{n}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [rows, 16])],
        [value(name, TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _calls() -> Work:
    compiled = clew.compile(_model("n"), threads=2)
    inputs = [np.ones((n, 16), np.float32) for n in (1, 4, 7)]
    expected = [compiled(x) for x in inputs]

    def work() -> None:
        for x, y in zip(inputs, expected, strict=True):
            np.testing.assert_array_equal(compiled(x), y)

    return work


def _static() -> Work:
    compiled = clew.compile(_model(4), threads=2)
    x = np.ones((4, 16), np.float32)
    expected = compiled(x)
    return lambda: np.testing.assert_array_equal(compiled(x), expected)


def _session() -> Work:
    session = clew.compile(_model(4), threads=1).session(state={"x": "b0"})

    def work() -> None:
        session.reset()
        session()
        session.set(x=np.ones((4, 16), np.float32))
        session()

    return work


def _compiles() -> Work:
    seeds = iter(range(1 << 30))

    def work() -> None:
        seed = next(seeds)
        compiled = clew.compile(_model(4, seed=seed), threads=1, cache=False)
        layers = {layer for kernel in compiled.kernels for layer in kernel.layers}
        assert len(layers) == 2, layers  # no target of an interrupted rewrite is left

    return work


def _new_sizes() -> Work:
    sizes = iter(range(1, 1 << 30))
    compiled = clew.compile(_model("n"), threads=1)
    return lambda: compiled(np.ones((next(sizes) % 500 + 1, 16), np.float32))


def _tunes() -> Work:
    folder = Path(tempfile.mkdtemp())
    return lambda: clew.tune(_model(4), trials=1, database=folder / "t.db", threads=1)


def _records() -> Work:
    store = Store(Path(tempfile.mkdtemp()) / "records.db")
    return lambda: (store.drop(["none"]), store.trials(), store.settle_crashed())


def _saves() -> Work:
    compiled = clew.compile(_model(4), threads=1)
    path = Path(tempfile.mkdtemp()) / "model.clew"

    def work() -> None:
        compiled.save(path)
        clew.load_compiled(path)

    return work


def _explores() -> Work:
    session = Session(clew.compile(_model(4), threads=1), model="m")

    def work() -> None:
        answer(session, "overview")
        act(ACTIONS["errors"], session, {}, lambda *_: None)

    return work


def _serves() -> Work:
    compiled = clew.compile(_model(4), threads=1)

    def work() -> None:
        with compiled.explore() as page:
            assert page.is_served

    return work


KINDS: dict[str, Callable[[], Work]] = {
    "calls": _calls,
    "static": _static,
    "session": _session,
    "compiles": _compiles,
    "new sizes": _new_sizes,
    "tunes": _tunes,
    "records": _records,
    "saves": _saves,
    "explores": _explores,
    "serves": _serves,
}


def _elsewhere(work: Work) -> None:
    """Does the work in another thread."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _check(work: Work) -> float:
    """Does the work in another thread and in this one; returns the seconds of the latter."""
    faulthandler.dump_traceback_later(_PATIENCE_S, exit=True)
    _elsewhere(work)
    start = time.perf_counter()
    work()
    taken_s = time.perf_counter() - start
    _elsewhere(_all_free)
    faulthandler.cancel_dump_traceback_later()
    return taken_s


def _all_free() -> None:
    """Asserts that no thread holds a lock or a turn."""
    for one in list(_renewed):
        if isinstance(one, Turn):
            assert one.holder is None, "a turn has not ended"
        elif isinstance(one, Lock):
            free = one.acquire(timeout=10)
            assert free, "a lock is held"
            one.release()


def main(kind: str, count: int, seed: int) -> None:
    """Interrupts the work `count` times."""
    rng = random.Random(seed)
    work = KINDS[kind]()
    once_s = _check(work)
    armed, arrived = False, 0

    def interrupt(number: int, frame: Any) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    sys.unraisablehook = lambda unraisable: None  # an interrupt in a destructor has no effect
    for number in range(count):
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, once_s))
            start = time.perf_counter()
            work()
            # It was faster than when it was timed, on a machine with less load perhaps.
            once_s = min(once_s, time.perf_counter() - start)
        except KeyboardInterrupt:
            arrived += 1
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        if number % _CHECK_EVERY == 0 or number == count - 1:
            once_s = _check(work)
    shared_compiler().close()
    print(arrived)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
