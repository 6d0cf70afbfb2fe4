from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew import te
from clew.ir.dims import SymDim
from clew.ir.expr import Constant, TupleGetItem
from clew.ir.types import to_numpy
from clew.machine.target import target_of
from clew.ops.registry import get_op, register_op
from clew.passes.simplify.fold_constant import FoldConstant
from clew.support.text_arrays import TEXT
from clew.te import Tensor


def folded(kit: Any, value: Any, **options: Any) -> Constant:
    after = kit.apply(kit.module([], value), FoldConstant(**options))
    (found,) = after.main.body.fields
    assert isinstance(found, Constant)
    return found


def test_chains_of_constants_become_one(kit: Any) -> None:
    w = kit.const(kit.random(4, 6), "w")
    y = kit.layer("add", kit.layer("transpose", w, axes=(1, 0)), kit.const(np.float32(1)))
    found = folded(kit, y)
    np.testing.assert_array_equal(found.data, w.data.T + np.float32(1))
    assert found.data.flags.c_contiguous
    assert not found.data.flags.writeable


def test_layers_and_parameters_folded_are_served_by_the_constant(kit: Any) -> None:
    y = kit.layer("exp", kit.const(kit.random(3), "w"))
    assert {s.layer for s in folded(kit, y).span.sources} == {"exp_1", "w"}


def test_tuples_fold_to_their_fields(kit: Any) -> None:
    halves = kit.layer("split", kit.const(kit.random(4, 2)), sizes=(1, 3), axis=0)
    found = folded(kit, TupleGetItem(halves, 1, span=halves.span))
    assert found.data.shape == (3, 2)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("exp", {}),
        ("reshape", {"shape": (24,)}),
        ("transpose", {"axes": (1, 0)}),
        ("broadcast_to", {"shape": (5, 4, 6)}),
        ("slice", {"begin": (1,), "end": (3,), "axes": (0,)}),
        ("clip", {"min": 0.0, "max": 0.25}),
    ],
)
def test_splats_stay_splats(kit: Any, op: str, attrs: dict[str, Any]) -> None:
    splat = kit.const(np.broadcast_to(np.float32(0.5), (4, 6)))
    found = folded(kit, kit.layer(op, splat, **attrs))
    assert found.is_splat
    expected = get_op(op).run_reference([splat.data], get_op(op).bind(attrs))
    np.testing.assert_array_equal(found.data, expected)


def test_a_splat_with_zeros_put_in_is_none(kit: Any) -> None:
    splat = kit.const(np.broadcast_to(np.float32(2), (1, 5, 2, 2)))
    found = folded(
        kit, kit.layer("layout_transform", splat, src_layout="NCHW", dst_layout="NCHW4c")
    )
    assert not found.is_splat
    assert found.data[0, 1, 0, 0].tolist() == [2, 0, 0, 0]


def test_equal_elements_are_stored_once(kit: Any) -> None:
    found = folded(kit, kit.const(np.full((64, 64), 3, "f4")))
    assert found.is_splat
    assert folded(kit, kit.const(np.array([0.0, -0.0], "f4"))).is_splat is False


def test_growing_folds_are_left_to_the_run(kit: Any) -> None:
    y = kit.layer("tile", kit.const(kit.random(4)), repeats=(1000,))
    given = kit.module([], y)
    manager = kit.PassManager([FoldConstant(max_growth_elems=100)])
    assert manager.run(given) is given
    assert "it would store 4000 elements for 4" in manager.stages[-1].remarks[0].text
    assert kit.op_names(kit.apply(given, FoldConstant())) == []


def test_values_out_of_range_are_left_to_the_run(kit: Any) -> None:
    @register_op("test.ninth", overwrite=True)
    def ninth(x: Tensor) -> Tensor:
        """The ninth element of `x`."""
        return te.compute((), lambda: x[8], "ninth")

    @ninth.reference
    def _(x: Any) -> Any:
        return x[8]

    given = kit.module([], kit.layer("test.ninth", kit.const(kit.random(4))))
    manager = kit.PassManager([FoldConstant()])
    assert manager.run(given) is given
    assert "out of bounds" in manager.stages[-1].remarks[0].text


def test_what_needs_an_input_stays(kit: Any) -> None:
    x = kit.var("x", 4)
    given = kit.module([x], kit.layer("add", x, kit.const(kit.random(4))))
    assert kit.apply(given, FoldConstant()) is given


