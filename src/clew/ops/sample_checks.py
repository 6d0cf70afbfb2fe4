"""Checks of operators against their samples: types, values and coded errors.

Tests run them over the registry, and `clew.check_op` on one user operator.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from clew.ir.dims import SymDim
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.module import Module
from clew.ir.types import (
    NARROW_FLOATS,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    UnrankedType,
    from_numpy,
    is_float,
    substitute_type,
    to_numpy,
)
from clew.ops.registry import Op, Sample, get_op
from clew.support.errors import ClewError, GraphTypeError
from clew.te.interpret import evaluate
from clew.trace.lineage import building
from clew.trace.span import Source, Span

Array: TypeAlias = "np.ndarray[Any, Any]"
_CLOSE: Final = 1e-5
# Kernels round once per operator, and factors of products may be rounded before.
_UNITS: Final = 2.0
# Attributes and blocks also contain literal sizes, which cannot be compared with a symbol.
_NOT_SYMBOLIC: Final = ("T107", "T108", "T109", "T110")
OUTSIDE: Final = "I320"
"""The code of an index out of range, which only a run detects."""


def types_of(sample: Sample) -> list[Any]:
    """Returns the types of a sample's arguments."""
    return [
        TensorType(a.shape, from_numpy(a.dtype)) if isinstance(a, (np.ndarray, np.generic)) else a
        for a in sample.args
    ]


def arrays_of(op: Op, sample: Sample) -> list[Array]:
    """Returns arguments for a sample; equal calls return equal arguments."""
    return _arrays(np.random.default_rng(zlib.crc32(op.name.encode())), sample)


def _arrays(rng: np.random.Generator, sample: Sample) -> list[Any]:
    return [_drawn(rng, arg, sample) for arg in sample.args]


def _drawn(rng: np.random.Generator, arg: Any, sample: Sample) -> Any:
    """Returns a value of a type; an array is returned unchanged. A sequence has three elements (of
    different rank if the type allows it), an optional a value.
    """
    match arg:
        case TensorType(dtype="bool"):
            return rng.random(arg.concrete) < 0.5
        case TensorType() if is_float(arg.dtype):
            values = rng.uniform(sample.low, sample.high, arg.concrete)
            return np.asarray(values).astype(to_numpy(arg.dtype))
        case TensorType():
            numbers = rng.integers(int(sample.low), int(sample.high) + 1, arg.concrete)
            return np.asarray(numbers).astype(to_numpy(arg.dtype))
        case UnrankedType(dtype):
            return _drawn(rng, TensorType((3,), dtype), sample)
        case SequenceType(UnrankedType(dtype)):
            ranked = (TensorType((2,) * rank, dtype) for rank in range(3))
            return [_drawn(rng, type_, sample) for type_ in ranked]
        case SequenceType(element):
            return [_drawn(rng, element, sample) for _ in range(3)]
        case OptionalType(element):
            return _drawn(rng, element, sample)
        case MapType(key, element):
            keys = ("a", "b", "c") if key == "str" else (1, 2, 3)
            return {k: _drawn(rng, element, sample) for k in keys}
    return np.asarray(arg)


def is_of(value: Any, type_: Any) -> bool:
    """Whether a run-time value is of a type; sizes that are not numbers match any size."""
    match type_:
        case TensorType(shape, dtype):
            return (
                from_numpy(np.asarray(value).dtype) == dtype
                and np.ndim(value) == len(shape)
                and all(
                    a == d for a, d in zip(np.shape(value), shape, strict=True) if type(d) is int
                )
            )
        case UnrankedType(dtype):
            return from_numpy(np.asarray(value).dtype) == dtype
        case SequenceType(element, empty):
            held = isinstance(value, list) and all(is_of(v, element) for v in value)
            return held and not (empty and value)
        case OptionalType(element):
            return value is None or is_of(value, element)
        case MapType(key, element):
            wanted = str if key == "str" else int
            held = isinstance(value, dict) and all(isinstance(k, wanted) for k in value)
            return held and all(is_of(v, element) for v in value.values())
    return False


def _said(value: Any) -> str:
    """Returns a description of a value in the notation of types."""
    if isinstance(value, list):
        return f"[{', '.join(map(_said, value))}]"
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k!r}: {_said(v)}' for k, v in value.items())}}}"
    return str(TensorType(np.shape(value), from_numpy(np.asarray(value).dtype)))


def call_of(op: Op, sample: Sample) -> Call:
    """Returns the graph call; arguments that the sample gives as arrays become constants."""
    args: list[Expr] = [
        Constant(a) if isinstance(a, (np.ndarray, np.generic)) else Var(f"x{n}", a)
        for n, a in enumerate(sample.args)
    ]
    return op(*args, **sample.attrs)


def fields(value: Any) -> tuple[Any, ...]:
    """Returns results as a tuple, even a single one."""
    return value if isinstance(value, tuple) else (value,)


