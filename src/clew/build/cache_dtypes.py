"""Sets the dtype of a model's caches to the user's choice (`cache_dtype`)."""

from __future__ import annotations

from typing import Final, overload

from clew.build.inputs import form_of, inputs_of, outputs_of
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.ir.state import states_of
from clew.passes.narrow_caches import CODES, SCALE_SUFFIX, with_narrow_caches
from clew.runtime.state import pair_names, pairs_of
from clew.support.errors import InputError

_DTYPES: Final = {"int8": CODES}
"""The dtypes of elements whose option has another name."""


@overload
def with_cache_dtype(module: Module, dtype: str | None) -> Module: ...
@overload
def with_cache_dtype(
    module: Module | DeferredModule, dtype: str | None
) -> Module | DeferredModule: ...
def with_cache_dtype(module: Module | DeferredModule, dtype: str | None) -> Module | DeferredModule:
    """Returns the model with its growing caches in a dtype; None leaves them unchanged.

    Errors: I496 if the model has no float caches that are extended by a concatenation and can be
    identified by name.
    """
    if dtype is None:
        return module
    if not isinstance(module, Module):
        raise _no_caches(dtype, "the model's graph depends on values or shapes of a run")
    if form_of(module) is not None:
        raise _no_caches(dtype, "the model's inputs are parts of nested values")
    pairs = pair_names(pairs_of(inputs_of(module), outputs_of(module)))
    if any(state.output for state in states_of(module).values()):
        raise _no_caches(dtype, "the model declares its states itself")
    elements = _DTYPES.get(dtype, dtype)
    made, count = with_narrow_caches(module, pairs, elements)
    held = [p for p in module.main.params if p.name in dict(pairs)]
    if not count and not any(p.tensor.dtype == elements for p in held):
        raise _no_caches(dtype, "the model has no suitable growing state that its name identifies")
    after = dict(pair_names(pairs_of(inputs_of(made), outputs_of(made))))
    new = {p.name for p in made.main.params} - {p.name for p in module.main.params}
    if not {*dict(pairs), *new} <= after.keys():
        lost = min({*dict(pairs), *new} - after.keys()).removesuffix(SCALE_SUFFIX)
        raise _no_caches(dtype, f"the name of {lost!r} does not identify its output")
    return made


def _no_caches(dtype: str, why: str) -> InputError:
    return InputError(
        "I496",
        f"cache_dtype={dtype!r} has no effect: {why}",
        hint="it applies to float caches that a concatenation extends (int8: f32 caches); see "
        "docs/language-models.md",
    )
