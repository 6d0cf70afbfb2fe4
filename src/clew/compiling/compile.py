"""Compiles a model to native code, as straight-line calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from clew import frontends
from clew.backends.backend import Backend
from clew.backends.options import Options
from clew.backends.registry import backends_of
from clew.build.sizes import sized
from clew.build.wishes import kept_layers, tell, unknown_layers
from clew.compiling.applied_records import with_records
from clew.compiling.extensions import Extension, extended, extensions_of
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.machine.target import Target, target_of
from clew.partitioning import check_rule, rule_of
from clew.passes.base import Pass, Unmet
from clew.passes.fusion.fuse_ops import FuseOps
from clew.passes.manager import unknown_pass
from clew.passes.placement.annotate_target import AnnotateTarget
from clew.passes.placement.partition_graph import PartitionGraph
from clew.passes.placement.rules import FIRST, Rule
from clew.passes.specialize import Specialize
from clew.pipelines import pipeline
from clew.runtime.cache import Cache, default_cache
from clew.runtime.guard import GuardSide
from clew.runtime.threads import thread_count
from clew.serving.built_model import BuiltModel
from clew.serving.from_module import model_of
from clew.support.bounds import bounds_in_force, check_bounds
from clew.support.budgets import Budgets, in_force
from clew.support.collection import collected_at_the_end
from clew.support.errors import ClewWarning, InputError
from clew.support.exhausted import coded_exhaustion
from clew.support.size_ranges import GivenSize

M = TypeVar("M")
PRECISIONS: Final = ("f32", "bf16", "f16", "auto")


@coded_exhaustion
def compile_as(
    make: Callable[..., M],
    model: Module | DeferredModule | frontends.ModelSource,
    target: str | Target = "cpu",
    *,
    threads: int | None = None,
    opt_level: int = 3,
    precision: str = "f32",
    keep_f32: Sequence[str] = (),
    required: Sequence[str] = (),
    disabled: Sequence[str] = (),
    passes: Sequence[Pass] | None = None,
    extend: Sequence[Extension | str | Path] = (),
    fuse: str | None = "auto",
    instruments: Sequence[Any] = (),
    inputs: Mapping[str, Sequence[int]] | None = None,
    sizes: Mapping[str, GivenSize] | None = None,
    specialize: bool = True,
    links: str | None = None,
    trust: bool | None = None,
    cache: bool = True,
    trace: bool = True,
    guard: bool | GuardSide = False,
    bounds: str = "check",
    on_progress: Callable[[str], None] | None = None,
    budgets: Budgets | None = None,
    backends: Sequence[Backend | str] = (),
    place: Any = None,
    fallback: bool = False,
    tuned: str | Path | None = "auto",
) -> M:
    """Returns what `make` makes of a module, `Options` and a cache, given the arguments of
    `clew.compile`; `place` must not be `auto`, which the caller resolves.

    Errors: as `clew.compile`.
    """
    machine = target_of(target)
    extend = extensions_of(extend)
    count = thread_count(threads)
    given: Sequence[Backend | str] = [*backends, *(x for x in extend if isinstance(x, Backend))]
    rule = rule_of(place)
    placement = place if hasattr(place, "rule") else None
    given = given or rule.backends
    others = tuple(b.at_threads(count) for b in backends_of(given))
    check_rule(rule, others)
    chosen = passes_for(machine, opt_level, precision, keep_f32, fuse, passes, others, rule)
    with in_force(budgets), bounds_in_force(check_bounds(bounds)):
        if isinstance(model, (Module, DeferredModule)):
            module = model
        else:
            module = frontends.load_or_defer(model, inputs=inputs, links=links, trust=trust)
    if isinstance(model, (Module, DeferredModule)) and inputs:
        raise InputError(
            "I310",
            "inputs= gives shapes for a file, but the model is already loaded",
            hint="pass them to clew.load(file, inputs={...})",
        )
    chosen, required = _requiring(chosen, required, [b.name for b in others])
    chosen, schedules = extended(chosen, extend)
    defaults = module.defaults
    with in_force(budgets), bounds_in_force(bounds):
        module, ranges = sized(module, sizes)
    _check_names(module, chosen, keep_f32, required, disabled, rule, replaced=passes is not None)
    if others and not any(isinstance(p, PartitionGraph) for p in chosen):
        text = (
            "backends have no effect: passes= replaces the list, and no pass in it places regions"
        )
        hint = "take pipeline(backends=[...]), or add the passes of clew.partitioning"
        tell([ClewWarning("I312", text, hint=hint)], set())
    store = default_cache() if cache else Cache(None)
    if passes is None:
        chosen = with_records(chosen, tuned, machine, count, store, bounds, schedules)
    options = Options(
        target=machine,
        threads=count,
        opt_level=opt_level,
        passes=tuple(chosen),
        schedules=tuple(schedules),
        required=tuple(required),
        disabled=tuple(disabled),
        instruments=tuple(instruments),
        trace=trace,
        guard=guard,
        bounds=bounds,
        on_progress=on_progress or (lambda text: None),
        budgets=budgets,
        backends=others,
        fallback=fallback,
        sizes=ranges,
        specialize=specialize,
        placement=placement,
    )
    if defaults is not None:
        again = defaults.with_inputs
        defaults = replace(defaults, with_inputs=lambda names: sized(again(names), sizes)[0])
    with collected_at_the_end():
        return make(module, options, store, defaults=defaults)


def build_model(
    model: Module | DeferredModule | frontends.ModelSource,
    target: str | Target = "cpu",
    **options: Any,
) -> BuiltModel:
    """Returns a model compiled with options of `clew.compile`, for use inside clew."""
    return compile_as(partial(model_of, BuiltModel), model, target, **options)


def _requiring(
    passes: Sequence[Pass], required: Sequence[str], backends: Sequence[str]
) -> tuple[list[Pass], list[str]]:
    """Returns the passes that report an error if one of the required backends gets nothing, and the
    other required names, which are those of passes.
    """
    needed = tuple(name for name in required if name in backends)
    rest = [name for name in required if name not in backends]
    return [
        replace(p, required=needed) if needed and isinstance(p, AnnotateTarget) else p
        for p in passes
    ], rest


def _check_names(
    module: Module | DeferredModule,
    passes: Sequence[Pass],
    keep_f32: Sequence[str],
    required: Sequence[str],
    disabled: Sequence[str],
    place: Rule,
    *,
    replaced: bool,
) -> None:
    """Checks the names that can be checked before a build.

    Errors: I020 (no such pass), I307 (no such layer), I311 (a pass both required and disabled).
    """
    known = [Specialize.__name__, *(p.name for p in passes)]
    unknown = [name for name in (*required, *disabled) if name not in known]
    if unknown:
        raise unknown_pass(unknown, known)
    both = [name for name in required if name in disabled]
    if both:
        raise InputError(
            "I311", f"{both[0]} is both required and disabled", hint="name it in one of the two"
        )
    unmet: list[Unmet] = []
    if keep_f32 and replaced and not kept_layers(passes):
        text = "keep_f32 has no effect: passes= replaces the list, and no pass in it narrows"
        unmet.append(ClewWarning("I312", text, hint="add ConvertPrecision(dtype, keep_f32)"))
    if isinstance(module, Module):
        names = dict.fromkeys((*keep_f32, *kept_layers(passes)))
        unmet += unknown_layers(names, module, "keep_f32")
        unmet += unknown_layers(place.named_layers, module, "place")
    tell(unmet, set())


def passes_for(
    target: Target,
    opt_level: int = 3,
    precision: str = "f32",
    keep_f32: Sequence[str] = (),
    fuse: str | None = "auto",
    passes: Sequence[Pass] | None = None,
    backends: Sequence[Backend] = (),
    place: Rule = FIRST,
) -> list[Pass]:
    """Returns the passes that these arguments of `compile` select, without those of `extend`.

    Errors: I011, I013.
    """
    if opt_level not in (0, 1, 2, 3):
        raise InputError("I011", f"opt_level is {opt_level!r}", hint="it is 0, 1, 2 or 3")
    if precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise InputError("I013", f"no precision {precision!r}", hint=f"it is one of {known}")
    if passes is not None:
        chosen = list(passes)
    else:
        chosen = pipeline(
            opt_level, precision, keep_f32, target=target, backends=backends, place=place
        )
    if fuse is None:
        chosen = [FuseOps(mode="none") if isinstance(p, FuseOps) else p for p in chosen]
    return chosen
