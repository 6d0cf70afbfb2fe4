"""Random convolutional networks: the blocks of common families, in many sizes."""

from __future__ import annotations

from collections.abc import Callable

from clew.frontends.onnx import ModelProto
from clew.predict.network import Network

_WIDTHS = (16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 120, 128, 144, 160, 192, 224, 256, 288,
           320, 384, 448, 512, 576, 640, 768, 896, 1024)  # fmt: skip
_MOST_WEIGHTS = 60_000_000
# More of the same takes longer to measure, and adds no kinds of kernels.
_MOST_PRODUCTS = 3_000_000_000


class ConvNet(Network):
    """A convolutional network and the style of its layers.

    `folded`: biases in place of batch normalization. `excited`: blocks with squeeze and excitation.
    `preactivated`: dense blocks normalize before they convolve.
    """

    folded = True
    activation = "relu"
    excited = False
    expansion = 1
    groups = 1
    growth = 32
    preactivated = True
    products = 0


def _width(net: ConvNet, low: int, high: int) -> int:
    return net.random.choice([w for w in _WIDTHS if low <= w <= high] or [low])


def _conv(
    net: ConvNet,
    x: str,
    filters: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    pad: int | None = None,
    scale: float = 1.0,
) -> str:
    """Adds a convolution, with a bias or batch normalization, as exporters write them."""
    batch, channels, height, width = net.shapes[x]
    around = kernel // 2 if pad is None else pad
    inner = channels // groups * kernel * kernel
    weight = net.weight(filters, channels // groups, kernel, kernel, scale=scale * inner**-0.5)
    size = [(s + 2 * around - kernel) // stride + 1 for s in (height, width)]
    net.products += batch * filters * size[0] * size[1] * inner
    folded = net.folded
    inputs = [x, weight, *([net.weight(filters, scale=0.1)] if folded else [])]
    y = net.add(
        "Conv",
        inputs,
        (batch, filters, *size),
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        pads=[around] * 4,
        group=groups,
    )
    return y if folded else _batch_norm(net, y)


def _batch_norm(net: ConvNet, x: str) -> str:
    channels = net.shapes[x][1]
    parts = [
        net.weight(channels, scale=0.1, mean=1.0),
        net.weight(channels, scale=0.1),
        net.weight(channels, scale=0.1),
        net.constant([1.0] * channels),
    ]
    return net.add("BatchNormalization", [x, *parts], net.shapes[x], epsilon=1e-5)


def _act(net: ConvNet, x: str) -> str:
    match net.activation:
        case "relu6":
            bounds = [net.constant(0.0), net.constant(6.0)]
            return net.add("Clip", [x, *bounds], net.shapes[x])
        case "silu":
            return net.binary("Mul", x, net.unary("Sigmoid", x))
        case "hard_swish":
            return net.unary("HardSwish", x)
    return net.unary("Relu", x)


def _pool(net: ConvNet, x: str, kernel: int, stride: int, pad: int, op: str = "MaxPool") -> str:
    batch, channels, *sizes = net.shapes[x]
    out = [(s + 2 * pad - kernel) // stride + 1 for s in sizes]
    return net.add(
        op,
        [x],
        (batch, channels, *out),
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        pads=[pad] * 4,
    )


def _concat(net: ConvNet, parts: list[str]) -> str:
    batch, _, *sizes = net.shapes[parts[0]]
    channels = sum(net.shapes[p][1] for p in parts)
    return net.add("Concat", parts, (batch, channels, *sizes), axis=1)


def _global_mean(net: ConvNet, x: str) -> str:
    batch, channels, *_ = net.shapes[x]
    return net.add("GlobalAveragePool", [x], (batch, channels, 1, 1))


def _excite(net: ConvNet, x: str) -> str:
    """Squeeze and excitation."""
    channels = net.shapes[x][1]
    squeezed = _global_mean(net, x)
    folded, net.folded = net.folded, True
    y = net.unary("Relu", _conv(net, squeezed, max(8, channels // net.random.choice((4, 8, 16)))))
    y = net.unary("Sigmoid", _conv(net, y, channels))
    net.folded = folded
    return net.binary("Mul", x, y)


# Each maps a value to one with `filters` channels, at `stride`.


def _plain(net: ConvNet, x: str, filters: int, stride: int) -> str:
    kernel = net.random.choice((3, 3, 3, 1, 5))
    return _act(net, _conv(net, x, filters, kernel, stride))


def _shortcut(net: ConvNet, x: str, filters: int, stride: int) -> str:
    if stride == 1 and net.shapes[x][1] == filters:
        return x
    return _conv(net, x, filters, 1, stride)


def _basic(net: ConvNet, x: str, filters: int, stride: int) -> str:
    y = _act(net, _conv(net, x, filters, 3, stride))
    y = _conv(net, y, filters, 3, scale=0.5)
    return _act(net, net.binary("Add", y, _shortcut(net, x, filters, stride)))


def _bottleneck(net: ConvNet, x: str, filters: int, stride: int) -> str:
    inner = max(16, filters // net.expansion)
    groups = net.groups if inner % net.groups == 0 else 1
    y = _act(net, _conv(net, x, inner))
    y = _act(net, _conv(net, y, inner, 3, stride, groups))
    y = _excite(net, y) if net.excited else y
    y = _conv(net, y, filters, scale=0.5)
    return _act(net, net.binary("Add", y, _shortcut(net, x, filters, stride)))


def _inverted(net: ConvNet, x: str, filters: int, stride: int) -> str:
    channels = net.shapes[x][1]
    inner = channels * net.expansion
    y = _act(net, _conv(net, x, inner)) if net.expansion > 1 else x
    kernel = net.random.choice((3, 3, 5))
    y = _act(net, _conv(net, y, inner, kernel, stride, groups=inner))
    y = _excite(net, y) if net.excited else y
    y = _conv(net, y, filters)
    same = stride == 1 and channels == filters
    return net.binary("Add", x, y) if same else y


def _separable(net: ConvNet, x: str, filters: int, stride: int) -> str:
    channels = net.shapes[x][1]
    y = _act(net, _conv(net, x, channels, 3, stride, groups=channels))
    return _act(net, _conv(net, y, filters))


def _fire(net: ConvNet, x: str, filters: int, stride: int) -> str:
    x = _pool(net, x, 3, 2, 0) if stride == 2 else x
    squeezed = _act(net, _conv(net, x, max(16, filters // net.random.choice((4, 8)))))
    parts = [_act(net, _conv(net, squeezed, filters // 2, kernel)) for kernel in (1, 3)]
    return _concat(net, parts)


def _inception(net: ConvNet, x: str, filters: int, stride: int) -> str:
    x = _pool(net, x, 3, 2, 1) if stride == 2 else x
    share = [max(16, filters // n // 8 * 8) for n in (4, 2, 8, 8)]
    parts = [_act(net, _conv(net, x, share[0]))]
    y = _act(net, _conv(net, x, max(16, share[1] // 2)))
    parts.append(_act(net, _conv(net, y, share[1], 3)))
    y = _act(net, _conv(net, x, max(16, share[2] // 2 // 8 * 8)))
    parts.append(_act(net, _conv(net, y, share[2], net.random.choice((3, 5)))))
    parts.append(_act(net, _conv(net, _pool(net, x, 3, 1, 1), share[3])))
    return _concat(net, parts)


def _dense(net: ConvNet, x: str, filters: int, stride: int) -> str:
    """A dense block, in which every layer reads all earlier ones, and then a transition."""
    growth = net.growth
    for _ in range(net.random.randint(3, 10)):
        y = net.unary("Relu", _batch_norm(net, x)) if net.preactivated else x
        folded, net.folded = net.folded, net.folded and not net.preactivated
        y = _conv(net, y, 4 * growth)
        y = net.unary("Relu", y)
        net.folded = True
        y = _conv(net, y, growth, 3)
        net.folded = folded
        x = _concat(net, [x, y])
    x = net.unary("Relu", _batch_norm(net, x))
    x = _conv(net, x, net.shapes[x][1] // 16 * 8)
    return _pool(net, x, 2, 2, 0, "AveragePool") if stride == 2 else x


def _shuffled(net: ConvNet, x: str, filters: int, stride: int) -> str:
    """ShuffleNet's unit: grouped 1x1 convolutions with channels shuffled between."""
    batch, channels, *sizes = net.shapes[x]
    groups = net.groups
    inner = max(groups * 8, filters // 4 // (8 * groups) * 8 * groups)
    first = groups if channels % groups == 0 else 1
    y = _act(net, _conv(net, x, inner, groups=first))
    y = net.reshape(y, (batch, groups, inner // groups, *sizes))
    y = net.reshape(net.transpose(y, (0, 2, 1, 3, 4)), (batch, inner, *sizes))
    y = _conv(net, y, inner, 3, stride, groups=inner)
    if stride == 1 and channels % groups == 0:
        return _act(net, net.binary("Add", x, _conv(net, y, channels, groups=groups)))
    filters = max(groups * 8, filters // (8 * groups) * 8 * groups)
    y = _conv(net, y, filters, groups=groups)
    if stride == 1:
        return _act(net, y)
    return _act(net, _concat(net, [_pool(net, x, 3, 2, 1, "AveragePool"), y]))


_BLOCKS: dict[str, Callable[[ConvNet, str, int, int], str]] = {
    "plain": _plain,
    "basic": _basic,
    "bottleneck": _bottleneck,
    "inverted": _inverted,
    "separable": _separable,
    "fire": _fire,
    "inception": _inception,
    "dense": _dense,
    "shuffled": _shuffled,
}
# How often each is drawn: more often, the more kinds of kernels it has that others lack.
_DRAWN = {"plain": 1, "basic": 1, "bottleneck": 2, "inverted": 4, "separable": 3, "fire": 1,
          "inception": 1, "dense": 1, "shuffled": 1}  # fmt: skip
# For each block, the widths of its first stage, and their upper bound.
_FIRST_WIDTHS = {"plain": (32, 96), "basic": (32, 96), "bottleneck": (64, 288),
                 "inverted": (16, 40), "separable": (32, 80), "fire": (64, 192),
                 "inception": (96, 288), "dense": (48, 96), "shuffled": (64, 288)}  # fmt: skip


def small_convnet(seed: int) -> tuple[str, ModelProto]:
    """Returns a random convolutional network of small images and few channels, which fits in a
    core's caches, and its kind.
    """
    return convnet(seed, small=True)


def convnet(seed: int, small: bool = False) -> tuple[str, ModelProto]:
    """Returns a random convolutional network, and its kind.

    A stem, up to five stages of one kind of block at halving sizes, pooling and products.
    """
    net = ConvNet("convnet", seed)
    draw = net.random
    kind = draw.choices(list(_BLOCKS), [_DRAWN[kind] for kind in _BLOCKS])[0]
    net.folded = draw.random() < 0.6
    net.activation = {"inverted": draw.choice(("relu6", "relu6", "silu", "hard_swish"))}.get(
        kind, draw.choice(("relu",) * 8 + ("silu",))
    )
    net.excited = kind in ("inverted", "bottleneck") and draw.random() < 0.3
    net.expansion = draw.choice((3, 4, 6, 6)) if kind == "inverted" else draw.choice((2, 4, 4))
    grouped = kind == "shuffled" or (kind == "bottleneck" and draw.random() < 0.25)
    net.groups = (
        draw.choice((2, 3, 4, 8) if kind == "shuffled" else (4, 8, 16, 32)) if grouped else 1
    )
    net.growth = draw.choice((12, 16, 24, 32, 32, 40, 48))
    net.preactivated = draw.random() < 0.8
    size = draw.choice((96, 128, 160, 192, 224, 224, 224, 224, 256))
    if small:
        size = draw.choice((24, 28, 32, 40, 48, 64))
    batch = draw.choice((1,) * 12 + (2, 4))
    x = _stem(net, net.input("image", (batch, 3, size, size)), kind)
    low, high = _FIRST_WIDTHS[kind]
    low, high = (low // 2, high // 2) if small else (low, high)
    width = _width(net, low, high)
    for stage in range(5):
        side = net.shapes[x][2]
        if side <= 4 or net.weight_elems > _MOST_WEIGHTS or net.products > _MOST_PRODUCTS:
            break
        stride = 1 if stage == 0 and side <= size // 4 else 2
        blocks = 1 if kind == "dense" else draw.randint(1, 4)
        for n in range(blocks):
            if n and net.products > _MOST_PRODUCTS:
                break
            x = _BLOCKS[kind](net, x, width, stride if n == 0 else 1)
        width = _width(net, int(1.3 * width), 2 * width)
    return kind, net.model(_head(net, x))


def _stem(net: ConvNet, x: str, kind: str) -> str:
    draw = net.random
    filters = 16 if kind == "inverted" and draw.random() < 0.2 else _width(net, 24, 96)
    kernel = draw.choice((3, 3, 3, 7, 7, 5, 11))
    stride = 4 if kernel == 11 else draw.choice((1, 2, 2, 2, 2)) if kernel == 3 else 2
    x = _act(net, _conv(net, x, filters, kernel, stride, pad=draw.choice((0, kernel // 2))))
    if draw.random() < 0.6:
        x = _pool(net, x, 3, 2, draw.choice((0, 1)))
    return x


def _head(net: ConvNet, x: str) -> str:
    draw = net.random
    batch, channels, height, width = net.shapes[x]
    classes = draw.choice((10, 100, 1000, 1000))
    flat = channels * height * width
    if flat <= 30_000 and draw.random() < 0.25:
        y = net.reshape(x, (batch, flat))
        hidden = draw.choice((512, 1024, 2048, 4096))
        y = net.unary("Relu", _product(net, y, hidden))
        y = net.unary("Relu", _product(net, y, hidden)) if draw.random() < 0.5 else y
    else:
        if draw.random() < 0.4:
            x = _act(net, _conv(net, x, _width(net, 512, 1024)))
        if draw.random() < 0.2:  # like SqueezeNet: a convolution computes the classes
            x = _act(net, _conv(net, x, classes))
            return net.reshape(_global_mean(net, x), (batch, classes))
        y = net.reshape(_global_mean(net, x), (batch, net.shapes[x][1]))
    y = _product(net, y, classes)
    return net.unary("Softmax", y, axis=-1) if draw.random() < 0.5 else y


def _product(net: ConvNet, x: str, columns: int) -> str:
    rows, depth = net.shapes[x]
    weight = net.weight(depth, columns, scale=depth**-0.5)
    return net.add("Gemm", [x, weight, net.weight(columns, scale=0.1)], (rows, columns))
