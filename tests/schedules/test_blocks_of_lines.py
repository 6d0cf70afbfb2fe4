"""Conversions of images with the channels last to blocks of channels."""

from __future__ import annotations

import numpy as np
import pytest
from golden_cases import targets

import clew
from clew.backends.calls import kernel_calls
from clew.backends.compile_options import CompileOptions
from clew.backends.cpu.lowering import KernelSource
from clew.compiling.compile import passes_for
from clew.ir.expr import Function, Tuple, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op
from clew.passes.manager import PassManager


def blocked(*shape: int, dtype: str = "i8") -> Module:
    """Returns an image's conversion to blocks of 16 channels, of another type."""
    x = Var("x", TensorType(shape, dtype))
    found = get_op("layout_transform")(x, src_layout="NHWC", dst_layout="NCHW16c")
    found = get_op("cast")(found, dtype="i16" if dtype == "i8" else "f64")
    return Module({"main": Function((x,), Tuple([found]), {"outputs": ("y",)})})


@pytest.mark.parametrize(
    ("module", "turned"),
    [
        (blocked(1, 112, 112, 96), True),
        (blocked(2, 80, 90, 48), True),
        (blocked(1, 14, 14, 96), False),  # the image stays in the cache
        (blocked(1, 112, 112, 96, dtype="f32"), False),  # a block is a whole cache line
    ],
)
def test_blocks_of_one_cache_line_are_written_together(module: Module, turned: bool) -> None:
    (target,) = (t for t in targets() if t.name == "cpu-avx2")
    manager = PassManager(passes_for(CompileOptions(target)), target=target, trace=False)
    (call,) = kernel_calls(manager.run(module))
    loops = str(KernelSource(call.op, target).schedule)
    outermost = next(line for line in loops.splitlines() if line.startswith("  parallel"))
    assert ("i2 in" in outermost) == turned, loops


@pytest.mark.parametrize("shape", [(1, 112, 112, 96), (2, 80, 90, 48), (3, 60, 70, 40)])
@pytest.mark.parametrize("threads", [1, 3])
def test_values(shape: tuple[int, ...], threads: int) -> None:
    module = blocked(*shape)
    x = np.random.default_rng(1).integers(-128, 128, shape, np.int8)
    found = clew.compile(module, threads=threads)(x)
    np.testing.assert_array_equal(found, interpret(module, {"x": x})["y"])
