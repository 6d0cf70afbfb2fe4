"""Detectors: of torchvision, of transformers, and a YOLO written out.

Each of torchvision's has a variant that finds nothing: its class scores all lie below the
threshold, so every list of boxes is empty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from exports.entries import Entry, photograph
from exports.networks.libraries import outputs, transformers
from exports.torchvision_ops import torchvision
from zoo.entries import Input, image

_SIZE = 128
_CLASSES = 8
_DEVIATION = 1.5  # of what goes into the sigmoid or softmax of classes


def entries() -> Iterator[Entry]:
    """Yields the detectors."""
    yield from _torchvision()
    yield from _transformers()
    yield from _yolo()


# -------------------------------------------------------------------------------------- torchvision


def _torchvision() -> Iterator[Entry]:
    one_stage: dict[str, Callable[[], Any]] = {
        "fcos": _fcos,
        "retinanet": _retinanet,
        "ssd": _ssd,
        "ssdlite": _ssdlite,
    }
    two_stages: dict[str, Callable[[], Any]] = {
        "faster_rcnn": partial(_two_stages, "FasterRCNN"),
        "faster_rcnn_mobilenet": partial(_two_stages, "FasterRCNN", mobile=True),
        "mask_rcnn": partial(_two_stages, "MaskRCNN"),
        "keypoint_rcnn": partial(_two_stages, "KeypointRCNN"),
    }
    for name, make in {**one_stage, **two_stages}.items():
        for found, suffix in ((True, ""), (False, "_nothing")):
            yield Entry(
                name=f"{name}{suffix}",
                family="detection",
                make=make,
                inputs=(Input("pixels", (3, "height", "width"), photograph),),
                dims={"height": _SIZE, "width": _SIZE},
                others={"height": _SIZE - 20, "width": _SIZE + 40},
                adjust=_find_some if found else _find_nothing,
                exporters=("torchscript",),  # torch.export stops at sizes that the data decide
            )


def _single(model: Any) -> Any:
    """Returns a module from one image f32[3, h, w] to its detections."""
    from torch import nn  # noqa: PLC0415 - optional

    class Single(nn.Module):  # type: ignore[misc]  # torch is not followed by the type check
        def __init__(self) -> None:
            super().__init__()
            self.detector = model

        def forward(self, pixels: Any) -> Any:
            return self.detector([pixels])

    return Single()


def _pyramid(depth: int = 18, **options: Any) -> Any:
    utils = torchvision().models.detection.backbone_utils
    from torch import nn  # noqa: PLC0415 - optional

    return utils.resnet_fpn_backbone(
        backbone_name=f"resnet{depth}",
        weights=None,
        trainable_layers=5,
        norm_layer=nn.BatchNorm2d,
        **options,
    )


def _fcos() -> Any:
    library = torchvision()
    backbone = _pyramid(
        returned_layers=[2, 3, 4],
        extra_blocks=library.ops.feature_pyramid_network.LastLevelP6P7(256, 256),
    )
    model = library.models.detection.FCOS(
        backbone,
        _CLASSES,
        min_size=_SIZE,
        max_size=2 * _SIZE,
        detections_per_img=20,
        topk_candidates=50,
    )
    return _single(model)


def _retinanet() -> Any:
    library = torchvision()
    backbone = _pyramid(
        returned_layers=[2, 3, 4],
        extra_blocks=library.ops.feature_pyramid_network.LastLevelP6P7(256, 256),
    )
    model = library.models.detection.RetinaNet(
        backbone,
        _CLASSES,
        min_size=_SIZE,
        max_size=2 * _SIZE,
        detections_per_img=20,
        topk_candidates=50,
    )
    return _single(model)


def _ssd() -> Any:
    model = torchvision().models.detection.ssd300_vgg16(
        weights=None,
        weights_backbone=None,
        num_classes=_CLASSES,
        detections_per_img=20,
        topk_candidates=50,
    )
    return _single(model)


def _ssdlite() -> Any:
    model = torchvision().models.detection.ssdlite320_mobilenet_v3_large(
        weights=None,
        weights_backbone=None,
        num_classes=_CLASSES,
        detections_per_img=20,
        topk_candidates=50,
    )
    return _single(model)


def _two_stages(kind: str, mobile: bool = False) -> Any:
    library = torchvision().models.detection
    options: dict[str, Any] = {}
    if mobile:
        backbone = library.backbone_utils.mobilenet_backbone(
            "mobilenet_v3_large", weights=None, fpn=True, trainable_layers=6
        )
        options["rpn_anchor_generator"] = library.anchor_utils.AnchorGenerator(
            ((32, 64, 128, 256, 512),) * 3, ((0.5, 1.0, 2.0),) * 3
        )
    else:
        backbone = _pyramid()
    model = getattr(library, kind)(
        backbone,
        num_classes=2 if kind == "KeypointRCNN" else _CLASSES,
        min_size=_SIZE,
        max_size=2 * _SIZE,
        rpn_pre_nms_top_n_test=60,
        rpn_post_nms_top_n_test=40,
        box_detections_per_img=12,
        **options,
    )
    return _single(model)


def _find_some(module: Any, run: Callable[[], Any]) -> None:
    """Brings class scores around the thresholds, and boxes near their anchors."""
    _adjust_heads(module, run, against=1.0)


def _find_nothing(module: Any, run: Callable[[], Any]) -> None:
    """Brings class scores far below the thresholds."""
    _adjust_heads(module, run, against=30.0)


def _adjust_heads(module: Any, run: Callable[[], Any], against: float) -> None:
    """Scales heads so that their outputs have a trained network's deviations, in a run.

    `against` is how many deviations the classes' scores lie on the side of finding nothing.
    """
    sigmoids, softmaxes, boxes = _heads(module)
    for layer, deviation in _measured([*sigmoids, *softmaxes, *boxes], run).items():
        target = 0.3 if layer in boxes else _DEVIATION
        layer.weight.mul_(target / max(deviation, 1e-6))
        layer.bias.mul_(0.1)
    for layer in sigmoids:
        layer.bias.sub_(_DEVIATION * (1 + against))
    for layer in softmaxes:  # the background is the first class, of each anchor
        layer.bias[:: min(layer.bias.shape[0], _CLASSES)].add_(_DEVIATION * against)


def _heads(module: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns the layers that give classes by sigmoids, by softmax, and boxes."""
    sigmoids, softmaxes, boxes = [], [], []
    for name, layer in module.named_modules():
        if getattr(layer, "bias", None) is None or "rpn" in name or "bn" in name:
            continue
        if name.endswith(("bbox_pred", "bbox_reg")) or _is_last(name, "regression_head"):
            boxes.append(layer)
        elif name.endswith("cls_logits"):
            sigmoids.append(layer)
        elif name.endswith("cls_score") or _is_last(name, "classification_head"):
            softmaxes.append(layer)
    return sigmoids, softmaxes, boxes


