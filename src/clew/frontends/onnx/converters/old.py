"""Operators from opsets 1 to 6 (and `TopK` up to 9), upgraded to their current form.

Two tensors could be added only if their shapes were equal, or if `broadcast` said that the second
one's axes are those of the first from `axis` on. Many of today's inputs were attributes.

Source: `onnx.defs.get_all_schemas_with_history()`, the versions below those named here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from onnx import AttributeProto, TensorProto
from onnx.helper import make_attribute

from clew.frontends.building import call, cast, reshaped
from clew.frontends.onnx.file.survey import schema_of
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, find, old_form
from clew.ir.dims import Dim
from clew.ir.expr import Constant, Expr
from clew.support.errors import UnsupportedError

# Set by frameworks of that time for memory that may be overwritten; it never affects results.
_HINTS: Final = ("consumed_inputs",)


def as_version(
    layer: Layer,
    version: int,
    inputs: Sequence[Expr | None] | None = None,
    *,
    without: Sequence[str] = (),
    **attributes: Any,
) -> Result:
    """Returns a layer's results from the converter for the operator's form in opset `version`.

    The layer keeps its attributes except those in `without`, plus `attributes`, and its inputs
    unless others are given.
    """
    schema = schema_of("", layer.op, version)
    assert schema is not None
    kept: dict[str, AttributeProto] = {
        name: value
        for name, value in layer.given.items()
        if name not in without and name not in _HINTS
    }
    kept.update({name: make_attribute(name, value) for name, value in attributes.items()})
    later = Layer(
        layer.name,
        layer.op,
        schema,
        kept,
        layer.inputs if inputs is None else inputs,
        layer.outputs,
        layer.importer,
        layer.scope,
    )
    convert = find("", layer.op, schema.since_version)
    if convert is None:
        raise UnsupportedError("U001", f"{layer.op} is not supported")
    return convert(later)


# --- broadcasting that is asked for ---------------------------------------------------------------


@old_form("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor", to=7)
def limited_broadcast(layer: Layer) -> Result:
    """Equal shapes; or with `broadcast` the second's axes are the first's last axes, or those from
    `axis` on.
    """
    a, b = layer.input(0), layer.input(1)
    if layer.flag("broadcast"):
        b = _spread(layer, b, layer.type(0).shape)
    elif layer.type(0).shape != layer.type(1).shape:
        raise layer.wrong(f"has the shapes {layer.type(0)} and {layer.type(1)} without broadcast=1")
    return as_version(layer, 7, [a, b], without=("broadcast", "axis"))


def _spread(layer: Layer, b: Expr, shape: Sequence[Dim]) -> Expr:
    """Returns the second operand reshaped so that NumPy's rule aligns its axes correctly."""
    own = b.tensor.shape
    if all(isinstance(d, int) and d == 1 for d in own):
        return reshaped(b, ())  # one element, whatever its rank
    first = len(shape) - len(own)
    if layer.has("axis"):
        first = layer.positive(layer.integer("axis"), len(shape))
    behind = len(shape) - first - len(own)
    if first < 0 or behind < 0:
        raise layer.wrong(f"has {b.tensor} from axis {first} of {layer.type(0)}")
    for d, whole in zip(own, shape[first:], strict=False):
        if d not in (whole, 1) and isinstance(d, int) and isinstance(whole, int):
            raise layer.wrong(f"has {b.tensor} from axis {first} of {layer.type(0)}")
    return reshaped(b, (*own, *(1,) * behind))


@old_form("PRelu", to=7)
def prelu_by_channel(layer: Layer) -> Result:
    """One slope, or one for each channel."""
    x, slope = layer.input(0), layer.input(1)
    if slope.tensor.shape != (1,) and slope.tensor.rank == 1 and layer.rank() > 2:
        slope = reshaped(slope, (*slope.tensor.shape, *(1,) * (layer.rank() - 2)))
    return as_version(layer, 7, [x, slope])


@old_form("Gemm", to=7)
def gemm_limited(layer: Layer) -> Result:
    """The third matrix has the result's shape, unless `broadcast` is set."""
    if not layer.flag("broadcast") and layer.rank(2) != 2:
        raise layer.wrong(f"adds {layer.type(2)} without broadcast=1")
    return as_version(layer, 7, without=("broadcast",))


# --- attributes that became inputs, or changed ----------------------------------------------------


