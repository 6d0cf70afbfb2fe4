"""Networks that make images and sound, and those from image to image."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def _waves(step: Any, width: int) -> Any:
    """Returns f32[batch, width]: sines and cosines of a diffusion step."""
    rate = torch.exp(torch.arange(width // 2) * (-math.log(10_000) / (width // 2)))
    angles = step.float().unsqueeze(1) * rate
    return torch.cat([angles.sin(), angles.cos()], 1)


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(4, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.time = nn.Linear(32, outputs)
        self.second = nn.Sequential(
            nn.GroupNorm(4, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Any, time: Any) -> Any:
        found = self.first(x) + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.second(found)


class _Attention(nn.Module):
    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.query = nn.Linear(width, width, bias=False)
        self.pair = nn.Linear(context, 2 * width, bias=False)
        self.leave = nn.Linear(width, width)

    def forward(self, x: Any, context: Any | None) -> Any:
        batch, width, height, breadth = x.shape
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        keys, values = self.pair(tokens if context is None else context).chunk(2, -1)
        query, keys, values = (
            t.reshape(batch, -1, 2, width // 2).transpose(1, 2)
            for t in (self.query(tokens), keys, values)
        )
        found = functional.scaled_dot_product_attention(query, keys, values)
        found = self.leave(found.transpose(1, 2).reshape(batch, height * breadth, width))
        return x + found.transpose(1, 2).reshape(batch, width, height, breadth)


def diffusion() -> nn.Module:
    """A U-Net that is told a step and a text. Source: Rombach et al., Latent Diffusion, 2021."""

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
            self.enter = nn.Conv2d(4, 16, 3, padding=1)
            self.down1, self.down2 = _Residual(16, 16), _Residual(16, 32)
            self.shrink = nn.Conv2d(16, 16, 3, 2, 1)
            self.own, self.text = _Attention(32, 32), _Attention(32, 32)
            self.middle = _Residual(32, 32)
            self.up1, self.up2 = _Residual(64, 16), _Residual(32, 16)
            self.leave = nn.Sequential(
                nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 4, 3, padding=1)
            )

        def forward(self, x: Any, step: Any, text: Any) -> Any:
            time = self.time(_waves(step, 16))
            high = self.down1(self.enter(x), time)
            low = self.down2(self.shrink(high), time)
            x = self.middle(self.text(self.own(low, None), text), time)
            x = self.up1(torch.cat([x, low], 1), time)
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            return self.leave(self.up2(torch.cat([x, high], 1), time))

    return UNet()


def dit() -> nn.Module:
    """Source: Peebles and Xie, Scalable Diffusion Models with Transformers, 2022."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(32, elementwise_affine=False)
            self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
            self.inner = nn.Sequential(nn.Linear(32, 64), nn.GELU("tanh"), nn.Linear(64, 32))
            self.modulate = nn.Linear(32, 6 * 32)

        def forward(self, x: Any, c: Any) -> Any:
            s1, f1, g1, s2, f2, g2 = self.modulate(functional.silu(c)).unsqueeze(1).chunk(6, -1)
            y = self.norm(x) * (1 + f1) + s1
            x = x + g1 * self.attention(y, y, y, need_weights=False)[0]
            return x + g2 * self.inner(self.norm(x) * (1 + f2) + s2)

    class DiT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Conv2d(4, 32, 2, 2)
            self.places = nn.Parameter(torch.randn(1, 64, 32) * 0.1)
            self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
            self.blocks = nn.ModuleList(Block() for _ in range(2))
            self.leave = nn.Linear(32, 16)

        def forward(self, x: Any, step: Any) -> Any:
            x = self.enter(x).flatten(2).transpose(1, 2) + self.places
            time = self.time(_waves(step, 16))
            for block in self.blocks:
                x = block(x, time)
            x = self.leave(x).reshape(-1, 8, 8, 2, 2, 4)
            return x.permute(0, 5, 1, 3, 2, 4).reshape(-1, 4, 16, 16)

    return DiT()


def vae() -> nn.Module:
    """Encoder, mean, and decoder of transposed convolutions."""

    class VAE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(
                nn.Conv2d(3, 16, 4, 2, 1),
                nn.ReLU(),
                nn.Conv2d(16, 32, 4, 2, 1),
                nn.ReLU(),
                nn.Flatten(),
            )
            self.mean, self.spread = nn.Linear(2_048, 8), nn.Linear(2_048, 8)
            self.enter = nn.Linear(8, 2_048)
            self.decoder = nn.Sequential(
                nn.ConvTranspose2d(32, 16, 4, 2, 1),
                nn.ReLU(),
                nn.ConvTranspose2d(16, 3, 4, 2, 1),
                nn.Sigmoid(),
            )

        def forward(self, x: Any) -> Any:
            found = self.encoder(x)
            mean = self.mean(found)
            return (
                self.decoder(self.enter(mean).reshape(-1, 32, 8, 8)),
                mean,
                self.spread(found).exp(),
            )

    return VAE()


