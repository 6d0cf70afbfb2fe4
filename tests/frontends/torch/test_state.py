"""Buffers that a module changes are states with first values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from modules_run import compiled_from
from torch import nn
from torch.export import Dim

import clew
from clew.frontends.torch import from_torch
from clew.ir.parser import parse_module
from clew.ir.state import states_of
from clew.support.array_records import array_of, array_record
from clew.support.errors import ClewError


class Counting(nn.Module):
    """Counts its calls, and keeps the last sums."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(5))
        self.register_buffer("kept", torch.zeros(4, 3))
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.kept.index_copy_(0, (self.count % 4).reshape(1), x.sum(0)[None])
        return x * self.count + self.kept.sum(0) * self.scale


def compiled() -> Any:
    return compiled_from(Counting(), torch.randn(2, 3), dynamic=({0: Dim("n")},))


def test_a_session_keeps_the_state() -> None:
    session, module = compiled().session(), Counting()
    assert session.state_names == ("count", "kept")
    for n in (1, 4, 2, 3):
        x = torch.randn(n, 3)
        np.testing.assert_allclose(session(x.numpy()), module(x).numpy(), rtol=1e-5, atol=1e-6)
    assert session.state["count"] == 9
    session.reset()
    assert session.state["count"] == 5


def test_a_plain_call_starts_from_the_first_values() -> None:
    model, x = compiled(), torch.randn(2, 3)
    wanted = Counting()(x).numpy()
    for _ in range(2):
        np.testing.assert_allclose(model(x.numpy()), wanted, rtol=1e-5)
    found = model.run(x.numpy())
    assert list(found) == ["output", "count_new", "kept_new"]
    assert found["count_new"] == 6
    assert model.run(x=x.numpy(), count=np.array(7))["count_new"] == 8


def test_sessions_start_from_given_values() -> None:
    session = compiled().session(initial={"count": np.array(0)})
    session(np.zeros((2, 3), np.float32))
    assert session.state["count"] == 1


def test_inputs_that_are_not_given_are_reported() -> None:
    with pytest.raises(ClewError) as raised:
        compiled().run()
    assert raised.value.code == "I040"


def test_a_saved_model_has_the_state(tmp_path: Path) -> None:
    compiled().save(tmp_path / "counting.clew")
    session = clew.load_compiled(tmp_path / "counting.clew").session()
    session(np.zeros((2, 3), np.float32))
    assert session.state["count"] == 6


def test_the_text_form_has_the_state() -> None:
    module = from_torch(Counting().eval(), (torch.randn(2, 3),))
    states = states_of(parse_module(str(module)))
    assert list(states) == ["count", "kept"]
    assert states["count"].output == "count_new"
    np.testing.assert_array_equal(states["kept"].initial, np.zeros((4, 3), np.float32))


class InPlace(nn.Module):
    """Changes its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2


def test_the_new_value_of_an_input_is_an_output() -> None:
    model = compiled_from(InPlace(), torch.ones(3))
    given = np.ones(3, np.float32)
    assert list(model(given)) == [4, 4, 4]
    assert list(model.run(given)["x_new"]) == [2, 2, 2]
    assert list(given) == [1, 1, 1]


@pytest.mark.parametrize(
    "array",
    [np.array(5), np.zeros((2, 3), np.float32), np.arange(6.0).reshape(2, 3), np.ones((0, 2))],
    ids=str,
)
def test_records_of_arrays(array: Any) -> None:
    found = array_of(array_record(array))
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


class Mean(nn.Module):
    """Returns the mean of all inputs so far, in nested values."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros(3))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, given: dict[str, Any], scale: torch.Tensor) -> dict[str, Any]:
        x, (y, by) = given["x"], given["rest"]
        self.sum += x
        self.count += 1
        return {"mean": self.sum / self.count * scale, "rest": [(y * by, by)]}


def test_a_session_takes_and_returns_nested_values(tmp_path: Path) -> None:
    module, two = Mean(), torch.tensor(2.0)
    given = {"x": torch.ones(3), "rest": (torch.ones(2), 3)}
    model = compiled_from(module, given, two)
    model.save(tmp_path / "mean.clew")
    for kept in (model, clew.load_compiled(tmp_path / "mean.clew")):
        eager, session = Mean(), kept.session()
        for step in range(3):
            x, y = torch.full((3,), step * 1.5), torch.randn(2)
            wanted = eager({"x": x, "rest": (y, 3)}, two)
            call = {"x": x.numpy(), "rest": (y.numpy(), 3)}
            found = (session if step % 2 else session.copy())(call, scale=two.numpy())
            if step % 2 == 0:
                found = session(call, two.numpy())
            torch.testing.assert_close(torch.as_tensor(found["mean"]), wanted["mean"])
            ((product, by),) = found["rest"]
            torch.testing.assert_close(torch.as_tensor(product), wanted["rest"][0][0])
            assert (list(found), by) == (["mean", "rest"], 3)
        assert session.state["count"] == 3
        assert set(session.run(call, two.numpy())) == {"mean", "rest.0.0"}


class Cached(nn.Module):
    """Adds its input to keys and values that it takes and returns."""

    def forward(self, x: torch.Tensor, past: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        ((key, value),) = past
        return x * 2, [(key + x, value - x)]


def test_a_session_leaves_the_state_out_of_nested_values() -> None:
    past = [(torch.zeros(2), torch.ones(2))]
    model = compiled_from(Cached(), torch.ones(2), past)
    x = np.ones(2, np.float32)
    names = dict(zip(model.input_names[1:], model.output_names[1:], strict=True))
    session = model.session(names)
    assert [list(session(x)) for _ in range(2)] == [[2, 2], [2, 2]]
    assert [list(v) for v in session.state.values()] == [[2, 2], [-2, -2]]
    one = dict(list(names.items())[:1])
    partly = model.session(one)
    found, ((value,),) = partly(x, [(x,)])
    assert (list(found), list(value)) == ([2, 2], [0, 0])


class Static(nn.Module):
    """Writes to positions of a cache of fixed capacity, as transformers' `StaticCache` does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 2, 512, 128))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(2, at, x)
        return self.cache.sum(2)


def test_positions_of_a_cache_are_written_in_place() -> None:
    at = torch.tensor([0, 1])
    x = torch.randn(1, 2, 2, 128)
    session = compiled_from(Static(), x, at).session()
    eager, places = Static(), set()
    for start in (0, 2, 4, 3, -2):
        x, at = torch.randn(1, 2, 2, 128), torch.tensor([start, start + 1])
        eager_at = at % 512
        found = session(x.numpy(), at.numpy())
        np.testing.assert_allclose(found, eager(x, eager_at).numpy(), rtol=1e-4, atol=1e-5)
        places.add(session._now.state["cache"].ctypes.data)
    assert len(places) == 1
    np.testing.assert_array_equal(session.state["cache"], eager.cache.numpy())
