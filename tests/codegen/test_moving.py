"""Transposes of any rank and dtype, turned in registers, and stores past the caches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from guarded import run
from sized import SizedKernel, primitive

from clew import te
from clew.codegen.kernel import emit_kernel
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Expr, Var
from clew.ir.types import TensorType, to_numpy
from clew.loop.interpret import interpret
from clew.loop.ir import Nest, Store, walk
from clew.loop.lower import lower
from clew.loop.printer import print_nest
from clew.loop.schedule import Schedule
from clew.machine.target import Target, host, target_of
from clew.ops.registry import get_op
from clew.runtime.guard import GuardSide
from clew.schedules.plan import schedule_kernel
from clew.support.errors import ScheduleError

TURNS = [
    ((37, 50), (1, 0)),
    ((64, 48), (1, 0)),
    ((3, 65), (1, 0)),
    ((65, 3), (1, 0)),
    ((2, 5, 7, 19), (0, 2, 3, 1)),
    ((2, 19, 5, 7), (0, 3, 1, 2)),
    ((2, 9, 3, 18), (0, 2, 1, 3)),
    ((2, 17, 3, 18), (0, 2, 3, 1)),
    ((3, 4, 5, 34), (3, 2, 1, 0)),
    ((2, 3, 4, 2, 17), (4, 0, 3, 1, 2)),
]
DTYPES = ("f32", "f16", "bf16", "i8", "i64", "bool")


def transpose(shape: tuple[int, ...], order: tuple[int, ...], dtype: str) -> Nest:
    x = te.placeholder(shape, dtype, "x")
    sizes = tuple(shape[n] for n in order)

    def element(*indices: te.Scalar) -> te.Scalar:
        places = dict(zip(order, indices, strict=True))
        return x[tuple(places[n] for n in range(len(shape)))]

    return lower("turn", [x], [te.compute(sizes, element, "y")])


def values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    bits = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, shape)
    return bits.astype(to_numpy(dtype))


def small_caches(target: Target) -> Target:
    """Every output is too large for them."""
    return replace(target, l2_bytes=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "order"), TURNS)
def test_any_transpose(shape: tuple[int, ...], order: tuple[int, ...], dtype: str) -> None:
    x = values(shape, dtype)
    for target in (host(), small_caches(host())):
        schedule = schedule_kernel(transpose(shape, order, dtype), target).schedule
        for side in GuardSide:
            found = run(schedule.finished(), [x], target, side, 2)
            np.testing.assert_array_equal(found, x.transpose(order))


@pytest.mark.parametrize("name", ["cpu-avx2", "cpu-sse"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_transposes_of_narrower_vectors(name: str, dtype: str) -> None:
    narrow = target_of(name)
    target = replace(narrow, triple=host().triple)
    for shape, order in TURNS[:4]:
        x = values(shape, dtype)
        schedule = schedule_kernel(transpose(shape, order, dtype), target).schedule
        found = run(schedule.finished(), [x], target, GuardSide.END, 1)
        np.testing.assert_array_equal(found, x.transpose(order))


def test_a_tail_joins_a_transpose() -> None:
    m, n = 40, 35
    x, y = te.placeholder((m, n), "f32", "x"), te.placeholder((n, m), "f32", "y")
    turned = te.compute((n, m), lambda i, j: x[j, i], "turned")
    total = te.compute((n, m), lambda i, j: turned[i, j] * 2.0 + y[i, j], "total")
    schedule = schedule_kernel(lower("add", [x, y], [total]), host()).schedule
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((m, n), (n, m))]
    found = run(schedule.finished(), arrays, host(), GuardSide.END, 2)
    np.testing.assert_allclose(found, arrays[0].T * 2 + arrays[1], rtol=1e-6)


def scaled(n: int) -> Nest:
    x = te.placeholder((n,), "f32", "x")
    return lower("scale", [x], [te.compute((n,), lambda i: x[i] * 2.0, "y")])


def test_large_outputs_go_past_the_caches() -> None:
    for target, past in ((host(), False), (small_caches(host()), True)):
        nest = schedule_kernel(scaled(1000), target).schedule.finished()
        assert any(isinstance(s, Store) and s.nontemporal for s in walk(nest.body)) is past


@pytest.mark.parametrize(
    ("name", "rows", "past"),
    [("cpu-avx2", 4096, False), ("cpu-avx512", 4096, True), ("cpu-avx512", 4104, False)],
)
def test_large_transposes_go_past_the_caches_in_whole_lines(
    name: str, rows: int, past: bool
) -> None:
    nest = transpose((rows, 2048), (1, 0), "f32")
    found = schedule_kernel(nest, target_of(name)).schedule.finished()
    assert any(isinstance(s, Store) and s.nontemporal for s in walk(found.body)) is past


@pytest.mark.parametrize("n", [1000, 1024])
def test_stores_past_the_caches(n: int) -> None:
    schedule = Schedule(scaled(n))
    schedule.nontemporal("y")
    outer, inner = schedule.split("y.i", 16)
    schedule.vectorize(inner)
    schedule.parallel(outer)
    assert "nontemporal y[" in str(schedule)
    x = np.arange(n, dtype=np.float32)
    np.testing.assert_array_equal(interpret(schedule.finished(), [x])[0], 2 * x)
    for side in GuardSide:  # at one side the output starts at a page, at the other it may not
        found = run(schedule.finished(), [x], host(), side, 2)
        np.testing.assert_array_equal(found, 2 * x)


def test_only_what_is_written_once_goes_past_the_caches() -> None:
    x = te.placeholder((8, 4), "f32", "x")
    k = te.reduce_axis(4, "k")
    nest = lower("sums", [x], [te.compute((8,), lambda i: te.sum(x[i, k], k), "y")])
    with pytest.raises(ScheduleError) as caught:
        Schedule(nest).nontemporal("y")
    assert caught.value.code == "S013"
    with pytest.raises(ScheduleError) as caught:
        Schedule(nest).nontemporal("z")
    assert caught.value.code == "S002"


def test_lanes_in_a_known_order_are_one_load() -> None:
    """As in rotary embeddings of neighbors: pairs, of which each lane reads both."""
    rows, n = 3, 46
    x, y = te.placeholder((rows, n), "f32", "x"), te.placeholder((rows, n // 2), "f32", "y")

    def element(i: te.Scalar, j: te.Scalar) -> te.Scalar:
        even, odd, factor = x[i, j // 2 * 2], x[i, j // 2 * 2 + 1], y[i, j // 2]
        return te.select(j % 2 < 1, even * factor - odd, odd * factor + even)

    nest = lower("pairs", [x, y], [te.compute((rows, n), element, "z")])
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((rows, n), (rows, n // 2))]
    even, odd = arrays[0][:, ::2], arrays[0][:, 1::2]
    expected = np.stack((even * arrays[1] - odd, odd * arrays[1] + even), 2).reshape(rows, n)
    for target in (host(), replace(target_of("cpu-avx2"), triple=host().triple)):
        schedule = schedule_kernel(nest, target).schedule
        for side in GuardSide:
            found = run(schedule.finished(), arrays, target, side, 2)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first", [1, 2, 5])
def test_a_run_may_be_one_element(first: int) -> None:
    """A rolled row: most lanes are one run, the last ones another."""
    shape = (3, 17)
    x = te.placeholder(shape, "f32", "x")
    rolled = te.compute(shape, lambda i, j: x[i, (j + first) % 17], "y")
    schedule = schedule_kernel(lower("roll", [x], [rolled]), host()).schedule
    array = values(shape, "f32")
    for side in GuardSide:
        found = run(schedule.finished(), [array], host(), side, 1)
        np.testing.assert_array_equal(found, np.roll(array, -first, axis=1))


def test_rows_whose_distance_only_a_run_knows_are_turned() -> None:
    text = _emitted((SymDim.symbol("m"), SymDim.symbol("n")), (1, 0))
    rows = text.count("load <4 x float>")
    # 16 rows for each four columns: tiles of 16 and of 8, in blocks of two vectors and of one.
    assert rows == 2 * (4 + 2) * 16


def test_lanes_at_different_distances_are_different_loads() -> None:
    x = te.placeholder((16, 16, SymDim.symbol("n")), "f32", "x")
    y = te.compute((16,), lambda j: x[j, 0, 0] - x[0, j, 0] * 2.0, "y")
    target = target_of("cpu-avx512")
    nest = schedule_kernel(lower("lanes", [x], [y]), target).schedule.nest
    text = emit_kernel(nest, print_nest(nest), "lanes", target).llvm
    assert text.count("call <16 x float> @llvm.masked.gather") == 2


SHORT = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 66)


def test_short_axes_of_free_sizes_are_turned() -> None:
    x = Var("x", TensorType(tuple(SymDim.symbol(n, least=0) for n in "abc"), "f32"))
    kernel = SizedKernel(primitive(get_op("transpose")(x, axes=(0, 2, 1)), [x]), target_of("cpu"))
    _check_sizes(kernel, [(2, m, n) for m in SHORT for n in (3, SHORT[-1 - m % len(SHORT)])])


def test_lines_of_free_sizes_are_enlarged() -> None:
    """Pairs of lanes read one element, also in the remainder of a line."""
    x = Var("x", TensorType(tuple(SymDim.symbol(n, least=1) for n in "abc"), "f32"))
    y: Expr = get_op("repeat")(x, repeats=2, axis=2, size=2 * SymDim.symbol("c"))
    kernel = SizedKernel(primitive(y, [x]), target_of("cpu"))
    _check_sizes(kernel, [(2, 3, n) for n in SHORT if n])


def _check_sizes(kernel: SizedKernel, shapes: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(0)
    for turn, shape in enumerate(shapes):
        given = [rng.standard_normal(shape, np.float32)]
        sizes = dict(zip("abc", shape, strict=True))
        (found,) = kernel.run(given, sizes, side=list(GuardSide)[turn % 2])
        np.testing.assert_array_equal(found, kernel.expected(given, sizes)[0], str(shape))


def _emitted(shape: tuple[Dim, ...], order: tuple[int, ...]) -> str:
    """Returns the LLVM text of a transpose with vectors of 16 lanes."""
    x = te.placeholder(shape, "f32", "x")
    sizes = tuple(shape[n] for n in order)
    y = te.compute(sizes, lambda *i: x[tuple(i[order.index(n)] for n in range(len(i)))], "y")
    target = target_of("cpu-avx512")
    nest = schedule_kernel(lower("transpose", [x], [y]), target).schedule.nest
    return emit_kernel(nest, print_nest(nest), "transpose", target).llvm


@pytest.mark.parametrize("name", ["cpu", "cpu-avx2"])
@pytest.mark.parametrize("block", [4, 8, 16])
@pytest.mark.parametrize(
    ("height", "width", "pad"), [(5, 7, 0), (9, 35, 1), (1, 20, 3), (33, 4, 2)]
)
def test_blocked_images(height: int, width: int, pad: int, block: int, name: str) -> None:
    """To blocks of channels, with padding, and back."""
    target = host() if name == "cpu" else replace(target_of(name), triple=host().triple)
    for dtype in ("f32", "bf16"):
        x = te.placeholder((2, 3 * block, height, width), dtype, "x")

        def element(n: te.Scalar, o: te.Scalar, h: te.Scalar, w: te.Scalar, i: te.Scalar, x=x):  # type: ignore[no-untyped-def]
            inside = (h >= pad) & (h < height + pad) & (w >= pad) & (w < width + pad)
            value = x[n, o * block + i, h - pad, w - pad]
            return te.select(inside, value, te.as_scalar(0, x.dtype))

        shape = (2, 3, height + 2 * pad, width + 2 * pad, block)
        given = values((2, 3 * block, height, width), dtype)
        wide = [(0, 0), (0, 0), (pad, pad), (pad, pad)]
        padded = np.pad(given, wide).reshape(2, 3, block, *shape[2:4])
        wanted = padded.transpose(0, 1, 3, 4, 2)
        nest = lower("block", [x], [te.compute(shape, element, "y")])
        schedule = schedule_kernel(nest, target).schedule.finished()
        y = te.placeholder(shape, dtype, "y")
        back = te.compute(
            (2, 3 * block, *shape[2:4]), lambda n, c, h, w, y=y: y[n, c // block, h, w, c % block],
            "x",
        )  # fmt: skip
        turned = schedule_kernel(lower("plain", [y], [back]), target).schedule.finished()
        for side in GuardSide:
            found = run(schedule, [given], target, side, 2)
            np.testing.assert_array_equal(found.reshape(shape), wanted)
            plain = run(turned, [np.ascontiguousarray(wanted)], target, side, 1)
            np.testing.assert_array_equal(plain.reshape(np.pad(given, wide).shape),
                                          np.pad(given, wide))  # fmt: skip


@pytest.mark.parametrize("name", ["cpu", "cpu-avx2"])
@pytest.mark.parametrize(
    ("rows", "columns", "step"), [(5, 7, 2), (9, 17, 2), (3, 20, 3), (1, 9, 4)]
)
def test_results_of_transposed_convolutions(rows: int, columns: int, step: int, name: str) -> None:
    """Pixels alternate between `step` images, whose channels are in blocks."""
    target = host() if name == "cpu" else replace(target_of(name), triple=host().triple)
    for block in (8, 16):
        x = te.placeholder((step * step, rows, columns, block), "f32", "x")
        shape = (block, rows * step, columns * step)
        image = te.compute(
            shape,
            lambda c, h, w, x=x: x[h % step * step + w % step, h // step, w // step, c],
            "y",
        )
        given = values((step * step, rows, columns, block), "f32")
        wanted = given.reshape(step, step, rows, columns, block).transpose(4, 2, 0, 3, 1)
        nest = schedule_kernel(lower("turn", [x], [image]), target).schedule.finished()
        for side in GuardSide:
            found = run(nest, [given], target, side, 2)
            np.testing.assert_array_equal(found.reshape(shape), wanted.reshape(shape))
