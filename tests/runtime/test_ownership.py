"""Results own their memory: writing to an input or a result changes nothing else."""

from __future__ import annotations

import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
import zoo
from clew.ir.dims import SymDim
from clew.ir.expr import Function, Tuple
from clew.ir.module import Module
from clew.runtime import ownership
from clew.runtime.ownership import Border, Owner
from clew.runtime.ownership import Memory as Place
from overwriting import overwritten
from random_graphs import Graph

Array = np.ndarray[Any, Any]
# Models of one input that return it, or a value more than once. `y` is f32[n, m].
SAME: Final = {
    "identity": "y = Identity(x)",
    "dropout": "y = Dropout(x)",
    "cast": "y = Cast<to = 1>(x)",
    "plus zero": "zero = Constant<value_float = 0.0>() y = Sub(x, zero)",
    "times one": "one = Constant<value_float = 1.0>() y = Mul(x, one)",
    "reshape": "s = Constant<value_ints = [-1]>() y = Reshape(x, s)",
    "flatten": "y = Flatten<axis = 0>(x)",
    "whole slice": """b = Constant<value_ints = [0, 0]>() e = Constant<value_ints = [99, 99]>()
        y = Slice(x, b, e)""",
    "part": """b = Constant<value_ints = [0]>() e = Constant<value_ints = [1]>()
        y = Slice(x, b, e)""",
    "unsqueeze": "a = Constant<value_ints = [1]>() y = Unsqueeze(x, a)",
    "there and back": "a = Constant<value_ints = [1]>() u = Unsqueeze(x, a) y = Squeeze(u, a)",
    "transpose": "y = Transpose(x)",
    "turned twice": "t = Transpose(x) y = Transpose(t)",
    "expand": "s = Constant<value_ints = [1, 1]>() y = Expand(x, s)",
    "concat of one": "y = Concat<axis = 0>(x)",
    "split in one": "y = Split<num_outputs = 1>(x)",
    "tile": "r = Constant<value_ints = [1, 1]>() y = Tile(x, r)",
    "pad": "p = Constant<value_ints = [0, 0, 0, 0]>() y = Pad(x, p)",
    "sum of one": "y = Sum(x)",
    "the input itself": "",
    "twice": "a = Neg(x) y = Identity(a) z = Identity(a)",
    "equal values": "a = Neg(x) b = Neg(x) y = Relu(a) z = Relu(b)",
    "two views": """a = Exp(x) s = Constant<value_ints = [-1]>() y = Reshape(a, s)
        z = Identity(a)""",
    "a part and the whole": """y = Exp(x) b = Constant<value_ints = [0]>()
        e = Constant<value_ints = [1]>() z = Slice(y, b, e)""",
    "parts": "a = Exp(x) y, z = Split<num_outputs = 2>(a)",
    "a constant": "y = Constant<value_floats = [1.0, 2.0]>() z = Identity(y)",
    "a part of a constant": """c = Constant<value_floats = [1.0, 2.0]>()
        b = Constant<value_ints = [1]>() e = Constant<value_ints = [2]>() y = Slice(c, b, e)
        z = Identity(x)""",
    "a splat": "s = Constant<value_ints = [4]>() y = ConstantOfShape(s) z = Identity(y)",
    "shape": "y = Shape(x) z = Identity(y)",
    "branch": """zero = Constant<value_float = 0.0>() s = ReduceSum<keepdims = 0>(x)
        c = Greater(s, zero)
        y = If(c) <then_branch = t () => (float[N, M] p) { p = Identity(x) },
                   else_branch = e () => (float[N, M] q) { q = Neg(x) }>""",
    "constant of a branch": """zero = Constant<value_float = 0.0>()
        s = ReduceSum<keepdims = 0>(x) c = Less(s, zero) k = NonZero(x)
        y = If(c) <then_branch = t () => (float[K] p) { p = Constant<value_floats = [5.0]>() },
                   else_branch = e () => (float[K] q) {
                       f = Cast<to = 1>(k) m = Constant<value_ints = [-1]>() q = Reshape(f, m) }>
        """,
    "no iterations": """n = Constant<value_int = 0>() c = Constant<value = bool {1}>()
        y = Loop(n, c, x) <body = b (int64 i, bool g, float[N, M] s) => (bool h, float[N, M] t) {
            h = Identity(g) t = Neg(s) }>""",
    "loop": """n = Constant<value_int = 3>() c = Constant<value = bool {1}>()
        y, z = Loop(n, c, x) <body = b (int64 i, bool g, float[N, M] s)
            => (bool h, float[N, M] t, float[N, M] u) { h = Identity(g) t = Identity(s)
            u = Identity(s) }>""",
    "loop with an operator": """n = Constant<value_int = 3>() c = Constant<value = bool {1}>()
        y, z = Loop(n, c, x) <body = b (int64 i, bool g, float[N, M] s)
            => (bool h, float[N, M] t, float[N, M] u) { h = Identity(g) t = Neg(s)
            u = Identity(t) }>""",
    "unranked loop": """n = Constant<value_int = 0>() c = Constant<value = bool {1}>()
        k = NonZero(x) f = Cast<to = 1>(k)
        y = Loop(n, c, f) <body = b (int64 i, bool g, float[A, B] s) => (bool h, float[C, D] t) {
            h = Identity(g) t = Concat<axis = 0>(s, s) }>""",
    "scan": """zero = Constant<value_ints = [0]>() k = ReduceSum<keepdims = 0>(x, zero)
        y, z = Scan<num_scan_inputs = 1, body = b (float[M] s, float[M] r)
            => (float[M] t, float[M] u) { t = Identity(s) u = Identity(r) }>(k, x)""",
    "sequence": """q = SequenceConstruct(x, x) i = Constant<value_int = 1>()
        y = SequenceAt(q, i) z = ConcatFromSequence<axis = 0>(q)""",
    "result is a sequence": "a = Neg(x) y = SequenceConstruct(x, a, x) z = Identity(a)",
    "nothing found": "k = NonZero(x) y = Identity(k) z = Transpose(k)",
}  # fmt: skip
SIZES: Final = [(2, 3), (1, 1), (4, 0)]
INTEGERS: Final = ("shape", "nothing found")


