"""The programs by which torch shows what its export supports."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch._export.db.case import SupportLevel
from torch._export.db.examples import all_examples
from torch.utils import _pytree as pytree

import clew
from clew.frontends.torch import from_torch
from opinfo.quick import quicken

quicken()
CASES = {
    name: case
    for name, case in all_examples().items()
    if case.support_level == SupportLevel.SUPPORTED
}


def tensors(value: Any) -> list[Any]:
    return [x.numpy() for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


@pytest.mark.parametrize("name", CASES)
def test_supported_programs(name: str) -> None:
    case = CASES[name]
    model = case.model.eval()
    args, named = copy.deepcopy((case.example_args, case.example_kwargs))
    module = from_torch(model, args, named, dynamic_shapes=case.dynamic_shapes)
    compiled = clew.compile(module, threads=1)
    calls = [(case.example_args, case.example_kwargs)]
    calls += [(case.extra_args, {})] if case.extra_args else []
    for given, keywords in calls:
        wanted = copy.deepcopy(model)(*copy.deepcopy(given), **copy.deepcopy(keywords))
        found = list(compiled.run(*tensors((given, keywords))).values())
        leaves = pytree.tree_leaves(wanted)
        assert len(leaves) <= len(found)  # after them, new values of inputs
        for got, want in zip(found, leaves, strict=False):
            torch.testing.assert_close(
                torch.as_tensor(got), torch.as_tensor(want), check_dtype=False
            )
