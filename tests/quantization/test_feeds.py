"""Calibration data: every form that is accepted, and what is wrong with others."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto
from small_models import drawn, model, node

import clew
from clew.quantization import Quantized, Scheme
from clew.support.errors import ClewError, ClewWarning

PLAIN = Scheme(migration=False)  # ranges are those of the values themselves
X, Y = drawn(6, 4, seed=1), drawn(6, 4, seed=2)


def two_inputs() -> ModelProto:
    """A product of the sum of two inputs."""
    nodes = [
        node("Add", ["x", "y"], ["s"], name="sum"),
        node("MatMul", ["s", "w"], ["z"], name="fc"),
    ]
    return model(nodes, {"x": [1, 4], "y": [1, 4]}, {"z": [1, 3]}, {"w": drawn(4, 3, scale=0.4)})


def one_input() -> ModelProto:
    """A product of an input."""
    nodes = [node("MatMul", ["x", "w"], ["z"], name="fc")]
    return model(nodes, {"x": [2, 4]}, {"z": [2, 3]}, {"w": drawn(4, 3, scale=0.4)})


def quantized(given: Any, network: ModelProto | None = None) -> Quantized:
    return clew.quantize(network or two_inputs(), given, scheme=PLAIN, threads=1)


def rows() -> list[dict[str, Any]]:
    return [{"x": x[None], "y": y[None]} for x, y in zip(X, Y, strict=True)]


def folder(path: Path) -> Path:
    for n, row in enumerate(rows()):
        np.savez(path / f"{n}.npz", **row)
    return path


def archive(path: Path) -> Path:
    np.savez(path / "all.npz", x=X, y=Y)
    return path / "all.npz"


class Numbered:
    """Calls that are made when they are asked for, as of a data set."""

    def __init__(self, calls: Sequence[Any]) -> None:
        self.calls = calls
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.calls)

    def __getitem__(self, number: int) -> Any:
        self.read.append(number)
        return {n: a.copy() for n, a in self.calls[number].items()}


def reused_arrays() -> Iterator[dict[str, Any]]:
    """The calls of `rows`, each written into the same arrays."""
    call = {"x": np.empty_like(X[:1]), "y": np.empty_like(Y[:1])}
    for row in rows():
        for name, array in call.items():
            array[:] = row[name]
        yield call


FORMS: dict[str, Callable[[Path], Any]] = {
    "mappings": lambda _: rows(),
    "tuples": lambda _: [(r["x"], r["y"]) for r in rows()],
    "iterator": lambda _: iter(rows()),
    "iterator with one dict": lambda _: reused_arrays(),
    "iterator with one tuple": lambda _: (tuple(call.values()) for call in reused_arrays()),
    "by number": lambda _: Numbered(rows()),
    "arrays by name": lambda _: {"x": X, "y": Y},
    "folder": folder,
    "name of a folder": lambda path: str(folder(path)),
    "file": archive,
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_says_the_same(form: str, tmp_path: Path) -> None:
    found = quantized(FORMS[form](tmp_path))
    assert found.recipe.samples == 6
    (row,) = found.layers
    total = X + Y
    assert (row.low, row.high) == (np.float32(total.min()), np.float32(total.max()))


def test_an_array_is_divided_by_the_batch() -> None:
    assert quantized(X, one_input()).recipe.samples == 3
    assert quantized([X[:2], X[2:4]], one_input()).recipe.samples == 2


def test_a_folder_is_not_held_in_memory(tmp_path: Path) -> None:
    """Of calls that are read by number, no two are alive at a time."""
    alive: list[weakref.ref[Any]] = []

    class Large(Numbered):
        def __getitem__(self, number: int) -> Any:
            most = 2 * 2  # the last call's, and this one's
            if sum(r() is not None for r in alive) > most:
                gc.collect()  # takes a second in a long run, so only if cycles may keep some
            assert sum(r() is not None for r in alive) <= most
            found = super().__getitem__(number)
            alive.extend(weakref.ref(a) for a in found.values())
            return found

    data = Large(rows() * 4)
    found = quantized(data)
    assert found.recipe.samples == 24
    assert data.read[:24] == list(range(24))
    assert data.read.count(5) > 2


def test_data_that_change_from_pass_to_pass() -> None:
    class Shuffled(Numbered):
        def __getitem__(self, number: int) -> Any:
            found = super().__getitem__(number)
            return {n: a + len(self.read) for n, a in found.items()}

    with pytest.raises(ClewError) as error:
        quantized(Shuffled(rows()))
    assert error.value.code == "I394"
    assert "sample 0 is not the same" in str(error.value)
    assert quantized(list(Shuffled(rows()))).recipe.samples == 6


def test_drawn_data_are_warned_of() -> None:
    with pytest.warns(ClewWarning, match="I395"):
        assert quantized("drawn").recipe.samples > 8


def _failing() -> Iterator[Any]:
    yield rows()[0]
    raise OSError("the camera is off")


class _Failing:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> Any:
        return {0: rows()[0]}[number]


WRONG: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "none": ("I392", lambda _: None),
    "no samples": ("I392", lambda _: []),
    "arrays of no samples": ("I392", lambda _: {"x": X[:0], "y": Y[:0]}),
    "empty folder": ("I392", lambda path: path),
    "no such file": ("I394", lambda path: path / "absent.npz"),
    "a number": ("I394", lambda _: 7),
    "one array for two inputs": ("I394", lambda _: X),
    "different lengths": ("I394", lambda _: {"x": X, "y": Y[:5]}),
    "NaN": ("I393", lambda _: [rows()[0], {"x": X[:1] * np.nan, "y": Y[:1]}]),
    "infinite": ("I393", lambda _: [{"x": X[:1] / np.float32(0), "y": Y[:1]}]),
    "wrong shape": ("I042", lambda _: [rows()[0], {"x": X[:1, :3], "y": Y[:1]}]),
    "wrong kind": ("I043", lambda _: [{"x": X[:1] > 0, "y": Y[:1]}]),
    "unknown input": ("I041", lambda _: [{"x": X[:1], "z": Y[:1]}]),
    "a generator that fails": ("I394", lambda _: _failing()),
    "data that fail": ("I394", lambda _: _Failing()),
    "an input too few": ("I041", lambda _: {"x": X}),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_wrong_data_are_refused(case: str, tmp_path: Path) -> None:
    code, given = WRONG[case]
    with pytest.raises(ClewError) as error:
        quantized(given(tmp_path))
    assert error.value.code == code, error.value


def test_the_sample_at_fault_is_named() -> None:
    with pytest.raises(ClewError) as error:
        quantized([rows()[0], {"x": X[:1, :3], "y": Y[:1]}])
    assert "sample 1: " in str(error.value)


def test_a_length_that_the_batch_does_not_divide() -> None:
    with pytest.raises(ClewError) as error:
        quantized(X[:5], one_input())
    assert error.value.code == "I394"


def test_a_file_that_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"no archive")
    for given in (tmp_path / "x.npz", tmp_path):
        with pytest.raises(ClewError) as error:
            quantized(given)
        assert error.value.code == "I394"


def test_a_value_that_is_nan_within_the_model() -> None:
    nodes = [
        node("Log", ["x"], ["l"], name="log"),
        node("MatMul", ["l", "w"], ["z"], name="fc"),
    ]
    network = model(nodes, {"x": [1, 4]}, {"z": [1, 3]}, {"w": drawn(4, 3)})
    with pytest.raises(ClewError) as error:
        quantized(-np.ones((1, 4), "f"), network)
    assert (error.value.code, error.value.layer) == ("I393", "log")
