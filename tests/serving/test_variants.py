"""Sizes of 0 and inputs of any rank: a build for all other sizes serves each of these variants."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from free_models import decoder, drawn, feeds_of_decoder, made
from onnx import TensorProto, helper

import clew
from clew.runtime.guard import GuardSide
from clew.serving.made_variants import MadeVariants
from clew.support.errors import ClewError

pytestmark = pytest.mark.usefixtures("shared_kernels")

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]


def ranked() -> bytes:
    """A product, a softmax and a transposed copy of an input of any rank."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Softmax", ["p"], ["y"], axis=-1),
        helper.make_node("Transpose", ["y"], ["t"]),
    ]
    return made(nodes, {"x": None}, ["y", "t"], w=drawn(8, 8) / 3)


def added() -> bytes:
    """The sum of two inputs of any rank, which broadcast."""
    nodes = [helper.make_node("Add", ["a", "b"], ["s"]), helper.make_node("Tanh", ["s"], ["y"])]
    return made(nodes, {"a": None, "b": None}, ["y"])


def total() -> bytes:
    """A growing state, and its sum in a branch, which one build cannot compute for all lengths from
    0 on.
    """
    branches = [
        helper.make_graph(
            [node], "branch", [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, [])]
        )
        for node in (
            helper.make_node("ReduceSum", ["prev_k"], ["r"], keepdims=0),
            helper.make_node("ReduceMax", ["prev_k"], ["r"], keepdims=0),
        )
    ]
    nodes = [
        helper.make_node("Concat", ["prev_k", "x"], ["k"], axis=0),
        helper.make_node("ReduceSum", ["x"], ["t"], keepdims=0),
        helper.make_node("Cast", ["t"], ["c"], to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    return made(nodes, {"x": ["s"], "prev_k": ["past"]}, ["y", "k"])


def feeds_of_total(s: int, past: int) -> Feeds:
    return {"x": drawn(s), "prev_k": drawn(past, seed=1)}


def agrees(run: Any, model: bytes, feed: Feeds) -> None:
    expected = onnxruntime.InferenceSession(model).run(None, feed)
    for found, wanted in zip(run(feed).values(), expected, strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


def test_a_build_serves_all_sizes_of_a_rank() -> None:
    model = ranked()
    compiled = clew.compile(model, threads=1, cache=False)
    shapes = [(3, 8), (50, 8), (2, 3, 8), (1, 1, 8), (7, 8), (4, 9, 8), (8,), (2, 2, 2, 8)]
    for seed, shape in enumerate(shapes):
        agrees(compiled.run, model, {"x": drawn(*shape, seed=seed)})
    assert compiled.builds_made == len({len(shape) for shape in shapes})


def test_sizes_of_a_rank_that_broadcast_have_builds_of_their_own() -> None:
    model = added()
    compiled = clew.compile(model, threads=1)
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((3, 4), (3, 4)), ((5, 6), (5, 6)), ((2, 4), (1, 4)), ((2, 4), (2, 1)), ((4,), (2, 4)),
        ((1, 1), (6, 2)), ((), (3,)), ((0, 4), (1, 4)), ((9, 9), (9, 9)), ((2, 4), (1, 4)),
    ]  # fmt: skip
    for seed, (a, b) in enumerate(pairs):
        agrees(compiled.run, model, {"a": drawn(*a, seed=seed), "b": drawn(*b, seed=seed + 1)})
    with pytest.raises(ClewError):
        compiled(drawn(2, 4), drawn(3, 4))


def test_a_variant_is_looked_into_as_any_build() -> None:
    compiled = clew.compile(ranked(), threads=1)
    with pytest.raises(ClewError, match="I044"):
        _ = compiled.kernels
    x = drawn(2, 3, 8)
    y = compiled.run(x)["y"]
    assert compiled.build.sizes.keys() == {"x_0", "x_1", "x_2"}
    layers = [layer for kernel in compiled.kernels for layer in kernel.layers]
    assert list(compiled.trace.layers) == list(dict.fromkeys(layers))
    assert compiled.trace.verify(x).ok
    np.testing.assert_array_equal(compiled.tap(layers[-2], x), y)
    assert len(compiled.profile(x).kernels) == len(compiled.kernels)
    assert len(compiled.time_kernels(x, repeats=2)) == len(compiled.kernels)
    assert compiled.drawn()[0].shape == x.shape


@pytest.mark.parametrize("side", list(GuardSide))
def test_variants_stay_in_their_buffers(side: GuardSide) -> None:
    guarded = clew.compile(
        ranked(), threads=1, diagnostics=clew.Diagnostics(guard=side), cache=False
    )
    for shape in ((3, 8), (5, 8), (2, 3, 8), (8,), (0, 8)):
        agrees(guarded.run, ranked(), {"x": drawn(*shape)})
    cached = clew.compile(
        decoder(), threads=1, diagnostics=clew.Diagnostics(guard=side), cache=False
    )
    for b, s, past in ((1, 1, 0), (2, 3, 0), (1, 2, 3), (0, 1, 0), (2, 1, 0), (1, 1, 1)):
        agrees(cached.run, decoder(), feeds_of_decoder(b, s, past))


def test_a_growing_state_starts_empty_in_a_build_made_at_once() -> None:
    compiled = clew.compile(total(), threads=1, cache=False)
    assert compiled.builds_made == 2
    for s, past in ((1, 0), (3, 0), (2, 3), (9, 0), (1, 9)):
        agrees(compiled.run, total(), feeds_of_total(s, past))
    assert compiled.builds_made == 2


def test_an_empty_state_is_summed_in_the_common_build() -> None:
    nodes = [
        helper.make_node("Concat", ["prev_k", "x"], ["k"], axis=0),
        helper.make_node("ReduceSum", ["prev_k"], ["y"], keepdims=0),
    ]
    model = made(nodes, {"x": ["s"], "prev_k": ["past"]}, ["y", "k"])
    compiled = clew.compile(model, threads=1)
    for s, past in ((1, 0), (2, 3)):
        agrees(compiled.run, model, feeds_of_total(s, past))
    assert compiled.builds_made == 1


def test_a_session_prepares_an_empty_state() -> None:
    compiled = clew.compile(decoder(), threads=1, cache=False)
    assert compiled.builds_made == 1
    session = compiled.session({"past_k": "k", "past_v": "v"})
    assert compiled.builds_made == 2
    for _ in range(3):
        session(drawn(1, 1, 48))
    assert compiled.builds_made == 2


def test_ranges_without_0_need_no_variant() -> None:
    compiled = clew.compile(decoder(), threads=1, cache=False, sizes={"past": (1, 9)})
    compiled.session({"past_k": "k", "past_v": "v"})
    assert compiled.builds_made == 1
    with pytest.raises(ClewError, match="I317"):
        compiled.run(feeds_of_decoder(1, 1, 0))


def test_variants_share_the_weights() -> None:
    compiled = clew.compile(decoder(), threads=1, cache=False)
    compiled.run(feeds_of_decoder(1, 1, 3))
    held = {id(c) for s in compiled.build.segments for c in s.constants if c.nbytes > 4096}
    compiled.run(feeds_of_decoder(1, 1, 0))
    empty = {id(c) for s in compiled.build.segments for c in s.constants if c.nbytes > 4096}
    assert empty
    assert empty <= held


def test_files_hold_variants(tmp_path: Path) -> None:
    compiled = clew.compile(ranked(), threads=1)
    for shape in ((3, 8), (2, 3, 8)):
        compiled(drawn(*shape))
    compiled.save(tmp_path / "ranked.clew")
    loaded = clew.load_compiled(tmp_path / "ranked.clew", threads=1)
    assert repr(loaded).endswith("saved for x of rank 2, x of rank 3>")
    for shape in ((5, 8), (2, 9, 8), (1, 8)):
        agrees(loaded.run, ranked(), {"x": drawn(*shape)})
    with pytest.raises(ClewError, match="I046"):
        loaded(drawn(8))

    cached = clew.compile(decoder(), threads=1)
    cached.run(feeds_of_decoder(1, 1, 0))
    cached.save(tmp_path / "decoder.clew")
    reloaded = clew.load_compiled(tmp_path / "decoder.clew", threads=1)
    for b, s, past in ((1, 1, 0), (2, 3, 0), (1, 2, 3)):
        agrees(reloaded.run, decoder(), feeds_of_decoder(b, s, past))


def test_a_model_from_the_cache_is_saved_with_its_variants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path / "cache"))
    for from_cache in (False, True):
        compiled = clew.compile(total(), threads=1)
        assert compiled.from_cache == from_cache
        compiled.save(tmp_path / "model.clew")
        loaded = clew.load_compiled(tmp_path / "model.clew", threads=1)
        assert repr(loaded).endswith("saved for all sizes, past = 0>")
        agrees(loaded.run, total(), feeds_of_total(1, 0))


