"""Checked indices in native code: what is read counts, in whatever lane, branch or loop."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from guarded import run

from clew import te
from clew.codegen.kernel import emit_kernel
from clew.loop.interpret import interpret
from clew.loop.ir import Nest
from clew.loop.lower import lower
from clew.loop.printer import print_nest
from clew.loop.schedule import Schedule
from clew.machine.target import host
from clew.runtime.guard import GuardSide
from clew.support.bounds import Places
from clew.support.errors import ClewError
from clew.te import Scalar, Tensor
from clew.te.interpret import evaluate

Array = np.ndarray[Any, Any]
ROWS = 16


class _Checks:
    """Makes checks with numbers of their own."""

    def __init__(self) -> None:
        self.count = 0

    def at(self, value: Scalar, count: int = ROWS, *, from_end: bool = True) -> Scalar:
        self.count += 1
        places = Places(f"check{self.count - 1}", 0, count, count, from_end)
        return te.Checked(value, places, site=self.count - 1)


def _outcome(found: Any) -> Any:
    """Returns what a function gives, or the code and message of its error."""
    try:
        return found()
    except ClewError as error:
        return error.code, error.message


def _vectors(nest: Nest, name: str) -> Nest:
    schedule = Schedule(nest)
    schedule.vectorize(schedule.split(name, 8, tail="guard")[1])
    return schedule.finished()


def _gathered(dtype: str, from_end: bool = True, n: int = 37) -> tuple[list[Tensor], Tensor]:
    x, a = te.placeholder((n,), dtype, "x"), te.placeholder((ROWS,), "f32", "a")
    checks = _Checks()
    return [x, a], te.compute(
        (n,), lambda i: a[checks.at(te.cast("i64", x[i]), from_end=from_end)], "y"
    )


_EXTREMES = {
    "i8": [-128, -17, -16, -1, 0, 15, 16, 127],
    "u8": [0, 15, 16, 255],
    "i32": [-(2**31), -17, -16, 15, 16, 2**31 - 1],
    "i64": [-(2**63), -(2**63) + 16, -(2**32), -17, -16, 15, 16, 2**32, 2**32 + 1, 2**63 - 1],
}


@pytest.mark.parametrize("vectors", [False, True], ids=["scalars", "vectors"])
@pytest.mark.parametrize("from_end", [False, True])
@pytest.mark.parametrize(
    ("dtype", "index"), [(d, i) for d, all_ in _EXTREMES.items() for i in all_]
)
def test_an_index_of_any_dtype(dtype: str, index: int, from_end: bool, vectors: bool) -> None:
    inputs, y = _gathered(dtype, from_end)
    nest = lower("kernel", inputs, [y])
    nest = _vectors(nest, "y.i") if vectors else nest
    rng = np.random.default_rng(0)
    numpy_dtype = {"i8": np.int8, "u8": np.uint8, "i32": np.int32, "i64": np.int64}[dtype]
    places = rng.integers(0, ROWS, 37).astype(numpy_dtype)
    a = rng.random(ROWS, np.float32)
    inside = (-ROWS if from_end else 0) <= index < ROWS
    for position in (0, 12, 36):
        arrays = [places.copy(), a]
        arrays[0][position] = index
        for side in GuardSide:
            found = _outcome(lambda: run(nest, arrays, host(), side, 2))  # noqa: B023
            if inside:
                np.testing.assert_array_equal(found, a[arrays[0].astype(np.int64)])
            else:
                wanted = f"check0: index {index} is out of range for axis 0 of size {ROWS}"
                assert found == ("I320", wanted)


def test_only_lanes_that_are_wanted_count() -> None:
    """An index that the condition leaves out may be anything, also in a part of a vector."""
    x, a = te.placeholder((37,), "i64", "x"), te.placeholder((ROWS,), "f32", "a")
    checks = _Checks()
    y = te.compute((37,), lambda i: te.select(x[i].equal(-100), 0.0, a[checks.at(x[i])] * 2.0), "y")
    plain = lower("kernel", [x, a], [y])
    rng = np.random.default_rng(1)
    places = rng.integers(-ROWS, ROWS, 37)
    places[[0, 3, 9, 36]] = -100
    table = rng.random(ROWS, np.float32)
    wanted = np.where(places == -100, 0, table[np.maximum(places, -ROWS)] * 2)
    for nest in (plain, _vectors(plain, "y.i")):
        for side in GuardSide:
            np.testing.assert_array_equal(run(nest, [places, table], host(), side, 1), wanted)
            wrong = places.copy()
            wrong[36] = -101
            found = _outcome(lambda: run(nest, [wrong, table], host(), side, 1))  # noqa: B023
            assert found == ("I320", "check0: index -101 is out of range for axis 0 of size 16")


def test_one_index_for_all_lanes_under_a_mask() -> None:
    """The row's index counts where some lane of a vector reads the row."""
    x, a = te.placeholder((5,), "i64", "x"), te.placeholder((ROWS, 24), "f32", "a")
    m = te.placeholder((5, 24), "bool", "m")
    checks = _Checks()
    y = te.compute((5, 24), lambda i, j: te.select(m[i, j], a[checks.at(x[i]), j], 0.0), "y")
    nest = _vectors(lower("kernel", [x, a, m], [y]), "y.j")
    table = np.random.default_rng(2).random((ROWS, 24), np.float32)
    places, mask = np.array([3, 99, -16, 15, -17]), np.ones((5, 24), bool)
    mask[[1, 4]] = False
    wanted = np.where(mask, table[np.clip(places, -ROWS, ROWS - 1)], 0)
    for side in GuardSide:
        np.testing.assert_array_equal(run(nest, [places, table, mask], host(), side, 1), wanted)
        one = mask.copy()
        one[4, 13] = True
        found = _outcome(lambda: run(nest, [places, table, one], host(), side, 1))  # noqa: B023
        assert found == ("I320", "check0: index -17 is out of range for axis 0 of size 16")


