"""Kernels for all sizes: compiles a function once, and runs it behind guard pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import clew.ops  # noqa: F401
from clew.backends.cpu.lowering import KernelSource
from clew.codegen.artifact import ObjectCode
from clew.codegen.objects import submit
from clew.ir.dims import Dim, Sizes, SymDim, substitute
from clew.ir.expr import Expr, Function, Var
from clew.ir.interpret import interpreted
from clew.ir.types import TensorType, Type, from_numpy, is_float, leaves, to_numpy
from clew.machine.target import Target
from clew.ops.registry import Op, Sample
from clew.ops.sample_checks import types_of
from clew.runtime.guard import GuardSide
from clew.runtime.library import Library
from clew.runtime.plan import BufferKind, BufferRef, Step
from clew.runtime.segment import NativeSegment
from clew.runtime.segment_template import SegmentTemplate, SizedSpec
from clew.runtime.threads import shared_pool
from clew.support.errors import ClewError, GraphTypeError

Array = np.ndarray[Any, Any]
# Differences relative to the largest element.
_CLOSE = {"f16": 2e-3, "bf16": 1.6e-2, "f32": 2e-5, "f64": 1e-11}
_CLOSE_NARROW = 0.2
_MOST_ELEMENTS = 300_000


def primitive(body: Expr, params: Sequence[Var], **attrs: Any) -> Function:
    """Returns a function that is compiled to one kernel."""
    return Function(list(params), body, {"primitive": True, "name": "sized", **attrs})


class SizedKernel:
    """A function's kernel for all sizes. Code generation starts at once; `run` waits for it.

    Errors: those of schedules that need numbers.
    """

    def __init__(self, function: Function, target: Target, bounds: str = "check") -> None:
        self.function = function
        self.source = KernelSource(function, target, bounds=bounds)
        text = self.source.emitted.llvm
        self.code = self.source.code
        self._object = submit(text, target)
        self._segment: SegmentTemplate | None = None
        self._reference = interpreted(function)

    def is_valid(self, sizes: Mapping[str, int], least: int = 1) -> bool:
        """Whether the kernel may run at sizes, if all of its operands' sizes are at least
        `least`.
        """
        known = Sizes(sizes)
        try:
            if any(known.value(need) < 0 for need in self.code.needs):
                return False
            types = (t for e in (*self.function.params, self.function.body) for t in _tensors(e))
            return all(known.value(dim) >= least for type_ in types for dim in type_.shape)
        except GraphTypeError:
            return False

    def expected(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """Returns the results of the operators' references."""
        with np.errstate(all="ignore"):
            found = self._reference(arrays, sizes)
        return [np.asarray(v) for v in (found if isinstance(found, (tuple, list)) else [found])]

    def run(
        self,
        arrays: Sequence[Array],
        sizes: Mapping[str, int],
        threads: int = 1,
        side: GuardSide = GuardSide.END,
    ) -> list[Array]:
        """Returns the kernel's results; an access outside its buffers kills the process."""
        plan = self._template().at(Sizes(sizes), threads)
        return NativeSegment(plan, self._library, shared_pool(threads), guard=side)(arrays)

    def _template(self) -> SegmentTemplate:
        if self._segment is None:
            code = self.code
            symbols = tuple(e.symbol for e in code.entries)
            self._library = Library([ObjectCode(code.key, self._object.result(), symbols)])
            inputs = [_spec(f"i{n}", t) for n, t in enumerate(_all_tensors(self.function.params))]
            outputs = [_spec(f"o{n}", t) for n, t in enumerate(_tensors(self.function.body))]
            refs = [
                BufferRef(kind, n)
                for kind, count in (
                    (BufferKind.INPUT, len(inputs)),
                    (BufferKind.OUTPUT, len(outputs)),
                    (BufferKind.ARENA, len(code.workspace_bytes)),
                )
                for n in range(count)
            ]
            step = Step(code, tuple(refs), "kernel", tuple("" for _ in code.checks))
            self._segment = SegmentTemplate(
                (step,), tuple(inputs), tuple(outputs), (), code.workspace_bytes
            )
        return self._segment


def _tensors(expr: Expr) -> tuple[TensorType, ...]:
    return tuple(t for t in leaves(expr.type) if isinstance(t, TensorType))


def _all_tensors(exprs: Sequence[Expr]) -> list[TensorType]:
    return [t for e in exprs for t in _tensors(e)]


def _spec(name: str, type_: TensorType) -> SizedSpec:
    return SizedSpec(name, type_.shape, to_numpy(type_.dtype).name)


def draw(
    rng: np.random.Generator, type_: TensorType, low: float = -2.0, high: float = 2.0
) -> Array:
    """Returns an array of a type of numbers."""
    if type_.dtype == "bool":
        return rng.random(type_.concrete) < 0.5
    if is_float(type_.dtype):
        values: Array = rng.uniform(low, high, type_.concrete)
    else:
        low = max(int(low), 0) if type_.dtype[0] == "u" else int(low)
        values = rng.integers(low, int(high) + 1, type_.concrete)
    return np.asarray(values).astype(to_numpy(type_.dtype))


