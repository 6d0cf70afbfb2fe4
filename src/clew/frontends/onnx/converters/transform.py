"""Shapes, movement of elements, constants, and selection by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from clew.frontends.building import call, cast, fields, filled, reshaped, scalar
from clew.frontends.limits import checked_size
from clew.frontends.onnx.file.tensors import dtype_of, sparse_to_array
from clew.frontends.onnx.held import held
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.dims import Dim, SymDim, product
from clew.ir.expr import Constant, Expr
from clew.ir.types import from_numpy, is_float, to_numpy
from clew.ir.values import is_symbolic
from clew.ops.common import led_by_ones
from clew.ops.math.create import arange_size
from clew.ops.movement.slicing import backward_end, from_front

_MOST_JOINED: Final = 256

# --- shapes ---------------------------------------------------------------------------------------


@converter("Reshape")
def reshape(layer: Layer) -> Result:
    """A shape with 0 for a copied size and one -1 for the remaining size."""
    copies = not ("allowzero" in layer.schema.attributes and layer.flag("allowzero"))
    if copies and layer.known(1) is None:
        return held(layer, "reshape", [layer.input(0)], {"shape": 1})
    return reshaped(layer.input(0), _resolved(layer, layer.dims(1, "the shape"), copies))


def _resolved(layer: Layer, wanted: Sequence[Dim], copies: bool) -> tuple[Dim, ...]:
    """Returns a shape with ONNX's special sizes 0 and -1 resolved."""
    source = layer.type(0).shape
    shape: list[Dim] = list(wanted)
    for n, dim in enumerate(shape):
        if isinstance(dim, int) and dim == 0 and copies:
            if n >= len(source):
                raise layer.wrong(f"copies axis {n} of {layer.type(0)}")
            shape[n] = source[n]
        elif isinstance(dim, int) and dim < -1:
            raise layer.wrong(f"has the size {dim} in its shape")
    free = [n for n, dim in enumerate(shape) if isinstance(dim, int) and dim == -1]
    if len(free) > 1:
        raise layer.wrong(f"has {len(free)} free sizes in its shape {list(map(str, wanted))}")
    if free:
        shape[free[0]] = _rest(layer, source, [d for n, d in enumerate(shape) if n not in free])
    return tuple(shape)


def _rest(layer: Layer, source: Sequence[Dim], fixed: Sequence[Dim]) -> Dim:
    """Returns the size that completes the others. Equal sizes cancel first, so that it stays
    exact.
    """
    left, right = list(source), list(fixed)
    for dim in fixed:
        if dim in left:
            left.remove(dim)
            right.remove(dim)
    total, known = product(tuple(left)), product(tuple(right))
    if isinstance(known, int) and known == 0:
        return 0
    if isinstance(total, int) and isinstance(known, int) and total % known:
        raise layer.wrong(f"cannot reshape {layer.type(0)} to {list(map(str, fixed))} and -1")
    return total // known


@converter("Flatten")
def flatten(layer: Layer) -> Result:
    """Two axes: those before `axis`, and the rest."""
    shape, rank, axis = layer.type(0).shape, layer.rank(), layer.integer("axis")
    if not -rank <= axis <= rank:
        raise layer.wrong(f"axis {axis} is out of range for rank {rank}")
    axis = axis + rank if axis < 0 else axis
    return reshaped(layer.input(0), (product(shape[:axis]), product(shape[axis:])))


@converter("Squeeze")
def squeeze(layer: Layer) -> Result:
    """Drops axes of size 1: the given ones, else all."""
    shape, rank = layer.type(0).shape, layer.rank()
    axes = layer.ints_of("axes", 1)
    if axes is None:
        symbolic = [d for d in shape if isinstance(d, SymDim) and not layer.is_above_one(d)]
        if symbolic:
            raise layer.open_size(f"whether the size {symbolic[0]} is 1", *symbolic)
        axes = tuple(n for n, d in enumerate(shape) if d == 1)
    dropped = {layer.positive(a, rank) for a in axes}
    for n in dropped:
        if isinstance(shape[n], int) and shape[n] != 1:
            raise layer.wrong(f"drops axis {n} of {layer.type(0)}")
    return reshaped(layer.input(0), [d for n, d in enumerate(shape) if n not in dropped])