def exact_results(op: Op, arrays: Sequence[Any], attrs: Any) -> tuple[Any, ...] | None:
    """Returns the results of the reference on half-precision arguments in `f64`; None if there are
    no such arguments, or it does not take `f64`.
    """
    wide = [a.astype(np.float64) if _is_half(a) else a for a in arrays]
    if not any(map(_is_half, arrays)):
        return None
    try:
        with np.errstate(all="ignore"):
            return fields(op.run_reference(wide, attrs))
    except (ClewError, TypeError, ValueError):
        return None


def _is_half(value: Any) -> bool:
    return isinstance(value, np.ndarray) and from_numpy(value.dtype) in NARROW_FLOATS


def half_difference(actual: Array, exact: Array, units: float = _UNITS) -> str:
    """Returns where a half-precision result is more than some units in the last place from the
    exact one, and a quarter of as many units of the largest element; "" if nowhere.
    """
    limits = ml_dtypes.finfo(actual.dtype)  # type: ignore[no-untyped-call]
    found, wanted = actual.astype(np.float64), np.asarray(exact).astype(np.float64)
    if not wanted.size:
        return ""
    sizes = np.abs(wanted)
    unit = np.exp2(np.floor(np.log2(np.maximum(sizes, float(limits.smallest_normal)))))
    largest = np.max(sizes, initial=0.0, where=np.isfinite(sizes))
    bound = units * np.maximum(unit, largest / 4) * float(limits.eps)
    with np.errstate(invalid="ignore"):
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        overflown = np.isinf(found) & (sizes >= float(limits.max)) & (found * wanted > 0)
        wrong = ~(same | overflown | (np.abs(found - wanted) <= bound))
    if not wrong.any():
        return ""
    place = tuple(map(int, np.argwhere(wrong)[0]))
    return (
        f"{int(wrong.sum())} of {wrong.size} elements are off by more than {units:g} units in the "
        f"last place of {from_numpy(actual.dtype)}, first at {place}: {found[place]}, "
        f"exactly {wanted[place]}"
    )


def difference(actual: Array, expected: Array, exact: Array | None = None) -> str:
    """Returns how two arrays differ, or "" if they are equal up to rounding. Half precision is
    compared with the exact result, where it is known, in units in the last place.
    """
    if from_numpy(expected.dtype) in NARROW_FLOATS:
        if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
            return f"{actual.dtype}{actual.shape}, expected {expected.dtype}{expected.shape}"
        return half_difference(actual, expected if exact is None else exact)
    try:
        if is_float(from_numpy(expected.dtype)):
            wide = actual.astype("f8"), expected.astype("f8")
            np.testing.assert_allclose(*wide, rtol=_CLOSE, atol=_CLOSE)
        else:
            np.testing.assert_array_equal(actual, expected)
    except AssertionError as error:
        return str(error).strip()
    return ""


def check_reference_types(op: Op, sample: Sample) -> None:
    """Checks that the reference returns the inferred types.

    Errors: T020, and errors of building the call.
    """
    call = call_of(op, sample)
    with np.errstate(all="ignore"):
        results = fields(op.run_reference(arrays_of(op, sample), call.attrs))
    types = call.type.fields if isinstance(call.type, TupleType) else (call.type,)
    if len(results) != len(types) or not all(map(is_of, results, types)):
        given = ", ".join(map(_said, results))
        raise GraphTypeError(
            "T020", f"{op.name}: its reference returned {given}, expected {call.type}"
        )


def check_compute(op: Op, sample: Sample) -> None:
    """Checks that `compute` agrees with the reference.

    Errors: T021.
    """
    assert op.compute is not None
    call, arrays = call_of(op, sample), arrays_of(op, sample)
    inputs = op.placeholders(types_of(sample))
    outputs = list(fields(op.compute(*inputs, **call.attrs)))
    actual = evaluate(outputs, dict(zip(inputs, arrays, strict=True)))
    with np.errstate(all="ignore"):
        expected = fields(op.run_reference(arrays, call.attrs))
    exact = exact_results(op, arrays, call.attrs) or (None,) * len(expected)
    for number, (a, b, e) in enumerate(zip(actual, expected, exact, strict=True)):
        what = difference(a, np.asarray(b), e)
        if what:
            raise GraphTypeError(
                "T021", f"{op.name}: result {number} of compute differs from the reference\n{what}"
            )


