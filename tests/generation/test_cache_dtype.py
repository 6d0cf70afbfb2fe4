"""Caches in f16, bf16 and int8: attention reads them as stored, and whatever holds, copies, cuts or
stores caches takes them, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew

from .folders import write_model, write_tiny_onnx

Array = np.ndarray[Any, Any]
TOLERANCES = {"bf16": 0.2, "f16": 0.02, "int8": 0.4}
CHANGES: dict[str, Any] = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
}
_HIDDEN, _INNER, _HEAD, _VOCABULARY = 32, 48, 8, 280


def grouped(folder: Path) -> Path:
    """Writes a layer of Llama whose query heads share keys and values."""
    layer, square, narrow = "model.layers.0", (_HIDDEN, _HIDDEN), (2 * _HEAD, _HIDDEN)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (_VOCABULARY, _HIDDEN), "lm_head": (_VOCABULARY, _HIDDEN),
        f"{layer}.self_attn.q_proj": square, f"{layer}.self_attn.o_proj": square,
        f"{layer}.self_attn.k_proj": narrow, f"{layer}.self_attn.v_proj": narrow,
        f"{layer}.mlp.gate_proj": (_INNER, _HIDDEN), f"{layer}.mlp.up_proj": (_INNER, _HIDDEN),
        f"{layer}.mlp.down_proj": (_HIDDEN, _INNER), "model.norm": (_HIDDEN,),
        f"{layer}.input_layernorm": (_HIDDEN,), f"{layer}.post_attention_layernorm": (_HIDDEN,),
    }  # fmt: skip
    return write_model(folder, shapes={f"{n}.weight": s for n, s in shapes.items()}, **CHANGES)


def compiled_for(source: Path, dtype: str | None) -> Any:
    return clew.compile(source, threads=1, precision=clew.Precision(cache_dtype=dtype))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grouped(tmp_path_factory.mktemp("model") / "grouped")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return clew.language_model(folder, threads=1, cache_dtype="int8")


def prompts(lengths: tuple[int, ...], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, _VOCABULARY, n).tolist() for n in lengths]


def logits(compiled: Any, ids: list[int], cut: int) -> Array:
    """Returns the logits of a prompt that is read up to `cut`, and then in steps."""
    session = compiled.session()
    found = [session(np.array([ids[:cut]]))]
    found += [session(np.array([[one]])) for one in ids[cut:-4]]
    found.append(session(np.array([ids[-4:]])))
    return np.concatenate(found, 1)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_attention_reads_caches_as_stored(folder: Path, dtype: str) -> None:
    exact = clew.compile(folder, threads=1)
    compiled = compiled_for(folder, dtype)
    (ids,) = prompts((30,))
    wanted, found = (logits(c, ids, 20) for c in (exact, compiled))
    assert 0 < np.abs(found - wanted).max() < TOLERANCES[dtype]
    session = compiled.session()
    session(np.array([ids]))
    stored = {"int8": "i8"}.get(dtype, dtype)
    held: Any = session._held_form
    (kernel,) = [u for u in held.model.template.uses if "attention" in u.name]
    params = [p.tensor for p in kernel.source.function.params if p.tensor.shape[-1] == _HEAD]
    assert [p.dtype for p in params if p.shape[1] == 2] == [stored] * 2
    elements = 2 * 2 * (_HEAD + 4) if dtype == "int8" else 2 * 2 * 2 * _HEAD
    assert sum(a.nbytes for a in session.state.values()) == 30 * elements


def test_codes_have_the_factor_of_their_position(folder: Path) -> None:
    exact, compiled = (compiled_for(folder, dtype) for dtype in (None, "int8"))
    (ids,) = prompts((9,), 4)
    sessions = [c.session() for c in (exact, compiled)]
    for session in sessions:
        session(np.array([ids]))
    wanted, found = (session.state for session in sessions)
    for name, keys in wanted.items():
        codes, scale = found[name], found[f"{name}_scale"]
        assert (codes.dtype, scale.shape) == (np.int8, (*keys.shape[:-1], 1))
        np.testing.assert_allclose(scale[..., 0], np.abs(keys).max(-1) / 127, rtol=1e-4)
        assert (np.abs(codes).max(-1) == 127).all()
        assert (np.abs(codes * scale - keys) <= 0.51 * scale).all()


def test_whatever_holds_caches_holds_codes(model: Any, folder: Path) -> None:
    asked = prompts((5, 17, 11), 1)
    alone = [clew.generate(model, ids, max_tokens=12).ids for ids in asked]
    together = clew.generate(model, asked, max_tokens=12)
    assert [one.ids for one in together] == alone
    guessed = clew.generate(model, asked[1], max_tokens=12, lookup=3)
    draft = clew.language_model(folder, threads=1)
    drafted = clew.generate(model, asked[1], max_tokens=12, draft=draft, draft_tokens=3)
    assert guessed.ids == drafted.ids == alone[1]
    assert drafted.accepted
    session = model.model.session()
    session(np.array([asked[1]]))
    other = session.copy()
    session(np.array([[5, 6]]))
    session.rewind(len(asked[1]))
    found = [s(np.array([[9]])) for s in (session, other)]
    np.testing.assert_array_equal(*found)


def test_codes_of_prompts_are_stored_in_files(folder: Path, tmp_path: Path) -> None:
    (ids,) = prompts((70,), 2)
    found = []
    for dtype in ("int8", "int8", None):
        kept = tmp_path / "kept"
        model = clew.language_model(folder, threads=1, cache_dtype=dtype, prefix_cache=kept)
        found.append(clew.generate(model, ids, max_tokens=4))
    assert [one.cached_tokens for one in found] == [0, 64, 0]
    assert found[0].ids == found[1].ids
    sizes = [path.stat().st_size for path in kept.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) > 2 * min(sizes)


def test_costs_and_saved_models(model: Any, tmp_path: Path) -> None:
    assert model.costs(20, 8).token_bytes == 2 * 2 * (_HEAD + 4)
    model.model.save(tmp_path / "model.clew")
    (ids,) = prompts((8,), 3)
    saved = clew.language_model(tmp_path / "model.clew", threads=1)
    found = [clew.generate(each, ids, max_tokens=6).ids for each in (saved, model)]
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_caches_of_onnx_models(tmp_path: Path, dtype: str) -> None:
    write_tiny_onnx(tmp_path / "model.onnx")
    found = []
    for each in (None, dtype):
        model = clew.language_model(tmp_path / "model.onnx", threads=1, cache_dtype=each)
        found.append(clew.generate(model, [1, 2, 3], max_tokens=6).ids)
    assert found[0] == found[1]  # its caches hold zeros and ones


def test_models_without_caches(tmp_path: Path) -> None:
    write_tiny_onnx(tmp_path / "model.onnx", recurrent=True)
    with pytest.raises(clew.ClewError, match="I496"):
        compiled_for(tmp_path / "model.onnx", "int8")
    with pytest.raises(clew.ClewError, match="I013"):
        compiled_for(tmp_path / "model.onnx", "i3")
