"""Scalar expressions whose parts are used again and again: each part costs once, wherever."""

from __future__ import annotations

import functools
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from guarded import run

import clew
import clew.ops
from clew import te
from clew.codegen.kernel import emit_kernel
from clew.explorer.views.code import code_of
from clew.explorer.views.schedule import schedule_steps
from clew.ir.expr import Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.loop.affine import Simplifier
from clew.loop.lower import lower
from clew.loop.printer import print_nest
from clew.loop.schedule import Schedule
from clew.machine.target import host
from clew.ops.registry import get_op
from clew.runtime.guard import GuardSide
from clew.schedules import schedule_kernel
from clew.te.analysis import kind_of
from clew.te.expr import Index, Scalar, binary, minimum, spelled_out
from clew.te.interpret import evaluate
from clew.te.tensor import Tensor

ROWS = 16
Array = np.ndarray[Any, Any]


def walk(start: Tensor, a: Tensor, b: Tensor, c: Tensor, depth: int) -> Tensor:
    """A tree walk: from each node to its left or its right one, `depth` times."""

    def at(i: Scalar) -> Scalar:
        node = start[i]
        for _ in range(depth):
            node = te.select(a[node] > 0.0, b[node], c[node])
        return a[node]

    return te.compute(start.shape, at, "walk")


def operands(n: int = 37) -> list[Tensor]:
    return [
        te.placeholder((n,), "i64", "x"),
        te.placeholder((ROWS,), "f32", "a"),
        te.placeholder((ROWS,), "i64", "b"),
        te.placeholder((ROWS,), "i64", "c"),
    ]


def numbers(n: int = 37) -> list[Array]:
    rng = np.random.default_rng(5)
    steps = [rng.integers(0, ROWS, size) for size in (n, ROWS, ROWS)]
    return [steps[0], rng.standard_normal(ROWS).astype(np.float32), steps[1], steps[2]]


def walked(arrays: list[Array], depth: int) -> Array:
    node, a, b, c = arrays
    for _ in range(depth):
        node = np.where(a[node] > 0, b[node], c[node])
    return np.asarray(a[node])


@contextmanager
def calls_counted() -> Iterator[list[int]]:
    """Counts calls of functions of the compiler."""
    counted = [0]

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call" and "/clew/" in frame.f_code.co_filename:
            counted[0] += 1

    sys.setprofile(note)
    try:
        yield counted
    finally:
        sys.setprofile(None)


def compiled_down(make: Callable[[], tuple[list[Tensor], Tensor]]) -> tuple[int, str, str]:
    """Returns the calls that it takes to make a kernel, its loops and its code."""
    target = host()
    with calls_counted() as calls:
        inputs, output = make()
        kind_of([output])
        schedule = schedule_kernel(lower("kernel", inputs, [output]), target).schedule
        nest = schedule.finished()
        printed = print_nest(nest)
        made = emit_kernel(nest, printed, "kernel", target)
    return calls[0], printed.text, made.llvm


def a_walk(depth: int) -> tuple[list[Tensor], Tensor]:
    x, a, b, c = inputs = operands()
    return inputs, walk(x, a, b, c, depth)


def hashed(depth: int) -> tuple[list[Tensor], Tensor]:
    """Index arithmetic without loads, whose every step uses the one before three times."""
    x = te.placeholder((64,), "f32", "x")

    def at(i: Scalar) -> Scalar:
        place = i
        for n in range(depth):
            place = (minimum(place * 3, place + n) + place * place) % 64
        return x[place]

    return [x], te.compute((50,), at, "hashed")


def numeric(depth: int) -> tuple[list[Tensor], Tensor]:
    """Numbers, not indices, that choose between elements step by step."""
    x = te.placeholder((50,), "f32", "x")
    b = te.placeholder((50,), "f32", "b")

    def at(i: Scalar) -> Scalar:
        value = x[i]
        for _ in range(depth):
            value = te.select(value > 0.5, value * b[i] - value, value + x[49 - i])
        return value

    return [x, b], te.compute((50,), at, "numeric")


@pytest.mark.parametrize("make", [a_walk, hashed, numeric])
def test_work_and_text_grow_with_the_expression(
    make: Callable[[int], tuple[list[Tensor], Tensor]],
) -> None:
    make(2)
    short, long = (compiled_down(functools.partial(make, depth)) for depth in (12, 48))
    for one, other in zip(short[1:], long[1:], strict=True):
        assert len(other) < 5 * len(one)
    assert long[0] < 8 * short[0]


def test_code_has_each_step_once() -> None:
    """In vectors and one by one, also behind conditions."""
    inputs, output = a_walk(30)
    target = host()
    plain = lower("walk", inputs, [output])
    vectors = Schedule(plain)
    vectors.vectorize(vectors.split("walk.i", 8, tail="guard")[1])
    for nest in (plain, vectors.finished()):
        made = emit_kernel(nest, print_nest(nest), "walk", target)
        loads = re.findall(r"= (?:load (?!ptr)|call .*@llvm\.masked\.(?:gather|load))", made.llvm)
        assert 2 * 30 < len(loads) <= 3 * 30 + 8


def test_large_shared_parts_are_printed_once() -> None:
    inputs, output = a_walk(5)
    lines = print_nest(lower("walk", inputs, [output])).lines
    assert lines[2:5] == [
        "    let %t0 = select((a[x[walk.i]] > 0.0), b[x[walk.i]], c[x[walk.i]])",
        "    let %t1 = select((a[%t0] > 0.0), b[%t0], c[%t0])",
        "    let %t2 = select((a[%t1] > 0.0), b[%t1], c[%t1])",
    ]
    short, small = a_walk(2)
    assert "let" not in print_nest(lower("walk", short, [small])).text


