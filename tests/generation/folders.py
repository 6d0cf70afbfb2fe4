"""Small language models in files: a layer of Llama as transformers saves it, and ONNX models."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

VOCABULARY: Final = 280
_HIDDEN, _INNER, _HEADS = 32, 48, 2
CONFIG: Final = {
    "model_type": "llama", "hidden_size": _HIDDEN, "intermediate_size": _INNER,
    "num_hidden_layers": 1, "num_attention_heads": _HEADS, "vocab_size": VOCABULARY,
    "hidden_act": "silu", "max_position_embeddings": 96, "eos_token_id": 2,
    "tie_word_embeddings": False,
}  # fmt: skip
TEMPLATE: Final = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

ENCODER_HIDDEN: Final = 16
_ENCODER = {
    "model_type": "bert", "hidden_size": ENCODER_HIDDEN, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": VOCABULARY,
    "max_position_embeddings": 40, "hidden_act": "gelu",
}  # fmt: skip


def write_model(
    folder: Path,
    seed: int = 0,
    *,
    config: Mapping[str, Any] = CONFIG,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    **changes: Any,
) -> Path:
    """Writes configuration and weights, those of `shapes` or of one layer of Llama, and returns the
    folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    rng = np.random.default_rng(seed)
    table, data, place = {}, b"", 0
    for name, shape in (_llama() if shapes is None else shapes).items():
        scale = 2 * shape[-1] ** -0.5 if len(shape) > 1 else 0.1
        values = scale * rng.standard_normal(shape) + (len(shape) == 1)
        data += values.astype("f4").tobytes()
        table[name] = {
            "dtype": "F32", "shape": list(shape), "data_offsets": [place, len(data)],
        }  # fmt: skip
        place = len(data)
    text = json.dumps(table).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


def _llama() -> dict[str, tuple[int, ...]]:
    layer, square = "model.layers.0", (_HIDDEN, _HIDDEN)
    modules = {
        "model.embed_tokens": (VOCABULARY, _HIDDEN), "lm_head": (VOCABULARY, _HIDDEN),
        **{f"{layer}.self_attn.{n}_proj": square for n in "qkvo"},
        f"{layer}.mlp.gate_proj": (_INNER, _HIDDEN), f"{layer}.mlp.up_proj": (_INNER, _HIDDEN),
        f"{layer}.mlp.down_proj": (_HIDDEN, _INNER), "model.norm": (_HIDDEN,),
        f"{layer}.input_layernorm": (_HIDDEN,), f"{layer}.post_attention_layernorm": (_HIDDEN,),
    }  # fmt: skip
    return {f"{name}.weight": shape for name, shape in modules.items()}


