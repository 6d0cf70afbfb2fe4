"""The sizes that a user gives for the free dimensions of a model, before it is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

from clew.build.inputs import declared_inputs, inputs_of
from clew.ir.deferred import DeferredModule
from clew.ir.expr import Function
from clew.ir.module import Module
from clew.ir.own_sizes import SIZE_RULES, own_sizes_of, size_rules_attribute, size_rules_of
from clew.passes.specialize import with_sizes
from clew.runtime.input_spec import InputSpec, free_sizes
from clew.support.errors import InputError
from clew.support.near import listed, near
from clew.support.size_ranges import GivenSize, SizeRanges, read_sizes


@overload
def sized(module: Module, given: Mapping[str, GivenSize] | None) -> tuple[Module, SizeRanges]: ...
@overload
def sized(
    module: Module | DeferredModule, given: Mapping[str, GivenSize] | None
) -> tuple[Module | DeferredModule, SizeRanges]: ...
def sized(
    module: Module | DeferredModule, given: Mapping[str, GivenSize] | None
) -> tuple[Module | DeferredModule, SizeRanges]:
    """Returns the model with fixed sizes in place of their names, and the ranges of the names that
    remain: those in `given`, limited to those that the model itself has. A model whose sizes are
    all fixed is built once, when it is compiled.

    Errors: I315 (the form of `given`, or sizes that the model excludes), I316 (names), I318 (rules
    of the model that do not hold for fixed sizes), and those of
    importing or specializing the model for the fixed sizes.
    """
    ranges = read_sizes({} if given is None else given)
    own = own_sizes_of(module) if isinstance(module, Module) else {}
    if not ranges and not own:
        return module, ranges
    if isinstance(module, Module):
        inputs = inputs_of(module)
        _check_names(ranges, inputs)
        free = free_sizes(inputs)
        ranges = ranges.within({name: one for name, one in own.items() if name in free})
        fixed = ranges.fixed
        module = _fixed(module, fixed) if fixed else module
    else:
        _check_names(ranges, declared_inputs(module))
        fixed = ranges.fixed
        module = module.with_sizes(fixed) if fixed else module
    return module, ranges.without(fixed)


def _fixed(module: Module, sizes: Mapping[str, int]) -> Module:
    """Returns a module with fixed sizes in place of their names, in its rules, too.

    Errors: I318 for a rule that does not hold, and those of specializing the module.
    """
    left = []
    for rule in size_rules_of(module):
        if sizes.keys() >= rule.names:
            rule.check(sizes)
        else:
            left.append(rule.at(sizes))
    found = with_sizes(module, sizes)
    main = found.main
    if SIZE_RULES not in main.attrs:
        return found
    attrs = main.attrs.with_(**{SIZE_RULES: size_rules_attribute(left)})
    return found.with_functions({"main": Function(main.params, main.body, attrs, span=main.span)})


def _check_names(ranges: SizeRanges, inputs: Sequence[InputSpec]) -> None:
    """Errors: I316 for the name of no free dimension."""
    free = free_sizes(inputs)
    unknown = [name for name in ranges if name not in free]
    if not unknown:
        return
    close = near(unknown[0], free)
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    else:
        names = f"the free dimensions are {listed(free)}" if free else "all dimensions are fixed"
        shapes = listed(f"{i.name} {i.shown_shape}" for i in inputs if i.dtype is not None)
        hint = f"{names}; the inputs are {shapes or 'no tensors'}"
    raise InputError("I316", f"the model has no free dimension {unknown[0]!r}", hint=hint)
