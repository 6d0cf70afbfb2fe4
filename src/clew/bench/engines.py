"""The compared engines: each loads a model file and returns a runner.

Inputs are passed on each run, so values can change from run to run; this exposes engines that
compile again for new values. Each engine is imported when it is prepared, so none affects a process
that runs another, and none needs to be installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.api.compile import compile
from clew.api.compiled_model import CompiledModel
from clew.bench import mnn
from clew.frontends.formats import by_name

Feed = Mapping[str, np.ndarray]
Outputs = list[np.ndarray]  # in the order of the graph's outputs


@dataclass(frozen=True)
class Runner:
    """`run` returns the outputs for inputs. `builds` counts the builds of the model so far, for
    engines that may build again during a run.
    """

    run: Callable[[Feed], Outputs]
    builds: Callable[[], int] = lambda: 0


PRECISIONS: Final = ("f32", "bf16", "auto")
"""f32: products of 32-bit floats. bf16: products of bfloat16. auto: the engine's choice."""


@dataclass(frozen=True)
class Engine:
    """`prepare(path, threads, precision)` returns a runner of the model at `path`.

    `needs` are the modules it imports, and `install` is the command that installs them. `reads` are
    the names of formats that it reads; clew reads all. An engine that is not `from_file` runs the
    module that the file was exported from, and so supports only models that have one.
    """

    name: str
    prepare: Callable[[Path, int, str], Runner]
    needs: tuple[str, ...]
    from_file: bool = True
    install: str = "pip install 'clew[bench]'"
    reads: tuple[str, ...] = ("onnx",)

    @property
    def installed(self) -> bool:
        """Whether all modules it needs can be imported."""
        return all(importlib.util.find_spec(module) for module in self.needs)


def engines() -> dict[str, Engine]:
    """Returns the engines by name, clew first."""
    known = (
        Engine("clew", _clew, ("clew",)),
        Engine("onnxruntime", _onnxruntime, ("onnxruntime",)),
        Engine("openvino", _openvino, ("openvino",), reads=("onnx", "tflite")),
        Engine("mnn", _mnn, ("MNN",)),
        Engine("torch", _torch, ("torch",), reads=("pt2",)),
        Engine("zentorch", _zentorch, ("zentorch",), reads=("pt2",)),
        Engine(
            "litert",
            _litert,
            ("ai_edge_litert",),
            install="pip install ai-edge-litert",
            reads=("tflite",),
        ),
    )
    return {engine.name: engine for engine in known}


def _clew(path: Path, threads: int, precision: str) -> Runner:
    return runner_of(compile(path, threads=threads, precision=precision))


def runner_of(compiled: CompiledModel) -> Runner:
    """Returns a runner of a compiled model."""
    return Runner(lambda feed: list(compiled.run(feed).values()), lambda: compiled.builds_made)


def _onnxruntime(path: Path, threads: int, precision: str) -> Runner:
    """Its CPU provider runs f32 kernels for f32 models, at every precision: the reference."""
    import onnxruntime  # noqa: PLC0415 - optional

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    onnxruntime.set_default_logger_severity(3)  # errors only
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)

    def run(feed: Feed) -> Outputs:
        outputs: Outputs = session.run(None, feed)
        return outputs

    return Runner(run)


def _openvino(path: Path, threads: int, precision: str) -> Runner:
    """Requests f32 if given; otherwise the engine chooses, which is bf16 if the machine supports
    it.
    """
    import openvino  # noqa: PLC0415 - optional

    properties: dict[str, Any] = {"NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads}
    if precision == "f32":
        properties["INFERENCE_PRECISION_HINT"] = "f32"
    model = openvino.Core().compile_model(str(path), "CPU", properties)
    request = model.create_infer_request()

    def run(feed: Feed) -> Outputs:
        results = request.infer(feed, share_inputs=True, share_outputs=True)
        return [results[port] for port in model.outputs]

    return Runner(run)


def _litert(path: Path, threads: int, precision: str) -> Runner:
    """Runs XNNPACK's kernels where it has some, at every precision: the reference of TFLite."""
    reader = by_name("tflite")
    peer = reader.peer(path, threads)
    assert peer is not None
    return Runner(lambda feed: list(peer.outputs(feed).values()))


def _mnn(path: Path, threads: int, precision: str) -> Runner:
    """Runs f32 kernels at every precision, which is all that the package on PyPI has for x86."""
    return Runner(mnn.load(path, threads))


def _torch(path: Path, threads: int, precision: str) -> Runner:
    """Runs the program as torch's own compiler builds it; bf16 by autocast, f32 otherwise."""
    return _program(path, threads, precision, "inductor")


def _zentorch(path: Path, threads: int, precision: str) -> Runner:
    """Runs AMD's kernels, which also run on other x86 CPUs with AVX-512."""
    import zentorch  # noqa: F401, PLC0415 - registers the backend

    return _program(path, threads, precision, "zentorch")


def _program(path: Path, threads: int, precision: str, backend: str) -> Runner:
    reader: Any = by_name("pt2")
    return Runner(reader.compiled(path, threads, backend, precision == "bf16"))
