"""Columns of tables as inputs of a model, and results as columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from clew.mapping.plan import arrow
from clew.runtime.input_spec import InputSpec
from clew.support.errors import InputError
from clew.support.text_arrays import TEXT

Array: TypeAlias = "np.ndarray[Any, Any]"


def rows_of(column: Any, spec: InputSpec, name: str, first: int) -> list[Array]:
    """Returns the rows of a column as the parts of an input, which the model's first axis counts:
    arrays of the input's dtype and of its shape without the first axis. `first` is the number of
    the first row in its file, for messages.

    Numbers and lists are accepted, nested or of fixed size; a flat list fills a shape of several
    axes in row-major order.

    Errors: I454 for a value that does not fit.
    """
    values = column.combine_chunks()
    _check_whole(values, name, first)
    wanted = spec.shape[1:]
    dtype = np.dtype(spec.dtype)
    found = []
    for number, value in enumerate(_values(values, spec.dtype == TEXT)):
        try:
            array = _converted(value, dtype)
        except ValueError as error:
            held = f"it is {values.type}, and {error}"
            raise _unfit(name, first + number, held) from None
        shape = _shape(array.shape, wanted)
        if shape is None:
            raise _unfit(
                name,
                first + number,
                f"it has shape {list(array.shape)}, and the model takes {spec.shown_shape} with "
                "rows along the first axis",
            )
        found.append(array.reshape(shape))
    return found


def texts_of(column: Any, name: str, first: int) -> list[str]:
    """Returns the texts of a column. Errors: I454 for anything else."""
    values = column.combine_chunks()
    _check_whole(values, name, first)
    types = arrow().types
    if types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if not (types.is_string(values.type) or types.is_large_string(values.type)):
        raise _unfit(name, first, f"it is {values.type}, and texts are needed")
    texts: list[str] = values.to_pylist()
    return texts


def _check_whole(values: Any, name: str, first: int) -> None:
    if _has_null(values):
        row = next(n for n, value in enumerate(values.to_pylist()) if _lacks(value))
        raise _unfit(name, first + row, "it is missing, or a part of it")


def _has_null(values: Any) -> bool:
    """Whether a value of an Arrow array, or a part of one, is missing."""
    types = arrow().types
    if isinstance(values, arrow().ExtensionArray):
        return _has_null(values.storage)
    if types.is_dictionary(values.type):
        return _has_null(values.dictionary_decode())
    if values.null_count:
        return True
    kind = values.type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and _has_null(values.flatten())


def _lacks(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(map(_lacks, value)))


def _values(values: Any, is_text: bool) -> Sequence[Any] | Array:
    """Returns the values of an Arrow array, as arrays where that costs little."""
    types = arrow().types
    kind = values.type
    if is_text or types.is_string(kind) or types.is_large_string(kind):
        texts: list[Any] = values.to_pylist()
        return texts
    if isinstance(values, arrow().FixedShapeTensorArray):
        tensors: Array = values.to_numpy_ndarray()
        return tensors
    if types.is_fixed_size_list(kind):
        inner = np.asarray(_values(values.flatten(), is_text))
        return inner.reshape(len(values), kind.list_size, *inner.shape[1:])
    if types.is_list(kind) or types.is_large_list(kind):
        inner_values = _values(values.flatten(), is_text)
        ends = np.cumsum(values.value_lengths().to_numpy(zero_copy_only=False))
        begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        bounds = zip(begins.tolist(), ends.tolist(), strict=True)
        return [inner_values[begin:end] for begin, end in bounds]
    plain: Array = values.to_numpy(zero_copy_only=False)
    return plain


def _converted(value: Any, dtype: np.dtype[Any]) -> Array:
    """Returns a value as an array of a dtype.

    Raises `ValueError`, which says why, for values that the dtype does not have.
    """
    if dtype.kind == "O":  # NumPy's own texts would lose NULs at their ends
        texts = np.array(value, object)
        if not all(isinstance(text, str) for text in texts.flat):
            raise ValueError("the model takes texts")
        return texts
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError("its lists differ in length") from None
    if array.dtype == dtype:
        return array
    if array.size == 0:
        return array.astype(dtype)
    if array.dtype.kind not in "iufb":
        raise ValueError(f"the model takes {dtype}")
    with np.errstate(all="ignore"):
        made = array.astype(dtype)
    whole = dtype.kind in "iub"
    if whole and (array.dtype.kind == "f" or not np.array_equal(made, array)):
        raise ValueError(f"{dtype} cannot hold its numbers")
    return made


def _shape(given: tuple[int, ...], wanted: tuple[int | str, ...]) -> tuple[int, ...] | None:
    """Returns the shape of a row's value in the model; None if it does not fit."""
    free = [axis for axis, size in enumerate(wanted) if isinstance(size, str)]
    if len(given) == len(wanted):
        fits = all(isinstance(w, str) or w == g for g, w in zip(given, wanted, strict=True))
        return given if fits else None
    if len(given) > 1 or len(free) > 1:
        return None
    known = math.prod(size for size in wanted if isinstance(size, int))
    total = math.prod(given)
    if not free:
        return tuple(map(int, wanted)) if total == known else None
    if not known or total % known:
        return None
    return tuple(total // known if isinstance(size, str) else size for size in wanted)


def column_of(rows: Sequence[Array]) -> Any:
    """Returns the results of rows, arrays of one rank, as an Arrow column: numbers, or nested
    lists.
    """
    pa = arrow()
    rank = rows[0].ndim
    flat = np.concatenate([row.reshape(-1) for row in rows])
    if flat.dtype.kind == "O":
        made = pa.array(flat.tolist(), pa.large_string())
    else:
        if flat.dtype.kind not in "iufb":  # bf16 and narrower floats
            flat = flat.astype(np.float32)
        made = pa.array(flat)
    for axis in reversed(range(rank)):
        lengths = np.concatenate(
            [np.full(math.prod(row.shape[:axis]), row.shape[axis], np.int64) for row in rows]
        )
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        made = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), made)
    return made


def _unfit(name: str, row: int, why: str) -> InputError:
    return InputError(
        "I454",
        f"the value of column {name!r} in row {row} does not fit: {why}",
        hint="--input NAME=COLUMN says which column an input has",
    )