@converter("Unsqueeze")
def unsqueeze(layer: Layer) -> Result:
    """Adds axes of size 1, at positions in the result."""
    axes = layer.ints_of("axes", 1)
    if axes is None:
        raise layer.wrong("needs axes")
    rank = layer.rank() + len(axes)
    added = {layer.positive(a, rank) for a in axes}
    if len(added) != len(axes):
        raise layer.wrong(f"names one axis twice: {list(axes)}")
    rest = iter(layer.type(0).shape)
    return reshaped(layer.input(0), [1 if n in added else next(rest) for n in range(rank)])


@converter("Transpose")
def transpose(layer: Layer) -> Result:
    """Permuted axes; reversed by default."""
    axes = layer.integers("perm", None)
    if axes is None:
        axes = tuple(reversed(range(layer.rank())))
    return call("transpose", layer.input(0), axes=axes)


@converter("Expand")
def expand(layer: Layer) -> Result:
    """Broadcast by NumPy's rule in both directions."""
    if layer.known(1) is None:
        return held(layer, "broadcast_to", [layer.input(0)], {"shape": 1}, both=True)
    x, wanted = layer.input(0), layer.dims(1, "the shape")
    source = layer.type(0).shape
    rank = max(len(source), len(wanted))
    pairs = list(zip(led_by_ones(source, rank), led_by_ones(wanted, rank), strict=True))
    if any(isinstance(b, SymDim) and a not in (1, b) for a, b in pairs):
        return call("broadcast_to", x, shape=tuple(wanted), both=True)
    return call("broadcast_to", x, shape=tuple(a if b == 1 else b for a, b in pairs))


@converter("Shape")
def shape_of(layer: Layer) -> Result:
    """The sizes of the axes from `start` to `end`."""
    rank, sizes = layer.rank(), call("shape_of", layer.input(0))
    start, end = 0, rank
    if layer.version >= 15:
        start, end = layer.integer("start"), layer.integer("end", rank)
    first, last, _ = slice(start, end).indices(rank)
    if (first, last) == (0, rank):
        return sizes
    return call("slice", sizes, begin=(first,), end=(max(first, last),), strides=(1,), axes=(0,))


@converter("Size")
def size_of(layer: Layer) -> Result:
    """The number of elements."""
    return call("prod", call("shape_of", layer.input(0)), axes=(0,), keepdims=False)


# --- constants ------------------------------------------------------------------------------------


@converter("Constant")
def constant(layer: Layer) -> Result:
    """A tensor in the model's file."""
    if layer.has("value"):
        return Constant(layer.tensor("value"))
    if layer.has("sparse_value"):
        found = layer.attribute("sparse_value")
        assert found is not None
        external, budgets = layer.importer.external, layer.builder.budgets
        return Constant(sparse_to_array(found.sparse_tensor, external, budgets))
    if layer.has("value_float"):
        return Constant(np.float32(layer.attribute("value_float").f))  # type: ignore[union-attr]
    if layer.has("value_floats"):
        return Constant(np.array(layer.reals("value_floats"), np.float32))
    if layer.has("value_int"):
        return Constant(np.int64(layer.integer("value_int")))
    if layer.has("value_ints"):
        return Constant(np.array(layer.integers("value_ints"), np.int64))
    if layer.has("value_string"):
        return Constant(np.array(layer.text("value_string"), to_numpy("str")))
    if layer.has("value_strings"):
        return Constant(np.array(layer.texts("value_strings"), to_numpy("str")))
    raise layer.wrong("has no value")


@converter("ConstantOfShape")
def constant_of_shape(layer: Layer) -> Result:
    """A splat constant."""
    value = layer.tensor("value") if layer.has("value") else np.zeros(1, np.float32)
    if value.size != 1:
        raise layer.wrong(f"has a value of {value.size} elements, expected 1")
    dtype = from_numpy(value.dtype)
    if layer.known(0) is None:
        return held(layer, "full", [], {"shape": 0}, value=value.item(), dtype=dtype)
    shape = layer.dims(0, "the shape")
    checked_size(
        [d for d in shape if isinstance(d, int)], dtype, layer.builder.budgets, "the result"
    )
    return filled(value.reshape(-1)[0], dtype, shape)


