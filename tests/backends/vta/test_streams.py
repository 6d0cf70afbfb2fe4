"""Random streams: the simulator against an independent model of the machine."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from vta_reference import Reference, unordered
from vta_streams import CONFIGS, Stream, sizes_of

from clew.backends.vta import Simulator, assemble, decode, disassemble, plans, time
from clew.support.errors import ClewError

SIMULATORS = [Simulator(config) for config in CONFIGS]


def stream_of(seed: int) -> Stream:
    """Returns a random program whose conflicting instructions are ordered."""
    made = Stream(seed, CONFIGS[seed % len(CONFIGS)])
    made.with_tokens(made.outputs()[1])
    return made


def check(seed: int) -> None:
    made = stream_of(seed)
    expected, seen = made.outputs()
    assert unordered(seen) == []
    found = SIMULATORS[seed % len(CONFIGS)].run(made.program(), made.inputs)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=f"seed {seed}, {name}")


@pytest.mark.parametrize("part", range(10))
def test_random_streams_do_what_the_independent_model_does(part: int) -> None:
    for seed in range(part * 30, part * 30 + 30):
        check(seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(97))
def test_ten_thousand_random_streams(part: int) -> None:
    for seed in range(300 + part * 100, 400 + part * 100):
        check(seed)


@pytest.mark.parametrize(
    ("name", "value"), [("MOST_STEPS", 7), ("_F32_BITS", 18), ("_FEW_ROWS", 1 << 20)]
)
def test_other_plans_have_the_same_results(
    name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instructions in pieces, sums of one product, destinations that share no weights."""
    monkeypatch.setattr(plans, name, value)
    for seed in range(25):
        made = stream_of(seed)
        found = Simulator(made.config).run(made.program(), made.inputs)
        for output, values in made.outputs()[0].items():
            np.testing.assert_array_equal(found[output], values)


def test_a_dropped_token_is_found_wherever_it_matters() -> None:
    """Removes each pop with the push that it takes, and compares with a search of all orders."""
    harmless = harmful = 0
    for seed in range(40):
        made = stream_of(seed)
        before = list(made.instructions)
        for at, instruction in enumerate(before):
            for name in ("pop_prev", "pop_next"):
                if not getattr(instruction, name):
                    continue
                made.instructions = without(before, at, name)
                seen = Reference(sizes_of(made.config), made.dram()).run(made.encoded())
                races = unordered(seen)
                code = ""
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    try:
                        SIMULATORS[seed % len(CONFIGS)].run(made.program(), made.inputs)
                    except ClewError as error:
                        code = error.code
                # I441: nothing but FINISH, which has no accesses, needs the token.
                assert (code == "I438") == bool(races), (seed, at, name, code, races)
                harmless, harmful = harmless + (not races), harmful + bool(races)
    assert harmless > 10
    assert harmful > 100


def without(instructions: list, at: int, name: str) -> list:
    """Returns a stream without a pop, and without the push whose token it takes."""
    made = list(instructions)
    taker = made[at]
    source = taker.engine + (-1 if name == "pop_prev" else 1)
    bit = "push_next" if name == "pop_prev" else "push_prev"
    number = sum(1 for i in made[:at] if i.engine == taker.engine and getattr(i, name))
    givers = [g for g, i in enumerate(made) if i.engine == source and getattr(i, bit)]
    made[at] = replace(taker, **{name: False})
    made[givers[number]] = replace(made[givers[number]], **{bit: False})
    return made


@pytest.mark.parametrize("seed", range(20))
def test_streams_survive_their_encoding_and_their_text(seed: int) -> None:
    made = stream_of(seed)
    program, config = made.program(), made.config
    data = program.encoded(config)
    decoded = [decode(data[at : at + 16], config) for at in range(0, len(data), 16)]
    assert tuple(decoded) == program.instructions
    assert assemble(disassemble(program, config), config) == program


@pytest.mark.parametrize("seed", range(20))
def test_the_timing_model_keeps_the_order_of_engines_and_tokens(seed: int) -> None:
    made = stream_of(seed)
    timing = time(made.program(), made.config)
    slices = {s.index: s for s in timing.slices}
    assert sorted(slices) == list(range(len(made.instructions)))
    for each in timing.slices:
        assert all(slices[giver].end <= each.begin for giver in each.tokens)
    for engine in {s.engine for s in timing.slices}:
        own = [slices[i] for i in sorted(slices) if slices[i].engine is engine]
        assert all(a.end <= b.begin for a, b in pairwise(own))
        assert all(b.waited == b.begin - a.end for a, b in pairwise(own))
    bound = max(timing.busy(engine) for engine in {s.engine for s in timing.slices})
    assert bound <= timing.cycles
