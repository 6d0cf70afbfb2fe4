"""Operators that a function of torch equals."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn import functional

from clew.backends.torch.registry import Building, Rule, Step, builds
from clew.vocabularies.same import Same, written
from clew.vocabularies.torch import ATEN


def _rule_of(pair: Same) -> Rule:
    function: Step = getattr(torch, pair.foreign, None) or getattr(functional, pair.foreign)

    def rule(b: Building) -> Step:
        attrs = {foreign: b.attrs[own] for own, foreign in pair.mapped.items()}
        return partial(function, **attrs) if attrs else function

    return rule


for _pair in written(ATEN):
    builds(_pair.op)(_rule_of(_pair))
