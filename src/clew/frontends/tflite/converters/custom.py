"""Custom operators of LiteRT and MediaPipe.

Source: their kernels; MediaPipe's are in mediapipe/util/tflite/operations.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from clew.frontends.building import call, cast, constant, fields, reshaped, scalar
from clew.frontends.lowering.angles import angle_of
from clew.frontends.lowering.convolution import transposed
from clew.frontends.lowering.window import Window, divided
from clew.frontends.tflite.converters.channels import channels_first, channels_last
from clew.frontends.tflite.converters.products import window_padding
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.ir.dims import Dim
from clew.ir.expr import Expr

_SAME = 1
_LOWEST = float(np.finfo(np.float32).min)


def _numbers(layer: TfliteLayer, count: int) -> tuple[int, ...]:
    """Returns options that are a struct of 32-bit integers."""
    if len(layer.custom) < 4 * count:
        raise layer.wrong(f"has options of {len(layer.custom)} bytes")
    found: tuple[int, ...] = struct.unpack(f"<{count}i", layer.custom[: 4 * count])
    return found


@converter("Convolution2DTransposeBias")
def transpose_conv_bias(layer: TfliteLayer) -> Result:
    """Transposed convolution of an image with weights `[out, H, W, in]`, plus a bias."""
    padding, *strides = _numbers(layer, 3)
    strides = strides[::-1]
    if min(strides) < 1:
        raise layer.wrong(f"has the strides {strides}")
    image, weight = channels_first(layer.image(0)), layer.image(1)
    kernel = weight.tensor.shape[1:3]
    pads: tuple[Dim, ...] = (0, 0, 0, 0)
    if padding == _SAME:
        sizes = [_known(layer, size) for size in (*image.tensor.shape[2:], *kernel)]
        totals = [
            max(0, span - (size - 1) % stride - 1)
            for size, span, stride in zip(sizes[:2], sizes[2:], strides, strict=True)
        ]
        pads = divided(totals, upper=True)
    window = Window(kernel, tuple(strides), (1, 1), pads)
    weight = call("transpose", weight, axes=(3, 0, 1, 2))
    value = channels_last(transposed(image, weight, window, 1, (0, 0)))
    return call("add", value, layer.input(2))


def _known(layer: TfliteLayer, size: Dim) -> int:
    if not isinstance(size, int):
        raise layer.open_size("the size of the image", size)
    return size


class _Pool:
    """The options of pooling: strides and window of an image, height first."""

    def __init__(self, layer: TfliteLayer) -> None:
        kind, stride_w, stride_h, width, height, activation = _numbers(layer, 6)
        self.strides, self.window = (stride_h, stride_w), (height, width)
        self.same, self.activation = kind == _SAME, activation
        if min(*self.strides, *self.window) < 1 or height * width > 1 << 10:
            raise layer.wrong(f"has a window of {[height, width]}")


@converter("MaxPoolingWithArgmax2D")
def max_pool_with_places(layer: TfliteLayer) -> Result:
    """The largest element of each window, and its index in the window plus 0.1, as a float."""
    pool, image = _Pool(layer), layer.image(0)
    sizes = image.tensor.shape[1:3]
    plain = layer.with_options(padding=int(not pool.same))
    pads = window_padding(plain, sizes, pool.window, pool.strides, (1, 1))
    around = (0, *pads[:2], 0, 0, *pads[2:], 0)
    padded = call("pad", image, pads=around, mode="constant", value=_LOWEST)
    best, place = None, None
    for tap in np.ndindex(*pool.window):
        here = _strided(padded, tap, pool)
        number = call("full", shape=(), value=tap[0] * pool.window[1] + tap[1] + 0.1, dtype="f32")
        if best is None or place is None:
            best, place = here, call("broadcast_to", number, shape=here.tensor.shape)
            continue
        better = call("greater", here, best)
        place = call("where", better, number, place)
        best = call("where", better, here, best)
    assert best is not None
    assert place is not None
    return [layer.with_options(activation=pool.activation).activated(best), place]


def _strided(x: Expr, tap: Sequence[int], pool: _Pool) -> Expr:
    """Returns the element at one position of each window."""
    ends = tuple(
        size - span + at + 1
        for size, span, at in zip(x.tensor.shape[1:3], pool.window, tap, strict=True)
    )
    return call("slice", x, begin=tuple(tap), end=ends, strides=pool.strides, axes=(1, 2))


@converter("MaxUnpooling2D")
def max_unpool(layer: TfliteLayer) -> Result:
    """Writes elements to their positions in the windows, and zeros elsewhere."""
    pool, x = _Pool(layer), layer.image(0)
    if pool.strides != pool.window:
        raise layer.unsupported("windows that overlap, or leave gaps")
    batch, height, width, channels = x.tensor.shape
    place = cast(layer.input(1), "i32")
    parts = []
    for number in range(pool.window[0] * pool.window[1]):
        here = call("equal", place, scalar(number, "i32"))
        part = call("where", here, x, scalar(0, "f32"))
        parts.append(reshaped(part, (batch, height, width, 1, channels)))
    found = call("concatenate", *parts, axis=3) if len(parts) > 1 else parts[0]
    rows, columns = pool.window
    found = reshaped(found, (batch, height, width, rows, columns, channels))
    found = call("transpose", found, axes=(0, 1, 3, 2, 4, 5))
    return reshaped(found, (batch, height * rows, width * columns, channels))


# --- attention on parts of a face -----------------------------------------------------------------


def _entry(matrix: Expr, row: int, column: int) -> Expr:
    """Returns an entry of a matrix `[1, 4, 4]`."""
    flat = reshaped(matrix, (16,))
    at = 4 * row + column
    return reshaped(call("slice", flat, begin=(at,), end=(at + 1,), strides=(1,), axes=(0,)), ())


def _sum(*terms: Expr) -> Expr:
    total = terms[0]
    for term in terms[1:]:
        total = call("add", total, term)
    return total


def _times(a: Expr, b: Expr | float) -> Expr:
    return call("multiply", a, b if isinstance(b, Expr) else scalar(b, "f32"))


@converter("Landmarks2TransformMatrix")
def landmarks_to_matrix(layer: TfliteLayer) -> Result:
    """The matrix that maps a box around some landmarks, rotated by two of them, to an image."""
    if layer.version != 2:
        raise layer.unsupported("its first version")
    points = reshaped(layer.input(0), (_count(layer), 3))
    left, right = (_point(points, layer.integer(f"{side}_rotation_idx")) for side in _SIDES)
    angle = angle_of(call("subtract", right[1], left[1]), call("subtract", right[0], left[0]))
    turn = call("subtract", scalar(layer.real("target_rotation_radians", 0.0), "f32"), angle)
    cos, sin = call("cos", turn), call("sin", turn)
    chosen = call("gather", points, _places(layer), axis=0)
    x, y = (
        call("slice", chosen, begin=(n,), end=(n + 1,), strides=(1,), axes=(1,)) for n in range(2)
    )
    turned = (
        call("subtract", _times(x, cos), _times(y, sin)),
        call("add", _times(x, sin), _times(y, cos)),
    )
    high, low = (
        [call(op, part, axes=(0, 1), keepdims=False) for part in turned] for op in ("max", "min")
    )
    size = [call("subtract", a, b) for a, b in zip(high, low, strict=True)]
    middle = [_times(call("add", a, b), 0.5) for a, b in zip(high, low, strict=True)]
    center = (
        call("add", _times(middle[0], cos), _times(middle[1], sin)),
        call("subtract", _times(middle[1], cos), _times(middle[0], sin)),
    )
    wanted = layer.integer("output_width"), layer.integer("output_height")
    if min(wanted) < 1:
        raise layer.wrong(f"has an image of {list(wanted)}")
    scales = [
        _times(part, layer.real(f"scale_{axis}") / count)
        for part, axis, count in zip(size, "xy", wanted, strict=True)
    ]
    a, b = _times(cos, scales[0]), _times(sin, scales[1])
    c, d = call("negative", _times(sin, scales[0])), _times(cos, scales[1])
    half = [-count / 2 for count in wanted]
    first = _sum(_times(a, half[0]), _times(b, half[1]), center[0])
    second = _sum(_times(c, half[0]), _times(d, half[1]), center[1])
    zero, one = scalar(0, "f32"), scalar(1, "f32")
    rows = (a, b, zero, first, c, d, zero, second, zero, zero, one, zero, zero, zero, zero, one)
    entries = [reshaped(entry, (1,)) for entry in rows]
    return reshaped(call("concatenate", *entries, axis=0), (1, 4, 4))


_SIDES = ("left", "right")


def _count(layer: TfliteLayer) -> int:
    total = layer.type(0).size
    if not isinstance(total, int) or total % 3:
        raise layer.unsupported(f"landmarks of {layer.type(0)}")
    return total // 3


def _point(points: Expr, number: int) -> tuple[Expr, Expr]:
    row = call("gather", points, scalar(number, "i64"), axis=0)
    x, y = (
        reshaped(call("slice", row, begin=(n,), end=(n + 1,), strides=(1,), axes=(0,)), ())
        for n in range(2)
    )
    return x, y


def _places(layer: TfliteLayer) -> Expr:
    from_options = layer.integers("subset_idxs", ())
    if not from_options:
        raise layer.wrong("has no landmarks")
    return constant(np.asarray(from_options, np.int64))


@converter("TransformLandmarks")
def transform_landmarks(layer: TfliteLayer) -> Result:
    """Transforms landmarks by the first two rows of a matrix; the third coordinate is unchanged.
    Without an option, the last axis holds the coordinates.
    """
    x, matrix = layer.input(0), layer.input(1)
    last = x.tensor.shape[-1] if x.tensor.shape else 0
    size = layer.integer("dimensions", last if layer.version > 1 and isinstance(last, int) else 3)
    shift = layer.real("scale", 1.0) if layer.version == 1 else 1.0
    if size not in (2, 3) or not isinstance(x.tensor.size, int) or x.tensor.size % size:
        raise layer.wrong(f"has landmarks of {size} dimensions in {layer.type(0)}")
    points = reshaped(x, (x.tensor.size // size, size))
    columns = fields(call("split", points, sizes=(1,) * size, axis=1), size)
    moved = [
        _sum(
            _times(columns[0], _entry(matrix, row, 0)),
            _times(columns[1], _entry(matrix, row, 1)),
            _times(_entry(matrix, row, 3), shift),
        )
        for row in range(2)
    ]
    return reshaped(call("concatenate", *moved, *columns[2:], axis=1), x.tensor.shape)


@converter("TransformTensor", "TransformTensorBilinear")
def transform_tensor(layer: TfliteLayer) -> Result:
    """Samples an image at the positions to which a matrix maps those of the result; zero outside
    the image.
    """
    image, matrix = layer.image(0), layer.input(1)
    result = layer.results[0]
    shape = () if result is None else result.shape
    _, height, width, channels = image.tensor.shape
    if len(shape) != 4 or not all(isinstance(n, int) for n in (*shape[1:3], height, width)):
        raise layer.unsupported("images of open sizes")
    assert isinstance(height, int)
    assert isinstance(width, int)
    rows, columns = int(shape[1] or 0), int(shape[2] or 0)
    half = 0.5 if layer.op == "TransformTensorBilinear" else 0.0
    grid = [
        reshaped(constant(np.arange(n, dtype=np.float32) + np.float32(half)), to)
        for n, to in ((columns, (1, columns)), (rows, (rows, 1)))
    ]
    x, y = (
        call(
            "subtract",
            _sum(
                _times(grid[0], _entry(matrix, row, 0)),
                _times(grid[1], _entry(matrix, row, 1)),
                _entry(matrix, row, 3),
            ),
            scalar(half, "f32"),
        )
        for row in range(2)
    )
    inside: Expr | None = None
    for part, size in ((x, width), (y, height)):
        for op, limit in (("greater_equal", 0), ("less_equal", size - 1)):
            here = call(op, part, scalar(limit, "f32"))
            inside = here if inside is None else call("logical_and", inside, here)
    assert inside is not None
    flat = reshaped(image, (height * width, channels))
    total: Expr | None = None
    for lower in (False, True):
        for right in (False, True):
            weight, place = _corner(x, y, (height, width), lower=lower, right=right)
            term = _times(call("gather", flat, place, axis=0), reshaped(weight, (rows, columns, 1)))
            total = term if total is None else call("add", total, term)
    assert total is not None
    kept = call("where", reshaped(inside, (rows, columns, 1)), total, scalar(0, "f32"))
    return reshaped(kept, (1, rows, columns, channels))


def _corner(
    x: Expr, y: Expr, size: tuple[int, int], *, lower: bool, right: bool
) -> tuple[Expr, Expr]:
    """Returns the weight of one of four neighbors, and its index in the image."""
    weights, places = [], []
    for part, more, count in ((y, lower, size[0]), (x, right, size[1])):
        floor = call("floor", part)
        share = call("subtract", part, floor)
        weights.append(share if more else call("subtract", scalar(1, "f32"), share))
        at = call("add", floor, scalar(1, "f32")) if more else floor
        places.append(cast(call("clip", at, min=0.0, max=float(count - 1)), "i64"))
    row = call("multiply", places[0], scalar(size[1], "i64"))
    return _times(weights[0], weights[1]), call("add", row, places[1])


# --- detection ------------------------------------------------------------------------------------


@converter("TFLite_Detection_PostProcess")
def detection(layer: TfliteLayer) -> Result:
    """Decodes boxes relative to anchors and suppresses overlapping ones. The results are boxes,
    classes, scores, and the number of boxes.
    """
    if layer.flag("use_regular_nms", False):
        raise layer.unsupported("suppression of each class on its own (use_regular_nms)")
    if layer.integer("max_classes_per_detection", 1) != 1:
        raise layer.unsupported("several classes for a box")
    codes, scores, anchors = layer.input(0), layer.input(1), layer.input(2)
    most, classes = layer.integer("max_detections"), layer.integer("num_classes")
    count, known = anchors.tensor.shape[0], scores.tensor.shape[-1]
    if not isinstance(count, int) or not isinstance(known, int) or not 0 < classes <= known:
        raise layer.wrong(f"has {classes} classes for {layer.type(1)}")
    codes = reshaped(
        call("slice", codes, begin=(0,), end=(4,), strides=(1,), axes=(2,)), (count, 4)
    )
    boxes = _boxes(layer, codes, anchors)
    rows = call(
        "slice",
        reshaped(scores, (count, known)),
        begin=(known - classes,),
        end=(known,),
        strides=(1,),
        axes=(1,),
    )
    best = call("max", rows, axes=(1,), keepdims=False)
    kinds = call("argmax", rows, axis=1, keepdims=False)
    kept, number = fields(
        call(
            "best_boxes",
            reshaped(boxes, (1, count, 4)),
            reshaped(best, (1, 1, count)),
            scalar(most, "i64"),
            scalar(np.float32(layer.real("nms_iou_threshold")), "f64"),
            scalar(np.nextafter(np.float32(layer.real("nms_score_threshold")), -np.inf), "f64"),
            room=most,
        ),
        2,
    )
    found = kept.tensor.shape[2]
    places = reshaped(kept, (found,))
    if isinstance(found, int) and found < most:
        places = call("pad", places, pads=(0, most - found), mode="constant", value=-1)
    missing = call("less", places, scalar(0, "i64"))
    places = call("where", missing, scalar(0, "i64"), places)
    results = []
    for value in (boxes, cast(kinds, "f32"), best):
        chosen = call("gather", value, places, axis=0)
        empty = reshaped(missing, (most, *(1,) * (value.tensor.rank - 1)))
        chosen = call("where", empty, scalar(0, "f32"), chosen)
        results.append(reshaped(chosen, (1, *chosen.tensor.shape)))
    return [*results, cast(reshaped(number, (1,)), "f32")]


def _boxes(layer: TfliteLayer, codes: Expr, anchors: Expr) -> Expr:
    """Returns the edges of boxes: top, left, bottom, right."""
    given = fields(call("split", codes, sizes=(1,) * 4, axis=1), 4)
    anchor = fields(call("split", anchors, sizes=(1,) * 4, axis=1), 4)
    scales = [np.float32(layer.real(f"{name}_scale")) for name in "yxhw"]
    parts = [call("divide", g, scalar(s, "f32")) for g, s in zip(given, scales, strict=True)]
    low, high = [], []
    for n in range(2):
        center = call("add", _times(parts[n], anchor[n + 2]), anchor[n])
        half = _times(_times(call("exp", parts[n + 2]), anchor[n + 2]), 0.5)
        low.append(call("subtract", center, half))
        high.append(call("add", center, half))
    return call("concatenate", *low, *high, axis=1)
