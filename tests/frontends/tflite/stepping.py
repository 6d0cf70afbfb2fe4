"""Runs a module frame by frame in the interpreter, with its state, and compares with LiteRT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from clew.frontends.tflite.loader import load
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.state import states_of

from .litert import frames

Feeds = Sequence[Mapping[str, np.ndarray]]


def stepped(module: Module, feeds: Feeds) -> list[list[np.ndarray]]:
    """Returns the outputs that are no state, for each frame."""
    states = states_of(module)
    kept = {name: state.initial for name, state in states.items()}
    fed = {state.output: name for name, state in states.items()}
    found = []
    for feed in feeds:
        results = interpret(module, {**feed, **kept})
        kept = {fed[name]: value for name, value in results.items() if name in fed}
        found.append([value for name, value in results.items() if name not in fed])
    return found


def agree(data: bytes, feeds: Feeds, tolerance: float = 2e-6) -> Module:
    """Asserts that all frames are those of LiteRT, integers bit for bit; returns the module."""
    module = load(data)
    for ours, theirs in zip(stepped(module, feeds), frames(data, feeds), strict=True):
        for mine, wanted in zip(ours, theirs, strict=True):
            assert mine.shape == wanted.shape
            assert mine.dtype == wanted.dtype
            if mine.dtype.kind == "f":
                np.testing.assert_allclose(mine, wanted, rtol=tolerance, atol=tolerance)
            else:
                np.testing.assert_array_equal(mine, wanted)
    return module
