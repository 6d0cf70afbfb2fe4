"""Products with weights of a few bits: every form of a weight, what stays, and the exact integers
behind a result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clew
from clew.ir.dims import SymDim
from clew.ir.expr import Call
from clew.ir.module import Module
from clew.ir.types import to_numpy
from clew.ir.visit import post_order
from clew.machine.target import target_of
from clew.ops.math.dense_codes import most_of_first, pack_codes, unpack_codes
from clew.passes.precision.multiply_codes import MultiplyCodes
from clew.runtime.guard import GuardSide

pytestmark = pytest.mark.usefixtures("shared_kernels")

SMALL = MultiplyCodes(least_weights=1)
ONE = replace(SMALL, exact=False)
PLAIN = target_of("cpu-avx2")
BYTES = target_of("x86-64-v4+amx")
"""A target that multiplies bytes faster than words."""
Array = np.ndarray[Any, Any]


def codes(dtype: str, *shape: int, seed: int = 0) -> Array:
    bits = int(dtype[1:])
    low = 0 if dtype[0] == "u" else -(1 << (bits - 1))
    found = np.random.default_rng(seed).integers(low, low + (1 << bits), shape)
    return found.astype(to_numpy(dtype))


def scales(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(0.01, 0.1, shape).astype(np.float32)


def product(
    kit: Any,
    x: Any,
    dtype: str,
    units: int,
    *,
    block: int = 0,
    zeros: bool = False,
    offsets: bool = False,
    layout: str = "NK",
    seed: int = 0,
) -> Module:
    """A dense layer, or a product with a matrix `[K, N]`, and its weight as a file has it."""
    depth = x.tensor.shape[-1]
    blocks = -(-depth // block) if block else 1
    weight, scale = codes(dtype, units, depth, seed=seed), scales(units, blocks, seed=seed)
    points = [codes(dtype, units, blocks, seed=seed + 1)] if zeros else []
    if offsets:
        points = [scales(units, blocks, seed=seed + 1) * np.float32(-5)]
    axis = 1
    if layout == "KN":
        weight, scale, axis = weight.T, scale.T, 0
        points = [p.T for p in points]
    operands = [kit.const(np.ascontiguousarray(a)) for a in (weight, scale, *points)]
    where = {"axis": axis, "block": block} if block else {}
    matrix = kit.layer("dequantize_offset" if offsets else "dequantize", *operands, **where)
    if x.tensor.dtype != "f32":
        matrix = kit.layer("cast", matrix, dtype=x.tensor.dtype)
    if layout == "NK":
        return kit.module([x], kit.layer("nn.dense", x, matrix))  # type: ignore[no-any-return]
    return kit.module([x], kit.layer("nn.matmul", x, matrix))  # type: ignore[no-any-return]


def after(kit: Any, module: Module, options: MultiplyCodes = SMALL, target: Any = PLAIN) -> Module:
    return kit.PassManager([options], target=target).run(module)  # type: ignore[no-any-return]


def call_of(module: Module) -> Call | None:
    calls = [n for n in post_order(module.main) if isinstance(n, Call)]
    return next((n for n in calls if n.op_name == "nn.dense_codes"), None)


def relative(found: Array, expected: Array) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


FORMS = [
    ("i4", {"block": 32}),
    ("u4", {"block": 16, "zeros": True}),
    ("u4", {"block": 16, "layout": "KN"}),
    ("i4", {"block": 32, "layout": "KN", "zeros": True}),
    ("i8", {}),
    ("i8", {"layout": "KN"}),
    ("u8", {"block": 32, "zeros": True}),
    ("i2", {"block": 32}),
    ("u2", {"block": 16, "zeros": True}),
    ("i8", {"block": 96}),
    ("u4", {"block": 32, "offsets": True}),
    ("i8", {"block": 16, "offsets": True, "layout": "KN"}),
    ("u2", {"offsets": True}),
]


@pytest.mark.parametrize(("dtype", "form"), FORMS)
def test_every_form_of_a_weight(kit: Any, dtype: str, form: dict[str, Any]) -> None:
    before = product(kit, kit.var("x", 3, 96), dtype, 37, **form)
    found = after(kit, before)
    assert call_of(found) is not None
    kit.same(before, found, 1e-5)


@pytest.mark.parametrize("form", [{"zeros": True}, {"offsets": True}])
def test_free_rows_have_a_kernel_of_one_row(kit: Any, form: dict[str, bool]) -> None:
    module = product(kit, kit.var("x", SymDim.symbol("m"), 192), "u4", 104, block=32, **form)
    template = clew.compile(module, target=PLAIN, cache=False).template
    (use,) = (use for use in template.uses if "dense_codes" in use.name)
    assert set(use.source.rules) == {"codes", "codes_row"}


@pytest.mark.parametrize(("dtype", "form"), FORMS)
@pytest.mark.parametrize("side", list(GuardSide))
def test_native_kernels(kit: Any, dtype: str, form: dict[str, Any], side: GuardSide) -> None:
    for rows in (1, 6):
        before = product(kit, kit.var("x", rows, 192), dtype, 104, **form)
        for precision, most in (("f32", 1e-5), ("auto", 1e-4)):
            compiled = clew.compile(
                before, precision=precision, diagnostics=clew.Diagnostics(guard=side)
            )
            (kernel,) = (k for k in compiled.kernels if "dense" in k.name)
            assert [d.rule for d in kernel.choices] == ["codes_row" if rows == 1 else "codes"]
            x = kit.random(rows, 192, seed=rows)
            (expected,) = kit.interpret(before, {"x": x})
            assert relative(compiled(x), expected) < most


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrow_data(kit: Any, dtype: str) -> None:
    before = product(kit, kit.var("x", 2, 64, dtype=dtype), "i4", 33, block=32)
    call = call_of(after(kit, before))
    assert call is not None
    assert call.attrs.parts == 1
    kit.same(before, after(kit, before), 2e-2 if dtype == "bf16" else 3e-3)


def test_batches_and_a_vector(kit: Any) -> None:
    for shape in ((64,), (2, 3, 64)):
        before = product(kit, kit.var("x", *shape), "u4", 40, block=32)
        assert call_of(after(kit, before)) is not None
        kit.same(before, after(kit, before), 1e-5)


def test_a_depth_that_is_no_multiple_of_the_block(kit: Any) -> None:
    before = product(kit, kit.var("x", 3, 100), "u4", 40, block=32, zeros=True)
    found = after(kit, before)
    assert call_of(found) is not None
    kit.same(before, found, 1e-5)


def test_layers_share_their_data(kit: Any) -> None:
    x = kit.var("x", 1, 64)
    both = [
        kit.layer("nn.dense", x, kit.layer("dequantize", kit.const(codes("i4", 40, 64, seed=n)),
                                           kit.const(scales(40, 2)), axis=1, block=32))
        for n in range(2)
    ]  # fmt: skip
    names = kit.op_names(after(kit, kit.module([x], *both)))
    assert names.count("round_blocks") == names.count("block_steps") == 1


def test_free_rows(kit: Any) -> None:
    rows = SymDim.symbol("batch"), SymDim.symbol("seq")
    before = product(kit, kit.var("x", *rows, 192), "i4", 104, block=32)
    model = clew.compile(
        before,
        precision="auto",
        diagnostics=clew.Diagnostics(guard=GuardSide.END),
        sizes=clew.Sizes(specialize=False),
    )
    (use,) = (use for use in model.template.uses if "dense" in use.name)
    assert use.source.rules == ("codes", "codes_row")
    for batch, length in ((1, 1), (1, 5), (3, 1), (2, 7), (1, 33)):
        x = kit.random(batch, length, 192, seed=length)
        (expected,) = kit.interpret(before, {"x": x})
        assert relative(model(x), expected) < 1e-4


def test_what_stays(kit: Any) -> None:
    x = kit.var("x", 3, 96)
    plain = product(kit, x, "i4", 40, block=32)
    assert call_of(after(kit, plain, MultiplyCodes())) is None  # too few weights
    assert call_of(after(kit, plain, SMALL, replace(PLAIN, features="+sse4.2"))) is None
    assert call_of(after(kit, product(kit, x, "i4", 40, block=12))) is None  # no whole words
    many = product(kit, kit.var("x", 64, 96), "i4", 40, block=32)
    assert call_of(after(kit, many)) is not None  # as exact as one row, at the rate of floats
    assert call_of(after(kit, many, ONE)) is not None
    narrow = replace(ONE, dtype="bf16")
    assert call_of(after(kit, many, narrow)) is not None  # there are no products of bf16
    assert call_of(after(kit, many, narrow, kit.tiles())) is None
    free = product(kit, kit.var("x", SymDim.symbol("n"), 96), "i4", 40, block=32)
    assert call_of(after(kit, free)) is not None
    given = kit.var("s", 40, 3)
    matrix = kit.layer("dequantize", kit.const(codes("i4", 40, 96)), given, axis=1, block=32)
    computed = kit.module([x, given], kit.layer("nn.dense", x, matrix))
    assert call_of(after(kit, computed)) is None
    table = kit.layer("dequantize", kit.const(codes("i4", 96, 40)), kit.const(scales(96, 1)))
    by_row = kit.module([x], kit.layer("nn.matmul", x, table))  # a scale for each row of [K, N]
    assert call_of(after(kit, by_row)) is None


def test_scales_become_narrow_only_if_that_is_exact(kit: Any) -> None:
    x = kit.var("x", 1, 64)
    for narrow, dtype in ((True, "f16"), (False, "f32")):
        scale = scales(40, 2)
        scale = scale.astype(np.float16).astype(np.float32) if narrow else scale
        weight = kit.const(codes("i4", 40, 64))
        matrix = kit.layer("dequantize", weight, kit.const(scale), axis=1, block=32)
        call = call_of(after(kit, kit.module([x], kit.layer("nn.dense", x, matrix))))
        assert call is not None
        assert call.args[3].tensor.dtype == dtype


def test_weights_take_their_bits_in_memory(kit: Any) -> None:
    before = product(kit, kit.var("x", 1, 512), "i4", 512, block=32)
    compiled = clew.compile(before)
    sizes = {str(v.type): v.type.size_bytes for k in compiled.kernels for v in k.function.params}
    assert max(sizes.values()) == 512 * 512 // 2, sizes


def test_tail_and_second_output(kit: Any) -> None:
    """A tail is fused; a sum that is an output itself, too, leaves the kernel to other rules."""
    x = kit.var("x", 3, 192)
    matrix = kit.layer("dequantize", kit.const(codes("i4", 104, 192)), kit.const(scales(104, 6)),
                       axis=1, block=32)  # fmt: skip
    total = kit.layer("add", kit.layer("nn.dense", x, matrix), kit.const(scales(104)))
    active = kit.layer("nn.relu", total)
    for outputs in ((active,), (total, active)):
        before = kit.module([x], *outputs)
        compiled = clew.compile(before, diagnostics=clew.Diagnostics(guard=GuardSide.START))
        data = kit.random(3, 192, seed=1)
        expected = kit.interpret(before, {"x": data})
        found = compiled.run({"x": data})
        for value, wanted in zip(found.values(), expected, strict=True):
            assert relative(value, wanted) < 1e-5


def test_infinities_and_nan_do_not_become_numbers(kit: Any) -> None:
    before = product(kit, kit.var("x", 2, 192), "i4", 104, block=32)
    for bad in (np.inf, -np.inf, np.nan):
        for precision in ("f32", "auto"):
            x = kit.random(2, 192, seed=4)
            x[0, 17] = bad
            found = clew.compile(before, precision=precision)(x)
            assert not np.isfinite(found[0]).any()
            assert np.isfinite(found[1]).all()


def test_tiny_and_huge_numbers(kit: Any) -> None:
    before = product(kit, kit.var("x", 2, 192), "i4", 104, block=32)
    compiled = clew.compile(before)
    for size in (0.0, 1e-44, 1e-38, 1e30):
        x = kit.random(2, 192, seed=4) * np.float32(size)
        (expected,) = kit.interpret(before, {"x": x})
        assert np.abs(compiled(x) - expected).max() <= 1e-5 * np.abs(expected).max() + 1e-38


def test_saved_and_loaded(kit: Any, tmp_path: Any) -> None:
    compiled = clew.compile(product(kit, kit.var("x", 1, 192), "u4", 104, block=32, zeros=True))
    compiled.save(tmp_path / "m.clew")
    again = clew.load_compiled(tmp_path / "m.clew")
    x = kit.random(1, 192)
    np.testing.assert_array_equal(compiled(x), again(x))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_packing_is_undone_by_unpacking(data: st.DataObject) -> None:
    bits = data.draw(st.sampled_from([2, 4, 8]))
    dtype = data.draw(st.sampled_from(["i16", "u8"]))
    rows, columns = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 40))
    width = data.draw(st.sampled_from([8, 32]))
    low = 0 if dtype == "u8" else -(1 << (bits - 1))
    rng = np.random.default_rng(rows * columns)
    given = rng.integers(low, low + (1 << bits), (columns, rows * 32 // bits))
    packed = pack_codes(given, bits, width, dtype)
    assert packed.nbytes == -(-columns // width) * width * given.shape[1] * bits // 8
    np.testing.assert_array_equal(unpack_codes(packed, bits)[:columns], given)


@pytest.mark.parametrize("seed", range(10))
def test_random_sizes_against_integers(kit: Any, seed: int) -> None:
    """The result equals what integer arithmetic on whole arrays gives, up to rounding in `f32`."""
    rng = np.random.default_rng(seed)
    dtype = ["i4", "u4", "i8", "u8", "i2"][seed % 5]
    block = int(rng.choice([16, 32, 64]))
    depth, blocks = block * (count := int(rng.integers(1, 6))), count
    rows, units, zeros = int(rng.integers(1, 10)), int(rng.integers(1, 91)), bool(seed // 2 % 2)
    x = kit.var("x", rows, depth)
    before = product(kit, x, dtype, units, block=block, zeros=zeros, seed=seed)
    digits, parts, options, target = (("i16", 1, ONE, PLAIN), ("i8", 3, SMALL, BYTES))[seed % 2]
    changed = after(kit, before, options, target)
    call = call_of(changed)
    assert call is not None
    assert (call.args[0].tensor.dtype, call.attrs.parts) == (digits, parts)
    compiled = clew.compile(changed, diagnostics=clew.Diagnostics(guard=GuardSide.END))
    values = kit.random(rows, depth, seed=seed)
    by_block = values.reshape(rows, -1, block)
    unit = 256 ** (parts - 1)
    steps = np.abs(by_block).max(axis=2) * np.float32(1 / most_of_first(digits, parts)) / unit
    rounded = np.rint(by_block / steps[..., None]).astype(np.int64)
    weight = codes(dtype, units, depth, seed=seed).astype(np.int64).reshape(units, -1, block)
    if zeros:
        weight = weight - codes(dtype, units, blocks, seed=seed + 1).astype(np.int64)[..., None]
    sums = np.einsum("rbk,nbk->rbn", rounded, weight)
    factors = steps.astype(np.float64)[..., None] * scales(units, blocks, seed=seed).T
    expected = (sums * factors).sum(axis=1)
    error = np.abs(compiled(values) - expected).max()
    assert error <= 1e-6 * np.abs(sums * factors).sum(axis=1).max()
