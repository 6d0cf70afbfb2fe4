"""Products and convolutions whose matrices and weights are inputs: packed in the run, or read where
they lie.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from golden_cases import Graph

import clew
from clew.ir.dims import SymDim
from clew.ir.expr import Expr, Function, Tuple
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.runtime.guard import GuardSide
from clew.support.errors import CompileError

K, M, N, T = map(SymDim.symbol, "kmnt")


def module(graph: Graph, found: Expr) -> Module:
    return Module({"main": Function(graph.inputs, Tuple([found]), {"outputs": ("y",)})})


def check(given: Module, sizes: dict[str, int], turn: int, **options: Any) -> Any:
    """Compiles a module, and compares it with its references, unless this machine cannot run it.
    Returns the compiled module.
    """
    compiled = clew.compile(
        given,
        threads=1 + turn % 2,
        diagnostics=clew.Diagnostics(guard=list(GuardSide)[turn % 2]),
        **options,
    )
    rng = np.random.default_rng(turn)
    inputs = {}
    for param in given.main.params:
        shape: list[Any] = [
            d if isinstance(d, int) else d.substitute(sizes) for d in param.tensor.shape
        ]
        inputs[param.name] = rng.standard_normal(shape).astype(np.float32)
    try:
        found = compiled.run(inputs)["y"]
    except CompileError as error:
        if error.code != "C057":
            raise
        return compiled
    want = interpret(given, inputs)["y"]
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-3 * max(np.abs(want).max(), 1))
    return compiled


def rules(compiled: Any) -> list[str]:
    return [rule for kernel in compiled.kernels for rule in kernel.rules]


PRODUCTS = [
    (rows, depth, columns, layout)
    for rows in (1, 2, 7, 8, 13)
    for depth, columns in ((1, 40), (17, 1), (130, 33), (33, 1031), (64, 1024), (205, 70))
    for layout in ("NK", "KN")
]


@pytest.mark.parametrize("turn", range(len(PRODUCTS)))
def test_products(turn: int) -> None:
    rows, depth, columns, layout = PRODUCTS[turn]
    graph = Graph()
    x = graph.x(rows, depth)
    matrix = graph.x(*((columns, depth) if layout == "NK" else (depth, columns)))
    y = graph("nn.relu", graph("nn.dense", x, matrix, weight_layout=layout))
    check(module(graph, y), {}, turn, **({"target": "cpu-avx2"} if turn % 3 == 0 else {}))


@pytest.mark.parametrize(
    ("rows", "layout", "wanted"),
    [
        (1, "NK", ["rows"]),  # lanes along the depth: nothing is packed
        (4, "NK", ["dots"]),
        (1, "KN", ["streamed"]),
        (5, "KN", ["elementwise", "matmul"]),  # each line of the matrix is on a page of its own
        (16, "NK", ["dots"]),
        (300, "NK", ["elementwise", "matmul"]),  # packed, then as with a constant matrix
        (16, "KN", ["elementwise", "matmul"]),
        (300, "KN", ["elementwise", "matmul"]),
    ],
)
def test_few_rows_read_a_matrix_where_it_lies(rows: int, layout: str, wanted: list[str]) -> None:
    graph = Graph()
    y = graph("nn.dense", graph.x(rows, 1024), graph.x(1024, 1024), weight_layout=layout)
    compiled = check(module(graph, y), {}, rows, target="cpu-avx512")
    assert rules(compiled) == wanted


@pytest.mark.parametrize(("depth", "wanted"), [(1024, "rows"), (2049, "dots")])
def test_one_row_meets_several_deep_rows_of_a_matrix_at_once(depth: int, wanted: str) -> None:
    graph = Graph()
    y = graph("nn.dense", graph.x(1, depth), graph.x(70, depth), weight_layout="NK")
    compiled = check(module(graph, y), {}, depth, target="cpu-avx2")
    assert rules(compiled) == [wanted]
    steps = [str(step) for kernel in compiled.kernels for step in kernel.schedule.steps]
    assert not any(step.startswith("prefetch") for step in steps)


def test_many_rows_pack_a_matrix_of_any_size() -> None:
    for rows, wanted in ((120, ["matmul"]), (200, ["elementwise", "matmul"])):
        graph = Graph()
        y = graph("nn.dense", graph.x(rows, 48), graph.x(48, 70), weight_layout="KN")
        assert rules(check(module(graph, y), {}, rows, target="cpu-avx512")) == wanted


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "copied"),
    [
        ((14,), 1024, 256, True),
        ((3, 67), 1024, 300, True),
        ((N, 5), 3072, 256, True),
        ((20,), 1008, 256, False),  # no two rows compete
        ((20,), 1536, 256, False),  # seven do, which a place of the cache holds
        ((8,), 1024, 256, False),  # likewise
        ((20,), 1024, 100, False),  # too few columns read the copy
    ],
)
def test_rows_that_compete_for_places_of_a_cache_are_copied(
    rows: tuple[Any, ...], depth: int, columns: int, *, copied: bool
) -> None:
    graph = Graph()
    y = graph("nn.dense", graph.x(*rows, depth), graph.w(columns, depth), weight_layout="NK")
    compiled = check(module(graph, y), {"n": 9}, len(rows), target="cpu-avx512")
    steps = [str(step) for kernel in compiled.kernels for step in kernel.schedule.steps]
    assert any(step.startswith("cache_read") for step in steps) == copied


@pytest.mark.parametrize("target", ["cpu-avx2", "cpu-avx512"])
def test_few_rows_of_many_blocks_of_products(target: str) -> None:
    """Sums in several vectors, each long enough to be divided into blocks."""
    graph = Graph()
    y = graph("nn.dense", graph.x(2, 12544), graph.x(3, 12544), weight_layout="NK")
    check(module(graph, y), {}, 0, target=target)


DOTS = [
    (2, 128, 16), (3, 256, 35), (7, 128, 100), (13, 256, 64), (9, 384, 1031), (20, 256, 33),
    (8, 2560, 40), (5, 128, 47),
]  # fmt: skip


@pytest.mark.parametrize("turn", range(len(DOTS)))
def test_rows_by_rows(turn: int) -> None:
    rows, depth, columns = DOTS[turn]
    graph = Graph()
    y = graph("nn.dense", graph.x(rows, depth), graph.x(columns, depth), weight_layout="NK")
    y = graph("nn.relu", graph("add", y, graph.w(columns)))
    compiled = check(module(graph, y), {}, turn, target=f"cpu-avx{'2' if turn % 3 else '512'}")
    assert rules(compiled) == ["dots"]


def test_one_row_reads_long_runs_of_a_plain_matrix() -> None:
    def choices(depth: int, packed: bool) -> str:
        graph = Graph()
        matrix = graph.w(depth, 1031) if packed else graph.x(depth, 1031)
        y = graph("nn.relu", graph("nn.dense", graph.x(1, depth), matrix, weight_layout="KN"))
        (kernel,) = check(module(graph, y), {}, depth, target="cpu-avx512").kernels
        return str(kernel.choices[0])

    assert choices(100, packed=False).startswith("matvec: vectors=16 ")
    assert choices(1111, packed=False).startswith("streamed: vectors=512 ")  # not in a cache
    assert choices(100, packed=True).startswith("matvec: vectors=4 ")


@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [
        ((1,), 1111, 520),
        ((2,), 163, 4100),
        ((3,), 17, 33000),
        ((2, 2), 480, 1031),
        ((4,), 64, 9001),
    ],
)
def test_few_rows_read_a_large_matrix_in_its_own_order(
    rows: tuple[int, ...], depth: int, columns: int
) -> None:
    graph = Graph()
    y = graph("nn.dense", graph.x(*rows, depth), graph.x(depth, columns), weight_layout="KN")
    y = graph("nn.relu", graph("add", y, graph.w(columns)))
    compiled = check(module(graph, y), {}, depth, target="cpu-avx2")
    assert rules(compiled) == ["streamed"]
    assert any("sum_parts" in str(step) for step in compiled.kernels[0].schedule.steps)


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "wanted"),
    [(4, 512, 600, "streamed"), (5, 512, 600, "matmul"), (1, 8, 20000, "matvec")],
)
def test_other_rows_sum_in_registers(rows: int, depth: int, columns: int, wanted: str) -> None:
    graph = Graph()
    y = graph("nn.dense", graph.x(rows, depth), graph.x(depth, columns), weight_layout="KN")
    compiled = check(module(graph, y), {}, depth, target="cpu-avx2")
    assert rules(compiled) == [wanted]
    parts = any("sum_parts" in str(step) for step in compiled.kernels[0].schedule.steps)
    assert parts == (rows == 4)


@pytest.mark.parametrize(("batch", "depth", "columns"), [(3, 17, 64), (5, 30, 200), (1, 8, 1031)])
def test_one_row_for_each_matrix(batch: int, depth: int, columns: int) -> None:
    graph = Graph()
    y = graph("nn.matmul", graph.x(batch, 1, depth), graph.x(batch, depth, columns))
    compiled = check(module(graph, graph("nn.relu", y)), {}, batch)
    assert rules(compiled) == ["matvec"]


@pytest.mark.parametrize("rows", [1, 5, 70])
def test_free_rows_and_batches(rows: int) -> None:
    graph = Graph()
    y = graph("nn.matmul", graph.x(N, 3, 40), graph.x(40, 1100))
    check(module(graph, y), {"n": rows}, rows)


IN_PLACE: list[tuple[tuple[Any, ...], tuple[Any, ...], list[str]]] = [
    ((N, 300), (70, 300), ["elementwise", "matmul", "dots", "rows"]),
    ((2, N, 48), (M, 48), ["elementwise", "matmul", "dots"]),  # never one row
    ((N, M), (T, M), ["elementwise", "matmul", "rows"]),
    ((M, 3, N, 64), (M, 3, T, 64), ["elementwise", "matmul", "dots", "rows"]),
]


@pytest.mark.parametrize("rows", [1, 3, 8, 90])
@pytest.mark.parametrize("turn", range(len(IN_PLACE)))
def test_few_of_a_free_number_of_rows_read_a_matrix_where_it_lies(turn: int, rows: int) -> None:
    data, matrix, wanted = IN_PLACE[turn]
    graph = Graph()
    x, weight = graph.x(*data), graph.x(*matrix)
    if len(matrix) == 2:
        y = graph("nn.dense", x, weight, weight_layout="NK")
    else:
        y = graph("nn.matmul", x, graph("transpose", weight, axes=(0, 1, 3, 2)))
    given = module(graph, graph("nn.relu", y))
    options = {"target": "cpu-avx2"} if rows % 2 else {}
    compiled = check(given, {"n": rows, "m": 5 + turn, "t": 41}, rows, **options)
    assert rules(compiled) == wanted


def test_few_of_a_free_number_of_rows_sum_long_blocks() -> None:
    """Each tile of rows adds its sums to totals in memory only after many steps."""
    graph = Graph()
    y = graph("nn.dense", graph.x(N, 1000), graph.w(1000, 10), weight_layout="KN")
    (kernel,) = clew.compile(module(graph, y), target="cpu-avx512", cache=False).kernels
    blocks = re.findall(r"for dense\.k\.o(?:\.o)? in (\d+)", kernel.loops)
    assert len(blocks) > 2
    assert max(map(int, blocks)) < 10


@pytest.mark.parametrize("depth", [24, T])
@pytest.mark.parametrize(("rows", "columns"), [(1, 35), (6, 64), (40, 7)])
def test_free_rows_and_columns(depth: Any, rows: int, columns: int) -> None:
    graph = Graph()
    y = graph("nn.matmul", graph.x(M, N, depth), graph.x(M, depth, K))
    compiled = check(module(graph, y), {"m": 3, "n": rows, "t": 21, "k": columns}, rows)
    assert rules(compiled) == ["matmul", "matvec"]
    (use,) = compiled.template.uses
    if depth == 24:  # no branch in the last panel
        assert "vector.reduce.or" not in use.source.emitted.llvm


CONVOLUTIONS: list[tuple[str, tuple[Any, ...], tuple[int, ...], dict[str, Any]]] = [
    ("nn.conv2d", (1, 16, 12, 13), (24, 16, 3, 3), {"padding": (1, 1, 1, 1)}),
    ("nn.conv2d", (2, 5, 9, 11), (19, 5, 3, 2), {"strides": (1, 2), "dilation": (2, 1)}),
    ("nn.conv2d", (1, 32, 9, 9), (32, 8, 3, 3), {"groups": 4}),
    ("nn.conv2d", (1, 16, 3, 3), (16, 16, 3, 3), {"padding": (1, 1, 1, 1)}),  # few pixels
    ("nn.conv2d", (1, 16, 9, 9), (16, 1, 3, 3), {"groups": 16}),
    ("nn.conv2d", (N, 16, N, 20), (16, 16, 1, 1), {}),
    ("nn.conv1d", (1, 1, 700), (33, 1, 64), {"strides": (16,), "padding": (3, 0)}),
    ("nn.conv1d", (2, 12, N), (10, 12, 3), {"padding": (1, 1)}),
    ("nn.conv3d", (1, 3, 5, 6, 7), (16, 3, 3, 3, 3), {"padding": (1,) * 6}),
    ("nn.conv2d_transpose", (1, 16, 9, 9), (16, 8, 4, 4), {"strides": (2, 2)}),
    ("nn.conv2d_transpose", (1, 6, 9, 8), (6, 5, 3, 4), {"groups": 2, "strides": (3, 2)}),
    ("nn.conv2d_transpose", (2, 6, 9, 8), (6, 5, 1, 2),
     {"strides": (3, 3), "padding": (0, 1, 1, 0)}),
    ("nn.conv1d_transpose", (1, 8, N), (8, 4, 16), {"strides": (8,), "padding": (4, 4)}),
    ("nn.conv3d_transpose", (1, 4, 3, 4, 3), (4, 3, 2, 3, 2), {"strides": (2, 2, 2)}),
    ("nn.conv2d_transpose", (2, 6, 1, 1), (6, 5, 4, 4), {}),
]  # fmt: skip


@pytest.mark.parametrize("turn", range(len(CONVOLUTIONS)))
def test_convolutions(turn: int) -> None:
    op, data, weight, attrs = CONVOLUTIONS[turn]
    graph = Graph()
    y = graph("nn.relu", graph(op, graph.x(*data), graph.x(*weight), **attrs))
    check(module(graph, y), {"n": 17}, turn, **({"target": "cpu-avx2"} if turn % 3 == 0 else {}))


CHUNKED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 64, 23, 21), (40, 64, 3, 3), {"padding": (1, 1, 1, 1)}),
    ((2, 72, 17, 29), (48, 72, 3, 2), {"strides": (2, 2), "padding": (1, 0, 1, 1)}),
    ((1, 264, 15, 14), (32, 264, 1, 2), {}),  # the last chunk is shorter; one line
    ((1, 128, 24, 24), (64, 64, 3, 3), {"groups": 2}),
    ((1, 48, 20, 20), (24, 48, 5, 5), {"dilation": (2, 1)}),
]


@pytest.mark.parametrize("turn", range(len(CHUNKED)))
def test_chunks_of_input_channels(turn: int) -> None:
    data, weight, attrs = CHUNKED[turn]
    graph = Graph()
    y = graph("nn.conv2d", graph.x(*data), graph.x(*weight), **attrs)
    y = graph("nn.relu", graph("add", y, graph.w(1, weight[0], 1, 1)))
    compiled = check(module(graph, y), {}, turn, target="cpu-avx2")
    steps = [str(step) for kernel in compiled.kernels for step in kernel.schedule.steps]
    assert any(step.startswith("hold_sums") for step in steps)


def test_few_input_channels_are_summed_tile_by_tile() -> None:
    graph = Graph()
    y = graph("nn.conv2d", graph.x(1, 16, 30, 30), graph.x(32, 16, 3, 3))
    compiled = check(module(graph, y), {}, 0, target="cpu-avx2")
    steps = [str(step) for kernel in compiled.kernels for step in kernel.schedule.steps]
    assert "conv" in rules(compiled)
    assert not any(step.startswith("hold_sums") for step in steps)


@pytest.mark.parametrize(
    ("data", "weight", "attrs"),
    [
        ((1, 33, 4, 5), (70, 33, 3, 3), {"padding": (1, 1, 1, 1)}),
        ((2, 9, 7, 6), (64, 9, 3, 2), {"strides": (2, 3), "padding": (0, 1, 2, 0)}),
        ((1, 7, 9, 9), (70, 7, 3, 3), {"dilation": (3, 2), "padding": (1, 1, 1, 1)}),
        ((3, 17, 5, 3), (19, 17, 5, 3), {}),  # one patch
        ((2, 40, 31, 9), (3, 40, 1, 1), {}),  # few channels
        ((1, 40, 3, 5), (64, 40, 1, 1), {"strides": (2, 2)}),
        ((1, 24, 5, 5), (192, 6, 5, 5), {"groups": 4, "padding": (2, 2, 2, 2)}),
        ((2, 6, 16, 15), (48, 3, 3, 3), {"groups": 2, "strides": (2, 2)}),  # blocks of no size
        ((1, 3, 20, 20), (32, 3, 3, 3), {"strides": (2, 2)}),  # a small image
    ],
)
def test_small_images_are_multiplied_by_weights_as_they_lie(
    data: tuple[int, ...], weight: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    graph = Graph()
    y = graph("nn.conv2d", graph.x(*data), graph.x(*weight), **attrs)
    y = graph("nn.relu", graph("add", y, graph.w(1, weight[0], 1, 1)))
    options = {"target": "cpu-avx2"} if data[0] > 1 else {}
    compiled = check(module(graph, y), {}, weight[0], **options)
    assert not any("layout_transform" in kernel.name for kernel in compiled.kernels)
    assert any("dense" in k.name or "matmul" in k.name for k in compiled.kernels)


def test_pixels_of_a_plain_image_are_multiplied_as_they_lie() -> None:
    def rule(size: int) -> list[str]:
        graph = Graph()
        y = graph("nn.conv2d", graph.x(1, 32, size, size), graph.x(17, 32, 1, 1))
        return rules(clew.compile(module(graph, y), target="cpu-avx512"))

    assert "conv" not in rule(40)
    assert "conv" in rule(300)  # beyond the caches


def test_weights_that_serve_many_pixels_are_packed() -> None:
    def packs(size: int) -> bool:
        graph = Graph()
        y = graph("nn.conv2d", graph.x(1, 16, size, size), graph.x(32, 16, 3, 3))
        return "conv" in rules(clew.compile(module(graph, y), target="cpu-avx512"))

    assert packs(20)
    assert not packs(4)


def test_weights_of_channels_of_their_own_stay_as_they_lie() -> None:
    graph = Graph()
    y = graph("nn.conv2d", graph.x(1, 64, 7, 7), graph.x(64, 1, 3, 3), groups=64)
    assert rules(clew.compile(module(graph, y), target="cpu-avx512")) == ["windows"]


@pytest.mark.parametrize("groups", [2, 8, 17])
def test_channels_shuffled_in_blocks(groups: int) -> None:
    """Rows of an operand that continue along an earlier axis, of any size."""
    graph = Graph()
    x = graph.x(1, 16, groups, 28, 40)
    found = graph("transpose", x, axes=(0, 2, 1, 3, 4))
    assert check(module(graph, found), {}, groups).kernels


@pytest.mark.parametrize("depth", [48, 53, 205, 1001])
def test_a_depth_that_fills_no_vector_adds_to_the_same_sums(depth: int) -> None:
    graph = Graph()
    y = graph("nn.dense", graph.x(4, depth), graph.x(70, depth), weight_layout="NK")
    compiled = check(module(graph, y), {}, depth, target="cpu-avx512")
    assert rules(compiled) == ["dots"]
    (kernel,) = compiled.kernels
    first = kernel.loops.split("parallel ")[1]
    assert first.count("vector dense.k.i in 16") == 1 + (depth % 16 > 0)
    assert first.count("if ") == (depth % 16 > 0)
    assert first.count(".rf0 in 16") == 2  # one sum of lanes for all of the depth


def test_padded_panels_are_packed_run_by_run() -> None:
    graph = Graph()
    y = graph("nn.dense", graph.x(16, 90), graph.x(90, 1100), weight_layout="KN")
    compiled = check(module(graph, y), {}, 0, target="cpu-avx512")
    steps = compiled.kernels[0].schedule.text
    assert "partition" in steps
    assert "factor=8" in steps


@pytest.mark.parametrize("windows", [40, 59, 97])
def test_long_windows_of_the_run(windows: int) -> None:
    """Too long to be copied into patches, and slow to read as they lie: the weight is packed."""
    graph = Graph()
    signal, weight = graph.x(1, 1, 512 + 160 * (windows - 1)), graph.x(258, 1, 512)
    y = graph("nn.conv1d", signal, weight, strides=(160,))
    for target in ("cpu-avx2", "cpu-avx512"):
        compiled = check(module(graph, y), {}, windows, target=target)
        assert "conv" in rules(compiled) or "lines" in rules(compiled)


@pytest.mark.parametrize("rows", [(1,), (6,), (2, 3)])
@pytest.mark.parametrize("sizes", [(64, 40), (K, 48)])
def test_transposed_matrix_of_the_run(rows: tuple[int, ...], sizes: Any) -> None:
    """The matrix is read as it lies."""
    graph = Graph()
    x, matrix = graph.x(*rows, sizes[1]), graph.x(*sizes)
    y = graph("nn.matmul", x, graph("transpose", matrix, axes=(1, 0)))
    compiled = check(module(graph, y), {"k": 37}, len(rows))
    assert not any("transpose" in kernel.name for kernel in compiled.kernels)
