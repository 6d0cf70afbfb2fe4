"""`clew.compile`."""

from __future__ import annotations

from clew import frontends
from clew.api.compiled_model import CompiledModel
from clew.backends.backend import Backend
from clew.backends.compile_options import AUTO, CompileOptions, keywords_of
from clew.compiling.compile import compile_as
from clew.compiling.extensions import extensions_of
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.support.exhausted import coded_exhaustion
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING


@coded_exhaustion
@keywords_of(CompileOptions)
def compile(
    model: Module | DeferredModule | frontends.ModelSource, options: CompileOptions
) -> CompiledModel:
    """Returns the model compiled for a target.

    `model` is a module from `clew.load`, a file, or an ONNX message or its bytes. The options are
    keywords. `sizes`, `precision`, `passes` and `limits` take a plain value (`precision="bf16"`) or
    a group of options (`precision=clew.Precision("bf16", keep_f32=["head*"])`).

    If the graph depends on values or shapes known only during a run (docs/deciding-inputs.md), the
    model is imported when it is called. A request that has no effect in this model is an error if
    it is an exact name or a required fusion. It is a `ClewWarning` if it may be meant for several
    models: a glob, a schedule, a pass (docs/names.md).

    Errors: I014 and I015 (options that do not exist, values of the wrong kind), I010 (target), I011
    (opt level), I012 (threads), I013 (precision), I020 (pass names), I084 and I176 (`extend`), I307
    (`keep_f32`), I310 (`inputs` of a module), I311 (`required` and `disabled`), I315 and I316
    (`sizes`), I320 (an index among constants), I321 (`bounds`), I340 (`links`), I350 to I358
    (`backends`, `place`), I380 to I382 (`tuned`), C070 (a backend that cannot compile a region),
    U020, U030 and U031 (a fusion that is illegal or does not match), C140 and C141 (`budgets`), and
    those of loading.
    """
    if isinstance(options.place, str) and options.place == AUTO:
        with LOADING, held_interrupts():
            from clew.placement.placing import placed_for_compile  # noqa: PLC0415

        options = options.changed(extend=extensions_of(options.extend))
        others = [*options.backends, *(x for x in options.extend if isinstance(x, Backend))]
        options = options.changed(place=placed_for_compile(model, others, options))
    return compile_as(CompiledModel, model, options)
