"""clew as a backend of `torch.compile`: results, state and strides as in eager."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import clew
import clew.torch
from clew import te
from clew.frontends.torch import registry
from clew.ops.registry import _REGISTRY
from clew.support.errors import ClewWarning
from clew.torch import backend

Call = tuple[Any, ...]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@torch.library.custom_op("clew_tests::odd", mutates_args=())
def odd(x: torch.Tensor, factor: float) -> torch.Tensor:
    """An operator of this file."""
    return torch.sin(x) * factor


@odd.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("clew_tests::times", mutates_args=())
def times(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Multiplies by a scalar."""
    assert factor.shape == ()
    return x * factor.item()


@times.register_fake
def _(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def agrees(function: Callable[..., Any], calls: Sequence[Call], **options: Any) -> Any:
    """Checks that a compiled function gives what eager gives, call by call, and changes its
    arguments as eager does. Returns the compiled function.
    """
    compiled = torch.compile(copy.deepcopy(function), backend="clew", **options)
    with torch.no_grad():
        for args in calls:
            own = copy.deepcopy(args)
            found, wanted = compiled(*own), function(*args)
            assert pytree.tree_structure(found) == pytree.tree_structure(wanted)
            same(pytree.tree_leaves(found), pytree.tree_leaves(wanted))
            same(pytree.tree_leaves(own), pytree.tree_leaves(args))
    return compiled


def same(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    for a, b in zip(found, wanted, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
            assert b.numel() < 2 or a.stride() == b.stride()
        else:
            assert a == b


def images(*batches: int) -> list[Call]:
    return [(torch.randn(n, 3, 12, 12),) for n in batches]


def rows(*counts: int, width: int = 8) -> list[Call]:
    return [(torch.randn(n, width),) for n in counts]


class Network(nn.Module):
    """Convolutions, a norm, pooling, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(8 * 36, 5)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = self.pool(self.stem(x))
        return {"scores": self.head(y.flatten(1)), "maps": (y, None, 3)}


class Mixed(nn.Module):
    """A sine between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(self.first(x))
        return self.second(y)


class Custom(Mixed):
    """A custom operator between two layers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(odd(self.first(x), 2.0))


class Counter(nn.Module):
    """A buffer that each call changes."""

    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)
        return x * self.steps


def test_a_network_with_nested_results_and_two_batch_sizes() -> None:
    agrees(Network().eval(), images(2, 3, 5))
    assert not clew.torch.last().left


def test_channels_last_results_keep_their_strides() -> None:
    stem = Network().eval().stem
    agrees(stem, [(x.to(memory_format=torch.channels_last),) for (x,) in images(2)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    network = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval().to(dtype)
    compiled = torch.compile(network, backend="clew")
    with torch.no_grad():
        x = torch.randn(3, 8, dtype=dtype)
        found, exact = compiled(x), network.double()(x.double())
    close = 4 * torch.finfo(dtype).eps
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=close, atol=close)


def test_layers_have_module_paths_and_lines() -> None:
    agrees(Network().eval(), images(2))
    (program,) = clew.torch.last()
    trace = program.compiled.trace
    assert {"stem.0", "stem.1", "stem.2", "pool", "head"} <= set(trace.layers)
    place = trace.places["head"]
    assert place.module == "head"
    assert place.file == __file__
    assert "self.head(y.flatten(1))" in place.code
    assert "test_backend.py" in str(trace.layer("head"))


def test_operators_without_a_converter_stay_in_eager_and_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(registry._CONVERTERS, "sin")
    agrees(Mixed().eval(), rows(2, 2))
    programs = clew.torch.last()
    assert len(programs) == 2
    (left,) = programs.left
    assert (left.op, left.code) == ("sin", "U064")
    assert "torch.sin(self.first(x))" in left.where
    assert "test_backend.py" in programs.report()


def test_parts_of_a_graph_hold_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry._CONVERTERS, "sin")
    network = Mixed().eval()
    compiled = torch.compile(network, backend="clew")
    (x,) = rows(2)[0]
    with torch.no_grad():
        for _ in range(2):
            same([compiled(x)], [network(x)])
            network.first.weight.mul_(2)
            network.second.bias.add_(1)
    assert [len(program.compiled.inputs) for program in clew.torch.last()] == [1, 1]


def test_parts_of_a_graph_know_the_sizes_that_shapes_depend_on() -> None:
    def padded(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        y = F.pad(torch.relu(x), (0, 0, 0, (4 - n % 4) % 4))
        y = y + torch.linalg.qr(torch.ones(3, 3) + y.sum())[0].sum()
        return y.reshape(-1, 4, y.shape[1]) * 2 + n % 4

    agrees(padded, [(torch.randn(n, 6),) for n in (5, 8, 11)], dynamic=True)
    assert {left.op for left in clew.torch.last().left} == {"linalg_qr"}
    assert len(clew.torch.last()) == 2


def test_custom_operators_are_called_back_between_native_segments() -> None:
    agrees(Custom().eval(), rows(2, 3))
    (program, *_) = clew.torch.last()
    assert not clew.torch.last().left
    assert "clew_tests.odd" in program.compiled.trace.layers


def test_custom_operators_with_one_of_clew_are_fused() -> None:
    @clew.register_op("tests.odd", torch="clew_tests::odd", overwrite=True)
    def own(x: te.Tensor, *, factor: float) -> te.Tensor:
        return te.compute(x.shape, lambda *i: te.call("sin", x[i]) * factor)

    try:
        agrees(Custom().eval(), rows(2, 3))
    finally:
        del _REGISTRY["tests.odd"]
    program = clew.torch.last()[-1]
    assert ("nn.dense", "add", "tests.odd") in [kernel.ops for kernel in program.compiled.kernels]


def test_an_operator_of_the_user_gets_scalars_as_scalars() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return times(x + 1, x.sum()) * 2

    agrees(Scaled(), [(torch.randn(3, 4),) for _ in range(2)])
    x = torch.randn(3, 4)
    compiled = clew.compile(clew.from_torch(Scaled(), (x,)), threads=1)
    np.testing.assert_allclose(compiled(x), Scaled()(x), rtol=1e-5)


def test_graph_breaks_make_several_programs() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) + 1
        torch._dynamo.graph_break()
        return y * 2

    agrees(broken, rows(2, 2))
    assert len(clew.torch.last()) == 2


def test_inputs_and_buffers_change_in_place() -> None:
    agrees(Counter().eval(), [(torch.randn(3),) for _ in range(3)])
    agrees(lambda x: (x.add_(1), x * 2), rows(2, 2))


def test_a_result_returned_again_is_one_tensor() -> None:
    """In eager it is; a copy of it is another tensor."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y.clone(), y.contiguous(), y.to(torch.float32)

    compiled = torch.compile(function, backend="clew")
    with torch.no_grad():
        one, copied, again, same = compiled(torch.ones(3))
    one.add_(5)
    assert [r.tolist() for r in (again, same, copied)] == [[7.0] * 3, [7.0] * 3, [2.0] * 3]


def test_results_that_share_memory_with_an_input() -> None:
    compiled = agrees(lambda x: (x.view(-1), x.t(), x + 1), rows(2))
    x = torch.randn(2, 8)
    with torch.no_grad():
        flat = compiled(x)[0]
    flat.zero_()
    assert not x.any()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x > 0].sum(),
        lambda x: (None, x + 1, 3),
        lambda x: x + torch.arange(8.0),
        lambda x: x[:, ::2].t() @ x[:, ::2],
        lambda x: torch.where(x > 0, x, -x).any(),
        lambda x: x.new_zeros(()),
    ],
)
def test_small_functions(function: Callable[..., Any]) -> None:
    agrees(function, rows(3, 4))