def test_a_user_operator_without_reference_folds_by_its_compute(kit: Any) -> None:
    @register_op("test.twice", overwrite=True)
    def twice(x: Tensor) -> Tensor:
        """Twice `x`."""
        return te.compute(x.shape, lambda *i: x[i] * 2.0, "twice")

    found = folded(kit, kit.layer("test.twice", kit.const(kit.random(3))))
    np.testing.assert_allclose(found.data, kit.random(3) * 2)


def test_steps_on_the_way_are_freed(kit: Any) -> None:
    size = 1 << 20
    y = kit.const(kit.random(1 << 10, 1 << 10))
    for _ in range(12):
        y = kit.layer("transpose", y, axes=(1, 0))
    given = kit.module([], y)
    kit.apply(given, FoldConstant())  # loads what folding loads
    gc.collect()
    tracemalloc.start()
    kit.PassManager([FoldConstant()]).run(given)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * 4 * size


@pytest.mark.parametrize(
    ("limit", "kept"), [(3 * 512 * 400 * 2, False), (3 * 512 * 400 * 2 - 1, True)]
)
def test_many_narrow_weights_stay_narrow(kit: Any, limit: int, kept: bool) -> None:
    weights = [kit.const(np.arange(512 * 400, dtype=np.int8).reshape(512, 400) + n) for n in (0, 1)]
    small = kit.const(np.arange(-8, 8).astype(to_numpy("i4")))
    wide = [kit.layer("cast", w, dtype="f32") for w in (*weights, small)]
    made = [kit.layer("multiply", w, kit.const(np.float32(0.5))) for w in wide]
    after = kit.apply(kit.module([], *made), FoldConstant(max_widened_bytes=limit))
    fields = after.main.body.fields
    assert [isinstance(f, Constant) for f in fields] == [not kept, not kept, True]
    # Again gives the same: the second time finds as much to widen.
    again = kit.apply(after, FoldConstant(max_widened_bytes=limit)).main.body.fields
    assert [isinstance(f, Constant) for f in again] == [not kept, not kept, True]


def test_weights_of_microcontrollers_stay_narrow_where_runs_read_them(kit: Any) -> None:
    """What depends on weights only is folded with their wider form."""
    x = kit.var("x", 4, 8, dtype="i32")
    wide = kit.layer("cast", kit.const(np.arange(32, dtype=np.int8).reshape(4, 8)), dtype="i32")
    sums = kit.layer("sum", wide, axes=(1,), keepdims=True)
    module = kit.module([x], kit.layer("multiply", kit.layer("multiply", x, wide), sums))
    manager = kit.PassManager([FoldConstant()], target=target_of("cortex-m4"))
    after = manager.run(module)
    assert kit.op_names(after) == ["cast", "multiply", "multiply"]
    assert manager.run(after).main.body is after.main.body
    assert kit.op_names(kit.apply(module, FoldConstant())) == ["multiply", "multiply"]


@pytest.mark.parametrize(("length", "names"), [(1, []), (1 << 20, ["tile"])])
def test_texts_are_not_stored_many_times(kit: Any, length: int, names: list[str]) -> None:
    """A constant of many references to a long text would be as long as all of them in files."""
    text = kit.const(np.array(["x" * length], TEXT))
    given = kit.module([], kit.layer("tile", text, repeats=(64,)))
    assert kit.op_names(kit.apply(given, FoldConstant())) == names


@pytest.mark.parametrize(
    ("begin", "end", "stride", "expected"),
    [(1, 2, 1, [64]), (-1, 9, 1, [7]), (1, 4, 2, [64, 7]), (0, 2, 1, None), (3, 0, -1, None)],
)
def test_known_sizes_are_folded_beside_free_ones(
    kit: Any, begin: int, end: int, stride: int, expected: list[int] | None
) -> None:
    x = kit.var("x", SymDim.symbol("n"), 64, SymDim.symbol("m"), 7)
    shape = kit.layer("shape_of", x)
    attrs = {"begin": (begin,), "end": (end,), "strides": (stride,), "axes": (0,)}
    (made,) = kit.apply(
        kit.module([x], kit.layer("slice", shape, **attrs)), FoldConstant()
    ).main.body.fields
    assert isinstance(made, Constant) == (expected is not None)
    if expected is not None:
        assert made.data.tolist() == expected
