"""Products, convolutions, pools, images, attention and recurrent networks."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from fuzz.dtypes import FLOATS, numpy_of
from fuzz.graph import MOST_ELEMENTS, Grower, Unfit, Value
from fuzz.operators import operator

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


@operator("MatMul", weight=6)
def matmul(g: Grower) -> object:
    a = g.tensor(ranks=(1, 4))
    n = g.size()
    batch = tuple(s if g.choices.integer(0, 1) else 1 for s in a.sizes[:-2])
    batch = batch[g.choices.integer(0, len(batch)) :]
    inner = a.sizes[-1]
    shape = g.choices.pick(((inner, n), (*batch, inner, n), (inner,)))
    fitting = [
        v
        for v in g.scope.visible()
        if v.is_known
        and v.dtype == a.dtype
        and v.rank >= 2
        and v.sizes[-2] == inner
        and a.rank == 2
    ]
    b = g.choices.pick(fitting[:3]) if fitting and g.choices.one_in(2) else g.leaf(a.dtype, shape)
    return g.emit("MatMul", [a, b])


@operator("Gemm", weight=3)
def gemm(g: Grower) -> object:
    a = g.tensor(ranks=(2, 2))
    ta, tb = g.choices.pick((0, 1)), g.choices.pick((0, 1))
    m, k = a.sizes[::-1] if ta else a.sizes
    n = g.size()
    b = g.leaf(a.dtype, (n, k) if tb else (k, n))
    c = None
    if g.version("") < 11 or g.choices.integer(0, 2):
        c = g.leaf(a.dtype, g.choices.pick(((n,), (m, n), (1, n), (m, 1), (1,), ())))
    scale = (None, 0.5, 2.0) if a.dtype in FLOATS else (None,)
    return g.emit(
        "Gemm",
        [a, b, c],
        transA=ta or None,
        transB=tb or None,
        alpha=g.choices.pick(scale),
        beta=g.choices.pick(scale),
    )


@operator("Einsum")
def einsum(g: Grower) -> object:
    forms = (
        "ij,jk->ik",
        "bij,bjk->bik",
        "ij->ji",
        "ij->",
        "i,j->ij",
        "...ij,...jk->...ik",
        "bhqd,bhkd->bhqk",
        "ij,ij->i",
        "ii->i",
        "ijk,kl->lji",
        "i,i",
    )
    form = g.choices.pick(forms)
    dtype = g.dtype(g.dtypes("T"))
    sizes = {c: g.choices.pick((2, 3, 1, 5, 8)) for c in "bhijkdql"}
    lead = (2,) if "..." in form else ()
    arguments = [
        g.leaf(dtype, (*lead, *(sizes[c] for c in term if c.isalpha())))
        for term in form.split("->")[0].split(",")
    ]
    return g.emit("Einsum", arguments, equation=form)


@operator("MatMulInteger")
def matmul_integer(g: Grower) -> object:
    m, k, n = g.size(), g.size(), g.size()
    kinds = [g.choices.pick(g.dtypes(t)) for t in ("T1", "T2")]
    a, b = g.leaf(kinds[0], (m, k)), g.leaf(kinds[1], (k, n))
    zeros: list[Value | None] = []
    if g.choices.one_in(2):
        zeros = [
            g.scalar(2, kinds[0], None),
            g.scalar(1, kinds[1], None) if g.choices.one_in(2) else None,
        ]
    return g.emit("MatMulInteger", [a, b, *zeros])


def windows(
    g: Grower, sizes: tuple[int, ...], pool: bool = False
) -> tuple[list[int], dict[str, Any]]:
    """Returns a kernel and attributes that fit an image of some sizes."""
    rank = len(sizes)
    dilations = (
        [g.choices.pick((1, 1, 2)) for _ in range(rank)] if g.choices.one_in(3) else [1] * rank
    )
    if (
        pool
        and g.schema.name in ("AveragePool", "LpPool")
        and g.version("") < (19 if g.schema.name == "AveragePool" else 18)
    ):
        dilations = [1] * rank
    if pool and g.version("") < 10:
        dilations = [1] * rank
    kernel = [g.choices.pick((3, 1, 2, 5)) for _ in range(rank)]
    kernel = [min(k, max(1, s)) for k, s in zip(kernel, sizes, strict=True)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    made: dict[str, Any] = {}
    if dilations != [1] * rank:
        made["dilations"] = dilations
    if g.choices.one_in(2):
        made["strides"] = [g.choices.pick((2, 1, 3)) for _ in range(rank)]
    way = g.choices.integer(0, 3)
    pads = [0] * (2 * rank)
    if way == 1:
        made["auto_pad"] = g.choices.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif way >= 2:
        pads = [g.choices.integer(0, min(2, k - 1)) for k in kernel * 2]
        made["pads"] = pads
    for n, s in enumerate(sizes):
        if s + pads[n] + pads[n + rank] < reach[n] and not str(made.get("auto_pad", "")).startswith(
            "SAME"
        ):
            raise Unfit
    return kernel, made


def image(g: Grower, dtypes: list[int]) -> Value:
    """Returns a batch of images, mostly of two axes."""
    found = [
        v
        for v in g.scope.visible()
        if v.is_known
        and v.dtype in dtypes
        and 3 <= v.rank <= 5
        and 0 not in v.sizes
        and not v.name.startswith("c")
    ]
    if found and g.choices.integer(0, 3):
        return g.choices.pick(found[:5])
    rank = g.choices.pick((2, 2, 1, 3))
    shape = (
        g.choices.pick((1, 2)),
        g.choices.pick((3, 4, 1, 16, 17, 8)),
        *(g.choices.pick((7, 5, 8, 3, 9)) for _ in range(rank)),
    )
    if np.prod(shape) > MOST_ELEMENTS:
        shape = (*shape[:2], *(min(s, 4) for s in shape[2:]))
    return g.leaf(g.dtype(dtypes), shape)


@operator("Conv", weight=6)
def conv(g: Grower) -> object:
    x = image(g, g.dtypes("T"))
    c, *sizes = x.sizes[1:]
    kernel, made = windows(g, tuple(sizes))
    groups = g.choices.pick([d for d in (1, c, 2, 4) if c % d == 0])
    out = (
        groups * g.choices.pick((2, 1, 3, 16, 5)) if groups < 4 else groups * g.choices.pick((1, 2))
    )
    # Infinite weights times the zeros of padding are NaN to some; "unit" has none.
    w = g.leaf(x.dtype, (out, c // groups, *kernel), "unit")
    b = g.leaf(x.dtype, (out,)) if g.choices.integer(0, 1) else None
    shape = kernel if g.choices.integer(0, 1) else None
    return g.emit(
        "Conv", [x, w, b], group=groups if groups > 1 else None, kernel_shape=shape, **made
    )


@operator("ConvTranspose")
def conv_transpose(g: Grower) -> object:
    x = image(g, g.dtypes("T"))
    c, *sizes = x.sizes[1:]
    rank = len(sizes)
    groups = g.choices.pick([d for d in (1, c, 2) if c % d == 0])
    kernel = [g.choices.pick((3, 1, 2)) for _ in range(rank)]
    strides = [g.choices.pick((1, 2, 3)) for _ in range(rank)]
    made: dict[str, Any] = {"strides": strides}
    way = g.choices.integer(0, 3)
    if way == 1:
        # Below its stride a window leaves gaps at the end, which the standard counts and ONNX's
        # inference and ONNX Runtime do not.
        kernel = [max(k, s) for k, s in zip(kernel, strides, strict=True)]
        made["auto_pad"] = g.choices.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif way == 2:
        made["pads"] = [g.choices.integer(0, min(1, k - 1)) for k in kernel * 2]
    if g.choices.one_in(4) and way != 1:
        made["output_padding"] = [g.choices.integer(0, s - 1) for s in strides]
    if g.choices.one_in(4) and way != 1:
        made["dilations"] = [g.choices.pick((1, 2)) for _ in range(rank)]
    if way == 2 and 1 in sizes:
        del made["pads"]  # they may leave nothing
    # An infinite weight meets zeros between pixels, which not everyone multiplies.
    w = g.leaf(x.dtype, (c, g.choices.pick((2, 1, 3)), *kernel), "unit")
    b = g.leaf(x.dtype, (w.sizes[1] * groups,)) if g.choices.integer(0, 1) else None
    return g.emit("ConvTranspose", [x, w, b], group=groups if groups > 1 else None, **made)


@operator("ConvInteger", "QLinearConv")
def conv_integer(g: Grower) -> object:
    op = g.schema.name
    kinds = [g.choices.pick(g.dtypes(t)) for t in ("T1", "T2")]
    c, s = g.choices.pick((2, 1, 3)), g.choices.pick((5, 3, 8))
    x = g.leaf(kinds[0], (1, c, s, s + 1))
    w = g.leaf(kinds[1], (g.choices.pick((2, 1, 5)), c, 2, 3))
    pads = [1, 1, 0, 1] if g.choices.one_in(2) else None
    if op == "ConvInteger":
        return g.emit(op, [x, w, g.scalar(2, kinds[0]) if g.choices.one_in(2) else None], pads=pads)
    to = g.choices.pick(g.dtypes("T3"))
    if len({*kinds, to}) > 1 and kinds[0] != to:
        to = kinds[0]

    def scale(v: float) -> Value:
        return g.scalar(v, F32)

    return g.emit(
        op,
        [
            x,
            scale(0.5),
            g.scalar(1, kinds[0]),
            w,
            scale(0.25),
            g.scalar(0, kinds[1]),
            scale(1.5),
            g.scalar(2, to),
        ],
        pads=pads,
    )


@operator("MaxPool", "AveragePool", "LpPool", weight=3)
def pool(g: Grower) -> object:
    op = g.schema.name
    x = image(g, g.dtypes("T"))
    kernel, made = windows(g, x.sizes[2:], True)
    same = str(made.get("auto_pad", "")).startswith("SAME")  # the standard has no sizes for both
    # Older versions' sizes are inferred with windows that begin behind the image, which nobody has.
    if not same and g.schema.since_version >= 22 and g.choices.one_in(3):
        made["ceil_mode"] = 1
    if op == "AveragePool" and g.choices.one_in(2):
        made["count_include_pad"] = 1
    if op == "LpPool":
        made["p"] = g.choices.pick((2, 1, 3))
    outputs = 2 if op == "MaxPool" and g.version("") >= 8 and g.choices.one_in(4) else 1
    return g.emit(op, [x], outputs, kernel_shape=kernel, **made)


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(g: Grower) -> object:
    return g.emit(g.schema.name, [image(g, g.dtypes("T"))])


@operator("MaxUnpool")
def max_unpool(g: Grower) -> object:
    x = image(g, g.dtypes("T1"))
    n, c, *sizes = x.sizes
    if len(sizes) != 2:
        raise Unfit
    total = int(np.prod(sizes)) * 4
    rng = np.random.default_rng(g.choices.integer(0, 999))
    table = np.stack([rng.permutation(total)[: total // 4] for _ in range(n * c)]).reshape(x.sizes)
    table = table + np.arange(n * c).reshape(n, c, 1, 1) * total
    return g.emit("MaxUnpool", [x, g.known(table, I64, None)], kernel_shape=[2, 2], strides=[2, 2])


@operator("MaxRoiPool")
def max_roi_pool(g: Grower) -> object:
    x = g.leaf(F32, (1, 2, 7, 8))
    rois = g.known(np.array([[0, 0, 0, 3, 4], [0, 2, 2, 6, 6]], np.float32), F32, None)
    return g.emit("MaxRoiPool", [x, rois], pooled_shape=[2, 2])


@operator("RoiAlign")
def roi_align(g: Grower) -> object:
    x = g.leaf(g.dtype(g.dtypes("T1", (F32, TensorProto.DOUBLE))), (2, 3, 7, 9))
    rois = g.known(
        np.array([[0.2, 0.3, 5.1, 4.2], [1.4, 0.6, 6.6, 6.1]], np.float32).astype(
            numpy_of(x.dtype)
        ),
        x.dtype,
        None,
    )
    return g.emit(
        "RoiAlign",
        [x, rois, g.known(np.array([0, 1]), I64, None)],
        output_height=2,
        output_width=3,
        sampling_ratio=g.choices.pick((2, 0, 1)),
        mode=g.choices.pick((None, "max")),
        spatial_scale=g.choices.pick((None, 0.5)),
        coordinate_transformation_mode=g.choices.pick((None, "output_half_pixel"))
        if g.version("") >= 16
        else None,
    )


@operator("Col2Im")
def col2im(g: Grower) -> object:
    h, w, c = g.choices.pick((5, 3)), g.choices.pick((4, 6)), g.choices.pick((1, 3))
    kernel = [2, g.choices.pick((1, 3))]
    count = (h - kernel[0] + 1) * (w - kernel[1] + 1)
    x = g.leaf(g.dtype(g.dtypes("T", FLOATS)), (2, c * kernel[0] * kernel[1], count))
    return g.emit("Col2Im", [x, g.ints([h, w]), g.ints(kernel)])


@operator("DeformConv")
def deform_conv(g: Grower) -> object:
    x = g.leaf(g.dtype(g.dtypes("T", (F32, TensorProto.DOUBLE))), (1, 2, 5, 6))
    w = g.leaf(x.dtype, (3, 2, 2, 2))
    offset = g.leaf(x.dtype, (1, 8, 4, 5), "unit")
    b = g.leaf(x.dtype, (3,)) if g.choices.integer(0, 1) else None
    mask = g.leaf(x.dtype, (1, 4, 4, 5)) if g.choices.integer(0, 1) else None
    return g.emit("DeformConv", [x, w, offset, b, mask], kernel_shape=[2, 2], pads=[0, 0, 0, 0])


@operator("Resize", weight=3)
def resize(g: Grower) -> object:
    if g.version("") < 11:
        raise Unfit
    x = g.tensor(ranks=(2, 4), nonempty=True, among=FLOATS)
    mode = g.choices.pick(("nearest", "linear", "cubic"))
    made: dict[str, Any] = {"mode": mode}
    if mode == "cubic":
        made["cubic_coeff_a"] = g.choices.pick((None, -0.5))
        made["exclude_outside"] = g.choices.pick((None, 1))
    if mode == "nearest":
        made["nearest_mode"] = g.choices.pick((None, "floor", "ceil", "round_prefer_ceil"))
    made["coordinate_transformation_mode"] = g.choices.pick(
        (None, "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
    )
    if g.version("") >= 18 and mode != "nearest" and g.choices.one_in(4):
        made["antialias"] = 1
    free = g.choices.pick((2, 1)) if mode != "nearest" else g.choices.integer(1, x.rank)
    free = min(free, x.rank)
    kept = x.rank - free
    if g.choices.one_in(2):
        sizes = [*x.sizes[:kept], *(g.choices.pick((4, 1, 7, 8, 3)) for _ in range(free))]
        return g.emit("Resize", [x, None, None, g.ints(sizes)], **made)
    scales = [1.0] * kept + [g.choices.pick((2.0, 0.5, 1.0, 1.5, 3.0, 0.7)) for _ in range(free)]
    if any(int(s * f) < 1 for s, f in zip(x.sizes, scales, strict=True)):
        raise Unfit
    return g.emit("Resize", [x, None, g.known(np.array(scales, np.float32), F32)], **made)


@operator("Upsample")
def upsample(g: Grower) -> object:
    x = g.tensor(ranks=(3, 4), nonempty=True, among=FLOATS)
    scales = [1.0] * (x.rank - 2) + [g.choices.pick((2.0, 1.0, 3.0)) for _ in range(2)]
    mode = g.choices.pick(("nearest", "linear"))
    if not g.takes("scales"):
        return g.emit("Upsample", [x], scales=scales, mode=mode)
    return g.emit("Upsample", [x, g.known(np.array(scales, np.float32), F32)], mode=mode)


@operator("GridSample")
def grid_sample(g: Grower) -> object:
    x = g.leaf(
        g.dtype(g.dtypes("T1", (F32, TensorProto.DOUBLE))),
        (2, g.choices.pick((1, 3)), g.choices.pick((4, 7)), 5),
    )
    grid = g.leaf(F32 if x.dtype == F32 else x.dtype, (2, 3, g.choices.pick((2, 9)), 2))
    modes = (
        ("bilinear", "nearest", "bicubic") if g.version("") < 20 else ("linear", "nearest", "cubic")
    )
    return g.emit(
        "GridSample",
        [x, grid],
        mode=g.choices.pick(modes),
        padding_mode=g.choices.pick((None, "border", "reflection")),
        align_corners=g.choices.pick((None, 1)),
    )


@operator("AffineGrid")
def affine_grid(g: Grower) -> object:
    """With aligned corners sizes of one are left out: the text divides by the size less one."""
    theta = g.leaf(g.dtype(g.dtypes("T1", (F32, TensorProto.DOUBLE))), (2, 2, 3))
    height = g.choices.pick((4, 1))
    aligned = g.choices.pick((None, 1)) if height > 1 else None
    return g.emit("AffineGrid", [theta, g.ints([2, 3, height, 5], True)], align_corners=aligned)


@operator("Det")
def det(g: Grower) -> object:
    n = g.choices.pick((2, 1, 3, 5))
    return g.emit("Det", [g.leaf(g.dtype(g.dtypes("T")), (*g.shape(0, 2), n, n))])


@operator("NonMaxSuppression")
def non_max_suppression(g: Grower) -> object:
    n = g.choices.pick((5, 1, 12))
    corners = np.sort(
        np.random.default_rng(g.choices.integer(0, 999)).random((1, n, 2, 2)).astype(np.float32), 2
    )
    boxes = g.known(corners.reshape(1, n, 4), F32, None)
    scores = g.leaf(F32, (1, g.choices.pick((1, 2)), n), "unit")
    most = g.ints([g.choices.pick((3, 10, 0))]) if g.choices.integer(0, 3) else None
    overlap = g.known(np.array([0.4], np.float32), F32) if g.choices.one_in(2) else None
    least = g.known(np.array([0.05], np.float32), F32) if g.choices.one_in(2) else None
    return g.emit(
        "NonMaxSuppression",
        [boxes, scores, most, overlap, least],
        center_point_box=g.choices.pick((None, 1)),
    )


@operator("RNN", "GRU", "LSTM")
def recurrent(g: Grower) -> object:
    op = g.schema.name
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    dtype = g.dtype(g.dtypes("T", (F32, TensorProto.DOUBLE)))
    steps, batch, features, hidden = (
        g.choices.pick(o) for o in ((3, 1, 5), (2, 1, 3), (3, 1, 8), (4, 1, 3, 17))
    )
    way = g.choices.pick((None, "reverse", "bidirectional"))
    d = 2 if way == "bidirectional" else 1
    x = g.leaf(dtype, (steps, batch, features))
    w, r = (
        g.leaf(dtype, (d, gates * hidden, features), "unit"),
        g.leaf(dtype, (d, gates * hidden, hidden), "unit"),
    )
    b = g.leaf(dtype, (d, 2 * gates * hidden), "unit") if g.choices.integer(0, 1) else None
    lengths = g.leaf(TensorProto.INT32, (batch,), f"1:{steps + 1}") if g.choices.one_in(3) else None
    h = g.leaf(dtype, (d, batch, hidden)) if g.choices.one_in(2) else None
    more: list[Value | None] = [x, w, r, b, lengths, h]
    made: dict[str, Any] = {"hidden_size": hidden, "direction": way}
    if op == "LSTM":
        more.append(g.leaf(dtype, (d, batch, hidden)) if g.choices.one_in(2) else None)
        more.append(g.leaf(dtype, (d, 3 * hidden), "unit") if g.choices.one_in(4) else None)
    if op == "GRU":
        made["linear_before_reset"] = g.choices.pick((None, 1))
    if op != "LSTM" and g.choices.one_in(4):
        plain = ["Tanh"] if op == "RNN" else ["Sigmoid", "Tanh"]
        made["activations"] = [g.choices.pick((a, "Relu", "Softsign")) for a in plain * d]
    if g.choices.one_in(6):
        made["clip"] = 0.5
    return g.emit(op, more, g.choices.integer(1, 3 if op == "LSTM" else 2), **made)


@operator("Attention", weight=3)
def attention(g: Grower) -> object:
    dtype = g.dtype(g.dtypes("T1", (F32, TensorProto.DOUBLE, TensorProto.FLOAT16)))
    n, q, k = g.choices.pick((1, 2)), g.choices.pick((4, 1, 7, 17)), g.choices.pick((4, 9, 1, 17))
    kv = g.choices.pick((1, 2))
    heads, d, dv = kv * g.choices.pick((1, 2)), g.choices.pick((8, 4, 16)), g.choices.pick((8, 3))
    if g.choices.one_in(2):
        parts = [g.leaf(dtype, s) for s in ((n, heads, q, d), (n, kv, k, d), (n, kv, k, dv))]
        made: dict[str, Any] = {}
    else:
        parts = [g.leaf(dtype, s) for s in ((n, q, heads * d), (n, k, kv * d), (n, k, kv * dv))]
        made = {"q_num_heads": heads, "kv_num_heads": kv}
    mask = None
    if g.choices.one_in(3):
        mask = g.leaf(
            g.choices.pick((dtype, TensorProto.BOOL)),
            g.choices.pick(((q, k), (n, 1, q, k), (1, heads, q, k))),
        )
    if g.choices.one_in(4):
        made["is_causal"] = 1
    if g.choices.one_in(4):
        made["scale"] = 0.3
    if g.choices.one_in(6):
        made["softcap"] = 2.0
    return g.emit("Attention", [*parts, mask], **made)


@operator("RotaryEmbedding")
def rotary(g: Grower) -> object:
    dtype = g.dtype(g.dtypes("T", (F32, TensorProto.FLOAT16)))
    n, s, h, d = 2, g.choices.pick((3, 1)), g.choices.pick((1, 2)), g.choices.pick((4, 8))
    x = g.leaf(dtype, (n, h, s, d))
    made: dict[str, Any] = {"interleaved": g.choices.pick((None, 1))}
    if g.choices.integer(0, 1):
        tables = [g.leaf(dtype, (6, d // 2), "unit") for _ in range(2)]
        return g.emit("RotaryEmbedding", [x, *tables, g.leaf(I64, (n, s), "0:6")], **made)
    return g.emit(
        "RotaryEmbedding", [x, *(g.leaf(dtype, (n, s, d // 2), "unit") for _ in range(2))], **made
    )


@operator("SwiGLU")
def swiglu(g: Grower) -> object:
    x = g.tensor(ranks=(1, 4), nonempty=True)
    return g.emit("SwiGLU", [x, g.like(x)] if len(g.schema.inputs) > 1 else [x])


@operator("CausalConvWithState")
def causal_conv(g: Grower) -> object:
    c, k = g.choices.pick((2, 1, 17)), g.choices.pick((3, 1, 4))
    dtype = g.dtype(g.dtypes("T", (F32,)))
    x, w = g.leaf(dtype, (2, c, g.choices.pick((5, 1)))), g.leaf(dtype, (c, 1, k))
    b = g.leaf(dtype, (c,)) if g.choices.integer(0, 1) else None
    past = g.leaf(dtype, (2, c, k - 1)) if k > 1 and g.choices.integer(0, 1) else None
    return g.emit(
        "CausalConvWithState", [x, w, b, past], 2, activation=g.choices.pick((None, "silu"))
    )


@operator("LinearAttention")
def linear_attention(g: Grower) -> object:
    h, s, d = 2, g.choices.pick((3, 1)), g.choices.pick((4, 3))
    parts = [g.leaf(F32, (1, s, h * d), "unit") for _ in range(3)]
    return g.emit("LinearAttention", parts, 2, q_num_heads=h, kv_num_heads=h, update_rule="linear")


@operator("DFT")
def dft(g: Grower) -> object:
    if g.version("") < 20:
        raise Unfit
    dtype = g.dtype(g.dtypes("T1", (F32, TensorProto.DOUBLE)))
    shape = (g.choices.pick((1, 2)), g.choices.pick((8, 5, 1, 16)), g.choices.pick((1, 2)))
    inverse = g.choices.pick((None, 1)) if shape[-1] == 2 else None
    onesided = 1 if shape[-1] == 1 and g.choices.one_in(3) else None
    length = g.scalar(g.choices.pick((8, 3, 12)), I64) if g.choices.one_in(3) else None
    return g.emit(
        "DFT", [g.leaf(dtype, shape), length, g.scalar(1, I64)], inverse=inverse, onesided=onesided
    )


@operator("STFT")
def stft(g: Grower) -> object:
    dtype = g.dtype(g.dtypes("T1", (F32, TensorProto.DOUBLE)))
    x = g.leaf(dtype, (2, 16, 1))
    window = g.leaf(dtype, (8,)) if g.choices.one_in(2) else None
    return g.emit(
        "STFT", [x, g.scalar(4, I64), window, g.scalar(8, I64)], onesided=g.choices.pick((1, 0))
    )


@operator("HannWindow", "HammingWindow", "BlackmanWindow")
def window(g: Grower) -> object:
    return g.emit(
        g.schema.name,
        [g.scalar(g.choices.pick((5, 2, 16)), I64, None)],
        periodic=g.choices.pick((None, 0)),
    )


@operator("MelWeightMatrix")
def mel(g: Grower) -> object:
    counts = [g.scalar(v, I64) for v in (8, 64, 8000)]
    return g.emit("MelWeightMatrix", [*counts, g.scalar(20.0, F32), g.scalar(4000.0, F32)])
