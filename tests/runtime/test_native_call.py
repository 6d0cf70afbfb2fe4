"""Native calls: what they answer equals what Python does, and they leave everything else to it."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clew
from clew.runtime import native_call as module
from clew.runtime.driver import driver
from clew.runtime.native_call import Block, Input, Result, Running, native_call
from clew.runtime.native_program import only_segment
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError

Array = np.ndarray[Any, Any]
HEAD: Final = '<ir_version: 9, opset_import: ["" : 18]>'
TWO: Final = """(float[2, 3] x, int64[3] k) => (float[2, 3] y, int64[3] n)
    { y = Exp(x) n = Neg(k) }"""
GATHERED: Final = "(float[4] x, int64[2] k) => (float[2] y) { z = Neg(x) y = Gather(z, k) }"
CELL: Final = """(float[2, 3] x, float[2, 3] h) => (float[2, 3] y, float[2, 3] hn)
    { s = Add(x, h) hn = Tanh(s) y = Neg(hn) }"""
LOOPED: Final = """(float[2] x, int64 n) => (float[2] y) {
    y = Loop(n, , x) <body = b (int64 i, bool go, float[2] s) => (bool more, float[2] after)
        { after = Sin(s) more = Identity(go) }> }"""


def compiled(text: str, threads: int = 1, **options: Any) -> clew.CompiledModel:
    return clew.compile(onnx.parser.parse_model(f"{HEAD} m {text}"), threads=threads, **options)


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def warm(call: Callable[..., Any], *inputs: Any) -> None:
    """Calls until there is a native form."""
    for _ in range(6):
        call(*inputs)


def native_of(model: clew.CompiledModel, *inputs: Any) -> Callable[[Any], Any]:
    warm(model, *inputs)
    assert model.native is not None, "no native form"
    call: Callable[[Any], Any] = model.native.call
    assert call(inputs) is not None, "the native form does not answer"
    return call


# --- what it answers, and what it leaves to Python ---


class Sub(np.ndarray[Any, Any]):
    """A subclass of arrays."""


def misaligned(array: Array) -> Array:
    room = np.zeros(array.nbytes + 1, np.uint8)
    made = room[1:].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def strided(array: Array) -> Array:
    made = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)[..., ::2]
    made[...] = array
    return made


def read_only(array: Array) -> Array:
    made = array.copy()
    made.flags.writeable = False
    return made


def reshaped_in_place(array: Array) -> Array:
    made = array.copy().reshape(-1)
    made.shape = array.shape
    return made


def other_dtype_in_place(array: Array) -> Array:
    made = array.copy().view(np.uint8).reshape(*array.shape[:-1], -1)
    made.dtype = array.dtype  # type: ignore[misc]
    return made


# The form of an input, and whether native code reads it as it is.
FORMS: Final[dict[str, tuple[Callable[[Array], Any], bool]]] = {
    "plain": (np.copy, True),
    "read-only": (read_only, True),
    "a view": (lambda a: np.stack([a, a])[1], True),
    "reshaped in place": (reshaped_in_place, True),
    "with another dtype in place": (other_dtype_in_place, True),
    "strided": (strided, False),
    "reversed": (lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1], False),
    "in Fortran's order": (lambda a: np.array([a, a], order="F")[0], False),
    "misaligned": (misaligned, False),
    "big-endian": (lambda a: a.astype(a.dtype.newbyteorder(">")), False),
    "with a dtype of its own": (lambda a: a.astype(np.dtype(a.dtype, metadata={"a": 1})), False),
    "a subclass": (lambda a: a.copy().view(Sub), False),
    "a masked array": (np.ma.array, False),
    "a list": (lambda a: a.tolist(), False),
    "broadcast": (lambda a: np.broadcast_to(a[..., :1], a.shape), False),
}
WRONG: Final[dict[str, Callable[[Array], Any]]] = {
    "one axis more": lambda a: a[None],
    "one axis less": lambda a: a[0],
    "a larger axis": lambda a: np.concatenate([a, a]),
    "no elements": lambda a: a[:0],
    "doubles": lambda a: a.astype(np.float64) + 1e-12,
    "objects": lambda a: np.array([[object()] * 3] * 2) if a.ndim == 2 else object(),
    "texts": lambda a: np.full(a.shape, "x"),
    "None": lambda a: None,
    "a type": lambda a: np.ndarray,
    "a function": lambda a: len,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", [0, 1])
def test_every_form_of_an_input_gives_the_same(form: str, place: int) -> None:
    model, plain = compiled(TWO), (drawn(2, 3), np.array([5, -6, 7]))
    native = native_of(model, *plain)
    make, is_read = FORMS[form]
    given = list(plain)
    given[place] = make(plain[place])
    expected = [np.exp(np.asarray(given[0], np.float32)), -np.asarray(given[1])]
    results = native(tuple(given))
    assert (results is not None) == is_read
    for found in (results or model(*given), model(*given), list(model.run(*given).values())):
        for y, wanted in zip(found, expected, strict=True):
            assert type(y) is np.ndarray
            np.testing.assert_allclose(y, wanted, rtol=2e-6)
            assert y.dtype is wanted.astype(y.dtype).dtype
            assert y.flags.carray
            assert y.ctypes.data % 64 == 0


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_is_an_error_as_before(kind: str) -> None:
    model, fresh, plain = compiled(TWO), compiled(TWO), (drawn(2, 3), np.array([5, -6, 7]))
    native = native_of(model, *plain)
    given = WRONG[kind](plain[0]), plain[1]
    assert native(given) is None
    codes = []
    for one in (fresh, model):
        with pytest.raises(ClewError) as caught:
            one(*given)
        codes.append((caught.value.code, caught.value.message))
    assert codes[0] == codes[1]
    assert native(plain) is not None


def test_arguments_of_other_kinds_are_left_alone() -> None:
    x, k = drawn(2, 3), np.array([1, 2, 3])
    native = native_of(compiled(TWO), x, k)
    for other in ([x, k], (), (x,), (x, k, k), (k, x), None, x, 3, {"x": x}, {}, "xk"):
        assert native(other) is None
    with pytest.raises(TypeError):
        native()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        native((x, k), y=1)  # type: ignore[call-arg]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_layout_gives_the_same(data: st.DataObject) -> None:
    """Arrays of random shape, strides, offset, dtype and flags, inside of other memory."""
    native = native_of(_SHARED, drawn(2, 3), np.array([1, 2, 3]))
    dtype = np.dtype(data.draw(st.sampled_from(["f4", ">f4", "i4", "f8", "u1", "O", "f2"])))
    shape = tuple(data.draw(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=4)))
    room = np.arange(1000, dtype=np.uint8)
    if dtype.hasobject:
        x = np.zeros(shape, dtype)
    else:
        steps = [data.draw(st.sampled_from([0, 1, 3, 4, 12, -4])) for _ in shape]
        x = np.ndarray(shape, dtype, room, data.draw(st.sampled_from([96, 97, 100])), steps)
    x.flags.writeable = data.draw(st.booleans())
    k = np.array([1, 2, 3])
    found = native((x, k))
    fits = x.shape == (2, 3) and x.dtype is np.dtype(np.float32)
    fits = fits and x.flags.c_contiguous and x.flags.aligned
    assert (found is not None) == fits
    if found is not None:
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(found[0], np.exp(x), rtol=2e-6)
        np.testing.assert_array_equal(found[1], -k)


_SHARED: Final = compiled(TWO)

DTYPES: Final = (
    "float", "double", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "uint32",
    "int64", "uint64", "bool",
)  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(name: str) -> None:
    body = "{ y = Not(x) }" if name == "bool" else "{ z = Add(x, x) y = Identity(z) }"
    model = compiled(f"({name}[5] x) => ({name}[5] y) {body}")
    known = {"float": "float32", "double": "float64", "bfloat16": ml_dtypes.bfloat16}
    x = np.array([0, 1, 1, 0, 1]).astype(known.get(name, name))
    y = model(x)
    (again,) = native_of(model, x)((x,))
    assert again.dtype is y.dtype
    np.testing.assert_array_equal(again, y)
    np.testing.assert_array_equal(again, ~x if name == "bool" else x + x)


@pytest.mark.parametrize(
    "text",
    [
        "(float[2, 3] x, float[6] z) => (float[3, 2] y) "
        "{ s = Constant<value_ints = [3, 2]>() r = Reshape(x, s) q = Reshape(z, s) y = Sub(r, q) }",
        "(float[2, 3] x) => (float[6] y, float[2, 3] z) "
        "{ s = Constant<value_ints = [6]>() e = Exp(x) y = Reshape(e, s) z = Neg(x) }",
        "(float[2, 3] unread, float[6] x) => (float[6] b, float[6] a) { a = Exp(x) b = Neg(x) }",
        "(float[2, 3] x) => (float y) { y = ReduceSum<keepdims = 0>(x) }",
        "(float[2, 3] x) => (float[2, 3] y, float[2, 3] z) { y = Exp(x) z = Identity(y) }",
        "(float[2, 3] x) => (float[2, 3] y) { y = Identity(x) }",
    ],
)
def test_inputs_and_results_are_shown_in_any_way(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, in_python = compiled(text), compiled(text)
    shapes = [tuple(map(int, spec.shape)) for spec in model.inputs]
    warm(model, *[drawn(*shape) for shape in shapes])
    monkeypatch.setattr(module, "_maker", lambda: None)
    for seed in range(9):
        inputs = [drawn(*shape, seed=seed) for shape in shapes]
        found, wanted = model.run(*inputs), in_python.run(*[x.copy() for x in inputs])
        for name, y in found.items():
            np.testing.assert_allclose(y, wanted[name], rtol=1e-5)
            assert y.shape == wanted[name].shape
            assert not any(np.shares_memory(y, x) for x in inputs)
        values = list(found.values())
        assert not any(np.shares_memory(a, b) for a in values for b in values if a is not b)


# --- references and memory ---


def test_references_are_counted_and_memory_is_flat() -> None:
    model, x, k = compiled(TWO), drawn(2, 3), np.array([1, 2, 3])
    native = native_of(model, x, k)
    wrong, strided_x = (drawn(3, 2), k), (strided(x), k)
    watched = [x, k, x.dtype, k.dtype, np.dtype(np.uint8), wrong[0], strided_x[0], native]

    def calls(count: int) -> None:
        for _ in range(count):
            model(x, k)
            model.run({"x": x, "k": k})
            native((x, k))
            native(wrong)
            native(strided_x)
            native(None)

    calls(100)
    gc.collect()
    before = [sys.getrefcount(each) for each in watched]
    tracemalloc.start()
    calls(10)
    start, _ = tracemalloc.get_traced_memory()
    calls(10_000)
    end, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [sys.getrefcount(each) for each in watched] == before
    assert end - start < 20_000  # less than a byte for each call
    assert most - start < 65_536


def test_dropped_models_and_results_leave_nothing() -> None:
    x, k = drawn(2, 3), np.array([1, 2, 3])
    segment = only_segment(compiled(TWO)._chain.only.program)  # type: ignore[union-attr]
    assert segment is not None
    for _ in range(4):
        segment([x, k])
    counts = [sys.getrefcount(y.base) for y in segment([x, k])]
    # The name `y`, the argument, and one for each result; both share one block.
    assert len(set(counts)) == 1
    y, n = segment([x, k])
    base = y.base
    assert sys.getrefcount(base) == 4
    del y
    assert sys.getrefcount(base) == 3
    del n
    assert sys.getrefcount(base) == 2


def handmade(
    shape: tuple[int, ...], size_bytes: int, owners: list[Any]
) -> tuple[Callable[[Any], Any], list[Any]]:
    """Returns the native form of a segment without steps whose result has a shape and needs memory
    of a size, and its idle contexts.
    """
    f32 = np.dtype(np.float32)
    segment, bases = (ctypes.c_int64 * 6)(), (ctypes.c_int64 * 2)()
    words = (ctypes.c_int64 * 8)(ctypes.addressof(segment), ctypes.addressof(bases))
    contexts: list[Any] = [(ctypes.addressof(words),)]
    running = Running(contexts, None, (4, 4), 0, 0, None, [segment, bases, words, *owners])
    block = Block(size_bytes, [(0, 0)])
    call = native_call([Input((2,), f32, 0)], [Result(shape, f32, 1)], [block], running)
    assert call is not None
    return call, contexts


@pytest.mark.parametrize(
    ("shape", "size_bytes"), [((1 << 60,), 1 << 62), ((1 << 46,), 1 << 48), ((1 << 61, 4), 64)]
)
def test_a_shortage_of_memory_is_left_to_python(shape: tuple[int, ...], size_bytes: int) -> None:
    call, contexts = handmade(shape, size_bytes, [])
    x = drawn(2)
    before = sys.getrefcount(x), sys.getrefcount(contexts[0])
    for _ in range(100):
        assert call((x,)) is None
    assert (sys.getrefcount(x), sys.getrefcount(contexts[0])) == before
    assert len(contexts) == 1


def test_a_function_keeps_its_method() -> None:
    """Python reads it when it deletes the function, which may outlive the modules of clew."""
    address = driver().call_address
    assert address is not None
    maker = module._Maker(address)
    kept = weakref.ref(maker._method)
    call = maker.call([], [], [], Running([], None, (1, 1), 0, 0, None, ()))
    del maker
    gc.collect()
    assert kept() is not None
    del call
    gc.collect()
    assert kept() is None


def test_without_an_idle_context_python_answers() -> None:
    call, contexts = handmade((2,), 64, [])
    x = drawn(2)
    assert call((x,)) is not None
    entry = contexts.pop()
    assert call((x,)) is None
    contexts.append(entry)
    assert call((x,)) is not None


def test_an_interpreter_without_a_native_form_gives_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_maker", lambda: None)
    model, x, k = compiled(TWO), drawn(2, 3), np.array([1, 2, 3])
    warm(model, x, k)
    assert model.native is None
    y, n = model(x, k)
    np.testing.assert_allclose(y, np.exp(x), rtol=2e-6)
    np.testing.assert_array_equal(n, -k)
    session = compiled(CELL).session(state={"h": "hn"})
    warm(session, x)
    assert session._native is None


# --- errors, loops and budgets ---


def test_an_index_out_of_range_is_an_error_each_time() -> None:
    model, x = compiled(GATHERED), drawn(4)
    right, wrong = np.array([0, -1]), np.array([1, 7])
    native = native_of(model, x, right)
    for _ in range(20):
        assert native((x, wrong)) is None
        with pytest.raises(ClewError) as caught:
            model(x, wrong)
        assert caught.value.code == "I320"
        assert "7" in caught.value.message
        np.testing.assert_array_equal(model(x, right), -x[right])
    before = sys.getrefcount(x), sys.getrefcount(wrong)
    for _ in range(1000):
        native((x, wrong))
    assert (sys.getrefcount(x), sys.getrefcount(wrong)) == before


def test_loops_keep_to_the_budgets_in_force() -> None:
    model, x = compiled(LOOPED), drawn(2)
    few, many = np.array(3), np.array(40)
    native = native_of(model, x, few)
    with in_force(Budgets(loop_steps=10)):
        assert native((x, few)) is None
        np.testing.assert_allclose(model(x, few), np.sin(np.sin(np.sin(x))), rtol=1e-5)
        with pytest.raises(ClewError) as caught:
            model(x, many)
        assert caught.value.code == "I266"
    assert native((x, many)) is not None
    own = compiled(LOOPED, limits=Budgets(loop_steps=10))
    warm(own, x, few)
    with pytest.raises(ClewError) as caught:
        own(x, many)
    assert caught.value.code == "I266"


def test_an_interrupt_ends_a_long_loop() -> None:
    model, x = compiled(LOOPED), drawn(2)
    native_of(model, x, np.array(3))
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()

    def calls() -> None:
        for _ in range(100):
            model(x, np.array(9_999_999))

    with pytest.raises(KeyboardInterrupt):
        calls()
    assert time.monotonic() - start < 30
    np.testing.assert_allclose(model(x, np.array(1)), np.sin(x), rtol=1e-5)
    assert model.native is not None


# --- threads and processes ---


@pytest.mark.parametrize("threads", [1, 2])
def test_eight_threads_on_one_model(threads: int) -> None:
    text = "(float[64, n] x) => (float[64, n] y, float[64, n] z) { y = Exp(x) z = Neg(y) }"
    model = compiled(text, threads)
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = drawn(64, 3 + seed % 3, seed=seed)
        expected = np.exp(x)
        kept = []
        for number in range(300):
            y, z = model(x)
            if number % 50 == 0:
                kept.append((y, z))
            if not np.allclose(y, expected, rtol=1e-5) or not np.array_equal(z, -y):
                wrong.append(seed)
        if not all(np.allclose(y, expected, rtol=1e-5) for y, _ in kept):
            wrong.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    assert wrong == []


@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_child_calls_too(threads: int) -> None:
    model, x, k = compiled(TWO, threads), drawn(2, 3), np.array([1, 2, 3])
    native_of(model, x, k)
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            model(x, k)

    worker = threading.Thread(target=busy)
    worker.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                right = all(np.allclose(model(x, k)[0], np.exp(x)) for _ in range(20))
                os._exit(0 if right else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        worker.join()


def test_a_closed_pool_leaves_one_thread() -> None:
    model, x, k = compiled(TWO, 2), drawn(2, 3), np.array([1, 2, 3])
    native = native_of(model, x, k)
    segment = only_segment(model._chain.only.program)  # type: ignore[union-attr]
    assert segment is not None
    assert list(segment.pool.cell) == [segment.pool.address, 1]
    segment.pool.after_fork()  # as in a child
    assert native((x, k)) is None
    model(x, k)
    assert native((x, k)) is not None


def test_threads_that_call_at_exit_do_no_harm(
    run_python: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    done = run_python(
        f"""
