"""Arrays of every kind and size as inputs, and inputs that are not arrays."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clew.backends.compile_options import Diagnostics
from clew.runtime.segment import NativeSegment
from clew.support.errors import ClewError
from hostile.catalog import model, node, value
from hostile.corpus import network
from hostile.processes.setting import IMAGE, case, compiled, symbolic


class Sub(np.ndarray):
    """An array that is more than one."""


def odd_arrays(x: Any) -> Iterator[Any]:
    """Yields arrays equal to one, laid out otherwise."""
    yield np.asfortranarray(x)
    yield np.repeat(x, 2, axis=-1)[..., ::2]
    yield np.flip(np.flip(x).copy())
    room = np.zeros(x.nbytes + 1, np.uint8)
    misaligned = room[1:].view(x.dtype).reshape(x.shape)
    misaligned[...] = x
    yield misaligned
    frozen = x.copy()
    frozen.flags.writeable = False
    yield frozen
    yield x.view(Sub)
    yield np.ma.MaskedArray(x)
    yield x.tolist()
    yield memoryview(np.ascontiguousarray(x).data)
    yield np.broadcast_to(x[:1], x.shape) if (x == x[:1]).all() else x
    yield x.astype(x.dtype.newbyteorder())
    with tempfile.TemporaryFile() as file:
        mapped = np.memmap(file, x.dtype, "w+", shape=x.shape)
        mapped[...] = x
        yield mapped


@case()
def odd_inputs(folder: Path) -> None:
    built = compiled(network(), diagnostics=Diagnostics(guard=True))
    wanted = built(IMAGE)
    served = 0
    for x in odd_arrays(IMAGE):
        try:
            result = built(x)
        except ClewError as error:
            assert error.code in ("I042", "I043"), error
            continue
        assert type(result) is np.ndarray
        assert np.array_equal(result, wanted), type(x)
        served += 1
    assert served > 8


def _by_name(built: Any) -> Callable[[Any], Any]:
    return lambda x: built.run({"x": x})


class Liar:
    """Says that it is an array."""

    shape = (1, 3, 8, 8)
    dtype = np.dtype(np.float32)

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        return np.zeros(3, np.int8)

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("no")

    def __dlpack_device__(self) -> Any:
        return (1, 0)


@case()
def inputs_that_are_none(folder: Path) -> None:
    built = compiled(network(), threads=1)
    vast = np.broadcast_to(np.float32(0), (1, 3, 1 << 20, 1 << 20))
    wrong = [
        None, "text", b"bytes", 1, 1.5, [], {}, object(), np.zeros(0), np.array("x"), vast,
        np.zeros((1, 3, 8, 8), object), np.zeros((1, 3, 8, 8), np.complex64), IMAGE.astype("M8[s]"),
        np.zeros((1, 3, 8, 8), [("a", "f4")]), IMAGE[0], IMAGE.astype(np.float64), [[1], [2, 3]],
        Liar(),
    ]  # fmt: skip
    for x in wrong:
        for call in (built, _by_name(built)):
            try:
                call(x)
            except ClewError as error:
                assert error.code in ("I042", "I043", "I041", "I040"), error
                continue
            raise AssertionError(f"{type(x)} was taken")


@case()
def vast_inputs_of_no_memory(folder: Path) -> None:
    """2^40 rows that are one row: the result would be vast."""
    built = compiled(symbolic(), threads=1)
    row = np.ones((1, 16), np.float32)
    for count in (1 << 33, 1 << 40, (1 << 57) - 1):
        try:
            built(np.broadcast_to(row, (count, 16)))
        except ClewError as error:
            assert error.code in ("C140", "I265", "I267", "T110"), error
            continue
        raise AssertionError(count)


@case()
def outputs_that_overlap(folder: Path) -> None:
    built = compiled(model([node("Softmax", ["x"], ["y"])], inputs=[value("x", [4, 16])]))
    segments: Sequence[NativeSegment] = built.build.segments
    x = np.sin(np.arange(64, dtype=np.float32)).reshape(4, 16)
    wanted = built(x)
    room = np.zeros(200, np.float32)
    for start in (0, 1, 7, 33, 64, 100):
        source = room[start : start + 64].reshape(4, 16)
        source[...] = x
        target = room[20 : 20 + 64].reshape(4, 16)
        (result,) = segments[0]([source], [target])
        assert np.array_equal(result, wanted), start
