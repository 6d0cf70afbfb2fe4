"""Tiny networks of kinds that `tools/exports` lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional as F

from exports.entries import Entry, ones
from exports.networks.libraries import named, transformers
from zoo.entries import Input, image, normal, padding_mask, tokens

_WORDS: Final = 200
_DIMS: Final = {"batch": 2, "sequence": 16}
_OTHERS: Final = {"batch": 3, "sequence": 24}
_IDS: Final = Input("input_ids", ("batch", "sequence"), tokens(_WORDS))
_MASK: Final = Input("attention_mask", ("batch", "sequence"), padding_mask)
_SMALL: Final[dict[str, Any]] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


def entries() -> Iterator[Entry]:
    """Yields the networks."""
    yield from _of_transformers()
    yield from _of_torch()


def _of_transformers() -> Iterator[Entry]:
    words = {**_SMALL, "vocab_size": _WORDS, "max_position_embeddings": 64}
    pixels = {**_SMALL, "image_size": 64, "patch_size": 16}
    yield _entry(
        "clip",
        named(
            "CLIPModel",
            ("logits_per_image",),
            text_config=lambda: {**words, "bos_token_id": 1, "eos_token_id": 2},
            vision_config=lambda: pixels,
            projection_dim=24,
        ),
        (_IDS, Input("pixel_values", ("images", 3, 64, 64), image), _MASK),
        {**_DIMS, "images": 4},
        {**_OTHERS, "images": 5},
    )
    yield _entry(
        "grounding_dino",
        named("GroundingDinoForObjectDetection", ("logits", "pred_boxes"), **_grounding()),
        (
            Input("pixel_values", (2, 3, 64, 64), image),
            Input("input_ids", (2, 16), tokens(_WORDS)),
            Input("attention_mask", (2, 16), padding_mask),
        ),
    )
    yield _entry(
        "superpoint",
        named(
            "SuperPointForKeypointDetection",
            encoder_hidden_sizes=lambda: [8, 8, 16, 16],
            decoder_hidden_size=16,
            keypoint_decoder_dim=65,
            descriptor_decoder_dim=16,
        ),
        (Input("pixel_values", ("batch", 3, 64, 64), image),),
        {"batch": 2},
        {"batch": 3},
    )
    yield _entry(
        "vjepa2",
        named(
            "VJEPA2Model",
            ("last_hidden_state",),
            **{**_SMALL, "mlp_ratio": 2.0},
            crop_size=64,
            frames_per_clip=4,
            pred_hidden_size=24,
            pred_num_attention_heads=2,
            pred_num_hidden_layers=2,
        ),
        (Input("pixel_values_videos", ("batch", 4, 3, 64, 64), image),),
        {"batch": 2},
        {"batch": 3},
    )
    yield _entry(
        "minimax",
        named(
            "MiniMaxForCausalLM",
            **_SMALL,
            vocab_size=_WORDS,
            num_key_value_heads=2,
            head_dim=8,
            num_local_experts=4,
            num_experts_per_tok=2,
            max_position_embeddings=128,
            pad_token_id=0,
            use_cache=False,
        ),
        (_IDS, Input("attention_mask", ("batch", "sequence"), ones)),
        _DIMS,
        _OTHERS,
    )
    yield _entry(
        "vits",
        named(
            "VitsModel",
            ("waveform",),
            vocab_size=38,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            ffn_dim=32,
            flow_size=24,
            spectrogram_bins=33,
            duration_predictor_filter_channels=16,
            upsample_initial_channel=16,
            upsample_rates=lambda: [4, 4],
            upsample_kernel_sizes=lambda: [8, 8],
            resblock_kernel_sizes=lambda: [3],
            resblock_dilation_sizes=lambda: [[1, 3]],
            depth_separable_num_layers=1,
            prior_encoder_num_flows=2,
            prior_encoder_num_wavenet_layers=2,
            posterior_encoder_num_wavenet_layers=2,
            use_stochastic_duration_prediction=False,
            noise_scale=0.0,
        ),
        (Input("input_ids", (1, 12), tokens(38)),),
    )


def _grounding() -> dict[str, Any]:
    def backbone() -> Any:
        return transformers().SwinConfig(
            image_size=64,
            embed_dim=16,
            depths=[1, 1, 1, 1],
            num_heads=[2, 2, 2, 2],
            window_size=2,
            out_features=["stage2", "stage3", "stage4"],
        )

    words = {**_SMALL, "num_hidden_layers": 1, "vocab_size": _WORDS, "max_position_embeddings": 64}
    return {
        "backbone_config": backbone,
        "text_config": lambda: {**words, "model_type": "bert"},
        "num_queries": 8,
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "max_text_len": 16,
    }


def _of_torch() -> Iterator[Entry]:
    yield _entry(
        "fourier_operator",
        FourierOperator,
        (Input("x", ("batch", "rows", "columns", 3), normal),),
        {"batch": 2, "rows": 16, "columns": 20},
        {"batch": 3, "rows": 18, "columns": 16},
    )
    yield _entry(
        "attention_gates",
        AttentionGates,
        (Input("x", ("batch", 3, 24, 24), image),),
        {"batch": 2},
        {"batch": 3},
    )


def _entry(
    name: str,
    make: Any,
    inputs: tuple[Input, ...],
    dims: dict[str, int] | None = None,
    others: dict[str, int] | None = None,
) -> Entry:
    return Entry(name, "beyond", make, inputs, dims or {}, others or {}, by_name=True)


class FourierOperator(nn.Module):  # type: ignore[misc]  # torch is not followed by the type check
    """Layers that multiply the lowest frequencies of an image by complex matrices, as Fourier
    neural operators do.
    """

    def __init__(self, width: int = 12, kept: int = 5) -> None:
        super().__init__()
        self.kept = kept
        self.lift, self.out = nn.Linear(3, width), nn.Linear(width, 1)
        self.local = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(2))
        shape = (2, width, width, kept, kept, 2)
        self.weights = nn.ParameterList(torch.randn(shape) / width for _ in range(2))

    def forward(self, x: Any) -> Any:
        batch, rows, columns, _ = x.shape
        x, kept = self.lift(x).permute(0, 3, 1, 2), self.kept
        for weight, local in zip(self.weights, self.local, strict=True):
            spectrum = torch.fft.rfft2(x, norm="ortho")
            low, high = torch.view_as_complex(weight)
            mixed = torch.zeros(batch, x.shape[1], rows, columns // 2 + 1, dtype=torch.cfloat)
            for part, w in ((slice(kept), low), (slice(-kept, None), high)):
                found = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, part, :kept], w)
                mixed[:, :, part, :kept] = found
            x = F.gelu(torch.fft.irfft2(mixed, s=(rows, columns), norm="ortho") + local(x))
        return self.out(x.permute(0, 2, 3, 1))


class AttentionGates(nn.Module):  # type: ignore[misc]  # torch is not followed by the type check
    """Convolutions whose results are gated by channel, then by place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 10, 1)
        self.channels = nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 32))
        self.places = nn.Conv2d(32, 1, 7, padding=3)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.stem(x))
        x = x * torch.sigmoid(self.channels(x.mean((2, 3))))[..., None, None]
        gate = torch.sigmoid(self.places(x))
        return self.last(x * gate), gate
