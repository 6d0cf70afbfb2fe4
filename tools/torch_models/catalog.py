"""The models of the table: chosen networks of `tools/exports`, and the networks of `networks.py`.
All networks of `tools/exports` may be named.
"""

from __future__ import annotations

from functools import cache

from exports import store
from exports.entries import Entry, unique
from torch_models import networks

CHOSEN = {
    "vision": (
        "tv_resnet18", "tv_mobilenet_v2", "tv_mobilenet_v3_small", "tv_efficientnet_b0",
        "tv_convnext_tiny", "tv_regnet_y_400mf", "tv_densenet121", "tv_vit_b_32", "tv_swin_t",
        "tv_maxvit_t", "timm_swinv2_tiny_window8_256", "deit",
    ),
    "detection": ("deeplabv3_resnet50", "fcn_resnet50", "lraspp_mobilenet_v3_large", "detr",
                  "yolos", "yolo"),
    "text": (
        "bert", "distilbert", "roberta", "electra", "t5", "gpt2_hf", "llama", "qwen3", "gemma3",
        "mixtral", "phi3",
    ),
    "speech": ("wav2vec2", "hubert", "whisper"),
    "generative": ("unet_diffusion", "diffusion_transformer", "vae"),
    "recurrent": ("lstm_bidirectional", "gru_tagger_states", "translator_attention"),
    "state-space": ("mamba", "mamba2", "rwkv"),
}  # fmt: skip


@cache
def beyond() -> dict[str, Entry]:
    """Returns the networks that `tools/exports` lacks, by name."""
    return unique(networks.entries())


def entry_of(name: str) -> Entry:
    """Returns the entry of a name. Raises KeyError for an unknown one."""
    return beyond()[name] if name in beyond() else store.catalog()[name]


def selected(names: list[str]) -> list[Entry]:
    """Returns the entries with these names or in these families; those of the table for none.

    Raises KeyError for an unknown name.
    """
    if not names:
        chosen = [entry_of(name) for group in CHOSEN.values() for name in group]
        return [*chosen, *beyond().values()]
    found: dict[str, Entry] = {}
    for name in names:
        own = [e for e in beyond().values() if name in (e.name, e.family)]
        found.update((e.name, e) for e in own or store.selected([name]))
    return list(found.values())
