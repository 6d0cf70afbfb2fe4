"""Cuts a quantized ONNX network at its codes, so that a difference of one layer's rounding does not
reach the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

import clew

Array = np.ndarray[Any, Any]
_READ = "_read"


def cut_at_codes(path: str | Path, inputs: Mapping[str, Array]) -> tuple[Any, dict[str, Array]]:
    """Returns a model whose outputs are all codes that the network quantizes values to, each
    computed from given codes, and its inputs: those of the network, and the codes that it computes
    from them on this machine.
    """
    model = onnx.load(path)
    names = [node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]
    del model.graph.output[:], model.graph.value_info[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    codes = clew.compile(model, threads=1).run(inputs)
    read = {name: np.asarray(codes[name]) for name in names}
    for node in model.graph.node:
        node.input[:] = [name + _READ if name in read else name for name in node.input]
    used = {name for node in model.graph.node for name in node.input}
    given = {name + _READ: array for name, array in read.items() if name + _READ in used}
    for name, array in given.items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
    return model, {**inputs, **given}


def difference_of_codes(found: Array, wanted: Array) -> float:
    """Returns the share of codes that differ by one; infinity if any differs by more."""
    apart = np.abs(found.astype(np.int64) - wanted.astype(np.int64))
    return float("inf") if apart.max(initial=0) > 1 else float(np.mean(apart > 0))
