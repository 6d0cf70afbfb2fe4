"""Measures what one more token of a language model costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from clew.explorer.actions.params import number
from clew.explorer.schema import PartCost, StepCost, TokenCosts
from clew.explorer.session import Session
from clew.profile import token_costs as costs
from clew.runtime.wiring import Wiring

LENGTH: Final = 256
_MOST: Final = 1 << 20


def tokens(
    session: Session,
    params: Mapping[str, Any],
    say: Callable[[str, float | None], None],
) -> TokenCosts:
    """Measures a decode step after `length` tokens and the first call of a prompt of `prompt`
    tokens, and stores the result as `session.measured["tokens"]`.

    Errors: I235 (parameters), I484 (no language model), I495 (no caches, or fixed sizes).
    """
    length, prompt = (int(number(params, name, LENGTH, 1, _MOST)) for name in ("length", "prompt"))
    say("running a decode step and a prompt", None)
    found = costs.costs_of(Wiring(session.compiled), length, prompt)
    layers = list(session.layers)
    made = TokenCosts(
        threads=found.threads,
        weight_bytes=found.weight_bytes,
        token_bytes=found.token_bytes,
        state_bytes=found.state_bytes,
        slope_us=found.slope_us,
        decode=_step(found.decode, layers),
        prefill=_step(found.prefill, layers),
    )
    session.measured["tokens"] = made
    return made


def _step(step: costs.StepCost, layers: list[str]) -> StepCost:
    parts = [
        PartCost(
            layer=part.layer,
            layers=[n for n, x in enumerate(layers) if x == part.layer or _is_in(x, part.layer)],
            weight_bytes=part.weight_bytes,
            cache_bytes=part.cache_bytes,
            ns=part.ns,
            share=part.share,
            bandwidth_share=part.bandwidth_share,
        )
        for part in step.parts
    ]
    return StepCost(
        tokens=step.tokens,
        length=step.length,
        ns=step.ns,
        arena_bytes=step.arena_bytes,
        gbps=step.gbps,
        weight_bytes=step.weight_bytes,
        cache_bytes=step.cache_bytes,
        bandwidth_share=step.bandwidth_share,
        parts=parts,
    )


def _is_in(layer: str, part: str) -> bool:
    return layer.startswith(f"{part}.")
