"""A TFLite graph that grows one operator at a time.

LiteRT infers the shapes of results, so that a graph holds only what LiteRT accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clew.frontends.tflite.registry import CONVERTERS
from clew.ir.types import to_numpy
from fuzz.choices import Choices
from fuzz.graph import MOST_ELEMENTS, SIZES, Unfit
from fuzz.tflite.engines import shapes_of
from litert_runs import Refused
from tflite_files import Graph, written

Array = np.ndarray[Any, Any]
Options = tuple[str, Mapping[str, Any]]


class Growing(Graph):
    """A graph whose last operators may be taken back."""

    def mark(self) -> list[int]:
        """Returns what is there, for `back_to`."""
        return [len(each) for each in self._parts()]

    def back_to(self, mark: list[int]) -> None:
        """Drops what was added since."""
        for part, count in zip(self._parts(), mark, strict=True):
            del part[count:]

    def reshape(self, tensor: int, shape: Sequence[int]) -> None:
        """Gives a tensor its shape."""
        self._tensors[tensor]["shape"] = list(shape)

    def last(self) -> tuple[bytes, list[int]]:
        """Returns a file of the last operator alone, and the tensors of its results."""
        operator = self._operators[-1]
        used = sorted({t for t in (*operator["inputs"], *operator["outputs"]) if t >= 0})
        buffers: list[dict[str, Any]] = [{}]
        tensors = []
        for number in used:
            tensor = dict(self._tensors[number])
            if tensor.get("buffer"):
                buffers.append(self._buffers[tensor["buffer"]])
                tensor["buffer"] = len(buffers) - 1
            tensors.append(tensor)
        place = {-1: -1, **{number: n for n, number in enumerate(used)}}
        inputs, outputs = ([place[t] for t in operator[name]] for name in ("inputs", "outputs"))
        alone = {**operator, "inputs": inputs, "outputs": outputs}
        given = {n for n in inputs if n >= 0 and not tensors[n].get("buffer")}
        graph = {
            "tensors": tensors, "inputs": sorted(given), "outputs": outputs, "operators": [alone],
        }  # fmt: skip
        model = {
            "version": 3, "operator_codes": self._codes, "subgraphs": [graph], "buffers": buffers,
        }  # fmt: skip
        return written("Model", model), outputs

    def _parts(self) -> tuple[list[Any], ...]:
        return self._tensors, self._buffers, self._codes, self._operators, self._inputs


@dataclass(frozen=True)
class Value:
    """A tensor of the graph. `scale` is 0 where elements are no codes."""

    tensor: int
    shape: tuple[int, ...]
    dtype: str
    scale: float = 0.0
    zero: int = 0
    constant: bool = False

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def like(self) -> dict[str, Any]:
        """Its quantization, as `Graph` takes it."""
        return {"scale": [self.scale], "zero": [self.zero]} if self.scale else {}


@dataclass
class Case:
    """A file, values for its inputs, and the names of its operators."""

    data: bytes
    feeds: dict[str, Array]
    operators: list[str]
    quantized: bool


@dataclass
class Drawing:
    """Grows one graph. Entries of the table draw from it what they need."""

    choices: Choices
    graph: Growing = field(default_factory=Growing)
    values: list[Value] = field(default_factory=list)
    feeds: dict[str, Array] = field(default_factory=dict)
    operators: list[str] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    _count: int = 0

    def __post_init__(self) -> None:
        self.sizes = [self.choices.pick(SIZES) for _ in range(3)]

    # --- values ---

    def fresh(self, prefix: str) -> str:
        """Returns a name that nothing has."""
        self._count += 1
        return f"{prefix}{self._count}"

    def shape(self, low: int = 0, high: int = 4) -> tuple[int, ...]:
        """Returns a shape with so many axes that is not too large."""
        found: list[int] = []
        for _ in range(self.choices.pick([r for r in (2, 4, 3, 1, 5, 0) if low <= r <= high])):
            size = self.choices.pick(SIZES if self.choices.one_in(4) else self.sizes)
            while size > 3 and np.prod(found, initial=1) * size > MOST_ELEMENTS:
                size //= 2
            found.append(size)
        return tuple(found)

    def leaf(
        self,
        shape: Sequence[int],
        dtype: str = "f32",
        bounds: tuple[float, float] = (-3, 3),
        constant: bool | None = None,
        **quantization: Any,
    ) -> Value:
        """Returns a new input or constant; `bounds` are those of its elements."""
        rng = np.random.default_rng(self.choices.integer(0, 1 << 16))
        low, high = bounds
        if dtype == "bool":
            made: Array = rng.random(tuple(shape)) < 0.5
        elif dtype[0] in "iu":
            made = rng.integers(int(low), int(high) + 1, tuple(shape)).astype(to_numpy(dtype))
        else:
            made = rng.uniform(low, high, tuple(shape)).astype(to_numpy(dtype))
        return self.given(np.asarray(made), dtype, constant, **quantization)

    def given(
        self, array: Array, dtype: str, constant: bool | None = None, **quantization: Any
    ) -> Value:
        """Returns a new input or constant with these elements."""
        if constant is None:
            constant = self.choices.one_in(3)
        if constant:
            tensor = self.graph.constant(array, self.fresh("c"), **quantization)
        else:
            name = self.fresh("x")
            tensor = self.graph.input(name, array.shape, dtype, **quantization)
            self.feeds[name] = array
        scale, zero = (quantization.get(key, [0]) for key in ("scale", "zero"))
        one = len(scale) == 1
        value = Value(
            tensor, array.shape, dtype,
            float(scale[0]) if one else 0.0, int(zero[0]) if one else 0, constant,
        )  # fmt: skip
        if not constant:
            self.values.append(value)
        return value

    def ints(self, numbers: Sequence[int], dtype: str = "i32") -> Value:
        """Returns a constant vector, such as a shape."""
        return self.given(np.array(numbers, to_numpy(dtype)), dtype, True)

    def number(self, number: float, dtype: str) -> Value:
        """Returns a constant without axes."""
        return self.given(np.array(number, to_numpy(dtype)), dtype, True)

    def operand(
        self, dtypes: Sequence[str] = ("f32",), low: int = 0, high: int = 4, **more: Any
    ) -> Value:
        """Returns a value that suits: mostly the newest, or a new leaf."""
        fitting = [
            v for v in reversed(self.values)
            if v.dtype in dtypes and low <= v.rank <= high and not v.scale and v.shape.count(0) == 0
        ]  # fmt: skip
        if fitting and not more and not self.choices.one_in(4):
            return self.choices.pick(fitting[:5])
        return self.leaf(self.shape(low, high), self.choices.pick(dtypes), **more)

    def partner(self, x: Value, **more: Any) -> Value:
        """Returns a value that broadcasts with another one."""
        same = [v for v in self.values if (v.dtype, v.shape, v.scale) == (x.dtype, x.shape, 0.0)]
        if same and not more and self.choices.one_in(2):
            return self.choices.pick(same)
        shape = [s if self.choices.integer(0, 2) else 1 for s in x.shape]
        return self.leaf(shape[self.choices.integer(0, len(shape)) :], x.dtype, **more)

    # --- operators ---

    def axis(self, rank: int) -> int:
        """Returns an axis, from the front or from the back. Errors: Unfit without axes."""
        if rank == 0:
            raise Unfit
        return self.choices.integer(0, 2 * rank - 1) - rank

    def positive_axis(self, rank: int) -> int:
        """Returns an axis from the front."""
        return self.axis(rank) % rank

    def add(
        self,
        op: str,
        inputs: Sequence[Value | None],
        dtypes: Sequence[str] = ("f32",),
        given: Options | None = None,
        version: int = 1,
        **quantization: Any,
    ) -> list[Value]:
        """Adds an operator, and returns its results.

        Errors: Unfit if LiteRT refuses it or clew does not know it, or if a result would be too
        large or without elements, which LiteRT cannot return.
        """
        if CONVERTERS.find(op) is None:
            raise Unfit
        tensors = [v.tensor if v else -1 for v in inputs]
        named = [(self.fresh("y"), (), dtype) for dtype in dtypes]
        made = self.graph.operator(op, tensors, named, given, version, **quantization)
        try:
            shapes = shapes_of(*self.graph.last())
        except Refused as error:
            raise Unfit(str(error)) from None
        scale, zero = (quantization.get(key, [0])[0] for key in ("scale", "zero"))
        found = [
            Value(tensor, shape, dtype, float(scale), int(zero))
            for tensor, shape, dtype in zip(made, shapes, dtypes, strict=True)
        ]
        for value in found:
            if not 0 < np.prod(value.shape) <= MOST_ELEMENTS:
                raise Unfit
            self.graph.reshape(value.tensor, value.shape)
        self.read |= set(tensors)
        self.operators.append(op)
        self.results += found
        self.values += found
        return found

    def attempt(self, entry: Callable[[Drawing], Any]) -> None:
        """Adds what an entry draws, or nothing if it does not fit."""
        marks = [len(each) for each in (self.values, self.operators, self.results)]
        kept, feeds, read = self.graph.mark(), dict(self.feeds), set(self.read)
        try:
            entry(self)
        except Unfit:
            self.graph.back_to(kept)
            for each, mark in zip((self.values, self.operators, self.results), marks, strict=True):
                del each[mark:]  # type: ignore[attr-defined]
            self.feeds, self.read = feeds, read

    def case(self, quantized: bool) -> Case:
        """Returns the graph as a file. Errors: Unfit for one without operators."""
        ends = [v for v in self.results if v.tensor not in self.read or self.choices.one_in(6)]
        if not ends:
            raise Unfit
        data = self.graph.file([v.tensor for v in ends])
        return Case(data, self.feeds, self.operators, quantized)
