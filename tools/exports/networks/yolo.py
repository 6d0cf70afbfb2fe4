"""A small detector in the manner of YOLOv8, with or without suppression of boxes inside.

Source: Jocher et al., Ultralytics YOLOv8, 2023 (the architecture; the code is written anew).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

_BINS = 8
_STRIDES = (8, 16, 32)


def _block(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.SiLU(),
    )


class _CrossStage(nn.Module):
    def __init__(self, inputs: int, outputs: int, residual: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.enter = _block(inputs, outputs, 1)
        self.inner = nn.Sequential(_block(half, half), _block(half, half))
        self.leave = _block(outputs + half, outputs, 1)
        self.residual = residual

    def forward(self, x: Any) -> Any:
        first, second = self.enter(x).chunk(2, 1)
        third = self.inner(second)
        third = third + second if self.residual else third
        return self.leave(torch.cat([first, second, third], 1))


class _Pooled(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = _block(width, width // 2, 1)
        self.leave = _block(2 * width, width, 1)

    def forward(self, x: Any) -> Any:
        found = [self.enter(x)]
        for _ in range(3):
            found.append(functional.max_pool2d(found[-1], 5, 1, 2))
        return self.leave(torch.cat(found, 1))


class Detector(nn.Module):
    """Returns f32[batch, 4 + classes, anchors], or the boxes f32[n, 4], scores f32[n] and classes
    i64[n] that are left of one image.
    """

    def __init__(self, classes: int, suppress: bool) -> None:
        super().__init__()
        self.suppress = suppress
        self.stem = nn.Sequential(
            _block(3, 8, 3, 2), _block(8, 16, 3, 2), _CrossStage(16, 16, True)
        )
        self.to8 = nn.Sequential(_block(16, 24, 3, 2), _CrossStage(24, 24, True))
        self.to16 = nn.Sequential(_block(24, 32, 3, 2), _CrossStage(32, 32, True))
        self.to32 = nn.Sequential(_block(32, 48, 3, 2), _CrossStage(48, 48, True), _Pooled(48))
        self.up16 = _CrossStage(80, 32, False)
        self.up8 = _CrossStage(56, 24, False)
        self.down16 = _block(24, 24, 3, 2)
        self.out16 = _CrossStage(56, 32, False)
        self.down32 = _block(32, 32, 3, 2)
        self.out32 = _CrossStage(80, 48, False)
        widths = (24, 32, 48)
        self.bbox_pred = nn.ModuleList(
            nn.Sequential(_block(w, 16), nn.Conv2d(16, 4 * _BINS, 1)) for w in widths
        )
        self.scores = nn.ModuleList(nn.Sequential(_block(w, 16), nn.Sequential()) for w in widths)
        for part in self.scores:
            part.add_module("cls_logits", nn.Conv2d(16, classes, 1))
        self.register_buffer("bins", torch.arange(_BINS, dtype=torch.float32))

    def forward(self, images: Any) -> Any:
        eighth = self.to8(self.stem(images))
        sixteenth = self.to16(eighth)
        last = self.to32(sixteenth)
        middle = self.up16(torch.cat([_twice(last), sixteenth], 1))
        fine = self.up8(torch.cat([_twice(middle), eighth], 1))
        middle = self.out16(torch.cat([self.down16(fine), middle], 1))
        last = self.out32(torch.cat([self.down32(middle), last], 1))
        boxes, scores = self.decoded((fine, middle, last))
        if not self.suppress:
            return torch.cat([boxes, scores], 1)
        return _suppressed(boxes[0].T, scores[0].T)

    def decoded(self, features: tuple[Any, ...]) -> tuple[Any, Any]:
        boxes, scores = [], []
        for x, stride, box, score in zip(
            features, _STRIDES, self.bbox_pred, self.scores, strict=True
        ):
            batch, _, height, width = x.shape
            y, z = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            centers = torch.stack([z, y]).reshape(1, 2, -1) + 0.5
            sides = box(x).reshape(batch, 4, _BINS, height * width).softmax(2)
            sides = (sides * self.bins.reshape(1, 1, -1, 1)).sum(2)
            boxes.append(
                torch.cat([centers - sides[:, :2], centers + sides[:, 2:]], 1) * float(stride)
            )
            scores.append(score(x).flatten(2).sigmoid())
        return torch.cat(boxes, 2), torch.cat(scores, 2)


def _twice(x: Any) -> Any:
    return functional.interpolate(x, scale_factor=2.0, mode="nearest")


def _suppressed(boxes: Any, scores: Any) -> tuple[Any, Any, Any]:
    best, classes = scores.max(1)
    kept = torch.nonzero(best > 0.05).squeeze(1)
    boxes, best, classes = boxes[kept], best[kept], classes[kept]
    apart = boxes + classes.to(boxes.dtype).unsqueeze(1) * 1_000.0
    left = torch.ops.torchvision.nms(apart, best, 0.5)
    return boxes[left], best[left], classes[left]
