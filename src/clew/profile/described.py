"""Adds to a profile's rows what their kernels and operators are: shapes, dtypes, layouts,
attributes, FLOPs and bytes. `correlate` describes them; nothing is described here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from clew.build.kernel import Kernel
from clew.build.result import Build
from clew.correlate.facts import describe_kernel, describe_operator
from clew.ir.expr import Call, Function
from clew.ir.visit import all_nodes
from clew.profile.flat import anchor_of
from clew.profile.rows import KernelProfile, LayerProfile
from clew.profile.work import LayerWork

# Facts of a kernel that its row or the whole profile has already.
_IN_ROW: Final = ("name", "layers", "target", "threads")


def described_kernel(row: KernelProfile, kernel: Kernel) -> KernelProfile:
    """Returns a kernel's row with its facts and those of its operators."""
    facts = describe_kernel(kernel)
    operators = _with_facts(row, facts.pop("ops"))
    own = {name: fact for name, fact in facts.items() if name not in _IN_ROW}
    return replace(row, operators=operators, facts=own)


def described_layers(layers: Sequence[LayerProfile], work: LayerWork) -> tuple[LayerProfile, ...]:
    """Returns the layers' rows with the facts of their operators in the model."""
    return tuple(replace(row, facts=_of_layer(work, row.layer)) for row in layers)


def _of_layer(work: LayerWork, layer: str) -> Mapping[str, Any]:
    described = [describe_operator(call, work.build) for call in work.calls(layer)]
    if not described:
        return {}
    facts = described[anchor_of(described)]
    return {name: fact for name, fact in facts.items() if name != "layers"}


def described_steps(rows: Sequence[KernelProfile], build: Build) -> list[KernelProfile]:
    """Returns the rows of host steps and regions with the facts of their operators; those of a
    region also list, as `ops`, the operators in it.
    """
    wanted = {row.node for row in rows} - {None}
    calls = _calls(build, wanted) if wanted else {}
    return [
        replace(row, operators=_with_facts(row, [_step(calls[row.node], build)]))
        if row.node in calls
        else row
        for row in rows
    ]


def _step(call: Call, build: Build) -> dict[str, Any]:
    facts = describe_operator(call, build)
    if isinstance(call.op, Function):
        inner = (node for node in all_nodes(call.op) if isinstance(node, Call))
        facts["ops"] = [describe_operator(node, build) for node in inner]
    return facts


def _calls(build: Build, wanted: Iterable[int | None]) -> dict[int | None, Call]:
    nodes = all_nodes(build.stages[-1].module.main)
    return {node.id: node for node in nodes if isinstance(node, Call) and node.id in wanted}


def _with_facts(row: KernelProfile, described: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    """Returns the row's operators with their facts, except names, which they have."""
    return tuple(
        replace(operator, facts={k: v for k, v in facts.items() if k not in ("op", "layers")})
        for operator, facts in zip(row.operators, described, strict=True)
    )