def vq_vae() -> nn.Module:
    """Source: van den Oord et al., Neural Discrete Representation Learning, 2017."""

    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(
                nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 8, 4, 2, 1)
            )
            self.book = nn.Embedding(32, 8)
            self.decoder = nn.Sequential(
                nn.ConvTranspose2d(8, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1)
            )

        def forward(self, x: Any) -> Any:
            found = self.encoder(x).permute(0, 2, 3, 1)
            codes = torch.cdist(found.reshape(-1, 8), self.book.weight).argmin(1)
            picked = self.book(codes).reshape(found.shape).permute(0, 3, 1, 2)
            return self.decoder(picked), codes

    return Quantized()


def dcgan() -> nn.Module:
    """Source: Radford et al., Deep Convolutional Generative Adversarial Networks, 2015."""
    widths = (32, 24, 16)
    layers: list[nn.Module] = [
        nn.Unflatten(1, (16, 1, 1)),
        nn.ConvTranspose2d(16, 32, 4, bias=False),
    ]
    for before, after in itertools.pairwise(widths):
        layers += [
            nn.BatchNorm2d(before),
            nn.ReLU(),
            nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False),
        ]
    return nn.Sequential(
        *layers, nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()
    )


def stylegan() -> nn.Module:
    """Modulated convolutions, weights of each image scaled by its style.

    Source: Karras et al., Analyzing and Improving the Image Quality of StyleGAN, 2019.
    """

    class Modulated(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.randn(outputs, inputs, 3, 3) / math.sqrt(9 * inputs))
            self.style = nn.Linear(16, inputs)

        def forward(self, x: Any, z: Any) -> Any:
            batch, channels = x.shape[:2]
            weights = self.weights * (1 + self.style(z)).reshape(batch, 1, channels, 1, 1)
            weights = weights * weights.square().sum((2, 3, 4), keepdim=True).add(1e-8).rsqrt()
            x = x * (1 + self.style(z)).reshape(batch, channels, 1, 1)
            return (
                functional.leaky_relu(functional.conv2d(x, self.weights, padding=1), 0.2)
                * weights.mean()
            )

    class Generator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Sequential(nn.Linear(16, 16), nn.LeakyReLU(0.2), nn.Linear(16, 16))
            self.start = nn.Parameter(torch.randn(1, 24, 8, 8))
            self.first, self.second = Modulated(24, 24), Modulated(24, 16)
            self.colors = nn.Conv2d(16, 3, 1)

        def forward(self, z: Any) -> Any:
            z = z * z.square().mean(1, keepdim=True).add(1e-8).rsqrt()
            style = self.map(z)
            x = self.first(self.start.expand(z.shape[0], -1, -1, -1), style)
            x = functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
            return self.colors(self.second(x, style))

    return Generator()