def _is_last(name: str, head: str) -> bool:
    """Whether a layer is the last for one level of an SSD's head: `module_list.3` or `.3.1`."""
    return re.search(rf"{head}\.module_list\.\d+(\.1)?$", name) is not None


def _measured(layers: list[Any], run: Callable[[], Any]) -> dict[Any, float]:
    """Returns the deviation of each layer's outputs in a run."""
    squares: dict[Any, list[float]] = {layer: [] for layer in layers}

    def note(layer: Any, inputs: Any, output: Any) -> None:
        if output.numel() > 1:
            squares[layer].append(float(output.var()))

    hooks = [layer.register_forward_hook(note) for layer in layers]
    run()
    for hook in hooks:
        hook.remove()
    return {layer: math.sqrt(sum(v) / len(v)) for layer, v in squares.items() if v}


# ------------------------------------------------------------------------------------- transformers


def _transformers() -> Iterator[Entry]:
    def entry(name: str, make: Callable[[], Any], size: int = 96, **options: Any) -> Entry:
        return Entry(
            name=name,
            family="detection",
            make=make,
            inputs=(Input("pixel_values", (1, 3, size, size), image),),
            by_name=True,
            **options,
        )

    yield entry("detr", partial(_detr, "DetrForObjectDetection", "DetrConfig"))
    yield entry(
        "detr_panoptic",
        partial(
            _detr,
            "DetrForSegmentation",
            "DetrConfig",
            encoder_attention_heads=8,
            decoder_attention_heads=8,
        ),
    )
    yield entry(
        "conditional_detr",
        partial(_detr, "ConditionalDetrForObjectDetection", "ConditionalDetrConfig"),
    )
    yield entry(
        "deformable_detr",
        partial(
            _detr,
            "DeformableDetrForObjectDetection",
            "DeformableDetrConfig",
            encoder_n_points=2,
            decoder_n_points=2,
        ),
    )
    yield entry(
        "table_transformer",
        partial(_detr, "TableTransformerForObjectDetection", "TableTransformerConfig"),
    )
    yield entry("rt_detr", partial(_rt_detr, "RTDetr"))
    yield entry("rt_detr_v2", partial(_rt_detr, "RTDetrV2"))
    yield entry("d_fine", partial(_rt_detr, "DFine"))
    yield entry("yolos", _yolos, 64)


