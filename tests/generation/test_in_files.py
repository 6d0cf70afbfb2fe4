"""Models whose file has the tokenizer, the chat template and the settings: GGUF."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.frontends.gguf.models import arrays, metadata_of

import clew
from gguf_files import plain, written

from .folders import CONFIG, TEMPLATE, write_model, write_tokenizer

pytest.importorskip("tokenizers")


def _weights(folder: Path) -> dict[str, np.ndarray]:
    data = (folder / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    found = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[8 + size + begin : 8 + size + end], "f4")
        found[name] = values.reshape(entry["shape"])
    return found


def _file(folder: Path, **tokenizer: Any) -> Path:
    """Returns the model of a folder as a GGUF file, with the folder's tokenizer."""
    heads = CONFIG["num_attention_heads"]
    config = SimpleNamespace(**CONFIG, num_key_value_heads=heads, rms_norm_eps=1e-6)
    tokens = json.loads((folder / "tokenizer.json").read_text())
    names = sorted(tokens["model"]["vocab"], key=tokens["model"]["vocab"].get)
    kinds = [3 if name.startswith("<") and len(name) > 1 else 1 for name in names]
    pad = [f"unused{n}" for n in range(CONFIG["vocab_size"] - len(names))]
    fields = {
        "model": "gpt2", "pre": "gpt-2", "tokens": [*names, *pad],
        "token_type": [*kinds, *[5] * len(pad)], "merges": ["h e", "l l"], "bos_token_id": 1,
        "eos_token_id": 2, **tokenizer,
    }  # fmt: skip
    metadata = {
        **metadata_of(config, "llama"),
        **{f"tokenizer.ggml.{name}": value for name, value in fields.items()},
        "tokenizer.chat_template": TEMPLATE,
    }
    tensors = arrays(_weights(folder), "llama", 2, 2)
    made = folder.parent / "model.gguf"
    made.write_bytes(written(metadata, {name: plain(value) for name, value in tensors.items()}))
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = write_model(tmp_path / "folder")
    write_tokenizer(made)
    return made


def test_a_file_and_a_folder_generate_the_same(folder: Path) -> None:
    ours = clew.language_model(_file(folder), threads=1)
    theirs = clew.language_model(folder, threads=1)
    assert ours.settings.context == CONFIG["max_position_embeddings"]
    assert ours.settings.ends == (2,)
    messages = [{"role": "user", "content": "hello"}]
    assert ours.prompt_of(messages) == theirs.prompt_of(messages)
    for prompt in ("hello, hell", messages, [5, 90, 17]):
        one, other = (clew.generate(m, prompt, max_tokens=20) for m in (ours, theirs))
        assert (one.ids, one.finish) == (other.ids, other.finish)
        assert re.sub(r"unused\d+", "", one.text) == other.text
    assert clew.language_model(folder.parent / "model.gguf", folder=folder).encode("a") == [
        *theirs.encode("a")
    ]


def test_an_unknown_tokenizer_leaves_ids(folder: Path) -> None:
    model = clew.language_model(_file(folder, model="wordpiece"), threads=1)
    assert len(clew.generate(model, [5, 90], max_tokens=2).ids) == 2
    with pytest.raises(clew.ClewError, match=r"U009.*wordpiece"):
        clew.generate(model, "hello")


def test_arrays_that_do_not_fit_are_named(folder: Path) -> None:
    for name, value, shown in (("token_type", [1], "<1 numbers>"), ("merges", [], "<0 ")):
        model = _file(folder, **{name: value})
        with pytest.raises(clew.ClewError, match=f"M071.*tokenizer.ggml.{name}: {shown}"):
            clew.language_model(model, threads=1).encode("a")
