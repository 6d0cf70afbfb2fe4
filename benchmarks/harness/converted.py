"""Engines that convert an ONNX file first and are worth a comparison only in benchmarks.

TVM compiles with its default pipeline: nothing is tuned. ncnn runs f32, without the batch of one
that its format leaves out.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from clew.bench.engines import Feed, Outputs, Runner
from clew.machine.target import host


def tvm(path: Path, threads: int, precision: str) -> Runner:
    """Imports the file into Relax. Its thread count is that of the process."""
    import onnx  # noqa: PLC0415 - optional
    import tvm  # noqa: PLC0415
    from tvm import relax  # noqa: PLC0415
    from tvm.relax.frontend.onnx import from_onnx  # noqa: PLC0415

    os.environ["TVM_NUM_THREADS"] = str(threads)
    model = onnx.load(path)
    weights = {each.name for each in model.graph.initializer}
    names = [each.name for each in model.graph.input if each.name not in weights]
    target = tvm.target.Target({"kind": "llvm", "mcpu": host().cpu})
    built = tvm.compile(from_onnx(model, keep_params_in_input=False), target=target)
    main = relax.VirtualMachine(built, tvm.cpu())["main"]

    def run(feed: Feed) -> Outputs:
        found = main(*[tvm.runtime.tensor(feed[name]) for name in names])
        results = [found] if hasattr(found, "numpy") else list(found)
        return [each.numpy() for each in results]

    return Runner(run)


def ncnn(path: Path, threads: int, precision: str) -> Runner:
    """Converts the file with pnnx.

    Raises:
        RuntimeError: if pnnx cannot convert the model or ncnn cannot run it.
    """
    import ncnn  # noqa: PLC0415 - optional
    import pnnx  # noqa: PLC0415

    net = ncnn.Net()
    net.opt.num_threads = threads
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    with tempfile.TemporaryDirectory() as folder:
        given = Path(shutil.copy(path, folder))  # pnnx writes beside the file
        converter = next(Path(pnnx.__file__).parent.rglob("pnnx"))
        subprocess.run([converter, given, "fp16=0"], capture_output=True, check=False, timeout=600)
        written = given.with_suffix(".ncnn.param")
        if not written.exists() or net.load_param(str(written)):
            raise RuntimeError("pnnx cannot convert the model for ncnn")
        net.load_model(str(given.with_suffix(".ncnn.bin")))

    def run(feed: Feed) -> Outputs:
        extractor = net.create_extractor()
        kept = [np.ascontiguousarray(_narrowed(value)[0]) for value in feed.values()]
        for name, value in zip(net.input_names(), kept, strict=True):
            extractor.input(name, ncnn.Mat(value))
        found = [extractor.extract(name) for name in net.output_names()]
        if any(failed for failed, _ in found):
            raise RuntimeError("ncnn cannot run the model")
        return [np.array(result)[None] for _, result in found]

    return Runner(run)


def _narrowed(value: np.ndarray) -> np.ndarray:
    return value.astype(np.int32) if value.dtype == np.int64 else value
