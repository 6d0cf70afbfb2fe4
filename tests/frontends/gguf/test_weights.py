"""Weights in blocks of few bits: their numbers, and models that multiply by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.frontends.gguf.reference import NUMBERS

import clew
from clew.frontends.building import call
from clew.frontends.checkpoint.loader import load as load_folder
from clew.frontends.gguf.blocks import KINDS
from clew.frontends.gguf.container import read_container
from clew.frontends.gguf.loader import load
from clew.frontends.gguf.weights import Stored
from clew.ir.expr import Constant, Expr, Function, Tuple, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType, to_numpy
from clew.ir.visit import post_order
from gguf_files import (
    BLOCKS,
    Array,
    Tensor,
    blocks,
    metadata_of_llama,
    plain,
    tensors_of_llama,
    written,
)

_SIZES = (256, 256, 1, 4, 2)  # hidden, inner, layers, heads, groups


def numbers_of(tensor: Tensor, kind: str) -> Array:
    """Returns the numbers of a tensor, through the reader's functions."""
    _, elements, size = BLOCKS[kind]
    data, form = np.frombuffer(tensor.data, np.uint8).reshape(-1, size), KINDS[tensor.kind]
    assert form.name == kind
    assert form.codes is not None
    assert form.scales is not None
    count = elements // form.group

    def of_groups(unpack: Any, factors: Any) -> Array:
        found = unpack(data).reshape(-1, count).astype(np.float32)
        found = found if factors is None else found * factors(data).astype(np.float32)
        return np.repeat(found, form.group, 1)

    numbers = form.codes(data).astype(np.float32) - form.zero
    numbers = of_groups(form.scales, form.factors) * numbers
    if form.offsets is not None:
        numbers = numbers + of_groups(form.offsets, form.offset_factors)
    return numbers.reshape(tensor.shape)


@pytest.mark.parametrize("kind", BLOCKS)
def test_numbers(kind: str, tmp_path: Path) -> None:
    """They equal those of ggml bit for bit."""
    _, elements, size = BLOCKS[kind]
    tensor = blocks(kind, (2, elements), np.random.default_rng(0))
    parts = [tensor.data[n * size : (n + 1) * size] for n in range(2)]
    expected = np.array([[NUMBERS[kind](b, n) for n in range(elements)] for b in parts])
    assert np.array_equal(expected, numbers_of(tensor, kind))
    weight = stored(tmp_path, tensor)
    found = interpret(module_of([], weight.joined(weight.constants("w"))), {})["y"]
    assert np.array_equal(found, expected)


def stored(folder: Path, tensor: Tensor) -> Stored:
    """Returns a tensor in a file."""
    path = folder / "w.gguf"
    path.write_bytes(written({}, {"w": tensor}))
    return Stored(read_container(path).tensors["w"])


def module_of(params: list[Var], result: Expr) -> Module:
    """Returns a module of one result."""
    return Module({"main": Function(params, Tuple([result]), {"outputs": ("y",)})})


