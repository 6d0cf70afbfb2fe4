"""Objects of registered classes as arguments and results."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from modules_run import compiled_from
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

from clew.frontends.torch import exporting


class Cache:
    """Keys and values by layer, whose constructor makes tensors of its own."""

    def __init__(self, pairs: Any = ()) -> None:
        self.keys, self.values = [torch.tensor([])] * 2, [torch.tensor([])] * 2
        for number, (key, value) in enumerate(pairs):
            self.keys[number] = torch.cat([self.keys[number].reshape(0, 3), key])
            self.values[number] = torch.cat([self.values[number].reshape(0, 3), value])


def register() -> None:
    if Cache not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(
            Cache,
            lambda cache: ([cache.keys, cache.values], [["keys", "values"], [None, None]]),
            lambda parts, _: Cache(zip(*parts, strict=True)),
            flatten_with_keys_fn=lambda cache: (
                [(pytree.MappingKey(n), getattr(cache, n)) for n in ("keys", "values")],
                [["keys", "values"], [None, None]],
            ),
        )


class Decoder(nn.Module):
    """Appends its input to the cache, and attends to it."""

    def forward(self, x: torch.Tensor, cache: Cache) -> Any:
        keys = [torch.cat([k, x]) for k in cache.keys]
        values = [torch.cat([v, x * 2]) for v in cache.values]
        found = sum(k.sum(0) + v.sum(0) for k, v in zip(keys, values, strict=True))
        return {"out": x + found, "cache": Cache(zip(keys, values, strict=True))}


def filled(rows: int) -> Cache:
    return Cache([(torch.randn(rows, 3), torch.randn(rows, 3)) for _ in range(2)])


def test_a_cache_grows_from_call_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "some_library", ModuleType("some_library"))
    monkeypatch.setitem(exporting.REGISTERING, "some_library", register)
    free, cache = [{0: Dim.AUTO}] * 2, filled(4)
    model = compiled_from(Decoder(), torch.randn(1, 3), cache, dynamic=({}, [free, free]))
    assert model.input_names[1:] == ("cache_keys_0", "cache_keys_1", *model.input_names[3:])
    assert model.output_names[:2] == ("out", "cache.keys.0")
    given: Any = cache
    for _ in range(3):
        x = torch.randn(1, 3)
        wanted, found = Decoder()(x, cache), model(x.numpy(), given)
        np.testing.assert_allclose(found["out"], wanted["out"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["cache"]["values"][1], wanted["cache"].values[1])
        cache, given = wanted["cache"], found["cache"]

    session = model.session(dict(zip(model.input_names[1:], model.output_names[1:], strict=True)))
    cache = Cache()
    cache.keys, cache.values = ([torch.zeros(0, 3)] * 2 for _ in range(2))
    for _ in range(3):
        x = torch.randn(1, 3)
        wanted = Decoder()(x, cache)
        np.testing.assert_allclose(session(x.numpy())["out"], wanted["out"], rtol=1e-5, atol=1e-6)
        cache = wanted["cache"]
