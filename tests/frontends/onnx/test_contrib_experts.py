"""Mixtures of experts, against ONNX Runtime, or numpy for what it has on GPUs only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .one_node import RNG, agrees, draw, fails, run

MS = "com.microsoft"
E, K, F = 6, 32, 16


def experts(tokens: tuple[int, ...], *, fused: int = 1, bias: bool = True, gate: bool = False):
    count = int(np.prod(tokens))
    return {
        "x": draw(*tokens, K), "router": draw(count, E) * 2,
        "fc1": draw(E, fused * F, K) / 6, "b1": draw(E, fused * F) if bias else None,
        "fc2": draw(E, K, F) / 4, "b2": draw(E, K) if bias else None,
        "fc3": draw(E, F, K) / 6 if gate else None, "b3": draw(E, F) if gate and bias else None,
    }  # fmt: skip


SWIGLU = {"activation_type": "swiglu", "swiglu_fusion": 1}
FORMS = {
    "relu": ({}, {"k": 1}),
    "two experts": ({}, {"k": 2, "activation_type": "silu"}),
    "normalized": ({}, {"k": 2, "activation_type": "gelu", "normalize_routing_weights": 1}),
    "identity": ({"bias": False}, {"k": 3, "activation_type": "identity"}),
    "swiglu": ({"fused": 2}, {"k": 2, **SWIGLU}),
    "limited": (
        {"fused": 2},
        {"k": 2, **SWIGLU, "activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 0.7},
    ),
}


@pytest.mark.parametrize("tokens", [(9,), (2, 5), (1,)], ids=["many", "batch", "one"])
@pytest.mark.parametrize("form", FORMS)
def test_mixture(tokens, form):
    given, options = FORMS[form]
    inputs = experts(tokens, **given)
    known = ("fc1", "b1", "fc2", "b2")
    agrees("MoE", inputs, by="ort", domain=MS, native=False, known=known, atol=1e-4, **options)


@pytest.mark.parametrize("tokens", [(5,), (1,)])
@pytest.mark.parametrize("form", ["gated silu", "split swiglu", "halves", "geglu"])
def test_mixtures_of_gpus(tokens, form):
    inputs = experts(tokens, fused=1 if "gated" in form or "split" in form else 2,
                     gate="gated" in form or "split" in form)  # fmt: skip
    activation = {"gated silu": "silu", "geglu": "geglu"}.get(form, "swiglu")
    options = {
        "activation_type": activation,
        "k": 2,
        "swiglu_fusion": 0 if inputs["b3"] is not None else 2,
    }
    (found,) = run("MoE", inputs, domain=MS, native=False, **options)[2]
    router = np.exp(inputs["router"].astype("f8"))
    router /= router.sum(1, keepdims=True)
    wanted = np.zeros((tokens[0], K))
    for t in range(tokens[0]):
        for e in np.argsort(-router[t])[:2]:
            g = inputs["fc1"][e] @ inputs["x"][t] + inputs["b1"][e]
            if inputs["b3"] is not None:
                u = inputs["fc3"][e] @ inputs["x"][t] + inputs["b3"][e]
            else:
                g, u = g[:F], g[F:]
            if form == "geglu":
                a = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
            else:
                a = g / (1 + np.exp(-g))
            wanted[t] += router[t, e] * (inputs["fc2"][e] @ (a * u) + inputs["b2"][e])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def packed(bits: int, *shape: int) -> Any:
    return RNG.integers(0, 256, (*shape[:-1], -(-shape[-1] * bits // 8))).astype("u1")


def quantized(tokens: int, bits: int, *, block: int = 0, zeros: bool = False, fused: int = 1):
    n1, n2 = fused * F, K

    def scale(n: int, k: int) -> Any:
        size = (E, n, k // block) if block else (E, n)
        return RNG.uniform(0.2, 1, size).astype("f4") / (1 << bits) / 4

    def zero(n: int, k: int) -> Any:
        return packed(bits, *((E, n, k // block) if block else (E, n)))

    return {
        "x": draw(tokens, K), "router": draw(tokens, E) * 2,
        "fc1": packed(bits, E, n1, K), "s1": scale(n1, K), "b1": draw(E, n1),
        "fc2": packed(bits, E, n2, F), "s2": scale(n2, F), "b2": draw(E, n2),
        "fc3": None, "s3": None, "b3": None,
        "z1": zero(n1, K) if zeros else None, "z2": zero(n2, F) if zeros else None,
    }  # fmt: skip


@pytest.mark.parametrize("tokens", [9, 1])
@pytest.mark.parametrize(
    ("form", "options"),
    [
        ({"bits": 4}, {"k": 2}),
        ({"bits": 8}, {"k": 1, "activation_type": "silu"}),
        ({"bits": 4, "zeros": True}, {"k": 2, "normalize_routing_weights": 1}),
        ({"bits": 4, "block": 16}, {"k": 2, "block_size": 16}),
        ({"bits": 4, "block": 16, "zeros": True, "fused": 2}, {"k": 2, "block_size": 16, **SWIGLU}),
    ],
)
def test_quantized_mixture(tokens, form, options):
    inputs = quantized(tokens, **form)
    known = tuple(n for n in inputs if n not in ("x", "router"))
    options = {**options, "expert_weight_bits": form["bits"]}
    # ONNX Runtime rounds activations to 8 bits in some of these.
    agrees(
        "QMoE", inputs, by="ort", domain=MS, native=False, known=known, rtol=0, atol=2e-2, **options
    )


@pytest.mark.parametrize("normal", [0, 1])
def test_weights_that_are_not_the_routers(normal):
    inputs = {**quantized(9, 8), "z3": None, "mixing": RNG.random((9, E)).astype("f4")}
    known = tuple(n for n in inputs if n not in ("x", "router", "mixing"))
    options = {"k": 2, "expert_weight_bits": 8, "normalize_routing_weights": normal}
    agrees(
        "QMoE", inputs, by="ort", domain=MS, native=False, known=known, rtol=0, atol=2e-2, **options
    )


def test_wrong_mixtures():
    inputs = experts((5,))
    fails("M012", "MoE", inputs, domain=MS, k=7)
    fails("M012", "MoE", {**inputs, "router": draw(4, E)}, domain=MS)
    fails("M012", "MoE", inputs, domain=MS, activation_type="swoosh")
    fails("M012", "MoE", inputs, domain=MS, activation_type="swiglu")
    fails("U005", "MoE", inputs, domain=MS, use_sparse_mixer=1)
    fails("U005", "QMoE", quantized(5, 4), domain=MS, quant_type="fp8")
