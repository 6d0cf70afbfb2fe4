"""Networks of timm, small ones or with few and narrow blocks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from exports.entries import Entry
from exports.networks.libraries import timm
from exports.networks.pictures import images

_SMALL_SWIN = {"depths": (2, 2), "embed_dim": 32, "num_heads": (2, 4), "window_size": 4}
_TIMM: dict[str, tuple[int, dict[str, Any]]] = {
    "beit_base_patch16_224": (64, {"img_size": 64, "embed_dim": 96, "depth": 2, "num_heads": 4}),
    "beitv2_base_patch16_224": (64, {"img_size": 64, "embed_dim": 96, "depth": 2, "num_heads": 4}),
    "caformer_s18": (64, {}),
    "cait_xxs24_224": (64, {"img_size": 64, "depth": 3}),
    "coat_lite_tiny": (64, {"img_size": 64}),
    "coatnet_pico_rw_224": (224, {}),
    "convit_tiny": (64, {"img_size": 64, "depth": 3, "local_up_to_layer": 2}),
    "convmixer_768_32": (64, {}),
    "convnextv2_atto": (64, {}),
    "convformer_s18": (64, {}),
    "crossvit_tiny_240": (240, {}),
    "cs3darknet_s": (64, {}),
    "cspresnet50": (64, {}),
    "darknet17": (64, {}),
    "davit_tiny": (64, {"depths": (1, 1), "embed_dims": (32, 64), "num_heads": (2, 4)}),
    "deit3_small_patch16_224": (64, {"img_size": 64, "embed_dim": 96, "depth": 2, "num_heads": 4}),
    "dla46_c": (64, {}),
    "dpn48b": (64, {}),
    "eca_nfnet_l0": (64, {}),
    "edgenext_xx_small": (64, {}),
    "efficientformer_l1": (224, {}),
    "efficientformerv2_s0": (224, {}),
    "efficientvit_b0": (64, {}),
    "efficientvit_m0": (224, {}),
    "ese_vovnet19b_slim_dw": (64, {}),
    "eva02_tiny_patch14_224": (56, {"img_size": 56, "depth": 2}),
    "fastvit_t8": (64, {}),
    "focalnet_tiny_srf": (64, {}),
    "gcvit_xxtiny": (224, {}),
    "ghostnet_050": (64, {}),
    "ghostnetv2_100": (64, {}),
    "gmlp_ti16_224": (64, {"img_size": 64}),
    "halonet26t": (256, {}),
    "hgnetv2_b0": (64, {}),
    "hiera_tiny_224": (224, {"embed_dim": 32, "stages": (1, 1, 2, 1)}),
    "hrnet_w18_small": (64, {}),
    "inception_next_atto": (64, {}),
    "lambda_resnet26t": (256, {}),
    "lcnet_035": (64, {}),
    "legacy_seresnet18": (64, {}),
    "levit_128s": (224, {}),
    "mambaout_femto": (64, {}),
    "maxxvit_rmlp_nano_rw_256": (256, {}),
    "mixer_s32_224": (64, {"img_size": 64}),
    "mobilenetv3_small_050": (64, {}),
    "mobilenetv4_conv_small_050": (64, {}),
    "mobilenetv4_hybrid_medium": (64, {}),
    "mobileone_s0": (64, {}),
    "mobilevit_xxs": (64, {}),
    "mobilevitv2_050": (64, {}),
    "mvitv2_tiny": (64, {"img_size": (64, 64)}),
    "nest_tiny": (224, {}),
    "nextvit_small": (64, {}),
    "nf_resnet26": (64, {}),
    "pit_ti_224": (64, {"img_size": 64}),
    "poolformerv2_s12": (64, {}),
    "pvt_v2_b0": (64, {}),
    "rdnet_tiny": (
        64,
        {
            "growth_rates": (16, 16, 24, 24),
            "num_blocks_list": (1, 1, 1, 1),
            "num_init_features": 16,
            "is_downsample_block": (None, True, True, True),
            "transition_compression_ratio": 0.5,
            "ls_init_value": 0.1,
            "block_type": ("Block", "Block", "BlockESE", "BlockESE"),
        },
    ),
    "regnetz_005": (64, {}),
    "repghostnet_050": (64, {}),
    "repvgg_a0": (64, {}),
    "repvit_m0_9": (64, {}),
    "res2net50_14w_8s": (64, {}),
    "resmlp_12_224": (64, {"img_size": 64}),
    "resnest14d": (64, {}),
    "resnetv2_18": (64, {}),
    "rexnet_100": (64, {}),
    "sebotnet33ts_256": (256, {}),
    "selecsls42": (64, {}),
    "sequencer2d_s": (
        64,
        {
            "layers": (1, 1, 1, 1),
            "embed_dims": (32, 64, 64, 64),
            "hidden_sizes": (8, 16, 16, 16),
            "img_size": 64,
        },
    ),
    "shvit_s1": (64, {}),
    "skresnet18": (64, {}),
    "starnet_s050": (64, {}),
    "swiftformer_xs": (224, {}),
    "swin_tiny_patch4_window7_224": (64, {"img_size": 64, **_SMALL_SWIN}),
    "swinv2_tiny_window8_256": (64, {"img_size": 64, **_SMALL_SWIN}),
    "swinv2_cr_tiny_224": (64, {"img_size": 64, **_SMALL_SWIN}),
    "tf_efficientnetv2_b0": (64, {}),
    "tf_mixnet_s": (64, {}),
    "tiny_vit_5m_224": (224, {}),
    "tnt_s_legacy_patch16_224": (64, {"img_size": 64, "depth": 2}),
    "tresnet_m": (64, {}),
    "twins_svt_small": (64, {"img_size": 64}),
    "visformer_tiny": (64, {"img_size": 64}),
    "vit_relpos_small_patch16_224": (
        64,
        {"img_size": 64, "embed_dim": 96, "depth": 2, "num_heads": 4},
    ),
    "vit_tiny_patch16_224": (64, {"img_size": 64, "depth": 2}),
    "vitamin_small_224": (64, {"img_size": 64}),
    "volo_d1_224": (64, {"img_size": 64}),
    "xception41p": (64, {}),
    "xcit_nano_12_p16_224": (64, {"img_size": 64}),
}


def entries() -> Iterator[Entry]:
    """Yields the networks."""
    for name, (size, options) in _TIMM.items():
        yield images(f"timm_{name}", "classifier", size, partial(_timm_model, name, options))


def _timm_model(name: str, options: dict[str, Any]) -> Any:
    return timm().create_model(name, pretrained=False, num_classes=10, **options)
