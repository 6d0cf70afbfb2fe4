"""Small networks that defects are planted in."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser

import clew
from clew.ir.module import Module

RNG = np.random.default_rng(7)


LOOP = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[2,3] x) => (float[2,3] y) {
    n = Constant <value = int64 {6}> ()
    yes = Constant <value = bool {1}> ()
    y = Loop (n, yes, x) <body = inner
        (int64 i, bool c, float[2,3] h) => (bool c2, float[2,3] next) {
        c2 = Identity (c)
        next_ = Add (h, h)
        next = Relu (next_)
    }>
}"""


def array(*shape: int, scale: float = 1.0) -> np.ndarray[Any, Any]:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


CONV = """
clew 1
def @main(%x: f32[1, 8, 12, 12]  // input x
) -> (f32[1, 10],) with outputs=["y"] {
  %0 = nn.conv2d(%x, @w0, padding=[1, 1, 1, 1])  // conv1:Conv#0
  %1 = add(%0, @b0)  // bias1:Add#0
  %2 = nn.relu(%1)  // relu1:Relu#0
  %3 = nn.max_pool2d(%2, kernel=[2, 2], strides=[2, 2])  // pool1:MaxPool#0
  %4 = nn.conv2d(%3, @w1, padding=[1, 1, 1, 1])  // conv2:Conv#0
  %5 = add(%4, %3)  // sum:Add#0
  %6 = nn.relu(%5)  // relu2:Relu#0
  %7 = nn.global_avg_pool2d(%6)  // mean:GlobalAveragePool#0
  %8 = reshape(%7, shape=[1, 16])  // flat:Flatten#0
  %9 = nn.dense(%8, @w2)  // fc:Gemm#0
  %10 = (%9,)
  return %10
}
"""
CONV_WEIGHTS = {
    "w0": array(16, 8, 3, 3, scale=0.2),
    "b0": array(16, 1, 1),
    "w1": array(16, 16, 3, 3, scale=0.1),
    "w2": array(10, 16),
}

MLP = """
clew 1
def @main(%x: f32[6, 40]  // input x
) -> (f32[6, 24],) with outputs=["y"] {
  %0 = nn.matmul(%x, @w0)  // up:MatMul#0
  %1 = tanh(%0)  // act:Tanh#0
  %2 = nn.layer_norm(%1, @g, @b, axis=-1)  // norm:LayerNormalization#0
  %3 = nn.matmul(%2, @w1)  // down:MatMul#0
  %4 = add(%3, %x)  // skip:Add#0
  %5 = nn.gelu(%4)  // gelu:Gelu#0
  %6 = nn.matmul(%5, @w2)  // out:MatMul#0
  %7 = (%6,)
  return %7
}
"""
MLP_WEIGHTS = {
    "w0": array(40, 72, scale=0.2),
    "g": 1 + array(72, scale=0.1),
    "b": array(72, scale=0.1),
    "w1": array(72, 40, scale=0.1),
    "w2": array(40, 24, scale=0.2),
}


def parsed(text: str, weights: dict[str, Any]) -> Module:
    """Returns the module of a text whose weights `@name` are declared here."""
    lines = text.splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith(")"))
    made = [
        f'  %{n}: f32{list(w.shape)} = const @{n} "{n}"  // parameter {n}'
        for n, w in weights.items()
    ]
    body = [line.replace("@", "%") for line in lines[head + 1 :]]
    return clew.parse("\n".join([*lines[: head + 1], *made, *body]), weights)


def conv() -> tuple[Module, dict[str, Any]]:
    return parsed(CONV, CONV_WEIGHTS), {"x": array(1, 8, 12, 12)}


def mlp() -> tuple[Module, dict[str, Any]]:
    return parsed(MLP, MLP_WEIGHTS), {"x": array(6, 40)}


def loop() -> tuple[Module, dict[str, Any]]:
    """Doubles its input at each iteration."""
    return clew.load(onnx.parser.parse_model(LOOP)), {"x": np.ones((2, 3), np.float32)}
