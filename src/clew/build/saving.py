"""Saves a compiled model to one file for `load_compiled`; see `docs/artifact-format.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from clew.backends.backend import CPU, Backend
from clew.backends.cpu.deferred_kernel import DeferredKernel
from clew.backends.cpu.lowering import KernelBinary
from clew.backends.host.steps import HostStep
from clew.backends.regions import region_record
from clew.build.all_sizes import SizedBuild
from clew.build.result import Build, BuildTemplate
from clew.build.standby import Standby
from clew.codegen.artifact import KernelCode
from clew.ir.dim_records import to_record
from clew.ir.dims import Dim, SymDim
from clew.machine.needs import needs_of
from clew.machine.target import Target
from clew.runtime.container import write_container
from clew.runtime.input_spec import InputSpec
from clew.runtime.output_spec import OutputSpec
from clew.runtime.plan import BufferRef, Flow, SegmentPlan, Step
from clew.runtime.program import (
    Branch,
    Copy,
    Instruction,
    Program,
    Repeat,
    RunHost,
    RunRegion,
    RunSegment,
    View,
)
from clew.runtime.regions import RegionCall
from clew.runtime.segment_template import LoopTemplate, SegmentTemplate
from clew.runtime.sized_segment import SizedSegment
from clew.runtime.sizes_key import SizesKey
from clew.runtime.template import ProgramTemplate
from clew.runtime.variant import Variant
from clew.support.array_records import array_record
from clew.support.call_form import CallForm
from clew.support.dataclass import dataclass
from clew.support.shared_arrays import content_digest
from clew.support.size_ranges import SizeRanges
from clew.support.text_arrays import dtype_name, is_text, packed
from clew.version import VERSION

Array = np.ndarray[Any, Any]
Binaries: TypeAlias = "Mapping[str, KernelBinary]"


@dataclass(frozen=True)
class SavedUse:
    """The record of one kernel use in a saved model."""

    name: str
    layers: tuple[str, ...]
    ops: tuple[str, ...]
    key: str
    segment: int
    step: int
    rules: tuple[str, ...]
    code_bytes: int


@dataclass(frozen=True)
class SavedModel:
    """The content of a saved model: its interface, and its builds by their sizes.

    `deciding` are the positions of inputs whose values decide shapes. `sized` is the build for all
    sizes, if there is one. `variants` holds the content of each variant, in the same form.
    `options` is the record of the options that it was compiled with.
    """

    target: Target
    inputs: Sequence[InputSpec]
    outputs: Sequence[OutputSpec]
    deciding: Sequence[int]
    builds: Mapping[SizesKey, tuple[Build, Sequence[SavedUse]]]
    backends: Sequence[Backend] = ()
    sizes: SizeRanges = field(default_factory=SizeRanges)
    sized: tuple[SizedBuild, Sequence[SavedUse]] | None = None
    variants: Mapping[Variant, SavedModel] = field(default_factory=dict)
    form: CallForm | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def saved_uses(build: BuildTemplate) -> list[SavedUse]:
    """Returns the part of a build's kernels that a saved model keeps."""
    return [
        SavedUse(
            use.name,
            build.kernel_layers(use),
            tuple(use.ops),
            use.source.key,
            use.segment,
            use.step,
            build.rules_of(use.source),
            len(build.binaries[use.source.key].object.data),
        )
        for use in build.uses
    ]


def save(model: SavedModel, path: str | Path) -> None:
    """Writes a model to a file atomically. Equal builds give equal bytes.

    Errors: C050 (the file cannot be written), and those of `contents`.
    """
    write_container(Path(path), *contents(model))


