"""Models to export, and what compiles and runs their libraries."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.libraries import Exported

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")

Array = np.ndarray[Any, Any]


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skips a test where a program is not installed."""
    missing = [p for p in programs if shutil.which(p) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def message(
    nodes: Sequence[Any],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    weights: Mapping[str, Array] | None = None,
    kind: int = TensorProto.FLOAT,
    kinds: Mapping[str, int] | None = None,
) -> Any:
    """Returns an ONNX model of `kind` unless `kinds` says otherwise."""
    kinds = kinds or {}

    def values(shapes: Mapping[str, Any]) -> list[Any]:
        return [helper.make_tensor_value_info(n, kinds.get(n, kind), s) for n, s in shapes.items()]

    constants = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs), constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def network() -> Any:
    """A convolution with its ReLU, a softmax, and a matrix product."""
    random = np.random.default_rng(0)
    return message(
        [
            helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], name="conv1"),
            helper.make_node("Relu", ["a"], ["b"], name="relu1"),
            helper.make_node("Softmax", ["b"], ["c"], axis=1, name="softmax1"),
            helper.make_node("Reshape", ["c", "shape"], ["d"], name="flat"),
            helper.make_node("MatMul", ["d", "m"], ["y"], name="dense"),
        ],
        {"x": [1, 3, 8, 8]},
        {"y": [8, 10]},
        {
            "w": random.standard_normal((8, 3, 3, 3)).astype(np.float32),
            "m": random.standard_normal((64, 10)).astype(np.float32),
            "shape": np.array([8, 64], np.int64),
        },
    )


def random_inputs(model: Any, seed: int = 1) -> dict[str, Array]:
    """Returns random inputs of a compiled model."""
    return dict(zip(model.input_names, model.drawn(seed=seed), strict=True))


def shared_library(made: Exported, *options: str) -> ctypes.CDLL:
    """Links a library to a shared object, in which nothing may be undefined, and loads it."""
    path = made.folder / f"{made.prefix}.so"
    archive = f"lib{made.prefix}.a"
    whole = ("-Wl,--whole-archive", archive, "-Wl,--no-whole-archive")
    command = ["gcc", "-shared", "-o", path.name, *whole, "-Wl,-z,defs", *options]
    subprocess.run(command, cwd=made.folder, check=True)
    return ctypes.CDLL(str(path))


def call(
    library: ctypes.CDLL, made: Exported, model: Any, feed: Mapping[str, Array], **more: Any
) -> tuple[int, dict[str, Array]]:
    """Calls a library; returns the code and the outputs. Its workspace is dirty, and aligned to
    nothing.
    """
    inputs = [np.ascontiguousarray(feed[name]) for name in model.input_names]
    outputs = [np.full(spec.shape, 77, spec.dtype) for spec in model.outputs]
    workspace = np.full(made.workspace_bytes + 1, 0xAB, np.uint8)[1:]
    threads = more.get("threads")
    code = getattr(library, f"{made.prefix}_run_with")(
        pointers(inputs), pointers(outputs), ctypes.c_void_p(workspace.ctypes.data), threads
    )
    return code, dict(zip(model.output_names, outputs, strict=True))


def pointers(arrays: Sequence[Array]) -> Any:
    """Returns a C struct of the addresses of arrays."""
    return (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))


def assert_same_bits(model: Any, feed: Mapping[str, Array], found: Mapping[str, Array]) -> None:
    """Asserts that results are those of the compiled model, bit by bit."""
    wanted = model.run(feed)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert np.asarray(array).tobytes() == found[name].tobytes(), name


def compiled(model: Any, folder: Path, **options: Any) -> tuple[Any, Exported]:
    """Returns a compiled model, and its library in a folder."""
    made = clew.compile(model, **options)
    return made, made.export_c(folder, "net")


def state_of(made: Exported, library: ctypes.CDLL) -> Array:
    """Returns the first state of a library."""
    state = np.full(made.state_bytes // 8, -1, np.int64).view(np.uint8)
    place = ctypes.c_void_p(state.ctypes.data)
    assert getattr(library, f"{made.prefix}_state_reset")(place) == 0
    return state


def step(
    library: ctypes.CDLL,
    made: Exported,
    session: Any,
    feed: Mapping[str, Array],
    state: Array | None,
) -> tuple[int, dict[str, Array]]:
    """Calls a library with a state, or without if there is none; returns the code and the outputs.
    `session` is that of the model, or the model itself.
    """
    specs = {spec.name: spec for spec in getattr(session, "_model", session).outputs}
    inputs = [np.ascontiguousarray(feed[name]) for name in session.input_names]
    outputs = [np.full(specs[n].shape, 77, specs[n].dtype) for n in session.output_names]
    workspace = np.full(made.workspace_bytes, 0xAB, np.uint8)
    memory = [workspace] if state is None else [state, workspace]
    code = getattr(library, f"{made.prefix}_run")(
        pointers(inputs), pointers(outputs), *(ctypes.c_void_p(m.ctypes.data) for m in memory)
    )
    return code, dict(zip(session.output_names, outputs, strict=True))
