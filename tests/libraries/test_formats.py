"""Libraries of models from TFLite files and PyTorch modules, with the states that they have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import clew
from tflite_files import Graph

from .c_programs import needs, shared_library, state_of, step

pytestmark = needs("gcc", "nm")

SHAPE = (3,)


def counter() -> bytes:
    """A file with two signatures: one adds to a variable, one is without state."""
    graph = Graph()

    def variable(part: Graph) -> int:
        options = ("VarHandleOptions", {"container": "", "shared_name": "v"})
        return part.operator("VAR_HANDLE", [], [("handle", (), "resource")], options)[0]

    once = graph.graph()
    first = once.constant(np.array([0.5, -0.0, 2], np.float32))
    once.operator("ASSIGN_VARIABLE", [variable(once), first], [])
    options = ("CallOnceOptions", {"init_subgraph_index": once.number})
    x = graph.input("x", SHAPE, "f32")
    graph.operator("CALL_ONCE", [], [], options)
    (v,) = graph.operator("READ_VARIABLE", [variable(graph)], [("v", SHAPE, "f32")])
    (w,) = graph.operator("ADD", [v, x], [("w", SHAPE, "f32")])
    (y,) = graph.operator("TANH", [w], [("y", SHAPE, "f32")])
    graph.operator("ASSIGN_VARIABLE", [variable(graph), y], [])
    other = graph.graph()
    a = other.input("a", SHAPE, "f32")
    other.outputs = other.operator("MUL", [a, a], [("b", SHAPE, "f32")])
    signatures = [
        {
            "signature_key": key,
            "inputs": [{"name": name, "tensor_index": given}],
            "outputs": [{"name": "result", "tensor_index": result}],
            "subgraph_index": part.number,
        }
        for key, name, given, result, part in (
            ("count", "x", x, w, graph),
            ("square", "a", a, other.outputs[0], other),
        )
    ]
    return graph.file([w], signature_defs=signatures)


def test_signatures_of_a_tflite_file_are_libraries(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(counter())
    random = np.random.default_rng(0)
    for signature, name in (("count", "x"), ("square", "a")):
        model = clew.compile(path, signature=signature)
        made = model.export_c(tmp_path, signature)
        library = shared_library(made)
        assert (made.state_bytes > 0) == (signature == "count")
        run = model.session() if made.state_bytes else model
        state = state_of(made, library) if made.state_bytes else None
        for _ in range(10):
            feed = {name: random.standard_normal(3).astype(np.float32)}
            code, found = step(library, made, run, feed, state)
            assert code == 0
            wanted = run.run(feed)
            assert list(found) == list(wanted) == ["result"]
            assert found["result"].tobytes() == wanted["result"].tobytes()


class Smooth(torch.nn.Module):
    """A layer, and the mean of its results so far."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dense = torch.nn.Linear(4, 3)
        self.register_buffer("mean", torch.tensor([1.0, -2.0, 3.0]))
        self.register_buffer("steps", torch.tensor(1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.mean += (self.dense(x)[0] - self.mean) / self.steps
        self.steps += 1
        return {"mean": self.mean * 2, "steps": self.steps + 0}


def test_buffers_of_a_pytorch_module_are_states(tmp_path: Path) -> None:
    model = clew.compile(clew.from_torch(Smooth().eval(), (torch.zeros(1, 4),)))
    made = model.export_c(tmp_path, "smooth")
    library, session = shared_library(made), model.session()
    assert len(session.state_names) == 2
    state = state_of(made, library)
    for seed in range(10):
        feed = {"x": np.random.default_rng(seed).standard_normal((1, 4)).astype(np.float32)}
        code, found = step(library, made, session, feed, state)
        assert code == 0
        wanted = session.run(feed)
        assert {n: a.tobytes() for n, a in found.items()} == {
            n: np.asarray(a).tobytes() for n, a in wanted.items()
        }
