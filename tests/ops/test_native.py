"""Every operator's samples compiled, behind guard pages, against the numpy references."""

from __future__ import annotations

import pytest

import clew
import clew.ops
from clew.ops.registry import Op, all_ops
from clew.ops.sample_checks import model_of, wrong_output

_OPS = [op for op in all_ops() if op.is_builtin and (op.compute or op.decompose_rule)]


@pytest.mark.parametrize("opt_level", [0, 3])
@pytest.mark.parametrize("op", _OPS, ids=[op.name for op in _OPS])
def test_native_agrees_with_reference(op: Op, opt_level: int) -> None:
    """All samples are one model: each result is an output of its own."""
    model = model_of(op, [s for s in op.samples if not s.error])
    compiled = clew.compile(
        model.module,
        opt_level=opt_level,
        threads=1,
        cache=False,
        diagnostics=clew.Diagnostics(guard=True),
        # It wants models with plain layouts, and some samples have blocked ones.
        passes=clew.Passes(disabled=("AlterLayout",)),
    )
    assert wrong_output(model, compiled.run(model.inputs)) == ""
