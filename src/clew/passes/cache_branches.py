"""Branches of merged decoders, which Optimum writes: a file holds a decoder twice, as the branches
of an `If` over the input `use_cache_branch`, without and with caches.

A session runs each branch as a separate model, and both on the same buffers. The branch without
caches reads no state, so a call that takes it begins a sequence, with empty growing states.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clew.ir.expr import Constant, Expr, Function, Tuple
from clew.ir.module import Module
from clew.ir.rewrite import building_for
from clew.ir.visit import post_order
from clew.ops.registry import get_op
from clew.passes.hold_states import growing_places
from clew.passes.specialize import with_input


def with_branch(
    module: Module, pairs: Sequence[tuple[str, str]], flag: str, *, continues: bool
) -> Module | None:
    """Returns one branch of a merged decoder: the one that continues the states with `continues`,
    otherwise the one that begins them. `flag` is the name of the input that selects a branch, and
    `pairs` are the names of state inputs and of the outputs that feed them. Both branches extend
    growing states by a concatenation. None if the branch that begins reads a state, or its results
    do not fit those of the other branch.

    Errors: those of operators.
    """
    after = with_input(module, flag, np.array(True))
    places, added = growing_places(after, pairs), {}
    results = _results(after)
    for name, (number, axis, length) in places.items():
        added[name] = results[number].tensor.shape[axis] - length
    if continues:
        return _with_kept(after, pairs)
    first = with_input(module, flag, np.array(False))
    params, results = {p.name: p for p in first.main.params}, _results(first)
    read = {node.id for node in post_order(first.main.body)}
    if any(params[name].id in read for name, _ in pairs):
        return None
    with building_for(first.main.body):
        for name, (number, axis, _) in places.items():
            state, new = params[name].tensor, results[number].tensor
            if new.rank != state.rank or new.shape[axis] != added[name]:
                return None
            joined = get_op("concatenate")(params[name], results[number], axis=axis)
            results[number] = joined
        return _with_results(first, results)


def _with_kept(module: Module, pairs: Sequence[tuple[str, str]]) -> Module:
    """Returns a module that returns states unchanged where it returned empty constants: only the
    other branch computes these states, from the values of an encoder.
    """
    params, results = {p.name: p for p in module.main.params}, _results(module)
    numbers = {name: n for n, name in enumerate(module.output_names)}
    for name, output in pairs:
        result = results[numbers[output]]
        if isinstance(result, Constant) and result.data.size == 0:
            results[numbers[output]] = params[name]
    with building_for(module.main.body):
        return _with_results(module, results)


def _results(module: Module) -> list[Expr]:
    body = module.main.body
    return list(body.fields) if isinstance(body, Tuple) else [body]


def _with_results(module: Module, results: Sequence[Expr]) -> Module:
    main = module.main
    body = Tuple(results) if isinstance(main.body, Tuple) else results[0]
    return module.with_functions({"main": Function(main.params, body, main.attrs)})
