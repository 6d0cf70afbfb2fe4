"""Encoders in folders of transformers and sentence-transformers, compared with torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.frontends.checkpoint.loader import load
from clew.ir.interpret import interpret

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "vocab_size": 60, "max_position_embeddings": 24, "type_vocab_size": 2,
}  # fmt: skip
_KINDS = {
    "bert": ("BertConfig", "BertModel", {}),
    "bert below": ("BertConfig", "BertForMaskedLM", {"hidden_act": "gelu_new"}),
    "roberta": ("RobertaConfig", "RobertaModel", {"pad_token_id": 1, "type_vocab_size": 1}),
    "xlm": ("XLMRobertaConfig", "XLMRobertaForMaskedLM", {"pad_token_id": 1}),
}


def _saved(folder: Path, kind: str, pooling: str = "") -> Any:
    """Saves a model with seeded weights, and returns its encoder."""
    config, name, more = _KINDS[kind]
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**{**_SIZES, **more})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    if pooling:
        _write_pooling(folder, pooling)
    return getattr(model, model.base_model_prefix, model)


def _write_pooling(folder: Path, *chosen: str, kinds: tuple[str, ...] = ("Pooling",)) -> None:
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    modules += [
        {"path": f"{n}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds, 1)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{name}": name in chosen for name in ("cls_token", "mean_tokens", "max")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))


def _batch(start: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids and a mask: the second text has fewer tokens."""
    ids = np.random.default_rng(0).integers(start, 60, (2, 7))
    mask = np.ones_like(ids)
    mask[1, 5:] = 0
    return ids, mask


def _feeds(ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


@pytest.mark.parametrize("kind", _KINDS)
def test_hidden_states(kind: str, tmp_path: Path) -> None:
    model = _saved(tmp_path, kind)
    ids, mask = _batch(2)
    mask = mask if kind.startswith("bert") else np.ones_like(mask)
    with torch.no_grad():
        wanted = model(torch.from_numpy(ids), torch.from_numpy(mask)).last_hidden_state.numpy()
    found = interpret(load(tmp_path), _feeds(ids, mask))["last_hidden_state"]
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)


@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token"])
@pytest.mark.parametrize("kinds", [("Pooling",), ("Pooling", "Normalize")])
def test_vectors_of_texts(pooling: str, kinds: tuple[str, ...], tmp_path: Path) -> None:
    model = _saved(tmp_path, "bert")
    _write_pooling(tmp_path, pooling, kinds=kinds)
    ids, mask = _batch(2)
    with torch.no_grad():
        hidden = model(torch.from_numpy(ids), torch.from_numpy(mask)).last_hidden_state.numpy()
    wanted = hidden[:, 0]
    if pooling == "mean_tokens":
        wanted = (hidden * mask[..., None]).sum(1) / mask.sum(1)[:, None]
    if "Normalize" in kinds:
        wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    compiled = clew.compile(tmp_path, threads=1)
    found = compiled.run(_feeds(ids, mask))
    np.testing.assert_allclose(found["sentence_embedding"], wanted, 1e-4, 1e-5)
    np.testing.assert_allclose(found["last_hidden_state"], hidden, 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"num_attention_heads": 5}, "M071"),
        ({"hidden_size": 48}, "M072"),
        ({"vocab_size": 0}, "M071"),
        ({"position_embedding_type": "relative_key"}, "U009"),
        ({"is_decoder": True}, "U009"),
        ({"hidden_act": "sine"}, "U009"),
    ],
)
def test_configurations(changes: dict[str, Any], code: str, tmp_path: Path) -> None:
    _saved(tmp_path, "bert")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(clew.ClewError) as caught:
        load(tmp_path)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("modules", "pooling", "code"),
    [
        ("[", "{}", "M071"),
        ("{}", "{}", "M071"),
        ('[{"type": "a.Transformer"}, {"type": "a.Dense"}]', "{}", "U009"),
        ('[{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "../x"}]', "{}", "U009"),
        (None, "[]", "M071"),
        (None, '{"pooling_mode_max_tokens": true}', "U009"),
        (None, '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}', "U009"),
    ],
)
def test_damaged_pooling(modules: str | None, pooling: str, code: str, tmp_path: Path) -> None:
    _saved(tmp_path, "bert", "mean_tokens")
    if modules is not None:
        (tmp_path / "modules.json").write_text(modules)
    (tmp_path / "1_Pooling" / "config.json").write_text(pooling)
    with pytest.raises(clew.ClewError) as caught:
        load(tmp_path)
    assert caught.value.code == code
