"""Models that the tests profile, compiled once, and a profile of each."""

from __future__ import annotations

import functools
from typing import Any

import clew
import zoo
from clew.api.compiled_model import CompiledModel
from clew.profile.report import Profile


@functools.cache
def compiled(name: str, threads: int = 1) -> CompiledModel:
    return clew.compile(clew.load(zoo.path(name)), threads=threads)


def arrays(name: str, **sizes: int) -> list[Any]:
    feed = zoo.inputs(name, **sizes)
    return [feed[n] for n in compiled(name).input_names]


@functools.cache
def profiled(name: str, mode: str = "fused") -> Profile:
    asked: Any = {"repeats": 3, "warmup": 1, "sample": 0.05, "roofline": False}
    return compiled(name).profile(*arrays(name), mode=mode, **asked)
