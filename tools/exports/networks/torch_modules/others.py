"""Blocks of vision, points, graphs, tables, and networks with data-dependent computation."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from exports.torchvision_ops import torchvision

# ------------------------------------------------------------------------------------ vision blocks


def deformable() -> nn.Module:
    """Source: Zhu et al., Deformable ConvNets v2, 2018."""
    library = torchvision()

    class Deformable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Conv2d(3, 18, 3, padding=1)
            self.mask = nn.Conv2d(3, 9, 3, padding=1)
            self.conv = library.ops.DeformConv2d(3, 8, 3, padding=1)

        def forward(self, x: Any) -> Any:
            return self.conv(x, self.shift(x), self.mask(x).sigmoid())

    return Deformable()


def spatial_transformer() -> nn.Module:
    """Source: Jaderberg et al., Spatial Transformer Networks, 2015."""

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.where = nn.Sequential(
                nn.Conv2d(1, 8, 7), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(8, 10, 5),
                nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(90, 6),
            )  # fmt: skip
            self.head = nn.Sequential(
                nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(1_152, 10)
            )

        def forward(self, x: Any) -> Any:
            theta = self.where(x).reshape(-1, 2, 3) * 0.1 + torch.eye(2, 3)
            grid = functional.affine_grid(theta, [x.shape[0], 1, 28, 28], align_corners=False)
            return self.head(functional.grid_sample(x, grid, align_corners=False))

    return Transformer()


def capsules() -> nn.Module:
    """Source: Sabour et al., Dynamic Routing Between Capsules, 2017."""

    class Capsules(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Sequential(nn.Conv2d(1, 16, 9, 2), nn.ReLU(), nn.Conv2d(16, 16, 5, 2))
            self.weights = nn.Parameter(torch.randn(1, 36, 10, 8, 4) * 0.2)

        def forward(self, x: Any) -> Any:
            parts = _squashed(self.enter(x).reshape(x.shape[0], -1, 1, 1, 4))
            votes = (self.weights * parts).sum(-1)
            logits = torch.zeros(x.shape[0], 36, 10, 1)
            for _ in range(3):
                found = _squashed((logits.softmax(2) * votes).sum(1, keepdim=True))
                logits = logits + (votes * found).sum(-1, keepdim=True)
            return torch.linalg.vector_norm(found.squeeze(1), dim=-1)

    return Capsules()


def _squashed(x: Any) -> Any:
    size = x.square().sum(-1, keepdim=True)
    return x * size / (1 + size) / (size + 1e-8).sqrt()


# ------------------------------------------------------------------------------------------- points


def point_net() -> nn.Module:
    """Source: Qi et al., PointNet, 2016."""

    class PointNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.align = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
            self.matrix = nn.Linear(16, 9)
            self.features = nn.Sequential(
                nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 48, 1)
            )
            self.head = nn.Linear(48, 10)

        def forward(self, points: Any) -> Any:
            matrix = self.matrix(self.align(points).amax(2)).reshape(-1, 3, 3) + torch.eye(3)
            return self.head(self.features(torch.bmm(matrix, points)).amax(2))

    return PointNet()


def point_neighbors() -> nn.Module:
    """Source: Wang et al., Dynamic Graph CNN for Learning on Point Clouds, 2018."""

    class Neighbors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 16))
            self.head = nn.Linear(16, 5)

        def forward(self, points: Any) -> Any:
            batch, count, _ = points.shape
            near = torch.cdist(points, points).topk(8, largest=False).indices
            picked = torch.gather(points, 1, near.reshape(batch, -1, 1).expand(-1, -1, 3))
            picked = picked.reshape(batch, count, 8, 3)
            own = points.unsqueeze(2).expand_as(picked)
            return self.head(self.inner(torch.cat([own, picked - own], -1)).amax(2))

    return Neighbors()


# ------------------------------------------------------------------------------------------- graphs


class _Graph(nn.Module):
    """Two layers of a kind; a node's neighbors are those with an edge to it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleList([nn.Linear(12, 16), nn.Linear(16, 16)])
        self.score = nn.Linear(32, 1)
        self.edge = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 16))
        self.eps = nn.Parameter(torch.tensor(0.2))
        self.head = nn.Linear(16, 4)

    def forward(self, features: Any, edges: Any) -> Any:
        start, end = edges[0], edges[1]
        x = features
        for layer in self.layers:
            x = functional.relu(getattr(self, self.kind)(layer(x), start, end))
        return self.head(x), x.mean(0)

    def gcn(self, x: Any, start: Any, end: Any) -> Any:
        degree = x.new_ones(x.shape[0]).scatter_add(0, end, torch.ones_like(end, dtype=x.dtype))
        scale = degree.rsqrt()
        parts = x[start] * (scale[start] * scale[end]).unsqueeze(1)
        return torch.zeros_like(x).index_add(0, end, parts) + x / degree.unsqueeze(1)

    def gat(self, x: Any, start: Any, end: Any) -> Any:
        score = functional.leaky_relu(self.score(torch.cat([x[start], x[end]], 1)), 0.2).squeeze(1)
        most = torch.full((x.shape[0],), -1e9).scatter_reduce(0, end, score, "amax")
        weight = (score - most[end]).exp()
        total = x.new_zeros(x.shape[0]).scatter_add(0, end, weight) + 1e-9
        parts = x[start] * (weight / total[end]).unsqueeze(1)
        return torch.zeros_like(x).scatter_add(0, end.unsqueeze(1).expand_as(parts), parts)

    def gin(self, x: Any, start: Any, end: Any) -> Any:
        parts = x[start]
        total = torch.zeros_like(x).scatter_add(0, end.unsqueeze(1).expand_as(parts), parts)
        return (1 + self.eps) * x + total * 0.3

    def message_passing(self, x: Any, start: Any, end: Any) -> Any:
        parts = self.edge(torch.cat([x[start], x[end]], 1))
        table = functional.one_hot(end, x.shape[0]).to(x.dtype)
        return x + table.T @ parts * 0.3


