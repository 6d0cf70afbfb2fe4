"""Each rule: a model in which it finds something, which is right, and one in which it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.advice import Candidate, Subject
from clew.backends.compile_options import CompileOptions
from clew.frontends import load

from ...advised_models import RULES, Net, errors_of, found, normal, two_linear_layers

NEAR = 1e-4


@pytest.fixture
def two_layers() -> Any:
    """A model of two consecutive linear layers, and a slice of one row of a third."""
    return two_linear_layers()


def only(rule: str, model: Any, **options: Any) -> tuple[Subject, Candidate]:
    """Returns the one candidate of a rule."""
    subject, candidates = found(rule, model, **options)
    assert len(candidates) == 1, [c.what for c in candidates]
    return subject, candidates[0]


def none(rule: str, model: Any, **options: Any) -> bool:
    """Whether a rule finds nothing."""
    return not found(rule, model, **options)[1]


# --- weights ---


def wide(weight: Any, reading: Any) -> Any:
    net = Net(1, 8, 12, 12)
    y = net.unary("Relu", net.conv(net.x, weight, pad=1))
    return net.model(net.unary("Relu", net.conv(y, reading, pad=1)))


def test_equal_zero_and_unread_channels() -> None:
    weight, reading = normal(24, 8, 3, 3), normal(16, 24, 3, 3, seed=1)
    assert none("repeated-channels", wide(weight, reading))
    weight[8:16] = weight[:8]
    reading[:, 20] = 0.0
    net = Net(1, 8, 12, 12)
    y = net.add("Conv", [net.x, net.constant(weight)], (1, 24, 12, 12), pads=[1] * 4)
    y = net.conv(net.unary("Relu", y), reading, pad=1)
    subject, one = only("repeated-channels", net.model(net.unary("Relu", y)))
    assert one.what == "drop 9 of 24 channels"
    assert errors_of(subject, one)["relu_3"] < NEAR


def test_channels_that_differ_in_their_bias_stay() -> None:
    weight = normal(24, 8, 3, 3)
    weight[8:16] = weight[:8]
    assert none("repeated-channels", wide(weight, normal(16, 24, 3, 3, seed=1)))


def test_channels_that_leave_the_model_stay() -> None:
    weight = normal(24, 8, 3, 3)
    weight[3] = 0.0
    net = Net(1, 8, 12, 12)
    assert none("repeated-channels", net.model(net.conv(net.x, weight)))


def test_zero_channels_of_residual_sums_and_depthwise_convolutions() -> None:
    first, second = normal(16, 8, 1, 1), normal(16, 8, 1, 1, seed=1)
    first[5] = second[5] = 0.0
    net = Net(1, 8, 12, 12)
    zero = net.constant(np.zeros((16, 1, 1)))
    parts = []
    for weight in (first, second):
        y = net.add("Conv", [net.x, net.constant(weight)], (1, 16, 12, 12))
        parts.append(net.binary("Add", y, zero))
    y = net.unary("Relu", net.binary("Add", *parts))
    deep = net.constant(normal(16, 1, 3, 3, seed=2))
    y = net.add("Conv", [y, deep], (1, 16, 12, 12), pads=[1] * 4, group=16)
    y = net.unary("Relu", net.conv(y, normal(8, 16, 1, 1, seed=3)))
    subject, one = only("repeated-channels", net.model(y))
    assert one.what == "drop 1 of 16 channels"
    assert max(errors_of(subject, one).values()) < NEAR


@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_low_rank(kind: str) -> None:
    def model(weight: Any) -> Any:
        if kind == "dense":
            net = Net(1, 16, 96)
            return net.model(net.unary("Relu", net.dense(net.x, weight.T)))
        net = Net(1, 96, 6, 6)
        return net.model(net.unary("Relu", net.conv(net.x, weight[:, :, None, None])))

    assert none("low-rank", model(normal(64, 96)))
    subject, one = only("low-rank", model(normal(64, 8) @ normal(8, 96, seed=1)))
    assert one.what == "split a layer of 96 inputs and 64 outputs into two of rank 8"
    assert max(errors_of(subject, one).values()) < NEAR


def test_block_sparse() -> None:
    mask = np.kron(np.eye(4), np.ones((8, 4)))[:, :, None, None]

    def model(weight: Any) -> Any:
        net = Net(1, 16, 8, 8)
        return net.model(net.unary("Relu", net.conv(net.x, weight, pad=1)))

    weight = normal(32, 16, 3, 3)
    assert none("block-sparse", model(weight))
    subject, one = only("block-sparse", model(weight * mask))
    assert one.what == "compute a convolution of 16 to 32 channels in 4 groups"
    assert max(errors_of(subject, one).values()) < NEAR


# --- order ---


def test_linear_layers_in_a_row(two_layers: Any) -> None:
    subject, one = only("linear-chain", two_layers)
    assert "32 to 256 to 32" in one.what
    assert max(errors_of(subject, one).values()) < NEAR


def test_convolutions_in_a_row() -> None:
    def model(middle: int, pad: int) -> Any:
        net = Net(1, 16, 8, 8)
        y = net.conv(net.x, normal(middle, 16, 1, 1))
        return net.model(net.unary("Relu", net.conv(y, normal(16, middle, 3, 3, seed=1), pad)))

    subject, one = only("linear-chain", model(64, 0))
    assert max(errors_of(subject, one).values()) < NEAR
    assert none("linear-chain", model(64, 1)), "the border is not what is added"
    assert none("linear-chain", model(4, 0)), "a bottleneck is cheaper in two layers"


def test_parallel_branches() -> None:
    def model(same: bool) -> Any:
        net = Net(1, 16, 8, 8)
        x = net.unary("Relu", net.x)
        other = x if same else net.x
        one = net.conv(x, normal(16, 16, 3, 3), pad=1)
        two = net.conv(other, normal(16, 16, 1, 1, seed=1))
        y = net.binary("Add", net.binary("Add", one, two), x)
        return net.model(net.unary("Relu", y))

    subject, one = only("parallel-branches", model(same=True))
    assert one.what == "merge 3 parallel linear branches into one layer"
    assert max(errors_of(subject, one).values()) < NEAR
    assert none("parallel-branches", model(same=False))


def test_parallel_branches_inside_a_sum_with_others() -> None:
    net = Net(1, 16, 8, 8)
    x = net.unary("Relu", net.x)
    parts = [net.weight(16, 16, k, k, scale=0.1) for k in (3, 1)]
    one = net.add("Conv", [x, parts[0]], (1, 16, 8, 8), pads=[1] * 4)
    two = net.add("Conv", [x, parts[1]], (1, 16, 8, 8))
    y = net.binary("Add", net.binary("Add", one, two), net.weight(16, 1, 1))
    subject, candidate = only("parallel-branches", net.model(net.binary("Add", y, net.x)))
    assert candidate.what == "merge 2 parallel linear branches into one layer"
    assert max(errors_of(subject, candidate).values()) < NEAR


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_a_layer_behind_an_upsampling(mode: str) -> None:
    def model(kernel: int) -> Any:
        net = Net(1, 16, 6, 6)
        x = net.unary("Relu", net.x)
        scales = net.constant([1.0, 1.0, 2.0, 2.0])
        y = net.add("Resize", [x, "", scales], (1, 16, 12, 12), mode=mode)
        return net.model(net.conv(y, normal(8, 16, kernel, kernel), pad=kernel // 2))

    subject, one = only("early-pointwise", model(1))
    assert "before the upsampling" in one.what
    assert max(errors_of(subject, one).values()) < NEAR
    assert none("early-pointwise", model(3))


def test_a_layer_before_a_mean() -> None:
    net = Net(1, 16, 6, 6)
    y = net.conv(net.unary("Relu", net.x), normal(32, 16, 1, 1))
    y = net.add("GlobalAveragePool", [y], (1, 32, 1, 1))
    subject, one = only("early-pointwise", net.model(net.unary("Relu", y)))
    assert "after the mean over pixels" in one.what
    assert max(errors_of(subject, one).values()) < NEAR


def test_a_late_selection(two_layers: Any) -> None:
    subject, one = only("late-selection", two_layers)
    assert one.what == "select 1 of 64 elements before 3 products, not after"
    assert max(errors_of(subject, one).values()) < NEAR


@pytest.mark.parametrize("rank", [0, 1])
def test_a_late_gather_through_heads(rank: int) -> None:
    net = Net(1, 8, 32)
    y = net.dense(net.x, normal(32, 64))
    y = net.reshape(y, (1, 8, 4, 16))
    y = net.transpose(y, (0, 2, 1, 3))
    index = np.full((1,) * rank, 7)
    shape = (1, 4, *(1,) * rank, 16)
    y = net.add("Gather", [y, net.constant(index, np.int64)], shape, axis=2)
    subject, one = only("late-selection", net.model(y))
    assert max(errors_of(subject, one).values()) < NEAR


def test_a_selection_of_what_others_read_whole_stays() -> None:
    net = Net(1, 8, 32)
    y = net.dense(net.x, normal(32, 64))
    ends = [net.constant([n], np.int64) for n in (7, 8, 1)]
    part = net.add("Slice", [y, *ends], (1, 1, 64))
    assert none("late-selection", net.model(net.binary("Add", y, part)))


# --- conversions and layouts ---


def test_casts_there_and_back() -> None:
    def model(to: int) -> Any:
        net = Net(1, 64)
        y = net.add("Cast", [net.unary("Relu", net.x)], (1, 64), to=to)
        return net.model(net.unary("Sigmoid", net.add("Cast", [y], (1, 64), to=1)))

    subject, one = only("roundtrips", model(10))
    assert one.licence == "approximation"
    assert max(errors_of(subject, one).values()) < 1e-3
    assert none("roundtrips", model(11)), "f64 holds every f32"


def test_quantizers_of_no_use() -> None:
    def model(weight: Any) -> Any:
        net = Net(1, 8, 64)
        parts = [net.constant(0.05), net.constant(128, np.uint8)]
        y = net.add("QuantizeLinear", [net.unary("Relu", net.x), *parts], (1, 8, 64))
        y = net.add("DequantizeLinear", [y, *parts], (1, 8, 64))
        y = net.unary("Sigmoid", y) if weight is None else net.dense(y, weight)
        return net.model(y)

    _, one = only("roundtrips", model(None))
    assert "that no product reads" in one.what
    _, one = only("roundtrips", model(normal(64, 64)))
    assert one.what.startswith("remove all 1 pairs")


def test_layouts_of_inputs_and_outputs() -> None:
    net = Net(1, 8, 8, 3)
    y = net.conv(net.transpose(net.x, (0, 3, 1, 2)), normal(8, 3, 3, 3), pad=1)
    y = net.transpose(net.unary("Relu", y), (0, 2, 3, 1))
    subject, candidates = found("layout", net.model(y))
    texts = [c.what for c in candidates]
    assert texts[0] == "pass the input 'x' as [1, 3, 8, 8], not [1, 8, 8, 3]"
    assert texts[1].startswith("return the output")
    given = candidates[0].change.inputs
    assert given is not None
    assert given(subject.inputs_of(0))["x"].shape == (1, 3, 8, 8)
    assert max(errors_of(subject, *candidates[:2]).values()) < NEAR
    net = Net(1, 3, 8, 8)
    assert none("layout", net.model(net.conv(net.x, normal(8, 3, 3, 3))))


def test_operators_between_transposes() -> None:
    def model(back: tuple[int, ...]) -> Any:
        net = Net(2, 3, 8, 5)
        y = net.transpose(net.unary("Relu", net.x), (0, 2, 3, 1))
        y = net.binary("Add", y, net.constant([1.0, 2.0, 3.0]))
        y = net.unary("Softmax", y, axis=-1)
        return net.model(net.unary("Relu", net.transpose(y, back)))

    subject, one = only("layout", model((0, 3, 1, 2)))
    assert "without 2 transposes" in one.what
    assert max(errors_of(subject, one).values()) < NEAR


# --- functions ---


@pytest.mark.parametrize("decomposed", [False, True])
def test_gelu_by_tanh(decomposed: bool) -> None:
    net = Net(1, 8, 64)
    if decomposed:
        erf = net.unary("Erf", net.binary("Div", net.x, net.constant(2**0.5)))
        y = net.binary("Mul", net.x, net.binary("Add", erf, net.constant(1.0)))
        y = net.binary("Mul", y, net.constant(0.5))
    else:
        y = net.unary("Gelu", net.x)
    subject, one = only("activations", net.model(y))
    assert one.what == "compute 1 GELU by erf as GELU by tanh"
    assert 0 < max(errors_of(subject, one).values()) < 1e-3
    net = Net(1, 4)
    assert none("activations", net.model(net.unary("Relu", net.x)))


def test_silu_is_another_function() -> None:
    net = Net(1, 64)
    _, one = only("activations", net.model(net.binary("Mul", net.x, net.unary("Sigmoid", net.x))))
    assert one.licence == "retraining"


# --- inputs, outputs and how a model is built ---


def masked() -> Any:
    """Returns a model whose second input masks what a softmax reads."""
    net = Net(1, 8, 8)
    mask = net.input("mask", (1, 1, 8))
    one = net.constant(1.0)
    y = net.binary("Mul", net.binary("Sub", one, mask), net.constant(-1e9))
    return net.model(net.unary("Softmax", net.binary("Add", net.x, y), axis=-1))


def test_a_mask_of_ones() -> None:
    subject, one = only("fixed-inputs", masked())
    assert one.what == "fix the input 'mask' to ones"
    assert one.change.given is not None
    assert one.change.inputs is not None
    given = one.change.given(subject.inputs_of(0))
    assert (given["mask"] == 1).all()
    assert list(one.change.inputs(given)) == ["x"]
    net = Net(1, 8)
    other = net.input("other", (1, 8))
    assert none("fixed-inputs", net.model(net.binary("Add", net.x, other)))


def test_dead_outputs() -> None:
    text = """clew 1, frontend text