@pytest.mark.parametrize("kind", BLOCKS)
def test_products(kind: str, tmp_path: Path) -> None:
    """They are compiled without widening the weight, and so are rows of it."""
    tensor = blocks(kind, (160, 256), np.random.default_rng(0))
    weight, wide = stored(tmp_path, tensor), numbers_of(tensor, kind)
    constants = weight.constants("w")
    x, i = Var("x", TensorType((3, 256), "f32")), Var("i", TensorType((3,), "i32"))
    rows = [call("gather", c, i, axis=0) if c.tensor.rank else c for c in constants]
    product = call("nn.dense", x, weight.joined(constants), weight_layout="NK")
    result = call("concatenate", product, weight.joined(rows), axis=1)
    compiled = clew.compile(module_of([x, i], result), threads=1, cache=False)
    data = np.random.default_rng(1).standard_normal((3, 256), np.float32)
    found = compiled(data, np.array([5, 0, 159], np.int32))
    expected = data.astype(np.float64) @ wide.T.astype(np.float64)
    error = np.abs(found[:, :160] - expected).max()
    assert error < 1e-5 * np.abs(expected).max()
    assert np.array_equal(found[:, 160:], wide[[5, 0, 159]])
    body = compiled.module.main.body
    held = [n.tensor for n in post_order(body, into_functions=True) if isinstance(n, Constant)]
    most = max((np.prod(t.concrete) for t in held if t.dtype == "f32"), default=0)
    form = KINDS[tensor.kind]
    assert most <= (0 if form.factors else wide.size // form.group)  # scales stay codes


def drawn(kind: str, wide: dict[str, Array]) -> Any:
    """Returns a function that draws tensors, and keeps their numbers in `wide`."""
    draw = np.random.default_rng(1)

    def make(name: str, shape: tuple[int, int]) -> Tensor:
        if kind in BLOCKS:
            tensor = blocks(kind, shape, draw)
            wide[name] = numbers_of(tensor, kind)
            return tensor
        values = draw.standard_normal(shape).astype(np.float32) * np.float32(0.1)
        if kind == "BF16":
            values = values.astype(to_numpy("bf16"))
        elif kind == "F16":
            values = values.astype(np.float16)
        wide[name] = values.astype(np.float32)
        return plain(values)

    return make


def folder_of(folder: Path, wide: dict[str, Array], vocabulary: int) -> Path:
    """Writes the same model as a folder of 32-bit numbers."""
    hidden, inner, layers, heads, groups = _SIZES
    config = {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": groups,
        "vocab_size": vocabulary, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    }  # fmt: skip
    parts = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    ones = np.ones(hidden, np.float32)
    state = {
        "model.embed_tokens.weight": wide["token_embd.weight"], "model.norm.weight": ones,
        "lm_head.weight": wide["output.weight"],
    }  # fmt: skip
    for n in range(layers):
        for short, long in parts.items():
            rows = wide[f"blk.{n}.{short}.weight"]
            if short in ("attn_q", "attn_k"):
                count = heads if short == "attn_q" else groups
                apart = rows.reshape(count, hidden // heads // 2, 2, hidden)
                rows = np.ascontiguousarray(apart.swapaxes(1, 2)).reshape(rows.shape)
            state[f"model.layers.{n}.{long}.weight"] = rows
        for norm in ("input_layernorm", "post_attention_layernorm"):
            state[f"model.layers.{n}.{norm}.weight"] = ones
    folder.mkdir()
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("kind", [*BLOCKS, "F32", "F16", "BF16"])
def test_logits(kind: str, tmp_path: Path) -> None:
    """They equal those of the same numbers from a folder."""
    module, given, expected = both(kind, tmp_path)
    found = interpret(module, given)["logits"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("kind", ["Q4_0", pytest.param("Q4_K", marks=pytest.mark.exhaustive)])
def test_compiled_logits(kind: str, tmp_path: Path) -> None:
    module, given, expected = both(kind, tmp_path)
    session = clew.compile(module, threads=1, cache=False).session()
    found = session(given["input_ids"])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def both(kind: str, folder: Path) -> tuple[Module, dict[str, Array], Array]:
    """Returns the module of a file, inputs, and the logits of a folder with the same numbers."""
    wide: dict[str, Array] = {}
    tensors = tensors_of_llama(drawn(kind, wide), *_SIZES, 96)
    path = folder / "model.gguf"
    path.write_bytes(written(metadata_of_llama(*_SIZES), tensors))
    ids = np.random.default_rng(0).integers(0, 96, (1, 5))
    empty = np.zeros((1, 2, 0, 64), np.float32)
    given = {"input_ids": ids, "padding": np.zeros(1, "i8"), "unscored": np.zeros(0, bool)}
    given |= {f"past_key_values.0.{k}": empty for k in ("key", "value")}
    whole = load_folder(folder_of(folder / "folder", wide, 96))
    return load(path), given, interpret(whole, given)["logits"]
