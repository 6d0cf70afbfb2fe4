"""Kernels with data-dependent shapes: compiled for all sizes, specialized during a run, or replaced
by NumPy references.
"""

from __future__ import annotations

import copy
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import numpy as np

from clew.backends.cpu.kernel_stages import operator_calls
from clew.backends.cpu.lowering import KernelBinary, KernelSource
from clew.backends.cpu.rows import Fitting, rows_of
from clew.backends.cpu.stand_ins import dims_of, sizes_of, stand_ins
from clew.cost.policy.sizes import (
    COMPILED_VALUES,
    LIGHT_SECONDS,
    REFERENCE_ELEMENTS,
    RUNS_BEFORE_COMPILING,
    RUNS_OF_ONLY_SHAPE,
)
from clew.ir.deciding import deciding_params
from clew.ir.dim_records import symbolic_of_record, to_record
from clew.ir.dims import SymDim, value_at
from clew.ir.expr import Call, Function, Tuple, Var
from clew.ir.inline import inlined
from clew.ir.interpret import interpreted
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.ir.printer import printed
from clew.ir.size_names import SizeReader
from clew.ir.types import TensorType, Type, leaves, substitute_type, to_numpy
from clew.machine.target import Target
from clew.ops.registry import Op
from clew.passes.base import PassContext
from clew.passes.specialize import Specialize
from clew.runtime.program import Program
from clew.runtime.sizes_key import decides_now
from clew.runtime.template import ProgramTemplate
from clew.support.bounds import bounds_in_force
from clew.support.budgets import MAX_DECIDING_ELEMENTS
from clew.support.dataclass import dataclass
from clew.support.errors import ClewError, CompileError, locate
from clew.support.lazy import cached_property
from clew.support.locks import Lock
from clew.te.analysis import Kind


class BuildsKernels(Protocol):
    """Compiles a module of a deferred kernel's operators."""

    def program(self, specialize: Specialize, module: Module) -> Program | None:
        """Returns the program for known sizes; None if some shapes remain unknown."""
        ...

    def template(self, specialize: Specialize, module: Module) -> Prepared | None:
        """Returns the program for all sizes; None if it needs some as numbers."""
        ...


@dataclass(frozen=True)
class Prepared:
    """A program for all sizes. `binaries` holds its kernels by key, and `sources` holds each kernel
    call with its source; both are empty if the program comes from a saved model.
    """

    template: ProgramTemplate
    binaries: Mapping[str, KernelBinary]
    sources: Sequence[tuple[Call, KernelSource]] = ()


@dataclass(frozen=True)
class ForAllSizes:
    """The program of a deferred kernel for all sizes. `meant` says what the names of its sizes
    stand for in the kernel's function.
    """

    template: ProgramTemplate
    meant: Mapping[str, SymDim]


Specialized: TypeAlias = "Callable[[Sequence[np.ndarray[Any, Any]]], tuple[Any, ...]]"

# The most kernels, each compiled or at given sizes, that a function keeps. Beyond that, the oldest
# one is dropped, so that one more size costs one kernel.
_KEPT_SHAPES = 1024
# The number of recent shapes to count, so that repeated ones get kernels.
_NOTED_SHAPES = 1024


