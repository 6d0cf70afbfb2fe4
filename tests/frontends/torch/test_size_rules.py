"""Sizes that calls may have: all for which the program computes what eager does, and no others."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from modules_run import compiled_from
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import clew
from clew.frontends.torch import from_torch
from clew.frontends.torch.guards import GuardReader
from clew.ir.dims import SymDim
from clew.ir.own_sizes import size_rules_of
from clew.ir.parser import parse_module
from clew.ir.size_rules import SizeRule, size_rule
from clew.support.errors import ClewError

SIZES = range(9)


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def single_row(x: torch.Tensor) -> torch.Tensor:
    return x * 3 if x.shape[0] == 1 else x * 2


def same_for_one(x: torch.Tensor) -> torch.Tensor:
    flag = x.shape[0] > 1 and x.dim() == 1
    return F.relu(x) if flag else F.relu(x[:])


def both(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] % 4 == 2 else x * 3


CASES: dict[str, tuple[Callable[..., Any], set[int]]] = {
    "slice": (lambda x: x[3:] * 2, set()),
    "slice, then view": (lambda x: x[3:].reshape(-1, 1) + 1, set()),
    "head": (lambda x: x[:3] * 2, set()),
    "tail": (lambda x: x[-3:] * 2, set()),
    "neighbors": (lambda x: x[:-1] + x[1:], set()),
    "every second": (lambda x: x[::2] * 2, set()),
    "narrow": (lambda x: x.narrow(0, 1, 2) * 2, {0, 1, 2}),
    "broadcast": (lambda x: x[:, None] * x[None] + torch.ones(1), set()),
    "cat": (lambda x: torch.cat([x, x[2:]]), set()),
    "sum": (lambda x: x.sum(), set()),
    "mean": (lambda x: x.mean(0), set()),
    "windows": (lambda x: F.conv1d(x[None, None], torch.ones(1, 1, 3)), {0, 1, 2}),
    "view": (lambda x: x.view(-1, 3) * 2, {1, 2, 4, 5, 7, 8}),
    "reshape": (lambda x: x.reshape(2, -1).sum(1), {1, 3, 5, 7}),
    "unflatten": (lambda x: x.unflatten(0, (-1, 2)) * 2, {1, 3, 5, 7}),
    "squeeze": (lambda x: x[:, None].squeeze() * 2, {1}),
    "branch on 1": (single_row, {1}),
    "branch without consequence": (same_for_one, set()),
    "branch on a remainder": (both, {0, 1, 3, 4, 5, 7, 8}),
    "branch on a quotient in floats": (lambda x: x if x.shape[0] / 3 > 1 else x * 2, {0, 1, 2, 3}),
    "branch on a root": (lambda x: x if x.shape[0] ** 0.5 > 2 else x * 2, {0, 1, 2, 3, 4}),
    "branch on a power": (lambda x: x if 2 ** x.shape[0] > 5 else x * 2, {0, 1, 2}),
    "branch on a bit": (lambda x: x if x.shape[0] & 1 else x * 2, {1, 3, 5, 7}),
    "branch on a distance": (lambda x: x if abs(x.shape[0] - 3) > 1 else x * 2, {2, 3, 4}),
    "slice to a rounded float": (lambda x: x[: int(x.shape[0] * 0.5)], {0, 1, 2, 3, 4, 5, 8}),
    "slice from a rounded float": (lambda x: x[round(x.shape[0] * 0.3) :] * 2, set()),
    "factor": (lambda x: x * math.ceil(x.shape[0] / 4), set()),
    "count of steps": (lambda x: torch.arange(0, 1, 0.7 / x.shape[0]) * x.sum(), {0}),
    "steps to the size": (lambda x: torch.arange(x.shape[0] / 2, x.shape[0], 0.3), set()),
    "roll": (lambda x: torch.roll(x, 2), set()),
    "roll rows": (lambda x: torch.roll(x[None] * 2, (1, -2), (0, 1)), set()),
}


@pytest.mark.parametrize("name", CASES)
def test_a_program_serves_the_sizes_for_which_it_is_right(name: str) -> None:
    function, refused = CASES[name]
    module = Function(function)
    model = compiled_from(module, torch.randn(6), dynamic=({0: Dim.AUTO},))
    for size in SIZES:
        x = torch.randn(size)
        if size in refused:
            with pytest.raises(ClewError) as caught:
                model(x.numpy())
            assert caught.value.code in ("I317", "I318")
        else:
            ours = torch.as_tensor(model(x.numpy()))
            torch.testing.assert_close(ours, module(x), equal_nan=True)


@pytest.mark.parametrize("name", ["squeeze", "branch on 1", "branch without consequence"])
def test_a_dim_has_the_same_rules(name: str) -> None:
    function, refused = CASES[name]
    model = compiled_from(Function(function), torch.randn(6), dynamic=({0: Dim("rows")},))
    for size in (0, 1, 5):
        if size in refused:
            with pytest.raises(ClewError, match="the model needs rows") as caught:
                model(np.ones(size, np.float32))
            assert caught.value.code == "I318"
        else:
            assert model(np.ones(size, np.float32)).shape == (size,)


def one_chunk(x: torch.Tensor) -> torch.Tensor:
    chunks = (x.shape[0] + (64 - x.shape[0] % 64) % 64) // 64
    if chunks == 0:
        return x + 1
    return x + 1 if chunks == 1 else x * 2


def test_a_rule_stays_that_excludes_0_and_large_sizes() -> None:
    model = compiled_from(Function(one_chunk), torch.randn(6), dynamic=({0: Dim.AUTO},))
    np.testing.assert_array_equal(model(np.ones(64, np.float32)), np.full(64, 2.0))
    with pytest.raises(ClewError, match=r"the model needs .* == 1") as caught:
        model(np.ones(70, np.float32))
    assert caught.value.code == "I318"


class Rows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 3) * 2


def test_a_rule_names_its_layer_and_line_in_saved_models_and_files_too(tmp_path: Path) -> None:
    program = torch.export.export(Rows(), (torch.randn(6),), dynamic_shapes=({0: Dim.AUTO},))
    torch.export.save(program, tmp_path / "rows.pt2")
    model = compiled_from(Rows(), torch.randn(6), dynamic=({0: Dim.AUTO},))
    model.save(tmp_path / "rows.clew")
    loaded = clew.load_compiled(tmp_path / "rows.clew")
    for kept in (model, loaded, clew.compile(tmp_path / "rows.pt2", threads=1)):
        assert kept(np.ones(3, np.float32)).shape == (1, 3)
        with pytest.raises(ClewError) as caught:
            kept(np.ones(4, np.float32))
        error = caught.value
        assert (error.code, error.layer) == ("I318", "view")
        assert error.message == "the model needs x.0 % 3 == 0, which does not hold for x.0 = 4"
        assert "test_size_rules.py:" in error.position
        assert "x.view(-1, 3)" in error.position


def test_branches_in_programs_that_the_user_exports() -> None:
    program = torch.export.export(
        Function(both), (torch.randn(6),), dynamic_shapes=({0: Dim.AUTO},)
    )
    model = clew.compile(from_torch(program), threads=1)
    assert model(np.ones(10, np.float32)).tolist() == [2] * 10
    with pytest.raises(ClewError, match=r"needs x\.0 % 4 == 2") as caught:
        model(np.ones(5, np.float32))
    assert "x.shape[0] % 4 == 2" in caught.value.position


@pytest.mark.parametrize(
    ("guard", "rules"),
    [
        ("6 < 6 * L['x'].size()[0]", []),
        ("2 * L['x'].size()[0] >= 4", []),
        ("L['x'].size()[0] * L['y'].size()[0] > 3", []),
        ("5 < 2 * L['x'].size()[0]", ["5 < 2*n"]),
        ("L['x'].size()[0] > L['y'].size()[0]", ["n > m"]),
    ],
)
def test_guards_of_torch_that_hold_from_two_on(guard: str, rules: list[str]) -> None:
    """torch's own code treats sizes of 1 separately; programs of users assume sizes of 2."""
    shapes = {("x",): (SymDim.symbol("n"),), ("y",): (SymDim.symbol("m"),)}
    program: Any = SimpleNamespace(_guards_code=[guard], graph=torch.fx.Graph())
    assert [str(r) for r in GuardReader(shapes, whole=False).rules(program)] == rules


