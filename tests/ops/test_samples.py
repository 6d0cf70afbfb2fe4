"""Every operator's samples: types, values and coded errors, from the registry alone."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew.ir.dims import SymDim
from clew.ir.expr import ArgRef, Call, Constant, Expr, Var
from clew.ir.types import (
    TensorType,
    TupleType,
    Type,
    from_numpy,
    is_float,
    substitute_type,
    to_numpy,
)
from clew.ops.registry import Op, Sample, all_ops
from clew.support.errors import ClewError, UnsupportedError
from clew.te.interpret import evaluate

Array = np.ndarray[Any, Any]
_OPS = list(all_ops())
_GOOD = [(op, n, s) for op in _OPS for n, s in enumerate(op.samples) if not s.error]
_BAD = [(op, n, s) for op in _OPS for n, s in enumerate(op.samples) if s.error]


def _ids(cases: list[tuple[Op, int, Sample]]) -> list[str]:
    return [f"{op.name}-{n}" for op, n, _ in cases]


def _types(sample: Sample) -> list[TensorType]:
    return [
        a if isinstance(a, TensorType) else TensorType(a.shape, from_numpy(a.dtype))
        for a in sample.args
    ]


def _arrays(op: Op, sample: Sample) -> list[Array]:
    rng = np.random.default_rng(zlib.crc32(op.name.encode()))
    arrays = []
    for arg in sample.args:
        if not isinstance(arg, TensorType):
            arrays.append(np.asarray(arg))
        elif arg.dtype == "bool":
            arrays.append(rng.random(arg.concrete) < 0.5)
        elif is_float(arg.dtype):
            values = rng.uniform(sample.low, sample.high, arg.concrete)
            arrays.append(np.asarray(values).astype(to_numpy(arg.dtype)))
        else:
            values = rng.integers(int(sample.low), int(sample.high) + 1, arg.concrete)
            arrays.append(np.asarray(values).astype(to_numpy(arg.dtype)))
    return arrays


def _call(op: Op, sample: Sample) -> Call:
    args: list[Expr] = [
        Var(f"x{n}", a) if isinstance(a, TensorType) else Constant(a)
        for n, a in enumerate(sample.args)
    ]
    return op(*args, **sample.attrs)


def _close(actual: Array, expected: Array) -> None:
    if is_float(from_numpy(expected.dtype)):
        narrow = from_numpy(expected.dtype) in ("f16", "bf16")
        rtol = 1e-2 if narrow else 1e-5
        actual, expected = actual.astype("f8"), expected.astype("f8")
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=rtol)
    else:
        np.testing.assert_array_equal(actual, expected)


def _fields(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("op", _OPS, ids=[op.name for op in _OPS])
def test_every_operator_is_declared_whole(op: Op) -> None:
    assert op.doc, "no docstring"
    assert any(not s.error for s in op.samples), "no good sample"
    assert op.compute or op.decompose_rule or op.reference_rule, "no meaning"
    assert not op.host or op.type_rule, "a host operator states its types"


@pytest.mark.parametrize(("op", "n", "sample"), _GOOD, ids=_ids(_GOOD))
def test_reference_has_the_type_inferred(op: Op, n: int, sample: Sample) -> None:
    call = _call(op, sample)
    results = _fields(op.run_reference(_arrays(op, sample), call.attrs))
    types = call.type.fields if isinstance(call.type, TupleType) else (call.type,)
    assert len(results) == len(types)
    for result, type_ in zip(results, types, strict=True):
        assert isinstance(type_, TensorType)
        assert from_numpy(np.asarray(result).dtype) == type_.dtype
        sizes = [a for a, d in zip(result.shape, type_.shape, strict=True) if isinstance(d, int)]
        assert sizes == [d for d in type_.shape if isinstance(d, int)]


_BOTH = [(op, n, s) for op, n, s in _GOOD if op.compute and op.reference_rule]


@pytest.mark.parametrize(("op", "n", "sample"), _BOTH, ids=_ids(_BOTH))
def test_compute_agrees_with_reference(op: Op, n: int, sample: Sample) -> None:
    call, arrays = _call(op, sample), _arrays(op, sample)
    assert op.compute is not None
    inputs = op.placeholders(_types(sample))
    outputs = list(_fields(op.compute(*inputs, **call.attrs)))
    actual = evaluate(outputs, dict(zip(inputs, arrays, strict=True)))
    expected = _fields(op.run_reference(arrays, call.attrs))
    for a, b in zip(actual, expected, strict=True):
        _close(a, np.asarray(b))


@pytest.mark.parametrize(("op", "n", "sample"), _BAD, ids=_ids(_BAD))
def test_bad_sample_raises_its_code(op: Op, n: int, sample: Sample) -> None:
    with pytest.raises(ClewError) as caught:
        _call(op, sample)
    assert caught.value.code == sample.error
    assert op.name in caught.value.message or sample.error == "T109"


@pytest.mark.parametrize(("op", "n", "sample"), _GOOD, ids=_ids(_GOOD))
def test_symbolic_type_agrees_once_substituted(op: Op, n: int, sample: Sample) -> None:
    """One size above 1 at a time becomes a symbol wherever it stands in the inputs."""
    types = _types(sample)
    for size in {d for t in types for d in t.shape if isinstance(d, int) and d > 1}:
        symbol = SymDim.symbol("n")
        args: list[Expr] = [
            Var(f"x{k}", t.with_(shape=tuple(symbol if d == size else d for d in t.shape)))
            if isinstance(a, TensorType)
            else Constant(a)
            for k, (a, t) in enumerate(zip(sample.args, types, strict=True))
        ]
        try:
            call = op(*args, **sample.attrs)
        except ClewError as error:
            # Attributes and blocks spell sizes out too, which a symbol cannot be held against.
            assert error.code in ("T107", "T108", "T109", "T110")  # noqa: PT017
            continue
        expected = _call(op, sample).type
        if "?" not in str(expected):
            assert substitute_type(call.type, {"n": size}) == expected


_HELD = [
    (op, n, s, name)
    for op, n, s in _GOOD
    if op.dynamic_rule
    for name, value in s.attrs.items()
    if isinstance(value, (int, float, tuple)) and not isinstance(value, bool)
    # In a shape that an argument holds 0 is the size of the input.
    if not (op.name == "reshape" and 0 in s.attrs["shape"])
]


@pytest.mark.parametrize(
    ("op", "n", "sample", "name"), _HELD, ids=[f"{op.name}-{n}-{a}" for op, n, _, a in _HELD]
)
def test_attribute_held_by_an_argument(op: Op, n: int, sample: Sample, name: str) -> None:
    """The type covers the one that the value gives, and resolving the call gives that one."""
    static = _call(op, sample)
    value = np.asarray(sample.attrs[name])
    value = value.astype("i8") if value.size == 0 else value
    held = TensorType(value.shape, from_numpy(value.dtype))
    attrs = {**sample.attrs, name: ArgRef(len(sample.args))}
    try:
        call = op(*static.args, Var("held", held), **attrs)
    except UnsupportedError as error:
        assert (error.code, name) == ("U103", "axis")  # noqa: PT017
        return
    for wide, narrow in zip(_tensors(call.type), _tensors(static.type), strict=True):
        assert (wide.dtype, wide.rank) == (narrow.dtype, narrow.rank)
        for a, b in zip(wide.shape, narrow.shape, strict=True):
            assert a == b or not isinstance(a, int)
    known = op(*static.args, Constant(value), **attrs)
    resolved = op.resolve(known)
    assert resolved.args == static.args
    if "?" not in str(static.type):
        assert resolved.type == static.type
    arrays = _arrays(op, sample)
    expected = _fields(op.run_reference(arrays, static.attrs))
    actual = _fields(op.run_reference([*arrays, value], call.attrs))
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def _tensors(type_: Type) -> tuple[TensorType, ...]:
    fields = type_.fields if isinstance(type_, TupleType) else (type_,)
    return tuple(t for t in fields if isinstance(t, TensorType))