def contents(model: SavedModel) -> tuple[dict[str, Any], list[Array]]:
    """Returns what a file holds of a model: its text and its blobs.

    Errors: C058 (a kernel whose shapes only a run determines, with constants of its own), C059 (an
    attribute of an operator that runs between kernels has no saved form), C071 (a region of a
    backend that keeps none).
    """
    writer = _Writer(model.backends)
    built = _contents(writer, model)
    needs = needs_of(model.target.triple, model.target.cpu, model.target.features)
    sizes = {name: one.to_json() for name, one in model.sizes.items()}
    text = {
        "clew": VERSION,
        "machine": asdict(needs),
        "outputs": [spec.name for spec in model.outputs],
        "output_types": [spec.to_json() for spec in model.outputs],
        **({"sizes": sizes} if sizes else {}),
        **({"options": dict(model.options)} if model.options else {}),
        **({"form": model.form.plain} if model.form is not None else {}),
        "kernels": writer.kernels,
        "objects": writer.objects,
        **built,
    }
    return text, writer.blobs


def _contents(writer: _Writer, model: SavedModel) -> dict[str, Any]:
    """Returns the inputs and builds of a model, and those of its variants."""
    order = sorted(model.builds, key=repr)
    variants = [
        {**variant.to_json(), **_contents(writer, part)}
        for variant, part in sorted(model.variants.items(), key=lambda item: str(item[0]))
    ]
    return {
        "inputs": [_input(spec) for spec in model.inputs],
        "deciding": list(model.deciding),
        "builds": [_build(writer, key, *model.builds[key]) for key in order],
        **({} if model.sized is None else {"sized": _sized(writer, *model.sized)}),
        **({"variants": variants} if variants else {}),
    }


class _Writer:
    """Collects kernels, objects and blobs, each once."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.backends = backends
        self.blobs: list[Array] = []
        self.kernels: list[dict[str, Any]] = []
        self.objects: list[dict[str, Any]] = []
        self._blob_of: dict[bytes, int] = {}
        self._kernel_of: dict[str, int] = {}
        self._held: set[str] = set()  # the keys of `objects`

    def blob(self, data: Array) -> int:
        """Returns the number of a blob with these bytes; `data` is u8."""
        number = self._blob_of.setdefault(content_digest(data), len(self.blobs))
        if number == len(self.blobs):
            self.blobs.append(data)
        return number

    def array(self, array: Array) -> dict[str, Any]:
        """Returns an array as JSON; its elements go to a blob."""
        if is_text(array):
            data = packed(array)
        else:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return {"dtype": dtype_name(array.dtype), "shape": array.shape, "blob": self.blob(data)}

    def kernel(self, code: KernelCode, binaries: Binaries) -> int:
        """Adds a kernel and its object; returns the kernel's number."""
        number = self._kernel_of.get(code.key)
        if number is None:
            number = self._kernel_of[code.key] = len(self.kernels)
            record = code.to_record()
            del record["in_place"]  # the plan's arguments say where it has been used
            self.kernels.append(record)
            made = binaries[code.key].object
            if made.key not in self._held:  # several kernels may share an object
                self._held.add(made.key)
                blob = self.blob(np.frombuffer(made.data, np.uint8))
                self.objects.append({"key": made.key, "symbols": made.symbols, "blob": blob})
        return number


def _input(spec: InputSpec) -> dict[str, Any]:
    dtype = None if spec.dtype is None else dtype_name(spec.dtype)
    kind = {} if spec.kind is None else {"kind": spec.kind.to_json()}
    names: dict[str, Any] = {"value_names": spec.value_names} if spec.value_names else {}
    sizes = {str(axis): to_record(dim) for axis, dim in spec.expressions.items()}
    names |= {"expressions": sizes} if sizes else {}
    names |= {"rules": [rule.record for rule in spec.rules]} if spec.rules else {}
    names |= {"is_count": True} if spec.is_count else {}
    names |= {"usual": spec.usual} if spec.usual is not None else {}
    names |= {"by_rank": True} if spec.by_rank else {}
    state = {}
    if spec.initial is not None:
        state = {"initial": array_record(spec.initial), "fed_by": spec.fed_by}
    return {"name": spec.name, "dtype": dtype, "shape": spec.shape, **kind, **names, **state}


def _build(
    writer: _Writer, key: SizesKey, build: Build, uses: Sequence[SavedUse]
) -> dict[str, Any]:
    shapes, values = key
    return {
        "shapes": shapes,
        "values": [writer.blob(np.frombuffer(v, np.uint8)) for v in values],
        **_code(writer, build),
        "kernels": [asdict(use) for use in uses],
    }


def _code(writer: _Writer, build: Build) -> dict[str, Any]:
    numbers = {id(s): n for n, s in enumerate(build.segments)}
    return {
        "segments": [_segment(writer, s.plan, build.binaries) for s in build.segments],
        "program": _program(writer, build.program, numbers),
    }


def _sized(writer: _Writer, sized: SizedBuild, uses: Sequence[SavedUse]) -> dict[str, Any]:
    record = _all_sizes(writer, sized.template, sized.build.binaries)
    return {**record, "kernels": [asdict(use) for use in uses]}


def _all_sizes(writer: _Writer, template: ProgramTemplate, binaries: Binaries) -> dict[str, Any]:
    numbers = {id(s): n for n, s in enumerate(template.segments)}
    return {
        "conditions": [to_record(condition) for condition in template.conditions],
        **({"from_zero": sorted(template.from_zero)} if template.from_zero else {}),
        "segments": [
            _template(writer, s.template, binaries)
            if isinstance(s, SizedSegment)
            else _segment(writer, s.plan, binaries)
            for s in template.segments
        ],
        "program": _program(writer, template.program, numbers),
    }


def _template(writer: _Writer, template: SegmentTemplate, binaries: Binaries) -> dict[str, Any]:
    inputs, outputs = (
        [{**asdict(spec), "shape": [to_record(d) for d in spec.shape]} for spec in specs]
        for specs in (template.inputs, template.outputs)
    )
    return {
        "steps": _steps(writer, template.steps, binaries),
        "inputs": inputs,
        "outputs": outputs,
        "constants": [writer.array(constant) for constant in template.constants],
        "sizes_bytes": [to_record(size) for size in template.arena_bytes],
        "order": [entry if isinstance(entry, int) else _flow(entry) for entry in template.order],
        "loops": [_loop(loop) for loop in template.loops],
        "copied": [[place, to_record(size)] for place, size in template.copied.items()],
    }


def _loop(loop: LoopTemplate) -> dict[str, Any]:
    return {
        "first": loop.first,
        "states_bytes": [to_record(size) for size in loop.states_bytes],
        "rows_bytes": [to_record(size) for size in loop.rows_bytes],
        "trips": None if loop.trips is None else to_record(loop.trips),
        "reads_trips": loop.reads_trips,
    }


def _steps(writer: _Writer, steps: Sequence[Step], binaries: Binaries) -> list[dict[str, Any]]:
    return [
        {
            "kernel": writer.kernel(step.code, binaries),
            "args": _refs(step.args),
            "label": step.label,
            "checked": step.checked,
        }
        for step in steps
    ]


def _segment(writer: _Writer, plan: SegmentPlan, binaries: Binaries) -> dict[str, Any]:
    return {
        "steps": _steps(writer, plan.steps, binaries),
        "inputs": [asdict(spec) for spec in plan.inputs],
        "outputs": [asdict(spec) for spec in plan.outputs],
        "constants": [writer.array(constant) for constant in plan.constants],
        "arena_bytes": plan.arena_bytes,
        "arena": [[b.size_bytes, b.offset_bytes] for b in plan.arena],
        "order": [entry if isinstance(entry, int) else _flow(entry) for entry in plan.order],
        "loops": [asdict(loop) for loop in plan.loops],
    }


def _flow(flow: Flow) -> dict[str, Any]:
    return {
        "do": flow.kind.name.lower(),
        "args": _refs(flow.args),
        "target": flow.target,
        "loop": flow.loop,
        "size_bytes": flow.size_bytes,
    }


def _refs(args: Sequence[BufferRef]) -> list[list[Any]]:
    return [_ref(ref) for ref in args]


def _ref(ref: BufferRef) -> list[Any]:
    place: list[Any] = [ref.kind.value, ref.index, ref.offset_bytes]
    return place if isinstance(ref.sized_bytes, int) else [*place, to_record(ref.sized_bytes)]


def _program(writer: _Writer, program: Program, numbers: Mapping[int, int]) -> dict[str, Any]:
    """Returns a program as JSON. `numbers` maps the ids of segments to their numbers."""
    spaces = sorted((slot, space.name) for slot, space in program.spaces.items())
    return {
        **({"spaces": spaces} if spaces else {}),
        "slots": program.slots,
        "inputs": program.inputs,
        "outputs": program.outputs,
        "constants": [[slot, writer.array(a)] for slot, a in sorted(program.constants.items())],
        "instructions": [_instruction(writer, i, numbers) for i in program.instructions],
    }


def _region(writer: _Writer, instruction: RunRegion) -> dict[str, Any]:
    call = instruction.function
    assert isinstance(call, RegionCall)
    found: dict[str, Any] = {
        "backend": call.backend,
        "results": [t.to_record() for t in call.results],
        "label": instruction.label,
        "layers": instruction.layers,
    }
    if call.backend == CPU:
        standby: Any = call.compiled
    else:
        key, record = region_record(call, writer.backends, instruction.layers)
        found |= {"key": key, "record": writer.blob(np.frombuffer(record, np.uint8))}
        standby = call.standby() if call.standby is not None else None
    if standby is not None:
        assert isinstance(standby, Standby)
        found["standby"] = _code(writer, standby.build)
    return found


def _size(size: Dim | tuple[int, int]) -> Any:
    """Returns a size of `NoIterations` as JSON values."""
    return {"size": to_record(size)} if isinstance(size, SymDim) else size


def _instruction(
    writer: _Writer, instruction: Instruction, numbers: Mapping[int, int]
) -> dict[str, Any]:
    if isinstance(instruction, View):
        shape = [to_record(dim) for dim in instruction.shape]
        offset = to_record(instruction.offset)
        return {"do": "view", **asdict(instruction), "shape": shape, "offset": offset}
    ends = {"inputs": instruction.inputs, "outputs": instruction.outputs}
    match instruction:
        case RunSegment(segment=segment):
            return {"do": "segment", "segment": numbers[id(segment)], **ends}
        case Copy():
            return {"do": "copy", "type": instruction.type.to_record(), **ends}
        case RunRegion():
            return {"do": "region", **_region(writer, instruction), **ends}
        case RunHost(function=function):
            assert isinstance(function, (HostStep, DeferredKernel))
            about: dict[str, Any] = {"label": instruction.label, "layers": instruction.layers}
            prepared = function.prepare() if isinstance(function, DeferredKernel) else None
            if prepared is not None:
                about["sized"] = _all_sizes(writer, prepared.template, prepared.binaries)
            return {"do": "host", "step": function.to_json(), **about, **ends}
        case Branch():
            return {
                "do": "if",
                "cond": instruction.inputs[0],
                "then": _program(writer, instruction.then, numbers),
                "else": _program(writer, instruction.orelse, numbers),
                "inputs": instruction.inputs[1:],
                "outputs": instruction.outputs,
            }
        case Repeat(types=types):
            return {
                "do": "while",
                **({} if types is None else {"native": types}),
                "while": _program(writer, instruction.cond, numbers),
                "body": _program(writer, instruction.body, numbers),
                "scans": instruction.scans,
                "empty": [
                    {"dtype": dtype_name(e.dtype), "shape": list(map(_size, e.shape))}
                    for e in instruction.empty
                ],
                **ends,
            }
