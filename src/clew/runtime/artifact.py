"""Builds runnable programs from a saved model's text and blobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from clew.codegen.artifact import KernelCode, ObjectCode
from clew.ir.dim_records import of_record, symbolic_of_record
from clew.ir.dims import Dim
from clew.ir.size_rules import SizeRule
from clew.machine.needs import MachineNeeds
from clew.runtime.container import Container
from clew.runtime.input_spec import InputSpec
from clew.runtime.kinds import Kind
from clew.runtime.library import Library
from clew.runtime.output_spec import OutputSpec
from clew.runtime.plan import (
    ArenaBuffer,
    BufferKind,
    BufferRef,
    BufferSpec,
    Flow,
    FlowKind,
    LoopPlan,
    SegmentPlan,
    Step,
)
from clew.runtime.program import (
    Branch,
    Copy,
    Instruction,
    NoIterations,
    Program,
    Repeat,
    RunHost,
    RunRegion,
    RunSegment,
    Segment,
    Stretch,
    View,
)
from clew.runtime.segment import NativeSegment
from clew.runtime.sizes_key import SizesKey
from clew.runtime.spaces import HOST, MemorySpace
from clew.runtime.threads import ThreadPool
from clew.support.array_records import array_of
from clew.support.dataclass import dataclass
from clew.support.errors import CompileError
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING
from clew.support.shown import Brief
from clew.support.size_ranges import SizeRange, SizeRanges
from clew.support.text_arrays import TEXT, dtype_named, unpacked

if TYPE_CHECKING:  # imported with models of free sizes, or with regions
    from clew.runtime.regions import RegionCall
    from clew.runtime.segment_template import LoopTemplate, SizedSpec
    from clew.runtime.sized_segment import SizedSegment
    from clew.runtime.template import ProgramTemplate

Json: TypeAlias = "Mapping[str, Any]"


class Regions(Protocol):
    """Loads the regions of a saved model."""

    def region(
        self, step: Json, record: bytes, standby: Callable[..., Any] | None = None
    ) -> RegionCall:
        """Returns the region of a saved step. `standby` runs it on the CPU."""
        ...

    def space(self, name: str) -> MemorySpace:
        """Returns the memory space of this name."""
        ...


# Returns the function of a host step, given its saved form, the threads, and its program for all
# sizes, if it has one.
HostResolver = Callable[[Json, ThreadPool, "ProgramTemplate | None"], Callable[..., Any]]
# Returns a loop with its native steps, given the record of its states' types.
LoopResolver = Callable[[Repeat, Json, ThreadPool], Repeat]
# Returns the parts of a program that may run as one native call each.
Joiner = Callable[[Program], Sequence[Stretch]]


@dataclass(frozen=True, repr=False)
class LoadedKernel(Brief):
    """One use of a kernel in a saved model.

    `layers` are the model's layers that it serves, and `ops` its operators, both in order.
    `segment` and `step` locate it in the program. `rules` names the schedule rules that were
    applied, and `code_bytes` is the size of its object: both are empty in files of older versions.
    """

    name: str
    layers: tuple[str, ...]
    ops: tuple[str, ...]
    key: str
    segment: int
    step: int
    rules: tuple[str, ...] = ()
    code_bytes: int = 0


@dataclass(frozen=True)
class LoadedBuild:
    """A model for concrete sizes, ready to run."""

    key: SizesKey
    program: Program
    segments: tuple[NativeSegment, ...]
    kernels: tuple[LoadedKernel, ...]


@dataclass(frozen=True)
class LoadedTemplate:
    """A model for all sizes."""

    template: ProgramTemplate
    kernels: tuple[LoadedKernel, ...]

    def at(self, key: SizesKey, sizes: Mapping[str, int]) -> LoadedBuild | None:
        """Returns the model at given sizes; None if it is not valid there."""
        found = self.template.at(sizes)
        if found is None:
            return None
        program, segments = found
        return LoadedBuild(key, program, tuple(segments), self.kernels)


def has_host_steps(text: Json) -> bool:
    """Whether any build of a saved model has host steps."""
    return any(_does(build["program"], "host") for build in _all_builds(text))


def has_regions(text: Json) -> bool:
    """Whether any build of a saved model runs regions on other backends."""
    return any(_does(build["program"], "region") for build in _all_builds(text))


def _all_builds(text: Json) -> list[Json]:
    found = [*text["builds"], *([text["sized"]] if "sized" in text else [])]
    return [*found, *(build for part in text.get("variants", ()) for build in _all_builds(part))]


def _does(program: Json, what: str) -> bool:
    for instruction in program["instructions"]:
        inner = [instruction.get(name) for name in ("then", "else", "while", "body")]
        inner.append(instruction.get("standby", {}).get("program"))
        if instruction["do"] == what or any(_does(p, what) for p in inner if p is not None):
            return True
    return False


def read_inputs(text: Json) -> list[InputSpec]:
    """Returns the model's inputs."""
    return list(map(_input, text["inputs"]))


