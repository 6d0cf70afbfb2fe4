"""ONNX Runtime's attention operators, each with every option, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .one_node import RNG, agrees, compiled, draw, fails, model, run

MS = "com.microsoft"
B, S, P, N, H = 2, 5, 3, 2, 8
D = N * H


def ints(array):
    return np.asarray(array, "i4")


MASKS = {
    "ends": ints([4, 2]),
    "ends and starts": ints([5, 4, 1, 2]),
    "of keys": ints(RNG.integers(0, 2, (B, S))),
    "of nothing": ints([[1], [1]]),
    "of queries and keys": ints(RNG.integers(0, 2, (B, S, S))),
}


def attention(mask=None, past=None, bias=None, *, projected=True, width=3 * D) -> dict[str, Any]:
    return {
        "x": draw(B, S, 12),
        "w": draw(12, width),
        "b": draw(width) if projected else None,
        "mask": mask,
        "past": past,
        "bias": bias,
    }


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask, unidirectional):
    inputs = attention(MASKS[mask])
    # Scores far below 0, where a row sees nothing, have few bits left.
    options = {"num_heads": N, "unidirectional": unidirectional}
    agrees("Attention", inputs, by="ort", domain=MS, native=False, atol=1e-3, **options)


def test_a_mask_of_a_larger_square():
    """ONNX Runtime has it on GPUs only: its last rows are those of the queries."""
    large = ints(RNG.integers(0, 2, (B, 1, 9, 9)))
    inputs = attention(large, past=draw(2, B, N, P, H))
    wanted = run(
        "Attention", {**inputs, "mask": large[:, 0, P:8, :8]}, domain=MS, native=False, num_heads=N
    )
    found = run("Attention", inputs, domain=MS, native=False, num_heads=N)
    np.testing.assert_allclose(found[2], wanted[2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        (attention(), {}),
        (attention(projected=False), {"scale": 0.3}),
        (attention(), {"unidirectional": 1}),
        (attention(bias=draw(B, N, S, S)), {}),
        (attention(bias=draw(1, N, S, S)), {"unidirectional": 1}),
        (attention(MASKS["of keys"], bias=draw(B, 1, S, S)), {"mask_filter_value": -3.0}),
        (attention(width=2 * D + 24), {"qkv_hidden_sizes": [D, D, 24]}),
        (attention(width=4 * D), {"qkv_hidden_sizes": [D, D, 2 * D], "unidirectional": 1}),
    ],
)
def test_attention(inputs, options):
    agrees(
        "Attention",
        inputs,
        by="ort",
        domain=MS,
        native=False,
        known=("w", "b"),
        num_heads=N,
        **options,
    )


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("mask", [None, ints(RNG.integers(0, 2, (B, S + P))), ints([7, 4])])
def test_past(mask, unidirectional):
    inputs = attention(mask, past=draw(2, B, N, P, H))
    options = {"num_heads": N, "unidirectional": unidirectional}
    agrees(
        "Attention", inputs, by="ort", domain=MS, native=False, results=("y", "present"), **options
    )


def test_present_without_a_past():
    options = {"num_heads": N, "unidirectional": 1}
    agrees(
        "Attention",
        attention(),
        by="ort",
        domain=MS,
        native=False,
        results=("y", "present"),
        **options,
    )


def test_wrong_attention():
    fails("M012", "Attention", attention(width=3 * D + 1), domain=MS, num_heads=N)
    fails("M012", "Attention", attention(), domain=MS, num_heads=5)
    fails("M012", "Attention", attention(), domain=MS)
    fails("U005", "Attention", attention(ints(np.zeros(8))), domain=MS, num_heads=N)
    fails("U005", "Attention", attention(), domain=MS, num_heads=N, do_rotary=1)


def test_wrong_multi_head_attention():
    """The query must be there; ONNX Runtime's schema says so, and a file may not."""
    inputs = {"q": None, "k": draw(B, S, D), "v": draw(B, S, D)}
    fails("M012", "MultiHeadAttention", inputs, domain=MS, num_heads=N)
    fails("M012", "MultiHeadAttention", {"q": draw(B, S, D)}, domain=MS, num_heads=N)


# --- MultiHeadAttention ---------------------------------------------------------------------------

L = 7


def heads(*, keys: int = L, width: int = D, **more: Any) -> dict[str, Any]:
    names = ("bias", "padding", "added", "past_key", "past_value")
    given = {"q": draw(B, S, D), "k": draw(B, keys, D), "v": draw(B, keys, width)}
    return {**given, **{name: more.get(name) for name in names}}


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        (heads(), {}),
        (heads(width=2 * D), {"scale": 0.2}),
        (heads(bias=draw(3 * D)), {}),
        (heads(keys=S, bias=draw(3 * D)), {"unidirectional": 1}),
        (heads(padding=ints([4, 2])), {}),
        (heads(padding=ints(RNG.integers(0, 2, (B, L)))), {"mask_filter_value": -2.0}),
        (heads(padding=ints(RNG.integers(0, 2, (B, S, L)))), {}),
        (heads(added=draw(B, N, S, L)), {}),
        (heads(added=draw(1, 1, S, L), padding=ints(RNG.integers(0, 2, (B, L)))), {}),
        ({"q": draw(B, S, D), "k": draw(B, N, L, H), "v": draw(B, N, L, H)}, {}),
    ],
)
def test_multi_head_attention(inputs, options):
    agrees("MultiHeadAttention", inputs, by="ort", domain=MS, native=False, num_heads=N, **options)


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("past", [0, P])
def test_keys_of_the_past(past, unidirectional):
    more = {} if not past else {"past_key": draw(B, N, P, H), "past_value": draw(B, N, P, H)}
    agrees(
        "MultiHeadAttention",
        heads(keys=S, bias=draw(3 * D), **more),
        by="ort",
        domain=MS,
        native=False,
        results=("y", "keys", "values"),
        num_heads=N,
        unidirectional=unidirectional,
    )


def test_packed_operands():
    """ONNX Runtime has them on GPUs only: one tensor gives what three do."""
    q, k, v = draw(B, S, N, H), draw(B, S, N, H), draw(B, S, N, H)
    flat = {n: x.reshape(B, S, D) for n, x in (("q", q), ("k", k), ("v", v))}
    packed = {"q": np.stack([q, k, v], 3)}
    pair = {"q": flat["q"], "kv": np.stack([k, v], 3)}
    wanted = run("MultiHeadAttention", flat, domain=MS, native=False, num_heads=N)[2]
    for inputs in (packed, pair):
        found = run("MultiHeadAttention", inputs, domain=MS, native=False, num_heads=N)[2]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_attention_becomes_one_kernel_of_attention():
    made = model("MultiHeadAttention", heads(bias=draw(3 * D)), domain=MS, num_heads=N)
    assert any("nn.attention" in kernel.ops for kernel in compiled(made).kernels)
