"""Growing states in buffers: writes in place, copies, returns to earlier lengths, and guard pages.
The reference is the model without buffers, called with whole arrays.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import clew
from clew.passes.hold_states import with_held_states
from clew.runtime.context import Context
from clew.runtime.guard import GuardSide
from clew.runtime.held import Caches
from clew.runtime.session import Session
from clew.runtime.state import conventional_pairs
from clew.support.errors import ClewError

from .session_models import (
    HEAD,
    HEADS,
    KEY,
    VALUE,
    WIDTH,
    compiled,
    decoder,
    floats,
    model,
    random,
)  # fmt: skip

Array = np.ndarray[Any, Any]


def plain() -> Session:
    """Returns a session that passes whole arrays on."""
    one = compiled("decoder")
    return Session(one, conventional_pairs(one.inputs, one.outputs))


NODE = helper.make_node
PRESENT = [floats("present", [1, "n", 4])]


def joined(nodes: list[Any], outputs: list[Any], rows: str = "past") -> Any:
    inputs = [floats("x", [1, "s", 4]), floats("past", [1, rows, 4])]
    return model(nodes, inputs, [floats("y", [1, "n", 4]), *outputs], [])


def tokens(count: int, seed: int = 0, batch: int = 1) -> Array:
    return random(batch, count, WIDTH, seed=seed)


def same(session: Session, other: Session) -> None:
    assert session.length == other.length
    for name in (KEY, VALUE):
        np.testing.assert_array_equal(session.state[name], other.state[name], strict=True)


def buffers(session: Session) -> dict[str, Array]:
    caches = session._now.caches
    assert caches is not None
    return caches.arrays


def places(session: Session) -> list[int]:
    return [array.ctypes.data for array in buffers(session).values()]


@pytest.mark.parametrize("batch", [1, 2])
def test_calls_write_behind_the_valid_elements(batch: int) -> None:
    session, other = compiled("decoder").session(), plain()
    assert session.length == 0
    before: list[int] = []
    moves = 0
    for seed, count in enumerate([3, 1, 1, 70, 1, 1, 200, 1, 1]):
        x = tokens(count, seed, batch)
        np.testing.assert_array_equal(session(x), other(x), strict=True)
        moves += places(session) != before
        before = places(session)
    assert moves == 3  # for 3, 75 and 277 positions
    same(session, other)


def test_all_lengths_run_one_build() -> None:
    one = compiled("decoder")
    session = one.session()
    made = one.builds_made
    rng = np.random.default_rng(0)
    for seed in range(40):
        session.reset()
        session(tokens(int(rng.integers(1, 90)), seed))
        session(tokens(1, seed))
    assert one.builds_made == made


def test_consecutive_lengths_take_over_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call changes the tables of the call before, and nothing is kept for its length."""
    session, other = compiled("decoder").session(), plain()
    for seed, count in enumerate([5, 1]):
        np.testing.assert_array_equal(session(tokens(count, seed)), other(tokens(count, seed)))
    made: list[Context] = []
    new = Context.__init__

    def noted(self: Context, *args: Any) -> None:
        made.append(self)
        new(self, *args)

    chain: Any = session._held_form.model if session._held_form is not None else None
    kept = len(chain.kept)
    expected = [other(tokens(1, seed)) for seed in range(90)]
    monkeypatch.setattr(Context, "__init__", noted)
    for seed, wanted in enumerate(expected):
        np.testing.assert_array_equal(session(tokens(1, seed)), wanted, strict=True)
    same(session, other)
    assert len(made) <= 1
    assert len(chain.kept) <= kept + 1
    session.rewind(20)  # lengths that are not kept
    other.rewind(20)
    for seed in (91, 92):
        np.testing.assert_array_equal(session(tokens(1, seed)), other(tokens(1, seed)))


def test_a_length_that_another_session_leaves_is_kept() -> None:
    first, second = compiled("decoder").session(), compiled("decoder").session()
    for session in (first, second):
        session(tokens(6))
        session(tokens(1))
    first(tokens(1))  # forgets the length that both had
    served = []
    for _ in range(3):
        second.rewind(6)
        second(tokens(1))
        served.append(second._served)
    assert served[1] is served[2]