def write_tokenizer(folder: Path) -> None:
    """Writes a tokenizer with a token for each byte, some words, and a chat template."""
    tokenizers = __import__("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    special = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]
    tokens = [*special, *alphabet]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({t: n for n, t in enumerate([*tokens, "he", "ll"])},
                              [("h", "e"), ("l", "l")])
    )  # fmt: skip
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(special)
    made.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_tiny_onnx(path: Path, vocabulary: int = 13, recurrent: bool = False) -> None:
    """Writes a model whose logits depend on all tokens, on positions and on the mask: a cache of
    one-hot rows, or their decaying sum as a state.
    """
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((vocabulary, vocabulary)).astype("f4")
    eye = np.eye(vocabulary, dtype="f4")
    i64, f32 = TensorProto.INT64, TensorProto.FLOAT
    value = helper.make_tensor_value_info
    node = helper.make_node
    inputs = [value("input_ids", i64, ["batch", "seq"])]
    nodes = [node("Gather", ["eye", "input_ids"], ["rows"])]
    constants = [numpy_helper.from_array(eye, "eye"), numpy_helper.from_array(weight, "weight")]
    outputs = [value("logits", f32, ["batch", "seq", vocabulary])]
    if recurrent:
        inputs.append(value("h0", f32, ["batch", 1, vocabulary]))
        outputs.append(value("hn", f32, ["batch", 1, vocabulary]))
        constants += [numpy_helper.from_array(np.array([1]), "axis"),
                      numpy_helper.from_array(np.array(0.5, "f4"), "half")]  # fmt: skip
        nodes += [
            node("ReduceSum", ["rows", "axis"], ["sum"], keepdims=1),
            node("Mul", ["h0", "half"], ["old"]),
            node("Add", ["old", "sum"], ["hn"]),
            node("Add", ["rows", "old"], ["mixed"]),
            node("MatMul", ["mixed", "weight"], ["logits"]),
        ]
    else:
        inputs += [
            value("attention_mask", i64, ["batch", "past + seq"]),
            value("position_ids", i64, ["batch", "seq"]),
            value("past_key_values.0.key", f32, ["batch", "past", vocabulary]),
        ]
        outputs.append(value("present.0.key", f32, ["batch", "past + seq", vocabulary]))
        constants += [numpy_helper.from_array(np.array([1]), "axis"),
                      numpy_helper.from_array(np.array([2]), "last")]  # fmt: skip
        nodes += [
            node("Concat", ["past_key_values.0.key", "rows"], ["present.0.key"], axis=1),
            node("Cast", ["attention_mask"], ["mask"], to=f32),
            node("Unsqueeze", ["mask", "last"], ["column"]),
            node("Mul", ["present.0.key", "column"], ["kept"]),
            node("ReduceMean", ["kept", "axis"], ["mean"], keepdims=1),
            node("Cast", ["position_ids"], ["place"], to=f32),
            node("Unsqueeze", ["place", "last"], ["places"]),
            node("Cos", ["places"], ["turn"]),
            node("Mul", ["rows", "turn"], ["turned"]),
            node("Add", ["turned", "mean"], ["mixed"]),
            node("MatMul", ["mixed", "weight"], ["logits"]),
        ]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 20)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def write_narrow_onnx(path: Path, kind: int, vocabulary: int = 13) -> None:
    """Writes a model with a cache of a narrow type, f16 or bf16."""
    i64, f32 = TensorProto.INT64, TensorProto.FLOAT
    value, node = helper.make_tensor_value_info, helper.make_node
    past, present = "past_key_values.0.key", "present.0.key"
    inputs = [
        value("input_ids", i64, ["batch", "seq"]),
        value(past, kind, ["batch", "past", vocabulary]),
    ]
    outputs = [
        value("logits", f32, ["batch", "seq", vocabulary]),
        value(present, kind, ["batch", "past + seq", vocabulary]),
    ]
    nodes = [
        node("Gather", ["eye", "input_ids"], ["rows"]),
        node("Cast", ["rows"], ["narrow"], to=kind),
        node("Concat", [past, "narrow"], [present], axis=1),
        node("Cast", [present], ["wide"], to=f32),
        node("ReduceSum", ["wide", "axis"], ["sum"], keepdims=1),
        node("Add", ["sum", "rows"], ["logits"]),
    ]
    constants = {"eye": np.eye(vocabulary, dtype="f4"), "axis": np.array([1])}
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "narrow", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 20)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def write_fixed_onnx(path: Path, room: int = 8, vocabulary: int = 13) -> None:
    """Writes a model with a cache of `room` tokens, which is large enough to be written in place.
    It reads one token at a time.
    """
    width, rng = (1 << 16) // room, np.random.default_rng(0)
    i64, f32 = TensorProto.INT64, TensorProto.FLOAT
    value, node = helper.make_tensor_value_info, helper.make_node
    table, weight = rng.standard_normal((2, vocabulary, width)).astype("f4")
    inputs = [
        value("input_ids", i64, [1, 1]),
        value("cache_position", i64, [1]),
        value("past_key_values.0.key", f32, [1, room, width]),
    ]
    outputs = [
        value("logits", f32, [1, 1, vocabulary]),
        value("present.0.key", f32, [1, room, width]),
    ]
    cached = ["past_key_values.0.key", "rows", "cache_position"]
    nodes = [
        node("Gather", ["table", "input_ids"], ["rows"]),
        node("TensorScatter", cached, ["present.0.key"], axis=1),
        node("ReduceSum", ["present.0.key", "axis"], ["sum"], keepdims=1),
        node("MatMul", ["sum", "weight"], ["logits"]),
    ]
    constants = {"table": table, "weight": weight.T.copy(), "axis": np.array([1])}
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "fixed", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 24)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=11), path)


def write_encoder(folder: Path, tokens: int) -> Path:
    """Writes an encoder that reads at most `tokens` tokens, with a tokenizer."""
    weights = {"embeddings.word_embeddings.weight": (VOCABULARY, ENCODER_HIDDEN),
               "embeddings.position_embeddings.weight": (40, ENCODER_HIDDEN),
               "embeddings.token_type_embeddings.weight": (2, ENCODER_HIDDEN)}  # fmt: skip
    layer = "encoder.layer.0"
    for name, outputs, inputs in (
        *(
            (f"{layer}.attention.self.{n}", ENCODER_HIDDEN, ENCODER_HIDDEN)
            for n in ("query", "key", "value")
        ),
        (f"{layer}.attention.output.dense", ENCODER_HIDDEN, ENCODER_HIDDEN),
        (f"{layer}.intermediate.dense", 24, ENCODER_HIDDEN),
        (f"{layer}.output.dense", ENCODER_HIDDEN, 24),
    ):
        weights |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
    for name in ("embeddings", f"{layer}.attention.output", f"{layer}.output"):
        weights |= {f"{name}.LayerNorm.{part}": (ENCODER_HIDDEN,) for part in ("weight", "bias")}
    write_model(folder, config=_ENCODER, shapes=weights)
    write_tokenizer(folder)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": tokens}))
    kinds = ("Transformer", "Pooling")
    modules = [{"type": f"a.{kind}", "path": p} for kind, p in zip(kinds, ("", "1_Pooling"))]  # noqa: B905
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder
