"""Products of quantized operands that a run computes both of, such as attention scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.dims import SymDim
from clew.ir.expr import Call, Function, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.machine.target import target_of
from clew.ops.movement.layouts import transform
from clew.ops.registry import get_op
from clew.passes.precision.narrow_integers import NarrowIntegers
from clew.runtime.guard import GuardSide

pytestmark = pytest.mark.usefixtures("shared_kernels")

PAIRS = target_of("cpu-avx2")  # multiplies pairs of i16
EXTREMES = {"i8": (-128, 127), "u8": (0, 255)}


def draw(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Random bytes, a third of which are extremes: products of these are the first to saturate."""
    rng = np.random.default_rng(seed)
    low, high = EXTREMES[dtype]
    values = rng.integers(low, high + 1, shape)
    ends = np.where(rng.integers(0, 2, shape), low, high)
    return np.where(rng.integers(0, 3, shape), values, ends).astype(np.dtype(dtype[0] + "1"))


def centered(kit: Any, value: Any, zero: Any) -> Any:
    wide = kit.layer("cast", value, dtype="i32")
    return kit.layer("subtract", wide, kit.layer("cast", zero, dtype="i32"))


def product(
    kit: Any, shapes: Any, dtypes: tuple[str, str], zeros: Any = ((), ()), *, turned: bool = False
) -> Any:
    """A MatMulInteger as it is imported; all four operands are inputs."""
    (a, b), (s, t) = shapes, dtypes
    params = [kit.var("a", *a, dtype=s), kit.var("b", *b, dtype=t)]
    params += [kit.var("za", *zeros[0], dtype=s), kit.var("zb", *zeros[1], dtype=t)]
    right = params[1]
    if turned:
        rank = len(b)
        right = kit.layer("transpose", right, axes=(*range(rank - 2), rank - 1, rank - 2))
    operands = centered(kit, params[0], params[2]), centered(kit, right, params[3])
    return kit.module(params, kit.layer("nn.matmul", *operands))


def inputs(module: Any, sizes: dict[str, int] | None = None) -> dict[str, Any]:
    found = {}
    for n, param in enumerate(module.main.params):
        shape = tuple(
            d if isinstance(d, int) else (sizes or {})[str(d)] for d in param.tensor.shape
        )
        found[param.name] = draw(param.tensor.dtype, shape, n)
    return found


def expected(given: dict[str, Any], *, turned: bool = False) -> Any:
    a, b, za, zb = (given[n].astype(np.int64) for n in ("a", "b", "za", "zb"))
    b = b.swapaxes(-1, -2) if turned else b
    return np.matmul(a - za, b - zb).astype(np.int32)


def factors(module: Any) -> list[tuple[str, ...]]:
    calls = [n for n in post_order(module.main) if isinstance(n, Call)]
    products = [n for n in calls if n.op_name in ("nn.matmul", "nn.dense")]
    return [tuple(a.tensor.dtype for a in n.args) for n in products]


def check(module: Any, target: Any, sizes: list[dict[str, int]], *, turned: bool = False) -> None:
    model = clew.compile(module, target=target, threads=1)
    for each in sizes:
        given = inputs(module, each)
        found = np.asarray(model(**given))
        np.testing.assert_array_equal(found, expected(given, turned=turned))


@pytest.mark.parametrize("target", [None, PAIRS], ids=["dots", "pairs"])
@pytest.mark.parametrize("data", ["i8", "u8"])
@pytest.mark.parametrize("matrix", ["i8", "u8"])
def test_operands_stay_narrow(kit: Any, data: str, matrix: str, target: Any) -> None:
    shapes = ((2, 5, 13), (2, 13, 37))
    for zeros in (((), ()), ((5, 1), (37,))):
        module = product(kit, shapes, (data, matrix), zeros)
        found = kit.PassManager([NarrowIntegers()], target=target or kit.lanes()).run(module)
        narrow = ("i16", "i16") if target else ("u8", "i8")
        assert set(factors(found)) == {narrow}
        given = inputs(module)
        (result,) = interpret(found, given).values()
        np.testing.assert_array_equal(result, expected(given))


