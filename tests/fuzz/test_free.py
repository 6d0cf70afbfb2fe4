"""Variants of models with free axes: a sample of `python -m fuzz free`."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import zoo
from fuzz.free import FAILURES, MANNERS, Free, accepted, checked, models, variants

F32 = TensorProto.FLOAT


def made(op, shapes, constants=(), **attributes):
    """A model of one operator, with drawn inputs."""
    rng = np.random.default_rng(0)
    feeds = {f"x{n}": rng.random(shape).astype(np.float32) for n, shape in enumerate(shapes)}
    held = [numpy_helper.from_array(a, f"c{n}") for n, a in enumerate(constants)]
    names = [*feeds, *(t.name for t in held)]
    outputs = ["", "y"] if op == "GRU" else ["y"]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, **attributes)], "g",
        [helper.make_tensor_value_info(n, F32, a.shape) for n, a in feeds.items()],
        [helper.make_tensor_value_info("y", F32, None)], held,
    )  # fmt: skip
    opset = 6 if "broadcast" in attributes else 18
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return Free(op, model, feeds)


def failures(case, ways):
    counts: Counter[str] = Counter()
    assert accepted(case)
    for variant in variants(case, ways):
        for kind, what in checked(variant):
            assert kind not in FAILURES, f"{variant.label}: {kind}: {what}"
            counts[kind] += 1
    return counts


@pytest.mark.parametrize(
    "case",
    [
        made("Add", [(2, 3), (3,)]),
        made("GRU", [(1, 3, 2), (1, 15, 2), (1, 15, 5)], hidden_size=5),
        made("Conv", [(1, 2, 5, 5), (3, 2, 3, 3)]),
        made("Squeeze", [(1, 3, 1)]),
        made("Resize", [(1, 1, 4, 4)], [np.float32([]), np.float32([1, 1, 1.3, 0.6])]),
        made("Add", [(2, 2)], [np.ones((2, 2), np.float32)], broadcast=0),
    ],
    ids=lambda case: case.name,
)
def test_free_axes_change_nothing(case):
    assert failures(case, 6)["ok"] >= 6


@pytest.mark.parametrize("name", ["if_branches", "loop_recurrence"])
def test_models_of_the_zoo(name):
    assert failures(next(models([name])), 3)["ok"] >= 3
    assert name in zoo.names("quick")


def test_few_axes_have_all_their_variants():
    found = list(variants(made("Relu", [(2, 3)]), 20))
    assert len({v.label for v in found}) == len(found) == 3 * len(MANNERS)
    dims = [v.file().graph.input[0].type.tensor_type.shape.dim for v in found]
    assert all(any(not d.dim_value > 0 for d in shape) for shape in dims)


def test_a_vector_of_0_elements_is_not_free():
    found = variants(made("Relu", [(4,)]), 10)
    assert {v.manner for v in found} == set(MANNERS) - {"0"}