def @main(%x: f32[8, 32]) -> (f32[8, 32], f32[8, 32], f32[8, 32]) with outputs=["a", "b", "c"] {
  %0: f32[8, 32] = nn.relu(%x)
  %1: f32[8, 32] = exp(%0)
  %2: f32[8, 32] = sqrt(%0)
  %3: (f32[8, 32], f32[8, 32], f32[8, 32]) = (%0, %1, %2)
  return %3
}
"""
    subject = Subject(clew.parse(text), CompileOptions(threads=1))
    candidates = list(RULES["dead-outputs"].find(subject))
    assert [c.what for c in candidates] == [
        "drop the output 'b', if nothing reads it",
        "drop the output 'c', if nothing reads it",
        "drop all outputs but 'a', if nothing reads it",
    ]
    assert errors_of(subject, candidates[0]) == {"a": 0, "c": 0}
    assert errors_of(subject, candidates[2]) == {"a": 0}
    net = Net(1, 8)
    assert none("dead-outputs", net.model(net.unary("Relu", net.x)))


def test_fixed_sizes() -> None:
    text = """clew 1, frontend text
def @main(%x: f32[n, 32]) -> (f32[n, 32],) with outputs=["y"] {
  %0: f32[n, 32] = nn.relu(%x)
  %1: (f32[n, 32],) = (%0,)
  return %1
}
"""
    module = clew.parse(text)
    samples = [{"x": np.ones((8, 32), "f")}] * 2
    (one,) = RULES["fixed-sizes"].find(Subject(module, CompileOptions(threads=1), samples))
    assert one.what == "fix the free sizes: n=8"
    assert one.change.options == {"sizes": {"n": 8}}
    samples[1] = {"x": np.ones((4, 32), "f")}
    other = Subject(module, CompileOptions(threads=1), samples)
    assert not list(RULES["fixed-sizes"].find(other))


def test_an_input_that_is_equal_in_all_samples() -> None:
    net = Net(1, 8)
    other = net.input("other", (1, 8))
    module = load(net.model(net.binary("Add", net.x, other)))
    samples = [{"x": np.full((1, 8), n, "f"), "other": np.ones((1, 8), "f")} for n in range(3)]
    subject = Subject(module, CompileOptions(threads=1), samples)
    (one,) = RULES["fixed-inputs"].find(subject)
    assert one.what == "fix the input 'other' to ones"
    assert max(errors_of(subject, one).values()) == 0


def test_integers_and_weights_of_few_bits() -> None:
    def model(rows: int) -> Any:
        net = Net(rows, 512)
        y = net.unary("Relu", net.dense(net.x, normal(512, 512)))
        return net.model(net.dense(y, normal(512, 512, seed=1)))

    _, candidates = found("integers", model(1))
    assert [c.what for c in candidates][:2] == [
        "store the weights of 2 layers in 8 bits",
        "store the weights of 2 layers in 4 bits",
    ]
    subject, (one,) = found("integers", model(64))
    assert one.what == "multiply 8-bit integers in 2 layers"
    assert 0 < max(errors_of(subject, one).values()) < 0.2


def test_threads() -> None:
    net = Net(1, 8)
    _, candidates = found("threads", net.model(net.unary("Relu", net.x)), threads=64)
    assert candidates
    assert all(c.change.options["threads"] != 64 for c in candidates)


def test_narrow_products_where_the_machine_has_them() -> None:
    net = Net(1, 8, 32)
    model = net.model(net.dense(net.x, normal(32, 32)))
    assert none("narrow-products", model, target="cpu-avx2")


def test_widths() -> None:
    def model(width: int) -> Any:
        net = Net(1, 16, 8, 8)
        y = net.unary("Relu", net.conv(net.x, normal(width, 16, 3, 3), pad=1))
        return net.model(net.conv(y, normal(8, width, 1, 1, seed=1)))

    subject, (fewer, more) = found("widths", model(33), target="cpu-avx2")
    assert fewer.what == "32 instead of 33 channels in a layer"
    assert more.what == "40 instead of 33 channels in a layer, at no cost"
    assert more.capacity == pytest.approx(40 / 33 - 1)
    for one in (fewer, more):
        assert errors_of(subject, one), "the changed model can be built and called"
    assert none("widths", model(32), target="cpu-avx2")


def test_batches() -> None:
    def model(*shape: int) -> Any:
        net = Net(*shape)
        return net.model(net.unary("Relu", net.dense(net.x, normal(32, 32))))

    subject, one = only("batches", model(1, 8, 32))
    assert one.change.calls == 4
    assert max(errors_of(subject, one).values()) < NEAR
    assert none("batches", model(2, 8, 32))


def _no_channels() -> Any:
    net = Net(8, 16)
    return load(net.model(net.dense(net.dense(net.x, np.zeros((16, 0))), np.zeros((0, 16)))))


def _not_a_number() -> Any:
    net = Net(8, 64)
    return load(net.model(net.dense(net.x, np.full((64, 64), np.nan))))


_OPTIONAL = """clew 1
def @main(%x: optional<f32[2]>, %y: f32[2]) -> (f32[2],) with outputs=["z"] {
  %0 = optional.get(%x)
  %1 = add(%0, %y)
  %2 = (%1,)
  return %2
}
"""


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("made", [_no_channels, _not_a_number, lambda: clew.parse(_OPTIONAL)])
def test_every_rule_reads_every_model(rule: str, made: Any) -> None:
    samples = [{"x": np.ones(2, "f"), "y": np.ones(2, "f")}] * 2
    model = made()
    optional = len(model.main.params) > 1
    subject = Subject(model, CompileOptions.of({"threads": 1}), samples if optional else None)
    list(RULES[rule].find(subject))
