"""Networks of transformers on images: classifiers, segmentation, depth, video."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from exports.entries import Entry, uniform
from exports.networks.libraries import named, outputs, transformers
from exports.networks.pictures import ANY_SIZE, images
from zoo.entries import Input, image


def entries() -> Iterator[Entry]:
    """Yields the networks."""
    yield from _named_first()
    yield from _transformers()


def _named_first() -> Iterator[Entry]:
    swin = named(
        "SwinForImageClassification",
        image_size=64,
        embed_dim=32,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        num_labels=10,
    )
    yield images("swin", "classifier", 64, swin, ANY_SIZE, by_name=True)
    swin2sr = named(
        "Swin2SRForImageSuperResolution",
        image_size=32,
        embed_dim=24,
        depths=[2, 2],
        num_heads=[2, 2],
        window_size=4,
        upscale=2,
    )
    yield images("swin2sr", "restoration", 32, swin2sr, ANY_SIZE, by_name=True)


_VIT: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "image_size": 64,
}
_MAE: dict[str, Any] = {
    "decoder_hidden_size": 32,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 64,
}
_PYRAMID: dict[str, Any] = {
    "hidden_sizes": [16, 32, 48, 64],
    "depths": [1, 1, 1, 1],
    "num_labels": 10,
}


def _transformers() -> Iterator[Entry]:
    def entry(
        name: str,
        model: str,
        family: str = "classifier",
        size: int = 64,
        free: str = "batch",
        **config: Any,
    ) -> Entry:
        return images(name, family, size, named(model, **config), free, by_name=True)

    yield entry(
        "bit",
        "BitForImageClassification",
        **_PYRAMID,
        embedding_size=16,
        layer_type="bottleneck",
        num_groups=8,
    )
    yield entry(
        "cvt",
        "CvtForImageClassification",
        embed_dim=[16, 32, 48],
        depth=[1, 2, 3],
        num_heads=[1, 2, 3],
    )
    yield entry("convnextv2_hf", "ConvNextV2ForImageClassification", **_PYRAMID)
    yield entry(
        "data2vec_vision",
        "Data2VecVisionForImageClassification",
        **_VIT,
        use_relative_position_bias=True,
    )
    yield entry("deit", "DeiTForImageClassificationWithTeacher", **_VIT)
    yield entry(
        "dinov2",
        "Dinov2ForImageClassification",
        "classifier",
        56,
        ANY_SIZE,
        **{**_VIT, "image_size": 56},
        patch_size=14,
    )
    yield entry("dinov2_registers", "Dinov2WithRegistersModel", **_VIT, patch_size=16)
    yield entry("dinov3_vit", "DINOv3ViTModel", **_VIT, patch_size=16, num_register_tokens=2)
    yield entry(
        "focalnet",
        "FocalNetForImageClassification",
        image_size=64,
        embed_dim=16,
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 64, 128],
    )
    yield entry(
        "hiera",
        "HieraForImageClassification",
        "classifier",
        64,
        "batch",
        image_size=[64, 64],
        embed_dim=16,
        depths=[1, 1, 1, 1],
        num_heads=[1, 2, 4, 8],
        mask_unit_size=[4, 4],
    )
    yield entry("ijepa", "IJepaModel", **_VIT, patch_size=16)
    yield entry(
        "levit",
        "LevitForImageClassification",
        "classifier",
        64,
        "batch",
        image_size=64,
        hidden_sizes=[32, 48, 64],
        num_attention_heads=[2, 3, 4],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
    )
    yield entry(
        "mobilevit_hf",
        "MobileViTForImageClassification",
        image_size=64,
        hidden_sizes=[24, 32, 48],
        neck_hidden_sizes=[8, 16, 24, 32, 40, 48, 96],
    )
    yield entry(
        "mobilenet_v1", "MobileNetV1ForImageClassification", image_size=64, depth_multiplier=0.25
    )
    yield entry(
        "perceiver_image",
        "PerceiverForImageClassificationLearned",
        "classifier",
        32,
        "batch",
        image_size=32,
        num_latents=8,
        d_latents=32,
        num_blocks=1,
        num_self_attends_per_block=2,
        num_self_attention_heads=4,
        num_cross_attention_heads=1,
    )
    yield entry("poolformer", "PoolFormerForImageClassification", **_PYRAMID)
    yield entry(
        "pvt",
        "PvtForImageClassification",
        image_size=64,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 3, 4],
    )
    yield entry(
        "pvt_v2",
        "PvtV2ForImageClassification",
        "classifier",
        64,
        ANY_SIZE,
        image_size=64,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 3, 4],
    )
    yield entry(
        "regnet", "RegNetForImageClassification", **_PYRAMID, embedding_size=16, groups_width=8
    )
    yield entry("siglip_vision", "SiglipVisionModel", **_VIT, patch_size=16)
    yield entry(
        "swiftformer",
        "SwiftFormerForImageClassification",
        "classifier",
        64,
        "batch",
        embed_dims=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
    )
    yield entry(
        "swinv2",
        "Swinv2ForImageClassification",
        "classifier",
        64,
        ANY_SIZE,
        image_size=64,
        embed_dim=32,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    )
    yield entry("vit_hf", "ViTForImageClassification", **_VIT)
    inputs = (Input("pixel_values", (1, 3, 64, 64), image), Input("noise", (1, 16), uniform(0, 1)))
    yield Entry(
        "vit_mae", "generative", named("ViTMAEForPreTraining", **_VIT, **_MAE), inputs, by_name=True
    )
    yield entry("vit_msn", "ViTMSNModel", **_VIT)
    yield entry(
        "vitdet",
        "VitDetModel",
        "classifier",
        64,
        "batch",
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=64,
        window_block_indices=[0],
        use_relative_position_embeddings=True,
        window_size=2,
    )
    yield entry(
        "vitpose_backbone",
        "VitPoseBackbone",
        "classifier",
        64,
        "batch",
        **{**_VIT, "image_size": [64, 64]},
        patch_size=[16, 16],
    )

    # Dense results
    yield entry(
        "beit_segmentation",
        "BeitForSemanticSegmentation",
        "segmentation",
        64,
        "batch",
        **{**_VIT, "num_hidden_layers": 4},
        out_indices=[1, 2, 3, 4],
        num_labels=8,
    )
    yield entry(
        "depth_anything",
        "DepthAnythingForDepthEstimation",
        "depth",
        56,
        "batch",
        backbone_config=_dinov2,
        reassemble_hidden_size=48,
        neck_hidden_sizes=[8, 16, 24, 32],
        fusion_hidden_size=16,
        head_hidden_size=8,
        patch_size=14,
    )
    yield entry(
        "dpt",
        "DPTForDepthEstimation",
        "depth",
        64,
        "batch",
        **{**_VIT, "num_hidden_layers": 4},
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 16, 24, 32],
        fusion_hidden_size=16,
    )
    yield entry(
        "glpn",
        "GLPNForDepthEstimation",
        "depth",
        64,
        ANY_SIZE,
        num_encoder_blocks=4,
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 48, 64],
        num_attention_heads=[1, 2, 3, 4],
        decoder_hidden_size=16,
    )
    yield entry(
        "mobilenet_v2_deeplab",
        "MobileNetV2ForSemanticSegmentation",
        "segmentation",
        64,
        ANY_SIZE,
        depth_multiplier=0.35,
        num_labels=8,
    )
    yield entry(
        "mobilevit_deeplab",
        "MobileViTForSemanticSegmentation",
        "segmentation",
        64,
        "batch",
        image_size=64,
        hidden_sizes=[24, 32, 48],
        neck_hidden_sizes=[8, 16, 24, 32, 40, 48, 96],
        num_labels=8,
    )
    yield entry(
        "segformer",
        "SegformerForSemanticSegmentation",
        "segmentation",
        64,
        ANY_SIZE,
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 48, 64],
        num_attention_heads=[1, 2, 3, 4],
        decoder_hidden_size=32,
        num_labels=8,
    )
    yield entry(
        "upernet",
        "UperNetForSemanticSegmentation",
        "segmentation",
        64,
        ANY_SIZE,
        backbone_config=_convnext,
        hidden_size=32,
        auxiliary_in_channels=48,
        auxiliary_channels=16,
        num_labels=8,
    )
    for name in ("MaskFormer", "Mask2Former"):
        make = partial(_mask_former, name)
        yield images(name.lower(), "segmentation", 64, make, "batch", by_name=True)
    for name in ("timesformer", "videomae", "vivit"):
        pixels = Input("pixel_values", ("batch", 4, 3, 32, 32), image)
        make = partial(_video, name)
        yield Entry(name, "video", make, (pixels,), {"batch": 1}, {"batch": 2}, by_name=True)


def _dinov2() -> Any:
    return transformers().Dinov2Config(
        **{**_VIT, "image_size": 56, "num_hidden_layers": 4},
        patch_size=14,
        out_indices=[1, 2, 3, 4],
        reshape_hidden_states=False,
    )


def _convnext() -> Any:
    return transformers().ConvNextConfig(
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )


def _mask_former(kind: str) -> Any:
    library = transformers()
    swin = library.SwinConfig(
        image_size=64,
        embed_dim=16,
        depths=[1, 1, 1, 1],
        num_heads=[1, 2, 4, 8],
        window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    if kind == "MaskFormer":
        decoder = library.DetrConfig(
            d_model=32,
            encoder_layers=1,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            num_queries=10,
            backbone_config=library.ResNetConfig(),
            use_timm_backbone=False,
            backbone=None,
        )
        config = library.MaskFormerConfig(
            fpn_feature_size=32, mask_feature_size=32, backbone_config=swin, decoder_config=decoder
        )
        model = library.MaskFormerForInstanceSegmentation(config)
    else:
        config = library.Mask2FormerConfig(
            backbone_config=swin,
            feature_size=32,
            mask_feature_size=32,
            hidden_dim=32,
            encoder_feedforward_dim=48,
            encoder_layers=1,
            decoder_layers=2,
            num_attention_heads=2,
            dim_feedforward=48,
            num_queries=10,
        )
        model = library.Mask2FormerForUniversalSegmentation(config)
    return outputs(model, ("class_queries_logits", "masks_queries_logits"))


def _video(kind: str) -> Any:
    library = transformers()
    config = {**_VIT, "image_size": 32, "num_frames": 4}
    if kind == "timesformer":
        return library.TimesformerForVideoClassification(
            library.TimesformerConfig(**config, patch_size=8)
        )
    if kind == "videomae":
        return library.VideoMAEForVideoClassification(
            library.VideoMAEConfig(**config, patch_size=8)
        )
    return library.VivitForVideoClassification(
        library.VivitConfig(**config, tubelet_size=[2, 8, 8])
    )