def check_symbolic(op: Op, sample: Sample) -> None:
    """Checks that types with symbolic sizes equal those of the sample after substitution. One size
    above 1 at a time becomes a symbol, in all its positions in the inputs.

    Errors: T022.
    """
    types = types_of(sample)
    expected = call_of(op, sample).type
    tensors = [t for t in types if isinstance(t, TensorType)]
    for size in {d for t in tensors for d in t.shape if isinstance(d, int) and d > 1}:
        args: list[Expr] = [
            Constant(a)
            if isinstance(a, (np.ndarray, np.generic))
            else Var(f"x{k}", _with_symbol(a, size))
            for k, a in enumerate(sample.args)
        ]
        try:
            call = op(*args, **sample.attrs)
        except ClewError as error:
            if error.code not in _NOT_SYMBOLIC:
                raise
            continue
        found = substitute_type(call.type, {"n": size})
        if "?" not in str(expected) and found != expected:
            raise GraphTypeError(
                "T022",
                f"{op.name}: its type for n = {size} is {found}, but {expected} without symbols",
                hint="do not assume that sizes are numbers: x.shape may hold symbols",
            )


def _with_symbol(type_: Any, size: int) -> Any:
    """Returns a type with the symbol `n` in place of a size."""
    match type_:
        case TensorType(shape):
            symbol = SymDim.symbol("n")
            return type_.with_(shape=tuple(symbol if d == size else d for d in shape))
        case SequenceType(element):
            return SequenceType(_with_symbol(element, size))
        case OptionalType(element):
            return OptionalType(_with_symbol(element, size))
    return type_


def check_error(op: Op, sample: Sample) -> None:
    """Checks that calling a bad sample, or running it, raises its declared code.

    Errors: T023.
    """
    try:
        call = call_of(op, sample)
        if sample.error == OUTSIDE:
            op.run_reference(arrays_of(op, sample), call.attrs)
    except ClewError as error:
        if error.code == sample.error:
            return
        found = f"error {error.code}: {error.message}"
    else:
        found = "a call"
    raise GraphTypeError("T023", f"{op.name}: expected error {sample.error}, got {found}")


@dataclass(frozen=True)
class SampleModel:
    """A model of an operator's samples, with its inputs and expected outputs, and what is exact of
    those in half precision.
    """

    module: Module
    inputs: dict[str, Array]
    expected: dict[str, Array]
    exact: dict[str, Array]


def model_of(op: Op, samples: Sequence[Sample], *, neighbors: bool = False) -> SampleModel:
    """Returns a model whose outputs are all results of all samples. With `neighbors`, f32 arguments
    and results pass through other operators, which kernels may fuse.
    """
    rng = np.random.default_rng(zlib.crc32(op.name.encode()))
    params: list[Var] = []
    results: list[Expr] = []
    inputs: dict[str, Array] = {}
    expected: list[Array] = []
    exact: dict[str, Array] = {}
    for n, sample in enumerate(samples):
        arrays = _arrays(rng, sample)
        args: list[Expr] = []
        for k, array in enumerate(arrays):
            with _layer(f"x{n}_{k}", kind="input"):
                type_ = TensorType(array.shape, from_numpy(array.dtype))
                params.append(Var(f"x{n}_{k}", type_))
            inputs[f"x{n}_{k}"] = array
            args.append(params[-1])
            if neighbors and type_.dtype == "f32":
                with _layer(f"before{n}_{k}", "clip"):
                    low, high = float(array.min(initial=0)), float(array.max(initial=0))
                    args[-1] = get_op("clip")(args[-1], min=low, max=high)
        with _layer(f"sample{n}", op.name):
            call = op(*args, **sample.attrs)
        with np.errstate(all="ignore"):
            values = op.run_reference(arrays, call.attrs)
        wide = exact_results(op, arrays, call.attrs)
        for k, value in enumerate(fields(values)):
            if wide is not None:
                exact[f"y{len(expected)}"] = np.asarray(wide[k])
            with _layer(f"sample{n}", op.name, output=k):
                result = TupleGetItem(call, k) if isinstance(values, tuple) else call
            array = np.asarray(value)
            if neighbors and array.dtype == np.float32:
                with _layer(f"after{n}_{k}", "nn.relu", output=0):
                    result = get_op("nn.relu")(result)
                array = get_op("nn.relu").run_reference([array], {})
            results.append(result)
            expected.append(array)
    names = tuple(f"y{n}" for n in range(len(results)))
    with _layer("samples"):
        module = Module({"main": Function(params, Tuple(results), {"outputs": names})})
    return SampleModel(module, inputs, dict(zip(names, expected, strict=True)), exact)


def _layer(
    name: str, op: str = "", *, kind: str = "layer", output: int | None = None
) -> AbstractContextManager[None]:
    return building(Span([Source(name, op, "samples", kind, output)]))


def wrong_output(model: SampleModel, actual: dict[str, Array]) -> str:
    """Returns which output of a model is wrong and how; "" if none is."""
    for name, wanted in model.expected.items():
        found = actual[name]
        if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            return f"{name} is {found.dtype}{found.shape}, expected {wanted.dtype}{wanted.shape}"
        what = difference(found, wanted, model.exact.get(name))
        if what:
            return f"{name}: {what}"
    return ""