@converter("Range")
def arange(layer: Layer) -> Result:
    """Numbers from `start` to below `limit` in steps of `delta`."""
    dtype = layer.type(0).dtype
    names = ("start", "limit", "delta")
    if any(layer.known(n) is None for n in range(3)):
        indices = {"start": 0, "stop": 1, "step": 2}
        return held(layer, "arange", [], indices, dtype=dtype)
    values = [layer.one(n, name) for n, name in enumerate(names)]
    if any(isinstance(v, SymDim) for v in values):
        whole = [v if isinstance(v, SymDim) else int(v) for v in values]
        if whole == values and not isinstance(whole[2], SymDim) and whole[2]:
            return _symbolic_range(layer, whole)
        return held(layer, "arange", [], {"start": 0, "stop": 1, "step": 2}, dtype=dtype)
    start, limit, delta = (float(v) if is_float(dtype) else int(v) for v in values)
    if delta == 0:
        raise layer.wrong("has a step of 0")
    count = arange_size(start, limit, delta)
    assert isinstance(count, int)
    checked_size((count,), dtype, layer.builder.budgets, "the result")
    return call("arange", start=start, stop=limit, step=delta, dtype=dtype)


def _symbolic_range(layer: Layer, values: Sequence[Dim]) -> Expr:
    start, limit, delta = values
    dtype = layer.type(0).dtype
    if not isinstance(start, SymDim):
        return call("arange", start=start, stop=limit, step=delta, dtype=dtype)
    steps = call("arange", start=0, stop=limit - start, step=delta, dtype=dtype)
    return call("add", steps, reshaped(layer.input(0), ()))


@converter("EyeLike")
def eye_like(layer: Layer) -> Result:
    """Ones on a diagonal, in the input's shape."""
    type_ = layer.type(0)
    if type_.rank != 2:
        raise layer.wrong(f"takes 2 axes, got {type_}")
    dtype = dtype_of(layer.integer("dtype"), "the result") if layer.has("dtype") else type_.dtype
    rows, columns = (call("arange", start=0, stop=d, step=1, dtype="i64") for d in type_.shape)
    # Clamped where no diagonal is, so that the sum below does not wrap around.
    shift = min(max(layer.integer("k"), -(1 << 62)), 1 << 62)
    diagonal = call("add", reshaped(rows, (type_.shape[0], 1)), scalar(shift, "i64"))
    return cast(call("equal", diagonal, columns), dtype)


# --- pieces ---------------------------------------------------------------------------------------


@converter("Concat")
def concat(layer: Layer) -> Result:
    """Inputs concatenated along an axis."""
    inputs = layer.present()
    if len(inputs) == 1:
        return inputs[0]
    axis = layer.axis()
    while len(inputs) > _MOST_JOINED:  # a kernel of thousands of operands takes too long
        parts = [inputs[n : n + _MOST_JOINED] for n in range(0, len(inputs), _MOST_JOINED)]
        inputs = [call("concatenate", *p, axis=axis) if len(p) > 1 else p[0] for p in parts]
    return call("concatenate", *inputs, axis=axis)


@converter("Split")
def split(layer: Layer) -> Result:
    """Pieces of given sizes, else of equal size with a shorter last one."""
    axis = layer.axis()
    size = layer.type(0).shape[axis]
    x, count = layer.input(0), len(layer.outputs)
    if layer.optional(1) is not None and layer.known(1) is None:
        return fields(held(layer, "split", [x], {"sizes": 1}, axis=axis), count)
    named = layer.ints_of("split", 1)
    if "num_outputs" in layer.schema.attributes and layer.has("num_outputs"):
        count = layer.integer("num_outputs")
    if count != len(layer.outputs):
        raise layer.wrong(f"splits into {count} pieces, and {len(layer.outputs)} are used")
    sizes: tuple[Dim, ...] = named or _equal_pieces(layer, size, count)
    if len(sizes) == 1:
        return x
    return fields(call("split", x, sizes=sizes, axis=axis), len(sizes))


