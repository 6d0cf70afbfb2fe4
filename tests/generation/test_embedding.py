"""`clew.text_encoder`: vectors of texts, in batches of equal length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import clew
from clew.generation.tokenizer import Tokenizer

from .folders import ENCODER_HIDDEN, write_encoder, write_model, write_tokenizer

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"), 12)


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
    assert encoder.embed([]).shape == (0, ENCODER_HIDDEN)


def test_models_that_make_no_vectors(tmp_path: Path, folder: Path) -> None:
    generator = write_model(tmp_path / "llama")
    write_tokenizer(generator)
    with pytest.raises(clew.ClewError, match="I461"):
        clew.text_encoder(generator)
    with pytest.raises(clew.ClewError, match="I484"):
        clew.language_model(folder)
    with pytest.raises(clew.ClewError, match="I480"):
        clew.text_encoder(folder).embed(["a", 3])  # type: ignore[list-item]