@pytest.mark.parametrize("target", ["cpu", "cpu-avx2"])
@pytest.mark.parametrize(("shapes", "turned"), [
    (((6, 19), (19, 40)), False),
    (((1, 64), (64, 64)), True),
    (((3, 1, 4, 66), (3, 2, 66, 33)), False),
    (((3, 1, 4, 66), (3, 2, 66, 33)), True),
    (((2, 0, 8), (2, 8, 16)), False),
    (((2, 3, 0), (2, 0, 16)), True),
    (((3, 5), (5, 0)), False),
    (((4, 5), (5, 1)), False),
])  # fmt: skip
def test_kernels_are_exact(kit: Any, shapes: Any, target: str, *, turned: bool) -> None:
    left, (*batch, deep, wide) = shapes
    shapes = left, ((*batch, wide, deep) if turned else (*batch, deep, wide))
    module = product(kit, shapes, ("u8", "u8"), turned=turned)
    check(module, target_of(target), [{}], turned=turned)


@pytest.mark.parametrize("side", list(GuardSide))
def test_operands_are_not_read_beyond_their_ends(kit: Any, side: GuardSide) -> None:
    m, k, n = map(SymDim.symbol, "mkn")
    module = product(kit, ((m, k), (k, n)), ("u8", "i8"))
    guarded = clew.Diagnostics(guard=side)
    model = clew.compile(module, threads=1, cache=False, diagnostics=guarded)
    for sizes in ((1, 1, 33), (14, 67, 65)):
        given = inputs(module, dict(zip("mkn", sizes, strict=True)))
        np.testing.assert_array_equal(np.asarray(model(**given)), expected(given))


def test_whole_panels_are_packed_without_checks() -> None:
    """Only the last dot group and the last panel of a free size test their elements."""
    k, n = map(SymDim.symbol, "kn")
    matrix = Var("b", TensorType((k, n), "i8"))
    packed = get_op("layout_transform")(matrix, src_layout="KN", dst_layout="NK32n4k")
    model = clew.compile(Module({"main": Function([matrix], packed)}), threads=1)
    (kernel,) = model.kernels
    lines = [line.strip() for line in str(kernel.loops).splitlines()]
    stores = [line for line in lines if line.startswith("layout_transform[")]
    assert ["select" in store for store in stores] == [False, True, True, True]
    for shape in ((3, 31), (9, 70)):
        b = draw("i8", shape)
        assert np.array_equal(np.asarray(model(b=b)), transform(b, "KN", "NK32n4k"))


@pytest.mark.parametrize("target", ["cpu", "cpu-avx2"])
def test_free_sizes(kit: Any, target: str) -> None:
    b, m, k, n = map(SymDim.symbol, "bmkn")
    module = product(kit, ((b, m, k), (b, k, n)), ("i8", "u8"))
    sizes = [(2, 3, 8, 40), (1, 1, 77, 77), (3, 7, 1, 1), (1, 0, 5, 3), (2, 2, 0, 3), (1, 1, 4, 0)]
    named = [dict(zip("bmkn", each, strict=True)) for each in sizes]
    check(module, target_of(target), named)


@pytest.mark.parametrize("target", [None, PAIRS], ids=["dots", "pairs"])
def test_scales_of_both_operands(kit: Any, target: Any) -> None:
    a, b = kit.var("a", 2, 5, 8, dtype="u8"), kit.var("b", 2, 24, 8, dtype="u8")
    za, zb = (kit.const(np.array(z, np.uint8)) for z in (7, 200))
    scales = [kit.const(np.float32(s)) for s in (0.25, 0.5)]
    left, right = (kit.layer("dequantize", *x) for x in ((a, scales[0], za), (b, scales[1], zb)))
    turned = kit.layer("transpose", right, axes=(0, 2, 1))
    module = kit.module([a, b], kit.layer("nn.matmul", left, turned))
    model = clew.compile(module, threads=1, **({"target": target} if target else {}))
    given = {"a": draw("u8", (2, 5, 8)), "b": draw("u8", (2, 24, 8), 1)}
    exact = np.matmul(given["a"] - 7.0, (given["b"] - 200.0).swapaxes(1, 2)) / 8
    assert np.array_equal(np.asarray(model(**given)), exact.astype(np.float32))  # powers of two


def test_one_build_serves_rows_of_several_matrices(kit: Any, recwarn: Any) -> None:
    """The tile of two rows, for which no multiple of three leaves a remainder, is never read."""
    m, n = map(SymDim.symbol, "mn")
    module = product(kit, ((3, m, 64), (64, n)), ("u8", "u8"))
    check(module, PAIRS, [{"m": 5, "n": 40}, {"m": 2, "n": 33}])
    assert not [w for w in recwarn if "I319" in str(w.message)]
