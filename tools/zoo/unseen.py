"""The long tail: networks that neither the default benchmarks nor any tuning include.

`tail`: networks on which an earlier version was slower than a peer. `unseen`: 15 architectures for
figures only, a fixed list; no schedule or pass is tuned on them. All have one input (batch 1) at
the sizes they are used with, and weights at the scale of trained networks (`exports.weights`).

Building them needs torch, transformers, timm and torchvision (the extra `exports`).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from zoo import exported
from zoo.entries import Array, Entry, Input, image, normal, padding_mask, tokens
from zoo.exported import Recipe

_VOCABULARY = 4_000  # words are only looked up: a small vocabulary keeps the files small
_LENGTH = 128
_TOOLS = Path(__file__).resolve().parents[1]
_SOURCES = (
    Path(__file__),
    Path(__file__).with_name("exported.py"),
    _TOOLS / "exports" / "exporting.py",
    _TOOLS / "exports" / "weights.py",
    _TOOLS / "exports" / "networks" / "libraries.py",
)


def entries() -> Iterator[Entry]:
    """Yields an entry for each network of `tail` and `unseen`."""
    for recipe in (*_tail(), *_unseen()):
        yield Entry(
            name=recipe.name,
            groups=frozenset({"exported", *recipe.groups}),
            build=partial(_export, recipe),
            inputs=recipe.inputs,
            sources=_SOURCES,
            libraries=("timm", "torchvision"),
        )


def torch_module(name: str) -> Any:
    """Returns the torch module behind a network of `tail` or `unseen`, or None."""
    found = {recipe.name: recipe for recipe in (*_tail(), *_unseen())}
    return _module(found[name]) if name in found else None


# --------------------------------------------------------------------------------- the two groups


def _tail() -> Iterator[Recipe]:
    steps = Input("x", (1, 100, 256), normal)
    yield Recipe("gru_bidirectional", _gru, (steps,), ("states",), ("tail", "recurrent"))
    segformer = _transformer("SegformerForSemanticSegmentation", num_labels=150)
    yield _picture("segformer_b0", 256, segformer, "tail", "vision", output="logits")
    spectrum = Input("input_features", (1, 80, 3_000), normal)
    yield Recipe("whisper_tiny_encoder", _whisper, (spectrum,), ("states",), ("tail", "audio"))
    wave = Input("input_values", (1, 16_000), _wave)
    wav2vec2 = _transformer("Wav2Vec2Model", ("last_hidden_state",), apply_spec_augment=False)
    yield Recipe("wav2vec2_base", wav2vec2, (wave,), ("states",), ("tail", "audio"))
    yield _picture("unet", 256, _unet, "tail", "vision", output="scores")
    text = {"vocab_size": _VOCABULARY, "eos_token_id": _VOCABULARY - 1}
    clip = _transformer("CLIPTextModel", ("last_hidden_state", "pooler_output"), **text)
    yield _text("clip_text", clip, "tail", outputs=("states", "pooled"), length=77)
    t5 = _transformer(
        "T5EncoderModel",
        ("last_hidden_state",),
        vocab_size=_VOCABULARY,
        d_ff=2_048,
        feed_forward_proj="relu",
    )
    yield _text("t5_small_encoder", t5, "tail")
    yield _picture("detr_resnet50", 256, _detr, "tail", "vision", outputs=("logits", "boxes"))
    yield _picture("swin_tiny", 224, _timm("swin_tiny_patch4_window7_224"), "tail", "vision")
    yield _picture("regnetx_008", 224, _timm("regnetx_008"), "tail", "vision")


def _unseen() -> Iterator[Recipe]:
    """Never changed: figures of different versions of clew must be comparable."""
    for name, size in {
        "dla34": 224,
        "res2net50_26w_4s": 224,
        "hrnet_w18_small": 224,
        "ghostnetv2_100": 224,
        "mobilevit_s": 256,
        "edgenext_small": 256,
        "poolformer_s12": 224,
        "mixer_s16_224": 224,
        "xcit_tiny_12_p16_224": 224,
    }.items():
        yield _picture(name, size, _timm(name), "unseen", "vision")
    deeplab = partial(_of_torchvision, "segmentation", "deeplabv3_mobilenet_v3_large", ("out",))
    yield _picture("deeplabv3_mobilenet", 320, deeplab, "unseen", "vision", output="scores")
    video = Input("video", (1, 3, 8, 80, 80), image)
    r3d = partial(_of_torchvision, "video", "r3d_18")
    yield Recipe("r3d_18", r3d, (video,), ("logits",), ("unseen", "video"))
    deberta = _transformer(
        "DebertaV2Model",
        ("last_hidden_state",),
        vocab_size=_VOCABULARY,
        hidden_size=768,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=3_072,
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        type_vocab_size=0,
    )
    yield _text("deberta_v3_small", deberta, "unseen")
    mobilebert = _transformer("MobileBertModel", ("last_hidden_state",), vocab_size=_VOCABULARY)
    yield _text("mobilebert", mobilebert, "unseen")
    frames = Input("spectrogram", (1, 64, 80), normal)
    yield Recipe("hifigan", _hifigan, (frames,), ("audio",), ("unseen", "audio"))
    yield _picture("depth_anything_small", 224, _depth, "unseen", "vision", output="depth")


# ------------------------------------------------------------------------------------- the recipes


def _picture(
    name: str,
    size: int,
    make: Callable[[], Any],
    *groups: str,
    output: str = "logits",
    outputs: tuple[str, ...] = (),
) -> Recipe:
    pixels = Input("pixel_values", (1, 3, size, size), image)
    return Recipe(name, make, (pixels,), outputs or (output,), groups)


def _text(
    name: str,
    make: Callable[[], Any],
    *groups: str,
    outputs: tuple[str, ...] = ("states",),
    length: int = _LENGTH,
) -> Recipe:
    inputs = (
        Input("input_ids", (1, length), tokens(_VOCABULARY)),
        Input("attention_mask", (1, length), padding_mask),
    )
    return Recipe(name, make, inputs, outputs, ("language", "transformer", *groups))


def _wave(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Returns f32 sound: sine waves below 2 kHz, and noise."""
    time = np.arange(shape[-1]) / 16_000
    waves = sum(
        rng.uniform(0.1, 0.5) * np.sin(2 * np.pi * rng.uniform(80, 2_000) * time) for _ in range(4)
    )
    return (waves + 0.05 * rng.standard_normal(shape)).astype(np.float32)


