"""One build for all sizes: what it computes, where it is valid, and how long it is kept."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from free_models import (
    F32,
    builds,
    close,
    compiled,
    decoder,
    drawn,
    feeds_of_decoder,
    made,
    reference,
)
from onnx import TensorProto, helper, numpy_helper

import clew
import zoo
from clew.runtime import sizes_key as keys
from clew.runtime.guard import GuardSide
from clew.runtime.sizes_key import KEPT_SIZES, kept_sizes
from clew.support.errors import ClewError

pytestmark = pytest.mark.usefixtures("shared_kernels")

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
I64 = TensorProto.INT64
BERT = "bert_tiny_dynamic"


# ------------------------------------------------------------------------------------------ models


def images() -> bytes:
    """Convolutions of images of any size, with strides, pooling, a residual and a resize."""
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], pads=[2, 2, 2, 2]),
        helper.make_node("Add", ["c1", "r0"], ["s0"]),
        helper.make_node("Conv", ["s0", "w2"], ["c2"], group=32, pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["c2"], ["p0"], kernel_shape=[3, 3], strides=[2, 2],
                         pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["p0", "w3"], ["c3"]),
        helper.make_node("Resize", ["c3", "", "scales"], ["up"], mode="nearest"),
        helper.make_node("GlobalAveragePool", ["c3"], ["mean"]),
    ]  # fmt: skip
    return made(
        nodes, {"x": ["n", 3, "h", "w"]}, ["up", "mean"],
        w0=drawn(32, 3, 3, 3) / 5, b0=drawn(32), w1=drawn(32, 32, 5, 5) / 28,
        w2=drawn(32, 1, 3, 3) / 3, w3=drawn(20, 32, 1, 1) / 6,
        scales=np.array([1, 1, 2, 2], np.float32),
    )  # fmt: skip


def positions() -> bytes:
    """Rows plus as many rows of a table of 512: valid for up to 512 rows."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["s"], axis=0),
        helper.make_node("Slice", ["table", "zero", "s", "zero"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["y"]),
    ]
    numbers = {"zero": np.array([0]), "one": np.array([1])}
    return made(nodes, {"x": ["b", "s", 8]}, ["y"], table=drawn(512, 8), **numbers)


def growing() -> bytes:
    """A loop that stacks copies of a row; it may have no iterations."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["keep"], ["keep_on"]),
            helper.make_node("Add", ["x", "one"], ["row"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", I64, []),
            helper.make_tensor_value_info("keep", TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info("keep_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("row", F32, ["b", "s"]),
        ],
        [numpy_helper.from_array(np.float32(1), "one")],
    )
    node = helper.make_node("Loop", ["count", "true"], ["y"], body=body)
    inputs = {"x": ["b", "s"], "count": (I64, [])}
    return made([node], inputs, ["y"], true=np.array(True))


def heads() -> bytes:
    """A reshape to free sizes that runs between kernels, of an element of a sequence."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("SequenceConstruct", ["x"], ["many"]),
        helper.make_node("SequenceAt", ["many", "zero"], ["one"]),
        helper.make_node("Concat", ["shape", "last"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["one", "wanted"], ["z"]),
        helper.make_node("Relu", ["z"], ["y"]),
    ]
    return made(nodes, {"x": ["b", "s"]}, ["y"], zero=np.array(0), last=np.array([1]))