def _equal_pieces(layer: Layer, size: Dim, count: int) -> tuple[Dim, ...]:
    if isinstance(size, SymDim):
        if size % count != 0:
            raise layer.open_size(f"whether {count} pieces of {size} elements are equal", size)
        return (size // count,) * count
    large = -(-size // count)
    return tuple(max(min(large, size - n * large), 0) for n in range(count))


@converter("Slice")
def slice_by_attributes(layer: Layer) -> Result:
    """Bounds as attributes, to version 9."""
    begin, end = layer.integers("starts"), layer.integers("ends")
    axes = layer.integers("axes") or tuple(range(len(begin)))
    return _slice(layer, begin, end, axes, (1,) * len(begin))


@converter("Slice", since=10)
def slice_by_inputs(layer: Layer) -> Result:
    """Bounds, axes and steps as inputs."""
    if layer.known(1) is None or layer.known(2) is None:
        return _slice_at_run_time(layer)
    begin, end = layer.dims(1, "the starts"), layer.dims(2, "the ends")
    return _slice(layer, begin, end, *_axes_and_steps(layer, len(begin)))


def _axes_and_steps(layer: Layer, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    axes, steps = tuple(range(count)), (1,) * count
    if layer.optional(3) is not None:
        axes = layer.numbers(3, "the axes")
    if layer.optional(4) is not None:
        steps = layer.numbers(4, "the steps")
    return tuple(layer.positive(a, layer.rank()) for a in axes), steps


def _slice_at_run_time(layer: Layer) -> Expr:
    # Starts, ends, axes and steps have the same length: any of them determines it.
    bounds = [layer.type(n) for n in range(1, 5) if layer.optional(n) is not None]
    if any(t.rank != 1 for t in bounds):
        raise layer.wrong(f"has bounds of types {', '.join(map(str, bounds))}")
    counts = [t.shape[0] for t in bounds]
    count = next((c for c in counts if isinstance(c, int)), None)
    if count is None:
        raise layer.open_size(f"the number of starts, {layer.type(1)},", *counts)
    given = {3: "axes", 4: "strides"}
    unknown = {
        name: index
        for index, name in given.items()
        if layer.optional(index) is not None and layer.known(index) is None
    }
    attrs: dict[str, tuple[int, ...]] = {}
    if not unknown:
        attrs["axes"], attrs["strides"] = _axes_and_steps(layer, count)
    elif len(unknown) == 1:
        attrs = {"axes": tuple(range(count)), "strides": (1,) * count}
        for index, name in given.items():
            if name not in unknown and layer.optional(index) is not None:
                attrs[name] = layer.numbers(index, f"the {name}")
        attrs = {name: value for name, value in attrs.items() if name not in unknown}
    return held(layer, "slice", [layer.input(0)], {"begin": 1, "end": 2, **unknown}, **attrs)


def _slice(
    layer: Layer,
    begin: Sequence[Dim],
    end: Sequence[Dim],
    axes: Sequence[int],
    steps: Sequence[int],
) -> Expr:
    if not len(begin) == len(end) == len(axes) == len(steps):
        raise layer.wrong(f"has {len(begin)} starts, {len(end)} ends and {len(axes)} axes")
    if 0 in steps:
        raise layer.wrong("has a step of 0")
    found = tuple(layer.positive(a, layer.rank()) for a in axes)
    if len(set(found)) != len(found):
        raise layer.wrong(f"names one axis twice: {list(axes)}")
    if not found:
        return layer.input(0)
    first, last = list(begin), list(end)
    for n, (axis, step) in enumerate(zip(found, steps, strict=True)):
        size = layer.type(0).shape[axis]
        if isinstance(first[n], SymDim):
            first[n] = from_front(first[n], size, 0, size if step > 0 else size - 1)
        if isinstance(last[n], SymDim):
            bound = last[n]
            last[n] = from_front(bound, size, 0, size) if step > 0 else backward_end(bound, size)
    return call(
        "slice",
        layer.input(0),
        begin=tuple(first),
        end=tuple(last),
        strides=tuple(steps),
        axes=found,
    )


@converter("Pad")
def pad_by_attributes(layer: Layer) -> Result:
    """Widths as attributes, to version 10."""
    value = layer.real("value")
    return _pad(layer, layer.integers("pads"), tuple(range(layer.rank())), value)


@converter("Pad", since=11)
def pad_by_inputs(layer: Layer) -> Result:
    """Widths, value and axes as inputs."""
    rank = layer.rank()
    axes = tuple(range(rank))
    if layer.optional(3) is not None:
        axes = tuple(layer.positive(a, rank) for a in layer.numbers(3, "the axes"))
    value = layer.known_one(2) if layer.optional(2) is not None else 0.0
    if layer.type(0).dtype == "str":
        if value not in (0.0, ""):
            raise layer.unsupported(f"strings padded with {str(value)[:40]!r}")
        value = 0.0  # which stands for ""
    if layer.known(1) is not None and value is not None:
        return _pad(layer, layer.dims(1, "the pads"), axes, float(value))
    if axes != tuple(range(rank)):
        raise layer.unsupported("axes with data-dependent pads")
    indices = {"pads": 1} if layer.optional(2) is None else {"pads": 1, "value": 2}
    return held(layer, "pad", [layer.input(0)], indices, mode=layer.text("mode"))


def _pad(layer: Layer, pads: Sequence[Dim], axes: Sequence[int], value: float) -> Expr:
    rank, count = layer.rank(), len(axes)
    if len(pads) != 2 * count:
        raise layer.wrong(f"has {len(pads)} pads for {count} axes")
    before: list[Dim] = [0] * rank
    after: list[Dim] = [0] * rank
    for n, axis in enumerate(axes):
        before[axis], after[axis] = pads[n], pads[count + n]
    mode = layer.text("mode")
    return call("pad", layer.input(0), pads=(*before, *after), mode=mode, value=value)


@converter("Tile")
def tile(layer: Layer) -> Result:
    """The input repeated along each axis."""
    return held(layer, "tile", [layer.input(0)], {"repeats": 1})


@converter("Trilu")
def trilu(layer: Layer) -> Result:
    """The upper or lower triangle of matrices."""
    indices = {} if layer.optional(1) is None else {"k": 1}
    return held(layer, "trilu", [layer.input(0)], indices, upper=layer.flag("upper"))


@converter("Identity", values=True)
def identity(layer: Layer) -> Result:
    """The input."""
    return layer.input(0)


@converter("SpaceToDepth")
def space_to_depth(layer: Layer) -> Result:
    """Blocks of pixels become blocks of channels."""
    x, b = layer.input(0), layer.integer("blocksize")
    if "mode" not in layer.schema.attributes or layer.text("mode") == "DCR":
        return call("space_to_depth", x, block=b)
    if layer.rank() != 4:
        raise layer.wrong(f"takes 4 axes, got {layer.type(0)}")
    n, c, h, w = layer.type(0).shape
    blocks = call("transpose", reshaped(x, (n, c, h // b, b, w // b, b)), axes=(0, 1, 3, 5, 2, 4))
    return reshaped(blocks, (n, c * b * b, h // b, w // b))


# --- by index -------------------------------------------------------------------------------------


@converter("GatherND")
def gather_nd(layer: Layer) -> Result:
    """Slices selected by several indices each."""
    batch = layer.integer("batch_dims") if "batch_dims" in layer.schema.attributes else 0
    if not 0 <= batch < min(layer.rank(0), layer.rank(1)) or not layer.rank(1):
        raise layer.wrong(f"has batch_dims={batch} for {layer.type(0)} and {layer.type(1)}")
    return call("gather_nd", layer.input(0), layer.input(1), batch_dims=batch)


@converter("OneHot")
def one_hot(layer: Layer) -> Result:
    """The on value at each index along a new axis, else the off value."""
    indices, values = layer.input(0), layer.input(2)
    if is_float(layer.type(0).dtype):
        indices = cast(indices, "i64")
    axis = layer.axis(rank=layer.rank() + 1)
    if layer.known(1) is None:
        depth = cast(reshaped(layer.input(1), ()), "i64")
        return held(layer, "one_hot", [indices, values], {"depth": depth}, axis=axis)
    size = layer.one(1, "the depth")
    size = size if isinstance(size, SymDim) else int(size)
    return call("one_hot", indices, values, depth=size, axis=axis)


# --- what only a run can size ---


@converter("Compress")
def compress(layer: Layer) -> Result:
    """Slices whose condition is true."""
    axis = layer.axis() if layer.has("axis") else None
    return call("compress", layer.input(0), layer.input(1), axis=axis)


@converter("Unique")
def unique(layer: Layer) -> Result:
    """The distinct slices, and their positions."""
    axis = layer.axis() if layer.has("axis") else None
    return fields(call("unique", layer.input(0), axis=axis, sort=layer.flag("sorted")), 4)


@converter("NonMaxSuppression")
def non_max_suppression(layer: Layer) -> Result:
    """The best boxes that do not overlap."""
    limits = [_limit(layer, index, dtype) for index, dtype in ((2, "i64"), (3, "f64"), (4, "f64"))]
    most, overlap, least = limits
    return call(
        "non_max_suppression",
        layer.input(0),
        layer.input(1),
        scalar(0, "i64") if most is None else most,
        scalar(0, "f64") if overlap is None else overlap,
        *([] if least is None else [least]),
        center=layer.flag("center_point_box"),
    )


def _limit(layer: Layer, index: int, dtype: str) -> Expr | None:
    """Returns an optional scalar input, which may be known only in the run; None if not given."""
    given = layer.optional(index)
    if given is None:
        return None
    known = layer.builder.known.get(given)
    if known is None or is_symbolic(known):
        return cast(reshaped(given, ()), dtype)
    return scalar(layer.known_one(index), dtype)
