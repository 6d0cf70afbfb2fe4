"""Recurrent networks, and those that take their place: convolutions in time, state-space layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def recurrent(cell: str, layers: int, both: bool) -> nn.Module:
    """Layers of one kind of cell from f32[batch, time, 12] to f32[batch, time, 5]."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = getattr(nn, cell)(12, 16, layers, batch_first=True, bidirectional=both)
            self.head = nn.Linear(32 if both else 16, 5)

        def forward(self, x: Any) -> Any:
            found, state = self.cells(x)
            return self.head(found), state[0] if isinstance(state, tuple) else state

    return Tagger()


def with_states() -> nn.Module:
    """A GRU whose state comes from outside and is given back."""

    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.GRU(12, 16, batch_first=True)

        def forward(self, x: Any, state: Any) -> Any:
            return self.cells(x, state)

    return Stateful()


def cells() -> nn.Module:
    """An LSTM cell in a loop over six steps, which exporters unroll."""

    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(12, 16)

        def forward(self, x: Any) -> Any:
            state = memory = torch.zeros(x.shape[0], 16)
            found = []
            for step in range(6):
                state, memory = self.cell(x[:, step], (state, memory))
                found.append(state)
            return torch.stack(found, 1)

    return Unrolled()


def conv_lstm() -> nn.Module:
    """Source: Shi et al., Convolutional LSTM Network, 2015."""

    class ConvLSTM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gates = nn.Conv2d(3 + 8, 32, 3, padding=1)
            self.head = nn.Conv2d(8, 1, 1)

        def forward(self, x: Any) -> Any:
            state = memory = x.new_zeros(x.shape[0], 8, 16, 16)
            for step in range(4):
                parts = self.gates(torch.cat([x[:, step], state], 1)).chunk(4, 1)
                enter, forget, leave = (part.sigmoid() for part in parts[:3])
                memory = forget * memory + enter * parts[3].tanh()
                state = leave * memory.tanh()
            return self.head(state)

    return ConvLSTM()


def crnn() -> nn.Module:
    """Source: Shi et al., An End-to-End Trainable Network for Image-based Sequences, 2015."""

    class CRNN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d((2, 1)),
                nn.Conv2d(32, 32, (4, 1)), nn.ReLU(),
            )  # fmt: skip
            self.cells = nn.LSTM(32, 24, bidirectional=True)
            self.head = nn.Linear(48, 20)

        def forward(self, x: Any) -> Any:
            steps = self.features(x).squeeze(2).permute(2, 0, 1)
            return functional.log_softmax(self.head(self.cells(steps)[0]), -1)

    return CRNN()


def deep_speech() -> nn.Module:
    """Source: Amodei et al., Deep Speech 2, 2015."""

    class DeepSpeech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Sequential(
                nn.Conv2d(1, 8, (11, 5), (2, 2), (5, 2)), nn.BatchNorm2d(8), nn.Hardtanh(0, 20)
            )
            self.first = nn.GRU(160, 24, batch_first=True, bidirectional=True)
            self.norm = nn.BatchNorm1d(24)
            self.second = nn.GRU(24, 24, batch_first=True)
            self.head = nn.Linear(24, 29)

        def forward(self, x: Any) -> Any:
            x = self.enter(x)
            batch, channels, bands, time = x.shape
            x = x.reshape(batch, channels * bands, time).transpose(1, 2)
            x = self.first(x)[0].reshape(batch, time, 2, 24).sum(2)
            x = self.norm(x.transpose(1, 2)).transpose(1, 2)
            return self.head(self.second(x)[0]).softmax(-1)

    return DeepSpeech()


def translator() -> nn.Module:
    """Source: Bahdanau et al., Neural Machine Translation by Jointly Learning to Align, 2014."""

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source, self.target = nn.Embedding(50, 16), nn.Embedding(50, 16)
            self.encoder = nn.GRU(16, 16, batch_first=True, bidirectional=True)
            self.cell = nn.GRUCell(16 + 32, 32)
            self.query, self.key = nn.Linear(32, 24), nn.Linear(32, 24)
            self.score, self.head = nn.Linear(24, 1), nn.Linear(32, 50)

        def forward(self, source: Any, target: Any) -> Any:
            memory, last = self.encoder(self.source(source))
            state = last.transpose(0, 1).reshape(source.shape[0], 32)
            keys, found = self.key(memory), []
            for step in range(5):
                weights = self.score(torch.tanh(keys + self.query(state).unsqueeze(1))).softmax(1)
                context = (weights * memory).sum(1)
                word = self.target(target[:, step])
                state = self.cell(torch.cat([word, context], 1), state)
                found.append(self.head(state))
            return torch.stack(found, 1)

    return Translator()


