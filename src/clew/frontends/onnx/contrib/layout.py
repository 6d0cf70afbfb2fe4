"""ONNX Runtime's convolutions and pooling with channels last or in blocks.

A tensor in blocks is imported as one with channels after the batch, padded to whole blocks: passes
choose the layouts of a run.
"""

from __future__ import annotations

from clew.frontends.building import call
from clew.frontends.onnx.contrib.nchwc import plain_filter
from clew.frontends.onnx.contrib.products import fused_conv
from clew.frontends.onnx.contrib.qlinear import (
    channels_first,
    channels_last,
    of_images,
)
from clew.frontends.onnx.contrib.schemas import MICROSOFT, NCHWC
from clew.frontends.onnx.converters.image import upsampled
from clew.frontends.onnx.converters.nn import (
    average_pool,
    conv,
    global_average_pool,
    global_max_pool,
    max_pool,
)
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Constant, Expr
from clew.ops.common import differ

converter("MaxPool", domain=NCHWC)(max_pool)
converter("AveragePool", domain=NCHWC)(average_pool)
converter("GlobalMaxPool", domain=NCHWC)(global_max_pool)
converter("GlobalAveragePool", domain=NCHWC)(global_average_pool)


@converter("ReorderInput", domain=NCHWC)
def reorder_input(layer: Layer) -> Result:
    """Channels padded with zeros to whole blocks."""
    x = _image(layer)
    if layer.flag("channels_last"):
        x = channels_first(x)
    channels = x.tensor.shape[1]
    more = -channels % layer.importer.channel_block
    return x if more == 0 else call("pad", x, pads=(0, 0, 0, 0, 0, more, 0, 0))


@converter("ReorderOutput", domain=NCHWC)
def reorder_output(layer: Layer) -> Result:
    """Without the padding of the last block."""
    x, channels = _image(layer), layer.integer("channels")
    held = x.tensor.shape[1]
    if channels < 1 or (isinstance(held, int) and channels > held):
        raise layer.wrong(f"takes {channels} channels of {layer.type(0)}")
    if held != channels:
        x = call("slice", x, begin=(0,), end=(channels,), strides=(1,), axes=(1,))
    return channels_last(x) if layer.flag("channels_last") else x


def _image(layer: Layer) -> Expr:
    if layer.rank() != 4:
        raise layer.wrong(f"takes images, got {layer.type(0)}")
    return layer.input(0)


@converter("Conv", domain=NCHWC)
def blocked_conv(layer: Layer) -> Result:
    """A convolution whose weight is in blocks of outputs; also in blocks of inputs if there is at
    least one block of these. Source: ONNX Runtime, `nchwc_transformer.cc`.
    """
    weight, block = layer.input(1), layer.importer.channel_block
    if not isinstance(weight, Constant) or weight.tensor.rank != 4:
        raise layer.unsupported(f"with a weight in blocks that is not a parameter, {weight.type}")
    outer, inner = weight.tensor.concrete[:2]
    both = inner >= block
    if outer % block or (both and inner % block):
        raise layer.wrong(f"has a weight of type {weight.type} in blocks of {block} channels")
    data = plain_filter(weight.data, block, both=both)
    plain = Constant(data, name=weight.name, span=weight.span)
    return fused_conv(layer.with_inputs(layer.input(0), plain, *layer.inputs[2:]))


@converter("Upsample", domain=NCHWC)
def upsample(layer: Layer) -> Result:
    """Integer factors for all axes."""
    factors = layer.integers("scales")
    if any(f < 1 for f in factors):
        raise layer.wrong(f"has scales {list(factors)}")
    return upsampled(layer, [float(f) for f in factors])


# --- channels last --------------------------------------------------------------------------------


@converter("NhwcConv", domain=MICROSOFT)
def nhwc_conv(layer: Layer) -> Result:
    """A convolution of images with channels last; its weight is in the usual layout."""
    return of_images(layer, conv, last=True)


@converter("NhwcFusedConv", domain=MICROSOFT)
def nhwc_fused_conv(layer: Layer) -> Result:
    """NhwcConv, plus a tensor, activated."""
    if (added := layer.optional(3)) is not None:
        if differ(added.tensor.rank, layer.rank()):
            raise layer.wrong(f"adds {added.type} to images of type {layer.type(0)}")
        added = channels_first(added)
    inputs = (layer.input(0), layer.input(1), layer.optional(2), added)
    return of_images(layer.with_inputs(*inputs), fused_conv, last=True)


@converter("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(layer: Layer) -> Result:
    """Windows' maxima over images with channels last."""
    return of_images(layer, max_pool, last=True)
