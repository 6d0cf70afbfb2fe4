"""A model in f32 at opt level 0: the reference for the values of its other builds."""

from __future__ import annotations

from clew.backends.compile_options import CompileOptions
from clew.compiling.compile import build_model
from clew.pipelines import pipeline
from clew.serving.built_model import BuiltModel


def is_reference(model: BuiltModel) -> bool:
    """Whether a model was compiled in f32 at opt level 0, without extensions."""
    options = model.options
    plain = list(map(str, options.passes)) == list(map(str, pipeline(0)))
    return plain and not (options.opt_level or options.has_user_code or options.disabled)


def reference_of(model: BuiltModel) -> BuiltModel:
    """Returns the model compiled in f32 at opt level 0; the same model if it already is."""
    if is_reference(model):
        return model
    options = model.options
    given = CompileOptions(options.target, threads=options.threads, opt_level=0)
    return build_model(model.module, given)
