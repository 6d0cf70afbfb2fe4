"""Quantized networks, and their check on VTA against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

import clew
from clew.backends.vta.backend import Vta
from clew.backends.vta.regions import VtaRegion
from clew.ir.expr import Constant, Expr, Function, Tuple, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op
from clew.runtime.program import RunRegion
from clew.trace.lineage import building
from clew.trace.span import Source, Span


class Network:
    """Builds quantized convolutions in the form that clew.quantize gives them."""

    def __init__(self, seed: int, scale: float = 2.0**-4) -> None:
        self.rng = np.random.default_rng(seed)
        self.scale = scale
        self.layers = 0

    def call(self, op: str, *args: Any, **attrs: Any) -> Expr:
        with building(Span([Source(f"layer{self.layers}", op, "test", "layer")]), ()):
            nodes = [a if isinstance(a, Expr) else Constant(np.asarray(a)) for a in args]
            return get_op(op)(*nodes, **attrs)

    def conv(
        self,
        x: Expr,
        outputs: int,
        kernel: int = 3,
        stride: int = 1,
        *,
        skip: Expr | None = None,
        weight_scale: float = 2.0**-5,
        out_scale: float = 2.0**-3,
        skip_scale: float | None = None,
        quarter: float = 0.25,
        relu: bool = True,
    ) -> Expr:
        self.layers += 1
        inputs = x.tensor.concrete[1]
        weight = self.rng.integers(-127, 128, (outputs, inputs, kernel, kernel)).astype("i1")
        pad = kernel // 2
        padding = [pad] * 4
        sums = self.call("nn.conv2d", x, weight, strides=[stride, stride], padding=padding)
        step = self.scale * weight_scale
        value = self.call("dequantize", sums, np.float32(step))
        bias = self.rng.integers(-4000, 4000, (outputs, 1, 1)) + quarter
        value = self.call("add", value, (bias * step).astype("f4"))
        if skip is not None:
            scale = np.float32(self.scale if skip_scale is None else skip_scale)
            value = self.call("add", value, self.call("dequantize", skip, scale))
        zero = np.int8(0)
        found = self.call("requantize", value, np.float32(1 / out_scale), zero, dtype="i8")
        return self.call("clip", found, min=0.0, max=127.0) if relu else found

    def add(
        self, a: Expr, b: Expr, scales: tuple[float, float], out_scale: float, *, relu: bool = True
    ) -> Expr:
        self.layers += 1
        values = [
            self.call("dequantize", v, np.float32(s)) for v, s in zip((a, b), scales, strict=True)
        ]
        total = self.call("add", *values)
        zero = np.int8(0)
        found = self.call("requantize", total, np.float32(1 / out_scale), zero, dtype="i8")
        return self.call("clip", found, min=0.0, max=127.0) if relu else found

    def pool(self, x: Expr, kernel: int, stride: int, padding: int) -> Expr:
        self.layers += 1
        sizes = {"kernel": [kernel] * 2, "strides": [stride] * 2, "padding": [padding] * 4}
        return self.call("nn.max_pool2d", x, **sizes)


def module_of(x: Var, *results: Expr) -> Module:
    names = tuple(f"y{n}" for n in range(len(results)))
    with building(Span(), ()):
        return Module({"main": Function([x], Tuple(list(results)), {"outputs": names})})


def operand(*shape: int) -> Var:
    return Var("x", TensorType(shape, "i8"), span=Span([Source("x", "", "test", "input")]))


def regions_of(compiled: Any) -> list[VtaRegion]:
    steps = [i for i in compiled.build.program.instructions if isinstance(i, RunRegion)]
    return [i.function.compiled for i in steps]


def check(module: Module, convolutions: int | None = None, seeds: int = 3, **options: Any) -> Any:
    """Compiles a module with VTA, which takes all convolutions or so many of them, and compares it
    with the interpreter.
    """
    compiled = clew.compile(module, backends=[Vta(**options)], cache=False)
    taken = [op for r in compiled.regions for op in r.ops if op == "nn.conv2d"]
    assert len(taken) == (
        str(module).count("= nn.conv2d(") if convolutions is None else convolutions
    )
    shape = module.main.params[0].tensor.concrete
    for seed in range(seeds):
        x = np.random.default_rng(seed).integers(-128, 128, shape).astype("i1")
        found = compiled.run({"x": x})
        for name, value in interpret(module, {"x": x}).items():
            np.testing.assert_array_equal(found[name], value)
        for region in regions_of(compiled):
            if len(region.inputs) == 1:
                region.check(x)
    assert compiled.trace.check() == []
    return compiled
