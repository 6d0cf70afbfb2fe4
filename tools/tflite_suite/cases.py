"""One operator with drawn operands and options: `drawn("CONV_2D", 7)` is always the same case."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clew.ir.types import from_numpy, integer_limits, to_numpy
from tflite_files import Graph

Options: TypeAlias = "tuple[str, Mapping[str, Any]] | None"
QUANTIZED: Final = ("i8", "u8", "i16")


@dataclass(frozen=True)
class Quantum:
    """The scales and zero points of a tensor; no scales if its elements are no codes."""

    scale: tuple[float, ...] = ()
    zero: tuple[int, ...] = ()
    axis: int = 0


PLAIN: Final = Quantum()


@dataclass(frozen=True)
class Operand:
    """An input of the file, or a constant in it."""

    value: NDArray[Any]
    constant: bool = False
    quantum: Quantum = PLAIN


@dataclass(frozen=True)
class Body:
    """A further graph of the file: an operator of `count` operands of one type, or none, which
    returns the last operand.
    """

    op: str
    count: int
    dtype: str
    shape: tuple[int, ...] = ()

    def add_to(self, main: Graph) -> None:
        """Adds the graph to a file."""
        graph = main.graph()
        given = [graph.input(f"b{n}", self.shape, self.dtype) for n in range(self.count)]
        if not self.op:
            graph.outputs = given[-1:]
            return
        operands = given if self.count > 1 else given * 2
        options: Options = None
        if self.op in ("ADD", "MUL", "SUB"):
            options = (f"{self.op.title()}Options", {})
        graph.outputs = graph.operator(
            self.op, operands, [("result", self.shape, self.dtype)], options
        )


@dataclass(frozen=True)
class Case:
    """An operator. `operands` has None for those left out, `results` dtypes and quanta. With
    `free`, the first size of the input is open in the file. `counted` is the result with the number
    of elements along axis 1 that count, `shape` that of the results if LiteRT reads it, or `shapes`
    those of each. `bodies` are the graphs of the file from number 1 on.
    """

    op: str
    operands: Sequence[Operand | None]
    results: Sequence[tuple[str, Quantum]]
    options: Options = None
    version: int = 1
    tolerance: float = 1e-5
    free: bool = False
    random: bool = False
    custom: bytes | None = None
    counted: int | None = None
    shape: tuple[int, ...] | None = None
    shapes: Sequence[tuple[int, ...]] = ()
    bodies: Sequence[Body] = ()
    key: str = ""

    @property
    def is_quantized(self) -> bool:
        """Whether a result has codes."""
        return any(quantum.scale for _, quantum in self.results)

    @property
    def dtypes(self) -> str:
        """The types of operands and results."""
        given = [from_numpy(o.value.dtype) if o else "-" for o in self.operands]
        return f"{' '.join(given)} -> {' '.join(dtype for dtype, _ in self.results)}"

    def feed(self) -> dict[str, NDArray[Any]]:
        """Returns the values of the inputs."""
        return {f"x{n}": o.value for n, o in enumerate(self.operands) if o and not o.constant}

    def file(self) -> bytes:
        """Returns the file."""
        graph = Graph()
        operands = []
        for n, operand in enumerate(self.operands):
            if operand is None:
                operands.append(-1)
                continue
            quantum = operand.quantum
            more = {"scale": quantum.scale, "zero": quantum.zero, "axis": quantum.axis}
            if operand.constant:
                operands.append(graph.constant(operand.value, f"x{n}", **more))
                continue
            shape = operand.value.shape
            open_shape = (-1, *shape[1:]) if self.free and shape else shape
            dtype = from_numpy(operand.value.dtype)
            operands.append(graph.input(f"x{n}", open_shape, dtype, **more))
        shape = self.shape if self.shape is not None else ()
        if any(len(q.scale) > 1 for _, q in self.results) or self.op.startswith("SELECT"):
            shape = max((o.value.shape for o in self.operands if o is not None), key=len)
        names = [
            (
                f"y{n}",
                self.shapes[n] if self.shapes else shape,
                dtype,
                {"scale": quantum.scale, "zero": quantum.zero, "axis": quantum.axis},
            )
            for n, (dtype, quantum) in enumerate(self.results)
        ]
        outputs = graph.operator(
            self.op, operands, names, self.options, self.version, custom=self.custom
        )
        for body in self.bodies:
            body.add_to(graph)
        return graph.file(outputs)


class Draw:
    """Draws the parts of a case."""

    def __init__(self, seed: int) -> None:
        self.rng: Final = np.random.default_rng(seed)

    def one(self, *choices: Any) -> Any:
        """Returns one of several things."""
        return choices[int(self.rng.integers(len(choices)))]

    def flag(self) -> bool:
        """Returns true or false."""
        return bool(self.rng.integers(2))

    def whole(self, low: int, high: int) -> int:
        """Returns an integer from `low` to `high`."""
        return int(self.rng.integers(low, high + 1))

    def shape(self, least: int = 0, most: int = 6, high: int = 4) -> tuple[int, ...]:
        """Returns the sizes of `least` to `most` axes."""
        return tuple(self.whole(1, high) for _ in range(self.whole(least, most)))

    def values(
        self, shape: Sequence[int], dtype: str, low: float = -4, high: float = 4
    ) -> NDArray[Any]:
        """Returns elements; codes of quantized types have their whole range."""
        shape = tuple(shape)
        if dtype == "bool":
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype in ("c64",):
            pair = self.rng.uniform(low, high, (2, *shape))
            return np.asarray(pair[0] + 1j * pair[1], np.complex64)
        if dtype[0] in "iu":
            lowest, highest = integer_limits(dtype)
            least = max(int(low), lowest)
            return self.rng.integers(least, min(int(high), highest) + 1, shape, to_numpy(dtype))
        found: NDArray[Any] = self.rng.uniform(low, high, shape).astype(to_numpy(dtype))
        return found

    def codes(self, shape: Sequence[int], dtype: str) -> NDArray[Any]:
        """Returns codes of the whole range."""
        low, high = integer_limits(dtype)
        return self.rng.integers(low, high + 1, tuple(shape), to_numpy(dtype))

    def quantum(self, dtype: str, span: float = 8) -> Quantum:
        """Returns parameters of one scale, for numbers in a range of about this width."""
        low, high = integer_limits(dtype)
        scale = float(np.float32(span / (high - low) * self.rng.uniform(0.6, 1.6)))
        middle = (low + high + 1) // 2
        zero = 0 if dtype == "i16" else middle + self.whole(-30, 30)
        return Quantum((scale,), (zero,))

    def tensor(
        self, shape: Sequence[int], dtype: str, *, quantum: Quantum | None = None,
        constant: bool = False, low: float = -4, high: float = 4,
    ) -> Operand:  # fmt: skip
        """Returns an operand: codes if its type is one of quantized tensors."""
        if dtype not in QUANTIZED:
            return Operand(self.values(shape, dtype, low, high), constant)
        given = self.quantum(dtype, high - low) if quantum is None else quantum
        return Operand(self.codes(shape, dtype), constant, given)

    def result(self, dtype: str, span: float = 8) -> tuple[str, Quantum]:
        """Returns a result's type, with parameters if it is one of quantized tensors."""
        return dtype, self.quantum(dtype, span) if dtype in QUANTIZED else PLAIN


Family: TypeAlias = Callable[[Draw, str], Case]
FAMILIES: Final[dict[str, Family]] = {}


def family(*operators: str) -> Callable[[Family], Family]:
    """Decorator: registers the function that draws cases of operators."""

    def register(function: Family) -> Family:
        for op in operators:
            assert op not in FAMILIES, op
            FAMILIES[op] = function
        return function

    return register


def drawn(op: str, number: int) -> Case:
    """Returns a case of an operator."""
    draw = Draw(zlib.crc32(op.encode()) + number)
    case = FAMILIES[op](draw, op)
    inputs = [o for o in case.operands if o and not o.constant]
    # LiteRT's sums of codes are others after an input was resized.
    free = number % 4 == 3 and len(inputs) == 1 and not (op == "SUM" and case.is_quantized)
    return replace(case, free=free, key=f"{op}/{number}")


def constant(value: Any, dtype: str = "i32") -> Operand:
    """Returns a constant operand without parameters."""
    return Operand(np.asarray(value, to_numpy(dtype)), constant=True)