class DeferredKernel:
    """A primitive function with data-dependent shapes. If possible, one kernel serves all sizes.
    Otherwise, kernels are compiled during a run, for the shapes of the arguments and for values
    that determine sizes, such as the bounds of a slice. The most recent ones are kept.

    `sizes` names the last arguments, which are sizes that are not in the shape of any other
    argument. `bounds` is the treatment of indices out of range.

    The kernel for all sizes is compiled with the model (`prepare`). Where it does not serve, cheap
    functions of few elements first run as the operators' references, because data-dependent sizes
    may differ in every run. A kernel for such a shape is compiled only if the shape repeats often.
    """

    is_quiet = True
    """NumPy gives no warnings."""
    owns_results = True
    """Results are new arrays."""

    def __init__(
        self,
        function: Function,
        sizes: tuple[str, ...],
        target: Target,
        bounds: str,
        builder: BuildsKernels,
        prepared: Prepared | None = None,
        meant: Mapping[str, SymDim] | None = None,
    ) -> None:
        """`prepared` is the program for all sizes, if the kernel was saved with one, and `meant`
        says what the names of its sizes stand for.
        """
        self.function = function
        self.sizes = sizes
        outer = _names_outside(function, sizes)
        self._names = (*sizes, *outer)
        # Values of the names in `outer`, in a program for given sizes (`at`).
        self._outer: tuple[int, ...] = ()
        self.target = target
        self.bounds = bounds
        self.builder = builder
        self._deciding = deciding_params(function, _is_small)
        self._rows = rows_of(function, self._names, self._deciding)
        self._stand_ins = stand_ins(function)
        self._sizes_of_arguments = SizeReader(function.params)
        self._is_light = _is_light(function, target)
        # Whether its operands are checked if its results have no elements.
        self.fits_always = any(
            isinstance(call.op, Op) and call.op.traits.fits_always
            for call in operator_calls(function)
        )
        # Whether kernels skip checks of indices if results are empty; references do not.
        self.skips_checks = any(
            isinstance(call.op, Op)
            and call.op.skips_checks([a.tensor for a in call.args], call.attrs)
            for call in operator_calls(function)
        )
        self._interpreted = interpreted(function)
        self._template = _Template(self, prepared, meant)
        self._values_met = 0
        self._met: OrderedDict[tuple[Any, ...], int] = OrderedDict()
        self._known: OrderedDict[tuple[Any, ...], Specialized | None] = OrderedDict()
        # By exact sizes and shapes: the kernel, and the fitting if it has other counts of rows.
        self._ready: OrderedDict[tuple[Any, ...], tuple[Fitting | None, Specialized]] = (
            OrderedDict()
        )
        self._lock = Lock()

    def to_json(self) -> dict[str, Any]:
        """Returns the kernel as JSON values. They hold its operators as text, which is compiled
        after the model is loaded.

        Errors: C058 if the kernel has constants that the text does not contain.
        """
        form = printed(Module({"main": self.function}))
        if form.constants:
            raise CompileError(
                "C058",
                f"{self.function.attrs.get('name', 'a kernel')} has data-dependent shapes and "
                "contains constants, and cannot be saved",
                hint="fix the shapes, or compile the model again instead of saving it",
                layer=", ".join(self.function.span.layers),
            )
        step = {"kernel": form.text, "sizes": self.sizes, "target": self.target.to_record()}
        step["meant"] = {name: to_record(dim) for name, dim in self._template.meant.items()}
        return step if self.bounds == "check" else {**step, "bounds": self.bounds}

    @staticmethod
    def from_json(
        step: Mapping[str, Any],
        target: Target,
        bounds: str,
        builder: BuildsKernels,
        template: ProgramTemplate | None = None,
    ) -> DeferredKernel:
        """Returns the kernel of JSON values from `to_json`, with its program for all sizes."""
        function = parse_module(step["kernel"]).main
        sizes = tuple(step["sizes"])
        meant = {name: symbolic_of_record(dim) for name, dim in step.get("meant", {}).items()}
        if not meant:  # older files have none
            names = sorted(sizes_of(function))
            meant = {f"s{n}": SymDim.symbol(name) for n, name in enumerate(names)}
        prepared = None if template is None else Prepared(template, {})
        return DeferredKernel(function, sizes, target, bounds, builder, prepared, meant)

    def prepare(self) -> Prepared | None:
        """Returns the program for all sizes, compiled on the first call; None if there is none."""
        return self._template.made

    def for_all_sizes(self) -> ForAllSizes | None:
        """Returns the program for all sizes, if it serves whatever the values of arguments are."""
        prepared = None if self._deciding else self.prepare()
        return None if prepared is None else ForAllSizes(prepared.template, self._template.meant)

    def at(self, sizes: Mapping[str, int]) -> DeferredKernel:
        """Returns the kernel in a program for given sizes of the model. It shares its kernels."""
        names = self._names[len(self.sizes) :]
        if not names:
            return self
        made = copy.copy(self)
        made._outer = tuple(sizes[name] for name in names)
        return made

    def __call__(self, *arrays: np.ndarray[Any, Any]) -> Any:
        count = len(self.function.params)
        given = list(map(np.asarray, arrays[:count]))
        sizes = (*map(int, arrays[count:]), *self._outer) if self._names else ()
        shapes = tuple([a.shape for a in given])
        ready = self._ready.get((sizes, shapes))
        if ready is not None:
            fitting, run = ready
            if fitting is None:  # the kernel is for these very counts
                return run(given)
            if fitting.takes(given):
                return fitting.cut(run(fitting.widened(given)))
        return self._slowly(given, shapes, sizes)

    def _slowly(
        self,
        given: list[np.ndarray[Any, Any]],
        shapes: tuple[tuple[int, ...], ...],
        told: tuple[int, ...],
    ) -> Any:
        """Returns the results for new shapes and sizes; `told` holds the size arguments."""
        sizes = told
        if self._stand_ins and self._names:
            chosen = self._chosen_sizes(given)
            sizes = tuple(chosen.get(n, s) for n, s in zip(self._names, sizes, strict=True))
        if self.skips_checks and self._empty_results(given, sizes) is not None:
            return self._interpret(given, sizes)
        key, counts = self._key(given, sizes)
        fitting = Fitting.of(self._rows, counts, shapes, sizes)
        wide, wide_sizes = fitting.widened(given), list(sizes)
        for rows, rounded in zip(self._rows, counts, strict=True):
            if rows.size is not None:
                wide_sizes[rows.size] = rounded
        if key not in self._known:
            layer = ", ".join(self.function.span.layers)
            with locate(layer=layer):
                for_all = self._for_all(wide, wide_sizes)
            met = key in self._met
            if for_all is None and self._is_light and self._is_rare(key, given):
                start = time.thread_time()  # leaves out the time of other threads
                result = self._interpret(given, sizes)
                self._is_light = time.thread_time() - start < LIGHT_SECONDS
                return result
            with self._lock, locate(layer=layer), bounds_in_force(self.bounds):
                if key not in self._known:
                    # References have checked earlier arguments of these shapes.
                    nothing = self._nothing(wide, wide_sizes) if met else None
                    self._known[key] = for_all or nothing or self._specialize(wide, wide_sizes)
                found = self._known[key]
                while len(self._known) > _KEPT_SHAPES:
                    self._known.popitem(last=False)
        else:
            found = self._known.get(key)
        if found is None:
            return self._interpret(given, sizes)
        if not self._deciding and fitting.takes(given):
            self._ready[told, shapes] = (None if fitting.is_exact else fitting, found)
            if len(self._ready) > _KEPT_SHAPES:
                with suppress(KeyError):  # another thread took the last one
                    self._ready.popitem(last=False)
        return fitting.cut(found(wide))

    def _chosen_sizes(self, given: Sequence[np.ndarray[Any, Any]]) -> dict[str, int]:
        """Returns values for the names that occur only in expressions (`stand_ins`)."""
        return {n: s for found in self._stand_ins for n, s in found.sizes(given).items()}

    def _key(
        self, given: Sequence[np.ndarray[Any, Any]], sizes: tuple[int, ...]
    ) -> tuple[tuple[Any, ...], list[int]]:
        """Returns the key of the kernel for these arguments, and its counts of rows."""
        shapes = [list(a.shape) for a in given]
        told = list(sizes)
        counts: list[int] = []
        for rows in self._rows:
            count = rows.rounded(given, shapes, sizes)
            counts.append(count)
            for number, axis in rows.params:
                shapes[number][axis] = count
            if rows.size is not None:
                told[rows.size] = count
        parts: list[Any] = [*told, *map(tuple, shapes), *(a.dtype for a in given)]
        for number in self._deciding:
            array = given[number]
            parts.append(array.tobytes() if decides_now(array) else None)
        return tuple(parts), counts

    def _is_rare(self, key: tuple[Any, ...], given: Sequence[np.ndarray[Any, Any]]) -> bool:
        """Whether the arguments have few elements and rare shapes; counts the shapes."""
        if sum(a.size for a in given) > REFERENCE_ELEMENTS:
            return False
        with self._lock:
            met = self._met[key] = self._met.pop(key, 0) + 1
            while len(self._met) > _NOTED_SHAPES:
                self._met.popitem(last=False)
            alone = len(self._met) == 1
        return met <= (RUNS_OF_ONLY_SHAPE if alone or self._rows else RUNS_BEFORE_COMPILING)

    def _for_all(
        self, arrays: Sequence[np.ndarray[Any, Any]], given: Sequence[int]
    ) -> Specialized | None:
        """Returns the kernel for all sizes at the sizes of these arguments; None if it does not
        serve them.

        Errors: T030 (see `_sizes_of`).
        """
        if not self._template.is_possible or any(decides_now(arrays[n]) for n in self._deciding):
            return None
        program = self._template.at(self._sizes_of(arrays, given))
        if program is None:
            return None
        run = program.whole or program
        if len(program.outputs) == 1:
            return lambda values: (run(values)[0],)
        return lambda values: tuple(run(values))

    def _nothing(
        self, arrays: Sequence[np.ndarray[Any, Any]], given: Sequence[int]
    ) -> Specialized | None:
        """Returns a function that returns empty results; None if the results for these arguments
        have elements, or if the sizes do not determine their shapes.
        """
        made = None if self.fits_always else self._empty_results(arrays, given)
        if made is None:
            return None
        return lambda values: tuple(np.empty(shape, dtype) for shape, dtype in made)

    def _empty_results(
        self, arrays: Sequence[np.ndarray[Any, Any]], given: Sequence[int]
    ) -> list[tuple[tuple[int, ...], np.dtype[Any]]] | None:
        """Returns the shapes and dtypes of results without elements; None if the results for these
        arguments have elements, or if the sizes do not determine their shapes.
        """
        results = substitute_type(self.function.body.type, self._sizes_of(arrays, given))
        made: list[tuple[tuple[int, ...], np.dtype[Any]]] = []
        for type_ in leaves(results):
            if not isinstance(type_, TensorType) or type_.size != 0 or not type_.is_static:
                return None
            shape = tuple(d for d in type_.shape if isinstance(d, int))
            made.append((shape, to_numpy(type_.dtype)))
        return made

    def _specialize(
        self, arrays: Sequence[np.ndarray[Any, Any]], given: Sequence[int]
    ) -> Specialized | None:
        """Compiles a kernel for these arguments; returns None if references should run instead."""
        deciding = [n for n in self._deciding if decides_now(arrays[n])]
        if deciding and self._values_met == COMPILED_VALUES:
            return None
        sizes = self._sizes_of(arrays, given)
        module, names = self.alone()
        values = tuple((names[n], arrays[n].copy()) for n in deciding)
        shapes = tuple((name, tuple(a.shape)) for name, a in zip(names, arrays, strict=True))
        program = self.builder.program(Specialize(tuple(sizes.items()), values, shapes), module)
        if program is None:
            return None
        self._values_met += bool(values)
        return lambda values: tuple(program(values))

    def _sizes_of(
        self, arrays: Sequence[np.ndarray[Any, Any]], given: Sequence[int]
    ) -> dict[str, int]:
        """Returns the values of all names that occur in the function.

        Errors: T030 if a size is bound to two values, or an array's rank differs.
        """
        known = dict(zip(self._names, given, strict=True))
        sizes = self._sizes_of_arguments.read(arrays, known)
        return {**self._chosen_sizes(arrays), **sizes}

    def alone(self) -> tuple[Module, list[str]]:
        """Returns a module of the function's operators, and the names of its parameters."""
        names = [f"p{n}" for n in range(len(self.function.params))]
        params = [Var(n, p.type) for n, p in zip(names, self.function.params, strict=True)]
        body = inlined(self.function, params)
        outs = list(body.fields) if isinstance(body, Tuple) else [body]
        attrs = {"outputs": tuple(f"out{n}" for n in range(len(outs)))}
        return Module({"main": Function(params, Tuple(outs), attrs)}), names

    def _interpret(self, values: Sequence[np.ndarray[Any, Any]], given: Sequence[int]) -> Any:
        """Returns the results of the operators' references."""
        layer = ", ".join(self.function.span.layers)
        sizes = dict(zip(self._names, given, strict=True))
        with locate(layer=layer), bounds_in_force(self.bounds), np.errstate(all="ignore"):
            found = self._interpreted(values, sizes)
        results = found if isinstance(found, tuple) else (found,)
        # References may return arguments, views of them, and one array twice.
        new = tuple([np.array(r) if isinstance(r, np.ndarray) else r for r in results])
        return new if isinstance(found, tuple) else new[0]


