"""Writes GGUF files, for tests and for the search with damaged files.

Source: ggml, `docs/gguf.md`, version 3.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_TEXT: Final = 8
_ARRAY: Final = 9
HALVES: Final[Mapping[str, Sequence[int]]] = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q8_K": (),
}  # fmt: skip
"""Where the `f16` numbers of a block begin, by type."""
BLOCKS: Final = {
    "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "Q8_K": (15, 256, 292),
}  # fmt: skip
"""The number of a type in a file, and elements and bytes of a block."""
_PLAIN: Final = {"float32": 0, "float16": 1, "bfloat16": 30, "float64": 28, "int32": 26}
# Steps at which random codes make weights of about 0.1.
_STEPS: Final = {
    "Q4_0": 0.02, "Q4_1": 0.02, "Q5_0": 0.01, "Q5_1": 0.01, "Q8_0": 0.001, "Q2_K": 0.01,
    "Q3_K": 0.001, "Q4_K": 0.0003, "Q5_K": 0.0002, "Q6_K": 0.00003, "Q8_K": 0.001,
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """A tensor to write: its shape, the number of its type, and its bytes."""

    shape: tuple[int, ...]
    kind: int
    data: bytes


def plain(values: Array) -> Tensor:
    """Returns numbers as a tensor."""
    return Tensor(values.shape, _PLAIN[values.dtype.name], np.ascontiguousarray(values).tobytes())


def blocks(kind: str, shape: Sequence[int], draw: np.random.Generator) -> Tensor:
    """Returns a tensor of random blocks: codes of all values, steps of either sign."""
    number, elements, size = BLOCKS[kind]
    count = int(np.prod(shape)) // elements
    data = draw.integers(0, 256, (count, size), np.uint8)
    step = _STEPS[kind]
    for n, at in enumerate(HALVES[kind]):
        # Offsets move most codes to both sides of 0.
        middle = -8 * step if kind == "Q4_1" else -16 * step if kind == "Q5_1" else 7 * step
        numbers = draw.uniform(0.5, 1.5, count) * (middle if n else step)
        data[:, at : at + 2] = numbers.astype(np.float16)[:, None].view(np.uint8)
    if kind == "Q8_K":
        steps = draw.uniform(0.5, 1.5, count).astype(np.float32) * np.float32(step)
        data[:, :4] = steps[:, None].view(np.uint8)
    return Tensor(tuple(shape), number, data.tobytes())


def metadata_of_llama(hidden: int, inner: int, layers: int, heads: int, groups: int) -> Any:
    """Returns the metadata of a model with the structure of Llama."""
    values = {
        "embedding_length": hidden, "block_count": layers, "feed_forward_length": inner,
        "context_length": 128, "attention.head_count": heads, "attention.head_count_kv": groups,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0,
        "rope.dimension_count": hidden // heads,
    }  # fmt: skip
    named = {f"llama.{key}": value for key, value in values.items()}
    return {"general.architecture": "llama", **named}


def tensors_of_llama(
    make: Any, hidden: int, inner: int, layers: int, heads: int, groups: int, vocabulary: int
) -> dict[str, Tensor]:
    """Returns the tensors of such a model: matrices from `make(name, shape)`, norms of 1."""
    narrow = hidden // heads * groups
    ones = plain(np.ones(hidden, np.float32))
    found = {"token_embd.weight": make("token_embd.weight", (vocabulary, hidden))}
    for n in range(layers):
        for part, shape in (
            ("attn_q", (hidden, hidden)), ("attn_k", (narrow, hidden)),
            ("attn_v", (narrow, hidden)), ("attn_output", (hidden, hidden)),
            ("ffn_gate", (inner, hidden)), ("ffn_up", (inner, hidden)),
            ("ffn_down", (hidden, inner)),
        ):  # fmt: skip
            name = f"blk.{n}.{part}.weight"
            found[name] = make(name, shape)
        found |= {f"blk.{n}.{part}_norm.weight": ones for part in ("attn", "ffn")}
    head = make("output.weight", (vocabulary, hidden))
    return {**found, "output_norm.weight": ones, "output.weight": head}


def written(
    metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], alignment: int = 32
) -> bytes:
    """Returns the bytes of a file."""
    made = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    made += [_text(key) + _value(value) for key, value in metadata.items()]
    place = 0
    for name, tensor in tensors.items():
        axes = len(tensor.shape)
        sizes = struct.pack(f"<I{axes}Q", axes, *reversed(tensor.shape))
        made.append(_text(name) + sizes + struct.pack("<IQ", tensor.kind, place))
        place += len(tensor.data) + -len(tensor.data) % alignment
    head = b"".join(made)
    bodies = [t.data + bytes(-len(t.data) % alignment) for t in tensors.values()]
    return b"".join([head, bytes(-len(head) % alignment), *bodies])


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, (list, tuple)):
        items = [_value(each) for each in value]
        kind = items[0][:4] if items else struct.pack("<I", 4)
        inner = b"".join(each[4:] for each in items)
        return struct.pack("<I", _ARRAY) + kind + struct.pack("<Q", len(items)) + inner
    if isinstance(value, str):
        return struct.pack("<I", _TEXT) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<Ii", 5, value) if value < 0 else struct.pack("<II", 4, value)
