"""Tokenizers of GGUF files, in the form that the library `tokenizers` reads."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from clew.frontends.gguf.tokenizer import tokenizer_json
from clew.frontends.gguf.vocabulary import Vocabulary, vocabulary_of
from clew.support.errors import ClewError
from gguf_files import written

tokenizers = pytest.importorskip("tokenizers")

_BYTES = [f"<0x{n:02X}>" for n in range(256)]
_PIECES = ["▁", "a", "b", "c", "ab", "▁a", "bc", "abc", "▁ab", "▁abc", "e"]
_SPM: dict[str, Any] = {
    "model": "llama",
    "tokens": ["<unk>", "<s>", "</s>", *_BYTES, *_PIECES],
    "scores": [0.0] * 259 + [-10.0, -11, -12, -13, -3, -4, -1, -2, -5, -6, -14],
    "token_type": [2, 3, 3] + [6] * 256 + [1] * len(_PIECES),
    "bos_token_id": 1,
    "eos_token_id": 2,
    "unknown_token_id": 0,
}
_BPE: dict[str, Any] = {
    "model": "gpt2",
    "pre": "gpt-2",
    "tokens": ["a", "b", "Ġ", "ab", "Ġab", "Ã", "©", "1", "<end>"],
    "token_type": [1] * 8 + [3],
    "merges": ["a b", "Ġ ab"],
    "eos_token_id": 8,
}


def read(folder: Path, fields: dict[str, Any]) -> Vocabulary | None:
    path = folder / "m.gguf"
    metadata = {f"tokenizer.ggml.{key}": value for key, value in fields.items()}
    path.write_bytes(written({**metadata, "tokenizer.chat_template": "{{ x }}"}, {}))
    return vocabulary_of(path)


def by_scores(text: str) -> list[str]:
    """Returns the pieces of a text as SentencePiece finds them: the best pair first."""
    scores = dict(zip(_SPM["tokens"], _SPM["scores"], strict=True))
    pieces = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [(scores[a + b], -n) for n, (a, b) in enumerate(pairwise(pieces))
                 if a + b in scores]  # fmt: skip
        if not pairs:
            break
        n = -max(pairs)[1]
        pieces[n : n + 2] = [pieces[n] + pieces[n + 1]]
    return [
        part
        for piece in pieces
        for part in ([piece] if piece in scores else [f"<0x{b:02X}>" for b in piece.encode()])
    ]


@pytest.mark.parametrize("text", ["abc", "ab abc bcab", "aé", "  a", "cabbc abcabc"])
def test_scores(text: str, tmp_path: Path) -> None:
    found = read(tmp_path, _SPM)
    assert found is not None
    assert (found.bos, found.adds_bos, found.chat_template) == (1, True, "{{ x }}")
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json(found))
    encoded = tokenizer.encode(text)
    assert encoded.tokens == ["<s>", *by_scores(text)]
    assert tokenizer.decode(encoded.ids) == text


def test_bytes(tmp_path: Path) -> None:
    found = read(tmp_path, _BPE)
    assert found is not None
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json(found))
    encoded = tokenizer.encode("ab ab1é<end>")
    assert encoded.tokens == ["ab", "Ġab", "1", "Ã", "©", "<end>"]
    assert tokenizer.decode(encoded.ids) == "ab ab1é"


def test_digits_are_split(tmp_path: Path) -> None:
    """By the rules that say so."""
    fields = {**_BPE, "tokens": [*_BPE["tokens"], "11"], "token_type": [*_BPE["token_type"], 1]}
    fields["merges"] = [*_BPE["merges"], "1 1"]
    for rule, count in (("gpt-2", 1), ("llama-bpe", 1), ("qwen2", 2), ("smollm", 2)):
        found = read(tmp_path, {**fields, "pre": rule})
        assert found is not None
        tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json(found))
        assert len(tokenizer.encode("11").ids) == count, rule


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"model": "t5"}, "U009", "'t5'"),
        ({"pre": "other"}, "U009", "'other'"),
        ({"merges": ["ab"]}, "U009", "pairs"),
        ({"model": "llama"}, "U009", "scores"),
        ({"tokens": [1, 2]}, "M071", "tokenizer.ggml.tokens"),
        ({"tokens": 1}, "M071", "tokenizer.ggml.tokens"),
        ({"token_type": [1]}, "M071", "tokenizer.ggml.token_type"),
        ({"eos_token_id": 9}, "M071", "tokenizer.ggml.eos_token_id"),
        ({"eos_token_id": "x"}, "M071", "tokenizer.ggml.eos_token_id"),
        ({"model": 3}, "M071", "tokenizer.ggml.model"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], code: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ClewError) as caught:
        tokenizer_json(read(tmp_path, {**_BPE, **changes}))  # type: ignore[arg-type]
    assert caught.value.code == code
    assert words in str(caught.value)


def test_a_file_without_a_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for metadata in {}, {"tokenizer.ggml.model": "no_vocab"}:
        path.write_bytes(written(metadata, {}))
        assert vocabulary_of(path) is None
