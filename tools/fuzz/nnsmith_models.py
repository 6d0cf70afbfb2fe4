"""Writes models that NNSmith (Liu et al., ASPLOS 2023) generates: a second source of graphs.

`python tools/fuzz/nnsmith_models.py FOLDER --count 200` writes `SEED.onnx`, which
`python -m fuzz files FOLDER` checks. It needs `nnsmith` and `torch`, in an environment of their
own: NNSmith's own export no longer works with the onnx of today, so its networks are exported here.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np


def main() -> None:
    """Writes models; seeds for which NNSmith or the export fails are reported and skipped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--opset", type=int, default=17)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for seed in range(asked.first, asked.first + asked.count):
        try:
            write(asked.folder / f"{seed}.onnx", seed, asked.nodes, asked.opset)
        except Exception as error:  # of many sorts: theirs and PyTorch's
            print(f"{seed}: {type(error).__name__}: {str(error).splitlines()[0][:120]}", flush=True)


def write(path: Path, seed: int, nodes: int, opset: int) -> None:
    """Writes the model of a seed."""
    import torch  # noqa: PLC0415
    from nnsmith.graph_gen import model_gen  # noqa: PLC0415
    from nnsmith.materialize import Model  # noqa: PLC0415
    from nnsmith.narrow_spec import auto_opset  # noqa: PLC0415

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    kind = Model.init("torch", backend_target="cpu")
    made = model_gen(
        opset=auto_opset(kind, None), method="symbolic-cinit", seed=seed, max_nodes=nodes,
        timeout_ms=10_000,
    )  # fmt: skip
    model = kind.from_gir(made.make_concrete())
    model.refine_weights()
    inputs = {k: torch.ones(tuple(v.shape), dtype=v.dtype.torch()) for k, v in
              model.input_like.items()}  # fmt: skip
    torch.onnx.export(
        model.torch_model.eval(), tuple(inputs.values()), str(path), input_names=list(inputs),
        output_names=list(model.output_like), opset_version=opset, dynamo=False,
    )  # fmt: skip


if __name__ == "__main__":
    main()
