"""Small GPT-2 decoders in the form that Optimum merges: an `If` over `use_cache_branch`, with one
branch for the first call and one that continues the caches.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HEADS, LAYERS, VOCABULARY, POSITIONS = 32, 2, 2, 61, 48
_HEAD: Final = WIDTH // HEADS
_I64, _F32 = TensorProto.INT64, TensorProto.FLOAT


class _Branch:
    """Builds the nodes of a branch, with names of its own; weights are those of the whole file."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"{self.prefix}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"{op}_{name}", **attrs))
        return name

    def ints(self, *values: int) -> str:
        return self("Constant", value=numpy_helper.from_array(np.array(values, np.int64)))

    def size(self, value: str, axis: int) -> str:
        return self("Gather", self("Shape", value), self.ints(axis), axis=0)

    def linear(self, x: str, name: str) -> str:
        return self("Add", self("MatMul", x, name), f"{name}.bias")

    def norm(self, x: str, name: str) -> str:
        return self("LayerNormalization", x, name, f"{name}.bias")

    def heads(self, x: str) -> str:
        split = self("Reshape", x, self.ints(0, 0, HEADS, _HEAD))
        return self("Transpose", split, perm=[0, 2, 1, 3])

    def attention(self, q: str, k: str, v: str, mask: str = "") -> str:
        scores = self("MatMul", q, self("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self("Mul", scores, "scale")
        if mask:
            scores = self("Where", mask, scores, "lowest")
        seen = self("MatMul", self("Softmax", scores, axis=-1), v)
        turned = self("Transpose", seen, perm=[0, 2, 1, 3])
        return self("Reshape", turned, self.ints(0, 0, WIDTH))


def weights(seed: int = 0, *, cross: bool = False) -> dict[str, np.ndarray]:
    """Returns the weights of a GPT-2 by name; with `cross`, layers attend to an encoder as well."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {
        "wte": rng.standard_normal((VOCABULARY, WIDTH)),
        "wpe": rng.standard_normal((POSITIONS, WIDTH)),
        "head": 2 * rng.standard_normal((WIDTH, VOCABULARY)) / WIDTH**0.5,
    }
    norms, widths = ["norm"], dict[str, tuple[int, int]]()
    for n in range(LAYERS):
        kinds = ["q", "k", "v", "o", *(["cq", "ck", "cv", "co"] if cross else [])]
        widths |= {f"{n}.{kind}": (WIDTH, WIDTH) for kind in kinds}
        widths |= {f"{n}.up": (WIDTH, 4 * WIDTH), f"{n}.down": (4 * WIDTH, WIDTH)}
        norms += [f"{n}.norm1", f"{n}.norm2"]
    for name, shape in widths.items():
        found[name] = 1.5 * rng.standard_normal(shape) / shape[0] ** 0.5
        found[f"{name}.bias"] = 0.1 * rng.standard_normal(shape[1])
    for name in norms:
        found[name] = rng.uniform(0.5, 1.5, WIDTH)
        found[f"{name}.bias"] = 0.1 * rng.standard_normal(WIDTH)
    return {name: value.astype(np.float32) for name, value in found.items()}


def as_transformers(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns weights by the names of transformers' `GPT2LMHeadModel`."""
    found = {
        "transformer.wte.weight": values["wte"], "transformer.wpe.weight": values["wpe"],
        "lm_head.weight": np.ascontiguousarray(values["head"].T),
        "transformer.ln_f.weight": values["norm"], "transformer.ln_f.bias": values["norm.bias"],
    }  # fmt: skip
    own = {"attn.c_proj": "o", "mlp.c_fc": "up", "mlp.c_proj": "down"}
    own |= {"ln_1": "norm1", "ln_2": "norm2"}
    for n in range(LAYERS):
        for end, kind in ((".weight", ""), (".bias", ".bias")):
            both = np.concatenate([values[f"{n}.{one}{kind}"] for one in "qkv"], axis=-1)
            found[f"transformer.h.{n}.attn.c_attn{end}"] = both
            for theirs, ours in own.items():
                found[f"transformer.h.{n}.{theirs}{end}"] = values[f"{n}.{ours}{kind}"]
    return found


def _branch(*, past: bool, cross: bool, one: bool) -> onnx.GraphProto:
    """Returns a branch of a decoder. With `one`, that with a past has no causal mask: it reads one
    token per call, as in files of which only this case was traced.
    """
    b = _Branch("p" if past else "n")
    seq = b.size("input_ids", 1)
    before = b.size("past_key_values.0.decoder.key" if cross else "past_key_values.0.key", 2)
    begin = before if past else b.ints(0)
    end = b("Add", begin, seq)
    one_ = b.ints(1)
    scalar = lambda x: b("Squeeze", x, b.ints(0))  # noqa: E731
    places = b("Range", scalar(begin), scalar(end), scalar(one_))
    x = b("Add", b("Gather", "wte", "input_ids"), b("Gather", "wpe", places))
    keys = b("Range", scalar(b.ints(0)), scalar(end), scalar(one_))
    causal = b("LessOrEqual", b("Unsqueeze", keys, b.ints(0)), b("Unsqueeze", places, b.ints(1)))
    mask = "" if past and one else b("Unsqueeze", causal, b.ints(0, 1))
    caches: dict[str, str] = {}
    inner = "decoder." if cross else ""
    for n in range(LAYERS):
        normed = b.norm(x, f"{n}.norm1")
        q, new_k, new_v = (b.heads(b.linear(normed, f"{n}.{w}")) for w in "qkv")
        for kind, new in (("key", new_k), ("value", new_v)):
            old = f"past_key_values.{n}.{inner}{kind}"
            caches[f"{n}.{inner}{kind}"] = b("Concat", old, new, axis=2) if past else new
        k, v = caches[f"{n}.{inner}key"], caches[f"{n}.{inner}value"]
        x = b("Add", x, b.linear(b.attention(q, k, v, mask), f"{n}.o"))
        if cross:
            q = b.heads(b.linear(x, f"{n}.cq"))
            for kind in ("key", "value"):
                name = f"{n}.encoder.{kind}"
                if past:  # as Optimum adds outputs that only the other branch has
                    empty = np.zeros((0, HEADS, 1, _HEAD), np.float32)
                    caches[name] = b("Constant", value=numpy_helper.from_array(empty))
                else:
                    weight = f"{n}.c{kind[0]}"
                    caches[name] = b.heads(b.linear("encoder_hidden_states", weight))
            names = [f"{n}.encoder.{kind}" for kind in ("key", "value")]
            k, v = (f"past_key_values.{name}" if past else caches[name] for name in names)
            x = b("Add", x, b.linear(b.attention(q, k, v), f"{n}.co"))
        up = b("Gelu", b.linear(b.norm(x, f"{n}.norm2"), f"{n}.up"), approximate="tanh")
        x = b("Add", x, b.linear(up, f"{n}.down"))
    results = [b("MatMul", b.norm(x, "norm"), "head"), *caches.values()]
    ranks = [3, *[4] * len(caches)]
    info = helper.make_tensor_value_info
    outputs = [info(name, _F32, [None] * r) for name, r in zip(results, ranks, strict=True)]
    return helper.make_graph(b.nodes, "with_past" if past else "without_past", [], outputs)


def cache_names(*, cross: bool) -> list[str]:
    """Returns the names of the caches without the prefix of inputs or outputs."""
    sides = ("decoder.", "encoder.") if cross else ("",)
    kinds = [f"{side}{kind}" for side in sides for kind in ("key", "value")]
    return [f"{n}.{kind}" for n in range(LAYERS) for kind in kinds]


def merged(
    values: dict[str, np.ndarray], *, cross: bool = False, one: bool = False
) -> onnx.ModelProto:
    """Returns a file in the form of `decoder_model_merged.onnx`."""
    info = helper.make_tensor_value_info
    inputs = [info("input_ids", _I64, ["batch_size", "sequence_length"])]
    if cross:
        inputs.append(
            info("encoder_hidden_states", _F32, ["batch_size", "encoder_sequence_length", WIDTH])
        )
    outputs = [info("logits", _F32, [None] * 3)]
    for name in cache_names(cross=cross):
        rows = "encoder_sequence_length_out" if "encoder" in name else "past_sequence_length"
        shape = ["batch_size", HEADS, rows, _HEAD]
        inputs.append(info(f"past_key_values.{name}", _F32, shape))
        outputs.append(info(f"present.{name}", _F32, [None] * 4))
    inputs.append(info("use_cache_branch", TensorProto.BOOL, [1]))
    node = helper.make_node(
        "If",
        ["use_cache_branch"],
        [o.name for o in outputs],
        name="optimum::if",
        then_branch=_branch(past=True, cross=cross, one=one),
        else_branch=_branch(past=False, cross=cross, one=one),
    )
    parameters = {
        **values,
        "scale": np.float32(_HEAD**-0.5),
        "lowest": np.array(np.finfo(np.float32).min),
    }
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in parameters.items()]
    graph = helper.make_graph([node], "merged", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
