"""The whole build at a glance: layers, the film strip's stages, kernels."""

from __future__ import annotations

import inspect
from typing import Any

from clew.correlate.facts import describe_kernel
from clew.explorer.schema import VERSION, CodeTotals, KernelInfo, Layer, Overview, StageInfo
from clew.explorer.session import Session
from clew.explorer.views.loops import loops
from clew.explorer.views.regions import placement, regions


def overview(session: Session) -> Overview:
    """Returns the data that the page needs first."""
    build = session.compiled.build
    return Overview(
        version=VERSION,
        model=session.model,
        target=str(session.compiled.options.target.name),
        options=session.options,
        inputs=list(session.compiled.input_names),
        outputs=list(session.compiled.output_names),
        layers=_layers(session),
        stages=[_stage(session, n) for n in range(len(session.trace.stages))],
        kernels=_kernels(session),
        regions=session.once(regions),
        loops=session.once(loops),
        placement=placement(session),
        passes=_passes(session),
        seconds={**build.seconds, **session.seconds},
        measured=sorted(session.measured),
    )


def _layers(session: Session) -> list[Layer]:
    trace = session.trace
    in_kernels: dict[str, list[int]] = {}
    for place, kernel in enumerate(session.kernels):
        for layer in trace.kernel_layers(kernel):
            in_kernels.setdefault(layer, []).append(place)
    ops = session.operator_types
    fates = trace.accounted()
    return [
        Layer(
            name=name,
            op=ops.get(name, ""),
            group=session.group_of(name),
            fate=fate.kind.value,
            fate_text=str(fate),
            kernels=in_kernels.get(name, []),
        )
        for name, fate in fates.items()
    ]


def _stage(session: Session, place: int) -> StageInfo:
    trace = session.trace
    record = trace.stages[place]
    difference = record.difference
    rewritten = sum(old in difference.removed for old in record.same) if place else 0
    return StageInfo(
        index=place,
        name=record.name,
        summary=_summary(session, record.name),
        changed=record.changed,
        seconds=record.seconds,
        nodes=len(record.nodes),
        added=len(difference.added) - rewritten if place else len(difference.added),
        removed=len(difference.removed) - rewritten,
        rewritten=rewritten,
        remarks=len(record.remarks),
    )


def _summary(session: Session, name: str) -> str:
    """Returns the first paragraph of a pass's description, without line breaks."""
    for chosen in session.compiled.options.passes:
        if chosen.name == name:
            text = inspect.getdoc(type(chosen)) or ""
            return " ".join(text.split("\n\n")[0].split())
    return ""


def _passes(session: Session) -> dict[str, bool]:
    ran = {record.name for record in session.trace.stages}
    return {chosen.name: chosen.name in ran for chosen in session.compiled.options.passes}


def _kernels(session: Session) -> list[KernelInfo]:
    distinct: dict[str, int] = {}
    described: dict[str, dict[str, Any]] = {}  # equal kernels are described once
    found = []
    for place, kernel in enumerate(session.uses):
        facts = described.get(kernel.key)
        if facts is None:
            facts = described[kernel.key] = describe_kernel(kernel)
        used = session.kernels[place]
        found.append(
            KernelInfo(
                index=place,
                name=kernel.name,
                call=session.numbers[used.call],
                ops=list(kernel.ops),
                numbers=[session.numbers[op] for op in used.ops],
                layers=[session.layers[la] for la in kernel.layers if la in session.layers],
                rules=list(kernel.rules),
                distinct=distinct.setdefault(kernel.key, len(distinct)),
                shape=", ".join(map(_typed, facts["results"])),
                flops=float(facts.get("flops", 0)),
                bytes=float(facts["bytes"]),
                grid=", ".join(f"{p['grid']}×{p['lines']}" for p in facts["phases"]),
                code_bytes=int(facts["code_bytes"]),
            )
        )
    return found


def _typed(facts: dict[str, Any]) -> str:
    layout = f", {facts['layout']}" if facts.get("layout") else ""
    return f"{facts['dtype']}[{', '.join(map(str, facts['shape']))}{layout}]"


def totals(session: Session) -> CodeTotals:
    """Returns the amount of code. Generates all code that came from the cache."""
    build = session.compiled.build
    distinct = {use.key: used for use, used in zip(session.uses, session.kernels, strict=True)}
    return CodeTotals(
        loop_lines=sum(len(used.loops) for used in distinct.values()),
        llvm_lines=sum(len(used.llvm) for used in distinct.values()),
        instructions=sum(len(used.asm) for used in distinct.values()),
        kernels=len(distinct),
        kernel_seconds=build.seconds.get("kernels", 0.0),
        program_seconds=build.seconds.get("program", 0.0),
        cached_kernels=build.cached_kernels,
        instructions_of=[len(used.asm) for used in session.kernels],
    )