def gcn() -> nn.Module:
    """Source: Kipf and Welling, Graph Convolutional Networks, 2016."""
    return _Graph("gcn")


def gat() -> nn.Module:
    """Source: Velickovic et al., Graph Attention Networks, 2017."""
    return _Graph("gat")


def gin() -> nn.Module:
    """Source: Xu et al., How Powerful are Graph Neural Networks?, 2018."""
    return _Graph("gin")


def message_passing() -> nn.Module:
    """Messages from edges, summed by a one-hot matrix of the edges' ends."""
    return _Graph("message_passing")


# ------------------------------------------------------------------------------------------- tables


class _Table(nn.Module):
    """From categories i64[batch, 4] and numbers f32[batch, 6] to one score each."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.words = nn.ModuleList(nn.Embedding(10, 8) for _ in range(4))
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.mix = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.norm, self.bottom = nn.BatchNorm1d(6), nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.deep = nn.Sequential(nn.Linear(38, 16), nn.ReLU(), nn.Linear(16, 1))
        self.wide = nn.Linear(6, 1)
        self.top = nn.Sequential(nn.Linear(18, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, categories: Any, numbers: Any) -> Any:
        words = torch.stack([e(categories[:, n]) for n, e in enumerate(self.words)], 1)
        return torch.sigmoid(getattr(self, self.kind)(words, self.norm(numbers)))

    def tab_transformer(self, words: Any, numbers: Any) -> Any:
        return self.deep(torch.cat([self.mix(words).flatten(1), numbers], 1))

    def dlrm(self, words: Any, numbers: Any) -> Any:
        dense = self.bottom(numbers)
        parts = torch.cat([dense.unsqueeze(1), words], 1)
        rows, columns = torch.tril_indices(5, 5, -1)
        pairs = torch.bmm(parts, parts.transpose(1, 2))[:, rows, columns]
        return self.top(torch.cat([dense, pairs], 1))

    def wide_and_deep(self, words: Any, numbers: Any) -> Any:
        return self.wide(numbers) + self.deep(torch.cat([words.flatten(1), numbers], 1))

    def deep_fm(self, words: Any, numbers: Any) -> Any:
        pairs = 0.5 * (words.sum(1).square() - words.square().sum(1)).sum(1, keepdim=True)
        return pairs + self.wide_and_deep(words, numbers)


def tab_transformer() -> nn.Module:
    """Source: Huang et al., TabTransformer, 2020."""
    return _Table("tab_transformer")


def dlrm() -> nn.Module:
    """Source: Naumov et al., Deep Learning Recommendation Model, 2019."""
    return _Table("dlrm")


def wide_and_deep() -> nn.Module:
    """Source: Cheng et al., Wide & Deep Learning for Recommender Systems, 2016."""
    return _Table("wide_and_deep")


def deep_fm() -> nn.Module:
    """Source: Guo et al., DeepFM, 2017."""
    return _Table("deep_fm")


def two_towers() -> nn.Module:
    """Bags of words and of items, compared by their angle."""

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.items = (
                nn.EmbeddingBag(50, 16, mode="mean"),
                nn.EmbeddingBag(50, 16, mode="sum"),
            )
            self.left, self.right = nn.Linear(16, 12), nn.Linear(16, 12)

        def forward(self, words: Any, items: Any) -> Any:
            left, right = self.left(self.words(words)), self.right(self.items(items))
            return functional.cosine_similarity(left, right), functional.normalize(
                left
            ) @ functional.normalize(right).T

    return Towers()


# --------------------------------------------------------------------------------- data that decide


def greedy() -> nn.Module:
    """A loop of as many steps as the data say, exported as ONNX's Loop."""

    @torch.jit.script
    def decoded(state: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found = state
        for _ in range(int(state.abs().sum().item()) % 5 + 2):
            found = torch.tanh(found @ weights) + 0.5 * found
        return found

    class Greedy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.randn(16, 16) / 4)

        def forward(self, state: Any) -> Any:
            return decoded(state, self.weights)

    return Greedy()


