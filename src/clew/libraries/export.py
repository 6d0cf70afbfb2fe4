"""Writes a compiled model as a library with a C interface."""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clew.build.result import BuildTemplate
from clew.codegen.driver.driver import library_text
from clew.codegen.objects import compile_modules
from clew.codegen.worker import NEXT_MODULE
from clew.libraries import texts
from clew.libraries.addresses import SUFFIX, trace_record
from clew.libraries.archive import archive
from clew.libraries.entry import Entry, Run, entry_text
from clew.libraries.entry_targets import CHOICE_BYTES, TARGETS, for_target
from clew.libraries.functions import function_bytes, loaded_bytes, undefined_in
from clew.libraries.interface import Interface, interface_of, sizes_of
from clew.libraries.kernels import Kernels, kernels_of
from clew.libraries.parts import Parts
from clew.libraries.texts import TargetPart
from clew.libraries.weights import Weights
from clew.libraries.whole_program import WholeProgram, whole_program
from clew.machine.target import HERE, Target, target_of
from clew.serving.built_model import BuiltModel
from clew.support.arrays import ALIGNMENT_BYTES
from clew.support.budgets import in_force
from clew.support.dataclass import dataclass
from clew.support.errors import ClewError, InputError, UnsupportedError
from clew.support.shown import Shown
from clew.support.writing import write_bytes, write_text

# Fewest and most timed calls, and the time after which no further call is timed.
_LEAST_CALLS, _MOST_CALLS, _MEASURED_S = 2, 100, 0.2
# The alignment of weights where memory is scarce: that of the widest elements.
_WORD_BYTES = 8


@dataclass(frozen=True, repr=False)
class Exported(Shown):
    """An exported library: the prefix of its names, its LLVM target triple, its files, and the
    sizes of its object, of its weights, of the workspace of a call, and of the state.
    """

    folder: Path
    prefix: str
    triple: str
    files: tuple[str, ...]
    object_bytes: int
    weights_bytes: int
    workspace_bytes: int
    state_bytes: int

    def _about(self) -> str:
        return f"{self.prefix} in {self.folder}: {self.object_bytes} bytes"


@dataclass(frozen=True, repr=False)
class Library(Shown):
    """A library in memory: its interface, its object, the sizes of its weights and workspace, the
    number of threads that its work is divided among, its trace record, the weights if they are in a
    separate file, whether it uses matrix tiles, and the targets that it chooses from.
    """

    interface: Interface
    triple: str
    data: bytes
    weights_bytes: int
    workspace_bytes: int
    threads: int
    trace: dict[str, Any]
    weights: bytes | None
    has_tiles: bool
    targets: tuple[TargetPart, ...]

    def _about(self) -> str:
        return f"{self.interface.prefix} for {self.triple}"


def export_c(
    model: BuiltModel,
    folder: str | Path,
    name: str = "model",
    *,
    weights_file: bool = False,
    state: Mapping[str, str] | None = None,
    targets: Sequence[str] = (),
) -> Exported:
    """Exports a compiled model as a library with a C interface to a folder, which is created if it
    does not exist. `name` is the prefix of all C names. With `weights_file`, the weights are not in
    the object but in a separate file, whose contents are the last input. Existing files of the same
    names are replaced.

    `state` maps each state input to the output that feeds it, as in `session`; without it, states
    are those that the model itself has. They are in the caller's memory, and are neither inputs nor
    outputs.

    With `targets`, the library has code for each of these x86-64 targets instead of the model's
    own, and calls choose by the CPU's features.

    Errors: I470 (the name), I471 (the folder), I474 (`targets`), I371 and I372 (`state`), U080 (a
    part without native code), U081 (sizes that are unknown before a run or unbounded), U082 (a
    value that is not a numeric tensor), C001.
    """
    with in_force(model.budgets):
        made = library_of(model, name, weights_file, state, targets)
    prefix, place = made.interface.prefix, Path(folder)
    undefined, names = undefined_in(made.data), texts.symbols(made.interface, made.targets)
    libm = texts.needs_libm(undefined)
    files: dict[str, bytes | str] = {
        f"{prefix}.h": texts.header(
            made.interface, made.triple, made.workspace_bytes, made.threads, made.targets
        ),
        f"{prefix}.o": made.data,
        f"lib{prefix}.a": archive("model.o", made.data, names),
        f"{prefix}.hpp": texts.cpp(made.interface),
        "main.c": texts.main(made.interface),
        "CMakeLists.txt": texts.cmake(made.interface, libm),
        f"{prefix}.pc": texts.pkg_config(made.interface, libm),
        "README.md": texts.readme(
            made.interface,
            made.triple,
            _sizes(made, 0 if weights_file else made.weights_bytes),
            undefined,
            None if targets else _measured_us(model),
            has_tiles=made.has_tiles,
            targets=made.targets,
        ),
        f"{prefix}{SUFFIX}": json.dumps(made.trace) + "\n",
    }
    if made.weights is not None:
        files[f"{prefix}.weights.bin"] = made.weights
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
        made.interface.state_bytes,
    )


