"""Caches in another dtype: rewrites a module so that its growing states are stored as f32, f16,
bf16 or i8 codes.

A call rounds only its new elements. Codes have a scale for each position of each head. The scales
are another state, which grows with the codes and whose last axis has one element. `AttendCodes`
lets attention read the stored elements directly; all other readers get widened elements.

Before:
    %1: f32[b, 4, past + seq, 64] = concatenate(%past_k, %new, axis=2)
After, for codes:
    %2: f32[b, 4, seq, 1] = multiply(max(abs(%new), axes=[3], keepdims=True), 0.00787)
    %3: i8[b, 4, past + seq, 64] = concatenate(%past_k, quantize(%new, %2), axis=2)
    %4: f32[b, 4, past + seq, 1] = concatenate(%past_k_scale, %2, axis=2)
    %5: f32[b, 4, past + seq, 64] = dequantize(%3, %4)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from clew.ir.expr import Attrs, Call, Constant, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, building_for
from clew.ir.types import is_float
from clew.ops.registry import get_op
from clew.passes.hold_states import Growing, growing_states

CODES: Final = "i8"
SCALE_SUFFIX: Final = "_scale"
"""The suffix that makes the name of a state the name of the state with its scales."""
_LARGEST: Final = 127
_LEAST: Final = 1e-30
"""The smallest scale, so that a position of zeros causes no division by zero."""


def with_narrow_caches(
    module: Module, pairs: Sequence[tuple[str, str]], dtype: str
) -> tuple[Module, int]:
    """Returns a module whose growing states of floats have a dtype, and the number of changed
    states. `pairs` are the names of state inputs and of the outputs that feed them.

    States that grow along their last axis are not changed. To become codes, a state must be f32,
    and its name with the suffix must be free.
    """
    taken = {*module.input_names, *module.output_names}
    found = []
    for state in growing_states(module, pairs):
        type_ = state.param.tensor
        names = (state.param.name, module.output_names[state.output])
        free = dtype != CODES or (
            type_.dtype == "f32" and not any(name + SCALE_SUFFIX in taken for name in names)
        )
        if is_float(type_.dtype) and type_.dtype != dtype and free and state.axis < type_.rank - 1:
            found.append(state)
    return (_Narrower(found, dtype).rewrite_module(module) if found else module), len(found)


class _Narrower(Rewriter):
    def __init__(self, states: Sequence[Growing], dtype: str) -> None:
        super().__init__()
        self._states = {state.joined.id: state for state in states}
        self._dtype = dtype
        self._scales: dict[str, Var] = {}
        self._stored: dict[int, tuple[Expr, Expr | None]] = {}

    def rewrite_module(self, module: Module) -> Module:
        for state in self._states.values():
            with building_for(state.param):
                name, type_ = state.param.name, state.param.tensor
                self.memo[state.param.id] = Var(name, type_.with_(dtype=self._dtype))
                if self._dtype == CODES:
                    shape = (*type_.shape[:-1], 1)
                    self._scales[name] = Var(name + SCALE_SUFFIX, type_.with_(shape=shape))
        new = super().rewrite_module(module)
        with building_for(module.main.body):
            return new.with_functions({"main": self._main(module, new.main)})

    def _main(self, module: Module, new: Function) -> Function:
        """Returns the main function with the stored states as results, each followed by its
        scales.
        """
        params: list[Var] = []
        for param in new.params:
            params += [param, *filter(None, [self._scales.get(param.name)])]
        body = new.body
        fields = list(body.fields) if isinstance(body, Tuple) else [body]
        results, names = list[Expr](), list[str]()
        for number, (value, name) in enumerate(zip(fields, module.output_names, strict=True)):
            stored, scale = self._stored.get(number, (value, None))
            results.append(stored)
            names.append(name)
            if scale is not None:
                results.append(scale)
                names.append(name + SCALE_SUFFIX)
        attrs = Attrs({**new.attrs, "outputs": tuple(names)})
        single = len(results) == 1 and not isinstance(body, Tuple)
        return Function(params, results[0] if single else Tuple(results), attrs)

    def rebuilt(self, node: Expr, children: Sequence[Expr]) -> Expr:
        return node if node.id in self._states else super().rebuilt(node, children)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        state = self._states.get(old.id)
        if state is None:
            return new
        past, *added = (self.memo[x.id] for x in old.args)
        part = added[0] if len(added) == 1 else get_op("concatenate")(*added, axis=state.axis)
        wide = old.tensor.dtype
        if self._dtype != CODES:
            narrow = get_op("cast")(part, dtype=self._dtype)
            stored = get_op("concatenate")(past, narrow, axis=state.axis)
            self._stored[state.output] = stored, None
            return get_op("cast")(stored, dtype=wide)
        last = part.tensor.rank - 1
        most = get_op("max")(get_op("abs")(part), axes=(last,), keepdims=True)
        scale: Expr = get_op("multiply")(most, _number(1 / _LARGEST))
        scale = get_op("maximum")(scale, _number(_LEAST))
        codes = get_op("quantize")(part, scale, dtype=CODES)
        stored = get_op("concatenate")(past, codes, axis=state.axis)
        before = self._scales[state.param.name]
        scales = get_op("concatenate")(before, scale, axis=state.axis)
        self._stored[state.output] = stored, scales
        return get_op("dequantize")(stored, scales)


def _number(value: float) -> Constant:
    return Constant(np.float32(value))
