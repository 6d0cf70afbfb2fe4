"""Merged decoders (`decoder_model_merged.onnx`): sessions keep the caches of both branches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew

from .merged_models import (
    HEADS,
    LAYERS,
    POSITIONS,
    VOCABULARY,
    WIDTH,
    as_transformers,
    cache_names,
    merged,
    weights,
)

Array = np.ndarray[Any, Any]
_HEAD = WIDTH // HEADS
PROMPT = [5, 9, 17, 20, 33]


class Reference:
    """ONNX Runtime, with the caches passed from call to call as Optimum does: those of the encoder
    come from the first call.
    """

    def __init__(self, model: Any) -> None:
        onnxruntime = pytest.importorskip("onnxruntime")
        self._session = onnxruntime.InferenceSession(model.SerializeToString())
        self._names = [output.name for output in self._session.get_outputs()]
        self.past: dict[str, Array] = {}

    def __call__(self, ids: Array, encoder: Array | None = None) -> Array:
        first = not self.past
        given = {"input_ids": ids, "use_cache_branch": np.array([not first])}
        if encoder is not None:
            given["encoder_hidden_states"] = encoder
        names = cache_names(cross=encoder is not None)
        empty = np.zeros((len(ids), HEADS, 1, _HEAD), np.float32)
        past = self.past or {f"past_key_values.{name}": empty for name in names}
        values = self._session.run(None, {**given, **past})
        found = dict(zip(self._names, values, strict=True))
        for name in names:
            if first or "encoder" not in name:
                self.past[f"past_key_values.{name}"] = found[f"present.{name}"]
        logits: Array = found["logits"]
        return logits


@pytest.fixture(scope="module")
def causal() -> Any:
    return merged(weights())


@pytest.fixture(scope="module")
def model(causal: Any) -> clew.CompiledModel:
    return clew.compile(causal, threads=1)


@pytest.fixture(scope="module")
def cross() -> tuple[Any, clew.CompiledModel]:
    made = merged(weights(cross=True), cross=True)
    return made, clew.compile(made, threads=1)


def generated(model: Any, prompt: list[int], count: int) -> tuple[int, ...]:
    """Returns greedy tokens by ONNX Runtime."""
    reference, ids, found = Reference(model), np.array([prompt]), []
    for _ in range(count):
        found.append(int(np.argmax(reference(ids)[0, -1])))
        ids = np.array([found[-1:]])
    return tuple(found)


@pytest.mark.parametrize("batch", [1, 2])
def test_each_step_is_that_of_onnx_runtime(
    causal: Any, model: clew.CompiledModel, batch: int
) -> None:
    session, reference, rng = model.session(), Reference(causal), np.random.default_rng(batch)
    for number, count in enumerate([5, 1, 1, 3, 1]):
        ids = rng.integers(0, VOCABULARY, (batch, count))
        found = session.run(input_ids=ids, use_cache_branch=np.array([number > 0]))
        np.testing.assert_allclose(found["logits"], reference(ids), rtol=1e-5, atol=1e-4)
    assert session.length == 11
    for name, array in session.state.items():
        np.testing.assert_allclose(array, reference.past[name], rtol=1e-5, atol=1e-4)


def test_each_step_is_that_of_transformers(model: clew.CompiledModel) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=POSITIONS, vocab_size=VOCABULARY,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    network = transformers.GPT2LMHeadModel(config).eval()
    network.load_state_dict({n: torch.from_numpy(a) for n, a in as_transformers(weights()).items()})
    session, cache, rng = model.session(), transformers.DynamicCache(), np.random.default_rng(4)
    for number, count in enumerate([6, 1, 1, 1]):
        ids = rng.integers(0, VOCABULARY, (1, count))
        with torch.no_grad():
            expected = network(torch.from_numpy(ids), past_key_values=cache).logits.numpy()
        found = session(ids, np.array([number > 0]))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_steps_write_in_place_and_compile_nothing(model: clew.CompiledModel) -> None:
    session = model.session()
    session(np.array([PROMPT]), np.array([False]))
    before = model._chain.builds_made  # type: ignore[attr-defined]
    caches = session._now.caches
    assert caches is not None
    assert len(caches.arrays) == 2 * LAYERS
    places = {name: array.ctypes.data for name, array in caches.arrays.items()}
    for count in (1, 2, 1):
        session(np.ones((1, count), np.int64), np.array([True]))
    after = session._now.caches
    assert after is not None
    assert {name: array.ctypes.data for name, array in after.arrays.items()} == places
    session(np.ones((1, 7), np.int64), np.array([False]))
    assert session.length == 7
    assert model._chain.builds_made == before  # type: ignore[attr-defined]


def test_a_call_that_begins_leaves_the_caches_of_copies(
    causal: Any, model: clew.CompiledModel
) -> None:
    session, reference = model.session(), Reference(causal)
    begins, continues = np.array([False]), np.array([True])
    session(np.array([PROMPT]), begins)
    reference(np.array([PROMPT]))
    other = session.copy()
    session(np.array([[1, 2, 3]]), begins)
    found = other(np.array([[7]]), continues)
    np.testing.assert_allclose(found, reference(np.array([[7]])), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("crosses", [False, True])
def test_a_call_begins_whatever_the_state_is(
    causal: Any,
    model: clew.CompiledModel,
    cross: tuple[Any, clew.CompiledModel],
    crosses: bool,
) -> None:
    made, compiled = cross if crosses else (causal, model)
    session = compiled.session()
    rng = np.random.default_rng(3)
    for number, batch in enumerate([1, 3, 2, 2, 2]):
        if number == 3:  # whole arrays in place of buffers
            session.set({name: array + 1 for name, array in session.state.items()})
        if number == 4 and session._now.hold is not None:  # as a call that failed leaves it
            session._now.hold.is_torn = True
        reference = Reference(made)
        encoder = rng.standard_normal((batch, 2 + number, WIDTH)).astype(np.float32)
        more = [encoder] if crosses else []
        for flag, count in ((False, 3), (True, 1)):
            ids = rng.integers(0, VOCABULARY, (batch, count))
            found = session(ids, *more, np.array([flag]))
            np.testing.assert_allclose(found, reference(ids, *more), rtol=1e-5, atol=1e-4)
        assert session.length == 4


def test_generated_tokens(causal: Any, model: clew.CompiledModel) -> None:
    expected = generated(causal, PROMPT, 12)
    assert clew.generate(model, PROMPT, max_tokens=12).ids == expected
    both = clew.generate(model, [PROMPT, PROMPT[::-1]], max_tokens=12)
    assert [one.ids for one in both] == [expected, generated(causal, PROMPT[::-1], 12)]


def test_a_branch_for_one_token_reads_one_token_per_call() -> None:
    made = merged(weights(1), one=True)
    language = clew.language_model(clew.compile(made, threads=1))
    first = clew.generate(language, PROMPT, max_tokens=4)
    longer = [*PROMPT, *first.ids, 50, 60, 8]
    second = clew.generate(language, longer, max_tokens=8)
    assert second.cached_tokens == len(PROMPT) + 3
    assert (*first.ids, *second.ids) == (
        *generated(made, PROMPT, 4),
        *generated(made, longer, 8),
    )


def test_caches_of_an_encoder_stay(cross: tuple[Any, clew.CompiledModel], tmp_path: Path) -> None:
    made, compiled = cross
    compiled.save(tmp_path / "model.clew")
    rng = np.random.default_rng(0)
    for found in (compiled, clew.load_compiled(tmp_path / "model.clew", threads=1)):
        session = found.session()
        for length in (7, 4):  # a second text in the same session
            reference = Reference(made)
            encoder = rng.standard_normal((1, length, WIDTH)).astype(np.float32)
            for number, count in enumerate([3, 1, 1]):
                ids = rng.integers(0, VOCABULARY, (1, count))
                logits = session(ids, encoder, np.array([number > 0]))
                np.testing.assert_allclose(logits, reference(ids, encoder), rtol=1e-5, atol=1e-4)