def test_sessions_at_other_lengths_share_tables() -> None:
    """Sessions that take turns at several lengths and batches have the results of whole arrays."""
    sizes = [(1, 3), (2, 40), (1, 130), (2, 7)]
    pairs = [(compiled("decoder").session(), plain()) for _ in sizes]
    for (session, other), (batch, count) in zip(pairs, sizes, strict=True):
        x = tokens(count, count, batch)
        np.testing.assert_array_equal(session(x), other(x))
    for turn in range(6):
        for (session, other), (batch, _) in zip(pairs, sizes, strict=True):
            x = tokens(1 + turn % 2, turn, batch)
            np.testing.assert_array_equal(session(x), other(x))
    for session, other in pairs:
        same(session, other)


def test_shown_states_do_not_change() -> None:
    session = compiled("decoder").session()
    session(tokens(3))
    shown = session.state[KEY]
    kept = shown.copy()
    first = places(session)
    session(tokens(1, 1))
    assert places(session) == first  # written behind what is shown
    session.rewind(1)
    session(tokens(2, 2))
    assert places(session) != first  # in other memory
    np.testing.assert_array_equal(shown, kept)
    with pytest.raises(ValueError, match="read-only"):
        shown[...] = 0


def test_a_session_returns_to_an_earlier_length() -> None:
    session, other = compiled("decoder").session(), plain()
    session(tokens(5))
    first = places(session)
    other(tokens(5)[:, :2])
    session.rewind(2)
    x = tokens(4, 1)
    np.testing.assert_allclose(session(x), other(x), rtol=1e-6, atol=1e-7)
    assert places(session) == first
    assert session.length == 6
    session.rewind(0)
    other.reset()
    np.testing.assert_array_equal(session(x), other(x))
    for held in (session, other):
        with pytest.raises(ClewError, match="I376"):
            held.rewind(5)
        with pytest.raises(ClewError, match="I376"):
            held.rewind(-1)


def test_whole_arrays_are_rewound_as_well() -> None:
    session, other = plain(), plain()
    session(tokens(5))
    other(tokens(5)[:, :2])
    session.rewind(2)
    assert session.length == 2
    np.testing.assert_allclose(session.state[KEY], other.state[KEY], rtol=1e-6)


def test_copies_diverge() -> None:
    session, other = compiled("decoder").session(), plain()
    session(tokens(3))
    other(tokens(3))
    first = places(session)
    copies = [session.copy() for _ in range(2)]
    others = [other.copy() for _ in range(2)]
    for seed in range(1, 4):  # in turns, the copies before the original
        for held, whole in [*zip(copies, others, strict=True), (session, other)]:
            x = tokens(1, 10 * seed + len(copies) * (held is session) + (held is copies[0]))
            np.testing.assert_array_equal(held(x), whole(x))
    assert places(session) == first
    assert len({place for held in (session, *copies) for place in places(held)}) == 6
    for held, whole in [*zip(copies, others, strict=True), (session, other)]:
        same(held, whole)


def test_a_copy_of_a_rewound_session() -> None:
    session = compiled("decoder").session()
    session(tokens(6))
    session.rewind(2)
    copy = session.copy()
    session.rewind(1)
    session(tokens(3, 1))  # must not write what the copy sees
    other = plain()
    other(tokens(6))
    np.testing.assert_array_equal(copy.state[KEY], other.state[KEY][:, :, :2])


def test_given_states() -> None:
    given = {KEY: random(1, HEADS, 4, HEAD), VALUE: random(1, HEADS, 4, HEAD, seed=1)}
    one = compiled("decoder")
    session = one.session(initial=given)
    other = Session(one, conventional_pairs(one.inputs, one.outputs), given)
    assert session.length == other.length == 4
    for seed in range(2):
        x = tokens(2, seed)
        np.testing.assert_array_equal(session(x), other(x))
    for held in (session, other):
        held.set({name: array[:, :, :1] for name, array in given.items()})
    x = tokens(2, 5)
    np.testing.assert_array_equal(session(x), other(x))
    same(session, other)
    session.set({KEY: given[KEY]})
    with pytest.raises(ClewError, match="I042"):  # keys and values of different lengths
        session(x)
    assert session.state[KEY].shape[2] == 4