# ----------------------------------------------------------------------------------- the libraries


def _libraries() -> Any:
    from exports.networks import libraries  # noqa: PLC0415 - its modules import from this package

    return libraries


def _timm(name: str) -> Callable[[], Any]:
    return lambda: _libraries().timm().create_model(name, pretrained=False, num_classes=1_000)


def _of_torchvision(kind: str, name: str, outputs: tuple[str, ...] = ()) -> Any:
    libraries = _libraries()
    options = {"weights_backbone": None} if kind == "segmentation" else {}
    models = getattr(libraries.torchvision().models, kind)
    model = getattr(models, name)(weights=None, **options)
    return libraries.outputs(model, outputs) if outputs else model


def _transformer(
    model: str, keep: tuple[str, ...] = ("logits",), **config: Any
) -> Callable[[], Any]:
    return lambda: _libraries().named(model, keep, **config)()


# ----------------------------------------------------------------- networks of more than one call


def _gru() -> Any:
    from torch import nn  # noqa: PLC0415 - optional

    class Tagger(nn.Module):  # type: ignore[misc]  # torch is not followed by the type check
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.GRU(256, 256, batch_first=True, bidirectional=True)

        def forward(self, x: Any) -> Any:
            return self.cells(x)[0]

    return Tagger()


def _whisper() -> Any:
    library = _libraries().transformers()
    config = library.WhisperConfig(
        d_model=384,
        encoder_layers=4,
        decoder_layers=1,
        encoder_attention_heads=6,
        encoder_ffn_dim=1_536,
        vocab_size=100,
        pad_token_id=0,
    )
    whole = library.WhisperModel(config)
    return _libraries().outputs(whole.get_encoder(), ("last_hidden_state",))


