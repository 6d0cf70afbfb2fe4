"""A process for each model: whatever it does becomes a row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from exports import __main__ as command
from exports import runner, store
from exports.comparing import Result
from exports.runner import Row, Runner
from exports.store import NotExported, Variant

SWIN = Variant(store.catalog()["swin"], "dynamo", False)


def broken(path: Path) -> Path:
    path.write_bytes(b"no model")
    return path


def unknown_operator(path: Path) -> Path:
    """A model that ONNX Runtime's own domain has an operator for, and clew refuses."""
    x = helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, [1, 3, 64, 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 64, 64])
    node = helper.make_node("SampleOp", ["pixel_values"], ["y"], domain="com.microsoft")
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(
        helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets), path
    )
    return path


def fine(path: Path) -> Path:
    x = helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, [1, 3, 64, 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 64, 64])
    one = numpy_helper.from_array(np.float32(1), "one")
    graph = helper.make_graph(
        [helper.make_node("Add", ["pixel_values", "one"], ["y"])], "g", [x], [y], [one]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.mark.parametrize(
    ("made", "status", "code"),
    [(fine, "agrees", ""), (broken, "peer fails", ""), (unknown_operator, "refused", "U001")],
)
def test_a_row_for_each_outcome(
    made: object, status: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(made)
    file = made(tmp_path / "m.onnx")
    monkeypatch.setattr(runner, "path", lambda which, export: file)
    row = Runner().checked(SWIN)
    assert (row.result.status, row.code) == (status, code), row.result.error
    assert row.as_json()["name"] == "swin"


def test_what_takes_too_long_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = fine(tmp_path / "m.onnx")
    monkeypatch.setattr(runner, "path", lambda which, export: file)
    row = Runner().checked(SWIN, seconds=0.01)
    assert row.result.status == "hangs"
    assert row.result.error.startswith("over 0 s")


def test_what_is_not_exported_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(which: Variant, export: object) -> Path:
        raise NotExported("no such operator")

    monkeypatch.setattr(runner, "path", fails)
    row = Runner().checked(SWIN)
    assert (row.result.status, row.result.error) == ("not exported", "no such operator")


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (Result(later=3), 0),
        (Result("not exported", "no"), 0),
        (Result(later=3, built_later=1), 1),
        (Result("crashes", "SIGSEGV in phase compile"), 1),
    ],
)
def test_the_exit_code_tells(result: Result, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "checked", lambda self, which, seconds: Row(which, result))
    told = CliRunner().invoke(command.app, ["check", "swin", "--exporter", "dynamo"])
    assert told.exit_code == code
    assert told.stdout.splitlines()[1].startswith("swin.dynamo ")


def test_wrong_names_are_told() -> None:
    told = CliRunner().invoke(command.app, ["list", "no_such"])
    assert told.exit_code == 2
    assert "no network or family" in told.output


@pytest.mark.parametrize(
    ("ours", "theirs", "status"),
    [
        (1e-6, 1e-5, "nearer"),
        (9e-5, 8e-5, "right"),
        (2e-4, 8e-5, "differs"),
        (float("inf"), float("inf"), "differs"),
    ],
)
def test_torch_in_f64_judges_a_difference(
    ours: float, theirs: float, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {
        "check": Result("differs", "output 0 differs"),
        "truth": Result(),
        "judge": Result(f64_error=ours, peer_f64_error=theirs),
    }

    class Child:
        def __init__(self, task: str) -> None:
            self.task = task

        def ask(self, which: Variant, at: Path, seconds: float) -> tuple[dict[str, object], str]:
            return {"result": answers[self.task].as_json()}, ""

        def end(self) -> None:
            pass

    monkeypatch.setattr(runner, "_Child", Child)
    monkeypatch.setattr(runner, "path", lambda which, export: tmp_path)
    row = Runner().checked(SWIN)
    assert row.result.status == status
    assert (row.result.f64_error, row.result.peer_f64_error) == (ours, theirs)