def joined() -> bytes:
    """Concatenations along the channels of images of free sizes, whose parts lie at free offsets:
    one is a part of another, and one is copied. The halves of a split are read and are results.
    """
    conv = partial(helper.make_node, "Conv", kernel_shape=[3, 3], pads=[1] * 4)
    nodes = [
        conv(["x", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        conv(["b", "w1"], ["c"]),
        helper.make_node("Concat", ["b", "c"], ["d"], axis=1),
        conv(["d", "w2"], ["e"]),
        helper.make_node("Concat", ["d", "e", "x"], ["f"], axis=1),
        helper.make_node("Split", ["f", "sizes"], ["g", "h"], axis=1),
        conv(["h", "w3"], ["i"]),
        helper.make_node("Relu", ["g"], ["j"]),
    ]
    weights = {
        "w0": drawn(16, 3, 3, 3) / 5,
        "w1": drawn(32, 16, 3, 3) / 12,
        "w2": drawn(16, 48, 3, 3) / 20,
        "w3": drawn(8, 35, 3, 3) / 17,
    }
    sizes = np.array([32, 35])
    return made(nodes, {"x": [1, 3, "h", "w"]}, ["f", "h", "i", "j"], sizes=sizes, **weights)


def moved() -> bytes:
    """Transposed convolutions and operators that only move elements, of images of any size."""
    up = partial(helper.make_node, "ConvTranspose", strides=[2, 2])
    nodes = [
        up(["x", "w0"], ["a"], kernel_shape=[2, 2]),
        up(["x", "w1"], ["b"], kernel_shape=[3, 3], pads=[1] * 4, output_padding=[1, 1]),
        helper.make_node("Add", ["a", "b"], ["up"]),
        helper.make_node("DepthToSpace", ["x"], ["deep"], blocksize=2),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("Sigmoid", ["z"], ["s"]),
        helper.make_node("Add", ["t", "s"], ["turned"]),  # over the sigmoid's memory
        helper.make_node("Transpose", ["x"], ["last"], perm=[0, 2, 3, 1]),
        helper.make_node("Resize", ["x", "", "scales"], ["large"], mode="linear"),
    ]
    return made(
        nodes, {"x": ["n", 8, "h", "w"], "z": ["n", 8, "w", "h"]},
        ["up", "deep", "turned", "last", "large"],
        w0=drawn(8, 24, 2, 2) / 4, w1=drawn(8, 24, 3, 3) / 6,
        scales=np.array([1, 1, 2, 2], np.float32),
    )  # fmt: skip


def feeds_of_moved(n: int, h: int, w: int) -> Feeds:
    return {"x": drawn(n, 8, h, w), "z": drawn(n, 8, w, h, seed=1)}


def sliced() -> bytes:
    """Rows of a value of free width, which are views of it, joined with others below them."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Softmax", ["a"], ["p"], axis=1),
        helper.make_node("Split", ["p", "sizes"], ["b", "c"], axis=0),
        helper.make_node("Softmax", ["c"], ["d"], axis=1),
        helper.make_node("Sqrt", ["b"], ["e"]),
        helper.make_node("Concat", ["d", "e", "z"], ["y"], axis=0),
    ]
    inputs = {"x": [8, "n"], "z": ["m", "n"]}
    return made(nodes, inputs, ["y", "b"], sizes=np.array([3, 5]))


def feeds_of_images(n: int, h: int, w: int) -> Feeds:
    return {"x": drawn(n, 3, h, w)}


MODELS: dict[str, tuple[Callable[[], bytes], Callable[..., Feeds], list[tuple[int, ...]]]] = {
    "images": (images, feeds_of_images, [
        (1, 32, 48), (2, 33, 47), (1, 1, 1), (1, 5, 70), (3, 8, 2), (1, 17, 16), (1, 64, 65),
    ]),
    "decoder": (decoder, feeds_of_decoder, [
        (1, 1, 1), (1, 1, 7), (2, 1, 31), (1, 5, 16), (3, 1, 100), (1, 1, 64), (1, 9, 65),
    ]),
    "joined": (joined, lambda h, w: {"x": drawn(1, 3, h, w)}, [
        (32, 48), (1, 1), (5, 70), (33, 47), (8, 2), (64, 65),
    ]),
    "moved": (moved, feeds_of_moved, [
        (1, 33, 47), (1, 1, 1), (2, 2, 3), (1, 9, 7), (1, 16, 8), (1, 65, 97), (2, 24, 17),
    ]),
    "sliced": (sliced, lambda m, n: {"x": drawn(8, n), "z": drawn(m, n, seed=1)}, [
        (1, 48), (3, 1), (70, 33), (7, 200),
    ]),
    "positions": (positions, lambda b, s: {"x": drawn(b, s, 8)}, [
        (1, 1), (2, 7), (1, 511), (3, 64), (1, 512), (5, 13),
    ]),
    "bert": (
        lambda: zoo.path(BERT).read_bytes(),
        lambda b, s: dict(zoo.inputs(BERT, batch=b, sequence=s)),
        [(1, 1), (1, 2), (2, 7), (1, 16), (3, 17), (1, 65), (4, 31)],
    ),
    "encoder": (
        lambda: zoo.path("encoder_small_free").read_bytes(),
        lambda b, s: dict(zoo.inputs("encoder_small_free", batch=b, sequence=s)),
        [(1, 1), (2, 5), (1, 40)],
    ),
}  # fmt: skip


def same(found: Feeds, expected: Feeds) -> None:
    for name, wanted in expected.items():
        np.testing.assert_array_equal(found[name], wanted)


def refusal(call: Any, *args: Any, **named: Any) -> ClewError:
    with pytest.raises(ClewError) as caught:
        call(*args, **named)
    return caught.value


# ------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize("name", MODELS)
def test_one_build_computes_what_the_runtime_does(name: str) -> None:
    make, feeds, sizes = MODELS[name]
    data = make()
    model = compiled(data)
    for at in sizes:
        given = feeds(*at)
        close(model.run(given), reference(data, given))
    assert builds(model) == 1


def test_parts_of_free_sizes_lie_in_their_concatenations() -> None:
    model = compiled(joined())
    model.run({"x": drawn(1, 3, 24, 40)})
    labels = [s.label for segment in model.build.segments for s in segment.plan.steps]
    assert not any("concatenate" in label or "slice" in label for label in labels)
    assert sum(label == "copy" for label in labels) == 1  # the input


def test_images_that_reflect_twice_have_a_build_of_their_own() -> None:
    node = helper.make_node("Pad", ["x", "p"], ["y"], mode="reflect")
    data = made([node], {"x": [2, "h", "w"]}, ["y"], p=np.array([0, 1, 3, 0, 2, 2]))
    model = compiled(data, cache=False)
    for h, w in ((3, 4), (33, 47), (9, 70), (64, 5)):
        given = drawn(2, h, w)
        wanted = np.pad(given, ((0, 0), (1, 2), (3, 2)), mode="reflect")
        np.testing.assert_array_equal(model.run({"x": given})["y"], wanted)
    assert model.builds_made == 1
    given = drawn(2, 2, 3)
    wanted = np.pad(given, ((0, 0), (1, 2), (3, 2)), mode="reflect")
    np.testing.assert_array_equal(model.run({"x": given})["y"], wanted)
    assert model.builds_made == 2


def test_a_transposed_convolution_of_free_size_to_a_given_size() -> None:
    node = helper.make_node(
        "ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], kernel_shape=[3, 3],
        output_shape=[10, 12],
    )  # fmt: skip
    data = made([node], {"x": [1, 4, "h", "w"]}, ["y"], w=drawn(4, 8, 3, 3))
    model = compiled(data, cache=False)
    for h, w in ((5, 6), (4, 6), (5, 5)):
        feeds = {"x": drawn(1, 4, h, w)}
        close(model.run(feeds), reference(data, feeds))


@pytest.mark.parametrize("name", ["images", "decoder"])
def test_a_build_for_the_sizes_alone_agrees(name: str) -> None:
    make, feeds, sizes = MODELS[name]
    data = make()
    model = compiled(data)
    for at in sizes[:2]:
        given = feeds(*at)
        static = compiled(data, inputs={n: list(a.shape) for n, a in given.items()})
        assert not static.is_symbolic
        close(model.run(given), static.run(given))


@pytest.mark.parametrize("side", GuardSide)
@pytest.mark.parametrize("name", ["images", "decoder", "bert", "joined", "moved", "sliced"])
def test_two_threads_behind_guard_pages(name: str, side: GuardSide) -> None:
    make, feeds, sizes = MODELS[name]
    data = make()
    model = compiled(data, diagnostics=clew.Diagnostics(guard=side), threads=2)
    plain = compiled(data)
    for at in sizes:
        same(model.run(feeds(*at)), plain.run(feeds(*at)))
    assert builds(model) == 1


def test_results_do_not_depend_on_earlier_sizes() -> None:
    make, feeds, sizes = MODELS["images"]
    data = make()
    there, back = compiled(data), compiled(data)
    first = [there.run(feeds(*at)) for at in sizes]
    last = [back.run(feeds(*at)) for at in reversed(sizes)]
    for a, b in zip(first, reversed(last), strict=True):
        same(a, b)
    for at, expected in zip(sizes, first, strict=True):
        same(there.run(feeds(*at)), expected)


def test_the_programs_of_the_last_sizes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [kept_sizes(n) for n in (0, 1, 80, 10_000)] == [1024, 1024, 102, KEPT_SIZES]
    monkeypatch.setattr(keys, "_KEPT_KERNELS", 1)
    make, feeds, _ = MODELS["positions"]
    model = compiled(make(), cache=False)
    expected = [model.run(feeds(1, s)) for s in range(1, KEPT_SIZES + 6)]
    assert model.builds_made == 1
    assert len(model._chain.kept) == KEPT_SIZES
    for s in (KEPT_SIZES, KEPT_SIZES - 1, KEPT_SIZES):
        same(model.run(feeds(1, s)), expected[s - 1])
        assert s in model.build.sizes.values()
    same(model.run(feeds(1, 1)), expected[0])  # made again
    assert len(model._chain.kept) == KEPT_SIZES
    assert model.builds_made == 1


def test_calls_with_different_sizes_at_once() -> None:
    make, feeds, sizes = MODELS["decoder"]
    model = compiled(make(), threads=2)
    expected = {at: compiled(make()).run(feeds(*at)) for at in sizes}
    failures: list[BaseException] = []

    def call(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(20):
                at = rng.choice(sizes)
                same(model.run(feeds(*at)), expected[at])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert builds(model) == 1


# -------------------------------------------------------------------------- where it is not valid


def test_sizes_of_0_have_a_build_of_their_own() -> None:
    make, feeds, _ = MODELS["decoder"]
    data = make()
    model = compiled(data, cache=False)
    model.run(feeds(1, 1, 3))
    for at in ((1, 1, 0), (0, 2, 3), (0, 1, 0)):
        close(model.run(feeds(*at)), reference(data, feeds(*at)))
    assert model.builds_made == 4
    model.run(feeds(2, 1, 5))
    model.run(feeds(1, 1, 0))
    assert model.builds_made == 4


@pytest.mark.parametrize("how", ["compiled", "saved"])
def test_loops_without_iterations(how: str, tmp_path: Path) -> None:
    data = growing()
    model = compiled(data)
    model.run({"x": drawn(1, 1), "count": np.array(2)})
    if how == "saved":
        model.save(tmp_path / "model.clew")
        model = clew.load_compiled(tmp_path / "model.clew", threads=1)
    for count in (0, 3, 0):
        for shape in ((2, 5), (1, 7)):
            feeds = {"x": drawn(*shape), "count": np.array(count)}
            found = model.run(feeds)["y"]
            np.testing.assert_array_equal(found, np.broadcast_to(feeds["x"] + 1, (count, *shape)))


@pytest.mark.parametrize("how", ["compiled", "saved"])
def test_operators_between_kernels(how: str, tmp_path: Path) -> None:
    data = heads()
    model = compiled(data)
    model.run({"x": drawn(1, 1)})
    if how == "saved":
        model.save(tmp_path / "model.clew")
        model = clew.load_compiled(tmp_path / "model.clew", threads=1)
    for shape in ((2, 5), (1, 7), (4, 3)):
        feeds = {"x": drawn(*shape)}
        close(model.run(feeds), reference(data, feeds))


def test_sizes_that_contradict_each_other() -> None:
    make, feeds, _ = MODELS["decoder"]
    model = compiled(make())
    given = {**feeds(1, 1, 3), "past_v": drawn(1, 4, 32)}
    for _ in range(2):
        error = refusal(model.run, given)
        assert error.code == "I042"
        model.run(feeds(1, 1, 3))
    assert refusal(model.run, {**feeds(2, 1, 3), "x": drawn(1, 1, 32)}).code == "I042"


def test_sizes_beyond_a_condition() -> None:
    make, feeds, _ = MODELS["positions"]
    data = make()
    model = compiled(data)
    same(model.run(feeds(1, 512)), reference(data, feeds(1, 512)))
    for s in (513, 600):
        error = refusal(model.run, feeds(1, s))
        assert error.code[0] in "TIMC", error
    same(model.run(feeds(2, 9)), reference(data, feeds(2, 9)))
    # The table broadcasts where one row of it is left: nothing depends on the order of sizes.
    same(model.run(feeds(1, 1)), reference(data, feeds(1, 1)))


def test_sizes_whose_memory_no_machine_has() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "y"], ["product"]),
        helper.make_node("Softmax", ["product"], ["z"], axis=-1),
    ]
    data = made(nodes, {"x": ["m", 1], "y": [1, "n"]}, ["z"])
    few = {"x": drawn(3, 1), "y": drawn(1, 4)}
    zero = np.zeros((), np.float32)
    model = compiled(data)
    expected = model.run(few)
    for m, n in ((1 << 31, 1 << 31), (1 << 20, 1 << 22), (1 << 31, 1 << 12)):
        many = {"x": np.broadcast_to(zero, (m, 1)), "y": np.broadcast_to(zero, (1, n))}
        assert refusal(model.run, many).code in ("C140", "I267", "T110")
    same(model.run(few), expected)
    limited = compiled(data, limits=clew.Budgets(run_bytes=1 << 28))
    for each in (1 << 14, 1 << 15):
        error = refusal(limited.run, {"x": drawn(each, 1), "y": drawn(1, each)})
        assert error.code == "C140"
    same(limited.run(few), expected)


# ------------------------------------------------------------------------------- saved and stored


SCRIPT = """
import json, sys
import numpy as np
import clew
folder, how = sys.argv[1:]
cases = np.load(folder + "/cases.npz")
many = json.loads(str(cases["names"]))
if how == "saved":
    model = clew.load_compiled(folder + "/model.clew", threads=1)
else:
    model = clew.compile(folder + "/model.onnx", threads=1)
    assert model.from_cache, "the stored build was not found"
results = {}
for n, names in enumerate(many):
    for name, value in model.run({k: cases[f"{n}_{k}"] for k in names}).items():
        results[f"{n}_{name}"] = value
if how == "stored":
    assert model.builds_made == 0, model.builds_made
np.savez(folder + "/results.npz", **results)
"""


@pytest.mark.parametrize("how", ["saved", "stored"])
@pytest.mark.parametrize(
    "name",  # other models are exhaustive: what differs are kernels, which take long to compile
    [
        "decoder",
        *(pytest.param(n, marks=pytest.mark.exhaustive) for n in ("images", "bert", "joined")),
    ],
)
def test_another_process_runs_it_at_other_sizes(
    name: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path / "cache"))
    make, feeds, sizes = MODELS[name]
    (tmp_path / "model.onnx").write_bytes(make())
    model = clew.compile(tmp_path / "model.onnx", threads=1)
    model.run(feeds(*sizes[0]))
    model.save(tmp_path / "model.clew")
    given = [feeds(*at) for at in sizes[1:]]
    arrays = {f"{n}_{k}": a for n, each in enumerate(given) for k, a in each.items()}
    names = json.dumps([list(each) for each in given])
    np.savez(tmp_path / "cases.npz", names=np.array(names), **arrays)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), how]
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results = np.load(tmp_path / "results.npz")
    for n, each in enumerate(given):
        same({k: results[f"{n}_{k}"] for k in model.output_names}, model.run(each))


def test_size_arithmetic_rounds_towards_zero() -> None:
    # As exporters compute the length of a mask after strided convolutions.
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("Sub", ["n", "ten"], ["left"]),
        helper.make_node("Div", ["left", "four"], ["steps"]),
        helper.make_node("Sub", ["steps", "one"], ["before"]),
        helper.make_node("Div", ["before", "two"], ["half"]),
        helper.make_node("Add", ["half", "three"], ["length"]),
        helper.make_node("Expand", ["value", "length"], ["wide"]),
        helper.make_node("Exp", ["wide"], ["y"]),
        helper.make_node("Exp", ["x"], ["z"]),
    ]
    numbers = {"ten": 10, "four": 4, "one": 1, "two": 2, "three": 3}
    held = {name: np.array([number]) for name, number in numbers.items()}
    data = made(nodes, {"x": ["n"]}, ["y", "z"], value=np.array([0.5], np.float32), **held)
    model = compiled(data, cache=False)
    for n in range(1, 40):
        feeds = {"x": drawn(n)}
        close(model.run(feeds), reference(data, feeds))
    assert model.builds_made == 1
