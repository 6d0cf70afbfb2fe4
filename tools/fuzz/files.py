"""Cases of models that others wrote: plans and values for inputs are drawn, the graph is theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

from fuzz.case import Case, draw_plan
from fuzz.choices import Seeded
from fuzz.dtypes import filled


def cases_of(path: Path, seed: int, plans: int = 3) -> Iterator[Case]:
    """Yields cases of an ONNX file whose inputs have known sizes, for as many plans.

    Errors: ValueError for an input of unknown size.
    """
    model = onnx.load(path)
    given = {t.name for t in model.graph.initializer}
    operators = tuple(n.op_type for n in model.graph.node)
    for n in range(plans):
        choices = Seeded(seed * plans + n)
        plan = draw_plan(choices)
        feeds = {}
        for value in model.graph.input:
            if value.name in given:
                continue
            tensor = value.type.tensor_type
            if any(not d.HasField("dim_value") for d in tensor.shape.dim):
                raise ValueError(f"{path}: input {value.name} has sizes that are not known")
            shape = tuple(d.dim_value for d in tensor.shape.dim)
            style = choices.pick(("usual", "unit", "wild"))
            feeds[value.name] = filled(tensor.elem_type, shape, style, choices.integer(0, 1 << 30))
        yield Case(model, feeds, plan, operators, seed=seed)
