"""`ai.onnx.ml` against ONNX Runtime, or what the standard says; maps; images of files."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import clew
from clew.support.errors import ClewError

ML = "ai.onnx.ml"
X = np.array([[-1.5, 0.25, 3], [0, 0, 0], [2, -4, 0.5]], np.float32)
TEXT = np.array([["b", "a"], ["zz", ""]], object)
NAN = float("nan")
MAPS = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, []))


def model_of(op: str, given: Any, outputs: int, version: int, attrs: Any) -> onnx.ModelProto:
    if isinstance(given, dict):
        x = helper.make_value_info("x", MAPS)
    else:
        text = given.dtype == object
        dtype = TensorProto.STRING if text else helper.np_dtype_to_tensor_dtype(given.dtype)
        x = helper.make_tensor_value_info("x", dtype, given.shape)
    names = [f"y{n}" for n in range(outputs)]
    domain = "" if op == "ImageDecoder" else ML
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], names, domain=domain, **attrs)],
        "ml",
        [x],
        [helper.make_value_info(name, onnx.TypeProto()) for name in names],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def run(op: str, given: Any, outputs: int = 1, version: int = 1, **attrs: Any) -> list[Any]:
    model = model_of(op, given, outputs, version, attrs)
    return list(clew.compile(model, cache=False, threads=1).run({"x": given}).values())


CASES: list[tuple[str, np.ndarray, dict[str, Any]]] = [
    ("Scaler", X, {"scale": [1.0, 2, 3], "offset": [0.5, 0, -1]}),
    ("Scaler", X.astype(np.int64), {"scale": [2.0], "offset": [0.5]}),
    ("Normalizer", X, {"norm": "MAX"}),
    ("Normalizer", X, {"norm": "L1"}),
    ("Normalizer", X.astype(np.float64), {"norm": "L2"}),
    ("Normalizer", X[0], {"norm": "L2"}),
    ("Binarizer", X, {"threshold": 0.25}),
    ("FeatureVectorizer", X, {"inputdimensions": [5]}),
    ("FeatureVectorizer", X, {"inputdimensions": [2]}),
    ("Imputer", X, {"imputed_value_floats": [7.0], "replaced_value_float": 0.0}),
    ("Imputer", np.where(X == 0, np.float32(NAN), X),
     {"imputed_value_floats": [7.0, 8, 9], "replaced_value_float": NAN}),
    ("OneHotEncoder", X, {"cats_int64s": [0, 2, -1]}),
    ("OneHotEncoder", TEXT, {"cats_strings": ["a", "zz"]}),
    ("CategoryMapper", TEXT, {"cats_strings": ["a", "b"], "cats_int64s": [5, 6]}),
    ("LabelEncoder", TEXT, {"classes_strings": ["a", "b"]}),
    ("LinearRegressor", X, {"coefficients": [0.5] * 6, "intercepts": [1.0, 2], "targets": 2}),
    ("SVMRegressor", X, {"coefficients": [0.5, -1], "support_vectors": [1.0, 2, 3, 4, 5, 6],
     "n_supports": 2, "rho": [0.25], "kernel_type": "RBF", "kernel_params": [0.1, 0.0, 0.0]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "x", "attrs"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)]
)
def test_as_onnx_runtime(op: str, x: np.ndarray, attrs: dict[str, Any]) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = model_of(op, x, 1, 1, attrs)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    (actual,) = run(op, x, **attrs)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
def test_transforms_of_scores(transform: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    attrs = {
        "coefficients": [0.1, 0.2, 0.01, -0.1, 0.02, 0.05, 0.1, 0.0, -0.02],
        "intercepts": [0.3, 0.4, 0.5],
        "classlabels_strings": ["a", "b", "c"],
        "post_transform": transform,
    }
    model = model_of("LinearClassifier", X, 2, 1, attrs)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": X})
    actual = run("LinearClassifier", X, 2, **attrs)
    assert actual[0].tolist() == expected[0].tolist()
    np.testing.assert_allclose(actual[1], expected[1], rtol=1e-4, atol=1e-5)


def test_labels_by_key() -> None:
    # Of equal keys the last counts; NaN is a key.
    texts = run(
        "LabelEncoder", TEXT, version=4, keys_strings=["b", "a", "b"], values_int64s=[4, 5, 6]
    )
    assert texts[0].tolist() == [[6, 5], [-1, -1]]
    renamed = run(
        "LabelEncoder", TEXT, version=4, keys_strings=["b", "a"], values_strings=["a", "ß"]
    )
    assert renamed[0].tolist() == [["a", "ß"], ["_Unused", "_Unused"]]
    x = np.array([1, NAN, 2.5, -0.0], np.float32)
    (found,) = run(
        "LabelEncoder", x, version=4, keys_floats=[1.0, NAN, 0.0], values_strings=["1", "n", "0"]
    )
    assert found.tolist() == ["1", "n", "_Unused", "0"]
    many = np.arange(0, 20_000, 2)
    (found,) = run(
        "LabelEncoder", np.array([[0, 1], [19_998, -4]]), version=2,
        keys_int64s=many[::-1].tolist(), values_floats=(many[::-1] / 2).tolist(),
        default_float=-7.0,
    )  # fmt: skip
    assert found.tolist() == [[0, -7], [9999, -7]]


@pytest.mark.parametrize(
    ("op", "x", "attrs", "code"),
    [
        ("OneHotEncoder", TEXT, {"cats_strings": ["a"], "zeros": 0}, "T163"),
        ("OneHotEncoder", TEXT, {"cats_int64s": [1]}, "M012"),
        ("LabelEncoder", TEXT, {"keys_strings": ["a"], "values_int64s": [1, 2]}, "M012"),
        ("LabelEncoder", X, {"keys_strings": ["a"], "values_int64s": [1]}, "M012"),
        ("LinearRegressor", X, {"coefficients": [1.0, 2.0]}, "M012"),
        ("Scaler", X, {"scale": [1.0, 2.0]}, "M012"),
        ("SVMRegressor", X, {"coefficients": [1.0], "n_supports": 2**40, "rho": [0.0]}, "M012"),
        ("SVMClassifier", X, {"vectors_per_class": [-1, 2], "coefficients": [1.0]}, "M012"),
        ("Normalizer", X, {"norm": "L3"}, "M012"),
        ("ZipMap", X, {"classlabels_int64s": [1, 2]}, "T108"),
        ("DictVectorizer", {5: 1.0}, {"int64_vocabulary": [1]}, "T165"),
        ("CastMap", {5: 1.0}, {"map_form": "SPARSE", "max_map": 5}, "T165"),
        ("CastMap", {5: 1.0}, {"map_form": "SPARSE", "max_map": 2**40}, "T107"),
    ],
)
def test_bad_attributes_have_codes(op: str, x: Any, attrs: dict[str, Any], code: str) -> None:
    version = 2 if op == "LabelEncoder" else 1
    given = {k: np.float32(v) for k, v in x.items()} if isinstance(x, dict) else x
    with pytest.raises(ClewError) as caught:
        run(op, given, version=version, **attrs)
    assert caught.value.code == code


def test_maps() -> None:
    (rows,) = run("ZipMap", X[:2], classlabels_strings=["a", "b", "c"])
    assert [{k: float(v) for k, v in row.items()} for row in rows] == [
        {"a": -1.5, "b": 0.25, "c": 3.0},
        {"a": 0.0, "b": 0.0, "c": 0.0},
    ]
    given = {3: np.float32(2.5), 0: np.float32(-1)}
    assert run("DictVectorizer", given, int64_vocabulary=[0, 1, 3])[0].tolist() == [-1, 0, 2.5]
    twice = run("DictVectorizer", given, int64_vocabulary=[3, 1, 3, 0])[0]
    assert twice.tolist() == [2.5, 0, 2.5, -1]
    assert run("CastMap", given)[0].tolist() == [-1, 2.5]
    sparse = run("CastMap", given, map_form="SPARSE", max_map=5, cast_to="TO_INT64")
    assert sparse[0].tolist() == [-1, 0, 0, 2, 0]
    assert run("CastMap", given, cast_to="TO_STRING")[0].tolist() == ["-1.0", "2.5"]


# --- images ---------------------------------------------------------------------------------------


def png(width: int, height: int) -> np.ndarray:
    image = pytest.importorskip("PIL.Image").new("RGB", (width, height), (1, 2, 3))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return np.frombuffer(stream.getvalue(), np.uint8)


def test_images() -> None:
    stream = png(5, 4)
    assert run("ImageDecoder", stream)[0].tolist() == np.full((4, 5, 3), (1, 2, 3)).tolist()
    assert run("ImageDecoder", stream, pixel_format="BGR")[0][0, 0].tolist() == [3, 2, 1]
    assert run("ImageDecoder", stream, pixel_format="Grayscale")[0].shape == (4, 5, 1)
    for damaged in (stream[:40], stream[::-1].copy(), stream[:0]):
        assert run("ImageDecoder", damaged)[0].shape == (0, 0, 3)


def test_images_that_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.ops.images.decode_image.MAX_PIXELS", 19)
    with pytest.raises(ClewError, match="T167"):
        run("ImageDecoder", png(5, 4))


def test_images_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = png(5, 4)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ClewError, match="T166"):
        run("ImageDecoder", stream)