_AGAIN = """
import sys, clew
sys.path[:0] = sys.argv[2:]
from test_variants import feeds_of_total
compiled = clew.compile(sys.argv[1], threads=1)
assert compiled.from_cache
for past in (0, 3, 0):
    compiled.run(feeds_of_total(1, past))
assert compiled.builds_made == 0, compiled.builds_made
compiled.run(feeds_of_total(2, 0))
assert compiled.build.sizes == {"s": 2}, compiled.build.sizes
"""


def test_the_second_process_loads_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "total.onnx"
    path.write_bytes(total())
    assert clew.compile(path, threads=1).builds_made == 2
    here = Path(__file__).parent
    folders = [str(here), str(here.parent / "build")]
    subprocess.run([sys.executable, "-c", _AGAIN, str(path), *folders], check=True, timeout=120)


def test_an_empty_state_that_cannot_be_built_is_an_error_of_its_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: Any) -> None:
        raise ClewError("C999", "refused")

    monkeypatch.setattr(MadeVariants, "get", refuse)
    compiled = clew.compile(total(), threads=1, cache=False)
    agrees(compiled.run, total(), feeds_of_total(1, 3))
    with pytest.raises(ClewError, match="C999"):
        compiled.run(feeds_of_total(1, 0))


SQUEEZED = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[n, {m}] x) => (float[...] y) {{
    s = Constant <value = int64[3] {{1, -1, {size}}}> ()
    b = Reshape (x, s)
    q = Squeeze (b)
    y = Exp (q)
}}"""


@pytest.mark.parametrize(("m", "size"), [("3", 3), ("1", 1)])
def test_sizes_of_one_decide_the_rank(m: str, size: int, tmp_path: Path) -> None:
    """One build serves each set of sizes that are 1, not each size."""
    text = SQUEEZED.format(m=m, size=size).replace("float[...]", "float[k]")
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    compiled = clew.compile(model, threads=1, cache=False)

    def agrees(made: Any, sizes: list[int]) -> None:
        for n in sizes:
            x = drawn(n, size)
            (expected,) = session.run(None, {"x": x})
            found = made.run({"x": x})["y"]
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-5)

    agrees(compiled, [3, 1, 7, 2, *range(2, 60), 1, 3])
    assert compiled.builds_made == 2
    agrees(compiled, [0, 5])
    assert compiled.builds_made == 3
    compiled.save(tmp_path / "model.clew")
    agrees(clew.load_compiled(tmp_path / "model.clew"), [3, 1, 100, 1])
