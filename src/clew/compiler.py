"""`compile`: a model to native code, as straight-line calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clew import frontends
from clew.build.build import Options
from clew.compiled import CompiledModel
from clew.ir.module import Module
from clew.passes.base import Pass
from clew.passes.fuse_ops import FuseOps
from clew.pipelines import pipeline
from clew.runtime.cache import Cache, default_cache
from clew.runtime.guard import GuardSide
from clew.runtime.threads import thread_count
from clew.support.errors import InputError
from clew.target import Target, target_of


def compile(
    model: Module | str | Path,
    target: str | Target = "cpu",
    *,
    threads: int | None = None,
    opt_level: int = 3,
    required: Sequence[str] = (),
    disabled: Sequence[str] = (),
    passes: Sequence[Pass] | None = None,
    fuse: str | None = "auto",
    instruments: Sequence[Any] = (),
    inputs: Mapping[str, Sequence[int]] | None = None,
    cache: bool = True,
    trace: bool = True,
    guard: bool | GuardSide = False,
    on_progress: Callable[[str], None] | None = None,
) -> CompiledModel:
    """Returns the model compiled for a target.

    `model` is a module from `clew.load`, or a file. `opt_level` 0 to 3 chooses passes (`passes`
    replaces the list, `required` and `disabled` name single ones); `fuse=None` puts each operator
    in a kernel of its own. `inputs` gives shapes for a file's symbolic inputs. `trace=False`
    records no lineage and changes no byte of code. `guard` runs every buffer behind guard pages
    (for tests), right at its end or start.

    Errors: I010 (target), I011 (opt level), I012 (threads), I020 (pass names), and those of
    loading.
    """
    machine = target_of(target)
    if opt_level not in (0, 1, 2, 3):
        raise InputError("I011", f"opt_level is {opt_level!r}", hint="it is 0, 1, 2 or 3")
    count = thread_count(threads)
    module = model if isinstance(model, Module) else frontends.load(model, inputs=inputs)
    chosen = list(passes) if passes is not None else pipeline(opt_level)
    if fuse is None:
        chosen = [FuseOps(mode="none") if isinstance(p, FuseOps) else p for p in chosen]
    options = Options(
        target=machine,
        threads=count,
        opt_level=opt_level,
        passes=tuple(chosen),
        required=tuple(required),
        disabled=tuple(disabled),
        instruments=tuple(instruments),
        trace=trace,
        guard=guard,
        on_progress=on_progress or (lambda text: None),
    )
    return CompiledModel(module, options, default_cache() if cache else Cache(None))
