"""Imports torchvision where its compiled operators do not fit the installed torch.

The wheel on PyPI is compiled for a torch with CUDA. With a CPU build of torch its library does not
load, and `import torchvision` fails because its operators have no declaration. Export needs only
their declarations and a plain implementation: exporters write one ONNX node for each call.
"""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType
from typing import Any

_LIBRARIES: list[Any] = []  # a torch.library.Library unregisters its operators when collected
_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
    "deform_conv2d": "(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, "
    "SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask) -> Tensor",
}


@cache
def torchvision() -> ModuleType:
    """Returns torchvision, its operators in Python where the compiled ones are missing."""
    import torch  # noqa: PLC0415 - optional

    try:
        return _imported()
    except RuntimeError:
        _forget_half_imported()
    library = torch.library.Library("torchvision", "FRAGMENT")
    _LIBRARIES.append(library)
    for name, schema in _SCHEMAS.items():
        library.define(name + schema)
    library.impl("nms", _nms, "CPU")
    library.impl("roi_align", _roi_align, "CPU")
    library.impl("deform_conv2d", _deform_conv2d, "CPU")
    found = _imported()
    from torchvision import _meta_registrations, extension  # noqa: PLC0415 - optional
    from torchvision.ops import roi_align  # noqa: PLC0415

    torch.library.register_fake("torchvision::roi_align")(_meta_registrations.meta_roi_align)
    torch.library.register_fake("torchvision::deform_conv2d")(
        _meta_registrations.meta_deform_conv2d
    )
    extension._has_ops = roi_align.__globals__["_has_ops"] = _has_ops
    return found


def _imported() -> ModuleType:
    import torchvision  # noqa: PLC0415 - optional

    found: ModuleType = torchvision
    return found


def _has_ops() -> bool:
    return True  # TorchScript reads this function's source, so it is no lambda


def _forget_half_imported() -> None:
    import sys  # noqa: PLC0415 - only where the import failed

    for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
        del sys.modules[name]


# ------------------------------------------------------------------------- operators in plain torch


def _nms(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """Returns i64[kept]: indices of boxes f32[n, 4] that no better one overlaps, best first."""
    import torch  # noqa: PLC0415 - optional

    from_left, from_top, to_right, to_bottom = boxes.unbind(1)
    areas = (to_right - from_left) * (to_bottom - from_top)
    order = scores.argsort(descending=True, stable=True).tolist()
    kept = []
    dropped = torch.zeros(len(order), dtype=torch.bool)
    for best in order:
        if dropped[best]:
            continue
        kept.append(best)
        width = torch.minimum(to_right, to_right[best]) - torch.maximum(from_left, from_left[best])
        height = torch.minimum(to_bottom, to_bottom[best]) - torch.maximum(from_top, from_top[best])
        shared = width.clamp(min=0) * height.clamp(min=0)
        dropped |= shared / (areas + areas[best] - shared) > iou_threshold
    return torch.tensor(kept, dtype=torch.int64)


def _roi_align(
    x: Any, rois: Any, scale: float, height: int, width: int, ratio: int, aligned: bool
) -> Any:
    """Returns f32[k, c, height, width]: torchvision's own plain version of `roi_align`."""
    import importlib  # noqa: PLC0415 - next to what is optional

    # `torchvision.ops.roi_align` names the function, which hides the module.
    module = importlib.import_module("torchvision.ops.roi_align")
    plain = getattr(module._roi_align, "__wrapped__", module._roi_align)
    return plain(x, rois, scale, height, width, ratio, aligned)


def _deform_conv2d(
    x: Any,
    weight: Any,
    offset: Any,
    mask: Any,
    bias: Any,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> Any:
    """Returns f32[n, out, h, w]: each tap samples `x` bilinearly at its offset.

    Source: Zhu et al., Deformable ConvNets v2, 2018.
    """
    import torch  # noqa: PLC0415 - optional
    from torch.nn import functional  # noqa: PLC0415

    batch, channels, rows, columns = x.shape
    taps_h, taps_w = weight.shape[-2:]
    out_h, out_w = offset.shape[-2:]
    parts = x.reshape(batch * offset_groups, channels // offset_groups, rows, columns)
    shifts = offset.reshape(batch * offset_groups, taps_h * taps_w, 2, out_h, out_w)
    masks = mask.reshape(batch * offset_groups, taps_h * taps_w, 1, out_h, out_w)
    top = torch.arange(out_h).reshape(-1, 1) * stride_h - pad_h
    left = torch.arange(out_w).reshape(1, -1) * stride_w - pad_w
    sampled = []
    for tap in range(taps_h * taps_w):
        y = top + tap // taps_w * dilation_h + shifts[:, tap, 0]
        z = left + tap % taps_w * dilation_w + shifts[:, tap, 1]
        grid = torch.stack([(2 * z + 1) / columns - 1, (2 * y + 1) / rows - 1], dim=-1)
        value = functional.grid_sample(parts, grid, align_corners=False)
        sampled.append(value * masks[:, tap] if use_mask else value)
    gathered = torch.stack(sampled, dim=2).reshape(batch, channels, taps_h * taps_w, out_h * out_w)
    gathered = gathered.reshape(batch, groups, -1, out_h * out_w)
    flat = weight.reshape(groups, weight.shape[0] // groups, math.prod(weight.shape[1:]))
    result = (flat @ gathered).reshape(batch, -1, out_h, out_w)
    return result + bias.reshape(1, -1, 1, 1)
