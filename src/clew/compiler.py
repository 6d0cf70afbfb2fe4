"""`compile`: a model to native code, as straight-line calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from clew import frontends
from clew.build.build import Options
from clew.compiled import CompiledModel
from clew.extensions import Extension, extended
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.passes.base import Pass
from clew.passes.fuse_ops import FuseOps
from clew.pipelines import pipeline
from clew.runtime.cache import Cache, default_cache
from clew.runtime.guard import GuardSide
from clew.runtime.threads import thread_count
from clew.support.budgets import Budgets, in_force
from clew.support.errors import InputError
from clew.target import Target, target_of

PRECISIONS: Final = ("f32", "bf16", "f16", "auto")


def compile(
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
    extend: Sequence[Extension] = (),
    fuse: str | None = "auto",
    instruments: Sequence[Any] = (),
    inputs: Mapping[str, Sequence[int]] | None = None,
    cache: bool = True,
    trace: bool = True,
    guard: bool | GuardSide = False,
    on_progress: Callable[[str], None] | None = None,
    budgets: Budgets | None = None,
) -> CompiledModel:
    """Returns the model compiled for a target.

    `model` is a module from `clew.load`, a file, or an ONNX message or its bytes. `opt_level` 0 to
    3 chooses passes (`passes` replaces the list, `required` and `disabled` name single ones);
    `fuse=None` puts each operator in a kernel of its own. `extend` has what you add: passes
    (`graph_pass`), fusions (`fusion`) and schedules (`schedule_for`). `precision` is what
    convolutions and matrix products multiply in: `f32`, `bf16`, `f16` (both summed in f32), or
    `auto`, `bf16` where the target has instructions for it; `keep_f32` names layers (or globs of
    them) to leave alone. `inputs` gives shapes for a file's symbolic inputs. `trace=False` records
    no lineage and changes no byte of code. `guard` runs every buffer behind guard pages (for
    tests), right at its end or start. `budgets` bound what a file, its compilation and its runs may
    ask for (`Budgets.strict()` for files from anywhere). Where values or shapes that only a run
    tells decide what graph a file holds (docs/deciding-inputs.md), it is imported when it is
    called.

    Errors: I010 (target), I011 (opt level), I012 (threads), I013 (precision), I020 (pass names),
    I084 (`extend`), U020 (a fusion that is not legal), C140 and C141 (`budgets`), and those of
    loading.
    """
    machine = target_of(target)
    chosen = passes_for(machine, opt_level, precision, keep_f32, fuse, passes)
    count = thread_count(threads)
    with in_force(budgets):
        if isinstance(model, (Module, DeferredModule)):
            module = model
        else:
            module = frontends.load_or_defer(model, inputs=inputs)
    chosen, schedules = extended(chosen, extend)
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
        on_progress=on_progress or (lambda text: None),
        budgets=budgets,
    )
    return CompiledModel(module, options, default_cache() if cache else Cache(None))


def passes_for(
    target: Target,
    opt_level: int = 3,
    precision: str = "f32",
    keep_f32: Sequence[str] = (),
    fuse: str | None = "auto",
    passes: Sequence[Pass] | None = None,
) -> list[Pass]:
    """Returns the passes that these arguments of `compile` ask for, before what `extend` adds.

    Errors: I011, I013.
    """
    if opt_level not in (0, 1, 2, 3):
        raise InputError("I011", f"opt_level is {opt_level!r}", hint="it is 0, 1, 2 or 3")
    dtype = _narrowed(precision, target)
    chosen = list(passes) if passes is not None else pipeline(opt_level, dtype, keep_f32)
    if fuse is None:
        chosen = [FuseOps(mode="none") if isinstance(p, FuseOps) else p for p in chosen]
    return chosen


def _narrowed(precision: str, target: Target) -> str:
    """Returns the dtype that products are to be of.

    Errors: I013.
    """
    if precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise InputError("I013", f"no precision {precision!r}", hint=f"it is one of {known}")
    if precision != "auto":
        return precision
    return "bf16" if target.multiplies_bf16 else "f32"
