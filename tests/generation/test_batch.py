"""Sequences of different lengths that share the calls of a model; the caches of earlier prompts."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import clew
from clew.generation.batch import Batch
from clew.generation.decoder import Decoder
from clew.generation.generating import sequence_of
from clew.generation.reading import Reading
from clew.runtime import container, held
from clew.runtime.session import Session

from .folders import VOCABULARY, write_fixed_onnx, write_model, write_narrow_onnx, write_tiny_onnx

LENGTHS = (5, 2, 17, 9, 1, 40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return clew.language_model(folder, threads=1)


def prompts(lengths: Any = LENGTHS, seed: int = 0, vocabulary: int = VOCABULARY) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, vocabulary, length).tolist() for length in lengths]


def alone(model: Any, asked: list[list[int]], **options: Any) -> list[tuple[int, ...]]:
    found = []
    for prompt in asked:
        model.forget()
        found.append(clew.generate(model, prompt, **options).ids)
    return found


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.3, "top_k": 30, "repetition_penalty": 1.2}]
)
def test_prompts_of_different_lengths_have_the_tokens_of_each_alone(
    model: Any, options: dict[str, Any]
) -> None:
    seed = 7 if options else None
    wanted = alone(model, prompts()[:1], max_tokens=20, seed=seed, **options)
    together = clew.generate(model, prompts(), max_tokens=20, seed=seed, **options)
    assert together[0].ids == wanted[0]
    again = clew.generate(model, prompts(), max_tokens=20, seed=seed, **options)
    assert [r.ids for r in again] == [r.ids for r in together]
    if not options:
        assert [r.ids for r in together] == alone(model, prompts(), max_tokens=20)


def test_sequences_that_end_do_not_cost(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, run = [], Session.run

    def noted(session: Session, given: Any) -> Any:
        sizes.append(given["input_ids"].shape)
        return run(session, given)

    monkeypatch.setattr(Session, "run", noted)
    model.forget()
    wanted = clew.generate(model, prompts()[2], max_tokens=12).ids
    sizes.clear()
    found = clew.generate(model, prompts(), max_tokens=12, stop=int(wanted[4]))
    steps = [rows for rows, new in sizes[len(LENGTHS) :] if new == 1]
    lengths = [len(r.ids) for r in found]
    assert lengths[2] == 5
    assert steps == [sum(n > step for n in lengths) for step in range(1, max(lengths))]


def test_sequences_join_and_leave_between_steps(model: Any) -> None:
    asked = prompts((3, 30, 8, 1, 60, 12, 2, 25), seed=1)
    wanted = alone(model, asked, max_tokens=18)
    batch, found, waiting = Batch(model), [], list(asked)
    rng = np.random.default_rng(2)
    left: list[Any] = []
    while waiting or len(batch):
        if waiting and (not len(batch) or rng.random() < 0.4):
            sequence = sequence_of(model, waiting.pop(0), max_tokens=18)
            reading = Reading(model, sequence.tokens)
            batch.join(sequence, reading.decoder, reading.finish())
            found.append(sequence)
        for step in batch.step():
            assert step.error is None
        if len(found) == 5 and not left:  # a client that has left
            left.append(next(s for s in found if not s.finish))
            batch.leave(left[0])
    for sequence, ids in zip(found, wanted, strict=True):
        assert tuple(sequence.new) == ids[: len(sequence.new)]
        assert sequence in left or len(sequence.new) == len(ids)


def test_an_error_ends_one_sequence(model: Any) -> None:
    def fails(ids: Any, scores: Any) -> Any:
        return scores if len(ids) < 8 else None

    wanted = alone(model, prompts()[1:2], max_tokens=9)
    batch, found = Batch(model), []
    for prompt, options in zip(prompts()[:2], ({"logits": fails}, {}), strict=True):
        found.append(sequence_of(model, prompt, max_tokens=9, **options))
        reading = Reading(model, found[-1].tokens)
        batch.join(found[-1], reading.decoder, reading.finish())
    errors = []
    while len(batch):
        errors += [s.error for s in batch.step() if s.error is not None]
    assert [getattr(e, "code", "") for e in errors] == ["I488"]
    assert (found[0].finish, len(found[0].new)) == ("interrupted", 3)
    assert tuple(found[1].new) == wanted[0]


@pytest.mark.parametrize("recurrent", [False, True])
def test_models_without_padding(tmp_path: Path, recurrent: bool) -> None:
    """States that do not grow mix lengths; exported caches share a call at equal lengths."""
    write_tiny_onnx(tmp_path / "model.onnx", recurrent=recurrent)
    tiny = clew.language_model(tmp_path / "model.onnx", threads=1)
    assert tiny.wiring.mixes_lengths == recurrent
    asked = prompts((1, 4, 1, 2), vocabulary=13)
    found = clew.generate(tiny, asked, max_tokens=6)
    assert [r.ids for r in found] == alone(tiny, asked, max_tokens=6)


# --- the graph ------------------------------------------------------------------------------------


def test_logits_of_the_last_tokens(model: Any) -> None:
    ids = np.array(prompts((9,)))
    whole = model.model.session()(ids)
    for unscored in (0, 3, 8, 9):
        given = {"input_ids": ids, "unscored": np.zeros(unscored, bool)}
        found = model.model.session()(given)
        assert np.array_equal(found, whole[:, min(unscored, 8) :])


def test_prompts_have_logits_of_the_last_token_only(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes, run = [], Session.run

    def noted(session: Session, given: Any) -> Any:
        found = run(session, given)
        shapes.append(found["logits"].shape)
        return found

    monkeypatch.setattr(Session, "run", noted)
    model.forget()
    clew.generate(model, prompts()[2], max_tokens=3)
    assert shapes == [(1, 1, VOCABULARY)] * 3
    shapes.clear()
    clew.generate(model, prompts()[2], max_tokens=4, draft=model, draft_tokens=2)
    assert max(shape[1] for shape in shapes) == 3  # drafts need those of all tokens


_GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64,
         "vocab_size": VOCABULARY, "activation_function": "gelu_new"}  # fmt: skip


def _gpt2_shapes() -> dict[str, tuple[int, ...]]:
    layer = "transformer.h.0"
    found: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (VOCABULARY, 32), "transformer.wpe.weight": (64, 32),
    }  # fmt: skip
    for name, rows, columns in (
        ("attn.c_attn", 32, 96), ("attn.c_proj", 32, 32), ("mlp.c_fc", 32, 128),
        ("mlp.c_proj", 128, 32),
    ):  # fmt: skip
        found |= {f"{layer}.{name}.weight": (rows, columns), f"{layer}.{name}.bias": (columns,)}
    for name in (f"{layer}.ln_1", f"{layer}.ln_2", "transformer.ln_f"):
        found |= {f"{name}.weight": (32,), f"{name}.bias": (32,)}
    return found


@pytest.mark.parametrize("kind", ["gpt2", "mistral"])
def test_padding_does_not_change_a_sequence(tmp_path: Path, kind: str) -> None:
    """Also where positions are learned, or attention has a window."""
    if kind == "gpt2":
        write_model(tmp_path, config=_GPT2, shapes=_gpt2_shapes())
    else:
        write_model(tmp_path, model_type="mistral", sliding_window=8)
    compiled = clew.compile(tmp_path, threads=1)
    short, long = np.array(prompts((20,), 3)), np.array(prompts((31,), 4))
    rows = np.concatenate([np.pad(short, ((0, 0), (11, 0))), long])
    session, own = compiled.session(), compiled.session()
    padding = np.array([11, 0])
    found = session({"input_ids": rows, "padding": padding})
    np.testing.assert_allclose(found[0, 11:], own(short)[0], rtol=1e-4, atol=1e-4)
    found = session({"input_ids": np.array([[7], [7]]), "padding": padding})
    np.testing.assert_allclose(found[0], own(np.array([[7]]))[0], rtol=1e-4, atol=1e-4)
    assert np.isfinite(found).all()


# --- rows of decoders -----------------------------------------------------------------------------


def test_rows_that_stay_are_not_copied(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    real = held.Row.elements

    def noted(row: Any, *given: Any) -> Any:
        moved.append(row.number)
        return real(row, *given)

    whole = Decoder(model.wiring)
    whole.feed(np.array(prompts((6,) * 4)))
    whole.take([(whole, n) for n in (0, 1, 2, 3)])
    monkeypatch.setattr(held.Row, "elements", noted)
    whole.take([(whole, 0), (whole, 3), (whole, 2)])
    assert set(moved) == {3}
    assert [list(row) for row in whole.rows] == [prompts((6,) * 4)[n] for n in (0, 3, 2)]
    other = Decoder(model.wiring)
    other.feed(np.array(prompts((4,), 5)))
    moved.clear()
    whole.take([(whole, 0), (whole, 1), (whole, 2), (other, 0)])
    assert set(moved) == {0}
    assert len(moved) == len(model.wiring.states)
    expected = [Decoder(model.wiring).feed(np.array([[*row, 9]]))[0, -1] for row in whole.rows]
    np.testing.assert_allclose(
        whole.feed(np.full((4, 1), 9))[:, -1], expected, rtol=1e-4, atol=1e-4
    )


# --- caches of earlier prompts --------------------------------------------------------------------


def test_prompts_share_beginnings_in_memory(folder: Path) -> None:
    model = clew.language_model(folder, threads=1)
    model.prefixes.most_bytes = 1 << 20
    system = prompts((30,), 6)[0]
    asked = [[*system, *end] for end in prompts((4, 7, 3), 7)]
    found = [clew.generate(model, prompt, max_tokens=5) for prompt in asked]
    assert [r.cached_tokens for r in found] == [0, 30, 30]
    longer = [*asked[0], *found[0].ids, 8]
    assert clew.generate(model, longer, max_tokens=5).cached_tokens == len(longer) - 2
    assert [r.ids for r in found] == alone(model, asked, max_tokens=5)
    model.prefixes.most_bytes = 1
    clew.generate(model, asked[0], max_tokens=2)
    assert len(model.prefixes) == 1


def test_prompts_share_beginnings_in_files(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "model")
    system = prompts((70,), 8)[0]
    asked = [[*system, *end] for end in prompts((4, 7), 9)]

    def opened() -> Any:
        return clew.language_model(tmp_path / "model", prefix_cache=tmp_path / "kept", threads=1)

    first = clew.generate(opened(), asked[0], max_tokens=5)
    (kept,) = (tmp_path / "kept").iterdir()
    again = clew.generate(opened(), asked[1], max_tokens=5)
    assert (first.cached_tokens, again.cached_tokens) == (0, 64)
    assert again.ids == alone(clew.language_model(folder, threads=1), asked[1:], max_tokens=5)[0]
    whole = kept.read_bytes()
    for damaged in (whole[:-9], whole[:-1] + bytes([whole[-1] ^ 1])):
        kept.write_bytes(damaged)
        with pytest.warns(clew.ClewWarning, match="I494"):
            found = clew.generate(opened(), asked[1], max_tokens=5)
        assert (found.cached_tokens, found.ids) == (0, again.ids)
        assert kept.exists()  # a sound one
    os.utime(tmp_path / "model" / "model.safetensors", ns=(1, 1))  # another model
    assert clew.generate(opened(), asked[1], max_tokens=5).cached_tokens == 0
    assert len(list((tmp_path / "kept").iterdir())) == 2


@pytest.fixture
def stored(folder: Path, tmp_path: Path) -> tuple[Path, Callable[..., tuple[int, Any]]]:
    """The file of a prompt, and a function that asks a new model with a folder of such files. It
    returns the number of cached tokens and the new ones.
    """
    shutil.copytree(folder, tmp_path / "model")

    def asked(kept: Path = tmp_path / "kept") -> tuple[int, Any]:
        model = clew.language_model(tmp_path / "model", prefix_cache=kept, threads=1)
        found = clew.generate(model, prompts((70,), 3)[0], max_tokens=4)
        return found.cached_tokens, found.ids

    asked()
    (file,) = (tmp_path / "kept").iterdir()
    return file, asked


def test_files_of_prompts_may_be_for_reading_only(
    stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Any, *args: Any, **named: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    file, asked = stored
    monkeypatch.setattr(os, "utime", refused)
    assert asked()[0] == 64
    monkeypatch.setattr(container, "open_plain", refused)
    with pytest.warns(clew.ClewWarning, match="I494"):
        assert asked()[0] == 0
    assert file.exists()


def test_files_of_prompts_that_do_not_fit_the_model(stored: Any, tmp_path: Path) -> None:
    file, _ = stored
    held, ask = container.read_container(file), prompts((70,), 3)[0]
    key, value = (np.array(blob) for blob in held.blobs)
    model: Any = clew.language_model(tmp_path / "model", prefix_cache=file.parent, threads=1)
    digest, pair = held.text["model"], [key, value]
    shorter = [[key, value[:-64]], [key, value[:-3]]]
    for name, blobs in (
        ("x", pair), *((digest, b) for b in ([], [key], [*pair, key], *shorter)),
    ):  # fmt: skip
        model.forget()
        container.write_container(file, {"kind": "prefix", "model": name}, blobs)
        with pytest.warns(clew.ClewWarning, match="I494"):
            assert clew.generate(model, ask, max_tokens=1).cached_tokens == 0
        model.forget()
        assert clew.generate(model, ask, max_tokens=1).cached_tokens == 64


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_files_of_narrow_caches(tmp_path: Path, kind: int) -> None:
    write_narrow_onnx(tmp_path / "model.onnx", kind)
    found = []
    for _ in range(2):
        model = clew.language_model(tmp_path / "model.onnx", prefix_cache=tmp_path, threads=1)
        found.append(clew.generate(model, [*range(13)] * 5, max_tokens=3))
    assert [result.cached_tokens for result in found] == [0, 64]
    assert found[0].ids == found[1].ids


def test_files_of_prompts_in_the_folder_of_the_model(stored: Any, tmp_path: Path) -> None:
    _, asked = stored
    (tmp_path / "model" / "link").symlink_to("nowhere")
    assert [asked(tmp_path / "model")[0] for _ in range(2)] == [0, 64]


def test_a_lost_state_is_not_kept(tmp_path: Path) -> None:
    """The text is longer than the cache, which calls write in place."""
    write_fixed_onnx(tmp_path / "model.onnx", room=8)
    tiny = clew.language_model(tmp_path / "model.onnx", threads=1)
    wanted = clew.generate(tiny, [3, 4], max_tokens=7).ids
    tiny.forget()
    with pytest.raises(clew.ClewError, match="I320"):
        clew.generate(tiny, [3, 4], max_tokens=8)
    assert len(tiny.prefixes) == 0
    assert clew.generate(tiny, [3, 4, *wanted[:3]], max_tokens=4).ids == wanted[3:]


def test_files_of_prompts_are_bounded(folder: Path, tmp_path: Path) -> None:
    model: Any = clew.language_model(folder, prefix_cache=tmp_path, threads=1)
    clew.generate(model, prompts((65,))[0], max_tokens=1)
    (kept,) = tmp_path.iterdir()
    model.prefixes.files._most_bytes = kept.stat().st_size + 10  # of one block
    os.utime(kept, ns=(1, 1))
    clew.generate(model, prompts((65,), 1)[0], max_tokens=1)
    (other,) = tmp_path.iterdir()
    assert other != kept


def test_models_that_have_no_files_of_prompts(folder: Path, tmp_path: Path) -> None:
    write_tiny_onnx(tmp_path / "model.onnx", recurrent=True)
    for source in (clew.compile(folder, threads=1), tmp_path / "model.onnx"):
        with pytest.raises(clew.ClewError) as caught:
            clew.language_model(source, prefix_cache=tmp_path)
        assert caught.value.code == "I493"