def _unet() -> Any:
    """Source: Ronneberger et al., U-Net, 2015; 32 to 512 channels, transposed convolutions."""
    import torch  # noqa: PLC0415 - optional
    from torch import nn  # noqa: PLC0415

    def block(inputs: int, outputs: int) -> Any:
        parts: list[Any] = []
        for size in (inputs, outputs):
            convolution = nn.Conv2d(size, outputs, 3, padding=1, bias=False)
            parts += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*parts)

    widths = (32, 64, 128, 256, 512)
    pairs = list(pairwise(widths))

    class UNet(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.enter = block(3, widths[0])
            self.down = nn.ModuleList([block(small, large) for small, large in pairs])
            self.pool = nn.MaxPool2d(2)
            self.grow = nn.ModuleList(
                [nn.ConvTranspose2d(large, small, 2, 2) for small, large in reversed(pairs)]
            )
            self.up = nn.ModuleList([block(large, small) for small, large in reversed(pairs)])
            self.head = nn.Conv2d(widths[0], 2, 1)

        def forward(self, x: Any) -> Any:
            kept = [self.enter(x)]
            for part in self.down:
                kept.append(part(self.pool(kept[-1])))
            x = kept.pop()
            for grow, part in zip(self.grow, self.up, strict=True):
                x = part(torch.cat([kept.pop(), grow(x)], 1))
            return self.head(x)

    return UNet()


def _detr() -> Any:
    library = _libraries().transformers()
    backbone = library.ResNetConfig(out_features=["stage4"])
    config = library.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        num_labels=91,
    )
    model = library.DetrForObjectDetection(config)
    return _libraries().outputs(model, ("logits", "pred_boxes"))


def _hifigan() -> Any:
    library = _libraries().transformers()
    return library.SpeechT5HifiGan(library.SpeechT5HifiGanConfig(upsample_initial_channel=256))


def _depth() -> Any:
    library = _libraries().transformers()
    backbone = library.Dinov2Config(
        hidden_size=384,
        num_hidden_layers=12,
        num_attention_heads=6,
        image_size=224,
        patch_size=14,
        out_indices=[3, 6, 9, 12],
        reshape_hidden_states=False,
    )
    config = library.DepthAnythingConfig(
        backbone_config=backbone,
        patch_size=14,
        reassemble_hidden_size=384,
        neck_hidden_sizes=[48, 96, 192, 384],
        fusion_hidden_size=64,
        head_hidden_size=32,
    )
    model = library.DepthAnythingForDepthEstimation(config)
    return _libraries().outputs(model, ("predicted_depth",))


# ----------------------------------------------------------------------------------------- exports


def _quiet_sums(module: Any, run: Callable[[], Any]) -> None:
    """Shrinks sums of two branches, which MobileBERT scales and never normalizes: otherwise
    they would double from one to the next.
    """
    for layer in module.modules():
        if type(layer).__name__ == "NoNorm":
            layer.weight.mul_(0.78)


def _quiet_end(module: Any, run: Callable[[], Any]) -> None:
    """Shrinks the values before the last tanh, which would be ±1 otherwise."""
    module.conv_post.weight.mul_(0.05)


_ADJUSTED = {"mobilebert": _quiet_sums, "hifigan": _quiet_end}


def _module(recipe: Recipe) -> Any:
    return _made(recipe)[0]


def _made(recipe: Recipe) -> tuple[Any, Mapping[str, Any]]:
    """Returns the module, weights drawn, in evaluation mode, and example inputs by name."""
    import torch  # noqa: PLC0415 - optional

    from exports.entries import Entry as Exported  # noqa: PLC0415 - it imports from this package
    from exports.exporting import made  # noqa: PLC0415

    with torch.no_grad():
        found: tuple[Any, Mapping[str, Any]] = made(
            Exported(
                recipe.name, "zoo", recipe.make, recipe.inputs, adjust=_ADJUSTED.get(recipe.name)
            )
        )
    return found


def _export(recipe: Recipe, path: Path) -> None:
    import torch  # noqa: PLC0415 - optional

    module, drawn = _made(recipe)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it lists optional libraries it misses
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        program = torch.onnx.export(
            module,
            tuple(drawn.values()),
            input_names=list(drawn),
            output_names=list(recipe.outputs),
            opset_version=exported._OPSET,
            dynamo=True,
            verbose=False,
        )
    program.save(path, external_data=False)
