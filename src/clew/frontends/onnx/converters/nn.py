"""Convolutions, matrix products, pooling and normalization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clew.frontends.building import call, cast, reshaped, scalar
from clew.frontends.lowering.convolution import convolution, transposed, with_bias
from clew.frontends.lowering.norm import normalized, root_mean_square, statistics
from clew.frontends.lowering.pooling import pool_places, pooled, pooled_over_space
from clew.frontends.lowering.window import SPATIAL, Window, divided, extent, same_padding
from clew.frontends.onnx.converters.weight_blocks import rows_of_blocks
from clew.frontends.onnx.file.tensors import dtype_of
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.dims import Dim, dim_max
from clew.ir.expr import Constant, Expr
from clew.ops.common import accumulator


def window_of(layer: Layer, kernel: Sequence[int]) -> Window:
    """Returns the window of a layer, with ONNX's defaults. `kernel` comes from the attribute or
    from the weight's shape.
    """
    rank = layer.rank() - 2
    if rank not in SPATIAL:
        raise layer.unsupported(f"over {rank} spatial axes")
    ones = (1,) * rank
    strides: tuple[int, ...] = layer.integers("strides") or ones
    declared = "dilations" in layer.schema.attributes
    dilation: tuple[int, ...] = (layer.integers("dilations") if declared else ()) or ones
    for name, values in (
        ("kernel_shape", kernel),
        ("strides", strides),
        ("dilations", dilation),
    ):
        if len(values) != rank or any(v < 1 for v in values):
            raise layer.wrong(f"has {name} {list(values)} for {rank} spatial axes")
    extents = list(map(extent, kernel, dilation))
    return Window(tuple(kernel), strides, dilation, _padding(layer, extents, strides))


def _padding(layer: Layer, extents: Sequence[Dim], strides: Sequence[int]) -> tuple[Dim, ...]:
    mode, rank = layer.text("auto_pad"), len(extents)
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        sizes = layer.type(0).shape[2:]
        return same_padding(sizes, extents, strides, upper=mode == "SAME_UPPER")
    pads: tuple[int, ...] = layer.integers("pads") or (0,) * (2 * rank)
    if mode == "VALID":
        return (0,) * (2 * rank)
    if mode not in ("NOTSET", ""):
        raise layer.wrong(f"has an unknown auto_pad {mode!r}")
    if len(pads) != 2 * rank or any(p < 0 for p in pads):
        raise layer.wrong(f"has pads {list(pads)} for {rank} spatial axes")
    return pads


def kernel_of(layer: Layer, weight: int = 1) -> tuple[int, ...]:
    """Returns the kernel of a convolution, from the attribute or else from the weight."""
    given: tuple[int, ...] = layer.integers("kernel_shape")
    shape = layer.type(weight).shape[2:]
    if not all(isinstance(d, int) for d in shape):
        raise layer.open_size(f"the kernel's size in a weight {layer.type(weight)}", *shape)
    if given and given != shape:
        raise layer.wrong(f"has kernel_shape {list(given)}, and the weight {list(shape)}")
    return shape  # type: ignore[return-value]


@converter("Conv")
def conv(layer: Layer) -> Result:
    """One to three spatial axes, then the bias."""
    window = window_of(layer, kernel_of(layer))
    found = convolution(layer.input(0), layer.input(1), window, layer.integer("group"))
    return with_bias(found, layer.optional(2))


@converter("ConvTranspose")
def conv_transpose(layer: Layer) -> Result:
    """The gradient of a convolution with respect to its input."""
    window = window_of(layer, kernel_of(layer))
    extra: tuple[Dim, ...] = layer.integers("output_padding") or (0,) * window.rank
    wanted = layer.integers("output_shape")
    if (
        len(extra) != window.rank
        or any(isinstance(e, int) and e < 0 for e in extra)
        or (wanted and len(wanted) < window.rank)
    ):
        raise layer.wrong(
            f"has output_padding {list(extra)}, output_shape {list(wanted)} for {window.rank} axes"
        )
    automatic = layer.text("auto_pad") in ("SAME_UPPER", "SAME_LOWER")
    if wanted or automatic:
        padding, extra = _transposed_padding(layer, window, extra, wanted[-window.rank :])
        window = replace(window, padding=padding)
    found = transposed(layer.input(0), layer.input(1), window, layer.integer("group"), extra)
    return with_bias(found, layer.optional(2))


def _transposed_padding(
    layer: Layer, window: Window, extra: Sequence[Dim], wanted: Sequence[int]
) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """Returns padding, and the number of elements added at the end, to reach the wanted output.

    The default output is `size * stride`.
    """
    totals: list[Dim] = []
    added: list[Dim] = []
    for axis, size in enumerate(layer.type(0).shape[2:]):
        target = wanted[axis] if wanted else size * window.strides[axis]
        full = window.strides[axis] * (size - 1) + extra[axis] + window.extent(axis)
        totals.append(dim_max(full - target, 0))
        added.append(extra[axis] + dim_max(target - full, 0))
    return divided(totals, upper=layer.text("auto_pad") == "SAME_UPPER"), tuple(added)


# --- matrix products ------------------------------------------------------------------------------


@converter("Gemm")
def gemm(layer: Layer) -> Result:
    """`alpha * A' * B' + beta * C`."""
    data, dtype = layer.input(0), layer.type(0).dtype
    if layer.rank(0) != 2 or layer.rank(1) != 2:
        raise layer.wrong(f"multiplies {layer.type(0)} by {layer.type(1)}, expected matrices")
    if layer.flag("transA"):
        data = call("transpose", data, axes=(1, 0))
    layout, weight = "NK" if layer.flag("transB") else "KN", layer.input(1)
    rows = rows_of_blocks(weight, layout)
    if rows is not None:
        layout, weight = "NK", rows
    result = cast(call("nn.dense", data, weight, weight_layout=layout), dtype)
    if (alpha := layer.real("alpha")) != 1.0:
        result = call("multiply", result, scalar(alpha, dtype))
    bias, beta = layer.optional(2), layer.real("beta")
    if bias is None or beta == 0.0:
        return result
    if beta != 1.0:
        bias = call("multiply", bias, scalar(beta, dtype))
    return call("add", result, bias)


@converter("MatMul")
def matmul(layer: Layer) -> Result:
    """NumPy's `matmul`; a parameter matrix on the right makes a dense layer. Sums of short
    integers, which the standard does not allow but some exporters write, wrap around.
    """
    a, b, dtype = layer.input(0), layer.input(1), layer.type(0).dtype
    if isinstance(b, Constant) and layer.rank(1) == 2 and layer.rank(0) >= 2:
        return cast(call("nn.dense", a, b, weight_layout="KN"), dtype)
    rows = rows_of_blocks(b, "KN") if layer.rank(0) >= 2 else None
    if rows is not None:
        return cast(call("nn.dense", a, rows, weight_layout="NK"), dtype)
    return cast(call("nn.matmul", a, b), dtype)


# --- pooling --------------------------------------------------------------------------------------


def optional_flag(layer: Layer, name: str) -> bool:
    """Returns a flag, false in versions of the operator that do not have it."""
    return name in layer.schema.attributes and layer.flag(name)


def _pool(layer: Layer, op: str, **more: bool | int) -> Expr:
    window = window_of(layer, layer.integers("kernel_shape"))
    return pooled(op, layer.input(0), window, ceil_mode=optional_flag(layer, "ceil_mode"), **more)


@converter("MaxPool")
def max_pool(layer: Layer) -> Result:
    """Windows' maxima, and their indices if they are used."""
    top = _pool(layer, "nn.max_pool2d")
    if not layer.wants(1):
        return top
    window = window_of(layer, layer.integers("kernel_shape"))
    ceil_mode, order = optional_flag(layer, "ceil_mode"), layer.flag("storage_order")
    return [top, pool_places(layer.input(0), window, ceil_mode=ceil_mode, column_major=order)]


