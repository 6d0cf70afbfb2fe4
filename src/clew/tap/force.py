"""Breaks a fusion to put values inside it in memory.

The graph before FuseOps is fused again, with the kernels that contain the values cut there. All
other kernels should be the same, which is checked by their keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from clew.build.kernel_trace import kernel_traces
from clew.build.result import Build
from clew.build.tracing import trace_of
from clew.ir.expr import Call, Function
from clew.ir.structural import structural_hash
from clew.ir.visit import inner_functions, post_order
from clew.passes.fusion.fuse_ops import FuseOps
from clew.passes.manager import PassManager
from clew.serving.built_model import BuiltModel
from clew.support.errors import InputError
from clew.tap.where import Whereabouts
from clew.trace.refs import NodeRef
from clew.trace.values import LayerValue, follow_values

_FUSION: Final = FuseOps.__name__
_MOST_NAMED: Final = 6


@dataclass(frozen=True)
class Forced:
    """The effect of breaking fusions: the kernels that were cut, the kernels they became, and how
    many others are the same. `changed` are other kernels that nevertheless differ.
    """

    cut: tuple[str, ...]
    into: tuple[str, ...]
    unchanged: int
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.cut:
            return "no kernel had to be cut"
        others = f"; the other {self.unchanged} kernels are the same" if self.unchanged else ""
        if self.changed:
            others = f"; {self.unchanged} others are the same, but {_some(self.changed)} changed"
        return f"cut {_some(self.cut)} into {_some(self.into)}{others}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Broken:
    """A build with broken fusions, and the places of the values in it."""

    where: Whereabouts
    values: Mapping[tuple[str, int], LayerValue]
    forced: Forced


def break_fusions(compiled: BuiltModel, where: Whereabouts, values: Sequence[LayerValue]) -> Broken:
    """Returns a build in which these values, which are inside kernels, are in memory.

    Errors: I154 for a value inside a kernel that FuseOps did not make.
    """
    build, trace = where.build, where.trace
    stage = trace.stage_index(_FUSION)
    held = follow_values(trace, 0, [v.first.node for v in values], until=stage - 1)
    fusable = _unfused(build.stages[stage - 1].module.main)
    chosen: dict[tuple[str, int], int] = {}
    for value in values:
        found = [n for n in held[value.first.node][0] if n in fusable]
        if not found:
            raise InputError(
                "I154",
                f"{_holder(where, value)} that holds {value.layer} was not made by {_FUSION}",
                hint="a fusion or a backend made it: compile without that one",
            )
        chosen[value.layer, value.output] = found[0]
    again = _fused_again(compiled, build, stage, frozenset(chosen.values()))
    there = Whereabouts(again, trace_of(again.stages, lambda: kernel_traces(again)))
    kept = follow_values(there.trace, 0, chosen.values())
    there_now = {}
    for key, node in chosen.items():
        last, gone = kept[node]
        refs = tuple(NodeRef(there.trace.last, n) for n in last)
        there_now[key] = LayerValue(*key, NodeRef(0, node), refs, gone)
    return Broken(there, there_now, _compared(where, there, values))


def _holder(where: Whereabouts, value: LayerValue) -> str:
    refused = where.refusal(value.layer, value.output)
    return f"the region on {refused.backend}" if refused.backend else "the kernel"


def _unfused(main: Function) -> set[int]:
    """Returns ids of the calls outside kernels, including those in branches and loops."""
    found: set[int] = set()
    pending = [main]
    while pending:
        for node in post_order(pending.pop().body):
            if isinstance(node, Call):
                found.add(node.id)
            else:
                pending.extend(inner_functions(node))
    return found


def _fused_again(compiled: BuiltModel, build: Build, stage: int, results: frozenset[int]) -> Build:
    """Returns a build from the stage before FuseOps."""
    options = compiled.options
    manager = PassManager(
        options.passes, options.opt_level, required=options.required, disabled=options.disabled
    )
    position = max(n for n, p in enumerate(manager.passes) if isinstance(p, FuseOps))
    fusion = manager.passes[position]
    assert isinstance(fusion, FuseOps)
    passes = (replace(fusion, results=results), *manager.passes[position + 1 :])
    names = tuple(p.name for p in passes)
    kept = replace(options, passes=passes, required=names, disabled=(), instruments=())
    return compiled.build_with(build.stages[stage - 1].module, kept)


def _compared(where: Whereabouts, there: Whereabouts, values: Sequence[LayerValue]) -> Forced:
    """Returns the changes to the kernels, compared by their keys."""
    cut = {where.refusal(v.layer, v.output).kernel for v in values}
    before, after = _keys(where), _keys(there)
    left = Counter(before.values()) - Counter(before[name] for name in cut)
    into = []
    for name, key in after.items():
        if left[key] > 0:
            left[key] -= 1
        else:
            into.append(name)
    unchanged = len(after) - len(into)
    changed = [n for n, key in before.items() if n not in cut and left[key] > 0]
    return Forced(tuple(sorted(cut)), tuple(into), unchanged, tuple(changed[: left.total()]))


def _keys(where: Whereabouts) -> dict[str, str]:
    """Returns the key of each kernel by name; the key identifies its code."""
    keys = {use.call.id: use.source.key for use in where.build.uses}
    return {
        name: keys.get(call) or structural_hash(function)
        for call, (name, function) in where.kernels.items()
    }
