"""A model in f32 at opt level 0: the reference for the values of its other builds."""

from __future__ import annotations

from clew.compiled import CompiledModel
from clew.compiler import compile
from clew.pipelines import pipeline


def is_reference(model: CompiledModel) -> bool:
    """Whether a model was compiled in f32 at opt level 0, without extensions."""
    options = model.options
    plain = list(map(str, options.passes)) == list(map(str, pipeline(0)))
    return plain and not (options.opt_level or options.has_user_code or options.disabled)


def reference_of(model: CompiledModel) -> CompiledModel:
    """Returns the model compiled in f32 at opt level 0; the same model if it already is."""
    if is_reference(model):
        return model
    options = model.options
    return compile(model.module, options.target, threads=options.threads, opt_level=0)