def test_a_failed_call_changes_nothing() -> None:
    session, other = compiled("decoder").session(), plain()
    session(tokens(3))
    other(tokens(3))
    with pytest.raises(ClewError, match="I042"):
        session(tokens(1, batch=2))
    same(session, other)
    session._model.budgets = None
    np.testing.assert_array_equal(session(tokens(1, 1)), other(tokens(1, 1)))


def test_a_write_that_fails_later_is_not_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    session, other = compiled("decoder").session(), plain()
    session(tokens(3))
    other(tokens(3))
    one = compiled("decoder")
    run = type(one).run_checked

    def failing(self: Any, *args: Any, **named: Any) -> Any:
        run(self, *args, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(one), "run_checked", failing)
        with pytest.raises(KeyboardInterrupt):
            session(tokens(2, 9))
    same(session, other)
    np.testing.assert_array_equal(session(tokens(1, 1)), other(tokens(1, 1)))


def test_kernels_stay_inside_the_buffers() -> None:
    options = clew.Diagnostics(guard=True)
    guarded = clew.compile(decoder(), threads=1, diagnostics=options)
    session, other = guarded.session(), plain()
    for seed, count in enumerate([3, 1, 63, 1]):  # the last but one fills the buffers
        x = tokens(count, seed)
        np.testing.assert_array_equal(session(x), other(x))
        assert buffers(session)[KEY].shape[2] == (67 if seed < 3 else 136)
    same(session, other)


@pytest.mark.parametrize("side", GuardSide)
def test_writes_stay_inside_the_buffers(side: GuardSide) -> None:
    nodes = [NODE("Concat", ["past", "x"], ["present"], axis=1), NODE("Relu", ["present"], ["y"])]
    options = clew.Diagnostics(guard=side)
    given = joined(nodes, PRESENT, "held")
    session = clew.compile(given, threads=1, cache=False, diagnostics=options).session()
    whole = np.zeros((1, 0, 4), np.float32)
    for seed, count in enumerate([3, 64, 1, 1]):
        x = random(1, count, 4, seed=seed)
        whole = np.concatenate([whole, x], axis=1)
        np.testing.assert_array_equal(session(x), np.maximum(whole, 0))
    assert session._now.caches is not None
    assert session.length == 69


def test_a_saved_model_has_buffers(tmp_path: Path) -> None:
    compiled("decoder").save(tmp_path / "model.clew")
    session = clew.load_compiled(tmp_path / "model.clew", threads=1).session()
    other = plain()
    for seed, count in enumerate([2, 1, 80, 1]):
        x = tokens(count, seed)
        np.testing.assert_array_equal(session(x), other(x))
    assert len(buffers(session)) == 2
    same(session, other)


def test_a_session_for_each_thread() -> None:
    one = compiled("decoder")
    found: dict[int, list[Array]] = {}

    def work(number: int) -> None:
        session = one.session()
        found[number] = [session(tokens(1 + n % 3, n + number)) for n in range(12)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, results in found.items():
        other = plain()
        for n, result in enumerate(results):
            np.testing.assert_array_equal(result, other(tokens(1 + n % 3, n + number)))


# --- what keeps its form --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([NODE("Concat", ["x", "past"], ["present"], axis=1)], "begins with it"),
        (
            [
                NODE("ReduceSum", ["past"], ["sum"]),
                NODE("Add", ["x", "sum"], ["more"]),
                NODE("Concat", ["past", "more"], ["present"], axis=1),
            ],
            "more than the concatenation",
        ),
    ],
)
def test_other_states_keep_their_form(nodes: list[Any], reason: str) -> None:
    given = joined([*nodes, NODE("Relu", ["present"], ["y"])], PRESENT)
    module = clew.load(given)
    found = with_held_states(module, [("past", "present")])
    assert found.module is module
    assert all(reason in text for text in found.reasons.values())
    session = clew.compile(given, threads=1, cache=False).session()
    x = random(1, 2, 4)
    session(x)
    session(x)
    assert session._now.caches is None


