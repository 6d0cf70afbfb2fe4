"""Operators of `ai.onnx.ml` on maps."""

from __future__ import annotations

import numpy as np

from clew.frontends.building import call
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.ml.scores import DOMAIN, Labels
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Constant
from clew.ir.types import MapType, TensorType, to_numpy


@converter("ZipMap", domain=DOMAIN)
def zip_map(layer: Layer) -> Result:
    """A map from labels to scores for each row."""
    labels = Labels(layer, "classlabels_int64s")
    if not labels.count:
        raise layer.wrong("has no class labels")
    return call("map.zip", layer.input(0), Constant(labels.values))


@converter("DictVectorizer", domain=DOMAIN)
def dict_vectorizer(layer: Layer) -> Result:
    """The elements of a map at the positions of their keys in a vocabulary."""
    texts, numbers = layer.texts("string_vocabulary"), layer.integers("int64_vocabulary")
    if bool(texts) == bool(numbers):
        raise layer.wrong("needs one vocabulary, of text or of integers")
    known = np.array(texts, to_numpy("str")) if texts else np.array(numbers, np.int64)
    type_ = layer.input(0).type
    value = type_.value if isinstance(type_, MapType) else None
    dtype = value.dtype if isinstance(value, TensorType) else "f32"
    return call("map.to_vector", layer.input(0), Constant(known), dtype=dtype)


@converter("CastMap", domain=DOMAIN)
def cast_map(layer: Layer) -> Result:
    """The elements of a map in the order of its keys, or at the positions given by the keys."""
    dtypes = {"TO_FLOAT": "f32", "TO_INT64": "i64", "TO_STRING": "str"}
    to, form = layer.text("cast_to"), layer.text("map_form")
    if to not in dtypes or form not in ("DENSE", "SPARSE"):
        raise layer.wrong(f"has cast_to {to[:40]!r} and map_form {form[:40]!r}")
    length = layer.integer("max_map") if form == "SPARSE" else 0
    if form == "SPARSE" and length < 1:
        raise layer.wrong(f"has max_map {length}")
    return call("map.cast", layer.input(0), dtype=dtypes[to], length=length)
