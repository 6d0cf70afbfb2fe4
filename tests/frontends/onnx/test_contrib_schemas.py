"""The table of ONNX Runtime's operators: against ONNX Runtime's own, and against the converters."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

import clew
from clew.frontends.onnx import registry
from clew.frontends.onnx.contrib import schemas as contrib_schemas
from clew.frontends.onnx.contrib.schemas import MICROSOFT, NCHWC, UNSUPPORTED
from clew.support.errors import ClewError

from .one_node import draw, fails

WRITTEN_FROM = "1.32.0"
ROWS = contrib_schemas.contrib_schemas()
THEIRS = {(s.domain, s.name): s for s in get_all_operator_schema()}


def _default(attribute: Any) -> Any:
    value = onnx.AttributeProto.FromString(attribute._default_value)
    return helper.get_attribute_value(value) if value.type else None


def test_every_row_has_a_converter_and_is_not_refused():
    for row in ROWS:
        assert registry.find(row.domain, row.name, 1) is not None, row.name
        assert row.domain != MICROSOFT or row.name not in UNSUPPORTED
    converted = {k for k in registry.supported() if k[0] in (MICROSOFT, NCHWC)}
    assert converted <= {(row.domain, row.name) for row in ROWS}


@pytest.mark.skipif(ort.__version__ != WRITTEN_FROM, reason="the table is of another version")
def test_the_table_is_that_of_its_version():
    for row in ROWS:
        theirs = THEIRS[row.domain, row.name]
        many = 1 << 30
        assert [i.name for i in theirs.inputs] == [i.name for i in row.inputs], row.name
        counts = (theirs.min_input, min(theirs.max_input, many), theirs.max_output)
        assert counts == (row.min_input, row.max_input, row.max_output), row.name
        assert set(theirs.attributes) == set(row.attributes), row.name
    named = {name for domain, name in THEIRS if domain == MICROSOFT}
    assert named == {row.name for row in ROWS if row.domain == MICROSOFT} | UNSUPPORTED


def test_what_both_know_is_the_same():
    for row in ROWS:
        theirs = THEIRS.get((row.domain, row.name))
        if theirs is None:  # of a newer version
            continue
        for ours, other in zip(row.inputs, theirs.inputs, strict=False):
            assert ours.name == other.name, row.name
        for name, other in theirs.attributes.items():
            mine = row.attributes.get(name)
            if mine is None:
                assert ort.__version__ != WRITTEN_FROM, (row.name, name)
                continue
            value = mine.default_value
            mine_default = helper.get_attribute_value(value) if value.type else None
            assert mine.type.name == other.type.name, (row.name, name)
            assert mine.required == other.required, (row.name, name)
            assert mine_default == pytest.approx(_default(other)), (row.name, name)


# --- what is said of nodes that do not fit --------------------------------------------------------


def _model(op: str, domain: str = MICROSOFT, **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(op, ["x"], ["y"], "layer", domain=domain, **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_empty_tensor_value_info("y")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets)


@pytest.mark.parametrize(
    ("op", "domain", "code", "texts"),
    [
        ("BeamSearch", MICROSOFT, "U001", ("com.microsoft.BeamSearch: layer", "register_op")),
        ("Geluu", MICROSOFT, "U001", ("com.microsoft.Geluu: layer", "no Geluu")),
        ("Dense", NCHWC, "U001", ("com.microsoft.nchwc.Dense: layer", "no Dense")),
        ("Gelu", "com.macrosoft", "U003", ("com.macrosoft.Gelu: layer",)),
    ],
)
def test_operators_that_nobody_converts(op, domain, code, texts):
    with pytest.raises(ClewError) as caught:
        clew.load(_model(op, domain))
    assert caught.value.code == code
    for text in texts:
        assert text in f"{caught.value}"


def test_nodes_that_do_not_follow_the_table():
    x = draw(2, 3)
    fails("M012", "BiasGelu", {"x": x}, domain=MICROSOFT)
    fails("M012", "FastGelu", {"x": x, "b": draw(3), "more": x}, domain=MICROSOFT)
    fails("M012", "QuickGelu", {"x": x}, domain=MICROSOFT, beta=1.0)
    fails("M012", "QuickGelu", {"x": x}, domain=MICROSOFT, alpha=1)
    fails("M012", "MatMulNBits", {"x": x, "w": x, "s": x}, domain=MICROSOFT, K=3, N=4)
    fails("M012", "Gelu", {"x": x}, domain=MICROSOFT, count=2)
    fails("M012", "Gelu", {"x": np.array(["a", "b"], object)}, domain=MICROSOFT)
