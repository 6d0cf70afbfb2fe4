"""Models of free sizes for the tests of builds, what they are made of, and how they are judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import clew

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
F32 = TensorProto.FLOAT


def made(nodes: list[Any], inputs: dict[str, Any], outputs: list[str], **held: Array) -> bytes:
    """A model; inputs are shapes of f32, or pairs of a type and a shape."""
    infos = []
    for name, given in inputs.items():
        type_, shape = given if isinstance(given, tuple) else (F32, given)
        infos.append(helper.make_tensor_value_info(name, type_, shape))
    graph = helper.make_graph(
        nodes, "g", infos, [helper.make_tensor_value_info(n, F32, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return data


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def decoder(state: str = "past") -> bytes:
    """A step of attention whose keys and values grow. Those of `prev` are a state by convention."""
    past_k, past_v = f"{state}_k", f"{state}_v"
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q"]),
        helper.make_node("MatMul", ["x", "wk"], ["k1"]),
        helper.make_node("MatMul", ["x", "wv"], ["v1"]),
        helper.make_node("Concat", [past_k, "k1"], ["k"], axis=1),
        helper.make_node("Concat", [past_v, "v1"], ["v"], axis=1),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    inputs = {"x": ["b", "s", 48], past_k: ["b", "past", 48], past_v: ["b", "past", 48]}
    weights = {n: drawn(48, 48, seed=k) / 7 for k, n in enumerate(("wq", "wk", "wv"))}
    return made(nodes, inputs, ["y", "k", "v"], **weights)


def feeds_of_decoder(b: int, s: int, past: int, seed: int = 0, state: str = "past") -> Feeds:
    names = f"{state}_k", f"{state}_v"
    held = {n: drawn(b, past, 48, seed=seed + k) for k, n in enumerate(names, 1)}
    return {"x": drawn(b, s, 48, seed=seed), **held}


def compiled(data: bytes, **options: Any) -> clew.CompiledModel:
    return clew.compile(data, **{"threads": 1, **options})


def builds(model: clew.CompiledModel) -> int:
    """Returns the number of builds that a model has made, or has found in the cache."""
    return model.builds_made + model.from_cache


def reference(data: bytes, feeds: Feeds) -> Feeds:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options)
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, map(np.asarray, session.run(names, feeds)), strict=True))


def close(found: Feeds, expected: Feeds) -> None:
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        scale = float(np.abs(wanted).max(initial=1))
        assert found[name].shape == wanted.shape
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=2e-5 * scale)
