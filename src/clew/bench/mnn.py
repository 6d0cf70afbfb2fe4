"""Runs ONNX files with MNN, which converts them to a format of its own first."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clew.frontends.formats import cutting
from clew.support.folders import temporary_folder


def load(path: Path, threads: int) -> Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]:
    """Returns a function from inputs by name to the outputs in the order of the graph.

    Raises:
        RuntimeError: if MNN cannot convert or load the model.
    """
    import MNN.expr as expressions  # noqa: PLC0415 - optional
    import MNN.nn  # noqa: PLC0415

    graph = cutting(path).listing(path).main
    inputs, results = ([each.name for each in values] for values in (graph.inputs, graph.outputs))
    folder = temporary_folder("clew-mnn-")
    try:
        module = MNN.nn.load_module_from_file(
            str(_converted(path, folder)),
            inputs,
            results,
            precision_mode=expressions.PrecisionMode.High,
            thread_num=threads,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    def variable(value: np.ndarray) -> Any:
        kinds = expressions.dtype
        kind = {"f": kinds.float, "i": kinds.int, "u": kinds.uint8}[value.dtype.kind]
        return expressions.const(value, list(value.shape), expressions.NCHW, kind)

    def run(feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        # Variables and what `read` returns may share the memory of their origin: keep both alive.
        values = [_narrowed(feed[name]) for name in inputs]
        found = module.onForward([variable(value) for value in values])
        planar = [expressions.convert(each, expressions.NCHW) for each in found]
        return [each.read().copy() for each in planar]

    return run


def _narrowed(value: np.ndarray) -> np.ndarray:
    """Returns the input as the converted model takes it: booleans and 64-bit integers as i32."""
    is_wide = value.dtype in (np.bool_, np.int64)
    return np.ascontiguousarray(value, np.int32 if is_wide else None)


def _converted(path: Path, folder: Path) -> Path:
    """Returns the converted file. The converter is a process: it prints, and may exit.

    Its extension module is called: the `MNN.tools` around it installs a package for usage reports
    into the environment, which replaces protobuf by a release that onnx refuses.
    """
    made = folder / "model.mnn"
    command = ["-f", "ONNX", "--modelFile", str(path), "--MNNModel", str(made), "--bizCode", "clew"]
    done = subprocess.run(
        [sys.executable, "-c", "import sys, _tools; _tools.mnnconvert(sys.argv)", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    if "Converted Success" not in done.stdout:
        last = (done.stdout + done.stderr).strip().rpartition("\n")[2]
        raise RuntimeError(f"MNN cannot convert the model: {last}")
    return made