import threading, time, numpy as np, onnx, clew
model = clew.compile(onnx.parser.parse_model({f"{HEAD} m {TWO}"!r}), threads=2)
x, k = np.zeros((2, 3), np.float32), np.array([1, 2, 3])
def work():
    while True:
        model(x, k)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
print("done")
"""
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


# --- free sizes ---


def test_sizes_alternate() -> None:
    model = compiled("(float[n, 3] x) => (float[n, 3] y) { e = Exp(x) s = Softmax(e) y = Neg(s) }")
    draws = [drawn(n, 3, seed=n) for n in (1, 4, 2, 7)]
    expected = [model(x) for x in draws]
    for number in range(200):
        chosen = number % 4 if number % 40 < 20 else number // 40 % 4
        y = model(draws[chosen])
        np.testing.assert_array_equal(y, expected[chosen])
        assert model._chain.latest.key[0] == (draws[chosen].shape,)  # type: ignore[union-attr]
    x = drawn(0, 3)
    assert model(x).shape == (0, 3)
    np.testing.assert_array_equal(model(draws[0]), expected[0])


# --- sessions ---


def by_hand(inputs: list[Array]) -> list[Array]:
    h, found = np.zeros((2, 3), np.float32), []
    for x in inputs:
        h = np.tanh(x + h)
        found.append(-h)
    return found


def test_a_session_keeps_its_state() -> None:
    session = compiled(CELL).session(state={"h": "hn"})
    inputs = [drawn(2, 3, seed=n) for n in range(40)]
    expected, found, states = by_hand(inputs), [], []
    for x in inputs:
        found.append(session(x))
        states.append(session.state["h"])
    assert session._native is not None
    assert session._native((inputs[0],)) is not None
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(states, [-y for y in expected], rtol=1e-5)  # snapshots
    session.reset()
    np.testing.assert_allclose(session(inputs[0]), expected[0], rtol=1e-5)
    for y in found:
        y[...] = 9  # no result is part of a state
    other = session.copy()
    np.testing.assert_allclose(other(inputs[1]), expected[1], rtol=1e-5)
    np.testing.assert_allclose(session(inputs[1]), expected[1], rtol=1e-5)
    session.set(h=-expected[3])
    np.testing.assert_allclose(session(inputs[4]), expected[4], rtol=1e-5)
    np.testing.assert_allclose(session(strided(inputs[5])), expected[5], rtol=1e-5)
    np.testing.assert_allclose(session.run({"x": inputs[6]})["y"], expected[6], rtol=1e-5)
    np.testing.assert_allclose(session(inputs[7]), expected[7], rtol=1e-5)


def test_what_a_session_does_not_take_changes_nothing() -> None:
    session = compiled(CELL).session(state={"h": "hn"})
    x = drawn(2, 3)
    warm(session, x)
    state, native = session.state["h"].copy(), session._native
    assert native is not None
    watched = x, session._cell, session._turn.held
    before = [sys.getrefcount(each) for each in watched]
    for _ in range(1000):
        for wrong in ((drawn(3, 2),), (), (x, x), None, (None,), (x.tolist(),)):
            assert native(wrong) is None
    assert [sys.getrefcount(each) for each in watched] == before
    with pytest.raises(ClewError):
        session(drawn(3, 2))
    np.testing.assert_array_equal(session.state["h"], state)
    assert session._turn.holder is None
    for _ in range(10_000):
        session(x)
    assert [sys.getrefcount(each) for each in watched] == before


def test_during_a_call_a_session_is_not_called_natively() -> None:
    session = compiled(CELL).session(state={"h": "hn"})
    x = drawn(2, 3)
    warm(session, x)
    native, state = session._native, session.state["h"].copy()
    assert native is not None
    assert session._turn.begin("another call")
    assert native((x,)) is None
    with pytest.raises(ClewError) as caught:
        session(x)
    assert caught.value.code == "I374"
    assert session._turn.holder == "another call"
    del session._turn.held[0]
    np.testing.assert_array_equal(session.state["h"], state)
    assert native((x,)) is not None


def test_a_session_is_interrupted_without_a_change() -> None:
    text = LOOPED.replace("int64 n) => (float[2] y)", "int64 n) => (float[2] y, int64 m)")
    session = compiled(text.replace("{ after", "{ after", 1).replace("}> }", "}> m = Neg(n) }"))
    stateful = session.session(state={"n": "m"}, initial={"n": np.array(-3)})
    x = drawn(2)
    warm(stateful, x)
    assert stateful._native is not None
    stateful.set(n=np.array(9_999_999))
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

    def calls() -> None:
        for _ in range(100):
            stateful.set(n=np.array(9_999_999))
            stateful(x)

    with pytest.raises(KeyboardInterrupt):
        calls()
    assert stateful._turn.holder is None
    stateful.set(n=np.array(1))
    np.testing.assert_allclose(stateful(x), np.sin(x), rtol=1e-5)


def test_one_session_in_many_threads_answers_or_refuses() -> None:
    session = compiled(CELL.replace("2, 3", "64, 64"), 1).session(state={"h": "hn"})
    x = drawn(64, 64)
    warm(session, x)
    answered: list[int] = []

    def work() -> None:
        for _ in range(200):
            try:
                session(x)
                answered.append(1)
            except ClewError as error:
                assert error.code == "I374"  # noqa: PT017

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    h = np.zeros((64, 64), np.float32)
    for _ in range(6 + len(answered)):
        h = np.tanh(x + h)
    np.testing.assert_allclose(session.state["h"], h, rtol=1e-3, atol=1e-4)
    assert session._turn.holder is None