def model(name: str, sizes: tuple[int | str, int | str] = (2, 3)) -> onnx.ModelProto:
    """Returns a model of an input `x`."""
    body = SAME[name]
    made = [r for r in ("y", "z") if re.search(rf"\b{r}\b[^(<]*=", body)] or ["x"]
    kinds = dict.fromkeys(made, "int64" if name in INTEGERS else "float")
    if name == "result is a sequence":
        kinds["y"] = "seq(float)"
    shown = ", ".join(f"{kind} {result}" for result, kind in kinds.items())
    text = f"g (float[{sizes[0]}, {sizes[1]}] x) => ({shown}) {{ {body} }}"
    graph = onnx.parser.parse_graph(text)
    for value in graph.output:  # of any rank
        value.type.tensor_type.ClearField("shape")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def drawn(*shape: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}


@pytest.mark.parametrize("name", SAME)
def test_writing_to_one_array_changes_no_other(name: str, tmp_path: Path) -> None:
    for number, shape in enumerate(SIZES):
        if name == "parts" and shape[0] % 2:
            continue
        compiled = clew.compile(model(name, shape), threads=1 + number % 2)
        assert overwritten(compiled.run, drawn(*shape)) == "", shape
    compiled.save(tmp_path / "model.clew")
    loaded = clew.load_compiled(tmp_path / "model.clew", threads=1)
    assert overwritten(loaded.run, drawn(*shape)) == ""
    free = clew.compile(model(name, ("n", "m")), threads=1)
    for shape in SIZES:
        if name != "parts" or shape[0] % 2 == 0:
            assert overwritten(free.run, drawn(*shape)) == "", shape


@pytest.mark.parametrize("backend", ["numpy", "onnxruntime", "torch"])
@pytest.mark.parametrize("name", ["times one", "reshape", "two views", "parts", "a constant"])
def test_results_of_regions_own_their_memory(name: str, backend: str) -> None:
    compiled = clew.compile(model(name, (2, 3)), threads=1, backends=[backend])
    assert overwritten(compiled.run, drawn(2, 3)) == ""


class Memory(clew.MemorySpace):
    """A space whose arrays are the host's."""

    name = "lent"

    def from_host(self, array: Array) -> Any:
        return SimpleNamespace(array=array)

    def to_host(self, buffer: Any) -> Array:
        return buffer.array  # type: ignore[no-any-return]


class Keeping(clew.Backend):
    """A backend that returns the same buffer in each call, or its argument."""

    name = "keeping"

    def __init__(self, passes_on: bool, memory: clew.MemorySpace | None = None) -> None:
        self.passes_on = passes_on
        self.memory = memory or self.memory

    def takes(self, call: Any) -> bool:
        return bool(call.op_name == "negative")

    def compile(self, region: Any, target: Any) -> Any:
        kept = self.memory.from_host(np.full((2, 3), 7, np.float32))
        return lambda buffer: buffer if self.passes_on else kept


