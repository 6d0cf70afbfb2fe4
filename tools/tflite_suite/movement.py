"""How operators that move and choose elements are drawn, and the rest."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clew.frontends.tflite.file.schema import DTYPES
from tflite_suite.cases import (
    PLAIN,
    QUANTIZED,
    Case,
    Draw,
    Operand,
    constant,
    family,
)
from tflite_suite.flexbuffers import flexible

_ANY: Final = ("f32", "i8", "u8", "i16", "i32", "i64", "bool")


def _axis(draw: Draw, rank: int) -> int:
    return draw.whole(-rank, rank - 1)


def _moved(
    draw: Draw, op: str, shape: tuple[int, ...], more: list[Any], options: Any = None,
    *, version: int = 2, dtype: str = "",
) -> Case:  # fmt: skip
    kind = dtype or draw.one(*_ANY)
    x = draw.tensor(shape, kind)
    return Case(op, [x, *more], [(kind, x.quantum)], options, version)


@family("RESHAPE")
def reshape(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape = draw.shape(0, 5)
    wanted = list(draw.rng.permutation(shape))
    if wanted and draw.flag():
        wanted[draw.whole(0, len(wanted) - 1)] = -1
    if draw.flag():
        return _moved(draw, op, shape, [constant(wanted)])
    return _moved(draw, op, shape, [], ("ReshapeOptions", {"new_shape": wanted}))


@family("TRANSPOSE")
def transpose(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape = draw.shape(1, 6)
    return _moved(draw, op, shape, [constant(draw.rng.permutation(len(shape)))], version=5)


@family("SQUEEZE")
def squeeze(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape = tuple(draw.one(1, draw.whole(1, 3)) for _ in range(draw.whole(1, 6)))
    ones = [n for n, size in enumerate(shape) if size == 1]
    dims = [n for n in ones if draw.flag()]
    if not dims and shape[0] == 1:
        shape = (2, *shape[1:])  # which axes are dropped may not depend on a free size
    return _moved(draw, op, shape, [], ("SqueezeOptions", {"squeeze_dims": dims}))


@family("EXPAND_DIMS")
def expand_dims(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape = draw.shape(0, 5)
    return _moved(draw, op, shape, [constant(_axis(draw, len(shape) + 1))])


@family("SHAPE", "RANK")
def shape_of(draw: Draw, op: str) -> Case:
    """Draws a case."""
    x, kind = draw.tensor(draw.shape(), draw.one(*_ANY)), draw.one("i32", "i64")
    if op == "RANK":
        return Case(op, [x], [("i32", PLAIN)])
    return Case(op, [x], [(kind, PLAIN)], ("ShapeOptions", {"out_type": DTYPES.index(kind)}))


@family("PAD", "PADV2")
def pad(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape, dtype = draw.shape(1, 5), draw.one(*_ANY)
    pads = constant([[draw.whole(0, 2), draw.whole(0, 2)] for _ in shape], draw.one("i32", "i64"))
    x = draw.tensor(shape, dtype)
    operands = [x, pads]
    if op == "PADV2":
        value = draw.tensor((), dtype, quantum=x.quantum)
        operands.append(Operand(value.value, True, value.quantum))
    return Case(op, operands, [(dtype, x.quantum)], version=3)


@family("MIRROR_PAD")
def mirror_pad(draw: Draw, op: str) -> Case:
    """Draws a case."""
    mode, shape = draw.whole(0, 1), draw.shape(1, 4, 5)
    most = [size - 1 if mode == 0 else size for size in shape]
    pads = constant([[draw.whole(0, n), draw.whole(0, n)] for n in most])
    return _moved(draw, op, shape, [pads], ("MirrorPadOptions", {"mode": mode}))


@family("CONCATENATION")
def concatenation(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape, dtype = draw.shape(1, 5), draw.one(*_ANY)
    axis = _axis(draw, len(shape))
    count = draw.whole(1, 4)
    shapes = [list(shape) for _ in range(count)]
    for each in shapes:
        each[axis] = draw.whole(1, 4)
    quantum = draw.quantum(dtype) if dtype in QUANTIZED else PLAIN
    other = dtype == "u8" and draw.flag()
    operands = [draw.tensor(s, dtype, quantum=None if other else quantum) for s in shapes]
    given = {"axis": axis, "activation": draw.whole(0, 3) if dtype == "f32" else 0}
    return Case(op, operands, [(dtype, quantum)], ("ConcatenationOptions", given), version=2)


@family("PACK")
def pack(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape, dtype, count = draw.shape(0, 5), draw.one(*_ANY), draw.whole(1, 4)
    quantum = draw.quantum(dtype) if dtype in QUANTIZED else PLAIN
    options = ("PackOptions", {"values_count": count, "axis": _axis(draw, len(shape) + 1)})
    operands = [draw.tensor(shape, dtype, quantum=quantum) for _ in range(count)]
    return Case(op, operands, [(dtype, quantum)], options, version=2)


@family("UNPACK")
def unpack(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape = draw.shape(1, 5)
    axis = _axis(draw, len(shape))
    made = _moved(draw, op, shape, [], ("UnpackOptions", {"num": shape[axis], "axis": axis}))
    return Case(op, made.operands, list(made.results) * shape[axis], made.options, 2)


@family("SPLIT", "SPLIT_V")
def split(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape, count = list(draw.shape(1, 5)), draw.whole(1, 3)
    axis = _axis(draw, len(shape))
    sizes = [draw.whole(1, 3) for _ in range(count)]
    shape[axis] = sum(sizes) if op == "SPLIT_V" else count * sizes[0]
    x = draw.tensor(shape, draw.one(*_ANY))
    results = [(str(made), x.quantum) for made in [_dtype(x)] * count]
    if op == "SPLIT":
        operands = [constant(axis), x]
        return Case(op, operands, results, ("SplitOptions", {"num_splits": count}), 4)
    if draw.flag():
        sizes[draw.whole(0, count - 1)] = -1
    operands = [x, constant(sizes), constant(axis)]
    return Case(op, operands, results, ("SplitVOptions", {"num_splits": count}), 2)


def _dtype(x: Operand) -> str:
    kind = x.value.dtype
    return "bool" if kind == np.bool_ else f"{kind.kind}{8 * kind.itemsize}"


@family("SLICE")
def slices(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape, kind = draw.shape(1, 5), draw.one("i32", "i64")
    begin = [draw.whole(0, size - 1) for size in shape]
    sizes = [draw.one(-1, draw.whole(1, size - b)) for size, b in zip(shape, begin, strict=True)]
    return _moved(draw, op, shape, [constant(begin, kind), constant(sizes, kind)], version=3)


@family("STRIDED_SLICE")
def strided_slice(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape = draw.shape(1, 4)
    given = draw.whole(1, len(shape))
    begin, end, steps = [], [], []
    masks = dict.fromkeys(("begin_mask", "end_mask", "shrink_axis_mask"), 0)
    for n, size in enumerate(shape[:given]):
        step = draw.one(1, 1, 2, -1)
        a, b = sorted((draw.whole(0, size), draw.whole(0, size)))
        first, last = (a, b) if step > 0 else (b - 1, a - 1)
        begin.append(first if draw.flag() else first - size)
        end.append(last if last < 0 or draw.flag() else last - size - (last == size) * 0)
        steps.append(step)
        for mask in masks:
            if not draw.whole(0, 3):
                masks[mask] |= 1 << n
        if masks["shrink_axis_mask"] >> n & 1:
            begin[n], end[n], steps[n] = draw.whole(-size, size - 1), 0, 1
    more = {"ellipsis_mask": 0, "new_axis_mask": 0}
    if draw.whole(0, 2) == 0:
        place = draw.whole(0, given - 1)
        steps[place] = 1
        more[draw.one("ellipsis_mask", "new_axis_mask")] = 1 << place
        for mask in masks:
            masks[mask] &= ~(1 << place)
    options = ("StridedSliceOptions", {**masks, **more, "offset": False})
    constants = [constant(each) for each in (begin, end, steps)]
    return _moved(draw, op, shape, constants, options, version=4)


@family("TILE")
def tile(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape = draw.shape(0, 5)
    repeats = constant([draw.whole(1, 3) for _ in shape], draw.one("i32", "i64"))
    return _moved(draw, op, shape, [repeats], version=3)


@family("BROADCAST_TO")
def broadcast_to(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape = draw.shape(0, 5)
    own = tuple(size if draw.flag() else 1 for size in shape)[draw.whole(0, len(shape)) :]
    return _moved(draw, op, own, [constant(shape, draw.one("i32", "i64"))], version=3)


@family("REVERSE_V2")
def reverse(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape = draw.shape(1, 5)
    axes = [n for n in range(len(shape)) if draw.flag()] or [0]
    return _moved(draw, op, shape, [constant(axes)], version=3)


@family("FILL")
def fill(draw: Draw, op: str) -> Case:
    """Draws a case."""
    value = draw.tensor((), draw.one(*_ANY))
    operands = [constant(draw.shape(), draw.one("i32", "i64")), value]
    return Case(op, operands, [(_dtype(value), value.quantum)], version=3)


@family("RANGE")
def numbers(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = draw.one("f32", "i32", "i64")
    step = draw.one(1, 2, -1, 0.5 if dtype == "f32" else 3)
    first = draw.whole(-3, 3)
    values = first, first + step * draw.whole(0, 5), step
    return Case(op, [constant(v, dtype) for v in values], [(dtype, PLAIN)], version=2)


@family("GATHER")
def gather(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape = draw.shape(1, 4)
    batch = draw.one(0, 0, draw.whole(0, len(shape) - 1))
    axis = draw.whole(batch, len(shape) - 1)
    inner = draw.shape(0, 2)
    kind = draw.one("i32", "i64")
    index = Operand(draw.values((*shape[:batch], *inner), kind, 0, shape[axis] - 1), draw.flag())
    options = ("GatherOptions", {"axis": axis, "batch_dims": batch})
    return _moved(draw, op, shape, [index], options, version=5)


@family("GATHER_ND")
def gather_nd(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape = draw.shape(1, 4)
    depth = draw.whole(1, len(shape))
    outer = draw.shape(0, 2)
    rows = np.stack([draw.values(outer, "i32", 0, size - 1) for size in shape[:depth]], -1)
    return _moved(draw, op, shape, [Operand(rows.astype(draw.one(np.int32, np.int64)))], version=5)


@family("SCATTER_ND")
def scatter_nd(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape, dtype = draw.shape(1, 4), draw.one("f32", "i8", "u8", "i32", "i64", "bool")
    depth = draw.whole(1, len(shape))
    outer = draw.shape(1, 2)
    rows = np.stack([draw.values(outer, "i32", 0, size - 1) for size in shape[:depth]], -1)
    updates = Operand(draw.values((*outer, *shape[depth:]), dtype))
    operands = [Operand(rows.astype(np.int32)), updates, constant(shape)]
    return Case(op, operands, [(dtype, PLAIN)])


@family("SPARSE_TO_DENSE")
def sparse_to_dense(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = draw.one("f32", "i32", "i64", "i8", "u8")
    shape = draw.shape(1, 4)
    count = draw.whole(1, 4)
    rows = np.unique(np.stack([draw.values((count,), "i32", 0, s - 1) for s in shape], -1), axis=0)
    places, count = rows.astype(np.int32), len(rows)
    if len(shape) == 1 and draw.flag():
        places = places[:, 0]
    values = draw.values(() if draw.flag() else (count,), dtype)
    operands = [Operand(places), constant(shape), Operand(values), constant(1, dtype)]
    options = ("SparseToDenseOptions", {"validate_indices": draw.flag()})
    return Case(op, operands, [(dtype, PLAIN)], options, version=3)


@family("ONE_HOT")
def one_hot(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, shape = draw.one("f32", "i32", "i64", "i8", "u8", "bool"), draw.shape(0, 4)
    depth = draw.whole(1, 5)
    index = Operand(draw.values(shape, draw.one("i32", "i64"), -1, depth))
    options = ("OneHotOptions", {"axis": draw.whole(-1, len(shape))})
    operands = [index, constant(depth), constant(1, dtype), constant(0, dtype)]
    return Case(op, operands, [(dtype, PLAIN)], options)


@family("WHERE")
def where(draw: Draw, op: str) -> Case:
    """Draws a case."""
    x = Operand(draw.values(draw.shape(1, 5), draw.one("bool", "f32", "i32", "i8", "i64"), -1, 1))
    return Case(op, [x], [("i64", PLAIN)])


@family("UNIQUE")
def unique(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, kind = draw.one("f32", "i32", "i64", "i8", "i16"), draw.one("i32", "i64")
    x = Operand(draw.values((draw.whole(1, 9),), dtype, -2, 2).round())
    options = ("UniqueOptions", {"idx_out_type": DTYPES.index(kind)})
    return Case(op, [x], [(dtype, PLAIN), (kind, PLAIN)], options)


@family("REVERSE_SEQUENCE")
def reverse_sequence(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape = draw.shape(2, 5)
    time, batch = draw.rng.permutation(len(shape))[:2]
    lengths = Operand(draw.values((shape[batch],), draw.one("i32", "i64"), 0, shape[time]))
    options = ("ReverseSequenceOptions", {"seq_dim": int(time), "batch_dim": int(batch)})
    return _moved(draw, op, shape, [lengths], options)


@family("MATRIX_DIAG", "MATRIX_SET_DIAG")
def diagonals(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = draw.one("f32", "i8", "u8", "i16", "i32", "i64")
    if op == "MATRIX_DIAG":
        return _moved(draw, op, draw.shape(1, 4), [], ("MatrixDiagOptions", {}), dtype=dtype)
    shape = draw.shape(2, 4)
    x = draw.tensor(shape, dtype)
    diagonal = draw.tensor((*shape[:-2], min(shape[-2:])), dtype, quantum=x.quantum)
    return Case(op, [x, diagonal], [(dtype, x.quantum)], ("MatrixSetDiagOptions", {}))


@family("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape, dtype = draw.shape(0, 4), draw.one(*_ANY)
    x = draw.tensor(shape, dtype)
    update = draw.tensor([draw.whole(1, s) for s in shape], dtype, quantum=x.quantum)
    start = Operand(draw.values((len(shape),), draw.one("i32", "i64"), -1, 4))
    return Case(op, [x, update, start], [(dtype, x.quantum)], version=2)


@family("BROADCAST_ARGS")
def broadcast_args(draw: Draw, op: str) -> Case:
    """Draws a case."""
    shape = draw.shape(1, 5)
    a, b = ([size if draw.flag() else 1 for size in shape] for _ in range(2))
    kind = draw.one("i32", "i64")
    operands = [Operand(constant(each, kind).value) for each in (a, b[draw.whole(0, len(b) - 1) :])]
    return Case(op, operands, [(kind, PLAIN)])


# --- lookups --------------------------------------------------------------------------------------


@family("EMBEDDING_LOOKUP")
def embedding_lookup(draw: Draw, op: str) -> Case:
    """Draws a case."""
    table = draw.tensor(draw.shape(2, 3, 5), "f32", constant=draw.flag())
    index = Operand(draw.values((draw.whole(1, 5),), "i32", 0, table.value.shape[0] - 1))
    return Case(op, [index, table], [("f32", PLAIN)])


@family("EMBEDDING_LOOKUP_SPARSE")
def embedding_lookup_sparse(draw: Draw, op: str) -> Case:
    """Draws a case."""
    table, outer, most = draw.tensor(draw.shape(2, 3, 5), "f32"), draw.shape(1, 2, 3), 3
    shape = [*outer, most]
    rows = np.unique(np.stack([draw.values((5,), "i32", 0, s - 1) for s in shape], -1), axis=0)
    count = len(rows)
    ids = Operand(draw.values((count,), "i32", 0, table.value.shape[0] - 1))
    weights = draw.tensor((count,), "f32", low=0.5, high=2)
    options = ("EmbeddingLookupSparseOptions", {"combiner": draw.whole(0, 2)})
    operands = [ids, Operand(rows.astype(np.int32)), constant(shape), weights, table]
    return Case(op, operands, [("f32", PLAIN)], options)


@family("HASHTABLE_LOOKUP")
def hashtable_lookup(draw: Draw, op: str) -> Case:
    """Draws a case."""
    keys = np.sort(draw.rng.permutation(9)[: draw.whole(1, 6)]).astype(np.int32)
    values = draw.tensor((len(keys), *draw.shape(0, 2)), draw.one("f32", "i32"))
    wanted = Operand(draw.values((draw.whole(1, 6),), "i32", 0, 9))
    return Case(op, [wanted, Operand(keys), values], [(_dtype(values), PLAIN), ("u8", PLAIN)])


@family("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def suppression(draw: Draw, op: str) -> Case:
    """Draws a case."""
    count = draw.whole(1, 8)
    corners = np.sort(draw.values((count, 2, 2), "f32", 0, 1), axis=1).reshape(count, 4)
    operands = [Operand(corners), draw.tensor((count,), "f32", low=0, high=1),
                constant(draw.whole(1, 10)), constant(0.3, "f32"),
                constant(0.2, "f32")]  # fmt: skip
    results = [("i32", PLAIN), ("i32", PLAIN)]
    if op == "NON_MAX_SUPPRESSION_V5":
        operands.append(constant(draw.one(0, 0, 0.5), "f32"))
        results.insert(1, ("f32", PLAIN))
    return Case(op, operands, results)


# --- signals and random numbers -------------------------------------------------------------------


@family("RFFT2D")
def rfft2d(draw: Draw, op: str) -> Case:
    """Draws a case."""
    x = draw.tensor((*draw.shape(0, 2), draw.whole(2, 9), draw.whole(2, 9)), "f32")
    return Case(op, [x, constant([draw.one(2, 4, 8), draw.one(2, 4, 8)])], [("c64", PLAIN)])


@family("REAL", "IMAG", "COMPLEX_ABS")
def parts(draw: Draw, op: str) -> Case:
    """Draws a case."""
    return Case(op, [draw.tensor(draw.shape(), "c64")], [("f32", PLAIN)])


@family("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL")
def random(draw: Draw, op: str) -> Case:
    """Draws a case."""
    options = ("RandomOptions", {"seed": draw.whole(0, 3), "seed2": draw.whole(0, 3)})
    if op != "MULTINOMIAL":
        return Case(op, [constant(draw.shape())], [("f32", PLAIN)], options, random=True)
    x, kind = draw.tensor((draw.whole(1, 3), draw.whole(1, 4)), "f32"), draw.one("i32", "i64")
    return Case(op, [x, constant(draw.whole(1, 5))], [(kind, PLAIN)], options, random=True)


@family("TFLite_Detection_PostProcess")
def detection(draw: Draw, op: str) -> Case:
    """Draws a case."""
    count, classes, most = draw.whole(2, 9), draw.whole(1, 3), draw.whole(1, 6)
    known = classes + draw.whole(0, 1)
    options = flexible({
        "max_detections": most, "max_classes_per_detection": 1, "num_classes": classes,
        "nms_score_threshold": 0.2, "nms_iou_threshold": 0.4, "y_scale": 10.0, "x_scale": 10.0,
        "h_scale": 5.0, "w_scale": 5.0, "use_regular_nms": False,
    })  # fmt: skip
    scores = draw.rng.permutation(count * known).reshape(1, count, known) / (count * known)
    anchors = np.concatenate(
        [draw.values((count, 2), "f32", 0, 1), draw.values((count, 2), "f32", 0.3, 1)], axis=1
    )
    operands = [draw.tensor((1, count, 4), "f32"), Operand(scores.astype(np.float32)),
                Operand(anchors, True)]  # fmt: skip
    return Case(op, operands, [("f32", PLAIN)] * 4, custom=options, counted=3)


# --- StableHLO ------------------------------------------------------------------------------------


@family("STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM",
        "STABLEHLO_AND", "STABLEHLO_SHIFT_LEFT")  # fmt: skip
def stablehlo_pairs(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = draw.one("f32", "i32", "i64", "i16", "i8")
    if op == "STABLEHLO_AND":
        dtype = draw.one("bool", "i32", "i64", "i8")
    if op == "STABLEHLO_SHIFT_LEFT":
        dtype = draw.one("i32", "i16", "i8")
    shape, low = draw.shape(1, 5), 0 if op == "STABLEHLO_SHIFT_LEFT" else -4
    operands = [Operand(draw.values(shape, dtype, low)) for _ in range(2)]
    return Case(op, operands, [(dtype, PLAIN)])


@family("STABLEHLO_PAD")
def stablehlo_pad(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, shape = draw.one("f32", "i32", "i64"), draw.shape(1, 4)
    low, high = ([draw.whole(-1, 2) if size > 2 else draw.whole(0, 2) for size in shape]
                 for _ in range(2))  # fmt: skip
    given = {"edge_padding_low": low, "edge_padding_high": high,
             "interior_padding": [draw.whole(0, 2) for _ in shape]}  # fmt: skip
    operands = [Operand(draw.values(shape, dtype)), constant(draw.whole(0, 3), dtype)]
    return Case(op, operands, [(dtype, PLAIN)], ("StablehloPadOptions", given))


@family("STABLEHLO_GATHER")
def stablehlo_gather(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, shape = draw.one("f32", "i32", "i64"), draw.shape(1, 4)
    rank = len(shape)
    mapped = [int(n) for n in draw.rng.permutation(rank)[: draw.whole(1, rank)]]
    dropped = sorted(n for n in mapped if draw.flag())
    sizes = [1 if n in dropped else draw.whole(1, size) for n, size in enumerate(shape)]
    outer = draw.shape(1, 2, 3)
    count = len(outer) + rank - len(dropped)
    places = sorted(int(n) for n in draw.rng.permutation(count)[: rank - len(dropped)])
    given = {
        "offset_dims": places, "collapsed_slice_dims": dropped, "start_index_map": mapped,
        "index_vector_dim": len(outer), "slice_sizes": sizes,
    }  # fmt: skip
    starts = Operand(draw.values((*outer, len(mapped)), draw.one("i32", "i64"), 0, 3))
    operands = [Operand(draw.values(shape, dtype)), starts]
    boxes = iter(size for n, size in enumerate(sizes) if n not in dropped)
    rest = iter(outer)
    shape = tuple(next(boxes) if n in places else next(rest) for n in range(count))
    options = ("StablehloGatherOptions", given)
    return Case(op, operands, [(dtype, PLAIN)], options, shape=shape)
