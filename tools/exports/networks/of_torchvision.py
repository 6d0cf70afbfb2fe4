"""Networks of torchvision: classifiers, segmentation, video and optical flow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from exports.entries import Entry
from exports.networks.libraries import mapped, outputs
from exports.networks.pictures import ANY_SIZE, images
from exports.torchvision_ops import torchvision
from zoo.entries import Input, image


def entries() -> Iterator[Entry]:
    """Yields the networks."""
    yield from _segmentation()
    yield from _torchvision()


def _segmentation() -> Iterator[Entry]:
    for name in (
        "deeplabv3_resnet50",
        "deeplabv3_mobilenet_v3_large",
        "fcn_resnet50",
        "lraspp_mobilenet_v3_large",
    ):
        yield images(name, "segmentation", 96, partial(_tv_segmentation, name), ANY_SIZE)


def _tv_segmentation(name: str) -> Any:
    model = getattr(torchvision().models.segmentation, name)(
        weights=None, weights_backbone=None, num_classes=8
    )
    return outputs(model, ("out",))


_CLASSIFIERS = {
    "alexnet": 96,
    "convnext_tiny": 64,
    "densenet121": 64,
    "efficientnet_b0": 64,
    "efficientnet_v2_s": 64,
    "googlenet": 64,
    "inception_v3": 96,
    "maxvit_t": 224,
    "mnasnet0_5": 64,
    "mobilenet_v2": 64,
    "mobilenet_v3_small": 64,
    "regnet_x_400mf": 64,
    "regnet_y_400mf": 64,
    "resnet18": 64,
    "resnext50_32x4d": 64,
    "shufflenet_v2_x0_5": 64,
    "squeezenet1_1": 64,
    "swin_t": 64,
    "swin_v2_t": 64,
    "vgg11_bn": 64,
    "vit_b_32": 64,
    "wide_resnet50_2": 64,
}
_VIDEO = ("mc3_18", "r2plus1d_18", "r3d_18", "swin3d_t")


def _torchvision() -> Iterator[Entry]:
    for name, size in _CLASSIFIERS.items():
        options: dict[str, Any] = {"image_size": size} if name == "vit_b_32" else {}
        if name in ("googlenet", "inception_v3"):
            options = {"aux_logits": False, "init_weights": False}
        yield images(f"tv_{name}", "classifier", size, partial(_tv_model, name, **options))
    for name in _VIDEO:
        pixels = Input("video", ("batch", 3, 8, 64, 64), image)
        make = partial(_tv_model, name, kind="video")
        yield Entry(f"tv_{name}", "video", make, (pixels,), {"batch": 1}, {"batch": 2})
    frames = tuple(Input(name, (1, 3, 128, 128), image) for name in ("before", "after"))
    yield Entry("tv_raft_small", "video", _raft, frames)


def _tv_model(name: str, kind: str = "", **options: Any) -> Any:
    models = torchvision().models
    return getattr(getattr(models, kind) if kind else models, name)(
        weights=None, num_classes=10, **options
    )


def _raft() -> Any:
    model = torchvision().models.optical_flow.raft_small(weights=None)
    return mapped(model, lambda flows: flows[-1], num_flow_updates=3)
