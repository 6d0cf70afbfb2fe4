"""What a token costs: bytes counted by hand, and the line after a generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
import clew.profile.token_costs
from clew.profile.token_costs import bandwidth_share, bytes_text

from .folders import CONFIG, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> clew.LanguageModel:
    folder = write_model(tmp_path_factory.mktemp("model"))
    return clew.language_model(folder, threads=1, cache=False)


def test_bytes_of_a_step(model: clew.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clew.profile.token_costs, "_SECONDS", 0.01)
    costs = model.costs(length=40, prompt=12)
    layers, hidden = CONFIG["num_hidden_layers"], CONFIG["hidden_size"]
    heads = groups = CONFIG["num_attention_heads"]
    narrow = groups * (hidden // heads)
    assert costs.token_bytes == 2 * 4 * layers * narrow
    assert costs.state_bytes == 0
    decode, prefill = costs.decode, costs.prefill
    (layer,) = [part for part in decode.parts if part.layer == "model.layers.0"]
    inner, vocabulary = CONFIG["intermediate_size"], CONFIG["vocab_size"]
    products = hidden * (2 * hidden + 2 * narrow + 3 * inner)
    assert layer.weight_bytes == pytest.approx(4 * (products + 2 * hidden), rel=0.1)
    assert layer.cache_bytes == 2 * 4 * narrow * 40
    (embedding,) = [part for part in decode.parts if part.layer == "model.embed_tokens"]
    assert embedding.weight_bytes == 4 * hidden  # one row
    assert costs.weight_bytes > 4 * vocabulary * hidden
    assert (decode.tokens, decode.length, prefill.tokens, prefill.length) == (1, 40, 12, 0)
    assert prefill.cache_bytes == 0
    assert sum(part.ns for part in decode.parts) > 0
    more = costs.more(1040)
    assert more.cache_bytes == costs.token_bytes
    assert more.microseconds == pytest.approx(decode.ns / 1e3 + 1000 * costs.slope_us)
    assert costs.slope_us == pytest.approx(costs.token_bytes / decode.gbps / 1e3)
    share = (decode.weight_bytes + decode.cache_bytes) / decode.gbps / decode.ns
    assert decode.bandwidth_share == pytest.approx(share)
    assert "model.layers.0" in costs.table()
    assert costs.to_json()["decode"]["parts"][0]["layer"] == decode.parts[0].layer


def test_a_session_goes_on_after_its_next_call_was_asked_for(model: clew.LanguageModel) -> None:
    ids = np.array([[5, 9, 30, 7]])
    one, other = model.model.session(), model.model.session()
    for session in (one, other):
        session(ids)
    served, given = other.copy().next_call(np.array([[8]]))
    served.program(given)
    np.testing.assert_array_equal(one(np.array([[8]])), other(np.array([[8]])))


def test_the_share_of_the_bandwidth_of_a_generation(model: clew.LanguageModel) -> None:
    share, half = (bandwidth_share(model.wiring, 40, seconds) for seconds in (1e-3, 2e-3))
    assert share is not None
    assert half is not None
    assert 0 < half < share
    assert bandwidth_share(model.wiring, 40, 0.0) is None


def test_what_has_no_costs(model: clew.LanguageModel, tmp_path: Path) -> None:
    model.model.save(tmp_path / "m.clew")
    saved = clew.language_model(tmp_path / "m.clew")
    assert bandwidth_share(saved.wiring, 40, 1e-3) is None
    wrong: list[Any] = [0, 1.5, "3", True, None]
    for of, length in ((saved, 40), *((model, number) for number in wrong)):
        with pytest.raises(clew.ClewError) as caught:
            of.costs(length=length)
        assert caught.value.code == "I495"
    for sizes in ({"length": 2**40}, {"prompt": 2**62}):
        with pytest.raises(clew.ClewError) as caught:
            model.costs(**sizes)
        assert caught.value.code == "I265"


def test_numbers_of_bytes() -> None:
    found = [bytes_text(n) for n in (0, 999, 2048, 12_345_678, 5 * 10**9)]
    assert found == ["0 B", "999 B", "2.05 kB", "12.3 MB", "5 GB"]
