"""GGUF files that are damaged, or that clew builds no graph of."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clew.frontends.gguf.loader import load
from clew.support.errors import ClewError
from gguf_files import Tensor, metadata_of_llama, plain, tensors_of_llama, written

_SIZES = (32, 32, 1, 2, 1)
_TENSORS = tensors_of_llama(lambda _, shape: plain(np.ones(shape, np.float32)), *_SIZES, 16)
_METADATA = metadata_of_llama(*_SIZES)
_GOOD = written(_METADATA, _TENSORS)


def _set(at: int, form: str, value: int) -> bytes:
    return _GOOD[:at] + struct.pack(form, value) + _GOOD[at + struct.calcsize(form) :]


def _with(**changes: object) -> bytes:
    return written({**_METADATA, **{k.replace("__", "."): v for k, v in changes.items()}}, _TENSORS)


def _kind(number: int) -> bytes:
    first = _TENSORS["token_embd.weight"]
    changed = Tensor(first.shape, number, first.data)
    return written(_METADATA, {**_TENSORS, "token_embd.weight": changed})


def _offset(value: int) -> bytes:
    """Returns the file with another first byte of `output.weight`, the last tensor."""
    at = _GOOD.index(b"output.weight") + len(b"output.weight") + 4 + 16 + 4
    return _set(at, "<Q", value)


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda: _GOOD[:-1], "M070", "lies at bytes"),
        (lambda: _GOOD[:40], "M070", "10 entries of the metadata in 40 bytes"),
        (lambda: _GOOD[:400], "M070", "its table needs"),
        (lambda: _set(4, "<I", 1), "U009", "version 1"),
        (lambda: _set(8, "<Q", 2**62), "M070", "tensors"),
        (lambda: _set(16, "<Q", 2**62), "M070", "entries of the metadata"),
        (lambda: _set(24, "<Q", 2**63), "M070", "its table needs"),
        (lambda: _offset(32), "M070", "are taken"),
        (lambda: _offset(2**63 - 32), "M070", "lies at bytes"),
        (lambda: _offset(33), "M070", "lies at bytes"),
        (lambda: _kind(23), "U009", "IQ4_XS"),
        (lambda: _kind(99), "M070", "has the type 99"),
        (lambda: _kind(12), "M070", "in blocks of 256"),
        (lambda: _with(general__alignment=48), "M070", "general.alignment is 48"),
        (lambda: _with(general__architecture="mamba"), "U009", "'mamba'"),
        (lambda: _with(general__architecture=7), "M071", "general.architecture: 7"),
        (lambda: _with(split__count=3), "U009", "3 files"),
        (lambda: _with(llama__expert_count=8), "U009", "experts"),
        (lambda: _with(llama__rope__scaling__type="yarn"), "U009", "yarn"),
        (lambda: _with(llama__attention__head_count=0), "M071", "llama.attention.head_count: 0"),
        (lambda: _with(llama__attention__head_count_kv=[1, 2]), "U009", "layers differ"),
        (lambda: _with(llama__block_count=2), "M072", "blk.1.attn_norm.weight"),
        (lambda: written(_METADATA, {}), "M071", "vocab_size"),
    ],
)  # fmt: skip
def test_files(make: Callable[[], bytes], code: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(_GOOD)
    load(path)
    path.write_bytes(make())
    with pytest.raises(ClewError) as caught:
        load(path)
    assert caught.value.code == code
    assert words in str(caught.value)
