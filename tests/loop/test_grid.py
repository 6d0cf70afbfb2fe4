"""Blocks, threads, shared memory and barriers: printed, checked, interpreted, not for the CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from computations import plain

from clew.codegen.kernel import emit_kernel
from clew.loop.grid import check_grid
from clew.loop.interpret import interpret
from clew.loop.ir import (
    Axis,
    Barrier,
    Buffer,
    For,
    If,
    Kind,
    Nest,
    Scope,
    Stmt,
    Store,
    block,
    transform,
)
from clew.loop.printer import print_nest
from clew.loop.schedule import Schedule
from clew.machine.target import host
from clew.support.errors import ScheduleError
from clew.te.expr import INDEX, Imm, Index, Load, Scalar, binary

_TILE, _TILES = 4, 2
_SIZE = _TILE * _TILES


def _buffer(name: str, scope: Scope, *shape: int) -> Buffer:
    return Buffer(name, shape, "f32", scope)


def _grid(body: Stmt, *loops: tuple[Index, Kind, Axis]) -> For:
    for index, kind, axis in reversed(loops):
        body = For(index, kind, body, axis)
    assert isinstance(body, For)
    return body


def _at(tile: Index, place: Scalar) -> Scalar:
    return binary("add", binary("mul", tile, Imm(_TILE, INDEX)), place)


def tiled_matmul(*, barriers: tuple[bool, bool] = (True, True)) -> Nest:
    """Returns a product of two f32[8, 8] in blocks of 4 x 4 threads: each thread loads an element
    of either tile to shared memory; then all of them read the tiles.
    """
    a, b = _buffer("a", "input", _SIZE, _SIZE), _buffer("b", "input", _SIZE, _SIZE)
    out = _buffer("out", "output", _SIZE, _SIZE)
    tile_a, tile_b = (_buffer(f"tile_{n}", "shared", _TILE, _TILE) for n in "ab")
    total = _buffer("total", "scratch", 1)
    by, bx = Index("by", _TILES), Index("bx", _TILES)
    ty, tx = Index("ty", _TILE), Index("tx", _TILE)
    step, k = Index("step", _TILES), Index("k", _TILE)
    zero = Imm(0, INDEX)
    product = binary("mul", Load(tile_a, (ty, k)), Load(tile_b, (k, tx)))
    loads = [
        Store(tile_a, (ty, tx), Load(a, (_at(by, ty), _at(step, tx))), "tile_a"),
        Store(tile_b, (ty, tx), Load(b, (_at(step, ty), _at(bx, tx))), "tile_b"),
    ]
    one = For(k, "serial", Store(total, (zero,), product, "total", "sum"))
    first, second = ([Barrier()] if wanted else [] for wanted in barriers)
    body = block(
        Store(total, (zero,), Imm(0.0, "f32"), "total"),
        For(step, "serial", block(*loads, *first, one, *second)),
        Store(out, (_at(by, ty), _at(bx, tx)), Load(total, (zero,)), "out"),
    )
    loops: list[tuple[Index, Kind, Axis]] = [
        (by, "block", "y"), (bx, "block", "x"), (ty, "thread", "y"), (tx, "thread", "x"),
    ]  # fmt: skip
    return Nest("matmul", (a, b), (out,), block(_grid(body, *loops)))


def _operands() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((_SIZE, _SIZE)).astype(np.float32) for _ in range(2)]


def test_a_tiled_product_with_shared_memory_and_barriers() -> None:
    nest = tiled_matmul()
    check_grid(nest)
    a, b = _operands()
    np.testing.assert_allclose(interpret(nest, [a, b])[0], a @ b, rtol=1e-4, atol=1e-5)


def test_a_grid_is_printed() -> None:
    assert print_nest(tiled_matmul()).text == (
        "kernel matmul(a: f32[8, 8], b: f32[8, 8], out: f32[8, 8]):\n"
        "  scratch total: f32[1]\n"
        "  shared tile_a: f32[4, 4]\n"
        "  shared tile_b: f32[4, 4]\n"
        "  block.y by in 2:\n"
        "    block.x bx in 2:\n"
        "      thread.y ty in 4:\n"
        "        thread.x tx in 4:\n"
        "          total[0] = 0.0  # total\n"
        "          for step in 2:\n"
        "            tile_a[ty, tx] = a[((by * 4) + ty), ((step * 4) + tx)]  # tile_a\n"
        "            tile_b[ty, tx] = b[((step * 4) + ty), ((bx * 4) + tx)]  # tile_b\n"
        "            barrier\n"
        "            for k in 4:\n"
        "              total[0] += (tile_a[ty, k] * tile_b[k, tx])  # total\n"
        "            barrier\n"
        "          out[((by * 4) + ty), ((bx * 4) + tx)] = total[0]  # out\n"
    )


@pytest.mark.parametrize(
    ("barriers", "says"),
    [
        ((False, True), "before it is set"),
        ((True, False), "by another thread since the last barrier"),
    ],
)
def test_a_missing_barrier_is_a_race(barriers: tuple[bool, bool], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        interpret(tiled_matmul(barriers=barriers), _operands())


def test_shared_memory_is_unset_when_a_block_begins() -> None:
    out = _buffer("out", "output", 2)
    kept = _buffer("kept", "shared", 1)
    b, t, zero = Index("b", 2), Index("t", 1), Imm(0, INDEX)
    first = If(binary("lt", b, Imm(1, INDEX)), Store(kept, (zero,), Imm(1.0, "f32"), "kept"))
    body = block(first, Store(out, (b,), Load(kept, (zero,)), "out"))
    nest = Nest("test", (), (out,), block(_grid(body, (b, "block", "x"), (t, "thread", "x"))))
    with pytest.raises(AssertionError, match="before it is set"):
        interpret(nest, [])


def test_scratch_belongs_to_one_thread_across_barriers() -> None:
    out, own = _buffer("out", "output", 4), _buffer("own", "scratch", 1)
    b, t, zero = Index("b", 1), Index("t", 4), Imm(0, INDEX)
    given = _buffer("given", "input", 4)
    body = block(
        Store(own, (zero,), Load(given, (t,)), "own"),
        Barrier(),
        Store(out, (t,), Load(own, (zero,)), "out"),
    )
    grid = block(_grid(body, (b, "block", "x"), (t, "thread", "x")))
    values = np.arange(4, dtype=np.float32)
    assert (interpret(Nest("test", (given,), (out,), grid), [values])[0] == values).all()


def _with(nest: Nest, change: object) -> Nest:
    return nest.with_body(transform(nest.body, change))  # type: ignore[arg-type]


def _refused(nest: Nest) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        check_grid(nest)
    assert caught.value.hint
    return caught.value


def test_a_barrier_needs_threads() -> None:
    def serial(stmt: Stmt) -> Stmt | None:
        thread = isinstance(stmt, For) and stmt.kind == "thread"
        return replace(stmt, kind="serial", axis="") if thread else None  # type: ignore[call-arg]

    error = _refused(_with(tiled_matmul(), serial))
    assert (error.code, error.message) == ("S016", "a barrier is outside thread loops")


@pytest.mark.parametrize("of_thread", [True, False])
def test_a_barrier_is_in_no_condition_that_threads_may_answer_differently(of_thread: bool) -> None:
    nest = tiled_matmul()
    wanted = "ty" if of_thread else "by"
    found: list[Index] = []

    def note(stmt: Stmt) -> None:
        if isinstance(stmt, For) and stmt.name == wanted:
            found.append(stmt.index)

    _with(nest, note)
    cond = binary("lt", found[0], Imm(1, INDEX))
    guarded = _with(nest, lambda s: If(cond, s) if isinstance(s, Barrier) else None)
    if not of_thread:
        check_grid(guarded)
        return
    error = _refused(guarded)
    assert error.code == "S016"
    assert "ty" in error.message


def test_a_condition_on_memory_may_differ_among_threads() -> None:
    nest = tiled_matmul()
    zero = Imm(0, INDEX)
    cond = binary("lt", Load(nest.inputs[0], (zero, zero)), Imm(0.0, "f32"))
    error = _refused(_with(nest, lambda s: If(cond, s) if isinstance(s, Barrier) else None))
    assert error.code == "S016"


def test_shared_memory_needs_a_block() -> None:
    def without_blocks(stmt: Stmt) -> Stmt | None:
        grid = isinstance(stmt, For) and stmt.kind in ("block", "thread")
        if isinstance(stmt, Barrier):
            return block()
        return replace(stmt, kind="serial", axis="") if grid else None  # type: ignore[call-arg]

    assert _refused(_with(tiled_matmul(), without_blocks)).code == "S017"


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        (("serial", "block.x"), "is not an outermost loop"),
        (("thread.x", "serial"), "is not nested directly in block or thread loops"),
        (("block.x", "block.x"), "bound to block.x"),
    ],
)
def test_a_grid_s_loops_are_outermost_each_along_its_axis(
    kinds: tuple[str, ...], says: str
) -> None:
    nest, _, _ = plain("chain", 4, 6)
    s = Schedule(nest)
    names = [s.nest.body.stmts[0].name, s.nest.body.stmts[0].body.name]  # type: ignore[union-attr]
    *before, last = [(n, axis) for n, axis in zip(names, kinds, strict=True) if axis != "serial"]
    for name, axis in before:
        s.bind(name, axis)
    with pytest.raises(ScheduleError) as caught:
        s.bind(*last)
    assert caught.value.code == "S015"
    assert says in caught.value.message


def test_binding_is_a_recorded_primitive_and_keeps_results() -> None:
    nest, arrays, expected = plain("matmul", 8, 6)
    s = Schedule(nest)
    for loop, axis in _bindings(s):
        s.bind(loop, axis)
    assert "block.x" in str(s)
    assert "bind(loop=" in s.text
    assert str(Schedule.replay(nest, s.text)) == str(s)
    found = interpret(s.finished(), arrays)
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def _bindings(s: Schedule) -> list[tuple[str, str]]:
    names: dict[str, str] = {}
    for stmt in s.nest.body.stmts:
        assert isinstance(stmt, For)
        names[stmt.name] = "block.x"
        if isinstance(stmt.body, For):
            names[stmt.body.name] = "thread.x"
    return list(names.items())


def test_a_stage_moves_to_shared_memory_only_in_a_block() -> None:
    nest, arrays, expected = plain("matmul", 8, 6)
    for bound in (False, True):
        s = Schedule(nest)
        if bound:
            s.bind("out.i", "block.x")
            s.compute_at("product", "out.i", "shared")
            assert "shared product: f32[1, 6]" in str(s)
            found = interpret(s.finished(), arrays)
            np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
            continue
        with pytest.raises(ScheduleError) as caught:
            s.compute_at("product", "out.i", "shared")
        assert caught.value.code == "S017"


def test_a_barrier_is_not_among_lanes() -> None:
    def lanes(stmt: Stmt) -> Stmt | None:
        step = isinstance(stmt, For) and stmt.name == "step"
        return replace(stmt, kind="vector") if step else None  # type: ignore[call-arg]

    error = _refused(_with(tiled_matmul(), lanes))
    assert (error.code, error.message) == ("S016", "a barrier is inside the vectorized loop step")


def test_unknown_axes_and_bound_loops_are_refused() -> None:
    nest, _, _ = plain("chain", 4, 6)
    s = Schedule(nest)
    (name, _), *_ = _bindings(s)
    for axis in ("block", "grid.x", "thread.w"):
        with pytest.raises(ScheduleError) as caught:
            s.bind(name, axis)
        assert caught.value.code == "S014"
    s.bind(name, "block.x")
    for again in (lambda: s.bind(name, "block.y"), lambda: s.split(name, 2)):
        with pytest.raises(ScheduleError) as caught:
            again()
        assert caught.value.code == "S006"


def test_a_reduction_is_not_spread_over_blocks() -> None:
    nest, _, _ = plain("matmul", 8, 6)
    s = Schedule(nest)
    s.reorder("product.k", "product.i", "product.j")
    with pytest.raises(ScheduleError) as caught:
        s.bind("product.k", "block.x")
    assert caught.value.code == "S009"


def test_the_cpu_refuses_a_grid() -> None:
    nest = tiled_matmul()
    with pytest.raises(ScheduleError) as caught:
        emit_kernel(nest, print_nest(nest), "k", host())
    assert caught.value.code == "S043"
    assert caught.value.message == "matmul cannot run on a CPU: loop by is bound to block.y"
