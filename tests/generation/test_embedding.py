"""`clew.text_encoder`: vectors of texts, in batches of equal length."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import clew
from clew.generation.tokenizer import Tokenizer

from .folders import write_model, write_tokenizer

pytest.importorskip("tokenizers")
_HIDDEN, _INNER, _WORDS, _PLACES = 16, 24, 280, 40
_CONFIG = {
    "model_type": "bert", "hidden_size": _HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": _INNER, "vocab_size": _WORDS, "max_position_embeddings": _PLACES,
    "hidden_act": "gelu",
}  # fmt: skip


def _write_encoder(folder: Path, tokens: int) -> Path:
    """Writes an encoder that reads at most `tokens` tokens, with a tokenizer."""
    weights = {"embeddings.word_embeddings.weight": (_WORDS, _HIDDEN),
               "embeddings.position_embeddings.weight": (_PLACES, _HIDDEN),
               "embeddings.token_type_embeddings.weight": (2, _HIDDEN)}  # fmt: skip
    layer = "encoder.layer.0"
    for name, outputs, inputs in (
        *((f"{layer}.attention.self.{n}", _HIDDEN, _HIDDEN) for n in ("query", "key", "value")),
        (f"{layer}.attention.output.dense", _HIDDEN, _HIDDEN),
        (f"{layer}.intermediate.dense", _INNER, _HIDDEN),
        (f"{layer}.output.dense", _HIDDEN, _INNER),
    ):
        weights |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
    for name in ("embeddings", f"{layer}.attention.output", f"{layer}.output"):
        weights |= {f"{name}.LayerNorm.{part}": (_HIDDEN,) for part in ("weight", "bias")}
    write_model(folder, config=_CONFIG, shapes=weights)
    write_tokenizer(folder)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": tokens}))
    kinds = ("Transformer", "Pooling")
    modules = [{"type": f"a.{kind}", "path": p} for kind, p in zip(kinds, ("", "1_Pooling"))]  # noqa: B905
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write_encoder(tmp_path_factory.mktemp("encoder"), 12)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> clew.TextEncoder:
    return clew.text_encoder(folder, threads=1)


def test_each_text_has_the_vector_of_its_tokens(encoder: clew.TextEncoder, folder: Path) -> None:
    texts = ["hello", "", "he", "hell, hello and hello again", "hello", "ab"]
    found = encoder.embed(texts, batch=2)
    whole = Tokenizer.read(folder / "tokenizer.json")
    for text, vector in zip(texts, found, strict=True):
        ids = np.array([whole.encode(text)[:12] or [0]])
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids),
                 "token_type_ids": np.zeros_like(ids)}  # fmt: skip
        alone = encoder.model.run(feeds)["sentence_embedding"][0]
        np.testing.assert_allclose(vector, alone, 1e-5, 1e-6)
    np.testing.assert_array_equal(encoder.embed("he"), encoder.embed(["he"])[0])
    assert encoder.embed([]).shape == (0, _HIDDEN)


def test_models_that_make_no_vectors(tmp_path: Path, folder: Path) -> None:
    generator = write_model(tmp_path / "llama")
    write_tokenizer(generator)
    with pytest.raises(clew.ClewError, match="I461"):
        clew.text_encoder(generator)
    with pytest.raises(clew.ClewError, match="I484"):
        clew.language_model(folder)
    with pytest.raises(clew.ClewError, match="I480"):
        clew.text_encoder(folder).embed(["a", 3])  # type: ignore[list-item]