class _Template:
    """The kernel for all sizes of a deferred kernel."""

    def __init__(
        self,
        kernel: DeferredKernel,
        prepared: Prepared | None,
        meant: Mapping[str, SymDim] | None = None,
    ) -> None:
        self._kernel = kernel
        self._prepared = prepared
        # What the sizes of the template stand for. Their names are those that code can have.
        self.meant = _renamed(kernel.function) if meant is None else meant

    @cached_property
    def made(self) -> Prepared | None:
        """The program, compiled when it is first needed; None if there is none."""
        if self._prepared is not None:
            return self._prepared
        kernel = self._kernel
        renamed = Specialize(names=tuple(_in_terms_of(self.meant).items()))
        module, _ = kernel.alone()
        try:
            with bounds_in_force(kernel.bounds):
                return kernel.builder.template(renamed, module)
        except ClewError:  # a kernel for the sizes of the call may be possible, or reports why not
            return None

    @property
    def is_possible(self) -> bool:
        """Whether there is a kernel for all sizes."""
        return self.made is not None

    def at(self, sizes: Mapping[str, int]) -> Program | None:
        """Returns the program at given sizes; None if the kernel does not serve them."""
        if not all(dim.symbols <= sizes.keys() for dim in self.meant.values()):
            return None  # some are known only from values
        found = None
        if self.made is not None:
            own = {new: value_at(dim, sizes) for new, dim in self.meant.items()}
            found = self.made.template.at(own)
        return None if found is None else found[0]


