"""Small computations to schedule, one of each kind that kernels are made of, and random steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

import numpy as np

from clew import te
from clew.loop.ir import Nest, Store, loops, walk
from clew.loop.lower import lower
from clew.loop.primitives.loops import TAILS
from clew.loop.schedule import Schedule
from clew.support.errors import ScheduleError
from clew.te.interpret import evaluate
from clew.te.tensor import Tensor

Array = np.ndarray[Any, Any]
Built = tuple[list[Tensor], list[Tensor]]


def chain(m: int, n: int) -> Built:
    """Elementwise stages, one read twice, one broadcast."""
    x, b = te.placeholder((m, n), "f32", "x"), te.placeholder((n,), "f32", "b")
    added = te.compute((m, n), lambda i, j: x[i, j] + b[j], "added")
    clipped = te.compute((m, n), lambda i, j: te.maximum(added[i, j], 0.0), "clipped")
    out = te.compute((m, n), lambda i, j: clipped[i, j] * added[i, j], "out")
    return [x, b], [out]


def even(m: int, n: int) -> Built:
    """Two elementwise stages without any broadcast."""
    x = te.placeholder((m, n), "f32", "x")
    doubled = te.compute((m, n), lambda i, j: x[i, j] * 2.0, "doubled")
    out = te.compute((m, n), lambda i, j: doubled[i, j] + 1.0, "out")
    return [x], [out]


def moved(m: int, n: int) -> Built:
    """A transpose, then a window that needs padding."""
    x = te.placeholder((m, n), "f32", "x")
    turned = te.compute((n, m), lambda i, j: x[j, i], "turned")
    padded = te.compute(
        (n + 2, m),
        lambda i, j: te.select(te.all_of(i >= 1, i < n + 1), turned[i - 1, j], 0.0),
        "padded",
    )
    out = te.compute((n, m), lambda i, j: padded[i, j] + padded[i + 2, j], "out")
    return [x], [out]


def rows(m: int, n: int) -> Built:
    """A row statistic that a later stage of the same row reads, as in a softmax."""
    x = te.placeholder((m, n), "f32", "x")
    k, again = te.reduce_axis(n, "k"), te.reduce_axis(n, "again")
    largest = te.compute((m,), lambda i: te.max(x[i, k], k), "largest")
    centered = te.compute((m, n), lambda i, j: x[i, j] - largest[i], "centered")
    total = te.compute((m,), lambda i: te.sum(centered[i, again], again), "total")
    out = te.compute((m, n), lambda i, j: centered[i, j] * total[i], "out")
    return [x], [out]


def matmul(m: int, n: int) -> Built:
    """A matrix product with its elementwise tail."""
    depth = 5
    a, b = te.placeholder((m, depth), "f32", "a"), te.placeholder((depth, n), "f32", "b")
    k = te.reduce_axis(depth, "k")
    product = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], k), "product")
    out = te.compute((m, n), lambda i, j: te.maximum(product[i, j] + b[0, j], 0.0), "out")
    return [a, b], [out]


def conv(m: int, n: int) -> Built:
    """A convolution over a padded image, its result an output itself."""
    x = te.placeholder((2, m, n), "f32", "x")
    w = te.placeholder((3, 2, 3, 3), "f32", "w")
    c, r, s = te.reduce_axis(2, "c"), te.reduce_axis(3, "r"), te.reduce_axis(3, "s")

    def inside(h: te.Scalar, v: te.Scalar) -> te.Scalar:
        return te.all_of(h >= 1, h < m + 1, v >= 1, v < n + 1)

    padded = te.compute(
        (2, m + 2, n + 2),
        lambda i, h, v: te.select(inside(h, v), x[i, h - 1, v - 1], 0.0),
        "padded",
    )
    out = te.compute(
        (3, m, n),
        lambda o, h, v: te.sum(padded[c, h + r, v + s] * w[o, c, r, s], [c, r, s]),
        "out",
    )
    return [x, w], [out]


def windows(m: int, n: int) -> Built:
    """A depthwise convolution: products with zeros of padding."""
    x = te.placeholder((2, m, n), "f32", "x")
    w = te.placeholder((2, 3, 3), "f32", "w")
    r, s = te.reduce_axis(3, "r"), te.reduce_axis(3, "s")

    def inside(h: te.Scalar, v: te.Scalar) -> te.Scalar:
        return te.all_of(h >= 1, h < m + 1, v >= 1, v < n + 1)

    padded = te.compute(
        (2, m + 2, n + 2),
        lambda i, h, v: te.select(inside(h, v), x[i, h - 1, v - 1], 0.0),
        "padded",
    )
    slid = te.compute(
        (2, m, n), lambda i, h, v: te.sum(padded[i, h + r, v + s] * w[i, r, s], [r, s]), "slid"
    )
    out = te.compute((2, m, n), lambda i, h, v: te.maximum(slid[i, h, v] + x[i, h, v], 0.0), "out")
    return [x, w], [out]


KINDS: dict[str, Callable[[int, int], Built]] = {
    "chain": chain,
    "even": even,
    "moved": moved,
    "rows": rows,
    "matmul": matmul,
    "conv": conv,
    "windows": windows,
}


def plain(kind: str, m: int, n: int) -> tuple[Nest, list[Array], list[Array]]:
    """Returns the nest of a computation, inputs of small whole numbers, and the outputs.

    All sums are exact, so that no order of them matters.
    """
    inputs, outputs = KINDS[kind](m, n)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, t.type.concrete).astype(np.float32) for t in inputs]
    expected = evaluate(outputs, dict(zip(inputs, arrays, strict=True)))
    return lower(kind, inputs, outputs), arrays, expected


def same(found: Sequence[Array], expected: Sequence[Array]) -> bool:
    """Whether outputs are equal in memory: primitives may merge their axes."""
    return all(np.array_equal(a.ravel(), b.ravel()) for a, b in zip(found, expected, strict=True))


_FACTORS = (1, 2, 3, 4, 5, 8)
PRIMITIVES = (
    "split", "fuse", "reorder", "vectorize", "unroll", "parallel", "hoist", "inline", "compute_at",
    "cache_write", "cache_read", "rfactor", "prefetch", "partition", "check_whole", "skip_padding",
    "share_guards", "flatten", "overlap", "widen", "hold_sums", "sum_parts",
)  # fmt: skip
_MOST_DRAWS = 12

# First steps, after which a draw reaches primitives that few nests allow.
OPENINGS: dict[str, tuple[Callable[[Schedule], object], ...]] = {
    "chain": (
        lambda s: s.compute_at("clipped", "out.i"),
        lambda s: s.widen("out.j", 3),
    ),
    "even": (
        lambda s: s.compute_at("doubled", "out.i").overlap("doubled", "out.i", "out.j"),
        lambda s: s.flatten("doubled", "out", first=0),
    ),
    "moved": (lambda s: s.inline("turned").inline("padded"),),
    "rows": (
        lambda s: s.rfactor("total", s.split("total.again", 2)[1]),
        lambda s: s.rfactor("largest", s.split("largest.k", 2, tail="guard")[1]),
    ),
    "matmul": (
        lambda s: s.compute_at("product", "out.j"),
        lambda s: s.rfactor("product", s.split("product.k", 2)[1]),
        lambda s: s.compute_at("product", "out.i").hold_sums("product", "product.j"),
        lambda s: s.reorder("product.k", "product.i", "product.j").hold_sums(
            "product", s.split("product.k", 2)[0]
        ),
        lambda s: s.reorder("product.k", "product.i", "product.j").sum_parts(
            "product", s.split("product.k", 2)[0]
        ),
    ),
    "conv": (lambda s: s.inline("padded").skip_padding("out"),),
    "windows": (
        lambda s: s.inline("padded").skip_padding("slid"),
        lambda s: s.inline("padded").skip_padding("slid").partition("slid.h"),
        lambda s: s.inline("padded").compute_at("slid", s.split("out.h", 4, tail="guard")[1]),
    ),
}


def draw_schedule(draw: Random, kind: str, schedule: Schedule) -> Counter[str]:
    """Applies one to six drawn steps, after an opening or none; returns how often each primitive
    and each tail of a split was applied. A step that is refused is drawn again.
    """
    opening = draw.choice([None, *OPENINGS[kind]])
    if opening is not None:
        with suppress(ScheduleError):
            opening(schedule)
    for _ in range(draw.randint(1, 6)):
        for drawn in count():
            if drawn >= _MOST_DRAWS and schedule.steps:
                break
            name, args = draw_step(draw, schedule)
            try:
                schedule.apply(name, **args)
            except ScheduleError:
                continue
            break
    found = Counter(step.primitive for step in schedule.steps)
    splits = (dict(step.args) for step in schedule.steps if step.primitive == "split")
    found.update(f"split {args.get('tail', 'peel')}" for args in splits)
    return found


def check_drawn(applied: Counter[str]) -> None:
    """Asserts that all primitives and tails are among the steps of drawn schedules."""
    wanted = {*PRIMITIVES, *(f"split {tail}" for tail in TAILS)}
    assert wanted <= applied.keys(), f"never applied: {sorted(wanted - applied.keys())}"


def draw_step(draw: Random, schedule: Schedule) -> tuple[str, dict[str, Any]]:
    """Draws a primitive and arguments that name what is there, legal or not."""
    loop = list(dict.fromkeys(loop.name for loop in loops(schedule.nest.body)))
    stage = list(dict.fromkeys(s.stage for s in walk(schedule.nest.body) if isinstance(s, Store)))
    buffer = [b.name for b in schedule.nest.inputs]
    name = draw.choice(["split", "compute_at", *PRIMITIVES])

    def some(names: Sequence[str], least: int, most: int) -> tuple[str, ...]:
        return tuple(draw.sample(names, min(len(names), draw.randint(least, most))))

    match name:
        case "split":
            tail = draw.choice(TAILS)
            args = {"loop": draw.choice(loop), "factor": draw.choice(_FACTORS), "tail": tail}
        case "fuse":
            n = draw.randrange(max(1, len(loop) - 1))
            args = {"outer": loop[n], "inner": loop[min(n + 1, len(loop) - 1)]}
        case "reorder":
            args = {"order": some(loop, 2, 3)}
        case "inline" | "cache_write":
            args = {"stage": draw.choice(stage)}
        case "cache_read":
            chosen = draw.choice(stage), draw.choice(buffer)
            args = {"stage": chosen[0], "buffer": chosen[1], "axes": some(loop, 0, 3)}
        case "compute_at":
            scope = draw.choice(["scratch", "register", "workspace"])
            args = {"stage": draw.choice(stage), "loop": draw.choice(loop), "scope": scope}
        case "prefetch":
            walked = draw.choice(loop), draw.choice(loop)
            args = {"buffer": draw.choice(buffer), "ahead": walked[0], "at": walked[1]}
        case "overlap":
            args = {
                "stage": draw.choice(stage),
                "ahead": draw.choice(loop),
                "at": draw.choice(loop),
            }
        case "skip_padding":
            args = {"stage": draw.choice(stage), "lanes": draw.choice(["", *loop])}
        case "flatten":
            place = {"first": draw.randint(0, 2), "count": draw.randint(2, 3)}
            args = {"stages": some(stage, 1, 2), **place}
        case "hold_sums" | "sum_parts":
            args = {"stage": draw.choice(stage), "loop": draw.choice(loop)}
        case "rfactor":
            args = {"stage": draw.choice(stage), "lanes": some(loop, 1, 2)}
        case "widen":
            args = {"loop": draw.choice(loop), "by": draw.choice(_FACTORS)}
        case _:
            args = {"loop": draw.choice(loop)}
    return name, args
