"""The page, the ceiling, places in the author's source, and the table of rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.advice import all_rules
from clew.advice.candidate import Where
from clew.advice.ceiling import Ceiling, LayerCeiling, ceiling_of
from clew.advice.estimate import Estimate
from clew.machine.target import target_of
from clew.trace.places import CodePlace

from ..advised_models import RULES, Net, normal, subject_of, two_linear_layers

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_the_documentation_lists_the_rules() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", (ROOT / "docs/advise.md").read_text(), re.M)
    keys = {rule.name for rule in all_rules()}
    assert [row for row in rows if row[0] in keys] == [(r.name, r.title) for r in all_rules()]


def test_each_rule_has_a_file_of_its_kind() -> None:
    assert len(RULES) >= 12
    assert all(type(rule).__module__.startswith("clew.advice.rules.") for rule in RULES.values())


def test_a_place_in_pytorch_code() -> None:
    place = CodePlace("head", "head", "Linear", "model.py", 12, "return self.head(x)")
    assert str(Where("head", "linear", "torch", place)) == "head (torch linear), model.py:12"
    assert Where("head", "linear", "torch", place).to_json()["line"] == 12
    assert str(Where("conv1", "Conv", "onnx")) == "conv1 (onnx Conv)"


def test_a_layer_of_a_torch_model_is_placed_in_its_code(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import clew  # noqa: PLC0415

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.act = torch.nn.GELU()

        def forward(self, x: Any) -> Any:
            return self.act(x) + 1

    module = clew.from_torch(Model(), (torch.zeros(1, 64),))
    subject = subject_of_module(module)
    (one,) = RULES["activations"].find(subject)
    (where,) = subject.where(one.layers)
    assert where.place is not None
    assert where.place.file == __file__


def subject_of_module(module: Any) -> Any:
    """Returns a module under advice."""
    from clew.advice import Subject  # noqa: PLC0415
    from clew.backends.compile_options import CompileOptions  # noqa: PLC0415

    return Subject(module, CompileOptions(threads=1))


def test_the_picture_of_the_ceiling() -> None:
    kernels = (
        LayerCeiling("a", ("conv1", "relu1", "add1"), 8e6, 2e6, "compute"),
        LayerCeiling("b", (), 2e6, 2e6, "L2"),
    )
    lines = Ceiling(1e7, 4e6, 10_000_000, 1e6, kernels).lines()
    assert lines[0] == "a call takes 10 ms; the roofs of its kernels sum to 4 ms (40 %)"
    assert lines[1].startswith("reading the weights (10.0 MB) once from memory takes 1 ms")
    assert lines[2].split()[0] == "█" * 8 + "░" * 24
    assert lines[2].endswith("conv1, relu1 ...")
    assert lines[3].split()[0] == "█" * 8


def test_the_ceiling_of_a_model_is_below_its_time() -> None:
    subject = subject_of(two_linear_layers())
    found = ceiling_of(subject.profile, 1000)
    assert 0 < found.roof_ns <= sum(k.ns for k in found.kernels)
    assert found.weights_ns is not None


def test_the_estimate_counts_work_of_calls_and_not_of_constants() -> None:
    estimate = Estimate(target_of("cpu"))

    def model(width: int) -> Any:
        net = Net(1, 64, 32)
        return subject_of(net.model(net.dense(net.x, normal(32, width)))).module

    narrow, wide = estimate.of(model(64)), estimate.of(model(512))
    assert 4 * narrow < wide < 16 * narrow
    net = Net(1, 64, 32)
    weight = net.transpose(net.constant(np.zeros((64, 32))), (1, 0))
    turned = net.add("MatMul", [net.x, weight], (1, 64, 64))
    assert estimate.of(subject_of(net.model(turned)).module) == pytest.approx(narrow)
