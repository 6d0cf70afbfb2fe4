"""Malformed files: damaged, cyclic, contradictory."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format  # type: ignore[import-untyped]
from onnx import ModelProto, SparseTensorProto, TensorProto, helper, numpy_helper

import clew
from clew.support.errors import ClewError
from hostile.catalog import (
    X,
    case,
    each,
    field,
    load,
    message,
    model,
    node,
    run,
    value,
    written,
)

RELU = model([node("Relu", ["x"], ["y"])])


def tensor(dims: Any, raw: bytes = b"", dtype: int = TensorProto.FLOAT, name: str = "w") -> Any:
    """Returns a tensor whose dims and bytes need not fit."""
    made = TensorProto(name=name, data_type=dtype, raw_data=raw)
    made.dims.extend(dims)
    return made


def with_weight(weight: Any) -> ModelProto:
    """Returns a model that adds a weight."""
    return model([node("Add", ["x", "w"], ["y"])], [weight])


WRONG = {
    "two_to_the_thirty": tensor([1 << 30], b"\0" * 4),
    "two_to_the_sixty_two": tensor([1 << 31, 1 << 31], b"\0" * 4),
    "overflow": tensor([1 << 32, 1 << 32], b""),
    "overflow_to_four": tensor([1 << 62, 4, 1], b"\0" * 16),
    "negative": tensor([-1, -1], b"\0" * 4),
    "rank_1000": tensor([1] * 1000, b"\0" * 4),
    "rank_100000": tensor([1] * 100_000, b"\0" * 4),
    "zeros_and_huge": tensor([0, 1 << 62, 1 << 62], b""),
    "text": tensor([1], dtype=TensorProto.STRING),
    "undefined": tensor([1], b"\0" * 4, dtype=0),
    "unknown_type": tensor([1], b"\0" * 4, dtype=999),
    "negative_type": tensor([1], b"\0" * 4, dtype=-5),
    "complex": tensor([1], b"\0" * 8, dtype=TensorProto.COMPLEX64),
    "odd_nibbles": tensor([3], b"\0", dtype=TensorProto.INT4),
    "raw_too_long": tensor([1], b"\0" * 4096),
}


@each("tensor", WRONG)
def wrong_tensor(folder: Path, given: TensorProto) -> None:
    run(with_weight(given), X)


@case("M006")
def tensor_with_raw_and_typed_data(folder: Path) -> None:
    weight = tensor([2], b"\0" * 4)
    weight.float_data.extend([1.0, 2.0])
    run(with_weight(weight), X)


def sparse(dims: Any, values: Any, indices: Any) -> ModelProto:
    """Returns a model that adds a sparse weight."""
    made = SparseTensorProto()
    made.dims.extend(dims)
    made.values.CopyFrom(numpy_helper.from_array(np.array(values, np.float32), "w"))
    made.indices.CopyFrom(numpy_helper.from_array(np.array(indices, np.int64), "i"))
    result = model([node("Add", ["x", "w"], ["y"])])
    result.graph.sparse_initializer.append(made)
    return result


SPARSE = {
    "huge": sparse([1 << 31, 1 << 31], [1], [0]),
    "large": sparse([1 << 33], [1], [0]),
    "outside": sparse([2, 3], [1], [6]),
    "negative": sparse([2, 3], [1], [-1]),
    "overflow": sparse([2, 3], [1], [(1 << 63) - 1]),
    "negative_dims": sparse([-2, -3], [1], [0]),
    "no_dims": sparse([], [1], [0]),
    "too_many_indices": sparse([2, 3], [1], [0, 1]),
    "rows_of_wrong_width": sparse([2, 3], [1], [[0, 0, 0]]),
    "indices_of_rank_3": sparse([2, 3], [1], [[[0, 0]]]),
    "parts_of_indices": sparse([2, 3], [1, 1], [0, 1, 2]),
    "values_without_axes": sparse([2, 3], 1, 0),
    "values_of_rank_2": sparse([2, 3], [[1, 1]], [[0, 0]]),
    "indices_without_columns": sparse([], [1], np.zeros((1, 0))),
    "empty": sparse([2, 3], np.zeros(0), np.zeros((0, 2))),
}


@each("sparse", SPARSE)
def wrong_sparse(folder: Path, given: ModelProto) -> None:
    run(given, X)


@case()
def sparse_values_are_floats_as_indices(folder: Path) -> None:
    made = sparse([2, 3], [1], [0])
    made.graph.sparse_initializer[0].indices.CopyFrom(
        numpy_helper.from_array(np.ones(1, np.float32), "i")
    )
    run(made, X)


@case("M005", "M011")
def sparse_with_external_values(folder: Path) -> None:
    made = sparse([2, 3], [1], [0])
    values = made.graph.sparse_initializer[0].values
    values.ClearField("raw_data")
    values.data_location = TensorProto.EXTERNAL
    values.external_data.add(key="location", value="/etc/passwd")
    clew.load(written(folder, made))


@case()
def constants_of_every_wrong_tensor(folder: Path) -> None:
    """As attributes, too."""
    for weight in WRONG.values():
        try:
            run(model([node("Constant", [], ["y"], value=weight)], inputs=[]))
        except ClewError:
            continue


# --- bytes ----------------------------------------------------------------------------------------


@case("ok")
def every_truncation(folder: Path) -> None:
    data = RELU.SerializeToString()
    for size in range(len(data)):
        try:
            load(data[:size])
        except ClewError:
            continue
        raise AssertionError(size)


@case("ok")
def every_flipped_bit(folder: Path) -> None:
    data = bytearray(RELU.SerializeToString())
    for place in range(len(data) * 8):
        data[place // 8] ^= 1 << place % 8
        with suppress(ClewError):
            load(bytes(data))
        data[place // 8] ^= 1 << place % 8


@case("ok")
def random_bytes(folder: Path) -> None:
    draw = random.Random(1)
    for size in (0, 1, 2, 7, 100, 10_000, 1_000_000):
        path = folder / f"{size}.onnx"
        path.write_bytes(draw.randbytes(size))
        try:
            clew.load(path)
        except ClewError:
            continue
        raise AssertionError(size)


@case("I002")
def text_format_of_a_model(folder: Path) -> None:
    clew.load(written(folder, text_format.MessageToString(RELU).encode()))


@case("I002")
def json_instead(folder: Path) -> None:
    clew.load(written(folder, b'{"graph": {}}'))


@case("M001", "M002", slow=True)
def zeros(folder: Path) -> None:
    clew.load(written(folder, bytes(1 << 20)))


@case("M011", "M002", "M001")
def a_sparse_file_of_a_tebibyte(folder: Path) -> None:
    path = folder / "large.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    clew.load(path)


@case("M011")
def a_pipe(folder: Path) -> None:
    path = folder / "pipe.onnx"
    os.mkfifo(path)
    clew.load(path)


@case("M011")
def a_socket(folder: Path) -> None:
    path = folder / "s.onnx"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        clew.load(path)


@case("M011")
def a_device(folder: Path) -> None:
    path = folder / "zero.onnx"
    path.symlink_to("/dev/zero")
    clew.load(path)


@case("M011")
def links_in_a_circle(folder: Path) -> None:
    (folder / "a.onnx").symlink_to("b.onnx")
    (folder / "b.onnx").symlink_to("a.onnx")
    clew.load(folder / "a.onnx")


@case("I002", "M011")
def a_name_with_a_null(folder: Path) -> None:
    clew.load(str(folder / "a\0.onnx"))


@case("M011")
def a_very_long_path(folder: Path) -> None:
    clew.load(str(folder / ("a/" * 5000 + "b.onnx")))


@case()
def a_length_of_two_to_the_sixty(folder: Path) -> None:
    clew.load(written(folder, b"\x08\x0a\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x0f" + b"x" * 9000))


@case()
def groups_in_groups(folder: Path) -> None:
    """Deprecated protobuf groups, ten thousand deep."""
    clew.load(written(folder, b"\x3b" * 10_000 + b"\x3c" * 10_000))


@case()
def two_graphs(folder: Path) -> None:
    data = RELU.SerializeToString()
    clew.load(written(folder, data + data))


@case()
def two_hundred_thousand_graphs(folder: Path) -> None:
    clew.load(written(folder, b"\x08\x0a" + field(7, b"") * 200_000))


@case(slow=True)
def a_million_empty_nodes(folder: Path) -> None:
    clew.load(written(folder, message(field(1, b"") * 1_000_000 + field(12, field(1, b"y")))))


@case(slow=True)
def a_million_initializers(folder: Path) -> None:
    clew.load(written(folder, message(field(5, b"") * 1_000_000 + field(12, field(1, b"y")))))


@case(slow=True)
def a_million_functions(folder: Path) -> None:
    data = RELU.SerializeToString() + field(25, b"") * 1_000_000
    clew.load(written(folder, data))


@case(slow=True)
def a_million_opsets(folder: Path) -> None:
    data = RELU.SerializeToString() + field(8, b"\x10\x15") * 1_000_000
    clew.load(written(folder, data))


@case(slow=True)
def a_million_inputs(folder: Path) -> None:
    inputs = b"".join(field(11, field(1, b"i%d" % n)) for n in range(300_000))
    clew.load(written(folder, message(inputs + field(12, field(1, b"i1")))))


@case(slow=True)
def a_million_attributes(folder: Path) -> None:
    attributes = field(5, field(1, b"a")) * 1_000_000
    clew.load(written(folder, message(field(1, attributes) + field(12, field(1, b"y")))))


@case(slow=True)
def metadata_of_a_hundred_megabytes(folder: Path) -> None:
    made = field(14, field(1, b"k") + field(2, b"v" * (100 << 20)))
    clew.load(written(folder, RELU.SerializeToString() + made))


@case()
def a_deep_type(folder: Path) -> None:
    """Sequences of sequences."""
    kind = field(1, b"\x08\x01")
    for _ in range(90):
        kind = field(4, field(1, kind))
    graph = field(11, field(1, b"x") + field(2, kind)) + field(12, field(1, b"x"))
    load(message(graph))


# --- graphs ---------------------------------------------------------------------------------------


@case("M003")
def a_cycle(folder: Path) -> None:
    load(
        model(
            [node("Neg", ["b"], ["a"]), node("Neg", ["a"], ["b"]), node("Add", ["a", "x"], ["y"])]
        )
    )


@case("M003", slow=True)
def a_cycle_of_50000(folder: Path) -> None:
    count = 50_000
    load(model([node("Neg", [f"v{n}"], [f"v{(n + 1) % count}"]) for n in range(count)]))


@case("M003")
def a_node_that_takes_its_own_result(folder: Path) -> None:
    load(model([node("Neg", ["y"], ["y"])]))


@case("M010")
def names_given_twice(folder: Path) -> None:
    load(model([node("Neg", ["x"], ["y"]), node("Abs", ["x"], ["y"])]))


@case()
def nodes_of_one_name(folder: Path) -> None:
    made = model([node("Neg", ["x"], ["a"], name="n"), node("Abs", ["a"], ["y"], name="n")])
    made.graph.node[0].name = made.graph.node[1].name = "x"
    run(made, X)


@case(slow=True)
def fifty_thousand_nodes_of_one_name(folder: Path) -> None:
    count = 20_000
    made = model([node("Neg", [f"v{n}"], [f"v{n + 1}"], name="n") for n in range(count)],
                 inputs=[value("v0", [2])], outputs=[value(f"v{count}", None)])  # fmt: skip
    load(made)


@case(slow=True)
def names_that_are_numbered_already(folder: Path) -> None:
    """Each claim of a free name must not try all that are taken."""
    count = 10_000
    names = [f"n_{k}" for k in range(count)] + ["n"] * count
    nodes = [node("Neg", [f"v{k}"], [f"v{k + 1}"], name=names[k]) for k in range(2 * count)]
    load(model(nodes, inputs=[value("v0", [2])], outputs=[value(f"v{2 * count}", None)]))


@case(slow=True)
def unsorted_chain_of_20000(folder: Path) -> None:
    count = 20_000
    nodes = [node("Neg", [f"v{n}"], [f"v{n + 1}"]) for n in reversed(range(count))]
    load(model(nodes, inputs=[value("v0", [2])], outputs=[value(f"v{count}", None)]))


@case(slow=True)
def one_value_used_by_20000(folder: Path) -> None:
    count = 20_000
    nodes = [node("Neg", ["x"], [f"v{n}"]) for n in range(count)]
    load(model([*nodes, node("Sum", [f"v{n}" for n in range(count)], ["y"])]))


@case(slow=True)
def twenty_thousand_outputs(folder: Path) -> None:
    count = 20_000
    nodes = [node("Neg", ["x"], [f"v{n}"]) for n in range(count)]
    load(model(nodes, outputs=[value(f"v{n}", None) for n in range(count)]))


@case(slow=True)
def branches_that_use_everything(folder: Path) -> None:
    """A hundred branches, each with a thousand nodes that take values from outside."""

    def branch(name: str) -> Any:
        nodes = [node("Add", ["x", f"o{n}"], [f"{name}{n}"]) for n in range(200)]
        return helper.make_graph(nodes, name, [], [value(f"{name}0", None)])

    nodes = [node("Neg", ["x"], [f"o{n}"]) for n in range(200)]
    nodes += [
        node("If", ["c"], [f"r{n}"], then_branch=branch(f"t{n}_"), else_branch=branch(f"e{n}_"))
        for n in range(50)
    ]
    made = model(nodes, inputs=[value("x", [2]), value("c", [], TensorProto.BOOL)])
    made.graph.output[0].name = "r49"
    load(made)
