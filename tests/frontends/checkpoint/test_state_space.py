"""Recurrences over time in chunks, compared with a loop over the steps."""

from __future__ import annotations

import numpy as np
import pytest

import clew
from clew.frontends.builder import GraphBuilder
from clew.frontends.lowering.state_space import Steps, scanned
from clew.ir.dims import SymDim
from clew.ir.types import TensorType

_HEADS, _WIDTH, _GROUPS, _SIZE = 4, 3, 2, 5


@pytest.fixture(scope="module")
def compiled() -> clew.CompiledModel:
    builder, steps = GraphBuilder("test"), SymDim.symbol("steps", 1)
    shapes = {
        "x": (2, steps, _HEADS, _WIDTH),
        "dt": (2, steps, _HEADS),
        "a": (_HEADS,),
        "b": (2, steps, _GROUPS, _SIZE),
        "c": (2, steps, _GROUPS, _SIZE),
        "state": (2, _HEADS, _WIDTH, _SIZE),
    }
    *given, state = (builder.input(n, TensorType(shape, "f32")) for n, shape in shapes.items())
    module = builder.module(list(scanned(Steps(*given), state)), ["y", "last"], {})
    return clew.compile(module, threads=1)


@pytest.mark.parametrize("steps", [1, 7, 64, 65, 150])
def test_chunks_give_the_states_of_single_steps(compiled: clew.CompiledModel, steps: int) -> None:
    rng = np.random.default_rng(steps)
    x = rng.standard_normal((2, steps, _HEADS, _WIDTH)).astype("f4")
    dt = rng.uniform(0.001, 0.2, (2, steps, _HEADS)).astype("f4")
    a = -np.arange(1, 40, 12, dtype="f4")  # of fast decay, too
    b, c = rng.standard_normal((2, 2, steps, _GROUPS, _SIZE)).astype("f4")
    first = rng.standard_normal((2, _HEADS, _WIDTH, _SIZE)).astype("f4")
    state, rows = first.astype("f8"), []
    for t in range(steps):
        own_b, own_c = (np.repeat(v[:, t], _HEADS // _GROUPS, 1)[:, :, None] for v in (b, c))
        decay = np.exp(np.float64(dt[:, t]) * a)[..., None, None]
        state = decay * state + dt[:, t][..., None, None] * x[:, t][..., None] * own_b
        rows.append((state * own_c).sum(-1))
    given = {"x": x, "dt": dt, "a": a, "b": b, "c": c, "state": first}
    found = compiled.run(given)
    np.testing.assert_allclose(found["y"], np.stack(rows, 1), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(found["last"], state, rtol=2e-5, atol=2e-5)
