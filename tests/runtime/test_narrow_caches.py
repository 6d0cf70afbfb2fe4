"""Caches in f16 and bf16: attention reads them as they lie, for one query and for many."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import clew

HEADS, GROUPS, WIDTH, ROOM = 4, 2, 64, 1024
DTYPES: dict[int, Any] = {
    TensorProto.FLOAT16: (np.dtype(np.float16), 3e-3),
    TensorProto.BFLOAT16: (np.dtype(ml_dtypes.bfloat16), 3e-2),
}


def decoder(kind: int, *, fixed: bool) -> Any:
    """Returns attention to a cache that grows, or one of fixed capacity."""

    def value(name: str, heads: int, rows: Any) -> Any:
        return helper.make_tensor_value_info(name, kind, ["b", heads, rows, WIDTH])

    node, nodes, masks = helper.make_node, [], []
    size = ROOM if fixed else "past"
    inputs = [value("q", HEADS, "s"), value("k", GROUPS, "s"), value("v", GROUPS, "s")]
    inputs += [value(f"past_{name}", GROUPS, size) for name in "kv"]
    if fixed:
        inputs.append(helper.make_tensor_value_info("at", TensorProto.INT64, ["b"]))
        seen: list[str | int] = ["b", 1, "s", ROOM]
        inputs.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, seen))
        masks = ["mask"]
    for name in "kv":
        before = [f"past_{name}", name]
        if fixed:
            nodes.append(node("TensorScatter", [*before, "at"], [f"present_{name}"], axis=2))
        else:
            nodes.append(node("Concat", before, [f"present_{name}"], axis=2))
    nodes.append(node("Attention", ["q", "present_k", "present_v", *masks], ["y"]))
    outputs = [value("y", HEADS, "s")]
    outputs += [value(f"present_{name}", GROUPS, ROOM if fixed else "all") for name in "kv"]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


def attended(q: Any, k: Any, v: Any) -> Any:
    """Returns attention of one query to all keys, in f64."""
    keys, values = (np.repeat(x.astype("f8"), HEADS // GROUPS, 1) for x in (k, v))
    scores = q.astype("f8") @ keys.transpose(0, 1, 3, 2) / WIDTH**0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ values


@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "growing"])
@pytest.mark.parametrize("kind", DTYPES, ids=["f16", "bf16"])
def test_narrow_caches_are_not_widened_in_memory(kind: int, fixed: bool) -> None:
    dtype, tolerance = DTYPES[kind]
    session = clew.compile(decoder(kind, fixed=fixed), threads=1, cache=False).session()
    rng, past = np.random.default_rng(0), []
    for step in range(5):
        q, k, v = (
            rng.standard_normal((1, heads, 1, WIDTH)).astype(dtype)
            for heads in (HEADS, GROUPS, GROUPS)
        )
        past.append((k, v))
        more = [np.array([step]), np.arange(ROOM).reshape(1, 1, 1, ROOM) <= step]
        found = session(q, k, v, *(more if fixed else []))
        wanted = attended(q, *(np.concatenate(x, 2) for x in zip(*past, strict=True)))
        np.testing.assert_allclose(found.astype("f8"), wanted, atol=tolerance)
    held = session._held_form
    assert held is not None
    model: Any = held.model
    (kernel,) = [use for use in model.template.uses if "attention" in use.name]
    caches = [p for p in kernel.source.function.params if p.tensor.shape[1] == GROUPS]
    assert [p.tensor.dtype for p in caches] == ["bf16" if "bf" in dtype.name else "f16"] * 2
    assert len(kernel.source.ways) == 2  # one of them for a single query
