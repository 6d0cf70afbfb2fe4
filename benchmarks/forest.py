"""Compares a random forest with ONNX Runtime, alternately:
`python benchmarks/forest.py [--trees 100] ...`.

Trees are complete, with random features and thresholds: every case takes `depth` steps in each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

import clew


def forest(trees: int, depth: int, features: int, rows: int) -> onnx.ModelProto:
    """Returns a regressor of complete trees, `f32[rows, features]` to `f32[rows, 1]`."""
    rng = np.random.default_rng(0)
    inner, count = 2**depth - 1, 2 ** (depth + 1) - 1
    nodes = np.arange(count)
    leaf = nodes >= inner
    values = np.where(leaf, 0, rng.normal(size=(trees, count))).astype(np.float32)
    attrs: dict[str, Any] = {
        "n_targets": 1,
        "nodes_treeids": np.repeat(np.arange(trees), count).tolist(),
        "nodes_nodeids": np.tile(nodes, trees).tolist(),
        "nodes_featureids": rng.integers(0, features, trees * count).tolist(),
        "nodes_values": values.reshape(-1).tolist(),
        "nodes_modes": np.tile(np.where(leaf, "LEAF", "BRANCH_LEQ"), trees).tolist(),
        "nodes_truenodeids": np.tile(np.where(leaf, 0, 2 * nodes + 1), trees).tolist(),
        "nodes_falsenodeids": np.tile(np.where(leaf, 0, 2 * nodes + 2), trees).tolist(),
        "target_treeids": np.repeat(np.arange(trees), inner + 1).tolist(),
        "target_nodeids": np.tile(nodes[leaf], trees).tolist(),
        "target_ids": [0] * (trees * (inner + 1)),
        "target_weights": rng.normal(size=trees * (inner + 1)).astype(np.float32).tolist(),
    }
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **attrs)
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, width])
        for name, width in (("x", features), ("y", 1))
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "forest", [x], [y])
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def main() -> None:
    """Prints medians in ms and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("trees", 100), ("depth", 8), ("features", 32), ("rows", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    model = forest(args.trees, args.depth, args.features, args.rows)
    x = np.random.default_rng(1).normal(size=(args.rows, args.features)).astype(np.float32)
    options = ort.SessionOptions()
    options.intra_op_num_threads = args.threads
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    compiled = clew.compile(model, threads=args.threads, cache=False)
    sides: dict[str, Callable[[], Any]] = {
        "clew": lambda: compiled(x),
        "onnxruntime": lambda: session.run(None, {"x": x})[0],
    }
    np.testing.assert_allclose(sides["clew"](), sides["onnxruntime"](), rtol=1e-4, atol=1e-4)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(args.rounds):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) * 1e3)
    medians = {name: statistics.median(t) for name, t in times.items()}
    for name, median in medians.items():
        print(f"{name:12} {median:8.3f} ms")
    print(f"onnxruntime / clew {medians['onnxruntime'] / medians['clew']:.2f}")


if __name__ == "__main__":
    main()
