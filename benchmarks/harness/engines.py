"""The engines of `clew bench`, two more that read files, and two that compile the module that a
model was exported from.
"""

from pathlib import Path

from clew.bench.engines import Engine, Feed, Outputs, Runner
from clew.bench.engines import engines as from_files
from harness import converted

__all__ = ["Engine", "Feed", "Outputs", "Runner", "engines"]


def engines() -> dict[str, Engine]:
    """Returns all engines by name, clew first."""
    needs = ("torch", "transformers")
    others = (
        Engine("ncnn", converted.ncnn, ("ncnn", "pnnx"), install="pip install ncnn pnnx"),
        Engine("tvm", converted.tvm, ("tvm", "onnx"), install="pip install apache-tvm"),
        Engine("torch", _torch, needs, False),
        Engine("zentorch", _zentorch, (*needs, "zentorch"), False),
    )
    return {**from_files(), **{engine.name: engine for engine in others}}


def _torch(path: Path, threads: int, precision: str) -> Runner:
    return _compiled(path, threads, precision, "inductor")


def _zentorch(path: Path, threads: int, precision: str) -> Runner:
    """Runs AMD's kernels, which also run on other x86 CPUs with AVX-512."""
    import zentorch  # noqa: F401, PLC0415 - registers the backend

    return _compiled(path, threads, precision, "zentorch")


def _compiled(path: Path, threads: int, precision: str, backend: str) -> Runner:
    """Runs the compiled module; bf16 by autocast, f32 otherwise."""
    import torch  # noqa: PLC0415 - optional

    from zoo import unseen, workloads  # noqa: PLC0415 - only this engine needs the zoo

    torch.set_num_threads(threads)
    name = path.stem
    network = unseen.torch_module(name) or workloads.torch_module(name)
    module = torch.compile(network, backend=backend)
    narrow = precision == "bf16"

    def run(feed: Feed) -> Outputs:
        arguments = [torch.from_numpy(value) for value in feed.values()]
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            result = module(*arguments)
        values = result if isinstance(result, tuple) else (result,)
        return [value.float().numpy() for value in values]

    return Runner(run)
