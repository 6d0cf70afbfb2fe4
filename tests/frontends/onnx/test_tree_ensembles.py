"""Tree ensembles of all versions against a walk in Python and ONNX Runtime, and malformed ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.frontends.onnx.ml.forest import Branches, forest_of
from clew.support.errors import ClewError

ML = "ai.onnx.ml"
COMPARE = {
    0: lambda x, v: x <= v,
    1: lambda x, v: x < v,
    2: lambda x, v: x >= v,
    3: lambda x, v: x > v,
    4: lambda x, v: x == v,
    5: lambda x, v: x != v,
}


def model_of(op: str, version: int, x: np.ndarray, outputs: int, **attrs: Any) -> onnx.ModelProto:
    names = [f"y{n}" for n in range(outputs)]
    dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], names, domain=ML, **attrs)],
        "trees",
        [helper.make_tensor_value_info("x", dtype, x.shape)],
        [helper.make_value_info(name, onnx.TypeProto()) for name in names],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def results(model: onnx.ModelProto, x: np.ndarray, **options: Any) -> list[np.ndarray]:
    return list(clew.compile(model, cache=False, threads=1, **options).run({"x": x}).values())


class Trees:
    """Random trees of version 5."""

    def __init__(self, seed: int, trees: int, features: int, targets: int, dtype: str) -> None:
        self.rng = np.random.default_rng(seed)
        self.features, self.targets, self.dtype = features, targets, np.dtype(dtype)
        self.nodes: list[dict[str, Any]] = []
        self.leaves: list[tuple[int, float]] = []
        self.roots = []
        for _ in range(trees):
            self.roots.append(self._node(0))

    def _leaf(self) -> tuple[int, int]:
        weight = float(np.float32(self.rng.normal()))
        self.leaves.append((int(self.rng.integers(self.targets)), weight))
        return 1, len(self.leaves) - 1

    def _node(self, depth: int) -> int:
        place = len(self.nodes)
        self.nodes.append({})
        # Few values, so that equality happens.
        split = float(self.rng.integers(-2, 3)) / 2
        node = {
            "feature": int(self.rng.integers(self.features)),
            "mode": int(self.rng.integers(7)),
            "split": split,
            "missing": int(self.rng.integers(2)),
            "members": sorted(set((self.rng.integers(-4, 5, 3) / 2).tolist())),
        }
        for side in ("true", "false"):
            inner = depth < 4 and self.rng.random() < 0.7
            node[side] = (0, self._node(depth + 1)) if inner else self._leaf()
        self.nodes[place] = node
        return place

    def attributes(self, **more: Any) -> dict[str, Any]:
        def tensor(values: list[Any], dtype: Any) -> onnx.TensorProto:
            return numpy_helper.from_array(np.array(values, dtype))

        members = [v for n in self.nodes if n["mode"] == 6 for v in (*n["members"], float("nan"))]
        attrs = {
            "tree_roots": self.roots,
            "n_targets": self.targets,
            "nodes_featureids": [n["feature"] for n in self.nodes],
            "nodes_modes": tensor([n["mode"] for n in self.nodes], np.uint8),
            "nodes_splits": tensor([n["split"] for n in self.nodes], self.dtype),
            "nodes_missing_value_tracks_true": [n["missing"] for n in self.nodes],
            "nodes_trueleafs": [n["true"][0] for n in self.nodes],
            "nodes_truenodeids": [n["true"][1] for n in self.nodes],
            "nodes_falseleafs": [n["false"][0] for n in self.nodes],
            "nodes_falsenodeids": [n["false"][1] for n in self.nodes],
            "leaf_targetids": [t for t, _ in self.leaves],
            "leaf_weights": tensor([w for _, w in self.leaves], self.dtype),
            "membership_values": tensor(members, self.dtype),
        }
        return {**attrs, **more}

    def leaf_of(self, root: int, row: np.ndarray) -> tuple[int, float]:
        leaf, place = 0, root
        while not leaf:
            node = self.nodes[place]
            value = row[node["feature"]]
            if np.isnan(value) and node["missing"]:
                holds = True
            elif node["mode"] == 6:
                holds = value in node["members"]
            else:
                holds = COMPARE[node["mode"]](value, node["split"])
            leaf, place = node["true"] if holds else node["false"]
        return self.leaves[place]

    def expected(self, x: np.ndarray, aggregate: int) -> np.ndarray:
        found = np.zeros((len(x), self.targets))
        for n, row in enumerate(x):
            votes: dict[int, list[float]] = {}
            for root in self.roots:
                target, weight = self.leaf_of(root, row)
                votes.setdefault(target, []).append(weight)
            for target, weights in votes.items():
                combine = (sum, sum, min, max)[aggregate]
                found[n, target] = combine(weights) / (len(self.roots) if not aggregate else 1)
        return found


def cases(seed: int, count: int, features: int, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.integers(-5, 6, (count, features)) / 2
    x[rng.random(x.shape) < 0.15] = np.nan
    x[rng.random(x.shape) < 0.05] = np.inf
    return np.asarray(x).astype(dtype)


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
@pytest.mark.parametrize("aggregate", range(4))
@pytest.mark.parametrize("targets", [1, 3, 9])
def test_every_comparison_of_version_5(dtype: str, aggregate: int, targets: int) -> None:
    trees = Trees(aggregate * 10 + targets, 7, 5, targets, dtype)
    x = cases(targets, 37, 5, dtype)
    attrs = trees.attributes(aggregate_function=aggregate)
    (actual,) = results(
        model_of("TreeEnsemble", 5, x, 1, **attrs), x, diagnostics=clew.Diagnostics(guard=True)
    )
    assert actual.dtype == x.dtype
    close = 2e-3 if dtype == "f2" else 1e-5
    expected = trees.expected(x, aggregate)
    np.testing.assert_allclose(actual.astype("f8"), expected, rtol=close, atol=close)


NAN = float("nan")


def named(**changes: Any) -> dict[str, Any]:
    """A tree of version 3: two comparisons, three leaves."""
    attrs: dict[str, Any] = {
        "n_targets": 1,
        "nodes_treeids": [0] * 5,
        "nodes_nodeids": [0, 1, 2, 3, 4],
        "nodes_featureids": [0, 1, 0, 0, 0],
        "nodes_values": [0.5, -0.5, 0.0, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "BRANCH_GT", "LEAF", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 2, 0, 0, 0],
        "nodes_falsenodeids": [4, 3, 0, 0, 0],
        "target_treeids": [0] * 3,
        "target_nodeids": [2, 3, 4],
        "target_ids": [0] * 3,
        "target_weights": [1.0, 2.0, 3.0],
    }
    return {**attrs, **changes}


def test_nodes_by_name() -> None:
    x = np.array([[0.5, 0], [0.5, -0.5], [0.6, 0], [NAN, 0], [0, NAN]], np.float32)
    (plain,) = results(model_of("TreeEnsembleRegressor", 3, x, 1, **named()), x)
    assert plain[:, 0].tolist() == [1, 2, 3, 3, 2]
    missing = named(nodes_missing_value_tracks_true=[1, 1, 0, 0, 0])
    (tracked,) = results(model_of("TreeEnsembleRegressor", 3, x, 1, **missing), x)
    assert tracked[:, 0].tolist() == [1, 2, 3, 1, 1]
    order = [4, 2, 0, 3, 1]
    shuffled = named(
        **{k: [v[n] for n in order] for k, v in named().items() if k.startswith("nodes_")}
    )
    # The first node of a tree is its root: here a leaf.
    (leaf,) = results(model_of("TreeEnsembleRegressor", 3, x, 1, **shuffled), x)
    assert leaf[:, 0].tolist() == [3] * 5


def test_thresholds_and_weights_as_doubles() -> None:
    x = np.array([[0.5, 0], [0.5000000001, 0]])
    doubles = {
        "nodes_values_as_tensor": numpy_helper.from_array(np.array([0.5, -0.5, 0, 0, 0])),
        "target_weights_as_tensor": numpy_helper.from_array(np.array([1.0, 2.0, 3.0])),
    }
    attrs = {k: v for k, v in named(**doubles).items() if f"{k}_as_tensor" not in doubles}
    (found,) = results(model_of("TreeEnsembleRegressor", 3, x, 1, **attrs), x)
    assert found[:, 0].tolist() == [1, 3]
    assert found.dtype == np.float32


def test_whole_numbers_as_features() -> None:
    x = np.array([[0, 0], [0, -1], [1, 0]], np.int64)
    (found,) = results(model_of("TreeEnsembleRegressor", 1, x, 1, **named()), x)
    assert found[:, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"nodes_truenodeids": [0, 2, 0, 0, 0]}, "T164"),  # a circle
        ({"nodes_truenodeids": [1, 1, 0, 0, 0]}, "T164"),  # itself
        ({"nodes_truenodeids": [9, 2, 0, 0, 0]}, "T164"),  # no such node
        ({"nodes_truenodeids": [-1, 2, 0, 0, 0]}, "T164"),
        ({"nodes_featureids": [0, 2, 0, 0, 0]}, "T164"),
        ({"nodes_featureids": [0, -1, 0, 0, 0]}, "T164"),
        ({"nodes_nodeids": [0, 1, 2, 3, 3]}, "T164"),
        ({"target_nodeids": [2, 3, 5]}, "T164"),
        ({"target_treeids": [0, 0, 1]}, "T164"),
        ({"target_ids": [0, 0, 1]}, "T164"),
        ({"target_ids": [0, 0, -(2**62)]}, "T164"),
        ({"nodes_modes": ["BRANCH_LEQ", "BRANCH_XX", "LEAF", "LEAF", "LEAF"]}, "M012"),
        ({"nodes_values": [0.5]}, "M012"),
        ({"target_weights": [0.5]}, "M012"),
        ({"n_targets": 0}, "M012"),
        ({"aggregate_function": "MEDIAN"}, "M012"),
        ({"post_transform": "SIGMOID"}, "M012"),
        ({"base_values": [1.0, 2.0]}, "M012"),
        ({"nodes_modes": ["LEAF"] * 5, "nodes_treeids": [0, 0, 0, 0, 2**62]}, "T164"),
    ],
)
def test_malformed_ensembles_have_codes(changes: dict[str, Any], code: str) -> None:
    x = np.zeros((3, 2), np.float32)
    with pytest.raises(ClewError) as caught:
        results(model_of("TreeEnsembleRegressor", 1, x, 1, **named(**changes)), x)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tree_roots", [99]),
        ("tree_roots", [-1]),
        ("nodes_truenodeids", [10**9]),
        ("nodes_featureids", [17]),
        ("leaf_targetids", [4]),
    ],
)
def test_malformed_ensembles_of_version_5(name: str, value: list[int]) -> None:
    trees = Trees(3, 2, 4, 2, "f4")
    attrs = trees.attributes()
    attrs[name] = [*value, *attrs[name][len(value) :]]
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(ClewError) as caught:
        results(model_of("TreeEnsemble", 5, x, 1, **attrs), x)
    assert caught.value.code in ("T164", "M012")


def chain(depth: int) -> dict[str, Any]:
    """One tree of `depth` comparisons in a row."""
    inner = list(range(depth))
    leaves = list(range(depth, 2 * depth + 1))
    count = 2 * depth + 1
    return {
        "n_targets": 1,
        "nodes_treeids": [0] * count,
        "nodes_nodeids": list(range(count)),
        "nodes_featureids": [0] * count,
        "nodes_values": [float(n) for n in inner] + [0.0] * (depth + 1),
        "nodes_modes": ["BRANCH_LEQ"] * depth + ["LEAF"] * (depth + 1),
        "nodes_truenodeids": [depth + n for n in inner] + [0] * (depth + 1),
        "nodes_falsenodeids": [*(n + 1 for n in inner[:-1]), 2 * depth] + [0] * (depth + 1),
        "target_treeids": [0] * (depth + 1),
        "target_nodeids": leaves,
        "target_ids": [0] * (depth + 1),
        "target_weights": [float(n) for n in range(depth + 1)],
    }


def test_deep_trees_are_walked_or_refused() -> None:
    x = np.array([[-1], [7.5], [49], [60]], np.float32)
    (found,) = results(model_of("TreeEnsembleRegressor", 1, x, 1, **chain(50)), x)
    assert found[:, 0].tolist() == [0, 8, 49, 50]
    with pytest.raises(ClewError, match="T164"):
        results(model_of("TreeEnsembleRegressor", 1, x, 1, **chain(5000)), x)


def test_forests_of_scikit_learn_against_onnx_runtime() -> None:
    ort = pytest.importorskip("onnxruntime")
    ensemble = pytest.importorskip("sklearn.ensemble")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6)).astype(np.float32)
    kinds = (np.round(x[:, 0] * 2 + x[:, 1] ** 2).astype(int)) % 3
    forest = ensemble.RandomForestClassifier(9, max_depth=5, random_state=0).fit(x, kinds)
    attrs: dict[str, list[Any]] = {
        f"{part}_{name}": []
        for part, names in (
            ("nodes", "treeids nodeids featureids values modes truenodeids falsenodeids"),
            ("class", "treeids nodeids ids weights"),
        )
        for name in names.split()
    }
    for t, estimator in enumerate(forest.estimators_):
        tree = estimator.tree_
        for n in range(tree.node_count):
            leaf = tree.children_left[n] < 0
            row = (t, n, max(tree.feature[n], 0), float(np.float32(tree.threshold[n])))
            sides = (max(tree.children_left[n], 0), max(tree.children_right[n], 0))
            mode = "LEAF" if leaf else "BRANCH_LEQ"
            for name, value in zip(list(attrs)[:7], (*row, mode, *sides), strict=True):
                attrs[name].append(int(value) if isinstance(value, np.integer) else value)
            for c, weight in enumerate(tree.value[n][0] / 9 if leaf else ()):
                for name, value in zip(list(attrs)[7:], (t, n, c, float(weight)), strict=True):
                    attrs[name].append(value)
    labels = {"classlabels_strings": ["a", "b", "c"], "post_transform": "SOFTMAX"}
    model = model_of("TreeEnsembleClassifier", 1, x, 2, **attrs, **labels)
    actual = results(model, x)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x})
    assert actual[0].tolist() == expected[0].tolist()
    assert actual[0].tolist() == np.array(["a", "b", "c"])[forest.predict(x)].tolist()
    np.testing.assert_allclose(actual[1], expected[1], rtol=1e-5, atol=1e-6)


def two_classes(x: np.ndarray, ids: list[int], weights: list[float], **more: Any) -> list[Any]:
    attrs = {
        ("class" + k[6:] if k.startswith("target") else k): v
        for k, v in named().items()
        if k != "n_targets"
    }
    attrs |= {"class_ids": ids, "class_weights": weights, "classlabels_int64s": [3, 8], **more}
    return [a.tolist() for a in results(model_of("TreeEnsembleClassifier", 1, x, 2, **attrs), x)]


def test_two_classes() -> None:
    x = np.array([[0.5, 0], [0.5, -0.5], [0.6, 0]], np.float32)
    label, scores = two_classes(x, [0, 0, 0], [0.25, 0.75, 1.0])
    assert (label, scores) == ([3, 8, 8], [[0.75, 0.25], [0.25, 0.75], [0, 1]])
    label, scores = two_classes(x, [0, 0, 0], [-0.25, 0.75, 1.0])
    assert (label, scores) == ([3, 8, 8], [[0.25, -0.25], [-0.75, 0.75], [-1, 1]])
    label, scores = two_classes(x, [0, 1, 0], [-0.25, 0.75, 1.0])
    assert (label, scores) == ([8, 8, 3], [[-0.25, 0], [0, 0.75], [1, 0]])
    label, scores = two_classes(x, [0, 0, 0], [-0.25, 0.0, 1.0], post_transform="LOGISTIC")
    assert label == [3, 3, 8]
    np.testing.assert_allclose(np.sum(scores, 1), 1, rtol=1e-6)


def test_trees_are_kernels() -> None:
    x = np.zeros((3, 2), np.float32)
    compiled = clew.compile(model_of("TreeEnsembleRegressor", 1, x, 1, **named()), cache=False)
    assert {op for k in compiled.kernels for op in k.ops} == {"forest.leaves", "forest.votes"}


def test_no_rows() -> None:
    x = np.zeros((0, 2), np.float32)
    (found,) = results(model_of("TreeEnsembleRegressor", 1, x, 1, **named()), x)
    assert found.shape == (0, 1)
    assert helper.np_dtype_to_tensor_dtype(found.dtype) == TensorProto.FLOAT


def test_any_number_of_rows() -> None:
    model = model_of("TreeEnsembleRegressor", 3, np.zeros((3, 2), np.float32), 1, **named())
    compiled = clew.compile(model, inputs={"x": ["n", 2]}, cache=False)
    for rows in (1, 5):
        assert compiled(np.full((rows, 2), NAN, np.float32))[:, 0].tolist() == [3] * rows


def test_chain_of_nodes_with_one_child_each() -> None:
    """Counting a level twice for each pair of equal children would double it at every step."""
    nodes = np.arange(60)
    made = Branches(
        nodes * 0, nodes * 0, nodes.astype("f4"), np.append(nodes[1:] + 1, 0),
        np.append(nodes[1:] + 1, 0), nodes * 0, [],
    )  # fmt: skip
    assert forest_of(np.array([1]), 1, made, 1).depth == 60