def temporal_convolutions() -> nn.Module:
    """Source: Bai et al., An Empirical Evaluation of Generic Convolutional Networks, 2018."""

    class Block(nn.Module):
        def __init__(self, width: int, dilation: int) -> None:
            super().__init__()
            self.gap = 2 * dilation
            self.conv = nn.utils.parametrizations.weight_norm(
                nn.Conv1d(width, width, 3, padding=self.gap, dilation=dilation)
            )

        def forward(self, x: Any) -> Any:
            return x + functional.relu(self.conv(x)[:, :, : -self.gap])

    return nn.Sequential(nn.Conv1d(8, 16, 1), *(Block(16, 2**n) for n in range(4)))


def s4d() -> nn.Module:
    """A diagonal state-space layer as a long convolution, by its kernel's Toeplitz matrix.

    Source: Gu et al., On the Parameterization and Initialization of Diagonal SSMs, 2022.
    """

    class S4D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decay = nn.Parameter(torch.log(torch.arange(1, 17).float()).repeat(8, 1))
            self.weights = nn.Parameter(torch.randn(8, 16))
            self.step = nn.Parameter(torch.linspace(-4, -1, 8))
            self.mix = nn.Linear(8, 16)

        def forward(self, x: Any) -> Any:
            length = x.shape[1]
            rate = -torch.exp(self.decay) * torch.exp(self.step).unsqueeze(1)
            times = torch.arange(length, dtype=torch.float32)
            kernel = torch.einsum("dn,dnt->dt", self.weights, torch.exp(rate.unsqueeze(2) * times))
            lag = times.unsqueeze(1) - times.unsqueeze(0)
            table = kernel[:, lag.clamp(min=0).long()] * (lag >= 0)
            y = torch.einsum("dts,bsd->btd", table, x)
            return functional.glu(self.mix(functional.gelu(y)))

    return S4D()


def selective_scan() -> nn.Module:
    """A selective state-space layer, its recurrence over twelve steps written out.

    Source: Gu and Dao, Mamba, 2023.
    """

    class Scan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rates = nn.Parameter(torch.log(torch.arange(1, 9).float()).repeat(16, 1))
            self.project, self.step = nn.Linear(16, 16), nn.Linear(16, 16)
            self.skip = nn.Parameter(torch.ones(16))
            self.conv = nn.Conv1d(16, 16, 4, groups=16, padding=3)

        def forward(self, x: Any) -> Any:
            x = functional.silu(self.conv(x.transpose(1, 2))[:, :, :12].transpose(1, 2))
            enter, leave = self.project(x).chunk(2, -1)
            step = functional.softplus(self.step(x))
            decay = torch.exp(step.unsqueeze(-1) * -torch.exp(self.rates))
            drive = (step * x).unsqueeze(-1) * enter.unsqueeze(2)
            state, found = torch.zeros_like(decay[:, 0]), []
            for n in range(12):
                state = decay[:, n] * state + drive[:, n]
                found.append((state * leave[:, n].unsqueeze(1)).sum(-1))
            return torch.stack(found, 1) + x * self.skip

    return Scan()


# ------------------------------------------------------------------------------------------- series


def n_beats() -> nn.Module:
    """Source: Oreshkin et al., N-BEATS, 2019."""

    class Beats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(
                    nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 104)
                )
                for _ in range(3)
            )

        def forward(self, x: Any) -> Any:
            rest, forecast = x.flatten(1), 0
            for block in self.blocks:
                found = block(rest)
                rest, forecast = rest - found[:, :96], forecast + found[:, 96:]
            return forecast

    return Beats()


def patch_mixer() -> nn.Module:
    """Source: Nie et al., A Time Series is Worth 64 Words, 2022."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(8, 24)
            layer = nn.TransformerEncoderLayer(24, 4, 48, batch_first=True, activation="gelu")
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(7 * 24, 6)

        def forward(self, x: Any) -> Any:
            mean, spread = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-3
            x = ((x - mean) / spread).transpose(1, 2).unfold(2, 8, 4)
            batch, channels, count, _ = x.shape
            x = self.layers(self.enter(x.reshape(batch * channels, count, 8)))
            found = self.head(x.reshape(batch, channels, count * 24)).transpose(1, 2)
            return found * spread + mean

    return Patches()


def informer_like() -> nn.Module:
    """A transformer with decoder, sinusoidal positions and a causal mask."""

    class Forecaster(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(3, 16)
            self.core = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
            self.head = nn.Linear(16, 3)
            rate = torch.exp(torch.arange(0, 16, 2) * (-math.log(1e4) / 16))
            angles = torch.arange(32).unsqueeze(1) * rate
            self.register_buffer("places", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))

        def forward(self, x: Any) -> Any:
            x = self.enter(x) + self.places
            mask = nn.Transformer.generate_square_subsequent_mask(8)
            return self.head(self.core(x, x[:, -8:], tgt_mask=mask, tgt_is_causal=True))

    return Forecaster()