def difference(found: Array, wanted: Array) -> str:
    """Returns how a result differs from the reference's, "" if only by rounding."""
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return f"{found.dtype}{found.shape}, expected {wanted.dtype}{wanted.shape}"
    dtype = from_numpy(wanted.dtype)
    if not is_float(dtype):
        return "" if np.array_equal(found, wanted) else "integers differ"
    wide, close = wanted.astype("f8"), _CLOSE.get(dtype, _CLOSE_NARROW)
    scale = float(np.max(np.abs(wide), initial=1.0, where=np.isfinite(wide)))
    good = np.isclose(found.astype("f8"), wide, rtol=close, atol=close * scale, equal_nan=True)
    if good.all():
        return ""
    place = tuple(map(int, np.argwhere(~good)[0]))
    bad = int((~good).sum())
    return f"{bad} of {good.size} differ, first at {place}: {found[place]}, not {wanted[place]}"


# --------------------------------------------------------------------------- samples of operators


class FreeSample:
    """A sample whose sizes are names. `names` maps the numbers that became names; the others stay.
    The sizes are at least `least`.

    Errors: of building the call.
    """

    def __init__(self, op: Op, sample: Sample, names: Mapping[int, str], least: int = 1) -> None:
        self.op = op
        self.sample = sample
        self.given = {name: number for number, name in names.items()}
        dims = {number: SymDim.symbol(name, least) for number, name in names.items()}
        self.types = [_freed(t, dims) for t in types_of(sample)]
        params = [Var(f"x{n}", t) for n, t in enumerate(self.types)]
        self.attrs = _freed_attrs(op, sample, dims)
        self.function = primitive(op(*params, **self.attrs), params)

    def accepts(self, sizes: Mapping[str, int]) -> bool:
        """Whether the operator takes the sample at sizes, with the type that the names promise."""
        types = [_at(t, sizes) for t in self.types]
        if sum(int(np.prod(t.concrete)) for t in types) > _MOST_ELEMENTS:
            return False
        attrs = {k: _attr_at(v, sizes) for k, v in self.attrs.items()}
        try:
            call = self.op(*(Var(f"x{n}", t) for n, t in enumerate(types)), **attrs)
        except ClewError:
            return False
        body = self.function.body
        wanted = [_at(t, sizes) for t in _tensors(body)]
        found = list(_tensors(call))
        return found == wanted and all(int(np.prod(t.concrete)) < _MOST_ELEMENTS for t in found)

    def arrays(self, sizes: Mapping[str, int]) -> list[Array]:
        """Returns arguments at sizes; arrays of the sample are repeated to their size."""
        rng = np.random.default_rng(1)
        return [
            np.resize(np.asarray(given), _at(t, sizes).concrete)
            if isinstance(given, (np.ndarray, np.generic))
            else draw(rng, _at(t, sizes), self.sample.low, self.sample.high)
            for given, t in zip(self.sample.args, self.types, strict=True)
        ]


def free_samples(op: Op, sample: Sample, alone: bool = True) -> Iterator[dict[int, str]]:
    """Yields names of a sample's sizes: of all sizes of at least 2, and, with `alone`, of each."""
    types = [t for t in types_of(sample) if isinstance(t, TensorType)]
    numbers = sorted({d for t in types for d in t.shape if isinstance(d, int) and d > 1})
    if numbers:
        yield {d: f"n{d}" for d in numbers}
    if alone and len(numbers) > 1:
        for d in numbers:
            yield {d: f"n{d}"}


_ATTRS_OF_SIZES = ("shape", "sizes")


def _freed(type_: Type, dims: Mapping[int, SymDim]) -> Any:
    if not isinstance(type_, TensorType):
        return type_
    return type_.with_(shape=tuple(_name(d, dims) for d in type_.shape))


def _name(value: Any, dims: Mapping[int, SymDim]) -> Any:
    known = isinstance(value, int) and not isinstance(value, bool) and value in dims
    return dims[value] if known else value


def _freed_attrs(op: Op, sample: Sample, dims: Mapping[int, SymDim]) -> dict[str, Any]:
    """Returns attributes; those that are shapes have names for sizes, too."""
    if op.name not in ("broadcast_to", "reshape", "split", "expand"):
        return dict(sample.attrs)
    return {
        k: tuple(_name(v, dims) for v in value)
        if k in _ATTRS_OF_SIZES and isinstance(value, tuple)
        else value
        for k, value in sample.attrs.items()
    }


def _attr_at(value: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_attr_at(v, sizes) for v in value)
    return substitute(value, sizes) if isinstance(value, SymDim) else value


def _at(type_: TensorType, sizes: Mapping[str, int]) -> TensorType:
    dims: list[Dim] = [substitute(d, sizes) for d in type_.shape]
    return type_.with_(shape=tuple(dims))
