"""Compiles a model to native code, as straight-line calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from clew import frontends
from clew.backends.backend import Backend
from clew.backends.compile_options import (
    DEFAULTS,
    CompileOptions,
    Diagnostics,
    Limits,
    Passes,
    Precision,
    Sizes,
)
from clew.backends.options import Options
from clew.backends.registry import backends_of
from clew.build.cache_dtypes import with_cache_dtype
from clew.build.sizes import sized
from clew.build.wishes import kept_layers, tell, unknown_layers
from clew.compiling.applied_records import with_records
from clew.compiling.extensions import extended, extensions_of
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.machine.target import target_of
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
from clew.runtime.threads import thread_count
from clew.serving.built_model import BuiltModel
from clew.serving.from_module import model_of
from clew.support.bounds import bounds_in_force
from clew.support.budgets import in_force
from clew.support.collection import old_at_the_end
from clew.support.errors import ClewWarning, InputError
from clew.support.exhausted import coded_exhaustion

M = TypeVar("M")


@coded_exhaustion
def compile_as(
    make: Callable[..., M],
    model: Module | DeferredModule | frontends.ModelSource,
    asked: CompileOptions = DEFAULTS,
) -> M:
    """Returns what `make` makes of a module, `Options` and a cache, given the options of
    `clew.compile`; `place` must not be `auto`, which the caller resolves.

    Errors: as `clew.compile`.
    """
    with old_at_the_end():
        return _made(make, model, asked)


def _made(
    make: Callable[..., M],
    model: Module | DeferredModule | frontends.ModelSource,
    asked: CompileOptions,
) -> M:
    machine = target_of(asked.target)
    extend = extensions_of(asked.extend)
    count = thread_count(asked.threads)
    about, limits = asked.group(Passes), asked.group(Limits)
    precision = asked.group(Precision)
    keep_f32 = precision.keep_f32
    given: Sequence[Backend | str] = [
        *asked.backends,
        *(x for x in extend if isinstance(x, Backend)),
    ]
    rule = rule_of(asked.place)
    placement = asked.place if hasattr(asked.place, "rule") else None
    given = given or rule.backends
    others = tuple(b.at_threads(count) for b in backends_of(given))
    check_rule(rule, others)
    chosen = passes_for(asked, others, rule)
    with in_force(limits.budgets), bounds_in_force(limits.bounds):
        if isinstance(model, (Module, DeferredModule)):
            module = model
        else:
            module = frontends.load_or_defer(model, **asked.loading)
    if isinstance(model, (Module, DeferredModule)) and asked.inputs:
        raise InputError(
            "I310",
            "inputs= gives shapes for a file, but the model is already loaded",
            hint="pass them to clew.load(file, inputs={...})",
        )
    if isinstance(model, (Module, DeferredModule)) and asked.signature:
        raise InputError(
            "I310",
            "signature= chooses a part of a file, but the model is already loaded",
            hint=f"pass it to clew.load(file, signature={asked.signature!r})",
        )
    chosen, required = _requiring(chosen, about.required, [b.name for b in others])
    chosen, schedules = extended(chosen, extend)
    defaults = module.defaults
    sizes = asked.group(Sizes)
    with in_force(limits.budgets), bounds_in_force(limits.bounds):
        module = with_cache_dtype(module, precision.cache_dtype)
        module, ranges = sized(module, sizes.sizes)
    replaced = about.passes is not None
    _check_names(module, chosen, keep_f32, required, about.disabled, rule, replaced=replaced)
    if others and not any(isinstance(p, PartitionGraph) for p in chosen):
        text = (
            "backends have no effect: passes= replaces the list, and no pass in it places regions"
        )
        hint = "take pipeline(backends=[...]), or add the passes of clew.partitioning"
        tell([ClewWarning("I312", text, hint=hint)], set())
    store = default_cache() if asked.cache else Cache(None)
    if not replaced:
        chosen = with_records(chosen, asked.tuned, machine, count, store, limits.bounds, schedules)
    diagnostics = asked.group(Diagnostics)
    options = Options(
        target=machine,
        threads=count,
        opt_level=asked.opt_level,
        passes=tuple(chosen),
        schedules=tuple(schedules),
        required=tuple(required),
        disabled=tuple(about.disabled),
        instruments=tuple(about.instruments),
        trace=diagnostics.trace,
        guard=diagnostics.guard,
        bounds=limits.bounds,
        on_progress=asked.on_progress or (lambda text: None),
        budgets=limits.budgets,
        backends=others,
        fallback=asked.fallback,
        sizes=ranges,
        specialize=sizes.specialize,
        placement=placement,
        asked=asked,
    )
    if defaults is not None:
        again, dtype = defaults.with_inputs, precision.cache_dtype
        defaults = replace(
            defaults,
            with_inputs=lambda names: sized(with_cache_dtype(again(names), dtype), sizes.sizes)[0],
        )
    return make(module, options, store, defaults=defaults)


def build_model(
    model: Module | DeferredModule | frontends.ModelSource,
    options: CompileOptions = DEFAULTS,
) -> BuiltModel:
    """Returns a compiled model for use inside clew."""
    return compile_as(partial(model_of, BuiltModel), model, options)


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
    options: CompileOptions = DEFAULTS,
    backends: Sequence[Backend] = (),
    place: Rule = FIRST,
) -> list[Pass]:
    """Returns the passes that options select, without those of `extend`."""
    about, precision = options.group(Passes), options.group(Precision)
    if about.passes is not None:
        chosen = list(about.passes)
    else:
        chosen = pipeline(
            options.opt_level,
            precision.precision,
            precision.keep_f32,
            target=target_of(options.target),
            backends=backends,
            place=place,
        )
    if not about.fuse:
        chosen = [FuseOps(mode="none") if isinstance(p, FuseOps) else p for p in chosen]
    return chosen
