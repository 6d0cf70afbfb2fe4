"""A row of facts for each kernel use: everything a table or predictor knows without a run.

`columns` lists the facts; `docs/predict.md` describes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from clew.backends.cpu.kernel_stages import operator_calls
from clew.backends.cpu.lowering import KernelSource
from clew.build.result import KernelUse
from clew.correlate.facts import describe_operator, describe_type
from clew.cost.work import work_of
from clew.ir.dims import typical
from clew.ir.expr import Call, Function
from clew.ir.types import TupleType
from clew.machine.target import Target
from clew.predict.analytic import core_cycles
from clew.predict.footprints import LINE_BYTES
from clew.predict.frequencies import frequencies
from clew.predict.instructions import CLASSES, PARTS, Work, work_of_text
from clew.predict.program import AGED, KINDS, Surroundings, surroundings
from clew.runtime.grid import is_shared, phases, split
from clew.runtime.plan import SegmentPlan

Row = dict[str, Any]
# The usable part of a cache, beside other data.
_USABLE: Final = 0.8


def describe_uses(
    uses: Sequence[KernelUse],
    plans: Sequence[SegmentPlan],
    threads: int,
    known: dict[str, Row] | None = None,
) -> list[Row]:
    """Returns the facts of a program's kernels, in the order in which they run.

    `plans` are those of the program's segments. Kernels need no object code: passes, schedules and
    LLVM text are enough. `known` caches facts that do not depend on the number of threads, for
    later calls.
    """
    kept = {} if known is None else known
    for use in uses:
        if use.source.key not in kept:
            kept[use.source.key] = kernel_facts(use.source)
    cycles = [kept[use.source.key]["cycles"] for use in uses]
    near_bytes = uses[0].source.target.l2_bytes if uses else 0
    around = surroundings(uses, plans, cycles, near_bytes)
    divided: dict[str, Row] = {}
    rows = []
    for use, place in zip(uses, around, strict=True):
        key = use.source.key
        if key not in divided:
            divided[key] = {"threads": threads, **threading_facts(use.source, threads)}
        operators = _operators(use.call)
        rows.append({"kernel": use.name, **kept[key], **divided[key], **operators, **_place(place)})
    return rows


def _operators(call: Call) -> Row:
    assert isinstance(call.op, Function)
    described = [describe_operator(inner) for inner in operator_calls(call.op)]
    layers = [layer for one in described for layer in one.pop("layers", ())]
    shares = _shares(described)
    return {
        "layers": list(dict.fromkeys(layers)),
        "operators": json.dumps(described, separators=(",", ":")),
        "shares": json.dumps(_layer_shares(call.op, shares), separators=(",", ":")),
    }


def _shares(described: Sequence[Mapping[str, Any]]) -> list[float]:
    """Returns the estimated share of each operator in its kernel's time: by its FLOPs, plus a
    quarter of a FLOP per byte of its results.
    """
    weights = []
    for facts in described:
        flops = facts.get("flops", 0)
        size = sum(o.get("bytes", 0) for o in facts["outputs"])
        weights.append((flops if isinstance(flops, int) else 0) + size / 4)
    total = sum(weights) or 1.0
    return [w / total for w in weights]


def _layer_shares(function: Function, shares: Sequence[float]) -> dict[str, float]:
    """Returns the estimated share of each layer; an operator's share is divided among its
    layers.
    """
    found: dict[str, float] = {}
    for call, share in zip(operator_calls(function), shares, strict=True):
        names = call.layers or ("",)
        for name in names:
            found[name] = found.get(name, 0.0) + share / len(names)
    return found


def kernel_facts(source: KernelSource) -> Row:
    """Returns the facts common to all uses of a kernel."""
    function, outputs = source.function, source.stages.outputs
    result = function.body.type
    results = result.fields if isinstance(result, TupleType) else (result,)
    arguments = [describe_type(p.type) for p in function.params]
    produced = [describe_type(t) for t in results]
    code = source.code
    sizes = [a.get("bytes", 0) for a in (*arguments, *produced)] + list(code.workspace_bytes)
    text = source.emitted.llvm
    caches = [int(size) for size in cache_sizes(source.target)]
    found = frequencies(text, code.entries)
    work = work_of_text(text, code.entries, sizes, caches, source.target, found)
    core = core_cycles(text, found, source.target)
    ops = [c.op_name for c in operator_calls(function)]
    least = work_of(outputs, lambda size: size if isinstance(size, int) else 0)
    return {
        "key": source.key,
        "target": source.target.key,
        "ops": ops,
        "rules": list(source.rules),
        "fusion": function.attrs.get("fusion", ""),
        "layout": next((a["layout"] for a in arguments if "layout" in a), ""),
        "dtype": produced[0]["dtype"] if produced else "",
        "types": json.dumps({"arguments": arguments, "results": produced}, separators=(",", ":")),
        "schedule": str(source.schedule),
        "flops": least.flops,
        "product_flops": least.product_flops,
        "bytes": least.bytes,
        "argument_bytes": sum(a.get("bytes", 0) for a in arguments),
        "result_bytes": sum(r.get("bytes", 0) for r in produced),
        "workspace_bytes": sum(code.workspace_bytes),
        "scratch_bytes": code.scratch_bytes,
        "text_lines": text.count("\n"),
        "core_cycles": work.cycles["all"] if core is None else core,
        **_work(work),
    }


def cache_sizes(target: Target) -> tuple[float, ...]:
    """Returns the sizes of caches to find the lines from beyond of: the first two levels, and
    sizes between and beyond these.
    """
    first, second = _USABLE * target.l1_bytes, _USABLE * target.l2_bytes
    return first, (first * second) ** 0.5, second, 2.5 * second, 10 * second


def _work(work: Work) -> Row:
    lines = work.footprint.lines
    return {
        **{f"count_{name}": work.counts[name] for name in CLASSES},
        "cycles": work.cycles["all"],
        **{f"{name}_cycles": work.cycles[name] for name in PARTS if name != "all"},
        "iterations": work.iterations,
        "inner_iterations": work.inner_iterations,
        **{
            f"lines_{cache}_{run}": float(count)
            for cache, counts in enumerate(lines)
            for run, count in enumerate(counts)
        },
        "traffic_l1_bytes": LINE_BYTES * float(lines[0].sum()),
        "traffic_l2_bytes": LINE_BYTES * float(lines[2].sum()),
        "loop_depth": work.deepest,
    }


def threading_facts(source: KernelSource, threads: int) -> Row:
    """Returns the division of the phases: chunks, and the share of the work that threads divide."""
    groups = phases(source.code.entries)
    cost = shared = longest = 0.0
    chunks = 0
    for group in groups:
        phase_cost = sum(e.cost for e in group)
        cost += phase_cost
        if is_shared(group, threads):
            shared += phase_cost
            pieces = len(split(group, threads))
            chunks += pieces
            longest += phase_cost * -(-pieces // threads) / pieces
        else:
            chunks += len(group)
            longest += phase_cost
    return {
        "phases": len(groups),
        "grid": max((typical(e.grid) * e.n_lines for e in source.code.entries), default=1),
        "chunks": chunks,
        "shared": shared / cost if cost else 0.0,
        "span": longest / cost if cost else 1.0,
        "estimate_ns": cost,
    }


def _place(place: Surroundings) -> Row:
    return {
        "constant_read_bytes": sum(place.touched["constant"]),
        "written_bytes": sum(place.touched["written"]),
        "program_constant_bytes": place.constant_bytes,
        "program_arena_bytes": place.arena_bytes,
        "program_bytes": place.program_bytes,
        "program_kernels": place.kernels,
        "position": place.position,
        **{
            f"{kind}_bytes_{number}": size
            for kind in KINDS
            for number, size in enumerate(place.touched[kind])
        },
        **{
            f"{kind}_aged_{number}": size
            for kind in AGED
            for number, size in enumerate(place.aged[kind])
        },
    }