def test_rules_of_several_inputs_and_of_fixed_sizes() -> None:
    class Longer(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return (x, y * 2) if x.shape[0] > y.shape[0] else (y, x)

    shapes = ({0: Dim.AUTO}, {0: Dim.AUTO})
    module = from_torch(Longer(), (torch.randn(6), torch.randn(4)), dynamic_shapes=shapes)
    assert [str(rule) for rule in size_rules_of(module)] == ["x.0 > y.0"]
    assert list(map(str, size_rules_of(parse_module(str(module))))) == ["x.0 > y.0"]
    model = clew.compile(module, sizes={"y.0": 3}, threads=1)
    x, y = np.ones(4, np.float32), np.ones(3, np.float32)
    assert model(x, y)[0].shape == (4,)
    with pytest.raises(ClewError, match=r"x\.0 > 3, which does not hold for x\.0 = 3"):
        model(y, y)
    with pytest.raises(ClewError) as caught:
        clew.compile(module, sizes={"x.0": 2, "y.0": 3})
    assert caught.value.code == "I318"


class Written(nn.Module):
    """Writes to a part of its first argument, of the second one's size."""

    def __init__(self, write: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        super().__init__()
        self.write = write

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        self.write(x, y)
        return x


def write_tail(x: torch.Tensor, y: torch.Tensor) -> None:
    x[:, -y.shape[1] :] = y


def add_to_head(x: torch.Tensor, y: torch.Tensor) -> None:
    x[:, : y.shape[1]] += y


def fill(x: torch.Tensor, y: torch.Tensor) -> None:
    x[:, y.shape[1] :] = -1.5


@pytest.mark.parametrize("write", [write_tail, add_to_head, fill])
@pytest.mark.parametrize("dims", [(Dim.AUTO, Dim.AUTO), (Dim("n"), Dim("m"))])
def test_parts_that_are_written_to_may_be_single_or_whole(write: Any, dims: Any) -> None:
    module = Written(write)
    dynamic = ({1: dims[0]}, {1: dims[1]})
    model = compiled_from(module, torch.randn(3, 6), torch.randn(3, 4), dynamic=dynamic)
    for n, m in [(6, 4), (6, 6), (6, 1), (1, 1), (5, 3)]:
        x, y = torch.randn(3, n), torch.randn(3, m)
        ours = torch.as_tensor(model(x.numpy(), y.numpy()))
        torch.testing.assert_close(ours, module(x, y))
    if write is not fill:
        with pytest.raises(ClewError, match=r"y\.1|m"):
            model(np.ones((3, 4), np.float32), np.ones((3, 6), np.float32))


def test_writes_to_elements_that_share_memory_fail_as_in_torch() -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> None:
        x[:1].expand(3, -1)[:, : y.shape[1]] = y

    with pytest.raises(ClewError, match="more than one element"):
        compiled_from(
            Written(write),
            torch.randn(3, 6),
            torch.randn(3, 4),
            dynamic=({1: Dim.AUTO}, {1: Dim.AUTO}),
        )


def test_formulas_of_sizes() -> None:
    n = SymDim.symbol("n")
    rule = SizeRule((((("trunc", ("*", 0.5, ("float", n))), "==", 2)),))
    assert str(rule) == "trunc((0.5 * float(n))) == 2"
    assert rule.names == {"n"}
    assert SizeRule.of_record(json.loads(json.dumps(rule.record))) == rule
    assert str(rule.at({"n": 3 * SymDim.symbol("m")})) == "trunc((0.5 * float(3*m))) == 2"
    rule.check({"n": 5})
    with pytest.raises(ClewError, match="for n = 6"):
        rule.check({"n": 6})
    power, quotient = (SizeRule((((op, 2, n), ">", 0),)) for op in ("**", "/"))
    power.check({"n": 52})
    with pytest.raises(ClewError, match="needs 2 / n > 0"):  # without a value
        quotient.check({"n": 0})
    with pytest.raises(ClewError):  # too large to compute
        power.check({"n": 1 << 60})
    with pytest.raises(ValueError, match="not a formula"):
        SizeRule.of_record([[[{"eval": [1]}, "==", 2]], "", ""])


def test_rules_in_few_words() -> None:
    n, m = SymDim.symbol("n"), SymDim.symbol("m")
    assert str(size_rule([(3 * (n // 3), "==", n)])) == "n % 3 == 0"
    assert size_rule([((n * m) % n, "==", 0)]) is None
    rule = SizeRule(((n, "==", 3), (n % m, "!=", 0)), "layer", "line")
    assert str(rule) == "n == 3 or n % m != 0"
    assert SizeRule.of_record(rule.record) == rule
    rule.check({"n": 3, "m": 3})
    rule.check({"n": 4, "m": 0})  # undefined: whatever divides reports it
    with pytest.raises(ClewError, match="for m = 2, n = 4"):
        rule.check({"n": 4, "m": 2})
    with pytest.raises(ValueError, match="compares no sizes"):
        SizeRule.of_record([[[1, "=", 2]], "", ""])


class Named(torch.nn.Module):
    """A module whose arguments have names that torch changes in the program's own names."""

    def forward(
        self, C: torch.Tensor, c: torch.Tensor, a_0: torch.Tensor, a: list[torch.Tensor],
        *rest: torch.Tensor, Two2: dict[str, torch.Tensor],
    ) -> torch.Tensor:  # fmt: skip
        return C + c + a_0 + a[0] + rest[0] + Two2["class A"]


@pytest.mark.parametrize("strict", [False, True])
def test_arguments_of_any_name(strict: bool) -> None:
    def drawn(*shape: int) -> tuple[Any, Any]:
        one, *others = (torch.randn(*shape) for _ in range(6))
        return (one, *others[:2], [others[2]], others[3]), {"Two2": {"class A": others[4]}}

    sizes = {0: Dim.AUTO, 1: Dim.AUTO}
    shapes = {"C": sizes, "c": sizes, "a_0": sizes, "a": [sizes], "rest": (sizes,),
              "Two2": {"class A": sizes}}  # fmt: skip
    args, kwargs = drawn(3, 4)
    program = torch.export.export(Named(), args, kwargs, dynamic_shapes=shapes, strict=strict)
    compiled = clew.compile(from_torch(program), threads=1)
    args, kwargs = drawn(5, 2)
    found = compiled(*args, **kwargs)
    torch.testing.assert_close(torch.from_numpy(found), Named()(*args, **kwargs))
    with pytest.raises(clew.ClewError, match=r"I042|I318"):
        compiled(args[0][:2], *args[1:], **kwargs)


class Counted(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x.view(n.item(), 6)


class Shuffled(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return F.channel_shuffle(x, 4), F.adaptive_avg_pool2d(x, 1)


def test_small_sizes_that_the_program_serves() -> None:
    free = dict.fromkeys(range(4), Dim.AUTO)
    x, n = torch.randn(2, 3, 2), torch.tensor(2)
    rows = from_torch(Counted(), (x, n), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO}, None))
    compiled = clew.compile(rows, threads=1)
    for size in (2, 3, 0):
        x = torch.randn(size, 3, 2)
        assert np.array_equal(compiled(x, torch.tensor(size)), x.view(-1, 6).numpy())
    shuffled = from_torch(Shuffled(), (torch.randn(2, 8, 4, 5),), dynamic_shapes=(free,))
    compiled = clew.compile(shuffled, threads=1)
    for shape in ((1, 4, 1, 1), (2, 4, 3, 2)):
        x = torch.randn(shape)
        for got, want in zip(compiled(x), Shuffled()(x), strict=True):
            torch.testing.assert_close(torch.from_numpy(got), want)