@converter("AveragePool")
def average_pool(layer: Layer) -> Result:
    """Windows' means."""
    counts = optional_flag(layer, "count_include_pad")
    return _pool(layer, "nn.avg_pool2d", count_include_pad=counts)


@converter("GlobalAveragePool")
def global_average_pool(layer: Layer) -> Result:
    """The mean over all spatial axes."""
    return pooled_over_space("mean", layer.input(0))


@converter("GlobalMaxPool")
def global_max_pool(layer: Layer) -> Result:
    """The maximum over all spatial axes."""
    return pooled_over_space("max", layer.input(0))


@converter("GlobalLpPool", "LpPool", since=1)
def lp_pool(layer: Layer) -> Result:
    """Windows' norms, or the norm over all spatial axes. In version 1 `p` was a real number."""
    p = layer.real("p") if layer.version == 1 else layer.integer("p")
    if p < 1 or p != int(p):
        raise layer.unsupported(f"p={p}")
    if layer.op == "LpPool":
        return _pool(layer, "nn.lp_pool2d", p=int(p))
    x, dtype = layer.input(0), layer.type(0).dtype
    if p <= 2:
        return pooled_over_space(f"l{int(p)}", x)
    wide = accumulator(dtype)
    powers = call("power", call("abs", cast(x, wide)), scalar(p, wide))
    total = pooled_over_space("sum", powers)
    return cast(call("power", total, scalar(1 / p, wide)), dtype)


# --- normalization --------------------------------------------------------------------------------


@converter("LayerNormalization")
def layer_norm(layer: Layer) -> Result:
    """Normalization over the axes from `axis` on; also the mean and the inverse deviation if they
    are used.
    """
    x, scale, bias = layer.input(0), layer.input(1), layer.optional(2)
    axis, epsilon = layer.axis(), layer.real("epsilon")
    result = [normalized(x, scale, bias, axis, epsilon)]
    if layer.wants(1) or layer.wants(2):
        # Statistics have their own dtype, and are computed in it or a wider one.
        kept = dtype_of(layer.integer("stash_type"), "stash_type")
        result += [cast(s, kept) for s in statistics(x, axis, epsilon)]
    return result


@converter("RMSNormalization")
def rms_norm(layer: Layer) -> Result:
    """Over the axes from `axis` on, without a mean."""
    return root_mean_square(layer.input(0), layer.input(1), layer.axis(), layer.real("epsilon"))


@converter("GroupNormalization", since=18)
def group_norm_by_groups(layer: Layer) -> Result:
    """Version 18: scale and bias have one element per group."""
    groups = layer.integer("num_groups")
    shape = layer.type(0).shape
    per_group = shape[1] // groups

    def spread(x: Expr) -> Expr:
        column = reshaped(x, (groups, 1))
        return reshaped(call("broadcast_to", column, shape=(groups, per_group)), (shape[1],))

    return _group_norm(layer, spread(layer.input(1)), spread(layer.input(2)))


@converter("GroupNormalization", since=21)
def group_norm(layer: Layer) -> Result:
    """Scale and bias have one element per channel."""
    return _group_norm(layer, layer.input(1), layer.input(2))


def _group_norm(layer: Layer, scale: Expr, bias: Expr) -> Expr:
    return call(
        "nn.group_norm",
        layer.input(0),
        scale,
        bias,
        groups=layer.integer("num_groups"),
        epsilon=layer.real("epsilon"),
    )