def test_a_session_without_growing_states_has_no_length() -> None:
    given = model(
        [NODE("Add", ["x", "h_in"], ["h_out"]), NODE("Relu", ["h_out"], ["y"])],
        [floats("x", [4]), floats("h_in", [4])],
        [floats("y", [4]), floats("h_out", [4])],
        [],
    )
    session = clew.compile(given, threads=1, cache=False).session()
    with pytest.raises(ClewError, match="I375"):
        assert session.length
    with pytest.raises(ClewError, match="I375"):
        session.rewind(0)


# --- threads, wrong arguments and the disk cache --------------------------------------------------


def test_a_session_that_is_rewound_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread rewinds and calls it just before its elements are lent."""
    lend = Caches.lend
    for read in (Session.copy, lambda session: session):
        session, other = compiled("decoder").session(), plain()
        session(tokens(6))
        meanwhile: list[Array] = [tokens(4, 1)]

        def late(self: Caches, lengths: Any) -> None:
            if meanwhile:  # noqa: B023
                x = meanwhile.pop()  # noqa: B023
                session.rewind(1)  # noqa: B023
                session(x)  # noqa: B023
            lend(self, lengths)

        with monkeypatch.context() as patched:
            patched.setattr(Caches, "lend", late)
            shown = read(session).state
        other(tokens(6))
        other.rewind(1)
        other(tokens(4, 1))
        for name, array in other.state.items():
            np.testing.assert_allclose(shown[name], array, rtol=1e-6, atol=1e-7)
        assert session.length == 5


@pytest.mark.parametrize("length", [2.0, 0.5, None, "2", [1]])
def test_a_wrong_length_changes_nothing(length: Any) -> None:
    for session in (compiled("decoder").session(), plain()):
        session(tokens(3))
        with pytest.raises(ClewError, match="I376"):
            session.rewind(length)
        assert session.length == 3
        session.rewind(np.int64(2))  # type: ignore[arg-type]
        assert session.length == 2
        session(tokens(1))


def test_a_stored_model_serves_empty_calls_in_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))
    nodes = [NODE("Concat", ["past", "x"], ["present"], axis=1), NODE("Relu", ["present"], ["y"])]
    given = joined(nodes, PRESENT, "kept")
    for _ in range(2):  # the second one comes from the disk cache
        one = clew.compile(given, threads=1)
        session = one.session()
        whole = np.zeros((1, 0, 4), np.float32)
        for seed, count in enumerate([0, 2, 0, 1]):
            x = random(1, count, 4, seed=seed)
            whole = np.concatenate([whole, x], axis=1)
            np.testing.assert_array_equal(session(x), np.maximum(whole, 0), strict=True)
        assert session._now.caches is not None
        assert one.session()._held_form.model is session._held_form.model  # type: ignore[union-attr]
    assert one._chain.stored is not None
    one.save(tmp_path / "model.clew")  # with the build for calls without elements
    saved = clew.load_compiled(tmp_path / "model.clew", threads=1).session()
    assert saved(random(1, 0, 4)).shape == (1, 0, 4)


def test_a_shortage_of_memory_for_buffers_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, other = compiled("decoder").session(), plain()
    session(tokens(3))
    other(tokens(3))

    def refused(*_: Any) -> Any:
        raise MemoryError("no room")

    with monkeypatch.context() as patched:
        patched.setattr("clew.runtime.held.aligned_empty", refused)
        with pytest.raises(ClewError, match=r"I267.*no room"):
            session(tokens(65, 1))
    same(session, other)
    np.testing.assert_array_equal(session(tokens(65, 1)), other(tokens(65, 1)))
