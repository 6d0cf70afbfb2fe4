"""The interpreter computes nests, and finds what is wrong with wrong ones."""

from __future__ import annotations

import numpy as np
import pytest
from computations import KINDS, plain, same

from clew.loop.interpret import interpret
from clew.loop.ir import Block, Buffer, For, If, Kind, Nest, Prefetch, Scope, Stmt, Store
from clew.te.expr import INDEX, Binary, Imm, Index, Load, Scalar, select

_X = Buffer("x", (4,), "f32", "input")
_OUT = Buffer("out", (4,), "f32", "output")
_VALUES = np.arange(4, dtype=np.float32)
_ONE = Imm(1.0, "f32")


def _run(*stmts: Stmt) -> np.ndarray:
    return interpret(Nest("test", (_X,), (_OUT,), Block(stmts)), [_VALUES])[0]


def _loop(kind: Kind, body: Stmt, index: Index) -> For:
    return For(index, kind, body)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_nests_agree_with_tensor_expressions(kind: str) -> None:
    nest, arrays, expected = plain(kind, 3, 5)
    assert same(interpret(nest, arrays), expected)


def test_guards_selects_and_prefetches() -> None:
    i = Index("i", 6)
    inside = select(Binary("lt", i, Imm(2, INDEX)), Load(_X, [i]), _ONE)
    guard = If(Binary("lt", i, Imm(4, INDEX)), Store(_OUT, (i,), inside, "out"))
    found = _run(_loop("vector", Block((Prefetch(_X, (i * 9,), "out"), guard)), i))
    assert found.tolist() == [0.0, 1.0, 1.0, 1.0]


def test_an_index_outside_is_named_with_statement_and_loops() -> None:
    i = Index("s.i", 4)
    with pytest.raises(AssertionError) as caught:
        _run(_loop("serial", Store(_OUT, (i,), Load(_X, [i + 1]), "s"), i))
    text = "accesses x: f32[4] input at [4] in `out[s.i] = x[(s.i + 1)]` at s.i=3"
    assert str(caught.value) == text


def test_what_is_read_has_been_set() -> None:
    i = Index("i", 4)
    with pytest.raises(AssertionError, match=r"reads out\[0\] before it is set"):
        _run(_loop("serial", Store(_OUT, (i,), _ONE, "out", "sum"), i))
    with pytest.raises(AssertionError, match="is not set everywhere"):
        _run(Store(_OUT, (Imm(0, INDEX),), _ONE, "out"))


def test_loop_variables_end_with_their_loops() -> None:
    i = Index("i", 4)
    store = Store(_OUT, (i,), _ONE, "out")
    with pytest.raises(AssertionError, match="loop variable i outside its loop"):
        _run(_loop("serial", store, i), store)


def _sharing(scope: Scope, kind: Kind, read_at: Scalar, i: Index) -> np.ndarray:
    """Writes element i of a temporary and reads another one in each iteration."""
    shared = Buffer("t", (4,), "f32", scope)
    write = Store(shared, (i,), Load(_X, [i]), "t")
    return _run(_loop(kind, Block((write, Store(_OUT, (i,), Load(shared, [read_at]), "out"))), i))


def test_iterations_of_parallel_loops_stay_apart() -> None:
    i = Index("i", 4)
    first = Imm(0, INDEX)
    assert _sharing("workspace", "serial", first, i).tolist() == [0.0] * 4
    assert _sharing("workspace", "parallel", i, i).tolist() == _VALUES.tolist()
    with pytest.raises(AssertionError, match=r"reads t\[0\], written elsewhere"):
        _sharing("workspace", "parallel", first, i)
    with pytest.raises(AssertionError, match=r"reads t\[0\] before it is set"):
        _sharing("scratch", "parallel", first, i)
    with pytest.raises(AssertionError, match=r"writes out\[0\] again"):
        _run(_loop("parallel", Store(_OUT, (first,), _ONE, "out"), i))