def test_an_expression_as_text_stays_short() -> None:
    value: Scalar = Index("i", 8)
    for _ in range(100):
        value = value * value + value
    text = spelled_out(value)
    assert text.startswith("let %t0 = ")
    assert len(text) < 10_000
    assert repr(value) == text


def test_bounds_and_simpler_forms_of_shared_indices() -> None:
    simplifier = Simplifier()
    value: Scalar = Index("i", 8)
    for n in range(60):
        cond = binary("lt", value, te.size(5 + n))
        value = te.select(cond, value + 1, minimum(value, value % 7 + value % 5))
    assert simplifier.bounds(value) == (0.0, 67.0)
    assert simplifier.number(simplifier.simplify(value)) >= 0


def test_zero_has_two_signs() -> None:
    simplifier = Simplifier()
    zero, negative = (te.as_scalar(number, "f32") for number in (0.0, -0.0))
    assert simplifier.number(zero) != simplifier.number(negative)


@functools.cache
def walking(depth: int) -> clew.ops.registry.Op:
    @clew.register_op(f"test_shared.walk{depth}")
    def declared(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return walk(x, a, b, c, depth)

    return declared


def a_model(depth: int) -> Module:
    types = [("x", 37, "i64"), ("a", ROWS, "f32"), ("b", ROWS, "i64"), ("c", ROWS, "i64")]
    params = [Var(n, TensorType((size,), dtype)) for n, size, dtype in types]
    call = get_op("sqrt")(get_op("abs")(walking(depth)(*params)))
    return Module({"main": Function(params, Tuple([call]), {"outputs": ("y",)})})


@pytest.mark.parametrize("trace", [True, False])
@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
def test_users_operators_of_long_chains_compile(opt_level: int, trace: bool) -> None:
    sizes = []
    for depth in (12, 40):
        model = clew.compile(
            a_model(depth),
            opt_level=opt_level,
            diagnostics=clew.Diagnostics(trace=trace),
            threads=2,
            cache=False,
        )
        arrays = numbers()
        found = model(*arrays)
        np.testing.assert_allclose(found, np.sqrt(np.abs(walked(arrays, depth))), rtol=1e-6)
        texts = [f"{k.loops}{k.llvm}{k.schedule}{k}" for k in model.kernels]
        if trace:
            for number, used in enumerate(model.trace.kernels):
                shown = code_of(number, used)
                texts += [*shown.loops, *shown.llvm, *shown.asm]
            for kernel in model.kernels:
                texts += [line for s in schedule_steps(kernel.schedule, {}) for line in s.loops]
        sizes.append(sum(map(len, texts)))
    assert sizes[1] < 5 * sizes[0]


def drawn(rng: random.Random, inputs: list[Tensor], depth: int, i: Scalar) -> Scalar:
    """Returns the element of a random computation whose parts are used again and again; places
    beyond a tensor are asked for only where they are not wanted.
    """
    x, a, b, c = inputs
    places: list[Scalar] = [x[i], (i * 5) % ROWS]
    values: list[Scalar] = [a[places[0]]]
    for _ in range(depth):
        p, q = rng.choice(places[-2:]), rng.choice(places[-3:])
        v, w = rng.choice(values[-2:]), rng.choice(values)
        step = rng.randrange(1, 5)
        cond = rng.choice([a[p] > v, p < q, v < w, (p % 3).equal(0)])
        match rng.randrange(7):
            case 0:
                places.append(te.select(cond, b[p], c[q]))
            case 1:
                places.append(te.select(p + step < ROWS, b[p + step], q))
            case 2:
                inner = te.select(q >= step, c[q - step], p)
                places.append(te.select(cond, te.select(v > 0.0, b[inner], inner), c[inner]))
            case 3:
                places.append((p * q + minimum(p, q)) % ROWS)
            case 4:
                values.append(te.select(cond, a[p] - v, v * 0.5 + w))
            case 5:
                far = te.select(te.all_of(p >= step, cond), a[p - step], 0.0)
                values.append(far * v + te.cast("f32", q))
            case 6:
                both = te.select(v > w, p, q)
                values.append(te.select(cond, a[both] * v, te.select(w > 0.0, a[both], v)))
    return values[-1] + a[places[-1]] * values[0]


@pytest.mark.parametrize("seed", range(12))
def test_random_shared_parts_compute_what_they_say(seed: int) -> None:
    rng = random.Random(seed)
    inputs, arrays = operands(), numbers()
    depth = rng.randrange(4, 20)
    output = te.compute((37,), lambda i: drawn(rng, inputs, depth, i), "made")
    expected = evaluate([output], dict(zip(inputs, arrays, strict=True)))[0]
    nest = lower("made", inputs, [output])
    guarded = Schedule(nest)
    guarded.vectorize(guarded.split("made.i", 8, tail="guard")[1])
    unrolled = Schedule(nest)
    unrolled.unroll(unrolled.split("made.i", 2, tail="peel")[1])
    ruled = schedule_kernel(nest, host()).schedule
    side = list(GuardSide)[seed % len(GuardSide)]
    for schedule in (Schedule(nest), guarded, unrolled, ruled):
        found = run(schedule.finished(), arrays, host(), side, 2)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
