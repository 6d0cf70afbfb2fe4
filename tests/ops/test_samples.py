"""Every operator's samples: types, values and coded errors, from the registry alone."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew.ir.expr import ArgRef, Constant, Var
from clew.ir.types import TensorType, TupleType, Type, from_numpy
from clew.ops.registry import Op, Sample, all_ops
from clew.ops.sample_checks import (
    arrays_of,
    call_of,
    check_compute,
    check_reference_types,
    check_symbolic,
    fields,
)
from clew.support.errors import ClewError, UnsupportedError

Array = np.ndarray[Any, Any]
_OPS = [op for op in all_ops() if op.is_builtin]
_GOOD = [(op, n, s) for op in _OPS for n, s in enumerate(op.samples) if not s.error]
_BAD = [(op, n, s) for op in _OPS for n, s in enumerate(op.samples) if s.error]


def _ids(cases: list[tuple[Op, int, Sample]]) -> list[str]:
    return [f"{op.name}-{n}" for op, n, _ in cases]


@pytest.mark.parametrize("op", _OPS, ids=[op.name for op in _OPS])
def test_every_operator_is_declared_whole(op: Op) -> None:
    assert op.doc, "no docstring"
    assert any(not s.error for s in op.samples), "no good sample"
    assert op.compute or op.decompose_rule or op.reference_rule, "no meaning"
    assert not op.host or op.type_rule, "a host operator states its types"


@pytest.mark.parametrize(("op", "n", "sample"), _GOOD, ids=_ids(_GOOD))
def test_reference_has_the_type_inferred(op: Op, n: int, sample: Sample) -> None:
    check_reference_types(op, sample)


_BOTH = [(op, n, s) for op, n, s in _GOOD if op.compute and op.reference_rule]


@pytest.mark.parametrize(("op", "n", "sample"), _BOTH, ids=_ids(_BOTH))
def test_compute_agrees_with_reference(op: Op, n: int, sample: Sample) -> None:
    check_compute(op, sample)


def _computed(op: Op, sample: Sample) -> Any:
    return op.run_reference(arrays_of(op, sample), call_of(op, sample).attrs)


_MOVES = [(op, n, s) for op, n, s in _GOOD if op.traits.collects or op.traits.passes_on]


@pytest.mark.parametrize(("op", "n", "sample"), _MOVES, ids=_ids(_MOVES))
def test_operators_that_only_move_elements(op: Op, n: int, sample: Sample) -> None:
    """They give no warnings about any numbers, and collected results share no memory."""
    given = [_with_odd_numbers(value) for value in arrays_of(op, sample)]
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        results = op.run_reference(given, call_of(op, sample).attrs)
    if op.traits.collects:
        made, used = list(_arrays_in(results)), list(_arrays_in(given))
        assert not any(np.may_share_memory(a, b) for a in made for b in used)
        assert not any(np.may_share_memory(a, b) for a, b in itertools.combinations(made, 2))


def _with_odd_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_odd_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_odd_numbers(item) for key, item in value.items()}
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        odd = np.array([np.nan, np.inf, -0.0, np.finfo(value.dtype).max], value.dtype)
        return np.resize(odd, value.shape)
    return value


def _arrays_in(value: Any) -> Iterator[Array]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays_in(item)
    elif isinstance(value, dict):
        yield from _arrays_in(list(value.values()))


@pytest.mark.parametrize(("op", "n", "sample"), _BAD, ids=_ids(_BAD))
def test_bad_sample_raises_its_code(op: Op, n: int, sample: Sample) -> None:
    with pytest.raises(ClewError) as caught:
        _computed(op, sample)
    assert caught.value.code == sample.error
    assert op.name in caught.value.message or sample.error in ("T109", "I320")


@pytest.mark.parametrize(("op", "n", "sample"), _GOOD, ids=_ids(_GOOD))
def test_symbolic_type_agrees_once_substituted(op: Op, n: int, sample: Sample) -> None:
    check_symbolic(op, sample)


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
    static = call_of(op, sample)
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
    arrays = arrays_of(op, sample)
    expected = fields(op.run_reference(arrays, static.attrs))
    actual = fields(op.run_reference([*arrays, value], call.attrs))
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def _tensors(type_: Type) -> tuple[TensorType, ...]:
    fields = type_.fields if isinstance(type_, TupleType) else (type_,)
    return tuple(t for t in fields if isinstance(t, TensorType))
