"""Non-maximum suppression in kernels, against NumPy: bitwise equal, behind guard pages, with values
and sizes that differ from call to call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.dims import SymDim
from clew.ir.expr import Constant, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op
from clew.runtime.program import RunHost
from clew.support.budgets import Budgets
from clew.support.errors import ClewError

from .one_operator import check

Array = np.ndarray[Any, Any]
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0]
OP = get_op("non_max_suppression")
TYPES = {"f2": "f16", "f4": "f32", "f8": "f64"}


def drawn(
    rng: np.random.Generator, batches: int, classes: int, count: int, dtype: str
) -> list[Array]:
    """Returns boxes and scores, many of them equal, some not finite, some boxes without area."""
    boxes = (rng.random((batches, count, 4)) * rng.choice([1, 10])).astype(dtype)
    scores = rng.random((batches, classes, count)).astype(dtype)
    if count and rng.integers(2):
        scores = np.round(scores * 4) / 4
        boxes[:, rng.integers(count)] = boxes[:, 0]
        boxes[:, rng.integers(count), :2] = boxes[:, 0, 2:]
    if boxes.size and scores.size and rng.integers(2):
        boxes.reshape(-1)[rng.integers(0, boxes.size, 3)] = rng.choice(SPECIAL)
        scores.reshape(-1)[rng.integers(0, scores.size, 3)] = rng.choice(SPECIAL)
    return [boxes, scores]


def limits(rng: np.random.Generator, scored: bool) -> list[Array]:
    most = np.array(rng.choice([-1, 0, 1, 3, 9, 70, 1 << 62]))
    overlap = np.array(rng.choice([0, 0.1, 0.3, 0.5, 1, np.nan, -1]))
    return [most, overlap, *([np.array(rng.choice([0.25, 0.5, np.nan, -np.inf]))] * scored)]


def model(
    shape: tuple[Any, Any, Any], dtype: str, values: list[Array], known: bool, center: bool
) -> Module:
    """Returns a model of one suppression whose limits are inputs, or `known` constants."""
    kinds = [TensorType((shape[0], shape[2], 4), dtype), TensorType(shape, dtype)]
    params = [Var(name, t) for name, t in zip(("boxes", "scores"), kinds, strict=True)]
    given = [Var(f"limit{n}", TensorType((), "f64" if n else "i64")) for n in range(len(values))]
    used: list[Expr] = [Constant(v) for v in values] if known else list(given)
    call = OP(*params, *used, center=center)
    inputs = params if known else [*params, *given]
    return Module({"main": Function(inputs, Tuple([call]), {"outputs": ("y",)})})


def same(compiled: Any, arrays: list[Array], values: list[Array], center: bool) -> None:
    count = len(compiled.inputs)
    found = compiled(*[*arrays, *values][:count])
    with np.errstate(all="ignore"):
        expected = OP.run_reference([*arrays, *values], OP.bind({"center": center}))
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("scored", [False, True])
def test_one_build_serves_all_sizes_and_limits(dtype: str, center: bool, scored: bool) -> None:
    rng = np.random.default_rng(0)
    sizes = tuple(SymDim.symbol(name) for name in ("batches", "classes", "n"))
    made = model(sizes, TYPES[dtype], limits(rng, scored), False, center)
    compiled = clew.compile(made, threads=2, cache=False, diagnostics=clew.Diagnostics(guard=True))
    for n in range(40):
        shape = int(rng.integers(1, 3)), int(rng.integers(1, 4)), int(rng.integers(1, 200))
        same(compiled, drawn(rng, *shape, dtype), limits(rng, scored), center)
        assert compiled.builds_made == 1, n
    for shape in [(0, 2, 3), (2, 0, 3), (2, 2, 0), (0, 0, 0)]:
        same(compiled, drawn(rng, *shape, dtype), limits(rng, scored), center)


@pytest.mark.parametrize("shape", [(1, 1, 5), (2, 3, 130)])
@pytest.mark.parametrize("most", [0, 1, 64, 1 << 62])
def test_known_sizes_and_limits(shape: tuple[int, int, int], most: int) -> None:
    rng = np.random.default_rng(most % 99)
    for overlap, least in ((0.4, [0.3]), (1.0, [])):
        values = [np.array(most), np.array(overlap), *map(np.array, least)]
        made = model(shape, "f32", values, True, False)
        compiled = clew.compile(
            made, threads=1, cache=False, diagnostics=clew.Diagnostics(guard=True)
        )
        for _ in range(10):
            same(compiled, drawn(rng, *shape, "f4"), values, False)
        steps = [i.label for i in compiled.build.program.instructions if isinstance(i, RunHost)]
        assert set(steps) <= {"first_rows", "room", "kept_boxes"}


@pytest.mark.parametrize(
    ("classes", "boxes", "most", "native"),
    [("c", "n", 100, True), ("c", "n", 999, False), (3, 99, 999, True)],
)
def test_few_boxes_are_listed_by_the_call_that_finds_them(
    classes: int | str, boxes: int | str, most: int, native: bool
) -> None:
    """Limits decide whether one native call finds and lists the boxes, also at free sizes."""
    rng = np.random.default_rng(2)
    c, n = (SymDim.symbol(s) if isinstance(s, str) else s for s in (classes, boxes))
    values = [np.array(most), np.array(0.5), np.array(0.3)]
    compiled = clew.compile(
        model((1, c, n), "f32", values, True, False),
        cache=False,
        diagnostics=clew.Diagnostics(guard=True),
    )
    for count in (1, 2, 17, 300) if boxes == "n" else (99,):
        arrays = drawn(rng, 1, 3, count, "f4")
        same(compiled, arrays, values, False)
        same(compiled, [arrays[0], np.zeros_like(arrays[1])], values, False)  # none is kept
        steps = [i.label for i in compiled.build.program.instructions if isinstance(i, RunHost)]
        assert steps == (["first_rows"] if native else ["room", "kept_boxes"])


def test_classes_without_candidates() -> None:
    rng = np.random.default_rng(1)
    boxes, scores = drawn(rng, 1, 6, 90, "f4")
    scores[:, [0, 2, 5]] = 0
    check(OP.name, boxes, scores, np.array(40), np.array(0.5), np.array(0.5))


@pytest.mark.parametrize("boxes", [(1, 3, 4), (1, 9, 3), (2, 9, 4), (9, 4)])
def test_shapes_that_do_not_fit(boxes: tuple[int, ...]) -> None:
    with pytest.raises(ClewError, match="T108"):
        OP(Var("b", TensorType(boxes, "f32")), Var("s", TensorType((1, 1, 9), "f32")),
           Constant(np.array(9)), Constant(np.array(0.5)))  # fmt: skip


@pytest.mark.parametrize("free", [False, True])
def test_work_is_bounded(free: bool) -> None:
    rng = np.random.default_rng(0)
    values = [np.array(500), np.array(1.0)]
    sizes: tuple[Any, Any, Any] = (1, 1, SymDim.symbol("n") if free else 500)
    arrays = [rng.random((1, 500, 4), "f4"), rng.random((1, 1, 500), "f4")]
    made = model(sizes, "f32", values, True, False)
    with pytest.raises(ClewError, match="C141"):
        clew.compile(made, cache=False, limits=Budgets(run_operations=1 << 20))(*arrays)
    enough = clew.compile(made, cache=False, limits=Budgets(run_operations=1 << 24))
    assert len(enough(*arrays)) == 500
