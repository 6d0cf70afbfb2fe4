"""The proof that parts run alone, on small networks."""

from __future__ import annotations

import pytest

import extracting


@pytest.mark.parametrize("model", ["keyword_spotting", "gpt2_tiny", "if_branches"])
def test_a_small_network(model: str) -> None:
    proof = extracting.prove(model, ranges=6, each=3)
    assert list(extracting.complaints([proof])) == []
    assert proof.kernels.done + len(proof.idle) > 3
    assert (proof.ranges.done, proof.as_onnx.done, proof.runtime.done) == (6, 2, 2)
    assert proof.sequence.done == 2
    table = extracting.table([proof])
    assert table.row_count == 1


def test_what_goes_wrong_is_told() -> None:
    proof = extracting.Proof("m")
    proof.kernels.note("k", False, "other bits")
    assert str(proof.kernels) == "0/1"
    assert list(extracting.complaints([proof])) == ["m: k: other bits"]
