"""TFLite files whose parts lie in each other, or claim more than they hold."""

from __future__ import annotations

import tracemalloc
from typing import Any

import flatbuffers
import numpy as np
import pytest

from clew.frontends.tflite.file.flatbuffer import Buffer, Damaged, Schema, TooMany
from clew.frontends.tflite.file.sparse import places
from clew.frontends.tflite.loader import load
from clew.support.budgets import Budgets
from clew.support.errors import ClewError
from tflite_files import Graph

MANY = Schema({"Outer": "many:[Leaf]", "Leaf": "text:str sizes:[i32]"}, {})


def with_leaves(count: int, text: int = 0, sizes: int = 0) -> bytes:
    """Returns a buffer with tables that share a text or a vector."""
    builder = flatbuffers.Builder(0)
    shared: list[tuple[int, int]] = []
    if text:
        shared.append((0, builder.CreateString("x" * text)))
    if sizes:
        shared.append((1, builder.CreateNumpyVector(np.zeros(sizes, np.int32))))
    leaves = []
    for _ in range(count):
        builder.StartObject(2)
        for slot, place in shared:
            builder.PrependUOffsetTRelativeSlot(slot, place, 0)
        leaves.append(builder.EndObject())
    builder.StartVector(4, count, 4)
    for leaf in reversed(leaves):
        builder.PrependUOffsetTRelative(leaf)
    many = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, many, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


@pytest.mark.parametrize("shared", [{"text": 9_000}, {"sizes": 3_000}])
def test_shared_texts_and_vectors_cannot_multiply(shared: dict[str, int]) -> None:
    data = with_leaves(500, **shared)
    tracemalloc.start()
    with pytest.raises(Damaged, match="its tables lie in each other"):
        Buffer(data, MANY).read("Outer")
    assert tracemalloc.get_traced_memory()[1] < 8 * len(data)
    tracemalloc.stop()
    few = {key: size // 1000 for key, size in shared.items()}
    assert len(Buffer(with_leaves(500, **few), MANY).read("Outer")["many"]) == 500


def test_tables_are_limited() -> None:
    data = with_leaves(100)
    assert len(Buffer(data, MANY, 101).read("Outer")["many"]) == 100
    with pytest.raises(TooMany):
        Buffer(data, MANY, 100).read("Outer")


def code_of(data: bytes, budgets: Budgets | None = None) -> str:
    """Returns the code of the error of a file."""
    with pytest.raises(ClewError) as caught:
        load(data, budgets=budgets)
    return caught.value.code


def one(op: str = "ABS", results: int = 1, given: Any = None, **tensor: Any) -> bytes:
    """Returns a file with one operator."""
    graph = Graph()
    x = graph.input("x", (2, 4), tensor.pop("dtype", "f32"), **tensor)
    axis = [graph.constant(np.int32(1))] if op == "SPLIT" else []
    named = [(f"y{n}", (2, 4), "f32") for n in range(results)]
    return graph.file(graph.operator(op, [*axis, x], named, given))


def test_budgets_hold_while_a_file_is_read() -> None:
    assert code_of(one(), Budgets(nodes=0)) == "M009"
    assert code_of(one(shape_signature=[1] * 40)) == "M006"


@pytest.mark.parametrize(
    "given",
    [
        {"scale": [0.1, 0.2, 0.3], "axis": 0},
        {"scale": [0.1, 0.2], "axis": 1},
        {"scale": [0.1, 0.2], "axis": 2},
        {"scale": [0.1], "zero": [300]},
        {"scale": [0.1], "zero": [-129]},
    ],
)
def test_scales_that_do_not_fit(given: dict[str, Any]) -> None:
    assert code_of(one(dtype="i8", **given)) == "M060"


@pytest.mark.parametrize(
    ("op", "given"),
    [
        ("SPLIT", ("SplitOptions", {"num_splits": 2**31 - 1})),
        ("UNPACK", ("UnpackOptions", {"num": 2**31 - 1})),
        ("UNPACK", ("UnpackOptions", {"num": -1})),
    ],
)
def test_numbers_of_parts_are_those_of_results(op: str, given: Any) -> None:
    assert code_of(one(op, 2, given)) == "M012"


@pytest.mark.parametrize("op", ["CAST", "ARG_MAX", "SHAPE"])
def test_results_that_are_left_out(op: str) -> None:
    graph = Graph()
    x = graph.input("x", (2, 4), "f32")
    graph.operator(op, [x, *([graph.constant(np.int32(1))] if op == "ARG_MAX" else [])], [])
    assert code_of(graph.file([x])) == "M012"


@pytest.mark.parametrize("counts", [(40, 40, 40), (2, 1, 2), (2, 2, 1)])
def test_slices_by_other_numbers_of_axes(counts: tuple[int, int, int]) -> None:
    graph = Graph()
    x = graph.input("x", (2, 4), "f32")
    bounds = [graph.constant(np.ones(count, np.int32)) for count in counts]
    y = graph.operator("STRIDED_SLICE", [x, *bounds], [("y", (1, 1), "f32")])
    assert code_of(graph.file(y)) == "M012"


def test_levels_of_sparse_weights_have_no_more_nodes_than_the_file() -> None:
    """A million rows of which the file has one element."""
    rows = 1 << 20
    dense = {"format": 0, "array_segments": None, "array_indices": None}
    sparsity = {
        "traversal_order": np.arange(3),
        "block_map": np.arange(0),
        "dim_metadata": [{**dense, "dense_size": size} for size in (1, 1, rows)],
    }
    tracemalloc.start()
    with pytest.raises(Damaged, match="has a level of"):
        places(sparsity, (1, 1, rows), 1)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
