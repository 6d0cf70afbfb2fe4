"""Writes a compiled model as a library with a C interface."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clew.codegen.driver import driver as native
from clew.codegen.driver.driver import library_text
from clew.codegen.objects import compile_modules
from clew.codegen.worker import NEXT_MODULE
from clew.libraries import texts
from clew.libraries.addresses import SUFFIX, trace_record
from clew.libraries.archive import archive
from clew.libraries.entry import MARK_BYTES, Argument, Entry, entry_text
from clew.libraries.frame import WEIGHTS, Here, Symbol, tables_of
from clew.libraries.imports import undefined_in
from clew.libraries.interface import Interface, interface_of
from clew.libraries.whole_program import Given, Kept, Made, WholeProgram, whole_program
from clew.machine.target import HERE
from clew.runtime.bound import Bound
from clew.runtime.memory import round_up
from clew.runtime.plan import SegmentPlan
from clew.serving.built_model import BuiltModel
from clew.support.arrays import ALIGNMENT_BYTES
from clew.support.budgets import current, in_force
from clew.support.dataclass import dataclass
from clew.support.errors import ClewError, InputError, UnsupportedError
from clew.support.shown import Shown
from clew.support.writing import write_bytes, write_text

if TYPE_CHECKING:
    from clew.build.result import Build

# A call is timed so often, or for so long.
_LEAST_CALLS, _MOST_CALLS, _MEASURED_S = 2, 100, 0.2
_POOL_BYTES = round_up(native.POOL_LOCKED + 8, ALIGNMENT_BYTES)


@dataclass(frozen=True, repr=False)
class Exported(Shown):
    """A library that was written: the prefix of its names, LLVM's name of the platform, its files,
    and the bytes of its object, of the weights in it and of the workspace that a call needs.
    """

    folder: Path
    prefix: str
    triple: str
    files: tuple[str, ...]
    object_bytes: int
    weights_bytes: int
    workspace_bytes: int

    def _about(self) -> str:
        return f"{self.prefix} in {self.folder}: {self.object_bytes} bytes"


@dataclass(frozen=True, repr=False)
class Library(Shown):
    """A library in memory: its interface, its object, the bytes of its weights, of the workspace,
    and the number of tasks that its work is divided into.
    """

    interface: Interface
    triple: str
    data: bytes
    weights_bytes: int
    workspace_bytes: int
    threads: int

    def _about(self) -> str:
        return f"{self.interface.prefix} for {self.triple}"


def export_c(model: BuiltModel, folder: str | Path, name: str = "model") -> Exported:
    """Writes a compiled model as a library with a C interface to a folder, which is made if it does
    not exist. `name` begins all names in C. Files of these names are replaced.

    Errors: I470 (the name), I471 (the folder), U080 (a part that has no native code), U081 (sizes
    known only in a run), U082 (a value that is no tensor of numbers), C001.
    """
    with in_force(model.budgets):
        made = library_of(model, name)
    prefix, place = made.interface.prefix, Path(folder)
    undefined = undefined_in(made.data)
    libm = texts.needs_libm(undefined)
    sizes = (len(made.data) - made.weights_bytes, made.weights_bytes, made.workspace_bytes)
    files: dict[str, bytes | str] = {
        f"{prefix}.h": texts.header(
            made.interface, made.triple, made.workspace_bytes, made.threads
        ),
        f"{prefix}.o": made.data,
        f"lib{prefix}.a": archive("model.o", made.data, texts.symbols(made.interface)),
        f"{prefix}.hpp": texts.cpp(made.interface),
        "main.c": texts.main(made.interface),
        "CMakeLists.txt": texts.cmake(made.interface, libm),
        f"{prefix}.pc": texts.pkg_config(made.interface, libm),
        "README.md": texts.readme(
            made.interface, made.triple, sizes, undefined, _measured_us(model)
        ),
        f"{prefix}{SUFFIX}": json.dumps(trace_record(model.build)) + "\n",
    }
    try:
        place.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            if isinstance(content, str):
                write_text(place / file, content)
            else:
                write_bytes(place / file, content)
    except OSError as error:
        raise InputError("I471", f"cannot write the library to {place}: {error.strerror}") from None
    return Exported(
        place,
        prefix,
        made.triple,
        tuple(files),
        len(made.data),
        made.weights_bytes,
        made.workspace_bytes,
    )


def _measured_us(model: BuiltModel) -> float | None:
    """Returns the microseconds of a call with random inputs, the shortest of some; None for code
    that cannot run here or with such inputs.
    """
    if model.options.target.name != HERE:
        return None
    try:
        inputs = model.drawn(seed=0)
        times: list[float] = []
        end = time.perf_counter() + _MEASURED_S
        while len(times) < _LEAST_CALLS or (len(times) < _MOST_CALLS and time.perf_counter() < end):
            start = time.perf_counter()
            model(*inputs)
            times.append(time.perf_counter() - start)
    except ClewError:
        return None
    return 1e6 * min(times)


def library_of(model: BuiltModel, name: str = "model") -> Library:
    """Returns a compiled model as a library. Errors: see `export_c`."""
    interface = interface_of(name, model.inputs, model.outputs)
    build, target = model.build, model.options.target
    whole = whole_program(build.program, [t.dtype.itemsize for t in interface.inputs])
    threads = max((segment.threads for segment in build.segments), default=1)
    parts = _Parts(whole, interface, threads)
    texts_ = [library_text(), *_kernels(build, whole.plan)]
    pointer_bytes = 8 if target.triple.split("-")[0] in _WIDE else 4
    text = NEXT_MODULE.join([entry_text(parts.entry(pointer_bytes)), *texts_])
    (data,) = compile_modules([text], target)
    return Library(
        interface,
        target.triple,
        parts.with_weights(data),
        parts.weights_bytes,
        parts.workspace_bytes + ALIGNMENT_BYTES - 1,
        threads,
    )


_WIDE = ("x86_64", "aarch64", "riscv64")


def _kernels(build: Build, plan: SegmentPlan) -> list[str]:
    """Returns the LLVM text of each kernel of a plan."""
    sources = {use.source.key: use.source for use in build.uses}
    keys = dict.fromkeys(step.code.key for step in plan.steps)
    missing = [key for key in keys if key not in sources]
    if missing:
        raise UnsupportedError("U080", "kernels that are compiled in a run have no fixed code")
    return [sources[key].emitted.llvm for key in keys]


class _Parts:
    """The layout of a library's weights and workspace."""

    def __init__(self, whole: WholeProgram, interface: Interface, threads: int) -> None:
        self._whole, self._interface = whole, interface
        self._bound = Bound.of(whole.plan, threads)
        self._threads = threads
        self._arrays: list[np.ndarray[Any, Any]] = []
        self._places: dict[int, int] = {}
        self.weights_bytes = 0
        self._constants = [self._add(array) for array in whole.plan.constants]
        self._end = round_up(self._bound.working_bytes(threads), ALIGNMENT_BYTES)
        self.workspace_bytes = self._end

    def _add(self, array: np.ndarray[Any, Any]) -> int:
        """Returns the place of a constant among the weights."""
        found = self._places.get(id(array))
        if found is None:
            found = self._places[id(array)] = self.weights_bytes
            self._arrays.append(array)
            self.weights_bytes += max(MARK_BYTES, round_up(array.nbytes, ALIGNMENT_BYTES))
        return found

    def _reserve(self, size_bytes: int) -> int:
        """Returns the place of new memory in the workspace."""
        place = self._end
        self._end += round_up(size_bytes, ALIGNMENT_BYTES)
        return place

    def entry(self, pointer_bytes: int) -> Entry:
        """Returns the data of the library's own module."""
        plan, outputs = self._whole.plan, self._interface.outputs
        direct: dict[int, int] = {}
        for number, place in enumerate(self._whole.outputs):
            if (
                isinstance(place, Made)
                and not place.offset_bytes
                and place.number not in direct
                and plan.outputs[place.number].size_bytes == outputs[number].size_bytes
            ):
                direct[place.number] = number
        bases: list[Argument | Symbol | Here] = [self._given(p) for p in self._whole.inputs]
        for number, spec in enumerate(plan.outputs):
            if number in direct:
                bases.append(Argument(True, direct[number]))
            else:
                bases.append(Here(self._reserve(spec.size_bytes)))
        moves = [
            (self._made(place, bases[len(plan.inputs) :]), number, outputs[number].size_bytes)
            for number, place in enumerate(self._whole.outputs)
            if not (isinstance(place, Made) and direct.get(place.number) == number)
        ]
        pool = self._reserve(_POOL_BYTES)
        tables = tables_of(
            self._bound, self._threads, self._constants, self._end, current().loop_steps
        )
        self.workspace_bytes = round_up(self._end + tables.frame.size_bytes, ALIGNMENT_BYTES)
        layers = [step.checked for step in plan.steps if step.code.checks]
        return Entry(
            self._interface,
            tables,
            pointer_bytes,
            bases,
            moves,
            layers,
            len(plan.loops),
            pool,
            self.weights_bytes,
            self._mark,
        )

    def _given(self, place: Given | Kept) -> Argument | Symbol | Here:
        if isinstance(place, Given):
            return Argument(False, place.number, place.offset_bytes)
        return Symbol(WEIGHTS, self._add(place.array) + place.offset_bytes)

    def _made(
        self, place: Given | Kept | Made, outputs: Sequence[Argument | Symbol | Here]
    ) -> Argument | Symbol | Here:
        if not isinstance(place, Made):
            return self._given(place)
        found = outputs[place.number]
        if isinstance(found, Argument):
            return Argument(True, found.number, place.offset_bytes)
        assert isinstance(found, Here)
        return Here(found.offset + place.offset_bytes)

    @property
    def _mark(self) -> bytes:
        return hashlib.sha512(f"{self._interface.prefix} weights of clew".encode()).digest()

    def with_weights(self, data: bytes) -> bytes:
        """Returns an object with the weights in place of their mark."""
        if not self._arrays:
            return data
        start = data.index(self._mark)
        assert data.count(self._mark) == 1, "the mark is only where the weights begin"
        made = bytearray(data)
        made[start : start + MARK_BYTES] = bytes(MARK_BYTES)
        for array in self._arrays:
            at = start + self._places[id(array)]
            made[at : at + array.nbytes] = np.ascontiguousarray(array).tobytes()
        return bytes(made)
