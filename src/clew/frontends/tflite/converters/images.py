"""Pooling, normalization, resizing and depth-to-space of images `[N, H, W, C]`."""

from __future__ import annotations

from clew.frontends.building import call
from clew.frontends.lowering.pooling import pooled
from clew.frontends.lowering.window import Window
from clew.frontends.tflite.converters.channels import channels_first, channels_last
from clew.frontends.tflite.converters.products import window_padding
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.ir.expr import Expr


@converter("MAX_POOL_2D")
def max_pool(layer: TfliteLayer) -> Result:
    """The largest element of each window."""
    return layer.activated(_pooled(layer, "nn.max_pool2d"))


@converter("AVERAGE_POOL_2D")
def average_pool(layer: TfliteLayer) -> Result:
    """The mean of each window; padding does not count."""
    return layer.activated(_pooled(layer, "nn.avg_pool2d", count_include_pad=False))


@converter("L2_POOL_2D")
def l2_pool(layer: TfliteLayer) -> Result:
    """The root of the mean square of each window; padding does not count."""
    square = call("multiply", layer.image(0), layer.image(0))
    mean = _pooled(layer.with_inputs(square), "nn.avg_pool2d", count_include_pad=False)
    return layer.activated(call("sqrt", mean))


@converter("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(layer: TfliteLayer) -> Result:
    """Divides elements by a power of the sum of squares over neighboring channels."""
    size = 2 * layer.integer("radius", 0) + 1
    alpha, beta, bias = (layer.real(name, 0.0) for name in ("alpha", "beta", "bias"))
    image = channels_first(layer.image(0))
    found = call("nn.lrn", image, size=size, alpha=alpha * size, beta=beta, bias=bias)
    return channels_last(found)


def _pooled(layer: TfliteLayer, op: str, **more: bool) -> Expr:
    image = channels_first(layer.image(0))
    kernel = (layer.integer("filter_height"), layer.integer("filter_width"))
    strides = (layer.integer("stride_h"), layer.integer("stride_w"))
    if min(*kernel, *strides) < 1:
        raise layer.wrong(f"has a window of {list(kernel)} with strides {list(strides)}")
    padding = window_padding(layer, image.tensor.shape[2:], kernel, strides, (1, 1))
    return channels_last(pooled(op, image, Window(kernel, strides, (1, 1), padding), **more))


@converter("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def resize(layer: TfliteLayer) -> Result:
    """Bilinear or nearest-neighbor resizing."""
    image = channels_first(layer.image(0))
    sizes = layer.dims(1, "the sizes")
    centers, corners = layer.flag("half_pixel_centers", False), layer.flag("align_corners", False)
    linear = layer.op == "RESIZE_BILINEAR"
    place = "align_corners" if corners else "half_pixel" if centers else "asymmetric"
    nearest = "floor" if place == "asymmetric" else "round_prefer_ceil"
    return channels_last(
        call(
            "resize",
            image,
            shape=(*image.tensor.shape[:2], *sizes),
            mode="linear" if linear else "nearest",
            coordinates=place,
            rounding=nearest,
        )
    )


@converter("DEPTH_TO_SPACE", codes=True)
def depth_to_space(layer: TfliteLayer) -> Result:
    """Moves channels into blocks of the image; the position in the block varies slowest."""
    image = channels_first(layer.image(0))
    return channels_last(call("depth_to_space", image, block=layer.integer("block_size")))


@converter("SPACE_TO_DEPTH", codes=True)
def space_to_depth(layer: TfliteLayer) -> Result:
    """Moves blocks of the image into channels; the position in the block varies slowest."""
    image = channels_first(layer.image(0))
    return channels_last(call("space_to_depth", image, block=layer.integer("block_size")))
