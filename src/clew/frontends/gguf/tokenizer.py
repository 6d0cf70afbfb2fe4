"""A tokenizer of a GGUF file in the form of `tokenizer.json`, which the library `tokenizers` reads.

Source: tokenizers, `tokenizer.json`; llama.cpp, `llama-vocab.cpp` (rules that split text).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from clew.frontends.gguf.vocabulary import Vocabulary
from clew.support.errors import UnsupportedError

_SPACE: Final = "\u2581"
_CONTROL: Final = 3
_USER: Final = 4
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDINGS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3: Final = rf"{_ENDINGS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2: Final = rf"{_ENDINGS}|\p{{N}}|{_REST}"
# The patterns that split text one after another, by the names of their rules.
_SPLITS: Final[Mapping[str, tuple[str, ...]]] = {
    "": (_GPT2,), "default": (_GPT2,), "gpt-2": (_GPT2,), "phi-2": (_GPT2,), "mpt": (_GPT2,),
    "olmo": (_GPT2,), "jina-en": (_GPT2,), "llama-bpe": (_LLAMA3,), "llama3": (_LLAMA3,),
    "dbrx": (_LLAMA3,), "smaug-bpe": (_LLAMA3,), "qwen2": (_QWEN2,), "stablelm2": (_QWEN2,),
    "smollm": (r"\p{N}", _GPT2), "starcoder": (r"\p{N}", _GPT2), "refact": (r"\p{N}", _GPT2),
    "command-r": (r"\p{N}", _GPT2), "codeshell": (r"\p{N}", _GPT2), "exaone": (r"\p{N}", _GPT2),
}  # fmt: skip
_WHOLE_WORDS: Final = frozenset(("llama-bpe", "llama3"))  # a word in the vocabulary stays whole


def tokenizer_json(vocabulary: Vocabulary) -> str:
    """Returns the text of `tokenizer.json` for a tokenizer.

    Errors: U009 for a kind of tokenizer, or a rule that splits text, that clew does not know.
    """
    if vocabulary.model == "gpt2":
        parts = _by_bytes(vocabulary)
    elif vocabulary.model == "llama":
        parts = _by_scores(vocabulary)
    else:
        raise _unsupported(f"of the kind {vocabulary.model!r:.40}")
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(vocabulary),
        "post_processor": _around(vocabulary),
    }
    return json.dumps({**whole, **parts}, ensure_ascii=False)


def _unsupported(what: str) -> UnsupportedError:
    return UnsupportedError(
        "U009",
        f"clew builds no tokenizer {what}",
        hint="use the tokenizer of the model that the file was converted from",
    )


def _added(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Returns the tokens that are found in a text before it is split."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": n, "content": vocabulary.tokens[n], **plain, "special": kind == _CONTROL}
        for n, kind in enumerate(vocabulary.types)
        if kind in (_CONTROL, _USER)
    ]


def _around(vocabulary: Vocabulary) -> dict[str, Any] | None:
    """Returns the rule that puts tokens around a text."""
    ends = {
        "begin": vocabulary.bos if vocabulary.adds_bos else None,
        "end": vocabulary.eos if vocabulary.adds_eos else None,
    }
    special, pieces = {}, {}
    for place, token in ends.items():
        if token is not None:
            text = vocabulary.tokens[token]
            special[text] = {"id": text, "ids": [token], "tokens": [text]}
            pieces[place] = [{"SpecialToken": {"id": text, "type_id": 0}}]
    if not special:
        return None

    def template(*names: str) -> list[Any]:
        found: list[Any] = []
        for n, name in enumerate(names):
            sequence = {"Sequence": {"id": name, "type_id": n}}
            found += [*pieces.get("begin", []), sequence, *pieces.get("end", [])]
        return found

    return {
        "type": "TemplateProcessing",
        "single": template("A"),
        "pair": template("A", "B"),
        "special_tokens": special,
    }


def _model(vocabulary: Vocabulary, merges: list[list[str]], **more: Any) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {token: n for n, token in enumerate(vocabulary.tokens)},
        "merges": merges,
        **more,
    }


def _by_bytes(vocabulary: Vocabulary) -> dict[str, Any]:
    """Returns byte-level BPE."""
    patterns = _SPLITS.get(vocabulary.splitting)
    if patterns is None:
        raise _unsupported(f"whose text is split by the rule {vocabulary.splitting!r:.40}")
    splits = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in patterns
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    merges = [merge.split(" ", 1) for merge in vocabulary.merges]
    if not all(len(pair) == 2 for pair in merges):
        raise _unsupported("whose merges are not pairs")
    return {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*splits, {**level, "use_regex": False}],
        },
        "decoder": {**level, "use_regex": True},
        "model": _model(vocabulary, merges, ignore_merges=vocabulary.splitting in _WHOLE_WORDS),
    }


def _by_scores(vocabulary: Vocabulary) -> dict[str, Any]:
    """Returns SentencePiece's BPE: adjacent pieces become the token of the best score."""
    if len(vocabulary.scores) != len(vocabulary.tokens):
        raise _unsupported("without scores")
    unknown = None if vocabulary.unknown is None else vocabulary.tokens[vocabulary.unknown]
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    begin = [{"type": "Prepend", "prepend": _SPACE}] if vocabulary.adds_space else []
    texts: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if vocabulary.adds_space:
        texts.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*begin, spaces]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": texts},
        "model": _model(
            vocabulary,
            _merges(vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
            ignore_merges=False,
        ),
    }


def _merges(vocabulary: Vocabulary) -> list[list[str]]:
    """Returns all pairs of tokens that join to a token, those of the best score first."""
    numbers = {token: n for n, token in enumerate(vocabulary.tokens)}
    normal = {n for n, kind in enumerate(vocabulary.types) if kind not in (_CONTROL, _USER)}
    found: list[tuple[float, int, int, list[str]]] = []
    for n, token in enumerate(vocabulary.tokens):
        if vocabulary.types and n not in normal:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in numbers and right in numbers:
                score = -vocabulary.scores[n]
                found.append((score, numbers[left], numbers[right], [left, right]))
    return [pair for *_, pair in sorted(found)]
