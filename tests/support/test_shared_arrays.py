"""Equal arrays in use: which are shared, how long they live, and which are not."""

from __future__ import annotations

import gc
from hashlib import sha256
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from clew.support import shared_arrays
from clew.support.shared_arrays import content_digest, in_use, same_bytes, shared


def weight(seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal((48, 64)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, ml_dtypes.bfloat16])
def test_an_equal_array_is_the_one_in_use(dtype: Any) -> None:
    first = shared(weight(dtype=dtype))
    assert shared(weight(dtype=dtype)) is first
    assert in_use(weight(dtype=dtype)) is first
    assert not first.flags.writeable


def test_other_bytes_shapes_and_dtypes_are_other_arrays() -> None:
    first = shared(weight(7))
    other = weight(7)
    other[-1, -1] += 1  # the samples of both are the same
    assert shared(other) is not first
    assert shared(weight(7).reshape(64, 48)).shape == (64, 48)
    assert shared(weight(7).view(np.int32)).dtype == np.int32
    zeros, negative = np.zeros(100, np.float32), np.full(100, -0.0, np.float32)
    assert shared(zeros) is not shared(negative)
    assert not same_bytes(zeros, negative)


def test_the_last_user_frees_an_array() -> None:
    gc.collect()  # models of other tests that nothing uses any more
    before = len(shared_arrays._known)
    arrays = [shared(weight(seed)) for seed in (1, 2)]
    assert len(shared_arrays._known) == before + 2
    del arrays
    gc.collect()
    assert len(shared_arrays._known) == before
    assert in_use(weight(1)) is None


def test_strided_arrays_objects_and_texts_are_not_shared() -> None:
    strided = weight(3)[:, ::2]
    objects = np.array(["a", "b"], object)
    texts = np.array(["a", "b"], np.dtypes.StringDType())
    empty = np.empty((0, 4), np.float32)
    for array in (strided, objects, texts, empty):
        assert shared(array) is array
        assert in_use(array) is None


def test_memory_that_others_may_write_to_is_not_shared() -> None:
    users = weight(4)
    view = users.view()
    view.flags.writeable = False  # as constants hold arrays of the user
    assert shared(view.reshape(64, 48)).base is users
    assert in_use(weight(4).reshape(64, 48)) is None
    users[0, 0] = 0
    mapped = np.frombuffer(weight(5).tobytes(), np.float32)
    assert shared(mapped) is mapped
    assert in_use(mapped) is None


def test_digests_of_shared_memory_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def counted(data: Any) -> Any:
        hashed.append(len(bytes(data)))
        return sha256(data)

    monkeypatch.setattr(shared_arrays, "sha256", counted)
    array = shared(np.arange(1 << 18, dtype=np.int32))
    wanted = sha256(array.data).digest()
    for _ in range(2):
        assert content_digest(array.reshape(-1).view(np.uint8)) == wanted
    assert len(hashed) == 1
    assert content_digest(array[1:]) == sha256(array[1:].data).digest()
    owned = np.arange(1 << 18, dtype=np.int32)
    assert content_digest(owned) == wanted
    owned[-1] = 0  # not handed over, so its owner may write to it
    assert content_digest(owned) != wanted
    before = len(shared_arrays._digests)
    del array
    gc.collect()
    assert len(shared_arrays._digests) < before
