"""Calls that ONNX Runtime accepts but computes differently from the graph, or fails to run.

They were found by comparing ONNX Runtime 1.32 with the references on the samples of all operators
(`tests/backends/test_engine_samples.py`). Differences that depend on values, such as NaN in
`argmax`, cannot be rejected before a run; `clew.place` compares outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from clew.ir.expr import Call
from clew.machine.target import host

_IMAGE: Final = 4
"""The rank of images with channels."""


def wrong(call: Call) -> str:
    """Returns why ONNX Runtime must not get a call; empty if it may."""
    rule = _RULES.get(call.op_name)
    return rule(call) if rule is not None else ""


def _half(call: Call) -> str:
    reduces = call.attrs.get("reduction", "none") != "none"
    half = call.args[0].tensor.dtype == "f16"
    return "it cannot reduce f16 scatters" if reduces and half else ""


def _grid(call: Call) -> str:
    rank = call.args[0].tensor.rank
    if rank < _IMAGE:
        return "it samples images and volumes only"
    if call.attrs.get("reflect_first"):
        return "it chooses the nearest element before it reflects positions"
    return "it has no cubic sampling of volumes" if _cubic(call) and rank > _IMAGE else ""


def _cubic(call: Call) -> bool:
    return call.attrs.get("mode") == "cubic"


def _crop(call: Call) -> str:
    cropped = call.attrs.get("coordinates") == "tf_crop_and_resize"
    return "it crops the last axes only" if cropped else ""


def saturates_sums() -> bool:
    """Whether its products of bytes may be wrong on this CPU: its kernels for x86 without VNNI add
    them in pairs of 16 bits, with saturation.
    """
    machine = host()
    return bool(machine.dot_lanes("u8", "i8", pairs_fit=True)) and not machine.dot_lanes("u8", "i8")


def _short_sums(call: Call) -> str:
    bytes_ = tuple(x.tensor.dtype for x in call.args[:2]) in (("u8", "i8"), ("i8", "i8"))
    return "its sums of bytes may saturate on this CPU" if bytes_ and saturates_sums() else ""


_RULES: Final[Mapping[str, Callable[[Call], str]]] = {
    "grid_sample": _grid,
    **dict.fromkeys(("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.dense", "nn.matmul"), _short_sums),
    "resize": _crop,
    "scatter_elements": _half,
    "scatter_elements_few": _half,
    "scatter_elements_many": _half,
    "scatter_nd": _half,
    "scatter_nd_few": _half,
    "scatter_nd_many": _half,
}
