"""Whole networks for other CPUs: what is here runs and is right, the rest is read as instructions.

A register tile that does not fit its target's registers shows as accesses of the stack in the
loop that does the work.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import clew
import zoo
from clew.machine.needs import check_machine, needs_of
from clew.machine.target import target_of
from clew.support.errors import ClewError

TILED = {"conv", "matmul"}
# The least multiply-adds of a full tile, how one looks, and what the stack is called.
LOOKS = {
    "cpu-neon": (20, r"fmla v\d+\.4s", r"\[sp\b"),
    "cpu-avx2": (10, r"vfmadd\d+ps ymm", r"\[rsp\b"),
    "cpu-avx512": (20, r"vfmadd\d+ps zmm", r"\[rsp\b"),
}
BACK = re.compile(r"(?:j\w+|b\.\w+|b|cbn?z \w+,|tbn?z \w+, #\w+,) #?0x([0-9a-f]+)$")
LINE = re.compile(r"\s+([0-9a-f]+)  (.*?)\s+; \d+$")


def loops(asm: str) -> list[list[str]]:
    """Returns the instructions of each innermost loop."""
    found: list[list[str]] = []
    for function in re.split(r"^\S.*:$", asm, flags=re.MULTILINE):
        lines = [(int(m[1], 16), m[2]) for m in map(LINE.match, function.splitlines()) if m]
        spans = []
        for at, text in lines:
            jump = BACK.match(text)
            if jump and int(jump[1], 16) <= at:
                spans.append((int(jump[1], 16), at))
        for start, end in spans:
            if not any(start <= s and e <= end and (s, e) != (start, end) for s, e in spans):
                found.append([text for at, text in lines if start <= at <= end])
    return found


@pytest.mark.parametrize("name", LOOKS)
@pytest.mark.parametrize("model", ["light_squeezenet", "mobilenet_tiny", "bert_tiny"])
def test_tiles_stay_in_registers(name: str, model: str) -> None:
    least, look, stack = LOOKS[name]
    compiled = clew.compile(
        zoo.path(model), target=name, passes=clew.Passes(disabled=["SelectConvAlgorithm"])
    )
    full = 0
    for kernel in compiled.kernels:
        if not TILED & set(kernel.rules):
            continue
        bodies = [(sum(bool(re.match(look, i)) for i in body), body) for body in loops(kernel.asm)]
        count, body = max(bodies, key=lambda pair: pair[0], default=(0, []))
        full += count >= least
        assert not [i for i in body if re.search(stack, i)], f"{kernel.name} spills"
    assert full, "no kernel has a full tile"


@pytest.mark.parametrize("name", ["cpu-avx2", "cpu-avx512", "cpu-sse"])
@pytest.mark.parametrize("model", ["mobilenet_tiny", "bert_tiny"])
def test_networks_for_older_cpus_run_here(name: str, model: str) -> None:
    target = target_of(name)
    try:
        check_machine(needs_of(target.triple, target.cpu, target.features))
    except ClewError as error:
        pytest.skip(error.message)
    feed = zoo.inputs(model)
    here = clew.compile(zoo.path(model)).run(feed)
    found = clew.compile(zoo.path(model), target=name).run(feed)
    for output, value in here.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(found[output], value, rtol=1e-3, atol=1e-4 * scale)


def test_code_for_another_machine_is_refused_when_it_is_to_run() -> None:
    name = "cpu-avx2" if "aarch64" in target_of("cpu").triple else "cpu-neon"
    compiled = clew.compile(zoo.path("keyword_spotting"), target=name)
    assert compiled.kernels[0].asm
    for _ in range(2):
        with pytest.raises(ClewError, match="C056"):
            compiled.run(zoo.inputs("keyword_spotting"))