def early_exit() -> nn.Module:
    """A second stage only for what the first is not sure of, exported as ONNX's If."""

    class Exit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            found = self.first(x).relu()
            return torch.cond(
                found.max() > 1.5, lambda y: y * 2.0, lambda y: self.second(y).tanh(), (found,)
            )

    return Exit()


def masked_select() -> nn.Module:
    """Rows that pass a test, and their sums."""

    class Selected(nn.Module):
        def forward(self, x: Any) -> Any:
            rows = x[x[:, 0] > 0.5]
            return rows * 2, rows.sum(0), torch.nonzero(x > 1)

    return Selected()


def top_k() -> nn.Module:
    """The best ten boxes above a threshold, in order."""

    class Best(nn.Module):
        def forward(self, scores: Any, values: Any) -> Any:
            best, places = scores.sigmoid().topk(10, 1)
            picked = torch.gather(values, 1, places.unsqueeze(2).expand(-1, -1, 4))
            kept = best[0] > 0.8
            return picked[0][kept], best[0][kept]

    return Best()


def unique() -> nn.Module:
    """Each word once, with how often it occurs."""

    class Unique(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(12, 8)

        def forward(self, ids: Any) -> Any:
            found, places, counts = torch.unique(ids, return_inverse=True, return_counts=True)
            return self.words(found) * counts.unsqueeze(1), places

    return Unique()


def suppression() -> nn.Module:
    """Suppression of boxes, then a network on the remaining ones."""
    torchvision()

    class Suppressed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 8)

        def forward(self, boxes: Any, scores: Any) -> Any:
            boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:].abs() + math.pi], 1)
            kept = torch.ops.torchvision.nms(boxes, scores, 0.4)
            return self.head(boxes[kept]), scores[kept].cumsum(0)

    return Suppressed()