def test_no_elements() -> None:
    agrees(lambda x: x + 1, rows(0, 3))


def test_checks_of_matrices_leave_nothing_in_eager() -> None:
    def solved(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a = a @ a.mT + torch.eye(3)
        return torch.linalg.solve(a, b) + torch.linalg.inv(a) @ b

    agrees(solved, [(torch.randn(2, 3, 3), torch.randn(2, 3, 4)) for _ in range(2)])
    assert len(clew.torch.last()) == 1
    assert not clew.torch.last().left


def test_integers_of_a_call() -> None:
    def use(x: torch.Tensor, k: int) -> tuple[Any, ...]:
        return x * k, torch.arange(k) + x.shape[0], k * 2

    agrees(use, [(torch.randn(3), k) for k in (3, 4, 7, 2)])
    agrees(lambda x, k: x + k, [(torch.randn(3), k) for k in (3, -4, 0)], dynamic=True)


def test_lengths_need_one_graph() -> None:
    block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    agrees(block, [(torch.randn(2, n, 16),) for n in (5, 9, 4, 17, 6)], dynamic=True)
    assert len(clew.torch.last()) == 1
    assert not clew.torch.last().left


class Scaled(nn.Module):
    """A norm whose epsilon is a number of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.epsilon = 1e-3

    def forward(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return F.layer_norm(x, (4,), eps=self.epsilon) * factor


@pytest.mark.parametrize("factors", [(2, 2), (0.5, 0.75)])
def test_numbers_of_modules_cost_no_second_trace_of_aot(
    factors: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    make = backend.aot_autograd

    def counted(**options: Any) -> Any:
        made.append(options)
        return make(**options)

    monkeypatch.setattr(backend, "aot_autograd", counted)
    calls = [(torch.randn(n, 4), f) for n, f in zip((3, 5), factors, strict=True)]
    agrees(Scaled(), calls, dynamic=True)
    is_free = isinstance(factors[0], float)  # a number that changes is an input of the graph
    assert len(made) == 1 + is_free


def test_masked_attention_of_a_row_that_sees_nothing() -> None:
    mask = torch.tensor([[True, True, False], [False, False, False]])

    def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)

    agrees(attend, [(torch.randn(1, 2, 2, 8), torch.randn(1, 2, 3, 8))])


def test_changed_weights_are_noticed() -> None:
    layer = nn.Linear(8, 4)
    compiled = torch.compile(layer, backend="clew")
    x = torch.randn(2, 8)
    with torch.no_grad():
        compiled(x)
        layer.weight.mul_(2)
        torch.testing.assert_close(compiled(x), layer(x))
        layer.bias.data = torch.randn(4)
        torch.testing.assert_close(compiled(x), layer(x))
        layer.load_state_dict(nn.Linear(8, 4).state_dict())
        torch.testing.assert_close(compiled(x), layer(x))


def test_equal_blocks_share_a_graph_and_keep_their_own_weights() -> None:
    blocks = [nn.Linear(8, 8) for _ in range(4)]

    def run(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(block(x))

    compiled = torch.compile(run, backend="clew")
    with torch.no_grad():
        for _ in range(2):
            for block in blocks:
                x = torch.randn(2, 8)
                torch.testing.assert_close(compiled(block, x), run(block, x))
        (program,) = clew.torch.last()
        first = program.compiled
        compiled(blocks[-1], x)
        assert program.compiled is first  # the last block's, which was compiled before
        assert len(program._made) == 4
        del block, blocks
        gc.collect()
        assert not program._made  # weights are not kept alive


def test_gradients_are_left_to_eager_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.torch.backend._told", set())
    layer = nn.Linear(8, 4)
    compiled = torch.compile(layer, backend="clew")
    with pytest.warns(ClewWarning, match="I412"):
        y = compiled(torch.randn(2, 8))
    y.sum().backward()
    assert layer.weight.grad is not None
    with torch.inference_mode():
        x = torch.randn(2, 8)
        torch.testing.assert_close(compiled(x), layer(x))


def test_options() -> None:
    with torch.no_grad():
        compiled = torch.compile(nn.Linear(8, 4), backend="clew", options={"precision": "bf16"})
        compiled(torch.randn(2, 8))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"treads": 2}, "I413.*'treads'"), ({"fuse": 1}, "I015.*fuse"),
        ({"inputs": {"x": (1,)}}, "I413.*'inputs'"), ({"backends": ["numpy"]}, "I413.*'backends'"),
        ({1: 2}, "I413.*1"), ({"precision": "BF16"}, "I013.*'BF16'"), ({"threads": 0}, "I012"),
        ({"threads": 10**9}, "I012"), ({"target": "X"}, "I010.*'X'"), ({"passes": [1]}, "I015"),
    ],
)  # fmt: skip
def test_wrong_options_are_errors(options: dict[Any, Any], match: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(nn.Linear(8, 4), backend="clew", options=options)
    with torch.no_grad(), pytest.raises(Exception, match=match):
        compiled(torch.randn(2, 8))


def test_threads_are_those_of_torch_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLEW_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    for options, threads in (({}, 1), ({"threads": 2}, 2)):
        torch._dynamo.reset()
        compiled = torch.compile(nn.Linear(8, 4), backend="clew", options=options)
        with torch.no_grad():
            compiled(torch.randn(2, 8))
        assert clew.torch.last()[0].compiled.options.threads == threads


def test_last_holds_one_model() -> None:
    agrees(Network().eval(), images(2))
    first = clew.torch.last()
    agrees(Mixed().eval(), rows(2))
    assert len(first) == len(clew.torch.last()) == 1


def test_an_input_that_clew_refuses_leaves_the_graph_in_eager() -> None:
    compiled = torch.compile(nn.ReLU(), backend="clew")
    with torch.no_grad():
        assert compiled(torch.ones(2, 3, device="meta")).device.type == "meta"
    (left,) = clew.torch.last().left
    assert left.code == "U062"
    assert "on the device meta" in left.reason


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.chunk(3, 1), x.sum()),
        lambda x: (x[1:], x[:, -2:].t(), x.expand(2, *x.shape), x.sum()),
        lambda x: torch.meshgrid(x[0], x[1], indexing="ij"),
        lambda x: (x.add_(1), x[1:, 1:], x.sum())[1:],
        lambda x: (lambda y: (y[1:], y.view(-1)[8:], y + 1))(x * 2),
    ],
)
def test_views_of_free_sizes_as_results(function: Callable[..., Any]) -> None:
    agrees(function, rows(4, 5, 7), dynamic=True)


def test_views_of_inputs_are_not_computed() -> None:
    agrees(lambda x: (x[:, 1:], x.sum(1)), rows(4, 5), dynamic=True)
    (program,) = clew.torch.last()
    assert len(program.compiled.outputs) == 1
    fates = program.compiled.trace.accounted()
    assert "a result that is a view, which torch makes" in str(fates["slice"])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, k: x[:k] * k,
        lambda x, k: x[k:] * k,
        lambda x, k: F.pad(x, (k, 1)) + k,
        lambda x, k: x.roll(k, 0) + x.tril(k),
    ],
)
def test_integers_that_are_negative(function: Callable[..., Any]) -> None:
    agrees(function, [(torch.randn(6, 6), k) for k in (-3, -1, 2, 0, -2)], dynamic=True)
    agrees(function, [(torch.randn(6, 6), k) for k in (2, 3, -1, -2)])


def test_nested_tensors() -> None:
    layer, norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = norm(layer(x)).relu() * 2 + 1
        return y, y.values(), y.sum(1)

    compiled = torch.compile(run, backend="clew")
    with torch.no_grad():
        for lengths in ((2, 3), (4, 1), (3, 5, 2)):
            x = torch.nested.nested_tensor(
                [torch.randn(n, 4) for n in lengths], layout=torch.jagged
            )
            found, wanted = compiled(x), run(x)
            assert found[0].shape == x.shape
            same([found[0].values(), *found[1:]], [wanted[0].values(), *wanted[1:]])


def test_numbers_computed_from_sizes_as_results() -> None:
    def broken(x: torch.Tensor) -> tuple[Any, ...]:
        large, twice, third = x.shape[0] > 4, x.shape[0] * 2, x.shape[0] / 3
        y = x * 2
        torch._dynamo.graph_break()
        return y + twice + third, large, twice, third, y if large else -y

    agrees(broken, rows(3, 5, 9), dynamic=True)
    assert not clew.torch.last().left


@torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
def test_data_dependent_numbers_and_sizes_as_results() -> None:
    def use(x: torch.Tensor) -> tuple[Any, ...]:
        positive = x > 0
        count, some = positive.sum().item(), positive.any().item()
        joined = torch.zeros(2 * x[positive].shape[0]).reshape(2, -1) + x[positive]
        return x * count, count, some, joined, positive.nonzero(), joined.shape[1]

    agrees(use, rows(3, 5), dynamic=True)
    assert not clew.torch.last().left
