"""Small computations to schedule, one of each kind that kernels are made of, and random steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from clew import te
from clew.loop.ir import Nest, Store, loops, walk
from clew.loop.lower import lower
from clew.loop.schedule import Schedule
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


_FACTORS = st.sampled_from([1, 2, 3, 4, 5, 8])


def draw_step(draw: Any, schedule: Schedule) -> tuple[str, dict[str, Any]]:
    """Draws a primitive and arguments that name what is there, legal or not."""
    names = list(dict.fromkeys(loop.name for loop in loops(schedule.nest.body)))
    stages = list(dict.fromkeys(s.stage for s in walk(schedule.nest.body) if isinstance(s, Store)))
    loop, stage = st.sampled_from(names), st.sampled_from(stages)
    name = draw(
        st.sampled_from(
            ["split", "split", "fuse", "reorder", "vectorize", "unroll", "parallel", "hoist",
             "inline", "compute_at", "compute_at", "cache_write", "cache_read", "rfactor",
             "prefetch", "partition", "check_whole", "skip_padding", "share_guards", "flatten",
             "overlap", "widen"]
        )
    )  # fmt: skip
    match name:
        case "split":
            tail = draw(st.sampled_from(["peel", "balance", "guard"]))
            return name, {"loop": draw(loop), "factor": draw(_FACTORS), "tail": tail}
        case "fuse":
            n = draw(st.integers(0, max(0, len(names) - 2)))
            return name, {"outer": names[n], "inner": names[min(n + 1, len(names) - 1)]}
        case "reorder":
            order = draw(st.lists(loop, min_size=2, max_size=3, unique=True))
            return name, {"order": tuple(order)}
        case "inline" | "cache_write":
            return name, {"stage": draw(stage)}
        case "cache_read":
            buffer = st.sampled_from([b.name for b in schedule.nest.inputs])
            axes = draw(st.lists(loop, max_size=3, unique=True))
            return name, {"stage": draw(stage), "buffer": draw(buffer), "axes": tuple(axes)}
        case "compute_at":
            scope = draw(st.sampled_from(["scratch", "register", "workspace"]))
            return name, {"stage": draw(stage), "loop": draw(loop), "scope": scope}
        case "prefetch":
            buffer = st.sampled_from([b.name for b in schedule.nest.inputs])
            return name, {"buffer": draw(buffer), "ahead": draw(loop), "at": draw(loop)}
        case "overlap":
            return name, {"stage": draw(stage), "ahead": draw(loop), "at": draw(loop)}
        case "skip_padding":
            return name, {"stage": draw(stage), "lanes": draw(st.sampled_from(["", *names]))}
        case "flatten":
            chosen = draw(st.lists(stage, min_size=1, max_size=2, unique=True))
            first, count = draw(st.integers(0, 2)), draw(st.integers(2, 3))
            return name, {"stages": tuple(chosen), "first": first, "count": count}
        case "rfactor":
            lanes = draw(st.lists(loop, min_size=1, max_size=2, unique=True))
            return name, {"stage": draw(stage), "lanes": tuple(lanes)}
    return name, {"loop": draw(loop)}
