"""Errors of importing name a layer, the user's line and a way out."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.export.experimental import _export_forward_backward

from clew.frontends.torch import from_torch
from clew.support.errors import ClewError

X = torch.randn(3, 3)
LIBRARY = "quantized_decomposed"
HALF = torch.zeros(3, 3, dtype=torch.complex64).to(torch.complex32)


class Input(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.abs()


class Weight(nn.Module):
    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", tensor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight.real.float()


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Weight(HALF)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 2


class Changed(Weight):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.add_(x)
        return self.weight.real


class Narrow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.complex32).real


class Tangent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.complex(x, x).tan().real


class Sparse(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to_sparse()


class Power(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(2 ** x.shape[0])


class Shift(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(x.shape[0] >> 1)


class Eigenvalues(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(x)


class Outside(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        quantize = torch.ops.quantized_decomposed.quantize_per_tensor
        return quantize(x, 0.1, -7, 0, 255, torch.uint8)


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("module", "x", "code", "message", "layer", "line"),
    [
        (Input(), HALF, "U061", "input 'x' is of torch.complex32", "abs", "x.abs()"),
        (Inner(), X, "U061", "'inner.weight' is of", "inner/view_as_real", "self.weight.real"),
        (Narrow(), X, "U061", "a tensor is of torch.complex32", "to_copy", "x.to("),
        (Tangent(), X, "U061", "tan.default of complex numbers", "tan", ".tan()"),
        (Input(), X.to_sparse(), "U062", "input 'x' is a sparse_coo tensor", "abs", "x.abs()"),
        (Sparse(), X, "U062", "a result of _to_sparse.default", "to_sparse", "x.to_sparse()"),
        (Input(), X.to("meta"), "U062", "input 'x' is on the device meta", "abs", "x.abs()"),
        (
            Outside(),
            X,
            "U063",
            "a zero point of -7 for u8",
            f"{LIBRARY}.quantize_per_tensor",
            "quantize(x",
        ),
        (Changed(HALF.to(torch.complex64)), X, "U065", "'weight', which changes", "add", "add_"),
        (Branch(), X, "M050", "data-dependent", "", "x.sum() > 0"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_an_error_names_its_place(
    module: nn.Module, x: torch.Tensor, code: str, message: str, layer: str, line: str
) -> None:
    with pytest.raises(ClewError) as caught:
        from_torch(module, (x,))
    error = caught.value
    assert (error.code, error.layer) == (code, layer)
    assert message in error.message
    assert "test_errors.py:" in error.position
    assert line in error.position
    assert error.hint


def test_branches_on_data_have_a_way_out() -> None:
    with pytest.raises(ClewError) as caught:
        from_torch(Branch(), (X,))
    assert "torch.compile(model, backend='clew')" in caught.value.hint
    assert "TORCH_LOGS" not in caught.value.message


def test_unknown_operators_are_listed_with_their_lines() -> None:
    with pytest.raises(ClewError, match=r"linalg_eig, .*test_errors.py:\d+") as caught:
        from_torch(Eigenvalues(), (X,))
    assert (caught.value.code, bool(caught.value.hint)) == ("U064", True)


def test_weights_without_values() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3, device="meta")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x)

    with pytest.raises(ClewError, match=r"'first.weight' is on the device meta") as caught:
        from_torch(Model(), (X,))
    assert (caught.value.code, caught.value.layer) == ("U062", "first")


def test_programs_that_train() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).sum()

    program = _export_forward_backward(torch.export.export(Loss(), (X,)))
    with pytest.raises(ClewError, match="the program returns the loss output") as caught:
        from_torch(program)
    assert (caught.value.code, caught.value.layer) == ("U066", "sum")
    assert caught.value.hint


@pytest.mark.parametrize(("module", "code"), [(Power(), "U060"), (Shift(), "U064")])
def test_arithmetic_of_sizes(module: nn.Module, code: str) -> None:
    with pytest.raises(ClewError) as caught:
        from_torch(module, (X,), dynamic_shapes=({0: Dim.AUTO},))
    assert caught.value.code == code
    assert "x.shape[0]" in caught.value.position
    assert "+, -, *" in caught.value.hint


def test_packed_sequences() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
            return self.rnn(packed)[1]

    with pytest.raises(ClewError, match="torch cannot export the module") as caught:
        from_torch(Packed(), (torch.randn(2, 5, 3), torch.tensor([5, 2])))
    assert caught.value.code == "M050"
    assert "test_errors.py:" in caught.value.position
    assert "self.rnn(packed)" in caught.value.position
