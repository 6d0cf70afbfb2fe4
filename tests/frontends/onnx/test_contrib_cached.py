"""Rotary embedding and attention over caches, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import clew

from .one_node import RNG, agrees, draw, fails, run

MS = "com.microsoft"
B, N, K, H, MOST = 2, 4, 2, 16, 16


def angles(width: int = H) -> dict[str, Any]:
    angle = np.arange(MOST)[:, None] / 7.0 ** np.linspace(0, 1, width // 2)
    return {"cos": np.cos(angle).astype("f4"), "sin": np.sin(angle).astype("f4")}


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    ("shape", "width", "options"),
    [
        ((B, 5, N * H), H, {}),
        ((B, N, 5, H), H, {}),
        ((B, 5, N * H), 4, {"num_heads": N, "rotary_embedding_dim": 4}),
        ((B, N, 5, H), 4, {"num_heads": N, "rotary_embedding_dim": 4}),
    ],
)
@pytest.mark.parametrize("offset", [False, True])
def test_rotary_embedding(shape, width, options, interleaved, offset):
    ids = np.array([3]) if offset else RNG.integers(0, MOST, (B, 5))
    inputs = {"x": draw(*shape), "ids": ids.astype("i8"), **angles(width)}
    agrees(
        "RotaryEmbedding",
        inputs,
        by="ort",
        domain=MS,
        native=False,
        interleaved=interleaved,
        **options,
    )


def test_wrong_rotary_embedding():
    inputs = {"x": draw(B, 5, N * H), "ids": np.array([3]), **angles()}
    fails("M012", "RotaryEmbedding", {**inputs, "x": draw(5, 4)}, domain=MS)
    fails("M012", "RotaryEmbedding", {**inputs, "x": draw(B, 5, 40)}, domain=MS)
    fails("U005", "RotaryEmbedding", inputs, domain=MS, is_packed_batching=1)


# --- GroupQueryAttention --------------------------------------------------------------------------

NAMES = ("q", "k", "v", "past_k", "past_v", "last", "total", "cos", "sin", "ids", "bias", "sink")


def grouped(rows: int, lengths: list[int], past: int, *, packed=False, **more: Any):
    """Returns inputs of a call after which rows of the batch have so many keys; with `past` the
    cache has room for so many before.
    """
    batch = len(lengths)
    new = {"q": draw(batch, rows, N * H), "k": draw(batch, rows, K * H)}
    new["v"] = draw(batch, rows, K * H)
    if packed:
        new = {"q": np.concatenate(list(new.values()), -1), "k": None, "v": None}
    given = {
        **new,
        "past_k": draw(batch, K, past, H) if past else None,
        "past_v": draw(batch, K, past, H) if past else None,
        "last": np.array(lengths, "i4") - 1,
        "total": np.array(max(lengths), "i4"),
        **more,
    }
    return {name: given.get(name) for name in NAMES}


def check(inputs, *, ragged=False, **options):
    """Compares with ONNX Runtime; where rows have keys of unequal number, what lies behind is not
    defined.
    """
    options = {"num_heads": N, "kv_num_heads": K, **options}
    results = ("y", "k2", "v2")
    made, feeds, found = run(
        "GroupQueryAttention",
        inputs,
        domain=MS,
        native=False,
        results=results,
        known=("total",),
        **options,
    )
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, feeds)
    lengths = inputs["last"] + 1
    for n, (got, want) in enumerate(zip(found, wanted, strict=True)):
        assert got.shape == want.shape
        for b, length in enumerate(lengths):
            kept = np.s_[b, :, :length] if n else np.s_[b, : length if ragged else None]
            np.testing.assert_allclose(got[kept], want[kept], rtol=1e-4, atol=1e-5)


ROTARY = {"do_rotary": 1}


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        (grouped(5, [5, 5], 0), {}),
        (grouped(5, [5, 5], 0, packed=True), {}),
        (grouped(5, [5, 5], 0, **angles()), ROTARY),
        (grouped(5, [5, 5], 0, packed=True, **angles()), {**ROTARY, "rotary_interleaved": 1}),
        (grouped(5, [5, 5], 0), {"scale": 0.2, "softcap": 1.5}),
        (grouped(5, [5, 5], 0), {"smooth_softmax": 1}),
        (grouped(5, [5, 5], 0, sink=draw(N)), {}),
        (grouped(5, [5, 5], 0), {"local_window_size": 2}),
        (grouped(5, [5, 5], 0, bias=draw(1, N, 5, 5)), {}),
        (grouped(5, [5, 5], 12), {}),
        (grouped(5, [5, 5], 0), {"causal": 0}),
    ],
)
def test_first_call(inputs, options):
    check(inputs, **options)


def test_first_call_with_padding():
    check(grouped(5, [5, 3], 0, **angles()), ragged=True, **ROTARY)


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        (grouped(1, [6, 6], 5), {}),
        (grouped(1, [6, 6], 12), {}),
        (grouped(1, [6, 4], 5, **angles()), ROTARY),
        (grouped(1, [6, 4], 12, packed=True, **angles()), ROTARY),
        (grouped(3, [8], 5, **angles()), ROTARY),
        (grouped(1, [9, 6], 12), {"local_window_size": 3}),
        (grouped(1, [9, 6], 12, bias=draw(2, 1, 1, 9)), {"softcap": 2.0}),
        (grouped(1, [6, 6], 5, **angles(), ids=np.array([[5], [5]])), ROTARY),
        (grouped(1, [6, 6], 5, sink=draw(N)), {"causal": 0}),
    ],
)
def test_later_calls(inputs, options):
    check(inputs, **options)


def test_norms_of_queries_and_keys():
    """ONNX Runtime has them on GPUs only."""

    def normal(x, scale):
        rows = x.reshape(*x.shape[:2], -1, H).astype("f8")
        rows = rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-6) * scale
        return rows.reshape(x.shape).astype("f4")

    options = {"num_heads": N, "kv_num_heads": K, "domain": MS, "known": ("total",)}
    plain, scales = grouped(5, [5, 5], 0), (draw(H), draw(H))
    given = {**plain, "ks": None, "vs": None, "qn": scales[0], "kn": scales[1]}
    found = run("GroupQueryAttention", given, **options)[2]
    before = {**plain, "q": normal(plain["q"], scales[0]), "k": normal(plain["k"], scales[1])}
    wanted = run("GroupQueryAttention", before, **options)[2]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_one_build_serves_all_lengths():
    """As language models are exported: the number of keys is a size of the mask."""
    names = ["q", "k", "v", "past_k", "past_v", "last", "total", "cos", "sin"]
    nodes = [
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["count"]),
        helper.make_node("Cast", ["count"], ["total"], to=TensorProto.INT32),
        helper.make_node("ReduceSum", ["mask", "ones"], ["lengths"], keepdims=0),
        helper.make_node("Sub", ["lengths", "one"], ["before"]),
        helper.make_node("Cast", ["before"], ["last"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention", names, ["y", "k2", "v2"], domain=MS,
            num_heads=N, kv_num_heads=K, do_rotary=1,
        ),
    ]  # fmt: skip

    def value(name, dtype, *shape):
        return helper.make_tensor_value_info(name, dtype, shape)

    f32, i64 = TensorProto.FLOAT, TensorProto.INT64
    tables = [helper.make_tensor(n, f32, (MOST, H // 2), a.ravel()) for n, a in angles().items()]
    made = helper.make_model(
        helper.make_graph(
            nodes, "g",
            [value("q", f32, "b", "s", N * H), value("k", f32, "b", "s", K * H),
             value("v", f32, "b", "s", K * H), value("past_k", f32, "b", K, "p", H),
             value("past_v", f32, "b", K, "p", H), value("mask", i64, "b", "t")],
            [helper.make_empty_tensor_value_info(n) for n in ("y", "k2", "v2")],
            [helper.make_tensor("one", i64, (), [1]), helper.make_tensor("ones", i64, (1,), [1]),
             *tables],
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)], ir_version=8,
    )  # fmt: skip
    compiled = clew.compile(made.SerializeToString(), threads=1, cache=False)
    assert not any(spec.decides for spec in compiled.inputs)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    cache = {"past_k": np.zeros((B, K, 0, H), "f4"), "past_v": np.zeros((B, K, 0, H), "f4")}
    for rows in (4, 1, 1):
        inputs = grouped(rows, [rows, rows], 0)
        feeds = {**{n: inputs[n] for n in "qkv"}, **cache}
        feeds["mask"] = np.ones((B, cache["past_k"].shape[2] + rows), "i8")
        found = compiled.run(feeds)
        for got, want in zip(found.values(), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        cache = {"past_k": found["k2"], "past_v": found["v2"]}


def test_wrong_caches():
    options = {"num_heads": N, "kv_num_heads": K, "domain": MS, "known": ("total",)}
    inputs = grouped(5, [5, 5], 0)
    fails("M012", "GroupQueryAttention", inputs, **{**options, "kv_num_heads": 3})
    fails("M012", "GroupQueryAttention", {**inputs, "last": np.zeros(3, "i4")}, **options)
    fails("U005", "GroupQueryAttention", inputs, sliding_window_cache=1, **options)
    fails("U005", "GroupQueryAttention", inputs, kv_cache_bit_width=8, **options)
