"""A detector with free height and width, written out with ONNX's own operators.

A residual backbone with strides to 32, a feature pyramid, a head without anchors, decoded boxes and
NonMaxSuppression. Backbone convolutions keep their BatchNormalization, as training-mode exports do;
those of the pyramid and the head have biases, as folded ones do. The pyramid is resized to sizes
read by `Shape`, as exporters write it.

Source: Lin et al., Feature Pyramid Networks, 2017; Tian et al., FCOS, 2019.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from zoo.builder import Builder
from zoo.entries import Entry, Input, image

_SEED = 512
_STEM = 32
_STAGES = (64, 96, 128, 192)  # channels at strides 4, 8, 16, 32
_LEVELS = (8, 16, 32)  # strides of the pyramid
_PYRAMID, _CLASSES = 64, 8
_MOST_OF_A_CLASS, _OVERLAP, _SCORE = 50, 0.5, 0.3
_EPSILON = 1e-5


def entries() -> Iterator[Entry]:
    """Yields the detector."""
    yield Entry(
        name="detector_free",
        groups=frozenset({"handmade", "vision", "cnn", "dynamic", "free"}),
        build=_build,
        inputs=(Input("image", (1, 3, "height", "width"), image),),
        sources=(Path(__file__), Path(__file__).with_name("builder.py")),
        dims={"height": 128, "width": 160},
    )


def _build(path: Path) -> None:
    b = Builder(_SEED)
    _constants(b)
    maps = _pyramid(b, _backbone(b))
    found = [_head(b, x, stride) for x, stride in zip(maps, _LEVELS, strict=True)]
    b.result("Concat", "boxes", [boxes for boxes, _ in found], axis=1)
    b.result("Concat", "scores", [scores for _, scores in found], axis=2)
    _detections(b)
    f32 = TensorProto.FLOAT
    b.save(
        "detector",
        [helper.make_tensor_value_info("image", f32, [1, 3, "height", "width"])],
        [
            helper.make_tensor_value_info("detections", f32, ["found", 6]),
            helper.make_tensor_value_info("boxes", f32, [1, "places", 4]),
            helper.make_tensor_value_info("scores", f32, [1, _CLASSES, "places"]),
        ],
        path,
    )


def _constants(b: Builder) -> None:
    for number in range(4):
        b.ints(f"int{number}", number)
        b.ints(f"axis{number}", (number,))
    b.ints("axis4", (4,))
    b.ints("row", (1, -1))
    b.ints("column", (-1, 1))
    b.weight("half", np.array(0.5, np.float32))


# ---------------------------------------------------------------------------------------- backbone


def _convolution(
    b: Builder, name: str, x: str, channels: tuple[int, int], kernel: int, gain: float = 1.0
) -> str:
    """Adds a convolution with bias; returns the output's name."""
    filters = _filters(b, name, channels, kernel, gain)
    bias = b.drawn(f"{name}.bias", (channels[1],), 0.1)
    pads = [kernel // 2] * 4
    return b.node("Conv", name, [x, filters, bias], pads=pads, kernel_shape=[kernel] * 2)


def _filters(
    b: Builder, name: str, channels: tuple[int, int], kernel: int, gain: float = math.sqrt(2)
) -> str:
    size_in, size_out = channels
    deviation = gain / math.sqrt(size_in * kernel**2)
    return b.drawn(f"{name}.weight", (size_out, size_in, kernel, kernel), deviation)


def _normalized(
    b: Builder, name: str, x: str, channels: tuple[int, int], kernel: int, stride: int = 1
) -> str:
    """Adds a convolution without bias and its batch normalization; returns the output's name."""
    filters = _filters(b, name, channels, kernel)
    options = {"strides": [stride] * 2, "pads": [kernel // 2] * 4, "kernel_shape": [kernel] * 2}
    filtered = b.node("Conv", name, [x, filters], **options)
    width = (channels[1],)
    scale = b.weight(f"{name}.scale", b.rng.uniform(0.5, 1.2, width).astype(np.float32))
    shift, mean = (b.drawn(f"{name}.{part}", width, 0.1) for part in ("shift", "mean"))
    variance = b.weight(f"{name}.variance", b.rng.uniform(0.8, 1.5, width).astype(np.float32))
    norm = [filtered, scale, shift, mean, variance]
    return b.node("BatchNormalization", f"{name}.norm", norm, epsilon=_EPSILON)


def _backbone(b: Builder) -> list[str]:
    """Adds the backbone; returns its maps at strides 8, 16, 32."""
    stem = _normalized(b, "stem", "image", (3, _STEM), 3, stride=2)
    x, size_in = b.node("Relu", "stem.relu", [stem]), _STEM
    maps = []
    for number, size_out in enumerate(_STAGES):
        x = _block(b, f"stage{number}.block0", x, (size_in, size_out), stride=2)
        x = _block(b, f"stage{number}.block1", x, (size_out, size_out), stride=1)
        maps.append(x)
        size_in = size_out
    return maps[1:]


def _block(b: Builder, name: str, x: str, channels: tuple[int, int], stride: int) -> str:
    """Adds two 3x3 convolutions and a residual, by a 1x1 convolution if the size changes."""
    size_out = channels[1]
    first = _normalized(b, f"{name}.conv1", x, channels, 3, stride)
    active = b.node("Relu", f"{name}.relu1", [first])
    second = _normalized(b, f"{name}.conv2", active, (size_out, size_out), 3)
    residual = x if stride == 1 else _normalized(b, f"{name}.shortcut", x, channels, 1, stride)
    return b.node("Relu", f"{name}.relu2", [b.node("Add", f"{name}.add", [second, residual])])


# ----------------------------------------------------------------------------------------- pyramid


def _pyramid(b: Builder, maps: Sequence[str]) -> list[str]:
    """Adds the feature pyramid: each coarser map, resized to the finer one's size, is added."""
    lateral = [
        _convolution(b, f"lateral{stride}", x, (size, _PYRAMID), 1, gain=0.5)
        for x, size, stride in zip(maps, _STAGES[1:], _LEVELS, strict=True)
    ]
    merged = lateral[-1:]
    for finer, stride in zip(lateral[-2::-1], _LEVELS[-2::-1], strict=True):
        larger = _resized(b, f"resize{stride}", merged[0], finer)
        merged.insert(0, b.node("Add", f"merge{stride}", [finer, larger]))
    return [
        _convolution(b, f"smooth{stride}", x, (_PYRAMID, _PYRAMID), 3)
        for x, stride in zip(merged, _LEVELS, strict=True)
    ]


def _resized(b: Builder, name: str, x: str, like: str) -> str:
    """Adds a nearest resize of `x` to the height and width of `like`."""
    ends = b.node("Shape", f"{name}.ends", [x])
    kept = b.node("Slice", f"{name}.kept", [ends, "axis0", "axis2", "axis0"])
    shape = b.node("Shape", f"{name}.shape", [like])
    wanted = b.node("Slice", f"{name}.wanted", [shape, "axis2", "axis4", "axis0"])
    sizes = b.node("Concat", f"{name}.sizes", [kept, wanted], axis=0)
    return b.node("Resize", name, [x, "", "", sizes], mode="nearest",
                  coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip


# -------------------------------------------------------------------------------------------- head


def _head(b: Builder, x: str, stride: int) -> tuple[str, str]:
    """Adds the head of one level; returns names of f32[1, places, 4] and f32[1, classes, places].

    A box is [top, left, bottom, right] in pixels.
    """
    name = f"head{stride}"
    width = (_PYRAMID, _PYRAMID)
    seen = b.node("Relu", f"{name}.relu", [_convolution(b, f"{name}.conv", x, width, 3)])
    logits = _convolution(b, f"{name}.classes", seen, (_PYRAMID, _CLASSES), 1, gain=3.5)
    prior = b.weight(f"{name}.prior", np.array(-3, np.float32))  # few places hold an object
    scores = b.node("Sigmoid", f"{name}.sigmoid", [b.node("Add", f"{name}.rare", [logits, prior])])
    flat = b.node("Reshape", f"{name}.flat", [scores, b.ints(f"{name}.places", (1, _CLASSES, -1))])
    sides = _convolution(b, f"{name}.sides.conv", seen, (_PYRAMID, 4), 1, gain=1.5)
    reach = b.node("Softplus", f"{name}.softplus", [sides])
    step = b.weight(f"{name}.stride", np.array(stride, np.float32))
    return _boxes(b, name, b.node("Mul", f"{name}.pixels", [reach, step]), step), flat


def _boxes(b: Builder, name: str, reach: str, step: str) -> str:
    """Adds boxes: each place's center, less and plus how far the box reaches to each side."""
    y = _centers(b, f"{name}.y", reach, "int2", step, "column")
    x = _centers(b, f"{name}.x", reach, "int3", step, "row")
    sides = []
    for number, (side, center, op) in enumerate(
        (("top", y, "Sub"), ("left", x, "Sub"), ("bottom", y, "Add"), ("right", x, "Add"))
    ):
        far = b.node("Gather", f"{name}.{side}.reach", [reach, f"axis{number}"], axis=1)
        sides.append(b.node(op, f"{name}.{side}", [center, far]))
    joined = b.node("Concat", f"{name}.sides", sides, axis=1)
    last = b.node("Transpose", f"{name}.last", [joined], perm=(0, 2, 3, 1))
    return b.node("Reshape", f"{name}.boxes", [last, b.ints(f"{name}.rows", (1, -1, 4))])


def _centers(b: Builder, name: str, x: str, axis: str, step: str, form: str) -> str:
    """Adds the centers of places along an axis, in pixels."""
    size = b.node("Gather", f"{name}.size", [b.node("Shape", f"{name}.shape", [x]), axis])
    numbers = b.node("Range", f"{name}.range", ["int0", size, "int1"])
    real = b.node("Cast", f"{name}.cast", [numbers], to=TensorProto.FLOAT)
    middle = b.node("Add", f"{name}.middle", [real, "half"])
    centers = b.node("Mul", f"{name}.centers", [middle, step])
    return b.node("Reshape", f"{name}.form", [centers, form])


def _detections(b: Builder) -> None:
    """Adds what is left of `boxes` and `scores`: f32[found, 6], box, score, and class."""
    b.ints("most", (_MOST_OF_A_CLASS,))
    b.weight("overlap", np.array([_OVERLAP], np.float32))
    b.weight("least", np.array([_SCORE], np.float32))
    selected = b.node("NonMaxSuppression", "nms", ["boxes", "scores", "most", "overlap", "least"])
    classes = b.node("Gather", "nms.classes", [selected, "int1"], axis=1)
    places = b.node("Gather", "nms.places", [selected, "int2"], axis=1)
    boxes = b.node("Gather", "found.boxes", [b.node("Squeeze", "one.boxes", ["boxes", "axis0"]),
                                             places], axis=0)  # fmt: skip
    scores = b.node("GatherND", "found.scores", ["scores", selected])
    columns = [
        b.node("Unsqueeze", "column.scores", [scores, "axis1"]),
        b.node("Unsqueeze", "column.classes",
               [b.node("Cast", "real.classes", [classes], to=TensorProto.FLOAT), "axis1"]),
    ]  # fmt: skip
    b.result("Concat", "detections", [boxes, *columns], axis=1)
