"""From a model's file and options to a `Session`, as the worker processes and `--get` do it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from clew.compiler import compile
from clew.explorer.actions.table import Say
from clew.explorer.schema import Options
from clew.explorer.session import Session
from clew.frontends import load
from clew.ir.module import Module
from clew.runtime.drawing import settled

# How much of the work is behind when a step begins: shares of a network compiled without the cache.
_PASSES, _KERNELS, _LINKING, _TRACE = 0.05, 0.2, 0.85, 0.9
_KERNEL: Final = re.compile(r"kernel (\d+) of (\d+)")


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
        say(text, _fraction(text))

    compiled = compile(module, **compile_options(options), cache=cache, on_progress=on_progress)
    for wanted in compiled.inputs:
        settled(wanted, {})
    compiled.build  # noqa: B018 - one that the cache had whole is built here
    done = time.perf_counter()
    seconds = {"load": loaded - start, "compile": done - loaded}
    session = Session(compiled, model=model, path=path, options=options, seconds=seconds)
    say("reading the trace", _TRACE)
    session.numbers  # noqa: B018 - made while the page still shows progress
    return session


def _fraction(text: str) -> float | None:
    """Returns how much of compiling is done, from what `clew.compile` says that it does."""
    kernel = _KERNEL.match(text)
    if kernel is not None:
        return _KERNELS + (_LINKING - _KERNELS) * (int(kernel[1]) - 1) / int(kernel[2])
    return {"graph passes": _PASSES, "linking": _LINKING}.get(text)
