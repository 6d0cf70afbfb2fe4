"""A model in f32 at opt level 0: what the values of its other builds are held against."""

from __future__ import annotations

from clew.compiled import CompiledModel
from clew.compiler import compile
from clew.pipelines import pipeline


def is_reference(model: CompiledModel) -> bool:
    """Whether a model was compiled in f32 at opt level 0, with nothing added."""
    options = model.options
    plain = list(map(str, options.passes)) == list(map(str, pipeline(0)))
    return plain and not (options.opt_level or options.has_user_code or options.disabled)


def reference_of(model: CompiledModel) -> CompiledModel:
    """Returns the model compiled so; itself where it is that already."""
    if is_reference(model):
        return model
    options = model.options
    return compile(model.module, options.target, threads=options.threads, opt_level=0)
