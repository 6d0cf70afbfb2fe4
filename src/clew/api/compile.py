"""`clew.compile`."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from clew.api.compiled_model import CompiledModel
from clew.backends.compile_options import CompileOptions, Sizes, keywords_of
from clew.runtime.cache import default_cache
from clew.runtime.threads import thread_count
from clew.serving.built_model import About
from clew.serving.start import Prepared, Start
from clew.serving.started import started
from clew.support.collection import no_collections_of_imports
from clew.support.errors import ClewError, noting_warnings
from clew.support.exhausted import coded_exhaustion
from clew.support.files import noting_reads
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING

if TYPE_CHECKING:  # the compiler's half
    from clew.frontends import ModelSource
    from clew.ir.deferred import DeferredModule
    from clew.ir.module import Module


def _check_model(model: Any) -> None:
    """Errors: I002 for an object that is no model; a file is not opened."""
    _cold().check_object(model)


@coded_exhaustion
@keywords_of(CompileOptions, _check_model)
def compile(model: Module | DeferredModule | ModelSource, options: CompileOptions) -> CompiledModel:
    """Returns the model compiled for a target.

    `model` is a module from `clew.load`, a file, or an ONNX message or its bytes. The options are
    keywords. `sizes`, `precision`, `passes` and `limits` take a plain value (`precision="bf16"`) or
    a group of options (`precision=clew.Precision("bf16", keep_f32=["head*"])`). An option of a
    group may also be given by its own name (`keep_f32=["head*"]`).

    A file that was compiled before with the same options is loaded from the disk cache
    (docs/cache.md). What it does not need to run, such as its module and trace, is made when it is
    first read.

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
    start = _start(model, options)
    found = start.load() if start is not None else None
    if start is not None and found is not None:
        about = About(str(options.target), thread_count(options.threads), options, found.defaults)
        again = partial(_prepared, start, model, options)
        return started(CompiledModel, found, about, options.group(Sizes).specialize, again)
    with noting_reads() as reads, noting_warnings() as warned:
        _warm_up()
        made: CompiledModel = _cold().compiled(CompiledModel, model, options)
    if start is not None:
        start.keep(made._chain, made.replaceable, reads, warned)
    return made


def _start(model: Any, options: CompileOptions) -> Start | None:
    """Returns the place of the model's start in the cache, if it can have one."""
    try:
        return Start.of(model, options, default_cache())
    except ClewError:  # the compilation reports it
        return None


def _prepared(start: Start, model: Any, options: CompileOptions) -> Prepared:
    """Returns the module and options of a model that was started from the cache.

    Errors: C164 if they are not the same any more; those of loading.
    """
    model = start.given(model)
    start.check(_start(model, options))
    ready = _cold().prepared(model, options)
    start.check(_start(model, options))
    return ready  # type: ignore[no-any-return]


def _warm_up() -> None:
    """Starts workers, which import the compiler while this process does."""
    with LOADING, held_interrupts(), no_collections_of_imports():
        from clew.backends.cpu.kernel_workers import warm_up  # noqa: PLC0415

        warm_up()


def _cold() -> ModuleType:
    """Imports the compiler."""
    with LOADING, held_interrupts(), no_collections_of_imports():
        from clew.api import cold  # noqa: PLC0415

    return cold
