"""Weights in blocks of few bits: their numbers, and models that multiply by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import clew
from clew.frontends.checkpoint import load as load_folder
from clew.frontends.gguf import load
from clew.frontends.gguf.blocks import KINDS
from clew.frontends.gguf.container import read_container
from clew.frontends.gguf.weights import Stored
from clew.ir.interpret import interpret
from clew.ir.visit import post_order
from gguf_files import BLOCKS, Array, Tensor, blocks, plain, written
from tests.frontends.gguf.models import metadata_of_llama, tensors_of_llama
from tests.frontends.gguf.reference import NUMBERS

_SIZES = (256, 512, 1, 4, 2)  # hidden, inner, layers, heads, groups


def numbers_of(tensor: Tensor, kind: str) -> Array:
    """Returns the numbers of a tensor, through the reader's functions."""
    _, elements, size = BLOCKS[kind]
    data, form = np.frombuffer(tensor.data, np.uint8).reshape(-1, size), KINDS[tensor.kind]
    assert form.name == kind and form.codes is not None and form.scales is not None
    count = elements // form.group
    scales = np.repeat(form.scales(data).reshape(-1, count), form.group, 1).astype(np.float32)
    numbers = scales * (form.codes(data).astype(np.float32) - form.zero)
    if form.offsets is not None:
        numbers = numbers + np.repeat(form.offsets(data).reshape(-1, count), form.group, 1)
    return numbers.reshape(tensor.shape)


@pytest.mark.parametrize("kind", BLOCKS)
def test_numbers(kind: str, tmp_path: Path) -> None:
    """They equal those of ggml bit for bit, in the interpreter and in native code."""
    _, elements, size = BLOCKS[kind]
    tensor = blocks(kind, (2, elements), np.random.default_rng(0))
    parts = [tensor.data[n * size : (n + 1) * size] for n in range(2)]
    expected = np.array([[NUMBERS[kind](b, n) for n in range(elements)] for b in parts])
    assert np.array_equal(expected, numbers_of(tensor, kind))
    path = tmp_path / "w.gguf"
    path.write_bytes(written({}, {"w": tensor}))
    weight = Stored(read_container(path).tensors["w"])
    constants = weight.constants("w")
    places = clew.ir.expr.Var("i", clew.ir.types.TensorType((2,), "i32"))
    rows = [clew.frontends.building.call("gather", c, places, axis=0) if c.tensor.rank else c
            for c in constants]  # fmt: skip
    body = weight.joined(rows)
    module = clew.ir.module.Module({"main": clew.ir.expr.Function([places], body)})
    found = clew.compile(module, threads=1, cache=False)(np.array([1, 0], np.int32))
    assert np.array_equal(found[::-1], expected)


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
            values = values.astype(clew.ir.types.to_numpy("bf16"))
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
    """They equal those of the same numbers from a folder, interpreted and compiled."""
    wide: dict[str, Array] = {}
    tensors = tensors_of_llama(drawn(kind, wide), *_SIZES, 96)
    path = tmp_path / "model.gguf"
    path.write_bytes(written(metadata_of_llama(*_SIZES), tensors))
    ids = np.random.default_rng(0).integers(0, 96, (1, 5))
    empty = np.zeros((1, 2, 0, 64), np.float32)
    given = {"input_ids": ids} | {f"past_key_values.0.{k}": empty for k in ("key", "value")}
    expected = interpret(load_folder(folder_of(tmp_path / "folder", wide, 96)), given)["logits"]
    tolerance = 1e-5 * np.abs(expected).max()
    module = load(path)
    np.testing.assert_allclose(interpret(module, given)["logits"], expected, atol=tolerance)
    compiled = clew.compile(module, threads=1, cache=False)
    np.testing.assert_allclose(compiled.session()(ids), expected, rtol=0, atol=tolerance)
    if kind in BLOCKS:
        final = compiled.module
        held = [n for n in post_order(final.main.body, into_functions=True)
                if isinstance(n, clew.ir.expr.Constant) and n.tensor.dtype == "f32"]  # fmt: skip
        assert max(c.tensor.size for c in held) <= 512 * 256 // 16  # no widened weight
