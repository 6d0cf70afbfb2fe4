"""Good TFLite files to begin with: each part of the format in some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from hostile.corpus import Seed
from hostile.tflite_mutants import tables
from tflite_files import Graph, written

Results = Sequence[tuple[str, Sequence[int], str]]
_WINDOW: Final = {"padding": 0, "stride_w": 1, "stride_h": 1, "activation": 1}
_POOL: Final = {
    "padding": 1, "stride_w": 2, "stride_h": 2, "filter_width": 2, "filter_height": 2,
}  # fmt: skip


def _integers(values: Any) -> np.ndarray[Any, Any]:
    return np.asarray(values, np.int32)


def seeds(folder: Path | None = None) -> list[Seed]:
    """Returns the corpus, always in the same order, with the files (`*.tflite`) of a folder."""
    files = dict(_files())
    if folder is not None:
        files |= {path.stem: path.read_bytes() for path in sorted(folder.glob("*.tflite"))}
    return [
        Seed(name, "tflite", "model.tflite", {"model.tflite": data}) for name, data in files.items()
    ]


def _drawn(*shape: int, dtype: str = "float32") -> Any:
    rng = np.random.default_rng(sum(shape))
    if np.dtype(dtype).kind == "f":
        return rng.uniform(-1, 1, shape).astype(dtype)
    return rng.integers(-100, 100, shape).astype(dtype)


def _files() -> Iterator[tuple[str, bytes]]:
    yield "network", _network()
    yield "codes", _codes("i8")
    yield "codes_u8", _codes("u8")
    yield "sparse", _sparse()
    yield "halves", _halves()
    yield "moved", _moved()
    yield "chosen", _chosen()
    yield "elements", _elements()
    yield "sums", _sums()
    yield "free", _free()
    yield "products", _products()
    yield "outside", _outside()
    yield "branches", _branches()
    yield "state", _state()


def _network() -> bytes:
    g = Graph()
    x = g.input("x", (1, 8, 8, 4), "f32")
    weights = [g.constant(_drawn(8, 3, 3, 4), "w"), g.constant(_drawn(8), "b")]
    conv = ("Conv2DOptions", _WINDOW)
    (y,) = g.operator("CONV_2D", [x, *weights], [("conv", (1, 8, 8, 8), "f32")], conv)
    (y,) = g.operator("MAX_POOL_2D", [y], [("p", (1, 4, 4, 8), "f32")], ("Pool2DOptions", _POOL))
    (y,) = g.operator("RESHAPE", [y, g.constant(_integers([1, -1]))], [("flat", (1, 128), "f32")])
    (y,) = g.operator(
        "FULLY_CONNECTED", [y, g.constant(_drawn(5, 128)), -1], [("fc", (1, 5), "f32")],
        ("FullyConnectedOptions", {"activation": 3}),
    )  # fmt: skip
    beta = ("SoftmaxOptions", {"beta": 1.0})
    return g.file(g.operator("SOFTMAX", [y], [("y", (1, 5), "f32")], beta))


def _codes(dtype: str) -> bytes:
    g = Graph()
    like: dict[str, Any] = {"scale": [0.05], "zero": [3 if dtype == "i8" else 130]}
    name = {"i8": "int8", "u8": "uint8"}[dtype]
    x = g.input("x", (1, 6, 6, 4), dtype, **like)
    scale = [0.01, 0.02, 0.03, 0.04] if dtype == "i8" else [0.01]
    zero = [0] * 4 if dtype == "i8" else [128]
    weight = g.constant(_drawn(1, 3, 3, 4, dtype=name), "w", scale=scale, zero=zero, axis=3)
    bias = g.constant(_drawn(4, dtype="int32"), "b", scale=[0.05 * each for each in scale])
    window = ("DepthwiseConv2DOptions", {**_WINDOW, "depth_multiplier": 1})
    (y,) = g.operator(
        "DEPTHWISE_CONV_2D", [x, weight, bias], [("conv", (1, 6, 6, 4), dtype)], window, 3, **like
    )
    (y,) = g.operator("ADD", [y, x], [("sum", (1, 6, 6, 4), dtype)], ("AddOptions", {}), 2, **like)
    both = ("ConcatenationOptions", {"axis": 3})
    (y,) = g.operator("CONCATENATION", [y, x], [("both", (1, 6, 6, 8), dtype)], both, 2, **like)
    (y,) = g.operator("DEQUANTIZE", [y], [("y", (1, 6, 6, 8), "f32")], None, 2)
    return g.file([y])


def _sparse() -> bytes:
    kept = np.array([[1, 0], [1, 1], [0, 1]], bool)
    levels: list[dict[str, Any]] = [
        {"format": 0, "dense_size": 3},
        {
            "format": 1,
            "array_segments": ("Int32Vector", {"values": [0, 1, 3, 4]}),
            "array_indices": ("Uint8Vector", {"values": np.nonzero(kept)[1]}),
        },
        {"format": 0, "dense_size": 2},
        {"format": 0, "dense_size": 4},
    ]
    g = Graph()
    x = g.input("x", (3, 8), "f32")
    stored = g.constant(_drawn(4, 2, 4).reshape(-1))
    sparsity = {"traversal_order": [0, 1, 2, 3], "block_map": [0, 1], "dim_metadata": levels}
    weight = g.tensor("w", (6, 8), "f32", sparsity=sparsity)
    g.same_buffer(weight, stored)
    (dense,) = g.operator("DENSIFY", [weight], [("dense", (6, 8), "f32")])
    return g.file(
        g.operator(
            "FULLY_CONNECTED", [x, dense, -1], [("y", (3, 6), "f32")], ("FullyConnectedOptions", {})
        )
    )


def _halves() -> bytes:
    g = Graph()
    x = g.input("x", (2, 8), "f32")
    (w,) = g.operator("DEQUANTIZE", [g.constant(_drawn(4, 8, dtype="float16"))],
                      [("w", (4, 8), "f32")])  # fmt: skip
    (y,) = g.operator(
        "FULLY_CONNECTED", [x, w, -1], [("y", (2, 4), "f32")], ("FullyConnectedOptions", {})
    )
    (z,) = g.operator("CAST", [y], [("z", (2, 4), "i32")], ("CastOptions", {}))
    return g.file([y, z])


def _moved() -> bytes:
    g = Graph()
    x = g.input("x", (2, 4, 6), "f32")
    ints = [g.constant(_integers(each)) for each in (
        [2, 0, 1], [0, 1, 0], [4, -1, 4], [1, 1, 2], [[1, 0], [0, 1], [0, 0]], [2, -1], [1, 2, 1],
    )]  # fmt: skip
    axis, two = g.constant(_integers(1)), g.constant(_integers(2))
    made = [
        *g.operator("TRANSPOSE", [x, ints[0]], [("t", (6, 2, 4), "f32")]),
        *g.operator(
            "STRIDED_SLICE", [x, ints[1], ints[2], ints[3]], [("s", (2, 1, 2), "f32")],
            ("StridedSliceOptions", {"end_mask": 1, "shrink_axis_mask": 0}),
        ),
        *g.operator("SLICE", [x, ints[1], ints[6]], [("b", (1, 2, 1), "f32")]),
        *g.operator("PAD", [x, ints[4]], [("p", (3, 5, 6), "f32")]),
        *g.operator("MIRROR_PAD", [x, ints[4]], [("m", (3, 5, 6), "f32")],
                    ("MirrorPadOptions", {"mode": 1})),
        *g.operator("SPLIT_V", [x, ints[5], axis], [("v0", (2, 2, 6), "f32"),
                                                    ("v1", (2, 2, 6), "f32")],
                    ("SplitVOptions", {"num_splits": 2})),
        *g.operator("SPLIT", [two, x], [("l", (2, 4, 3), "f32"), ("r", (2, 4, 3), "f32")],
                    ("SplitOptions", {"num_splits": 2})),
        *g.operator("UNPACK", [x], [("u0", (4, 6), "f32"), ("u1", (4, 6), "f32")],
                    ("UnpackOptions", {"axis": 0, "num": 2})),
        *g.operator("PACK", [x, x], [("k", (2, 4, 2, 6), "f32")],
                    ("PackOptions", {"axis": 2, "values_count": 2})),
        *g.operator("TILE", [x, ints[6]], [("i", (2, 8, 6), "f32")]),
        *g.operator("EXPAND_DIMS", [x, axis], [("e", (2, 1, 4, 6), "f32")]),
    ]  # fmt: skip
    return g.file(made)


def _chosen() -> bytes:
    g = Graph()
    x, places = g.input("x", (3, 8), "f32"), g.input("places", (4,), "i32")
    axis = g.constant(_integers(1))
    on, off, depth = (g.constant(np.array(n, t)) for n, t in ((1, "f4"), (0, "f4"), (5, "i4")))
    made = [
        *g.operator("GATHER", [x, places], [("g", (3, 4), "f32")], ("GatherOptions", {"axis": 1})),
        *g.operator("TOPK_V2", [x, g.constant(_integers(3))], [("v", (3, 3), "f32"),
                                                              ("n", (3, 3), "i32")]),
        *g.operator("ARG_MAX", [x, axis], [("a", (3,), "i64")],
                    ("ArgMaxOptions", {"output_type": 4})),
        *g.operator("ONE_HOT", [places, depth, on, off], [("o", (4, 5), "f32")],
                    ("OneHotOptions", {"axis": -1})),
        *g.operator("REVERSE_V2", [x, g.constant(_integers([1]))], [("r", (3, 8), "f32")]),
        *g.operator("GATHER_ND", [x, g.constant(_integers([[0, 1], [2, 7]]))],
                    [("d", (2,), "f32")]),
    ]  # fmt: skip
    return g.file(made)


def _elements() -> bytes:
    g = Graph()
    x, y = g.input("x", (2, 3, 4), "f32"), g.input("y", (3, 1), "f32")
    made = []
    for op in ("ADD", "SUB", "MUL", "DIV"):
        given = (f"{op.title()}Options", {"activation": 1})
        made += g.operator(op, [x, y], [(op.lower(), (2, 3, 4), "f32")], given)
    for op in ("TANH", "LOGISTIC", "RELU6", "FLOOR"):
        made += g.operator(op, [x], [(op.lower(), (2, 3, 4), "f32")])
    (less,) = g.operator("LESS", [x, y], [("less", (2, 3, 4), "bool")])
    made += g.operator("SELECT_V2", [less, x, y], [("where", (2, 3, 4), "f32")])
    return g.file([*made, less])


def _sums() -> bytes:
    g = Graph()
    x, made = g.input("x", (2, 3, 4), "f32"), []
    for op in ("MEAN", "SUM", "REDUCE_MAX"):
        axes = g.constant(_integers([0, -1]))
        made += g.operator(op, [x, axes], [(op.lower(), (3,), "f32")], ("ReducerOptions", {}))
    axis = g.constant(_integers(1))
    made += g.operator("CUMSUM", [x, axis], [("c", (2, 3, 4), "f32")], ("CumsumOptions", {}))
    return g.file(made)


def _free() -> bytes:
    g = Graph()
    x = g.input("x", (-1, -1, 4), "f32")
    weight = g.constant(_drawn(3, 4))
    keep = ("FullyConnectedOptions", {"keep_num_dims": True})
    (y,) = g.operator("FULLY_CONNECTED", [x, weight, -1], [("y", (-1, -1, 3), "f32")], keep)
    (shape,) = g.operator("SHAPE", [y], [("shape", (3,), "i32")], ("ShapeOptions", {"out_type": 2}))
    (flat,) = g.operator("RESHAPE", [y, g.constant(_integers([-1]))], [("flat", (-1,), "f32")])
    return g.file([y, shape, flat])


def _products() -> bytes:
    g = Graph()
    x, a = g.input("x", (1, 4, 4, 2), "f32"), g.input("a", (2, 3, 4), "f32")
    other, adjoint = g.constant(_drawn(2, 5, 4)), ("BatchMatMulOptions", {"adj_y": True})
    made = [*g.operator("BATCH_MATMUL", [a, other], [("m", (2, 3, 5), "f32")], adjoint)]
    sizes, weight = g.constant(_integers([1, 8, 8, 3])), g.constant(_drawn(3, 2, 2, 2))
    given = ("TransposeConvOptions", {"padding": 0, "stride_w": 2, "stride_h": 2})
    made += g.operator("TRANSPOSE_CONV", [sizes, weight, x], [("t", (1, 8, 8, 3), "f32")], given)
    wide = g.constant(_integers([6, 3]))
    bilinear = ("ResizeBilinearOptions", {"half_pixel_centers": True})
    made += g.operator("RESIZE_BILINEAR", [x, wide], [("r", (1, 6, 3, 2), "f32")], bilinear)
    block = ("SpaceToDepthOptions", {"block_size": 2})
    made += g.operator("SPACE_TO_DEPTH", [x], [("d", (1, 2, 2, 8), "f32")], block)
    return g.file(made)


def _outside() -> bytes:
    """Returns the network with its largest buffer behind the tables."""
    model = tables(_network())
    buffer = max(model["buffers"], key=lambda each: len(each.get("data", ())))
    data = np.array(buffer.pop("data"), np.uint8).tobytes()
    buffer |= {"offset": 2, "size": len(data)}
    start = -(-len(written("Model", model)) // 16) * 16
    buffer["offset"] = start
    return written("Model", model).ljust(start, b"\0") + data


def joined(main: bytes, *others: bytes) -> bytes:
    """Returns one file with the graphs of several, which share nothing."""
    model = tables(main)
    for data in others:
        more = tables(data)
        codes, buffers = len(model["operator_codes"]), len(model["buffers"])
        for graph in more["subgraphs"]:
            for operator in graph.get("operators", ()):
                operator["opcode_index"] += codes
            for tensor in graph["tensors"]:
                tensor["buffer"] = tensor["buffer"] + buffers if tensor["buffer"] else 0
        for name in ("operator_codes", "buffers", "subgraphs"):
            model[name] += more[name]
    return written("Model", model)


def _branches() -> bytes:
    g = Graph()
    x, condition = g.input("x", (2, 3), "f32"), g.input("condition", (), "bool")
    given = ("IfOptions", {"then_subgraph_index": 1, "else_subgraph_index": 2})
    main = g.file(g.operator("IF", [condition, x], [("y", (2, 3), "f32")], given))
    return joined(main, *(_one(op) for op in ("NEG", "ABS")))


def _one(op: str) -> bytes:
    g = Graph()
    x = g.input("x", (2, 3), "f32")
    return g.file(g.operator(op, [x], [("y", (2, 3), "f32")]))


def _state() -> bytes:
    g = Graph()
    x = g.input("x", (2, 3), "f32")
    state = g.tensor("state", (2, 3), "f32", is_variable=True)
    (y,) = g.operator("ADD", [x, state], [("y", (2, 3), "f32")], ("AddOptions", {}))
    return g.file([y])
