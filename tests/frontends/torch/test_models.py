"""Whole modules: paths of layers, lines of code, tied weights, sizes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from modules_run import agrees, compiled_from
from torch import nn
from torch.export import Dim

import clew
from clew.frontends.torch import from_torch
from clew.frontends.torch.exporting import program_of
from clew.frontends.torch.places import is_layer
from clew.ir.expr import Constant
from clew.ir.notes import places_of
from clew.ir.visit import post_order
from clew.support.errors import ClewError


class Attention(nn.Module):
    """Self-attention over rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).mT
        return scores.softmax(-1) @ x


class Block(nn.Module):
    """Attention and a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.attention(x))


class Tagger(nn.Module):
    """Words to scores of words, by one table."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList([Block(8), Block(8)])
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 11, shape)


def test_layers_have_the_paths_of_their_modules() -> None:
    module = from_torch(Tagger().eval(), (ids(2, 5),))
    sources = {s.layer for n in post_order(module.main.body) for s in n.span.sources}
    assert {"words", "blocks.1.attention.query", "blocks.0.norm", "head"} <= sources
    assert "blocks.0.attention/softmax" in sources


def test_places_are_lines_of_the_users_code() -> None:
    module = from_torch(Tagger().eval(), (ids(2, 5),))
    (found,) = (p for p in places_of(module) if p.layer == "blocks.1.attention/softmax")
    assert found.module == "blocks.1.attention"
    assert found.kind.endswith("Attention")
    assert found.file == __file__
    assert found.code == "return scores.softmax(-1) @ x"


def test_tied_weights_are_one_constant() -> None:
    module = from_torch(Tagger().eval(), (ids(2, 5),))
    constants = {n.id for n in post_order(module.main.body) if isinstance(n, Constant) and n.name}
    tables = [
        n
        for n in post_order(module.main.body)
        if isinstance(n, Constant) and n.id in constants and n.tensor.shape == (11, 8)
    ]
    assert len(tables) == 1


def test_free_sizes_serve_all_sizes() -> None:
    sizes = [(1, 1), (1, 9), (4, 2), (3, 7)]
    dynamic = ({0: Dim("batch"), 1: Dim("length")},)
    agrees(Tagger(), ids(2, 5), dynamic=dynamic, more=[(ids(*size),) for size in sizes])
    (param,) = from_torch(Tagger().eval(), (ids(2, 5),), dynamic_shapes=dynamic).main.params
    assert tuple(map(str, param.tensor.shape)) == ("batch", "length")


class Image(nn.Module):
    """Convolutions that halve an image, and up again."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        low = self.norm(self.down(x)).relu()
        return {"low": low, "high": self.up(low)}


def test_images_of_free_sizes() -> None:
    dynamic = ({0: Dim("n"), 2: Dim("h", min=3), 3: Dim("w", min=3)},)
    more = [(torch.randn(1, 3, h, w),) for h, w in ((7, 9), (12, 4))]
    agrees(Image(), torch.randn(2, 3, 8, 10), dynamic=dynamic, more=more)


class Masked(nn.Module):
    """Rows by a condition on them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x[:, 0] > 0] * 2


def test_sizes_that_the_data_decide() -> None:
    more = [(torch.randn(n, 3),) for n in (1, 4, 30)]
    agrees(Masked(), torch.randn(9, 3), dynamic=({0: Dim("n")},), more=more)


class Sliced(nn.Module):
    """A part whose length the data decide, and one that is counted from the end."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = n.item()
        torch._check(count >= 0)
        torch._check(count <= x.shape[0])
        return x[:count].sum(0), x[-2:] * 2


def test_a_number_read_from_a_tensor() -> None:
    more = [(torch.randn(n, 3), torch.tensor(m)) for n, m in ((4, 0), (9, 9))]
    dynamic = ({0: Dim("n", min=2)}, None)
    agrees(Sliced(), torch.randn(6, 3), torch.tensor(2), dynamic=dynamic, more=more)


@pytest.mark.parametrize("module", [Tagger(), Sliced(), Image()])
def test_each_call_is_a_layer_or_is_eliminated(module: nn.Module) -> None:
    args = {
        Tagger: (ids(2, 5),),
        Sliced: (torch.randn(6, 3), torch.tensor(2)),
        Image: (torch.randn(1, 3, 8, 8),),
    }[type(module)]
    program = program_of(module.eval(), args, None, None)
    found = from_torch(program)
    served = {s.layer for n in post_order(found.main.body) for s in n.span.sources}
    gone = {layer for layer, _, _ in found.main.attrs["eliminated"]}
    calls = [n for n in program.graph.nodes if is_layer(n)]
    places = [p.layer for p in places_of(found)]
    assert len(places) == len(set(places)) == len(calls)
    assert set(places) <= served | gone


class Refused(nn.Module):
    """An operator that clew lacks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x)


def test_an_error_shows_the_users_line() -> None:
    with pytest.raises(ClewError) as raised:
        from_torch(Refused().eval(), (torch.randn(2, 2),))
    assert raised.value.code == "U064"
    assert f"{__file__}:" in str(raised.value)
    assert "bessel_j0" in str(raised.value)


def test_an_export_that_fails_is_torchs() -> None:
    class Wrong(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ClewError) as raised:
        from_torch(Wrong().eval(), (torch.randn(2),))
    assert raised.value.code == "M050"


def test_saved_models_run_without_torchs_program(tmp_path: Any) -> None:
    module, x = Tagger().eval(), ids(2, 5)
    compiled = compiled_from(module, x)
    compiled.save(tmp_path / "tagger.clew")
    loaded = clew.load_compiled(tmp_path / "tagger.clew")
    torch.testing.assert_close(torch.as_tensor(loaded(x.numpy())), module(x).detach())
