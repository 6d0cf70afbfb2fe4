"""`clew.compile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from clew.api.compiled_model import CompiledModel
from clew.runtime.cache import default_cache
from clew.runtime.guard import GuardSide
from clew.runtime.threads import thread_count
from clew.serving.built_model import About
from clew.serving.start import Prepared, Start
from clew.serving.started import started
from clew.support.budgets import Budgets
from clew.support.errors import ClewError, noting_warnings
from clew.support.exhausted import coded_exhaustion
from clew.support.files import noting_reads
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING
from clew.support.size_ranges import GivenSize

if TYPE_CHECKING:  # the compiler's half
    from clew.backends.backend import Backend
    from clew.compiling.extensions import Extension
    from clew.frontends import ModelSource
    from clew.ir.deferred import DeferredModule
    from clew.ir.module import Module
    from clew.machine.target import Target
    from clew.passes.base import Pass


@coded_exhaustion
def compile(
    model: Module | DeferredModule | ModelSource,
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
) -> CompiledModel:
    """Returns the model compiled for a target.

    `model` is a module from `clew.load`, a file, or an ONNX message or its bytes. `opt_level` 0 to
    3 selects passes (`passes` replaces the list; `required` and `disabled` name single passes). A
    backend named in `required` must get part of the model. `fuse=None` puts each operator in its
    own kernel. `extend` adds passes (`graph_pass`), fusions (`fusion`), schedules (`schedule_for`),
    backends (`Backend`), and Python files that define these in a list `extend` or at top level.
    `precision` is the dtype of the operands of convolutions and matrix products: `f32`, `bf16`,
    `f16` (both summed in f32), or `auto`, which is `bf16` if the target has instructions for it.
    `keep_f32` names layers (or globs of them) that stay in f32. `inputs` gives shapes for a file's
    symbolic inputs and values for those with defaults, `links` selects the links to external data
    that are followed, and `trust` lets a file run code that it contains, all as for `clew.load`.
    `sizes` gives, by the names of free dimensions, the sizes to compile for: `(1, 512)` is a range,
    both ends included, that calls must keep; `[1, 8]` lists the sizes expected most, while others
    work too; `128` fixes the size; and `{"range": (1, 512), "likely": [128]}` combines the first
    two (docs/names.md). `specialize=False` never makes a build for sizes that are met often
    (`compiled.specialized`), so that equal inputs always give equal bits. `trace=False` records no
    lineage and does not change the generated code. `guard` places every buffer between guard pages
    (for tests), aligned to its end or start. `bounds` selects the treatment of values used as
    indices: with `check`, an index out of range ends the run with I320; with `clamp`, it is
    clamped. `budgets` limit the resources a file, its compilation and its runs may use
    (`Budgets.strict()` for untrusted files). If the graph depends on values or shapes known only
    during a run (docs/deciding-inputs.md), the model is imported when it is called. `backends` take
    regions of the graph before the CPU does: names, or objects (docs/adding-a-backend.md). `place`
    selects the parts: the first backend takes all operators that it can (`"first"`), or measured
    costs decide (`"auto"`, as `clew.place`), or layers by backend (`{"onnxruntime": ["conv*"]}`), a
    function of a call, a rule of `clew.partitioning`, or a result of `clew.place`. With `fallback`,
    a region that its backend fails to compile goes to the next one that takes it, or to the CPU,
    and one that it fails to run to the CPU, with a warning. `tuned` is the file with the records of
    `clew.tune`, whose best choices are applied: `auto` is the default file (`CLEW_TUNING`) if it
    exists, None uses no records (docs/tune.md).

    A model that was compiled before with the same options is loaded from the disk cache
    (docs/cache.md). What it does not need to run, such as its module and trace, is made when it is
    first read.

    A request that has no effect in this model is an error if it is an exact name or a required
    fusion. It is a `ClewWarning` if it may be meant for several models: a glob, a schedule, a pass
    (docs/names.md).

    Errors: I010 (target), I011 (opt level), I012 (threads), I013 (precision), I020 (pass names),
    I084 and I176 (`extend`), I307 (`keep_f32`), I310 (`inputs` of a module), I311 (`required` and
    `disabled`), I315 and I316 (`sizes`), I320 (an index among constants), I321 (`bounds`),
    I350 to I358 (`backends`, `place`), I380 to I382 (`tuned`), C070 (a backend that cannot compile
    a region), U020, U030 and U031 (a fusion that is illegal or does not match), C140 and C141
    (`budgets`), and those of loading.
    """
    options = {name: value for name, value in locals().items() if name not in ("model", "target")}
    start = _start(model, target, options)
    found = start.load() if start is not None else None
    if start is not None and found is not None:
        about = About(target, thread_count(threads), found.defaults)  # type: ignore[arg-type]
        again = partial(_prepared, start, model, target, options)
        return started(CompiledModel, found, about, specialize, again)
    with noting_reads() as reads, noting_warnings() as warned:
        made: CompiledModel = _cold().compiled(CompiledModel, model, target, **options)
    if start is not None:
        start.keep(made._chain, made.replaceable, reads, warned)
    return made


_USUAL: Final[dict[str, Any]] = compile.__wrapped__.__kwdefaults__  # type: ignore[attr-defined]


def _start(model: Any, target: Any, options: Mapping[str, Any]) -> Start | None:
    """Returns the place of the model's start in the cache, if it can have one."""
    try:
        count = thread_count(options["threads"])
        return Start.of(model, target, count, options, _USUAL, default_cache())
    except ClewError:  # the compilation reports it
        return None


def _prepared(start: Start, model: Any, target: Any, options: Mapping[str, Any]) -> Prepared:
    """Returns the module and options of a model that was started from the cache.

    Errors: C164 if they are not the same any more; those of loading.
    """
    model = start.given(model)
    start.check(_start(model, target, options))
    ready = _cold().prepared(model, target, **options)
    start.check(_start(model, target, options))
    return ready  # type: ignore[no-any-return]


def _cold() -> ModuleType:
    """Imports the compiler."""
    with LOADING, held_interrupts():
        from clew.api import cold  # noqa: PLC0415

    return cold
