"""Small results of calls: their memory is used again, but never while anything shows it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import onnx
import pytest

import clew
from clew.runtime.results import UNHELD, Results
from clew.support.addresses import address_of
from clew.support.arrays import ALIGNMENT_BYTES

Array = np.ndarray[Any, Any]
HEAD: Final = '<ir_version: 9, opset_import: ["" : 18]>'
MODELS: Final = {
    "fixed sizes": "(float[2, 3] x) => (float[2, 3] y) { y = Exp(x) }",
    "free sizes": "(float[n, m] x) => (float[n, m] y) { y = Exp(x) }",
    "several results": """(float[n, m] x) => (float[n, m] y, float[n, m] z, int64[n, 1] i)
        { y = Exp(x) z = Neg(x) i = ArgMax<axis = 1>(x) }""",
    "twice the same": "(float[n, m] x) => (float[n, m] y, float[n, m] z) "
    "{ y = Exp(x) z = Identity(y) }",
    "a scalar": "(float[n, m] x) => (float y) { y = ReduceSum<keepdims = 0>(x) }",
    "a size from the data": "(float[n, m] x) => (int64[2, k] y) { a = Relu(x) y = NonZero(a) }",
    "stacked": """(float[n, m] x) => (float[t, n, m] y) {
        count = Constant<value_int = 5>() large = Constant<value_float = 9.0>()
        s, y = Loop(count, , x) <body = b (int64 i, bool go, float[n, m] s)
            => (bool more, float[n, m] after, float[n, m] row)
            { row = Exp(s) half = Constant<value_float = 0.5>() after = Mul(s, half)
              sum = ReduceSum<keepdims = 0>(row) more = Greater(sum, half) }> }""".replace(
        "=> (float[t, n, m] y)", "=> (float[n, m] s, float[t, n, m] y)"
    ),
}
HOLDERS: Final[dict[str, Callable[[Array], Any]]] = {
    "the array": lambda y: y,
    "a view": lambda y: y[..., -1:] if y.ndim else y.reshape(1),
    "a view of a view": lambda y: y.reshape(-1)[::-1][:2],
    "a transposed view": lambda y: y.T,
    "a memoryview": memoryview,
    "an iterator": lambda y: y.flat,
    "DLPack": np.from_dlpack,
    "an interface": lambda y: np.asarray(Interface(y)),
}


class Interface:
    """An object that shows an array by its interface."""

    def __init__(self, array: Array) -> None:
        self.__array_interface__ = array.__array_interface__
        self.array = array


def compiled(name: str) -> clew.CompiledModel:
    return clew.compile(onnx.parser.parse_model(f"{HEAD} m {MODELS[name]}"), threads=1)


def drawn(seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=(2, 3)).astype(np.float32)


def test_this_interpreter_shows_who_holds_memory() -> None:
    assert UNHELD > 0


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("name", MODELS)
def test_results_stay_while_something_shows_them(name: str, holder: str) -> None:
    model = compiled(name)
    held: list[tuple[Any, bytes]] = []
    for seed in range(12):
        for y in model.run(drawn(seed)).values():
            shown = HOLDERS[holder](y)
            held.append((shown, np.array(shown).tobytes()))
        del y, shown
        model.run(drawn(-seed - 1 & 0xFF))
    assert [np.array(shown).tobytes() for shown, _ in held] == [before for _, before in held]


@pytest.mark.parametrize("name", ["fixed sizes", "free sizes", "several results"])
def test_memory_that_nobody_holds_is_used_again(name: str) -> None:
    model = compiled(name)
    places = {address_of(next(iter(model.run(drawn(seed)).values()))) for seed in range(20)}
    assert len(places) <= 3
    found = set()
    y = None
    for seed in range(20):  # the last result lives during a call
        y = next(iter(model.run(drawn(seed)).values()))
        found.add(address_of(y))
    assert len(found) <= 4
    assert all(place % ALIGNMENT_BYTES == 0 for place in found)


def test_a_result_is_the_next_input() -> None:
    model = compiled("free sizes")
    x = expected = drawn(0) * 0.1
    for _ in range(20):
        x, expected = model(x) - 1, np.exp(expected) - 1
        x = model(np.log(x + 1)) - 1
    np.testing.assert_allclose(x, expected, rtol=1e-4)
    y = drawn(0)
    for _ in range(3):
        given = y.copy()
        y = model(y)
        np.testing.assert_allclose(y, np.exp(given), rtol=1e-5)
        y = -y


def test_given_outputs_are_left_alone_afterwards() -> None:
    segment = compiled("fixed sizes").segment
    assert segment is not None
    x, out = drawn(0), np.zeros((2, 3), np.float32)
    segment([drawn(1)])
    segment([x], [out])
    np.testing.assert_allclose(out, np.exp(x), rtol=1e-5)
    later = segment([drawn(2)])
    np.testing.assert_allclose(out, np.exp(x), rtol=1e-5)
    np.testing.assert_allclose(later[0], np.exp(drawn(2)), rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_threads_have_results_of_their_own(name: str) -> None:
    model = compiled(name)
    expected = [[y.copy() for y in model.run(drawn(seed)).values()] for seed in range(8)]
    wrong: list[int] = []

    def call(seed: int) -> None:
        kept: list[list[Array]] = []
        for number in range(200):
            results = list(model.run(drawn(seed)).values())
            if number % 7 == 0:
                kept.append(results)
        for results in kept:
            if any(
                a.tobytes() != b.tobytes() for a, b in zip(results, expected[seed], strict=True)
            ):
                wrong.append(seed)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_has_its_own_results() -> None:
    model = compiled("free sizes")
    kept = model(drawn(0))
    before = kept.tobytes()
    child = os.fork()
    if child == 0:
        results = [model(drawn(seed)) for seed in range(8)]
        right = all(np.allclose(y, np.exp(drawn(s)), rtol=1e-5) for s, y in enumerate(results))
        os._exit(0 if right and kept.tobytes() == before else 1)
    results = [model(drawn(seed)) for seed in range(8)]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert kept.tobytes() == before
    np.testing.assert_allclose(results[3], np.exp(drawn(3)), rtol=1e-5)


def test_large_results_have_memory_of_their_own() -> None:
    f32 = np.dtype(np.float32)
    assert Results([((32, 32), f32)]).are_small
    large = Results([((32, 32), f32), ((1,), f32)])
    assert not large.are_small
    (first, second), addresses = large.apart()
    assert [address_of(first), address_of(second)] == addresses
    assert first.base is not second.base
