"""Settings and tokenizers of folders."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import clew
from clew.generation.folder import home_of, model_in
from clew.generation.options import Options
from clew.generation.settings import Settings
from clew.generation.tokenizer import Tokenizer

from .folders import write_model, write_tokenizer


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text)
    return folder


def test_defaults_of_transformers(tmp_path: Path) -> None:
    generation = {"eos_token_id": [5, 7], "do_sample": True, "temperature": 0.6, "top_k": 20,
                  "num_beams": 2, "max_new_tokens": 40, "repetition_penalty": 1.1}  # fmt: skip
    write(tmp_path, config={"n_positions": 64, "eos_token_id": 2}, generation_config=generation)
    found = Settings.read(tmp_path)
    assert (found.ends, found.context) == ((5, 7), 64)
    options = Options(temperature=0.9).over(found.defaults)
    assert (options.temperature, options.top_k, options.beams, options.max_tokens) == (
        0.9,
        20,
        2,
        40,
    )
    assert options.samples
    assert not Options(temperature=0).over(found.defaults).samples
    write(tmp_path, generation_config={**generation, "do_sample": False})
    assert not Options().over(Settings.read(tmp_path).defaults).samples
    (tmp_path / "generation_config.json").unlink()
    assert Settings.read(tmp_path) == Settings((2,), {}, 64)
    assert Settings.read(tmp_path / "absent") == Settings()


def test_settings_of_the_model_builder(tmp_path: Path) -> None:
    genai = {
        "model": {"context_length": 99, "eos_token_id": 4, "decoder": {"filename": "m.onnx"}},
        "search": {"do_sample": True, "top_p": 0.9},
    }
    write(tmp_path, genai_config=genai)
    (tmp_path / "m.onnx").write_bytes(b"")
    found = Settings.read(tmp_path)
    assert (found.ends, found.context) == ((4,), 99)
    assert dict(found.defaults) == {"top_p": 0.9, "temperature": 1.0}
    assert model_in(tmp_path) == tmp_path / "m.onnx"
    assert home_of(tmp_path / "m.onnx") == tmp_path


def test_options_without_a_counterpart_are_named(tmp_path: Path) -> None:
    write(tmp_path, generation_config={"no_repeat_ngram_size": 3, "typical_p": 1.0})
    with pytest.warns(clew.ClewWarning, match="no_repeat_ngram_size, which clew ignores"):
        Settings.read(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config", "{"),
        ("config", []),
        ("config", {"n_positions": "many"}),
        ("config", {"n_positions": 0}),
        ("config", {"eos_token_id": "x"}),
        ("generation_config", {"temperature": -1}),
        ("generation_config", {"top_p": 7}),
        ("generation_config", {"top_k": 1.5}),
        ("generation_config", {"early_stopping": "soon"}),
        ("genai_config", {"model": 3}),
    ],
)
def test_damaged_settings(name: str, content: Any, tmp_path: Path) -> None:
    write(tmp_path, **{name: content})
    with pytest.raises(clew.ClewError) as caught:
        Settings.read(tmp_path)
    assert caught.value.code == "M075"


def test_tokenizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    write_tokenizer(tmp_path)
    found = Tokenizer.read(tmp_path / "tokenizer.json")
    text = "hello\n wörld €"
    assert found.decode(found.encode(text)) == text
    with pytest.raises(clew.ClewError) as caught:
        found.encode("\ud800")
    assert caught.value.code == "I480"
    for damaged in ("", "{", "[]", '{"model": {"type": "BPE"}}'):
        (tmp_path / "tokenizer.json").write_text(damaged)
        with pytest.raises(clew.ClewError) as caught:
            Tokenizer.read(tmp_path / "tokenizer.json")
        assert caught.value.code == "M073"
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(clew.ClewError, match=r"clew\[language\]") as caught:
        Tokenizer.read(tmp_path / "tokenizer.json")
    assert caught.value.code == "I485"


def test_prompts_are_not_truncated_or_padded(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    plain = Tokenizer.read(file).encode("hello")
    library = __import__("tokenizers").Tokenizer.from_file(str(file))
    library.enable_truncation(2)
    library.enable_padding(length=9)
    library.save(str(file))
    assert Tokenizer.read(file).encode("hello") == plain


def test_ids_need_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    write_tokenizer(write_model(tmp_path))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    model = clew.language_model(tmp_path, threads=1)
    assert len(clew.generate(model, [5], max_tokens=2).ids) <= 2
    with pytest.raises(clew.ClewError, match=r"clew\[language\]") as caught:
        clew.generate(model, "text")
    assert caught.value.code == "I485"