def _resnet_config(stages: tuple[str, ...] = ("stage4",)) -> Any:
    return transformers().ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 64, 64],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=list(stages),
    )


def _detr(model: str, config: str, **options: Any) -> Any:
    library = transformers()
    stages = ("stage2", "stage3", "stage4")
    values: dict[str, Any] = {
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,
        "backbone": None,
        "backbone_config": _resnet_config(stages),
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 96,
        "decoder_ffn_dim": 96,
        "num_queries": 20,
        "num_labels": _CLASSES,
    }
    made = getattr(library, config)(**{**values, **options})
    names = ("logits", "pred_boxes", "pred_masks")
    return outputs(getattr(library, model)(made), names)


def _rt_detr(kind: str) -> Any:
    library = transformers()
    backbone = library.RTDetrResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 64, 64],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = getattr(library, f"{kind}Config")(
        backbone_config=backbone,
        backbone=None,
        use_timm_backbone=False,
        encoder_hidden_dim=48,
        encoder_in_channels=[32, 48, 64],
        feat_strides=[8, 16, 32],
        encoder_ffn_dim=64,
        encoder_attention_heads=4,
        d_model=48,
        num_queries=20,
        decoder_in_channels=[48, 48, 48],
        decoder_ffn_dim=64,
        decoder_layers=2,
        decoder_attention_heads=4,
        num_labels=_CLASSES,
        num_denoising=0,
    )
    model = getattr(library, f"{kind}ForObjectDetection")(config)
    return outputs(model, ("logits", "pred_boxes"))


def _yolos() -> Any:
    library = transformers()
    config = library.YolosConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        image_size=[64, 64],
        num_detection_tokens=10,
        num_labels=_CLASSES,
    )
    return outputs(library.YolosForObjectDetection(config), ("logits", "pred_boxes"))


# --------------------------------------------------------------------------------------------- YOLO


def _yolo() -> Iterator[Entry]:
    for name, suppress, nothing in (
        ("yolo", False, False),
        ("yolo_nms", True, False),
        ("yolo_nms_nothing", True, True),
    ):
        yield Entry(
            name=name,
            family="detection",
            make=partial(_made_yolo, suppress),
            inputs=(Input("images", ("batch" if not suppress else 1, 3, 96, 96), photograph),),
            dims={} if suppress else {"batch": 2},
            others={} if suppress else {"batch": 3},
            adjust=_find_nothing if nothing else _find_some,
        )


def _made_yolo(suppress: bool) -> Any:
    """A network like YOLOv8's: cross-stage blocks, pooled pyramid, distribution-focal boxes.

    Source: Jocher et al., Ultralytics YOLOv8, 2023, written anew.
    """
    from exports.networks import yolo  # noqa: PLC0415 - imports torch

    torchvision()
    return yolo.Detector(_CLASSES, suppress)
