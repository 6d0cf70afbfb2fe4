"""Constants that another build holds: which are replaced by its arrays, and which are not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from clew.cost.policy.folding import SHARED_CONSTANT_BYTES
from clew.ir.expr import Call, Constant, Expr, Function, If
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.passes.share_constants import ShareConstants
from clew.trace.lineage import building

ROWS = 32
COLUMNS = 64  # of f32: two times the bytes from which constants are shared


def constants(module: Module) -> list[Constant]:
    return [n for n in post_order(module.main, into_functions=True) if isinstance(n, Constant)]


def weight(*shape: int, seed: int = 0) -> Any:
    """An array as a build holds it."""
    found = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    found.flags.writeable = False
    return found


def adding(kit: Any, *constants: Expr) -> Module:
    """A module that adds constants to its input."""
    first = constants[0].type
    assert isinstance(first, TensorType)
    x = y = kit.var("x", *first.shape, dtype=first.dtype)
    for each in constants:
        y = kit.layer("add", y, each)
    return kit.module([x], y)  # type: ignore[no-any-return]


def holding(kit: Any, constant: Constant) -> Module:
    """A module that only returns a constant: for dtypes that few operators have."""
    return kit.module([kit.var("x", 1)], constant)  # type: ignore[no-any-return]


def shared(kit: Any, before: Module, *known: Any) -> Module:
    found: Module = kit.apply(before, ShareConstants(known))
    return found


def test_an_equal_array_is_the_one_that_is_known(kit: Any) -> None:
    known = weight(ROWS, COLUMNS)
    before = adding(kit, kit.const(known.copy(), "w"))
    after = shared(kit, before, kit.random(ROWS, COLUMNS, seed=1), known)
    (constant,) = constants(after)
    assert constant.data is known
    assert constants(before)[0].data is not known
    kit.same(before, after, tolerance=0)


def test_every_constant_finds_its_own(kit: Any) -> None:
    known = [weight(ROWS, COLUMNS, seed=n) for n in range(3)]
    copies = [kit.const(known[n].copy(), f"w{n}") for n in (2, 0)]
    other = kit.const(kit.random(ROWS, COLUMNS, seed=9), "other")
    before = adding(kit, *copies, other)
    found = {c.name: c.data for c in constants(shared(kit, before, *known))}
    assert found["w2"] is known[2]
    assert found["w0"] is known[0]
    assert found["other"] is other.data


def test_name_layout_and_provenance_stay(kit: Any) -> None:
    known = weight(1, 2, 8, 8, 16)
    span = kit.const(known).span
    constant = Constant(known.copy(), name="w", layout="NCHW16c", span=span)
    x = kit.var("x", 1, 32, 8, 8)
    blocked = kit.layer("layout_transform", x, src_layout="NCHW", dst_layout="NCHW16c")
    before = kit.module([x], kit.layer("add", blocked, constant))
    (found,) = constants(shared(kit, before, known))
    assert found.data is known
    assert (found.name, found.tensor.layout) == ("w", "NCHW16c")
    assert found.type == constant.type
    assert found.span == span


def test_constants_within_functions(kit: Any) -> None:
    known = weight(ROWS, COLUMNS)
    flag, x = kit.var("flag", dtype="bool"), kit.var("x", ROWS, COLUMNS)
    a, b = kit.var("a", ROWS, COLUMNS), kit.var("b", ROWS, COLUMNS)
    then = kit.function([a], kit.layer("add", a, kit.const(known.copy())))
    orelse = kit.function([b], kit.layer("nn.relu", b))
    before = kit.module([flag, x], If(flag, then, orelse, [x], span=x.span))
    (found,) = constants(shared(kit, before, known))
    assert found.data is known


def test_lazy_constants(kit: Any) -> None:
    known = weight(COLUMNS, ROWS)
    stored = kit.const(known.T.copy(), "w")
    type_ = TensorType((COLUMNS, ROWS), "f32")
    with building(stored.span):
        lazy = stored.derived("T", type_, lambda a: a.T)
        other = stored.derived("-T", type_, lambda a: -a.T)
    (found,) = constants(shared(kit, adding(kit, lazy), known))
    assert found.data is known
    assert not found.is_lazy
    assert found.name == "w"
    before = adding(kit, other)
    assert shared(kit, before, known) is before  # still lazy


def plus_one(given: Any) -> Any:
    found = given.copy()
    found[-1, -1] += 1
    return found


def negated_zero(given: Any) -> Any:
    given[3, 5] = 0.0
    found = given.copy()
    found[3, 5] = -0.0
    return found


def another_nan(given: Any) -> Any:
    given[3, 5] = np.nan
    found = given.copy()
    found.view(np.uint32)[3, 5] ^= 1
    return found


@pytest.mark.parametrize("change", [plus_one, negated_zero, another_nan])
def test_arrays_that_differ_in_a_bit_stay(kit: Any, change: Any) -> None:
    known = kit.random(ROWS, COLUMNS)
    before = adding(kit, kit.const(change(known)))
    assert shared(kit, before, known) is before


def test_nan_is_equal_to_itself(kit: Any) -> None:
    known = kit.random(ROWS, COLUMNS)
    known[3, 5], known[4, 6] = np.nan, -0.0
    known.flags.writeable = False
    (found,) = constants(shared(kit, adding(kit, kit.const(known.copy())), known))
    assert found.data is known


@pytest.mark.parametrize(
    "other",
    [
        lambda a: a.reshape(COLUMNS, ROWS),
        lambda a: a.reshape(1, ROWS, COLUMNS),
        lambda a: a[:16].copy(),
        lambda a: a.view(np.int32),
        lambda a: a.astype(np.float64),
        lambda a: np.asfortranarray(a),
        lambda a: a[:, ::-1],
    ],
    ids=["shape", "rank", "part", "dtype", "width", "order", "reversed"],
)
def test_known_arrays_of_another_form_are_not_taken(kit: Any, other: Any) -> None:
    weight = kit.random(ROWS, COLUMNS)
    before = adding(kit, kit.const(weight))
    assert shared(kit, before, other(weight.copy())) is before


BYTES = [
    np.int8, np.uint8, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float8_e5m2fnuz, ml_dtypes.int4, ml_dtypes.uint4,
]  # fmt: skip


@pytest.mark.parametrize("dtype", BYTES, ids=lambda d: np.dtype(d).name)
def test_dtypes_with_equal_bytes_differ(kit: Any, dtype: Any) -> None:
    bytes_ = np.random.default_rng(0).integers(0, 8, (ROWS, 4 * COLUMNS)).astype(np.uint8)
    arrays = [bytes_.view(other).copy() for other in BYTES]
    known = arrays[BYTES.index(dtype)]
    known.flags.writeable = False
    constant = kit.const(known.copy())
    before = holding(kit, constant)
    others = [a for a in arrays if a is not known]
    assert shared(kit, before, *others) is before
    (found,) = constants(shared(kit, before, *others, known))
    assert found.data is known
    assert found.type == constant.type


def test_small_constants_stay(kit: Any) -> None:
    least = SHARED_CONSTANT_BYTES // 4
    for count, is_shared in ((least - 1, False), (least, True)):
        known = weight(count)
        before = adding(kit, kit.const(known.copy()))
        after = shared(kit, before, known)
        assert (constants(after)[0].data is known) == is_shared
        assert (after is before) != is_shared


def test_splats_stay(kit: Any) -> None:
    before = adding(kit, kit.const(np.broadcast_to(np.float32(1), (ROWS, COLUMNS))))
    assert constants(before)[0].is_splat
    assert shared(kit, before, np.ones((ROWS, COLUMNS), np.float32)) is before
    # A known splat has one element in memory.
    before = adding(kit, kit.const(np.ones((ROWS, COLUMNS), np.float32)))
    known = np.broadcast_to(np.float32(1), (ROWS, COLUMNS))
    assert shared(kit, before, known) is before


def test_a_module_with_the_known_arrays_stays(kit: Any) -> None:
    before = adding(kit, kit.const(kit.random(ROWS, COLUMNS)))
    assert shared(kit, before) is before
    (constant,) = constants(before)
    assert shared(kit, before, constant.data) is before
    once = shared(kit, before, constant.data.copy())
    assert once is not before
    assert shared(kit, once, constants(once)[0].data) is once


def test_only_constants_change(kit: Any) -> None:
    known = weight(COLUMNS, ROWS)
    x = kit.var("x", 4, COLUMNS)
    y = kit.layer("nn.relu", kit.layer("nn.dense", x, kit.const(known.copy()), weight_layout="KN"))
    before = kit.module([x], y)
    after = shared(kit, before, known)
    assert kit.op_names(after) == kit.op_names(before) == ["nn.dense", "nn.relu"]
    calls = [n for n in post_order(after.main) if isinstance(n, Call)]
    assert not any(isinstance(c.op, Function) for c in calls)
    kit.same(before, after, tolerance=0)


def test_its_text_is_that_without_arrays() -> None:
    """The text of a pipeline, as in a reproducer, has no arrays to give it."""
    assert str(ShareConstants([np.ones(3)])) == str(ShareConstants()) == "ShareConstants()"