def _input(record: Json) -> InputSpec:
    kind = Kind.from_json(record["kind"]) if "kind" in record else None
    dtype = record["dtype"] and dtype_named(record["dtype"])
    spec = InputSpec(record["name"], dtype, record["shape"], kind=kind)
    spec.value_names = tuple(map(str, record.get("value_names", ())))
    spec.is_count = bool(record.get("is_count"))
    spec.by_rank = bool(record.get("by_rank"))
    for axis, dim in record.get("expressions", {}).items():
        if not isinstance(spec.shape[int(axis)], str):
            raise ValueError(f"axis {axis} of {spec.name} is not free")
        spec.expressions = {**spec.expressions, int(axis): symbolic_of_record(dim)}
    spec.rules = tuple(map(SizeRule.of_record, record.get("rules", ())))
    if "initial" in record:
        initial = spec.check(array_of(record["initial"]))
        spec.initial = np.require(initial, requirements=("C", "A"))
        spec.fed_by = str(record["fed_by"])
    if "usual" in record:
        spec.usual = tuple(map(int, record["usual"]))
    if spec.value_names and len(spec.value_names) != math.prod(map(int, spec.shape)):
        raise ValueError(f"{spec.name} has {len(spec.value_names)} names of values")
    return spec


def read_outputs(text: Json) -> list[OutputSpec]:
    """Returns the model's outputs."""
    names = text["outputs"]
    if "output_types" not in text:  # older files
        return [OutputSpec(name, is_known=False) for name in names]
    return [OutputSpec.from_json(n, t) for n, t in zip(names, text["output_types"], strict=True)]


def read_ranges(text: Json) -> SizeRanges:
    """Returns the ranges of free dimensions that the model was compiled for."""
    return SizeRanges({n: SizeRange.from_json(one) for n, one in text.get("sizes", {}).items()})


def read_needs(text: Json) -> MachineNeeds:
    """Returns the machine features that the code needs."""
    machine = text["machine"]
    features = tuple(machine["features"])
    return MachineNeeds(machine["triple"], machine["cpu"], features, machine["same_cpu"])


