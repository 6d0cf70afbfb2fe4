"""Windows at positions given by tensors: folded columns, deformed windows, regions of images,
grids.
"""

from __future__ import annotations

from collections.abc import Sequence

from clew.frontends.building import call, cast, filled, per_channel, reshaped
from clew.frontends.onnx.held import held
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr
from clew.ops.common import differ


@converter("Col2Im")
def col2im(layer: Layer) -> Result:
    """Columns summed at their positions in the image. For booleans: whether any is true."""
    x, dtype = layer.input(0), layer.type(0).dtype
    result = held(
        layer,
        "nn.col2im",
        [cast(x, "i32") if dtype == "bool" else x],
        {"image": 1, "block": 2},
        strides=layer.integers("strides"),
        padding=layer.integers("pads"),
        dilation=layer.integers("dilations"),
    )
    return cast(result, dtype)


@converter("DeformConv")
def deform_conv(layer: Layer) -> Result:
    """The elements of deformed windows times the weight, as matrix products of the groups."""
    x, weight = layer.input(0), layer.input(1)
    kernel = weight.tensor.shape[2:]
    spatial = layer.rank() - 2
    if not all(isinstance(k, int) for k in kernel):
        raise layer.open_size(f"the kernel's size in a weight {weight.type}", *kernel)
    given = layer.integers("kernel_shape")
    if spatial < 1 or len(kernel) != spatial or (given and given != kernel):
        raise layer.wrong(f"has kernel_shape {list(given)}, data {x.type}, weight {weight.type}")
    groups, offset_groups = layer.integer("group"), layer.integer("offset_group")
    channels, inner, outer = x.tensor.shape[1], weight.tensor.shape[1], weight.tensor.shape[0]
    divides = isinstance(outer, int) and groups > 0 and outer % groups == 0
    if not divides or channels != inner * groups:
        raise layer.wrong(f"has data {x.type} and weight {weight.type} in {groups} groups")
    inputs = [x, layer.input(2)]
    if (mask := layer.optional(4)) is not None:
        inputs.append(mask)
    columns = call(
        "nn.deform_columns",
        *inputs,
        kernel=kernel,
        strides=layer.integers("strides"),
        padding=layer.integers("pads"),
        dilation=layer.integers("dilations"),
        offset_groups=offset_groups,
    )
    windows = columns.tensor.shape[3:]
    terms = inner * product(kernel)
    batch = x.tensor.shape[0]
    right = reshaped(columns, (batch, groups, terms, product(windows)))
    left = reshaped(weight, (groups, outer // groups, terms))
    result = reshaped(call("nn.matmul", left, right), (batch, outer, *windows))
    bias = layer.optional(3)
    return result if bias is None else call("add", result, per_channel(bias, spatial + 2))


@converter("RoiAlign")
def roi_align(layer: Layer) -> Result:
    """Version 10 has no coordinate mode: coordinates are not shifted by half an element."""
    moved = "coordinate_transformation_mode" in layer.schema.attributes
    return call(
        "nn.roi_align",
        *(layer.input(n) for n in range(3)),
        out=(layer.integer("output_height"), layer.integer("output_width")),
        mode=layer.text("mode"),
        samples=layer.integer("sampling_ratio"),
        scale=layer.real("spatial_scale"),
        coordinates=(
            layer.text("coordinate_transformation_mode") if moved else "output_half_pixel"
        ),
    )


@converter("MaxUnpool")
def max_unpool(layer: Layer) -> Result:
    """Zeros with elements at the given indices, which must lie inside the result (I320).

    Indices refer to the shape given by kernel, strides and pads; an `output_shape` adds zeros at
    its end, as in the standard's tests, unlike in ONNX Runtime.
    """
    x, indices = layer.input(0), layer.input(1)
    kernel, n = layer.integers("kernel_shape"), layer.rank() - 2
    strides = layer.integers("strides") or (1,) * n
    pads = layer.integers("pads") or (0,) * (2 * n)
    fits = len(kernel) == n and len(strides) == n and len(pads) == 2 * n
    if n < 1 or not fits or any(v < 1 for v in (*kernel, *strides)):
        raise layer.wrong(f"has kernel_shape {list(kernel)} for {layer.type(0)}")
    sizes = _same_sizes(x.tensor.shape, indices.tensor.shape)
    if sizes is None:
        raise layer.wrong(f"has data {x.type} at {indices.type}")
    shape: list[Dim] = list(sizes[:2])
    for d, size in enumerate(sizes[2:]):
        shape.append((size - 1) * strides[d] + kernel[d] - pads[d] - pads[n + d])
    if any(isinstance(size, int) and size < 1 for size in shape[2:]):
        raise layer.wrong(f"has pads {list(pads)}, which leave nothing")
    flat = filled(0, layer.type(0).dtype, (product(tuple(shape)),))
    count = product(sizes)
    spread = call(
        "scatter_elements", flat, reshaped(indices, (count,)), reshaped(x, (count,)), axis=0
    )
    result = reshaped(spread, shape)
    if layer.optional(2) is None:
        return result
    return _within_zeros(layer, result, layer.dims(2, "output_shape"))


def _same_sizes(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...] | None:
    """Returns the common shape of two values that must have the same shape, or None if the shapes
    differ. Unknown sizes of one are taken from the other.
    """
    if len(a) != len(b) or any(map(differ, a, b)):
        return None
    return tuple(m if isinstance(m, int) else n for m, n in zip(a, b, strict=True))


def _within_zeros(layer: Layer, x: Expr, wanted: Sequence[Dim]) -> Expr:
    """Returns a tensor with zeros added at the ends of its axes."""
    if len(wanted) != x.tensor.rank:
        raise layer.wrong(f"has an output_shape of {len(wanted)} sizes for {x.type}")
    more = [a - b for a, b in zip(wanted, x.tensor.shape, strict=True)]
    if any(isinstance(m, int) and m < 0 for m in more):
        raise layer.wrong(f"has output_shape {list(map(str, wanted))}, elements lie in {x.type}")
    if all(m == 0 for m in more):
        return x
    return call("pad", x, pads=(*(0,) * len(more), *more))


@converter("AffineGrid")
def affine_grid(layer: Layer) -> Result:
    """The positions to which affine maps move those of an image's elements."""
    return held(
        layer,
        "affine_grid",
        [layer.input(0)],
        {"size": 1},
        align_corners=layer.flag("align_corners"),
    )


@converter("CenterCropPad")
def center_crop_pad(layer: Layer) -> Result:
    """The central part, with given sizes for some axes."""
    x, rank = layer.input(0), layer.rank()
    axes = tuple(layer.positive(a, rank) for a in layer.integers("axes"))
    return held(layer, "center_crop_pad", [x], {"shape": 1}, axes=axes)
