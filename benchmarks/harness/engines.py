"""The engines of `clew bench`, and torch, which runs the module that a model was exported from."""

from pathlib import Path

from clew.bench.engines import Engine, Feed, Outputs, Runner
from clew.bench.engines import engines as from_files

__all__ = ["Engine", "Feed", "Outputs", "Runner", "engines"]


def engines() -> dict[str, Engine]:
    """Returns all engines by name, clew first."""
    return {**from_files(), "torch": Engine("torch", _torch, ("torch", "transformers"), False)}


def _torch(path: Path, threads: int, precision: str) -> Runner:
    """Runs the compiled module; bf16 by autocast, f32 otherwise."""
    import torch  # noqa: PLC0415 - optional

    from zoo import unseen, workloads  # noqa: PLC0415 - only this engine needs the zoo

    torch.set_num_threads(threads)
    name = path.stem
    module = torch.compile(unseen.torch_module(name) or workloads.torch_module(name))
    narrow = precision == "bf16"

    def run(feed: Feed) -> Outputs:
        arguments = [torch.from_numpy(value) for value in feed.values()]
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            result = module(*arguments)
        values = result if isinstance(result, tuple) else (result,)
        return [value.float().numpy() for value in values]

    return Runner(run)
