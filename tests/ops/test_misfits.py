"""Operands that an operator refuses by their sizes are refused at free sizes as well."""

from __future__ import annotations

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew.ir.dims import SymDim, value_at
from clew.ir.expr import Var
from clew.ir.types import TensorType, from_numpy
from clew.ops.common import assumptions
from clew.ops.registry import Sample, get_op
from clew.support.errors import GraphTypeError

NAMES = (
    "compressed", "depth_to_space", "dequantize", "gather_elements", "nn.attention", "nn.col2im",
    "nn.conv1d", "nn.conv2d_transpose", "nn.dense", "nn.group_norm", "nn.matmul", "quantize",
    "scatter_elements", "scatter_nd", "space_to_depth", "tensor_scatter",
)  # fmt: skip
CODES = ("T100", "T103", "T107", "T108")
PLAIN = ("", "NK", "NCHW", "KN", "OIHW")


def is_plain(sample: Sample) -> bool:
    """Whether a sample has no axes in blocks, whose sizes are no names."""
    layouts = (value for name, value in sample.attrs.items() if "layout" in name)
    return all(value in PLAIN for value in layouts) and "parts" not in sample.attrs


CASES = [
    (name, n)
    for name in NAMES
    for n, sample in enumerate(get_op(name).samples)
    if sample.error in CODES and is_plain(sample)
]


def free(sample: Sample, sizes: dict[str, int]) -> list[Var]:
    """Returns arguments of which every size is a name, and fills in the sizes of the sample."""
    found = []
    for k, arg in enumerate(sample.args):
        known = isinstance(arg, np.ndarray)
        type_ = TensorType(arg.shape, from_numpy(arg.dtype)) if known else arg
        names = [f"s{k}_{axis}" for axis in range(type_.rank)]
        sizes |= dict(zip(names, type_.shape, strict=True))
        shape = tuple(SymDim.symbol(name, least=0) for name in names)
        found.append(Var(f"x{k}", type_.with_(shape=shape)))
    return found


@pytest.mark.parametrize(("name", "n"), CASES, ids=[f"{name}-{n}" for name, n in CASES])
def test_bad_sizes_violate_an_assumption(name: str, n: int) -> None:
    op, sizes = get_op(name), {}
    sample = op.samples[n]
    try:
        call = op(*free(sample, sizes), **sample.attrs)
    except GraphTypeError:
        return  # it is refused at all sizes
    with assumptions() as found:
        op.infer(call.args, call.attrs, again=True)
    assert any(value_at(need, sizes) < 0 for need in found)
