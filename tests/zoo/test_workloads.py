"""The workloads' inputs and groups; the networks themselves are built where they are measured."""

from __future__ import annotations

import pytest

import zoo


def test_groups() -> None:
    assert zoo.names("batch") == ["resnet50_batch8", "bert_base_batch8"]
    assert zoo.names("decode") == ["llama_decode", "gpt2_decode"]
    assert len(zoo.names("heldout")) >= 3


@pytest.mark.parametrize("name", zoo.names("batch"))
def test_batches_have_eight_inputs(name: str) -> None:
    assert {value.shape[0] for value in zoo.inputs(name).values()} == {8}


@pytest.mark.parametrize(("name", "heads"), [("llama_decode", 4), ("gpt2_decode", 12)])
def test_one_token_is_decoded_after_others(name: str, heads: int) -> None:
    ids, *past = zoo.inputs(name).values()
    assert ids.shape == (1, 1)
    assert len(past) == 2 * 12
    assert {value.shape for value in past} == {(1, heads, 127, 64)}