def test_a_row_is_looked_up_once() -> None:
    """The index of a row is read and checked outside the loop along the row."""
    x, a = te.placeholder((5,), "i64", "x"), te.placeholder((ROWS, 64), "f32", "a")
    checks = _Checks()
    y = te.compute((5, 64), lambda i, j: a[checks.at(x[i]), j], "y")
    nest = _vectors(lower("kernel", [x, a], [y]), "y.j")
    text = emit_kernel(nest, print_nest(nest), "kernel", host(), debug=False).llvm
    rows, columns = text.index("icmp uge"), text.index("<8 x float>")
    assert text.count("icmp uge") == 2, "once for each row, once at the end"
    assert text[rows:columns].count("loop") >= 2, "before the inner loop"


def _walk(depth: int, checks: _Checks) -> tuple[list[Tensor], Tensor]:
    x, a = te.placeholder((37,), "i64", "x"), te.placeholder((ROWS,), "f32", "a")
    b, c = te.placeholder((ROWS,), "i64", "b"), te.placeholder((ROWS,), "i64", "c")

    def at(i: Scalar) -> Scalar:
        node = checks.at(x[i])
        for _ in range(depth):
            node = checks.at(te.select(a[node] > 0.0, b[node], c[node]))
        return a[node]

    return [x, a, b, c], te.compute((37,), at, "walk")


def test_code_of_long_chains_has_each_check_once() -> None:
    sizes = []
    for depth in (12, 48):
        inputs, walk = _walk(depth, _Checks())
        plain = lower("kernel", inputs, [walk])
        for nest in (plain, _vectors(plain, "walk.i")):
            sizes.append(len(emit_kernel(nest, print_nest(nest), "k", host()).llvm))
    assert sizes[2] < 6 * sizes[0]
    assert sizes[3] < 6 * sizes[1]


def _drawn(
    rng: random.Random, inputs: list[Tensor], checks: _Checks, depth: int, i: Scalar
) -> Scalar:
    """Returns the element of a random computation in which indices lead to indices."""
    x, a, b, c = inputs
    places: list[Scalar] = [checks.at(x[i]), (i * 5) % ROWS]
    values: list[Scalar] = [a[places[1]]]
    for _ in range(depth):
        p, q = rng.choice(places[-2:]), rng.choice(places[-3:])
        v, w = rng.choice(values[-2:]), rng.choice(values)
        cond = rng.choice([a[p] > v, a[p] < a[q], v < w, (p % 3).equal(0)])
        match rng.randrange(5):
            case 0:
                places.append(checks.at(te.select(cond, b[p], c[q])))
            case 1:
                places.append(te.select(cond, checks.at(b[p]), q))
            case 2:
                inner = te.select(q >= 3, checks.at(c[q]), p)
                places.append(te.select(cond, te.select(v > 0.0, checks.at(b[inner]), inner), q))
            case 3:
                values.append(te.select(cond, a[checks.at(b[q])] * 0.5, v) + w)
            case 4:
                values.append(te.select(cond, a[p], te.select(v < 0.25, a[checks.at(c[q])], w)))
    return values[-1] + a[places[-1]]


@pytest.mark.parametrize("seed", range(16))
def test_random_chains_fail_where_numpy_does(seed: int) -> None:
    rng = random.Random(seed)
    x, a = te.placeholder((37,), "i64", "x"), te.placeholder((ROWS,), "f32", "a")
    b, c = te.placeholder((ROWS,), "i64", "b"), te.placeholder((ROWS,), "i64", "c")
    inputs, checks = [x, a, b, c], _Checks()
    depth = rng.choice((2, 4, 8, 14))
    y = te.compute((37,), lambda i: _drawn(rng, inputs, checks, depth, i), "y")
    plain = lower("kernel", inputs, [y])
    numbers = np.random.default_rng(seed)
    for share in (0.0, 0.02, 0.1):
        arrays = [numbers.integers(-ROWS, ROWS, n) for n in (37, ROWS, ROWS)]
        arrays.insert(1, numbers.random(ROWS, np.float32))
        for array in (arrays[0], *arrays[2:]):
            outside = numbers.random(len(array)) < share
            array[outside] = numbers.choice([ROWS, -ROWS - 1, 2**40, -(2**63)])
        given = dict(zip(inputs, arrays, strict=True))
        wanted = _outcome(lambda: evaluate([y], given)[0])  # noqa: B023
        for nest in (plain, _vectors(plain, "y.i")):
            side = rng.choice(list(GuardSide))
            found = _outcome(lambda: run(nest, arrays, host(), side, 1))  # noqa: B023
            walked = _outcome(lambda: interpret(nest, arrays)[0])  # noqa: B023
            for result in (found, walked):
                assert isinstance(result, tuple) == isinstance(wanted, tuple), (wanted, result)
                if not isinstance(wanted, tuple):
                    np.testing.assert_allclose(result, wanted, rtol=1e-6)
