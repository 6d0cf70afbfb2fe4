"""The same tokens, beams and probabilities as transformers, on the same weights and logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.generation.choice import Choice
from clew.generation.options import Options

from .checkpoints import KINDS, prompts, saved, theirs

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
_FEW = ("llama", "qwen3", "gemma2", "gpt2", "phi3")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[] if k in _FEW else [pytest.mark.exhaustive]) for k in KINDS],
)
def test_greedy_tokens(kind: str, tmp_path: Path) -> None:
    model = saved(tmp_path, kind)
    ours = clew.language_model(tmp_path, threads=1)
    for length in (1, 20):
        ids = prompts(3, length, seed=length)
        expected = theirs(model, ids, max_new_tokens=50)
        found = clew.generate(ours, ids, max_tokens=50)
        assert [list(r.ids) for r in found] == expected
    assert len({token for row in expected for token in row}) > 9  # no model of few tokens
    assert ours.wiring.verifies == (kind != "mamba2")  # a recurrent state cannot be cut
    if ours.wiring.verifies:
        looked_up = clew.generate(ours, ids[0].tolist(), max_tokens=50, lookup=4)
        assert list(looked_up.ids) == expected[0]


def test_beams(tmp_path: Path) -> None:
    model = saved(tmp_path, "llama")
    ours = clew.language_model(tmp_path, threads=1)
    for options in (
        {"num_beams": 3},
        {"num_beams": 4, "length_penalty": 2.0},
        {"num_beams": 3, "early_stopping": True, "repetition_penalty": 1.3},
        {"num_beams": 2, "early_stopping": "never", "length_penalty": -0.5},
    ):
        renamed = {{"num_beams": "beams"}.get(k, k): v for k, v in options.items()}
        for ids in prompts(2, 5, seed=9):
            expected = theirs(model, ids, max_new_tokens=16, **options)
            found = clew.generate(ours, ids.tolist(), max_tokens=16, **renamed)
            assert [list(found.ids)] == expected, options


def test_probabilities() -> None:
    processors = transformers.generation.logits_process
    made = {
        "repetition_penalty": processors.RepetitionPenaltyLogitsProcessor,
        "temperature": processors.TemperatureLogitsWarper,
        "top_k": processors.TopKLogitsWarper,
        "top_p": processors.TopPLogitsWarper,
        "min_p": processors.MinPLogitsWarper,
    }
    rng = np.random.default_rng(0)
    for _ in range(150):
        size = int(rng.integers(5, 400))
        logits = (rng.standard_normal(size) * rng.choice([0.5, 3, 10])).astype("f4")
        tokens = rng.integers(0, size, int(rng.integers(1, 30))).tolist()
        values = {
            "repetition_penalty": float(rng.uniform(0.6, 2)),
            "temperature": float(rng.uniform(0.2, 2)),
            "top_k": int(rng.integers(1, size + 5)),
            "top_p": float(rng.uniform(0.05, 1)),
            "min_p": float(rng.uniform(0, 0.5)),
        }
        given: dict[str, Any] = {n: v for n, v in values.items() if rng.random() < 0.5}
        chain = transformers.LogitsProcessorList([made[n](v) for n, v in given.items()])
        if not set(given) - {"repetition_penalty"}:
            given["temperature"] = 1.0
        scores = chain(torch.tensor([tokens]), torch.from_numpy(logits[None].copy()))
        expected = torch.softmax(scores, -1)[0].numpy()
        found = Choice(Options(**given).checked(), len(tokens), rng).chances(logits, tokens)
        np.testing.assert_allclose(found, expected, atol=2e-6, err_msg=str(given))
