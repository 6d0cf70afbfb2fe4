"""Requests of a user that had no effect: unknown names, and fusions and schedules that fit nothing.

An exact name that the model lacks is an error, since it must be meant for this model. A required
fusion that fits nothing is an error, too. Globs, schedules and passes may be written for several
models, so these give a warning (`clew.ClewWarning`). If the graph depends on a run's inputs, one
build may lack names that another has; unknown names are then warnings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clew.backends.cpu.schedule_choice import ScheduleFor
from clew.ir.expr import Call
from clew.ir.module import Module
from clew.ir.regions import regions_of
from clew.ir.visit import post_order
from clew.passes.base import Pass, Unmet
from clew.passes.fusion.mark_fusions import Fusion, MarkFusions
from clew.passes.precision.convert_precision import ConvertPrecision
from clew.support.errors import ClewError, ClewWarning, InputError, UnsupportedError, warn
from clew.support.near import did_you_mean, fitting, is_glob, listed
from clew.trace.stages import StageRecord


def tell(unmet: Iterable[Unmet], told: set[str]) -> None:
    """Raises the first request that is an error; otherwise warns of each, once per text."""
    wishes = list(unmet)
    for wish in wishes:
        if isinstance(wish, ClewError):
            raise wish
    for wish in wishes:
        if isinstance(wish, ClewWarning) and wish.message not in told:
            told.add(wish.message)
            warn(wish)


def layers_of(module: Module) -> dict[str, str]:
    """Returns the layers of a module by name; for layers that the import removed, the reason."""
    functions = [function for _, function in module]
    nodes = post_order(functions, into_functions=True)
    found = dict.fromkeys((la for n in nodes for la in n.span.layers), "")
    for name, _, reason in module.main.attrs.get("eliminated", ()):
        found.setdefault(name, reason)
    return found


def unknown_layers(
    names: Iterable[str], module: Module, option: str, *, certain: bool = True
) -> list[Unmet]:
    """Returns the names and globs of an option that fit no layer. `certain` means that the model
    has no other graph.
    """
    wanted = list(names)
    if not wanted:
        return []
    layers = layers_of(module)
    found: list[Unmet] = []
    for name in wanted:
        if fitting(name, layers):
            continue
        text = f"{name!r} in {option} fits no layer of the model"
        hint = did_you_mean(name, layers, "layers")
        if certain and not is_glob(name):
            found.append(InputError("I307", text, hint=hint))
        else:
            found.append(ClewWarning("I307", text, hint=hint))
    return found


def kept_layers(passes: Iterable[Pass]) -> list[str]:
    """Returns the names of layers that passes are to leave in f32."""
    return [n for p in passes if isinstance(p, ConvertPrecision) for n in p.keep_f32]


def lost_regions(stages: Sequence[StageRecord], passes: Iterable[Pass]) -> list[Unmet]:
    """Returns the required fusions whose operators other passes removed before FuseRegions."""
    fusions = {f.name: f for p in passes if isinstance(p, MarkFusions) for f in p.fusions}
    if not fusions:
        return []
    ends = [n for n, s in enumerate(stages) if s.name == "FuseRegions"]
    starts = [n for n, s in enumerate(stages) if s.name == "MarkFusions"]
    if not ends or not starts:
        return []
    start, end = starts[0], ends[0] - 1
    left = _regions(stages[end].module)
    found: list[Unmet] = []
    for region, layers in _regions(stages[start].module).items():
        fusion = fusions.get(region.rpartition("/")[0])
        if fusion is not None and fusion.required and region not in left:
            found.append(_lost(region, layers, stages[start : end + 1], fusion))
    return found


def _lost(
    region: str, layers: Sequence[str], stages: Sequence[StageRecord], fusion: Fusion
) -> UnsupportedError:
    taker = next(s.name for s in stages if region not in _regions(s.module))
    return UnsupportedError(
        "U031",
        f"nothing is left of {region} to fuse: {taker} took its operators ({listed(layers, 4)})",
        hint=f"compile with passes=clew.Passes(disabled=[{taker!r}]), or pass required=False to "
        f"{fusion.name}",
        layer=listed(layers, 4),
    )


def _regions(module: Module) -> dict[str, list[str]]:
    """Returns the regions of a module's operators, and their layers."""
    found: dict[str, dict[str, None]] = {}
    functions = [function for _, function in module]
    for node in post_order(functions, into_functions=True):
        if isinstance(node, Call):
            for region in regions_of(node):
                found.setdefault(region, {}).update(dict.fromkeys(node.layers))
    return {region: list(layers) for region, layers in found.items()}


def idle_schedules(
    schedules: Iterable[ScheduleFor], used: Iterable[int], kernels: Mapping[str, Sequence[str]]
) -> list[Unmet]:
    """Returns the schedules that fit no kernel. `used` are the ids of schedules that fit one, and
    `kernels` holds the operators of each kernel by name.
    """
    known = set(used)
    ops = list(dict.fromkeys(op for names in kernels.values() for op in names))
    found: list[Unmet] = []
    for schedule in schedules:
        if id(schedule) in known or schedule.fusion or not schedule.required:
            continue
        if schedule.kernel and not fitting(schedule.kernel, kernels):
            hint = did_you_mean(schedule.kernel, kernels, "kernels")
        elif missing := [op for op in schedule.ops if op not in ops]:
            close = did_you_mean(missing[0], ops, "operators")
            hint = f"no kernel holds {listed(missing)}: {close}"
        else:
            hint = "no kernel meets all its conditions at once"
        text = f"the schedule {schedule.name} ({schedule.condition}) is for no kernel of the model"
        found.append(ClewWarning("I309", text, hint=hint))
    return found
