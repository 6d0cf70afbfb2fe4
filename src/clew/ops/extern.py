"""Operators that call functions of a shared library by address.

A signature names the sizes. The function receives a pointer to each input and each output, every
size in order of appearance (`int64_t`), and every attribute (`int64_t` or `double`):

```python
clew.extern_op(
    "vendor.scale_rows",
    "./libvendor.so",
    "scale_rows",
    "(f32[n, m], f32[n]) -> f32[n, m]",
    attributes={"gain": float},
)
```
```c
void scale_rows(const float *x, const float *scale, float *out, int64_t n, int64_t m, double gain);
```
"""

from __future__ import annotations

import ctypes
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.ir.dims import Dim, SymDim
from clew.ir.type_reader import read_function_type
from clew.ir.types import FunctionType, TensorType, TupleType, Type, substitute_type, to_numpy
from clew.ops.common import differ, tensor_type
from clew.ops.registry import Op, Sample, register_op
from clew.support.errors import GraphTypeError, InputError
from clew.support.files import open_plain

Array = np.ndarray[Any, Any]
_C_TYPES: Final = {int: ctypes.c_int64, bool: ctypes.c_int64, float: ctypes.c_double}


def extern_op(
    name: str,
    library: str | Path | int,
    symbol: str,
    signature: str,
    *,
    attributes: Mapping[str, type] | None = None,
    samples: Sequence[Sample] = (),
    onnx: str = "",
    overwrite: bool = False,
) -> Op:
    """Registers an operator that calls `symbol` of a shared library by the C calling convention.

    `library` is its path (or the address of the function). `signature` is `(inputs) -> output` in
    the types of the text form; sizes are names or numbers, and output sizes follow from the inputs.
    All arrays are contiguous. The function must respect their sizes, write every element of its
    outputs, and return nothing. It runs between kernels, without holding Python's lock.

    Errors: I086 if the library or the symbol cannot be loaded; P001 for a signature that does not
    parse, T019 for one that does not determine output sizes or contains types other than tensors.
    """
    kinds = read_function_type(signature)
    inputs, outputs = _tensors(name, kinds.params), _tensors(name, _results(kinds))
    sizes = _sizes(name, inputs, outputs)
    wanted = dict(attributes or {})
    for attribute, kind in wanted.items():
        if kind not in _C_TYPES:
            raise GraphTypeError(
                "T019", f"{name}: attribute {attribute} is {kind.__name__}", hint="use int or float"
            )
    call = _function(library, symbol, len(inputs) + len(outputs), len(sizes), wanted)

    def run(*arrays: Array, **attrs: Any) -> Array | tuple[Array, ...]:
        bound = _bound(
            name,
            inputs,
            [TensorType(a.shape, t.dtype) for a, t in zip(arrays, inputs, strict=True)],
        )
        given = [np.ascontiguousarray(a) for a in arrays]
        made = [np.empty(_concrete(t, bound), to_numpy(t.dtype)) for t in outputs]
        numbers = [int(bound[s]) for s in sizes]  # type: ignore[arg-type]
        call(*(a.ctypes.data for a in (*given, *made)), *numbers, *(attrs[a] for a in wanted))
        return made[0] if isinstance(kinds.result, TensorType) else tuple(made)

    def types(*given: Type, **attrs: Any) -> Type:
        bound = _bound(name, inputs, [tensor_type(name, g) for g in given])
        return substitute_type(kinds.result, bound)

    parameters = [
        *(
            inspect.Parameter(f"x{n}", inspect.Parameter.POSITIONAL_ONLY)
            for n in range(len(inputs))
        ),
        *(
            inspect.Parameter(a, inspect.Parameter.KEYWORD_ONLY, annotation=kind)
            for a, kind in wanted.items()
        ),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = wanted
    run.__doc__ = f"`{symbol}`, an external function: `{signature}`."
    op = register_op(name, host=True, samples=samples, onnx=onnx, overwrite=overwrite)(run)
    op.types(types)
    # The library is not clew's, so neither is the operator's meaning (`Op.is_builtin`).
    run.__module__ = types.__module__ = symbol
    return op


def _results(kinds: FunctionType) -> Sequence[Type]:
    return kinds.result.fields if isinstance(kinds.result, TupleType) else (kinds.result,)


def _tensors(name: str, types: Sequence[Type]) -> list[TensorType]:
    for type_ in types:
        if not isinstance(type_, TensorType):
            raise GraphTypeError("T019", f"{name}: {type_} is not a tensor")
    return list(types)  # type: ignore[arg-type]


def _sizes(name: str, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> list[str]:
    """Returns the named sizes in order of appearance; an input axis must have each as its size."""
    found: dict[str, None] = {}
    for type_ in inputs:
        found.update({str(d): None for d in type_.shape if _is_name(d)})
    for type_ in (*inputs, *outputs):
        for dim in type_.shape:
            free = set(dim.symbols) - set(found) if isinstance(dim, SymDim) else set()
            if free:
                raise GraphTypeError(
                    "T019",
                    f"{name}: no input determines the size {', '.join(sorted(free))}",
                    hint="each name must be the entire size of some input axis",
                )
    return list(found)


def _is_name(dim: Dim) -> bool:
    return isinstance(dim, SymDim) and dim.symbols == frozenset((str(dim),))


def _bound(name: str, wanted: Sequence[TensorType], given: Sequence[TensorType]) -> dict[str, Dim]:
    """Returns the sizes that the inputs determine.

    Errors: T101 (dtype), T102 (rank), T103 (contradictory sizes).
    """
    bound: dict[str, Dim] = {}
    for number, (want, have) in enumerate(zip(wanted, given, strict=True)):
        what = f"{name}: input {number} is {have}, expected {want}"
        if have.dtype != want.dtype:
            raise GraphTypeError("T101", what, hint="insert a cast")
        if have.rank != want.rank:
            raise GraphTypeError("T102", what)
        for dim, size in zip(want.shape, have.shape, strict=True):
            known = bound.setdefault(str(dim), size) if _is_name(dim) else dim
            if differ(known, size):
                raise GraphTypeError("T103", f"{what}, where {dim} is {known}")
    for want, have in zip(wanted, given, strict=True):
        made = substitute_type(want, bound)
        if isinstance(made, TensorType) and any(map(differ, made.shape, have.shape)):
            raise GraphTypeError("T103", f"{name}: an input is {have}, expected {made}")
    return bound


def _concrete(type_: TensorType, bound: Mapping[str, Dim]) -> tuple[int, ...]:
    made = substitute_type(type_, bound)
    assert isinstance(made, TensorType)
    return made.concrete


def _function(
    library: str | Path | int,
    symbol: str,
    pointers: int,
    sizes: int,
    attributes: Mapping[str, type],
) -> Callable[..., None]:
    kinds: list[Any] = [ctypes.c_void_p] * pointers + [ctypes.c_int64] * sizes
    kinds += [_C_TYPES[kind] for kind in attributes.values()]
    if isinstance(library, int):
        return ctypes.CFUNCTYPE(None, *kinds)(library)
    try:
        if os.path.exists(library):  # otherwise the loader searches for a library of that name
            open_plain(library).close()
        found = getattr(ctypes.CDLL(str(library)), symbol)
    except (OSError, AttributeError) as error:
        raise InputError(
            "I086",
            f"cannot load {symbol} of {library}: {error}",
            hint="give the path of a shared library for this machine, and a symbol that it exports",
        ) from error
    found.argtypes, found.restype = kinds, None
    external: Callable[..., None] = found
    return external
