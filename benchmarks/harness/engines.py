"""The engines that are compared: each loads a model and returns a function that runs it once.

Each engine is imported where it is prepared, so that none weighs on a process that runs another.
"""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Feed = Mapping[str, np.ndarray]
Outputs = list[np.ndarray]  # in the order of the graph's outputs
Runner = Callable[[], Outputs]


@dataclass(frozen=True)
class Engine:
    """`prepare(path, feed, threads)` returns a runner of the ONNX file at `path`.

    `needs` are the modules it imports. An engine that is not `from_onnx` runs the torch module
    which the file was exported from, and so serves only models that have one.
    """

    name: str
    prepare: Callable[[Path, Feed, int], Runner]
    needs: tuple[str, ...]
    from_onnx: bool = True

    @property
    def installed(self) -> bool:
        """Whether all modules it needs can be imported."""
        return all(importlib.util.find_spec(module) for module in self.needs)


def engines() -> dict[str, Engine]:
    """Returns all engines by name, clew first."""
    known = (
        Engine("clew", _clew, ("clew",)),
        Engine("onnxruntime", _onnxruntime, ("onnxruntime",)),
        Engine("openvino", _openvino, ("openvino",)),
        Engine("torch", _torch, ("torch", "transformers"), from_onnx=False),
    )
    return {engine.name: engine for engine in known}


def _clew(path: Path, feed: Feed, threads: int) -> Runner:
    import clew  # noqa: PLC0415 - as said above

    compiled = clew.compile(clew.load(path), threads=threads)
    return lambda: list(compiled.run(feed).values())


def _onnxruntime(path: Path, feed: Feed, threads: int) -> Runner:
    import onnxruntime  # noqa: PLC0415 - optional

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    onnxruntime.set_default_logger_severity(3)  # errors only
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)

    def run() -> Outputs:
        outputs: Outputs = session.run(None, feed)
        return outputs

    return run


def _openvino(path: Path, feed: Feed, threads: int) -> Runner:
    import openvino  # noqa: PLC0415 - optional

    properties = {
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
    }
    model = openvino.Core().compile_model(str(path), "CPU", properties)
    request = model.create_infer_request()
    inputs = dict(feed)

    def run() -> Outputs:
        results = request.infer(inputs, share_inputs=True, share_outputs=True)
        return [results[port] for port in model.outputs]

    return run


def _torch(path: Path, feed: Feed, threads: int) -> Runner:
    import torch  # noqa: PLC0415 - optional

    from zoo import exported  # noqa: PLC0415 - only this engine needs the zoo

    torch.set_num_threads(threads)
    module = torch.compile(exported.torch_module(path.stem))
    arguments = [torch.from_numpy(value) for value in feed.values()]

    def run() -> Outputs:
        with torch.inference_mode():
            result = module(*arguments)
        values = result if isinstance(result, tuple) else (result,)
        return [value.numpy() for value in values]

    return run