class BuildReader:
    """Creates the builds of a saved model. Constants stay in the mapped file."""

    def __init__(
        self,
        container: Container,
        pool: ThreadPool,
        resolve_host: HostResolver | None,
        regions: Regions | None = None,
        resolve_loop: LoopResolver | None = None,
        join: Joiner | None = None,
    ) -> None:
        self._regions = regions
        self._text = container.text
        self._blobs = container.blobs
        self._pool = pool
        self._resolve_host = resolve_host
        self._resolve_loop = resolve_loop
        self._join = join
        self._codes = [_code(code) for code in self._text["kernels"]]
        self._library = self._linked([self._object(o) for o in self._text["objects"]])

    def _linked(self, objects: Sequence[ObjectCode]) -> Library:
        """Returns the linked code. Raises `ValueError` if it cannot be linked, or lacks the entry
        point of a kernel.
        """
        symbols = {symbol for code in objects for symbol in code.symbols}
        for kernel in self._codes:
            for entry in kernel.entries:
                if entry.symbol not in symbols:
                    raise ValueError(f"no object has the symbol {entry.symbol!r}")
        try:
            return Library(objects)
        except CompileError as error:
            raise ValueError(error.message) from error

    def builds(self, text: Json) -> list[LoadedBuild]:
        """Returns the builds of the model or variant that `text` describes.

        Errors: KeyError, TypeError, ValueError, IndexError and
        AssertionError if the text is inconsistent.
        """
        return [self._build(build) for build in text["builds"]]

    def template(self, text: Json) -> LoadedTemplate | None:
        """Returns the build for all sizes of the model or variant that `text` describes; None if it
        has none.

        Errors: as `builds`.
        """
        record = text.get("sized")
        if record is None:
            return None
        return LoadedTemplate(self._all_sizes(record), tuple(_kernel(k) for k in record["kernels"]))

    def _all_sizes(self, record: Json) -> ProgramTemplate:
        segments = [self._part(part) for part in record["segments"]]
        program = self._program(record["program"], segments)
        conditions = [symbolic_of_record(condition) for condition in record["conditions"]]
        from_zero = map(str, record.get("from_zero", ()))
        with LOADING, held_interrupts():
            from clew.runtime.template import ProgramTemplate  # noqa: PLC0415

        return ProgramTemplate(program, segments, conditions, from_zero)

    def _part(self, record: Json) -> NativeSegment | SizedSegment:
        """Returns a segment of the build for all sizes."""
        if "sizes_bytes" not in record:
            return self._segment(record)
        with LOADING, held_interrupts():
            from clew.runtime.sized_segment import SizedSegment  # noqa: PLC0415

        template = _templates().SegmentTemplate(
            steps=tuple(self._step(step) for step in record["steps"]),
            inputs=tuple(_sized_spec(spec) for spec in record["inputs"]),
            outputs=tuple(_sized_spec(spec) for spec in record["outputs"]),
            constants=tuple(self._weight(array) for array in record["constants"]),
            arena_bytes=tuple(of_record(size) for size in record["sizes_bytes"]),
            order=tuple(e if isinstance(e, int) else _flow(e) for e in record["order"]),
            loops=tuple(map(_sized_loop, record["loops"])),
            copied={place: of_record(size) for place, size in record.get("copied", ())},
        )
        return SizedSegment(template, self._library, self._pool)

    def _object(self, record: Json) -> ObjectCode:
        data = self._blobs[record["blob"]].tobytes()
        return ObjectCode(record["key"], data, tuple(record["symbols"]))

    def _build(self, record: Json) -> LoadedBuild:
        shapes = tuple(None if s is None else tuple(s) for s in record["shapes"])
        values = tuple(self._blobs[blob].tobytes() for blob in record["values"])
        segments = tuple(self._segment(plan) for plan in record["segments"])
        kernels = tuple(_kernel(k) for k in record["kernels"])
        for kernel in kernels:
            plan = segments[kernel.segment].plan
            if plan.steps[kernel.step].code.key != kernel.key:
                raise AssertionError(f"{kernel.name} is misplaced")
        program = self._program(record["program"], segments)
        return LoadedBuild((shapes, values), program, segments, kernels)

    def _segment(self, record: Json) -> NativeSegment:
        plan = SegmentPlan(
            steps=tuple(self._step(step) for step in record["steps"]),
            inputs=tuple(_spec(spec) for spec in record["inputs"]),
            outputs=tuple(_spec(spec) for spec in record["outputs"]),
            constants=tuple(self._weight(array) for array in record["constants"]),
            arena_bytes=record["arena_bytes"],
            arena=tuple(ArenaBuffer(size, offset) for size, offset in record["arena"]),
            order=tuple(e if isinstance(e, int) else _flow(e) for e in record["order"]),
            loops=tuple(map(_loop, record["loops"])),
        )
        return NativeSegment(plan, self._library, self._pool)

    def _step(self, record: Json) -> Step:
        args = _refs(record["args"])
        code, checked = self._codes[record["kernel"]], tuple(record["checked"])
        if len(checked) != len(code.checks):
            raise AssertionError(f"{record['label']}: wrong index checks")
        return Step(code, args, record["label"], checked)

    def _array(self, record: Json) -> np.ndarray:
        data, dtype = self._blobs[record["blob"]], dtype_named(record["dtype"])
        if dtype == TEXT:
            return unpacked(data, tuple(record["shape"]))
        return data.view(dtype).reshape(record["shape"])

    def _weight(self, record: Json) -> np.ndarray:
        """Returns a constant that kernels read, at its address. Its dtype is that of bytes if NumPy
        does not know it: another package has to be imported for it.
        """
        try:
            np.dtype(record["dtype"])
        except TypeError:
            data, shape = self._blobs[record["blob"]], record["shape"]
            size_bytes = data.nbytes // max(1, math.prod(shape))
            return data.view(f"V{max(1, size_bytes)}").reshape(shape)
        return self._array(record)

    def _program(self, record: Json, segments: Sequence[Segment]) -> Program:
        spaces = {slot: self._space(name) for slot, name in record.get("spaces", ())}
        instructions = [self._instruction(i, segments, spaces) for i in record["instructions"]]
        constants = {slot: self._array(array) for slot, array in record["constants"]}
        slots = range(record["slots"])
        used = [*record["inputs"], *record["outputs"], *constants, *spaces]
        for one in record["instructions"]:
            used += [*one.get("inputs", ()), *one.get("outputs", ())]
            used += [one[name] for name in ("source", "target", "cond") if name in one]
        if wrong := [slot for slot in used if slot not in slots]:
            raise ValueError(f"there is no slot {wrong[0]} of {len(slots)}")
        return Program(
            instructions,
            len(slots),
            record["inputs"],
            record["outputs"],
            constants,
            spaces,
            join=self._join,
        )

    def _standby(self, record: Json) -> Callable[..., Sequence[Any]]:
        """Returns a region on the CPU: takes an array per parameter and returns one per result."""
        segments = [self._segment(plan) for plan in record["segments"]]
        program = self._program(record["program"], segments)
        return lambda *arrays: program(arrays)

    def _space(self, name: str) -> MemorySpace:
        assert self._regions is not None
        return self._regions.space(name)

    def _instruction(
        self,
        record: Json,
        segments: Sequence[Segment],
        spaces: Mapping[int, MemorySpace],
    ) -> Instruction:
        if record["do"] == "view":
            shape, offset = tuple(map(of_record, record["shape"])), of_record(record["offset"])
            return View(record["source"], record["target"], shape, offset)
        reads, writes = tuple(record["inputs"]), tuple(record["outputs"])
        match record["do"]:
            case "segment":
                return RunSegment(segments[record["segment"]], reads, writes)
            case "host":
                assert self._resolve_host is not None
                template = self._all_sizes(record["sized"]) if "sized" in record else None
                function = self._resolve_host(record["step"], self._pool, template)
                layers = tuple(record.get("layers", ()))  # older files have none
                return RunHost(function, reads, writes, record["label"], layers)
            case "copy":
                with LOADING, held_interrupts():
                    from clew.runtime.regions import ValueType  # noqa: PLC0415

                (source,), (target,) = reads, writes
                ends = spaces.get(source, HOST), spaces.get(target, HOST)
                return Copy(source, target, *ends, ValueType.of_record(record["type"]))
            case "region":
                assert self._regions is not None
                kept = self._blobs[record["record"]].tobytes() if "record" in record else b""
                standby = self._standby(record["standby"]) if "standby" in record else None
                call = self._regions.region(record, kept, standby)
                label, layers = record["label"], tuple(record["layers"])
                return RunRegion(call, reads, writes, label, layers, backend=call.backend)
            case "if":
                then = self._program(record["then"], segments)
                orelse = self._program(record["else"], segments)
                return Branch(then, orelse, (record["cond"], *reads), writes)
            case "while":
                cond = self._program(record["while"], segments)
                body = self._program(record["body"], segments)
                empty = tuple(map(_no_iterations, record["empty"]))
                loop = Repeat(cond, body, reads, writes, record["scans"], empty)
                if "native" not in record or self._resolve_loop is None:
                    return loop
                return self._resolve_loop(loop, record["native"], self._pool)
        raise ValueError(f"unknown instruction {record['do']!r}")


