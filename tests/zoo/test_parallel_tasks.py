"""How many tasks 2, 8 and 32 threads take from each kernel with enough work, as text: each file in
`parallel_tasks/` is a model.

`CLEW_UPDATE_GOLDEN=1` writes what the kernels give now; review the diff.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

import clew
import zoo
from clew.cost.policy.threads import WORTH_DIVIDING
from clew.machine.costs import DEFAULTS
from clew.predict.plan import plan
from clew.runtime.makespan import makespan

GOLDEN: Final = Path(__file__).parent / "parallel_tasks"
THREADS: Final = (2, 8, 32)
FEW: Final = 8
MODELS: Final = ["light_squeezenet", "vocoder"]
LARGE: Final = ["mobilenet_v2", "resnet18", "vit_base", "bert_base"]


def tasks(model: str) -> list[tuple[str, str, int, tuple[int, ...]]]:
    """Returns the kernels that take at least `WORTH_DIVIDING`: name, rules, estimated microseconds
    and tasks.
    """
    shapes = {name: value.shape for name, value in zoo.inputs(model).items()}
    made = plan(clew.load(zoo.path(model), inputs=shapes), target="cpu-avx512", threads=1)
    found = []
    for source in {use.source.key: use.source for use in made.uses}.values():
        entries = source.code.entries
        microseconds = sum(entry.cost for entry in entries) / 1e3
        if microseconds >= WORTH_DIVIDING:
            counts = tuple(makespan(entries, threads).tasks for threads in THREADS)
            found.append((source.name, "+".join(source.rules), round(microseconds), counts))
    return found


@pytest.mark.parametrize(
    "model", [*MODELS, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in LARGE)]
)
def test_tasks_are_those_on_record(model: str) -> None:
    kernels = tasks(model)
    lines = [
        f"{name} ({rules}) {us} µs: {' '.join(map(str, counts))}"
        for name, rules, us, counts in kernels
    ]
    head = f"# tasks for {', '.join(map(str, THREADS))} threads"
    file, found = GOLDEN / f"{model}.txt", "\n".join([head, *lines, ""])
    if os.environ.get("CLEW_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(found)
    assert file.read_text() == found, "tasks changed: CLEW_UPDATE_GOLDEN=1 writes them anew"


def test_kernels_of_a_signal_have_work_for_all_threads() -> None:
    for name, _, microseconds, counts in tasks("vocoder"):
        for threads, count in zip(THREADS, counts, strict=True):
            worth = int(microseconds * 1e3 / DEFAULTS.least_chunk)
            assert count >= min(threads, worth, FEW), name