@pytest.mark.parametrize("passes_on", [True, False])
@pytest.mark.parametrize("memory", [None, Memory()])
@pytest.mark.parametrize("name", ["twice", "loop with an operator", "no iterations"])
def test_a_backend_may_keep_what_it_returns(
    name: str, memory: clew.MemorySpace | None, passes_on: bool
) -> None:
    compiled = clew.compile(model(name), threads=1, backends=[Keeping(passes_on, memory)])
    assert compiled.regions
    assert overwritten(compiled.run, drawn(2, 3)) == ""


DTYPES: Final = ("FLOAT16", "BFLOAT16", "INT4", "BOOL", "STRING", "COMPLEX64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_of_every_dtype_own_their_memory(dtype: str) -> None:
    kind = getattr(TensorProto, dtype)
    nodes = [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("Reshape", ["x", "shape"], ["z"]),
        helper.make_node("Concat", ["x"], ["x2"], axis=0),
    ]
    given, *made = (helper.make_tensor_value_info(n, kind, [3]) for n in ("x", "y", "z", "x2"))
    made[1] = helper.make_tensor_value_info("z", kind, [3, 1])
    shape = numpy_helper.from_array(np.array([3, 1]), "shape")
    graph = helper.make_graph(nodes, "g", [given], made, [shape])
    opset = [helper.make_opsetid("", 21)]
    compiled = clew.compile(helper.make_model(graph, opset_imports=opset, ir_version=10), threads=1)
    x = np.array(["a", "b", "c"], object) if dtype == "STRING" else np.array([1, 0, 1])
    feeds = {"x": x if dtype == "STRING" else x.astype(compiled.inputs[0].dtype)}
    assert overwritten(compiled.run, feeds) == ""


@pytest.mark.parametrize("strided", [False, True])
def test_arrays_of_other_libraries_are_inputs_too(strided: bool) -> None:
    compiled = clew.compile(model("identity"))
    given = np.ones((2, 6), np.float32)[:, ::2] if strided else np.ones((2, 3), np.float32)

    class Other:
        def __dlpack__(self, **options: Any) -> Any:
            return given.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return given.__dlpack_device__()

    found = compiled(Other())
    given[...] = 5
    assert (found == 1).all()
    spread = compiled(np.broadcast_to(np.float32(1), (2, 3)))
    spread[0, 0] = 7
    assert spread.sum() == 12


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", zoo.names("quick"))
def test_the_zoo(name: str) -> None:
    compiled = clew.compile(zoo.path(name), threads=1)
    assert overwritten(compiled.run, zoo.inputs(name)) == ""


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed: int) -> None:
    graph = Graph(seed)
    for _ in range(6):
        graph.grow()
    module = graph.module()
    main = module.main
    results = [*main.body.fields, *main.params, *main.body.fields]  # type: ignore[attr-defined]
    names = tuple(f"y{n}" for n in range(len(results)))
    more = Module({"main": Function(main.params, Tuple(results), {"outputs": names})})
    compiled = clew.compile(more, threads=1 + seed % 2, opt_level=(3, 1, 0)[seed % 3])
    assert overwritten(compiled.run, graph.arrays) == ""


def test_thousands_of_parts_are_compared_with_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one value, each part with its neighbors only; one that shares elements is copied."""
    asked = 0
    right = ownership._ends_before

    def counted(*places: Place) -> bool:
        nonlocal asked
        asked += 1
        return right(*places)

    monkeypatch.setattr(ownership, "_ends_before", counted)
    count = 2000
    for unit in (4, 4 * SymDim.symbol("n")):
        starts = [number * unit for number in range(count)]
        random.Random(0).shuffle(starts)
        parts = [Place(Owner.RUN, 7, start, unit) for start in starts]
        shared = [
            parts[5],
            Place(Owner.RUN, 7, starts[9] + 1, unit),
            Place(Owner.RUN, 7, 3 * unit, 3 * unit),
            Place(Owner.RUN, 7, 0, None),
        ]
        other = Place(Owner.RUN, 8, starts[5], unit)
        border = Border([*parts, *shared, other], [], [])
        assert border._copied == [count + number for number in range(len(shared))]
    assert asked < 60 * count
