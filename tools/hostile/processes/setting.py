"""Building blocks of the process cases: their registration, models, and a compilation and run that
must succeed under any disturbance.

`HOSTILE_ROUNDS` is the number of repetitions of cases that depend on chance (default 1).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

import clew
from hostile.catalog import Case, load, model, node, value
from hostile.corpus import network

ROUNDS: Final = int(os.environ.get("HOSTILE_ROUNDS", "1"))
ALL: Final[list[Case]] = []
IMAGE: Final = np.linspace(-1, 1, 192, dtype=np.float32).reshape(1, 3, 8, 8)


def case(*expected: str, slow: bool = False) -> Callable[[Any], Any]:
    """Puts a function of an empty folder, which is the cache's too, into the catalog."""

    def register(attack: Any) -> Any:
        def attacked(folder: Path) -> Any:
            os.environ["CLEW_CACHE_DIR"] = str(folder / "cache")
            return attack(folder)

        ALL.append(Case(attack.__name__, attacked, expected or ("ok",), slow))
        return attack

    return register


def symbolic() -> Any:
    """Returns a model of any number of rows."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Softmax", ["a"], ["b"]),
        node("Add", ["b", "a"], ["y"]),
    ]
    w = weight()
    return model(nodes, [w], inputs=[value("x", ["n", 16])])


def weight() -> Any:
    """Returns a product's weights."""
    from onnx import numpy_helper  # noqa: PLC0415

    data = np.sin(np.arange(16 * 24, dtype=np.float32)).reshape(16, 24)
    return numpy_helper.from_array(data, "w")


def late() -> Any:
    """Returns a model with data-dependent shapes."""
    nodes = [
        node("NonZero", ["x"], ["places"]),
        node("Cast", ["places"], ["f"], to=1),
        node("Exp", ["f"], ["e"]),
        node("Mul", ["e", "f"], ["y"]),
    ]
    return model(nodes, inputs=[value("x", [2, 6])])


def compiled(what: Any, threads: int = 2, **options: Any) -> Any:
    """Returns a compiled model whose results do not depend on the number of calls."""
    sizes = clew.Sizes(specialize=False)
    return clew.compile(load(what), threads=threads, sizes=sizes, **options)


def right(**options: Any) -> None:
    """Compiles and runs, whatever happens to the disk."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built = compiled(network(), threads=1, **options)
        assert np.isclose(built(IMAGE).sum(), 1)
