"""From a model's file and options to a `Session`, as the worker processes and `--get` do it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from clew.compiled import CompiledModel
from clew.compiler import compile
from clew.explorer.actions.table import Say
from clew.explorer.schema import Options
from clew.explorer.session import Session
from clew.frontends import load
from clew.ir.module import Module
from clew.runtime.drawing import draw, settled, sizes_of

# How much of the work is behind when a step begins, and what its text begins with. Shares are those
# of a network compiled without the cache; within the kernels nothing is known of the end.
_STEPS: Final = (("graph passes", 0.05), ("kernel", None), ("linking", 0.85))

Arrays: TypeAlias = dict[str, Any]


def compile_options(options: Options) -> dict[str, Any]:
    """Returns options of a build as the arguments of `clew.compile`."""
    return {
        "target": options.target,
        "threads": options.threads,
        "opt_level": options.opt_level,
        "precision": options.precision,
        "fuse": "auto" if options.fuse else None,
        "disabled": list(options.disabled),
        "required": list(options.required),
        "keep_f32": list(options.keep_f32),
    }


def load_model(path: Path, shapes: Mapping[str, list[int]]) -> Module:
    """Returns a model's module; `shapes` are those of inputs.

    Errors: those of loading.
    """
    given: dict[str, Any] = {"inputs": shapes} if shapes else {}
    return load(path, **given)


def open_session(
    path: Path, model: str, options: Options, say: Say, *, cache: bool = True
) -> Session:
    """Returns a session on a model's file, compiled and with its trace read. `model` is its name.

    Errors: those of loading and compiling; I061 for inputs with named sizes that no shape is given
    for.
    """
    say(f"reading {model}", 0.0)
    start = time.perf_counter()
    module = load_model(path, options.shapes)
    loaded = time.perf_counter()

    def on_progress(text: str) -> None:
        say(text, next((share for head, share in _STEPS if text.startswith(head)), None))

    compiled = compile(module, **compile_options(options), cache=cache, on_progress=on_progress)
    for wanted in compiled.inputs:
        settled(wanted, {})
    say("building", None)
    compiled.build  # noqa: B018 - one that the cache had whole is built here
    done = time.perf_counter()
    seconds = {"load": loaded - start, "compile": done - loaded}
    session = Session(compiled, model=model, path=path, options=options, seconds=seconds)
    say("reading the trace", 0.9)
    session.numbers  # noqa: B018 - made while the page still shows progress
    return session


def drawn_inputs(compiled: CompiledModel, seed: int = 0) -> Arrays:
    """Returns inputs drawn for a compiled model, by name."""
    return draw(compiled.inputs, {}, seed, sizes_of(compiled.inputs, {}))