def _refs(records: Sequence[Any]) -> tuple[BufferRef, ...]:
    return tuple(
        BufferRef(BufferKind(kind), index, at, *map(of_record, sized))
        for kind, index, at, *sized in records
    )


def _flow(record: Json) -> Flow:
    """Returns a step of control flow. The checks of the plan reject invalid ones."""
    kind = FlowKind[record["do"].upper()]
    target, loop, size_bytes = (int(record[name]) for name in ("target", "loop", "size_bytes"))
    return Flow(kind, _refs(record["args"]), target, loop, size_bytes)


def _loop(record: Json) -> LoopPlan:
    states, rows = tuple(map(int, record["states_bytes"])), tuple(map(int, record["rows_bytes"]))
    trips = None if record["trips"] is None else int(record["trips"])
    return LoopPlan(int(record["first"]), states, rows, trips, _reads_trips(record))


def _sized_loop(record: Json) -> LoopTemplate:
    states, rows = (tuple(map(of_record, record[n])) for n in ("states_bytes", "rows_bytes"))
    trips = None if record["trips"] is None else of_record(record["trips"])
    kind: type[LoopTemplate] = _templates().LoopTemplate
    return kind(int(record["first"]), states, rows, trips, _reads_trips(record))


def _reads_trips(record: Json) -> bool:
    return bool(record.get("reads_trips"))  # older files have none


def _no_iterations(record: Json) -> NoIterations:
    def size(given: Any) -> Dim | tuple[int, int]:
        match given:
            case int():
                return given
            case {"size": dim}:
                return of_record(dim)
        return int(given[0]), int(given[1])

    return NoIterations(tuple(map(size, record["shape"])), dtype_named(record["dtype"]))


def _code(record: Json) -> KernelCode:
    return KernelCode.of_record({"in_place": (), **record})


def _sized_spec(record: Json) -> SizedSpec:
    shape = tuple(map(of_record, record["shape"]))
    kind: type[SizedSpec] = _templates().SizedSpec
    return kind(record["name"], shape, record["dtype"], bool(record.get("is_stack")))


def _templates() -> ModuleType:
    with LOADING, held_interrupts():
        from clew.runtime import segment_template  # noqa: PLC0415

    return segment_template


def _spec(record: Json) -> BufferSpec:
    shape, is_stack = tuple(record["shape"]), bool(record.get("is_stack"))  # older files have none
    return BufferSpec(record["name"], shape, record["dtype"], is_stack)


def _kernel(record: Json) -> LoadedKernel:
    return LoadedKernel(
        record["name"],
        tuple(record["layers"]),
        tuple(record["ops"]),
        record["key"],
        record["segment"],
        record["step"],
        tuple(map(str, record.get("rules", ()))),
        int(record.get("code_bytes", 0)),
    )