def cyclegan() -> nn.Module:
    """Source: Zhu et al., Unpaired Image-to-Image Translation, 2017."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(
                nn.ReflectionPad2d(1), nn.Conv2d(16, 16, 3), nn.InstanceNorm2d(16), nn.ReLU(),
                nn.ReflectionPad2d(1), nn.Conv2d(16, 16, 3), nn.InstanceNorm2d(16, affine=True),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            return x + self.inner(x)

    return nn.Sequential(
        nn.ReflectionPad2d(3), nn.Conv2d(3, 8, 7), nn.InstanceNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1), nn.InstanceNorm2d(16), nn.ReLU(), Block(), Block(),
        nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1), nn.InstanceNorm2d(8), nn.ReLU(),
        nn.ReflectionPad2d(3), nn.Conv2d(8, 3, 7), nn.Tanh(),
    )  # fmt: skip


def pixel_cnn() -> nn.Module:
    """Convolutions whose taps after the middle are masked away.

    Source: van den Oord et al., Pixel Recurrent Neural Networks, 2016.
    """

    class Masked(nn.Conv2d):
        def __init__(self, *sizes: int, own: bool) -> None:
            super().__init__(*sizes, padding=sizes[2] // 2)
            mask = torch.ones_like(self.weight)
            middle = sizes[2] // 2
            mask[:, :, middle, middle + own :] = 0
            mask[:, :, middle + 1 :] = 0
            self.register_buffer("mask", mask)

        def forward(self, x: Any) -> Any:
            return functional.conv2d(x, self.weight * self.mask, self.bias, padding=self.padding)

    return nn.Sequential(
        Masked(1, 16, 7, own=False),
        nn.ReLU(),
        Masked(16, 16, 3, own=True),
        nn.ReLU(),
        nn.Conv2d(16, 32, 1),
    )


def wavenet() -> nn.Module:
    """Source: van den Oord et al., WaveNet, 2016."""

    class WaveNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Conv1d(1, 8, 1)
            self.gates = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**n) for n in range(4))
            self.skips = nn.ModuleList(nn.Conv1d(8, 16, 1) for _ in range(4))
            self.nexts = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(4))
            self.leave = nn.Sequential(
                nn.ReLU(), nn.Conv1d(16, 16, 1), nn.ReLU(), nn.Conv1d(16, 32, 1)
            )

        def forward(self, x: Any) -> Any:
            x, total = self.enter(x), 0
            for n, (gate, skip, after) in enumerate(
                zip(self.gates, self.skips, self.nexts, strict=True)
            ):
                value, weight = gate(functional.pad(x, (2**n, 0))).chunk(2, 1)
                found = value.tanh() * weight.sigmoid()
                total, x = total + skip(found), x + after(found)
            return self.leave(total)

    return WaveNet()


def flow() -> nn.Module:
    """Source: Dinh et al., Density Estimation Using Real NVP, 2016."""

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(
                nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(4)
            )
            self.register_buffer("order", torch.tensor([4, 5, 6, 7, 0, 1, 2, 3]))

        def forward(self, z: Any) -> Any:
            logs = torch.zeros(z.shape[0])
            for part in self.parts:
                kept, moved = z[:, :4], z[:, 4:]
                scale, shift = part(kept).chunk(2, 1)
                scale = scale.tanh()
                z = torch.cat([kept, moved * scale.exp() + shift], 1)[:, self.order]
                logs = logs + scale.sum(1)
            return z, logs

    return Flow()


def nerf() -> nn.Module:
    """Source: Mildenhall et al., NeRF, 2020: points along rays, composed by their density."""

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(39, 32), nn.ReLU(), nn.Linear(32, 4))
            self.register_buffer("rates", 2.0 ** torch.arange(6))
            self.register_buffer("depths", torch.linspace(0.5, 2.5, 16))

        def forward(self, rays: Any) -> Any:
            points = functional.normalize(rays, dim=1).unsqueeze(1) * self.depths[None, :, None]
            angles = points.unsqueeze(-1) * self.rates
            found = torch.cat([points, angles.sin().flatten(2), angles.cos().flatten(2)], -1)
            found = self.inner(found)
            depth = functional.softplus(found[..., 3]) * 0.13
            weights = (1 - torch.exp(-depth)) * torch.exp(depth - depth.cumsum(1))
            return (weights.unsqueeze(-1) * found[..., :3].sigmoid()).sum(1), weights

    return Field()


def unet() -> nn.Module:
    """Source: Ronneberger et al., U-Net, 2015; padded to the skip's size where it is odd."""

    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
        )  # fmt: skip

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList([block(3, 8), block(8, 16), block(16, 32)])
            self.grow = nn.ModuleList(
                [nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)]
            )
            self.up = nn.ModuleList([block(32, 16), block(16, 8)])
            self.head = nn.Conv2d(8, 4, 1)

        def forward(self, x: Any) -> Any:
            kept = []
            for n, part in enumerate(self.down):
                x = part(x if n == 0 else functional.max_pool2d(x, 2))
                kept.append(x)
            for grow, part, skip in zip(self.grow, self.up, kept[1::-1], strict=True):
                x = grow(x)
                rows, columns = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
                x = functional.pad(
                    x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
                )
                x = part(torch.cat([skip, x], 1))
            return self.head(x)

    return UNet()


def espcn() -> nn.Module:
    """Source: Shi et al., Real-Time Super-Resolution by Sub-Pixel Convolution, 2016."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 12, 3, padding=1), nn.Tanh(),
        nn.Conv2d(12, 9, 3, padding=1), nn.PixelShuffle(3),
    )  # fmt: skip


def edsr() -> nn.Module:
    """Source: Lim et al., Enhanced Deep Residual Networks, 2017."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(
                nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)
            )

        def forward(self, x: Any) -> Any:
            return x + 0.1 * self.inner(x)

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *(Block() for _ in range(3)),
        nn.Conv2d(16, 64, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(16, 3, 3, padding=1),
    )  # fmt: skip