@old_form("Reshape", to=5)
def reshape_by_attribute(layer: Layer) -> Result:
    """The shape as an attribute."""
    shape = Constant(np.array(layer.integers("shape"), np.int64))
    return as_version(layer, 5, [layer.input(0), shape], without=("shape",))


@old_form("Pad", to=2)
def pad_by_paddings(layer: Layer) -> Result:
    """The widths under their original name."""
    paddings = layer.integers("paddings")
    return as_version(layer, 2, without=("paddings",), pads=paddings)


@old_form("Cast", to=6)
def cast_by_name(layer: Layer) -> Result:
    """The element type by its name."""
    name = layer.text("to").upper()
    if name not in TensorProto.DataType.keys():  # noqa: SIM118 - no dict
        raise layer.wrong(f"has to={layer.text('to')!r}, which is not an element type")
    return as_version(layer, 6, to=TensorProto.DataType.Value(name))


@old_form("Clip", to=6)
def clip_without_defaults(layer: Layer) -> Result:
    """Limits that may be missing."""
    return as_version(layer, 6)


@old_form("Concat", to=4)
def concat_by_default(layer: Layer) -> Result:
    """Along axis 1 by default."""
    return as_version(layer, 4, axis=layer.integer("axis", 1))


@old_form("Split", to=2)
def split_by_input(layer: Layer) -> Result:
    """Sizes as an attribute or an input; along the first axis by default."""
    sizes = layer.integers("split", None)
    if layer.optional(1) is not None:
        sizes = layer.numbers(1, "the sizes")
    named = {} if sizes is None else {"split": sizes}
    return as_version(layer, 2, [layer.input(0)], axis=layer.integer("axis", 0), **named)


@old_form("Tile", to=6)
def tile_along_axis(layer: Layer) -> Result:
    """A number of copies along one axis."""
    copies, axis = layer.input(1), layer.positive(layer.one_int(2, "the axis"), layer.rank())
    ones = [Constant(np.ones(n, np.int64)) for n in (axis, layer.rank() - axis - 1)]
    parts = [ones[0], reshaped(cast(copies, "i64"), (1,)), ones[1]]
    repeats = call("concatenate", *parts, axis=0)
    return as_version(layer, 6, [layer.input(0), repeats])


@old_form("Upsample", to=7)
def upsample_image(layer: Layer) -> Result:
    """Factors of height and width."""
    if layer.rank() != 4:
        raise layer.wrong(f"takes 4 axes, got {layer.type(0)}")
    scales = (1.0, 1.0, layer.real("height_scale"), layer.real("width_scale"))
    return as_version(layer, 7, without=("height_scale", "width_scale"), scales=scales)


@old_form("TopK", to=10)
def top_k_by_attribute(layer: Layer) -> Result:
    """The number of elements as an attribute."""
    k = Constant(np.array([layer.integer("k")], np.int64))
    return as_version(layer, 10, [layer.input(0), k], without=("k",))


@old_form("LpPool", "GlobalLpPool", to=2)
def pool_of_real_norm(layer: Layer) -> Result:
    """The norm's order as a real number."""
    p = layer.real("p")
    if not p.is_integer():
        raise layer.unsupported(f"p={p}")
    return as_version(layer, 2, p=int(p))


# --- what says whether a model is trained ---------------------------------------------------------


@old_form("BatchNormalization", to=7)
def batch_norm_in_test(layer: Layer) -> Result:
    """`is_test` says whether the stored statistics are used."""
    if not layer.flag("is_test"):
        raise layer.unsupported("training mode (is_test=0)", "export the model for inference")
    return as_version(layer, 7, without=("is_test",))


@old_form("Dropout", to=7)
def dropout_in_test(layer: Layer) -> Result:
    """`is_test` says whether the input is passed on."""
    if not layer.flag("is_test") and layer.real("ratio") != 0:
        raise layer.unsupported("training mode (is_test=0)", "export the model for inference")
    return as_version(layer, 7, without=("is_test",))


# --- the same but for an attribute that is gone ---------------------------------------------------


@old_form("AveragePool", to=7)
def average_pool_of_elements(layer: Layer) -> Result:
    """Padding does not count in means."""
    return as_version(layer, 7)


@old_form("GRU", "LSTM", "RNN", to=7)
def recurrent(layer: Layer) -> Result:
    """`output_sequence` requests the first output, which clew makes if a layer reads it."""
    return as_version(layer, 7, without=("output_sequence",))