def _renamed(function: Function) -> dict[str, SymDim]:
    """Returns what the sizes of a function's program for all sizes stand for: its names or, where
    all sizes have more, the least of them. `?3 + 1` is a size of at least 1, even if `?3` is 0.
    """
    dims = set(dims_of(function))
    made = {}
    for number, name in enumerate(sorted(sizes_of(function))):
        size = SymDim.symbol(name)
        beyond = [rest for dim in dims if isinstance(rest := dim - size, int)]
        made[f"s{number}"] = size + max(0, min(beyond, default=0))
    return made  # type: ignore[return-value]


def _in_terms_of(meant: Mapping[str, SymDim]) -> dict[str, SymDim]:
    """Returns the names of a function's sizes in terms of those of its program, which may be 0."""
    found = {}
    for new, dim in meant.items():
        (name,) = dim.symbols
        found[name] = SymDim.symbol(new, 0) - (dim - SymDim.symbol(name))
    return found  # type: ignore[return-value]


def _names_outside(function: Function, sizes: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the model's sizes that no argument determines."""
    told = {str(d) for p in function.params for d in getattr(p.type, "shape", ())}
    found = sizes_of(function) - told - set(sizes)
    return tuple(sorted(name for name in found if not name.startswith("?")))


def _is_light(function: Function, target: Target) -> bool:
    """Whether the time of a function in NumPy depends mainly on its elements: it has no convolution
    or matrix product, and no opaque operator without a NumPy reference.
    """
    kind = PassContext(target).kind
    return all(
        isinstance(call.op, Op)
        and (kind(call) <= Kind.REDUCTION or call.op.reference_rule is not None)
        and kind(call) != Kind.ANCHOR
        for call in operator_calls(function)
    )


def _is_small(type_: Type) -> bool:
    """Whether a value may determine sizes during a run: a tensor not known to be large."""
    if not isinstance(type_, TensorType):
        return False
    return not isinstance(type_.size, int) or type_.size <= MAX_DECIDING_ELEMENTS
