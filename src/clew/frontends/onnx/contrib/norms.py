"""ONNX Runtime's normalizations: with a sum before them, of embeddings, of groups of channels."""

from __future__ import annotations

from clew.frontends.building import call, cast, filled, reshaped, scalar
from clew.frontends.lowering.norm import normalized, root_mean_square, statistics
from clew.frontends.onnx.contrib.schemas import MICROSOFT
from clew.frontends.onnx.file.tensors import dtype_of
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Expr


@converter("SimplifiedLayerNormalization")
def simplified_layer_norm(layer: Layer) -> Result:
    """RMSNormalization, also with the inverse root. ONNX Runtime puts it into ONNX's own domain.

    The result has the scale's dtype if that differs.
    """
    x, scale = layer.input(0), layer.input(1)
    axis, epsilon = layer.axis(), layer.real("epsilon")
    dtype, wide = scale.tensor.dtype, x.tensor.dtype
    if dtype != wide:
        wide = "f64" if "f64" in (dtype, wide) else "f32"
    result = [cast(root_mean_square(cast(x, wide), cast(scale, wide), axis, epsilon), dtype)]
    if layer.wants(1):
        kept = dtype_of(layer.integer("stash_type"), "stash_type")
        result += [cast(s, kept) for s in statistics(x, axis, epsilon, center=False)]
    return result


@converter("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(layer: Layer) -> Result:
    """Normalization over the last axis of a sum; also the mean, the inverse deviation, and
    the sum.
    """
    total = _sum(layer, 4)
    axis, epsilon = total.tensor.rank - 1, layer.real("epsilon")
    result = [normalized(total, layer.input(2), layer.optional(3), axis, epsilon)]
    moments = statistics(total, axis, epsilon) if layer.wants(1) or layer.wants(2) else [total] * 2
    return [*result, *moments, total]


@converter("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_norm(layer: Layer) -> Result:
    """As SkipLayerNormalization, without a mean."""
    total = _sum(layer, 3)
    axis, epsilon = total.tensor.rank - 1, layer.real("epsilon")
    if layer.wants(1):
        raise layer.unsupported("with the mean as a result")
    root = total
    if layer.wants(2):
        (root,) = statistics(total, axis, epsilon, center=False)
    return [root_mean_square(total, layer.input(2), axis, epsilon), total, root, total]


def _sum(layer: Layer, bias: int) -> Expr:
    """Returns the sum of the input, the skip, which may lack the batch, and a bias."""
    total = call("add", layer.input(0), layer.input(1))
    if total.tensor.rank != layer.rank(0) or total.tensor.rank < 2:
        raise layer.wrong(f"adds {layer.type(1)} to {layer.type(0)}")
    added = layer.optional(bias)
    return total if added is None else call("add", total, added)


@converter("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_norm(layer: Layer) -> Result:
    """The sum of the embeddings of words, positions and segments, normalized; also the length of
    each row by its mask, and the sum.
    """
    ids, table = layer.input(0), layer.input(3)
    if ids.tensor.rank != 2:
        raise layer.wrong(f"takes words of two axes, got {ids.type}")
    batch, length = ids.tensor.shape
    total = call("gather", layer.input(2), ids, axis=0)
    places = layer.optional(8)
    if places is None:
        positions = call("slice", table, begin=(0,), end=(length,), strides=(1,), axes=(0,))
    else:
        positions = call("gather", table, places, axis=0)
    total = call("add", total, positions)
    if (segments := layer.optional(1)) is not None:
        total = call("add", total, call("gather", layer.input(4), segments, axis=0))
    result = normalized(total, layer.input(5), layer.input(6), 2, layer.real("epsilon"))
    mask = layer.optional(7)
    if mask is None:
        lengths = filled(0, "i32", (batch,))
    else:
        seen = cast(call("equal", mask, scalar(1, mask.tensor.dtype)), "i32")
        lengths = call("sum", seen, axes=(1,), keepdims=False)
    return [result, lengths, total]


@converter("GroupNorm", domain=MICROSOFT)
def group_norm(layer: Layer) -> Result:
    """GroupNormalization, by default with channels last, and optionally SiLU after it."""
    return _grouped(layer, layer.input(0))


@converter("SkipGroupNorm", domain=MICROSOFT)
def skip_group_norm(layer: Layer) -> Result:
    """GroupNorm of a sum, and the sum. The skip may lack the spatial axes."""
    x, skip = layer.input(0), layer.input(3)
    last = layer.flag("channels_last")
    channels = x.tensor.shape[-1 if last else 1]
    spatial = (1,) * (x.tensor.rank - 2)

    def along(values: Expr) -> Expr:
        """Returns values of each image, or of all, and channel."""
        lead = values.tensor.shape[:1] if values.tensor.rank > 1 else (1,)
        return reshaped(
            values, (*lead, *spatial, channels) if last else (*lead, channels, *spatial)
        )

    total = call("add", x, along(skip) if skip.tensor.rank == 2 else skip)
    if (bias := layer.optional(4)) is not None:
        total = call("add", total, along(bias))
    if total.tensor.rank != x.tensor.rank:
        raise layer.wrong(f"adds {skip.type} to {x.type}")
    return [_grouped(layer, total), total]


def _grouped(layer: Layer, x: Expr) -> Expr:
    rank, last = x.tensor.rank, layer.flag("channels_last")
    if rank < 3:
        raise layer.wrong(f"takes images, got {x.type}")
    activation = layer.integer("activation")
    if activation not in (0, 1):
        raise layer.wrong(f"has the activation {activation}")
    dtype = x.tensor.dtype
    if last:
        x = call("transpose", x, axes=(0, rank - 1, *range(1, rank - 1)))
    scale, bias = (cast(layer.input(n), dtype) for n in (1, 2))
    groups, epsilon = layer.integer("groups"), layer.real("epsilon")
    result: Expr = call("nn.group_norm", x, scale, bias, groups=groups, epsilon=epsilon)
    if activation:
        result = call("nn.silu", result)
    return call("transpose", result, axes=(0, *range(2, rank), 1)) if last else result
