"""Networks with free sizes, made as in `zoo.exported`: an encoder with free batch and sequence, a
speech encoder with free length, and a decoder with growing keys and values.

`detector_free` and `encoder_small_free` are written by hand (`zoo.detector`, `zoo.encoder`).
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from zoo import exported, workloads
from zoo.entries import Entry, Input, normal, padding_mask, tokens
from zoo.exported import Recipe

_VOCABULARY = 4_000
_WIDTH, _LAYERS, _HEADS, _GROUPS = 256, 4, 4, 2


def entries() -> Iterator[Entry]:
    """Yields an entry for each network."""
    for recipe in _recipes():
        yield Entry(
            name=recipe.name,
            groups=frozenset({"exported", "transformer", "dynamic", "free", *recipe.groups}),
            build=partial(exported._export, recipe),
            inputs=recipe.inputs,
            sources=tuple(
                Path(__file__).with_name(f"{name}.py")
                for name in ("free", "exported", "workloads", "redraw")
            ),
            dims=recipe.dims or {},
        )


def _recipes() -> Iterator[Recipe]:
    shape = ("batch", "sequence")
    yield Recipe(
        "encoder_free",
        partial(exported._bert, _WIDTH, _LAYERS, _HEADS, _VOCABULARY),
        (
            Input("input_ids", shape, tokens(_VOCABULARY)),
            Input("attention_mask", shape, padding_mask),
        ),
        ("last_hidden_state", "pooler_output"),
        ("language",),
        {"batch": 2, "sequence": 24},
    )
    yield Recipe(
        "speech_free",
        _speech,
        (Input("waveform", (1, "samples"), normal),),
        ("logits",),
        ("audio",),
        {"samples": 8_000},
        largest=320_000,
    )
    past = [f"past.{n}.{part}" for n in range(_LAYERS) for part in ("key", "value")]
    kept = (1, _GROUPS, "past", _WIDTH // _HEADS)
    yield Recipe(
        "decoder_free",
        _decoder,
        (
            Input("input_ids", (1, 1), tokens(_VOCABULARY)),
            *(Input(each, kept, normal) for each in past),
        ),
        ("logits", *(each.replace("past", "present") for each in past)),
        ("language",),
        {"past": 7},
        largest=1_000,
    )


def _speech() -> Any:
    """Seven strided convolutions over samples (320 a place), then a transformer.

    Source: Baevski et al., wav2vec 2.0, 2020.
    """
    library = exported._transformers()
    config = library.Wav2Vec2Config(
        vocab_size=32,
        hidden_size=_WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        intermediate_size=4 * _WIDTH,
        conv_dim=[128] * 7,
        num_conv_pos_embeddings=64,
        num_conv_pos_embedding_groups=8,
        apply_spec_augment=False,
    )
    return exported._first(library.Wav2Vec2ForCTC(config), "input_values", "logits")


def _decoder() -> Any:
    library = exported._transformers()
    config = library.LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=_WIDTH,
        intermediate_size=688,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=_GROUPS,
        max_position_embeddings=1_024,
    )
    return _flat(workloads._with_past(library.LlamaForCausalLM(config)))


def _flat(step: Any) -> Any:
    """Returns the module with one argument list, whose free sizes the exporter takes one by one."""
    from torch import nn  # noqa: PLC0415 - optional

    class Flat(nn.Module):  # type: ignore[misc]  # torch is not followed by the type check
        def __init__(self) -> None:
            super().__init__()
            self.step = step

        def forward(self, *arguments: Any) -> Any:
            return self.step(*arguments)

    return Flat()
