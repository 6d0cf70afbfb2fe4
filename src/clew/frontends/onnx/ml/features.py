"""Operators of `ai.onnx.ml` on features: scaling, replacement, selection, encoding; linear
models.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.frontends.building import call, cast, reshaped, scalar
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.ml.scores import (
    DOMAIN,
    Labels,
    coefficients,
    column,
    features,
    floats,
    largest,
    linear,
    opposed,
    real_rows,
    rows,
    transform_of,
    transformed,
)
from clew.frontends.onnx.registry import Result, converter
from clew.ir.dims import Dim, product
from clew.ir.expr import Constant, Expr
from clew.ir.types import is_float, to_numpy
from clew.ops.data.lookup import ascending, hashed
from clew.support.text_arrays import TEXT

# --- features -------------------------------------------------------------------------------------


@converter("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(layer: Layer) -> Result:
    """Columns by index; a vector gives one row (as in ONNX Runtime and onnx's reference)."""
    x, places = layer.input(0), layer.input(1)
    if layer.rank(0) == 0:
        raise layer.wrong(f"takes an input with axes, got {layer.type(0)}")
    flat = reshaped(places, (product(places.tensor.shape),))
    x = reshaped(x, (1, *x.tensor.shape)) if layer.rank(0) == 1 else x
    return call("gather", x, flat, axis=x.tensor.rank - 1)


@converter("Binarizer", domain=DOMAIN)
def binarizer(layer: Layer) -> Result:
    """1 above the threshold, else 0."""
    x, dtype = layer.input(0), layer.type(0).dtype
    wide = cast(x, dtype if is_float(dtype) else "f64")
    threshold = scalar(layer.real("threshold"), wide.tensor.dtype)
    return cast(call("greater", wide, threshold), dtype)


@converter("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(layer: Layer) -> Result:
    """Inputs side by side as f32, each cut or padded with zeros to its stated size."""
    sizes = layer.integers("inputdimensions")
    if sizes and len(sizes) != len(layer.inputs):
        raise layer.wrong(f"has {len(sizes)} inputdimensions for {len(layer.inputs)} inputs")
    parts = [cast(rows(layer, x), "f32") for x in layer.present()]
    parts = [_fitted(layer, x, sizes[n]) if sizes else x for n, x in enumerate(parts)]
    return parts[0] if len(parts) == 1 else call("concatenate", *parts, axis=1)


def _fitted(layer: Layer, x: Expr, size: int) -> Expr:
    given = x.tensor.shape[1]
    if size < 0:
        raise layer.wrong(f"has the size {size} in its inputdimensions")
    if not isinstance(given, int) or given == size:
        return x
    if given > size:
        return call("slice", x, begin=(0,), end=(size,), strides=(1,), axes=(1,))
    return call("pad", x, pads=(0, 0, 0, size - given), mode="constant", value=0.0)


def _per_feature(layer: Layer, name: str, values: Constant, x: Expr) -> Constant:
    """Checks that there is one value, or one for each feature.

    Errors: M012.
    """
    count = values.data.size
    size = x.tensor.shape[-1] if x.tensor.rank else 1
    if count != 1 and isinstance(size, int) and count != size:
        raise layer.wrong(f"has {count} {name} for {size} features")
    return values


@converter("Imputer", domain=DOMAIN)
def imputer(layer: Layer) -> Result:
    """Replaces one value by others."""
    x, dtype = layer.input(0), layer.type(0).dtype
    if is_float(dtype):
        old, values = (
            layer.real("replaced_value_float"),
            np.array(layer.reals("imputed_value_floats"), to_numpy(dtype)),
        )
    else:
        old = layer.integer("replaced_value_int64")
        limits = np.iinfo(to_numpy(dtype))
        numbers = layer.integers("imputed_value_int64s")
        if not all(limits.min <= v <= limits.max for v in numbers):
            raise layer.wrong(f"has values that {dtype} cannot hold")
        values = np.array(numbers, to_numpy(dtype))
        if not limits.min <= old <= limits.max:  # which no element equals
            return x
    if not values.size:
        raise layer.wrong(f"has no values for an input of {dtype}")
    new = _per_feature(layer, "imputed values", Constant(values), x)
    found = (
        call("isnan", x) if isinstance(old, float) and np.isnan(old)
        else call("equal", x, scalar(old, dtype))
    )  # fmt: skip
    if values.size == 1:
        new = Constant(values.reshape(()))
    return call("where", found, new, x)


@converter("Scaler", domain=DOMAIN)
def scaler(layer: Layer) -> Result:
    """`(x - offset) * scale` as f32."""
    x = cast(layer.input(0), "f64" if layer.type(0).dtype == "f64" else "f32")
    dtype = x.tensor.dtype
    for op, name in (("subtract", "offset"), ("multiply", "scale")):
        if layer.has(name):
            values = _per_feature(layer, name, floats(layer, name, dtype), x)
            one = values.data.size == 1
            x = call(op, x, Constant(values.data.reshape(())) if one else values)
    return cast(x, "f32")


@converter("Normalizer", domain=DOMAIN)
def normalizer(layer: Layer) -> Result:
    """Rows divided by their norm; unchanged if it is 0."""
    x = cast(layer.input(0), "f64" if layer.type(0).dtype == "f64" else "f32")
    dtype, kind = x.tensor.dtype, layer.text("norm")
    op = {"MAX": "max", "L1": "l1", "L2": "l2"}.get(kind)
    if op is None:
        raise layer.wrong(f"has norm {kind[:40]!r}, expected MAX, L1 or L2")
    if not x.tensor.rank:
        raise layer.wrong(f"takes [N, C] or [C], got {layer.type(0)}")
    norm = call(op, x, axes=(min(x.tensor.rank - 1, 1),), keepdims=True)
    zero = call("equal", norm, scalar(0, dtype))
    return cast(call("divide", x, call("where", zero, scalar(1, dtype), norm)), "f32")


# --- categories -----------------------------------------------------------------------------------


@converter("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(layer: Layer) -> Result:
    """1 at each element's category along a new axis."""
    x = layer.input(0)
    if layer.type(0).dtype == "str":
        keys: np.ndarray[Any, Any] = np.array(layer.texts("cats_strings"), to_numpy("str"))
    else:
        x, keys = cast(x, "i64"), np.array(layer.integers("cats_int64s"), np.int64)
    if not keys.size:
        raise layer.wrong(f"has no categories for an input of {layer.type(0).dtype}")
    if len(set(keys.tolist())) < len(keys):
        raise layer.wrong("has a category twice")
    if not layer.flag("zeros"):
        return call("one_hot_of_keys", x, Constant(keys))
    if keys.dtype == TEXT:
        texts, keys = keys, np.arange(len(keys))
        other = Constant(np.asarray(len(keys)))
        x = call("text.lookup", x, Constant(texts), Constant(keys), other)
    shape: tuple[Dim, ...] = (*x.tensor.shape, 1)
    return cast(call("equal", reshaped(x, shape), Constant(keys)), "f32")


def _looked_up(layer: Layer, keys: np.ndarray, values: np.ndarray, default: Any) -> Expr:
    """Returns the values for the input's elements as keys.

    Errors: M012 if keys and values are not pairs, or keys have another dtype.
    """
    x, dtype = layer.input(0), layer.type(0).dtype
    if keys.ndim != 1 or keys.shape != values.shape:
        raise layer.wrong(f"has {keys.size} keys and {values.size} values")
    if keys.size and keys.dtype != to_numpy(dtype):
        raise layer.wrong(f"has keys of another type than its input, {layer.type(0)}")
    fallback = Constant(np.array(default, values.dtype).reshape(()))
    known, theirs, missing = ascending(keys.astype(to_numpy(dtype)), values)
    if known.size:
        if TEXT in (known.dtype, theirs.dtype):
            found: Expr = call("text.lookup", x, Constant(known), Constant(theirs), fallback)
        else:
            slots, of_slots, factor = hashed(known, theirs, fallback.data)
            found = call("lookup", x, Constant(slots), Constant(of_slots), factor=factor)
    else:
        found = call("broadcast_to", fallback, shape=x.tensor.shape)
    if missing is None:
        return found
    absent = Constant(np.array(missing, values.dtype).reshape(()))
    return call("where", call("isnan", x), absent, found)


@converter("LabelEncoder", domain=DOMAIN)
def label_encoder_of_classes(layer: Layer) -> Result:
    """Classes to their positions, or back."""
    classes = np.array(layer.texts("classes_strings"), to_numpy("str"))
    places = np.arange(len(classes))
    if layer.type(0).dtype == "str":
        return _looked_up(layer, classes, places, layer.integer("default_int64"))
    return _looked_up(layer, places, classes, layer.text("default_string"))


@converter("LabelEncoder", domain=DOMAIN, since=2)
def label_encoder(layer: Layer) -> Result:
    """Keys to values; of repeated keys the last one counts."""
    keys, _ = _listed(layer, "keys")
    values, kind = _listed(layer, "values")
    if layer.has("default_tensor"):
        default = layer.tensor("default_tensor")
        if default.size != 1 or default.dtype != values.dtype:
            raise layer.wrong("has a default_tensor that is not one of its values' type")
        return _looked_up(layer, keys, values, default.reshape(-1)[0])
    if kind == "strings" or values.dtype == TEXT:
        return _looked_up(layer, keys, values, layer.text("default_string"))
    if kind == "tensor":  # without a default_tensor
        floating = is_float({"f": "f32"}.get(values.dtype.kind, "i64"))
        return _looked_up(layer, keys, values, -0.0 if floating else -1)
    if kind == "floats":
        return _looked_up(layer, keys, values, layer.real("default_float"))
    return _looked_up(layer, keys, values, layer.integer("default_int64"))


def _listed(layer: Layer, what: str) -> tuple[np.ndarray, str]:
    """Returns the keys or values, and the name of the attribute that holds them."""
    kinds = [k for k in ("strings", "int64s", "floats", "tensor") if layer.has(f"{what}_{k}")]
    if len(kinds) != 1:
        raise layer.wrong(f"has {len(kinds)} attributes {what}_*, expected one")
    (kind,) = kinds
    name = f"{what}_{kind}"
    if kind == "strings":
        return np.array(layer.texts(name), to_numpy("str")), kind
    if kind == "int64s":
        return np.array(layer.integers(name), np.int64), kind
    if kind == "floats":
        return np.array(layer.reals(name), np.float32), kind
    return np.array(layer.tensor(name)), kind


@converter("CategoryMapper", domain=DOMAIN)
def category_mapper(layer: Layer) -> Result:
    """Strings to integers, or back."""
    texts = np.array(layer.texts("cats_strings"), to_numpy("str"))
    numbers = np.array(layer.integers("cats_int64s"), np.int64)
    if layer.type(0).dtype == "str":
        return _looked_up(layer, texts, numbers, layer.integer("default_int64"))
    return _looked_up(layer, numbers, texts, layer.text("default_string"))


# --- linear models --------------------------------------------------------------------------------


def _intercepts(layer: Layer, count: int, dtype: str) -> Constant | None:
    if not layer.reals("intercepts"):
        return None
    given = floats(layer, "intercepts", dtype)
    if given.data.size != count:
        raise layer.wrong(f"has {given.data.size} intercepts, expected {count}")
    return given


@converter("LinearRegressor", domain=DOMAIN)
def linear_regressor(layer: Layer) -> Result:
    """Linear combinations of features."""
    x, targets = real_rows(layer), layer.integer("targets")
    if targets < 1:
        raise layer.wrong(f"has {targets} targets")
    weights = coefficients(layer, targets, features(layer, x))
    scores = linear(layer, x, weights, _intercepts(layer, targets, x.tensor.dtype))
    return cast(transformed(scores, transform_of(layer)), "f32")


@converter("LinearClassifier", domain=DOMAIN)
def linear_classifier(layer: Layer) -> Result:
    """The class with the best linear combination of features, and all combinations.

    The sign of a single combination separates two classes; with two labels both get a score.
    """
    x, labels, kind = real_rows(layer), Labels(layer, "classlabels_ints"), transform_of(layer)
    width = features(layer, x)
    total = len(layer.reals("coefficients"))
    count = total // width if width else 0
    weights = coefficients(layer, count, width)
    scores = linear(layer, x, weights, _intercepts(layer, count, x.tensor.dtype))
    if count != 1:
        if labels.count and labels.count != count:
            raise layer.wrong(f"has {labels.count} labels for {count} scores")
        return labels.at(largest(scores)), cast(transformed(scores, kind), "f32")
    above = call("greater", column(scores, 0), scalar(0, x.tensor.dtype))
    if labels.count == 2:
        both = opposed(scores, complement=False)
        return labels.by(above, 1, 0), cast(transformed(both, kind), "f32")
    one = labels.values[0] if labels.count and labels.values.dtype.kind == "i" else 1
    places = call("where", above, scalar(one, "i64"), scalar(0, "i64"))
    return places, cast(transformed(scores, kind), "f32")