def _sizes(made: Library, inside_bytes: int) -> dict[str, int]:
    """Returns the rows of the table of sizes. `inside_bytes` are those of weights in the object."""
    rest, loaded = len(made.data) - inside_bytes, loaded_bytes(made.data)
    rows = {"code and tables": rest}
    if loaded is not None:
        code, constants = loaded
        tables = constants - inside_bytes
        linked = "relocations, symbols and debug information"
        rows = {"code": code, "tables": tables, linked: rest - code - tables}
    workspace = {"workspace per call, provided by the caller": made.workspace_bytes}
    return {**rows, "weights": made.weights_bytes, **workspace}


def _measured_us(model: BuiltModel) -> float | None:
    """Returns the median time of some calls with random inputs, in microseconds; None if the code
    cannot run here, or not with random inputs.
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
    return 1e6 * statistics.median(times)


def library_of(
    model: BuiltModel,
    name: str = "model",
    weights_file: bool = False,
    state: Mapping[str, str] | None = None,
    targets: Sequence[str] = (),
) -> Library:
    """Returns a compiled model as a library. Errors: see `export_c`."""
    if isinstance(targets, str) or not set(targets) <= set(TARGETS):
        raise InputError(
            "I474",
            f"cannot choose from the targets {targets!r}",
            hint=f"the targets of a library are a list of some of {', '.join(TARGETS)}",
        )
    chosen = tuple(target for target in TARGETS if target in targets)
    models = [_for_target(model, target_of(target)) for target in chosen] or [model]
    first = models[0].options.target
    scarce = all(own.options.target.is_microcontroller for own in models)
    weights = Weights(name, _WORD_BYTES if scarce else ALIGNMENT_BYTES)
    laid = [_laid_out(each, name, weights, weights_file, state) for each in models]
    interface = laid[0].interface
    if weights_file:
        interface = interface.with_weights(weights.size_bytes)
    workspace_bytes = max(each.parts.workspace_bytes for each in laid)
    entry = Entry(
        interface,
        first.pointer_bytes,
        [each.run for each in laid],
        0 if weights_file else weights.size_bytes,
        weights.mark,
        chosen,
        workspace_bytes,
    )
    modules = [entry_text(entry)]
    if any(each.run.tables is not None for each in laid):
        modules.append(library_text())
    for each, own in zip(laid, models, strict=True):
        kernels = each.kernels.texts(each.whole.plan)
        modules += [for_target(k, own.options.target) for k in kernels] if chosen else kernels
    (data,) = compile_modules([NEXT_MODULE.join(modules)], first)
    return Library(
        interface,
        first.triple,
        data if weights_file else weights.written_to(data),
        weights.size_bytes,
        workspace_bytes + bool(chosen) * CHOICE_BYTES + ALIGNMENT_BYTES - 1,
        max(each.parts.threads for each in laid),
        trace_record([(each.build, each.kernels) for each in laid]),
        weights.contents() if weights_file else None,
        any(own.options.target.tile_units for own in models),
        tuple(_target_parts(chosen, laid, weights, data)),
    )


def _for_target(model: BuiltModel, target: Target) -> BuiltModel:
    return model if model.options.target == target else model.recompiled(target=target)


def _target_parts(
    targets: Sequence[str], laid: Sequence[_LaidOut], weights: Weights, data: bytes
) -> Iterator[TargetPart]:
    code = function_bytes(data) if targets else {}
    used = Counter(place for each in laid for place in each.parts.own_weights)
    for name, each in zip(targets, laid, strict=False):
        sizes = {place: weights.size_at(place) for place in each.parts.own_weights}
        yield TargetPart(
            name,
            sum(code[symbol] for symbol in each.symbols),
            sum(sizes.values()),
            sum(size for place, size in sizes.items() if used[place] == 1),
        )


class _LaidOut(NamedTuple):
    """A library's parts for one target."""

    interface: Interface
    build: BuildTemplate
    kernels: Kernels
    whole: WholeProgram
    parts: Parts
    run: Run

    @property
    def symbols(self) -> Sequence[str]:
        """The functions of the kernels."""
        return self.run.symbols


def _laid_out(
    model: BuiltModel,
    name: str,
    weights: Weights,
    weights_file: bool,
    state: Mapping[str, str] | None,
) -> _LaidOut:
    sizes = sizes_of(model, name)
    build = _build_of(model, has_sizes=bool(sizes))
    whole = whole_program(build.program, model.module.main)
    interface, sizing = interface_of(model, name, state, sizes, whole)
    threads = max((segment.threads for segment in build.segments), default=1)
    if interface.sizes and model.sized is not None:
        for condition in model.sized.template.conditions:
            sizing.need(condition)
    parts = Parts(whole, interface, sizing, threads, weights, weights_file)
    return _LaidOut(interface, build, kernels_of(build), whole, parts, parts.run())


def _build_of(model: BuiltModel, *, has_sizes: bool) -> BuildTemplate:
    if not has_sizes:
        return model.build
    found = model.sized
    if found is None or found.unsized:
        parts = () if found is None else tuple(found.unsized.items())[:1]
        why = "".join(f" ({part}: {reason})" for part, reason in parts)
        raise UnsupportedError(
            "U081",
            f"cannot export a model without one build for all sizes{why}",
            hint="compile the model for fixed sizes: --sizes NAME=N",
        )
    return found.build
