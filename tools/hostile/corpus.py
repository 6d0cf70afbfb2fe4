"""Good files to begin with: ONNX's own cases, small networks, saved models, texts, parts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper

import clew
from clew.ir.textfile import save_module
from hostile.catalog import model, node, value
from onnx_suite import cases

MOST_BYTES: Final = 24_000


@dataclass(frozen=True)
class Seed:
    """A good file. `main` names the one that is changed most, of `files` by their names."""

    name: str
    kind: str
    main: str
    files: dict[str, bytes]
    inputs: dict[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> bytes:
        """The bytes of the file that is changed."""
        return self.files[self.main]


def seeds(quick: bool = False) -> list[Seed]:
    """Returns the corpus, always in the same order; `quick` leaves out slow cases."""
    return [*_others(), *_suite(quick)]


def _suite(quick: bool) -> Iterator[Seed]:
    kinds = ["simple", "pytorch-operator"] if quick else ["node", "simple", "pytorch"]
    for case in cases.chosen(kinds).values():
        if case.folder is not None:
            data = (case.folder / "model.onnx").read_bytes()
        else:
            data = case.model.SerializeToString()
        if len(data) > MOST_BYTES:
            continue
        inputs = {} if quick else next(iter(case.data_sets()), ({}, []))[0]
        small = all(np.asarray(v, object).size < 10_000 for v in inputs.values())
        yield Seed(case.key, "onnx", "model.onnx", {"model.onnx": data}, inputs if small else {})


def network() -> Any:
    """A little of everything that a compiled model can hold."""
    w = helper.make_tensor("w", TensorProto.FLOAT, [4, 3, 3, 3], np.linspace(-1, 1, 108))
    m = helper.make_tensor("m", TensorProto.FLOAT, [4, 5], np.linspace(-1, 1, 20))
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("GlobalAveragePool", ["b"], ["c"]),
        node("Flatten", ["c"], ["d"]),
        node("MatMul", ["d", "m"], ["e"]),
        node("Softmax", ["e"], ["y"]),
    ]
    return model(nodes, [w, m], inputs=[value("x", [1, 3, 8, 8])])


def _others() -> Iterator[Seed]:
    small = network()
    data = small.SerializeToString()
    yield Seed("network", "onnx", "model.onnx", {"model.onnx": data})
    apart = network()
    weights = b""
    for tensor in apart.graph.initializer:
        raw = np.array(tensor.float_data, np.float32).tobytes()
        tensor.ClearField("float_data")
        tensor.data_location = TensorProto.EXTERNAL
        entries = {"location": "w.bin", "offset": len(weights), "length": len(raw)}
        for key, text in entries.items():
            tensor.external_data.add(key=key, value=str(text))
        weights += raw
    files = {"model.onnx": apart.SerializeToString(), "w.bin": weights}
    for n in range(20):  # as often as they deserve
        yield Seed(f"external_{n}", "onnx", "model.onnx", files)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "m.onnx").write_bytes(data)
        module = clew.load(folder / "m.onnx")
        compiled = clew.compile(module, threads=1, cache=False)
        compiled.save(folder / "m.clew")
        save_module(module, folder / "m.txt")
        made = {p.name: p.read_bytes() for p in folder.iterdir()}
        steps = "\n".join(k.schedule.text for k in compiled.kernels[:1])
    for n in range(10):
        yield Seed(f"saved_{n}", "saved", "m.clew", {"m.clew": made["m.clew"]})
        both = {"m.txt": made["m.txt"], "m.npz": made["m.npz"]}
        yield Seed(f"text_{n}", "text", "m.txt", both)
        yield Seed(f"arrays_{n}", "text", "m.npz", both)
        yield Seed(f"steps_{n}", "steps", "steps.txt", {"steps.txt": steps.encode()})
