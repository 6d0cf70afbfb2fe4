"""Torch programs that write in place agree with eager, also after the caller writes."""

from __future__ import annotations

import pytest
import torch

from clew.runtime.ownership import Border
from fuzz.choices import Seeded
from fuzz.in_place import Program, check, differs, program_of, smaller

# Statements on `x0`, `x1` and the buffers `h` and `g`, and the results.
PROGRAMS = [
    (("old = x0.clone()", "x0.mul_(2)"), ("old",)),
    (("r = torch.stack([x0])", "x0.add_(1)"), ("r",)),
    (("tmp = x0.clone()", "x0.copy_(x1)", "x1.copy_(tmp)"), ("tmp", "x0 + 0")),
    (("before = self.h.clone()", "self.h.copy_(x0)"), ("before", "self.h")),
    (("before = self.w.clone()", "self.w.sub_(x0)"), ("before", "before - self.w")),
    (("old = self.steps.clone()", "self.steps.add_(1)"), ("old",)),
    (("a = x0 + 1", "b = (x0 + 1).clone()"), ("a", "b", "a")),
    (("v = x0.view(-1)", "c = v.clone()", "v.add_(1)"), ("v", "c", "x0[:1]")),
    (("a = x0 * 2", "v = a.view(-1)"), ("a", "v", "v.clone()")),
    (("self.h, self.g = self.g, self.h", "self.h.add_(x0)"), ("self.h", "self.g + 0")),
    (("y = torch.channel_shuffle(x0[None, :, :, None], 1)",), ("y",)),
    ((), ("self.w", "self.h", "self.w + 0", "x0")),
]


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_programs_agree_with_eager(number: int) -> None:
    lines, results = PROGRAMS[number]
    assert differs(Program(lines, results, (2, 2), 2, torch.float32)) == ""


EIGHTS = [
    pytest.param(n, marks=[pytest.mark.exhaustive] if n >= 16 else []) for n in range(0, 240, 8)
]


@pytest.mark.parametrize("first", EIGHTS)
def test_random_programs_agree_with_eager(first: int) -> None:
    failed = {n: check(n) for n in range(first, first + 8)}
    assert {n: outcome.what for n, outcome in failed.items() if outcome.failed} == {}


def test_a_wrong_program_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Border, "owned", lambda border, inputs, results: results)
    seed = next(n for n in range(100) if check(n).failed)
    small = smaller(seed)
    assert len(small.lines) <= len(program_of(Seeded(seed)).lines)
    assert differs(small)
