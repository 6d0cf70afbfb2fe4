"""The dtype in which a model's caches are stored, if a user chooses it."""

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
"""The dtypes of elements, where the names of options differ."""


@overload
def with_cache_dtype(module: Module, dtype: str | None) -> Module: ...
@overload
def with_cache_dtype(
    module: Module | DeferredModule, dtype: str | None
) -> Module | DeferredModule: ...
def with_cache_dtype(module: Module | DeferredModule, dtype: str | None) -> Module | DeferredModule:
    """Returns the model with its growing caches in a dtype; None leaves them as they are.

    Errors: I496 if the model has no caches of floats that names identify and a concatenation
    extends.
    """
    if dtype is None:
        return module
    if not isinstance(module, Module):
        raise _no_caches(dtype, "its graph depends on values or shapes of a run")
    if form_of(module) is not None:
        raise _no_caches(dtype, "its inputs are parts of nested values")
    pairs = pair_names(pairs_of(inputs_of(module), outputs_of(module)))
    if any(state.output for state in states_of(module).values()):
        raise _no_caches(dtype, "it declares the first values of its states")
    elements = _DTYPES.get(dtype, dtype)
    made, count = with_narrow_caches(module, pairs, elements)
    held = [p for p in module.main.params if p.name in dict(pairs)]
    if not count and not any(p.tensor.dtype == elements for p in held):
        raise _no_caches(dtype, "it has no growing state that names identify")
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
        hint="it stores caches that a model extends by a concatenation (docs/sessions.md)",
    )
