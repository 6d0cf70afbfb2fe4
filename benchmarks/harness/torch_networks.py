"""PyTorch networks with random weights for benchmarks, and functions that draw their inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn

Inputs = Mapping[str, Any]
Drawn = tuple[nn.Module, Callable[[], Inputs]]


class _Taken(nn.Module):  # type: ignore[misc]
    """A network of the transformers library, reduced to one result."""

    def __init__(self, network: nn.Module, result: str) -> None:
        super().__init__()
        self.network, self.result = network, result

    def forward(self, input_ids: torch.Tensor) -> Any:
        return getattr(self.network(input_ids=input_ids), self.result)


def _bert(hidden: int, layers: int, length: int) -> Drawn:
    import transformers  # noqa: PLC0415 - optional

    config = transformers.BertConfig(
        vocab_size=8_000,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        intermediate_size=4 * hidden,
    )
    network = _Taken(transformers.BertModel(config), "last_hidden_state")
    return network, lambda: {"input_ids": torch.randint(0, 8_000, (1, length))}


def _llama(length: int) -> Drawn:
    import transformers  # noqa: PLC0415 - optional

    config = transformers.LlamaConfig(
        vocab_size=4_000,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    )
    network = _Taken(transformers.LlamaForCausalLM(config), "logits")
    return network, lambda: {"input_ids": torch.randint(0, 4_000, (1, length))}


class _Block(nn.Module):  # type: ignore[misc]
    """A residual block of two convolutions."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.down: nn.Module = nn.Identity()
        if stride > 1 or channels != out:
            self.down = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.down(x))


def _resnet18() -> Drawn:
    stages = [_Block(64, 64, 1), _Block(64, 64, 1)]
    for out in (128, 256, 512):
        stages += [_Block(out // 2, out, 2), _Block(out, out, 1)]
    network = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000),
    )  # fmt: skip
    return network, lambda: {"input": torch.randn(1, 3, 224, 224)}


def _vit() -> Drawn:
    import transformers  # noqa: PLC0415 - optional

    config = transformers.ViTConfig(
        hidden_size=192, num_hidden_layers=6, num_attention_heads=3, intermediate_size=768
    )

    class Pooled(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = transformers.ViTModel(config)

        def forward(self, pixels: torch.Tensor) -> Any:
            return self.network(pixel_values=pixels).last_hidden_state

    return Pooled(), lambda: {"pixels": torch.randn(1, 3, 224, 224)}


def _mlp() -> Drawn:
    widths = (256, 512, 512, 256, 10)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.GELU()]
    return nn.Sequential(*layers), lambda: {"input": torch.randn(32, 256)}


class _Inverted(nn.Module):  # type: ignore[misc]
    """An inverted residual block with a depthwise convolution."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        wide = 6 * channels
        self.adds = stride == 1 and channels == out
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.ReLU6(), nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return x + y if self.adds else y


def _mobilenet() -> Drawn:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 16, 3, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU6(),
    ]
    plan = [(16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 80, 2), (80, 80, 1)]
    layers += [_Inverted(*sizes) for sizes in plan]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(80, 1000)]
    return nn.Sequential(*layers), lambda: {"input": torch.randn(1, 3, 224, 224)}


class _ConvNext(nn.Module):  # type: ignore[misc]
    """A ConvNeXt block: depthwise 7 x 7, layer norm over channels, two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dw = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.dw(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(nn.functional.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def _convnext() -> Drawn:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 4, 4), _ConvNext(64), _ConvNext(64)]
    layers += [nn.Conv2d(64, 128, 2, 2), _ConvNext(128), _ConvNext(128), _ConvNext(128)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 1000)]
    return nn.Sequential(*layers), lambda: {"input": torch.randn(1, 3, 160, 160)}


class _Unet(nn.Module):  # type: ignore[misc]
    """Three levels with group norm, SiLU, skip connections and nearest upsampling."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128)
        self.first = nn.Conv2d(4, widths[0], 3, padding=1)
        self.downs = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in itertools.pairwise(widths))
        self.norms = nn.ModuleList(nn.GroupNorm(8, b) for b in widths[1:])
        self.ups = nn.ModuleList(
            nn.Conv2d(b + a, a, 3, padding=1) for a, b in itertools.pairwise(widths)
        )
        self.last = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        kept = []
        for down, norm in zip(self.downs, self.norms, strict=True):
            kept.append(y)
            y = nn.functional.silu(norm(down(y)))
        for up, skip in zip(reversed(self.ups), reversed(kept), strict=True):
            wide = nn.functional.interpolate(y, scale_factor=2.0, mode="nearest")
            y = nn.functional.silu(up(torch.cat([wide, skip], 1)))
        result: torch.Tensor = self.last(y)
        return result


class _Decoder(nn.Module):  # type: ignore[misc]
    """A causal transformer in the style of GPT-2, built from torch's own layers."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(4_000, width)
        self.place = nn.Embedding(256, width)
        block = nn.TransformerEncoderLayer(
            width, width // 32, 4 * width, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        x = self.embed(ids) + self.place(torch.arange(length, device=ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device)
        y = self.body(x, mask=mask, is_causal=True)
        return y @ self.embed.weight.T


def _gpt() -> Drawn:
    return _Decoder(256, 4), lambda: {"ids": torch.randint(0, 4_000, (1, 96))}


class _Tower(nn.Module):  # type: ignore[misc]
    """A recommender: bags of sparse features, dense features, and their products."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(5_000, 32, mode="sum") for _ in range(8))
        self.dense = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(32 + 36, 128), nn.ReLU(), nn.Linear(128, 1))
        self.register_buffer("pairs", torch.triu_indices(9, 9, 1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = self.dense(dense)
        parts = [bag(ids) for bag, ids in zip(self.bags, sparse.unbind(1), strict=True)]
        both = torch.stack([x, *parts], 1)
        products = both @ both.transpose(1, 2)
        chosen = products[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([x, chosen], 1)))


def _recommender() -> Drawn:
    return _Tower(), lambda: {
        "dense": torch.randn(64, 13),
        "sparse": torch.randint(0, 5_000, (64, 8, 4)),
    }


def sentence_encoder() -> tuple[nn.Module, Callable[[int], Inputs]]:
    """Returns a sentence encoder, and a function that draws token ids for a given length."""
    network, _ = _bert(256, 3, 8)
    return network, lambda length: {"input_ids": torch.randint(0, 8_000, (1, length))}


MODELS: Final[Mapping[str, Callable[[], Drawn]]] = {
    "mlp": _mlp,
    "bert_small": lambda: _bert(256, 4, 128),
    "bert_short": lambda: _bert(256, 4, 12),
    "minilm_like": lambda: _bert(384, 6, 64),
    "llama_small": lambda: _llama(64),
    "vit_small": _vit,
    "resnet18": _resnet18,
    "mobilenet_like": _mobilenet,
    "convnext_like": _convnext,
    "unet_small": lambda: (_Unet(), lambda: {"x": torch.randn(1, 4, 64, 64)}),
    "gpt_small": _gpt,
    "recommender": _recommender,
}
