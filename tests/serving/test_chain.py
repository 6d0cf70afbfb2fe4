"""The chain of providers: which one answers, why others decline, and calls from several threads."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import clew
from clew.support.errors import ClewWarning

Array = np.ndarray[Any, Any]
HEAD = '<ir_version: 9, opset_import: ["" : 18]>'
ROWS = f"""{HEAD} g (float[n, m] x) => (float[n, m] y) {{
    e = Exp (x)
    y = Softmax <axis = -1> (e)
}}"""
ANY_RANK = f"{HEAD} g (float[...] x) => (float[...] y) {{ e = Abs (x)  y = Exp (e) }}"
BY_VALUE = f"""{HEAD} g (float[n, 6] x, int64[2] shape) => (float[a, b] y) {{
    r = Reshape (x, shape)
    y = Exp (r)
}}"""
SQUEEZE = f"""{HEAD} g (float[n, 1, m] x, int64[1] axes) => (float[...] y) {{
    s = Squeeze (x, axes)
    t = Transpose (s)
    y = Exp (t)
}}"""


def model(text: str) -> onnx.ModelProto:
    """Returns a model; `[...]` stands for any shape."""
    found = onnx.parser.parse_model(text.replace("[...]", "[any]"))
    for value in (*found.graph.input, *found.graph.output):
        if any(dim.dim_param == "any" for dim in value.type.tensor_type.shape.dim):
            value.type.tensor_type.ClearField("shape")
    return found


def compiled(text: str, **options: Any) -> clew.CompiledModel:
    return clew.compile(model(text), threads=1, **{"cache": False, **options})


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def test_each_provider_serves_its_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = compiled(ROWS)
    assert rows.served(ones(2, 3)).provider == "the build for all sizes"
    static = compiled(ROWS, inputs={"x": (2, 3)})
    assert static.served(ones(2, 3)) is static.served(ones(2, 3))
    assert compiled(ANY_RANK).served(ones(2, 3)).provider.startswith("the variant with x of rank 2")
    given = ones(2, 1, 3), np.array([1])
    assert compiled(SQUEEZE).served(*given).provider == "an import for this call"
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))
    compiled(ROWS, cache=True)
    stored = compiled(ROWS, cache=True)
    assert stored.served(ones(2, 3)).provider == "the stored build"
    rows.save(tmp_path / "rows.clew")
    loaded = clew.load_compiled(tmp_path / "rows.clew", threads=1)
    assert loaded.served(ones(2, 3)).provider == "the saved build for all sizes"


def test_what_serves_a_call_is_explained() -> None:
    served = compiled(ROWS).served(ones(2, 3))
    assert dict(served.sizes) == {"n": 2, "m": 3}
    assert str(served).splitlines() == [
        "served by the build for all sizes at n=2, m=3",
        "  not by a variant: no size is 0",
    ]
    assert served.build.sizes == {"n": 2, "m": 3}


def test_a_stored_program_is_explained_by_the_same_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))
    compiled(ROWS, cache=True)
    stored = compiled(ROWS, cache=True)
    stored(ones(2, 3))
    assert stored.builds_made == 0
    served = stored.served(ones(2, 3))
    assert served.known_build is None
    assert [use.name for use in served.build.uses] == [k.name for k in compiled(ROWS).kernels]
    assert stored.builds_made == 1
    stored(ones(4, 5))
    assert dict(stored.build.sizes) == {"n": 4, "m": 5}
    assert stored.builds_made == 1


def test_a_build_for_each_size_is_told_once() -> None:
    @clew.schedule_for(op="exp")
    def unrolled(schedule: Any) -> None:
        schedule.unroll("exp.i0")  # needs a number

    made = compiled(f"{HEAD} g (float[n] x) => (float[n] y) {{ y = Exp (x) }}", extend=[unrolled])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ClewWarning)
        for n in (2, 3, 4):
            np.testing.assert_allclose(made(np.zeros(n, np.float32)), np.ones(n))
    (told,) = (str(each.message) for each in found if "I319" in str(each.message))
    assert "exp: the size of loop exp.i0 is n" in told
    assert made.served(ones(2)).provider == "a build for these sizes"
    assert made.builds_made == 3


def _rows(rng: random.Random) -> tuple[tuple[Any, ...], Array]:
    draw = np.random.default_rng(rng.randrange(1 << 32))
    x = draw.standard_normal((rng.randrange(6), rng.randrange(1, 7))).astype(np.float32)
    e = np.exp(np.exp(x) - np.exp(x).max(-1, keepdims=True)) if x.size else x
    return (x,), e / e.sum(-1, keepdims=True) if x.size else x


def _ranks(rng: random.Random) -> tuple[tuple[Any, ...], Array]:
    x = np.full([rng.randrange(1, 4) for _ in range(rng.randrange(4))], rng.random(), np.float32)
    return (x,), np.exp(np.abs(x))


def _values(rng: random.Random) -> tuple[tuple[Any, ...], Array]:
    x = np.full((rng.randrange(1, 5), 6), rng.random(), np.float32)
    shape = rng.choice([(-1, 3), (6, -1), (2, x.size // 2)])
    return (x, np.array(shape)), np.exp(x.reshape(shape))


@pytest.mark.parametrize(
    ("text", "drawn"), [(ROWS, _rows), (ANY_RANK, _ranks), (BY_VALUE, _values)]
)
def test_results_and_traces_of_threads_belong_to_their_calls(
    text: str, drawn: Callable[[random.Random], tuple[tuple[Any, ...], Array]]
) -> None:
    """Eight threads call with sizes, ranks and values of their own; each result, and the build that
    explains it, has the sizes of its call.
    """
    made = compiled(text)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(40):
                given, expected = drawn(rng)
                found = made(*given)
                assert found.shape == expected.shape
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
                served = made.served(*given)
                assert served.key == made._chain.interface.key(made.checked(given))
                latest = made._chain.latest
                assert latest is not None
                for each in (served, latest):
                    assert dict(each.build.sizes).items() <= dict(each.sizes).items()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
