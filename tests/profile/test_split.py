"""Splits of kernels by sampling: against what is known of them, and how samples are sorted."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import clew
import zoo
from clew.backends.cpu.kernel_stages import operator_calls
from clew.profile import sampling
from clew.profile.blame import Blame, samples_are_late
from clew.profile.sampling import ENOUGH, UseSamples, sample_kernels
from clew.profile.split import Split, _Kernel, estimated_splits, split_kernels
from clew.runtime.driver import driver
from clew.runtime.sampler import Samples, sampling_supported
from clew.support.errors import InputError
from harness.known_splits import KnownSplit, inputs_of, known_splits

needs_sampling = pytest.mark.skipif(not sampling_supported(), reason="no sampler for this platform")
KNOWN = {case.name: case for case in known_splits()}

TWICE = """
clew 1
def @main(
  %x: f32[64, 256],  // input x
  %y: f32[64, 256]  // input y
) -> (f32[64, 256], f32[64, 256]) with outputs=["u", "v"] {
  %0 = tanh(%x)  // a:Tanh#0
  %1 = exp(%0)  // b:Exp#0
  %2 = nn.softmax(%1)  // s:Softmax#0
  %3 = tanh(%y)  // c:Tanh#0
  %4 = exp(%3)  // d:Exp#0
  %5 = (%2, %4)
  return %5
}
"""


def split_of(case: KnownSplit, threads: int = 1) -> Split:
    """Samples a known kernel, the longer the busier the machine is."""
    compiled = case.compile(case.whole, threads)
    arrays = inputs_of(compiled)
    for attempt in range(7):
        (split,) = split_kernels(compiled, arrays, seconds=0.25 * 2**attempt).values()
        if split.samples >= ENOUGH:
            break
    return split


@needs_sampling
@pytest.mark.parametrize("name", [name for name, case in KNOWN.items() if case.given])
def test_shares_are_within_ten_points_of_what_is_known(name: str) -> None:
    case = KNOWN[name]
    split = split_of(case)
    assert split.samples >= ENOUGH
    assert 0 < split.error <= 0.025
    shares = case.shares(split)
    assert shares == pytest.approx(case.given, abs=0.1)
    assert sum(o.measured or 0 for o in split.operators) == pytest.approx(1)
    assert sum(o.samples for o in split.operators) == pytest.approx(split.samples)
    assert sum(line.samples for line in split.lines) == pytest.approx(split.samples)
    assert sum(line.share for line in split.lines) == pytest.approx(1)


@needs_sampling
def test_two_threads_split_alike() -> None:
    case = KNOWN["chains of 8 and 24"]
    assert case.shares(split_of(case, threads=2)) == pytest.approx(case.given, abs=0.1)


@needs_sampling
def test_uses_of_one_kernel_are_told_apart() -> None:
    """A kernel of two operators that is used twice: each use has samples of its own."""
    text = """
clew 1
def @main(
  %x: f32[128, 256]  // input x
) -> (f32[128, 256],) with outputs=["y"] {
  %0 = nn.softmax(%x)  // one:Softmax#0
  %1 = exp(%0)  // a:Exp#0
  %2 = tanh(%1)  // b:Tanh#0
  %3 = nn.softmax(%2)  // two:Softmax#0
  %4 = exp(%3)  // c:Exp#0
  %5 = tanh(%4)  // d:Tanh#0
  %6 = (%5,)
  return %6
}
"""
    compiled = clew.compile(clew.parse(text), threads=1)
    uses = compiled.build.uses
    several = [u for u in uses if len(operator_calls(u.call.op)) > 1]
    same = [u for u in several if u.source.key == several[0].source.key]
    for attempt in range(7):
        found = sample_kernels(compiled, inputs_of(compiled), seconds=0.25 * 2**attempt)
        counts = [found.uses[u.call.id].total for u in same]
        if sum(counts) >= ENOUGH:
            break
    assert len(counts) == 2
    assert min(counts) > max(counts) / 2 > 0
    splits = split_kernels(compiled, inputs_of(compiled), seconds=0.1)
    assert set(splits) == {u.call.id for u in compiled.build.uses}
    layers = {splits[u.call.id].operators[-1].layers for u in same}
    assert layers == {("b",), ("d",)}


@needs_sampling
def test_memory_that_a_kernel_overwrites_is_restored() -> None:
    """A kernel that reads and writes one buffer works on the same operand each time."""
    text = """
clew 1
def @main(
  %x: f32[64, 512]  // input x
) -> (f32[64, 512],) with outputs=["y"] {
  %0 = nn.softmax(%x)  // s:Softmax#0
  %1 = exp(%0)  // e:Exp#0
  %2 = nn.softmax(%1)  // t:Softmax#0
  %3 = (%2,)
  return %3
}
"""
    compiled = clew.compile(clew.parse(text), threads=1)
    arrays = inputs_of(compiled)
    before = compiled(*arrays)
    sample_kernels(compiled, arrays, seconds=0.1)
    assert np.array_equal(compiled(*arrays), before)


@needs_sampling
def test_addresses_outside_of_the_step_that_runs() -> None:
    compiled = clew.compile(clew.parse(TWICE), threads=1)
    build = compiled.build
    arrays = inputs_of(compiled)
    segments = sampling._segments(build, arrays)
    (segment,) = segments
    account = sampling._Account(build, segments)
    first, other = segment.uses[:2]
    assert first.source.key != other.source.key
    entries = [build.binaries[u.source.key].code.entries[0].symbol for u in (first, other)]
    inside, elsewhere = (segment.native.function_address(symbol) for symbol in entries)
    waiting = driver().address("clew_run_steps")
    addresses = np.array([inside, inside + 1, elsewhere, waiting, 16, 2**63 + 5], np.uint64)
    with segment.native.prepared(arrays) as context:
        steps = np.zeros(6, np.int64)
        account.add(segment, context, Samples(addresses, steps, steps, 2))
        idle = np.full(3, -1)
        account.add(segment, context, Samples(addresses[:3], idle, idle, 0))
    samples = account.uses[first.call.id]
    assert (samples.total, samples.waiting, samples.elsewhere) == (2, 1, 3)
    assert (account.between, account.lost) == (3, 2)
    assert account.uses[other.call.id] == UseSamples()


def test_what_serves_several_is_divided_as_they_measure_alone() -> None:
    compiled = clew.compile(clew.parse(TWICE), threads=1)
    use = next(u for u in compiled.build.uses if len(operator_calls(u.call.op)) == 2)
    lines = use.source.printed.stages
    alone = {stages[0]: n for n, stages in enumerate(lines, 1) if len(stages) == 1}
    kernel = _Kernel(use.source, 2, compiled.build.number)
    assert kernel._divide({alone["tanh"]: 30, alone["exp"]: 10, 1: 20}) == [45, 15]
    assert kernel._divide({alone["exp"]: 10, 1: 20}) == [0, 30]
    by_flops = kernel._divide({1: 20})
    assert by_flops == pytest.approx([10, 10])
    assert kernel._divide({}) == [0, 0]


def test_estimates_need_no_run() -> None:
    compiled = clew.compile(clew.parse(TWICE), threads=1)
    splits = estimated_splits(compiled)
    assert set(splits) == {u.call.id for u in compiled.build.uses}
    for use in compiled.build.uses:
        split = splits[use.call.id]
        assert (split.kernel, split.samples, split.lines, split.error) == (use.name, 0, (), 0)
        assert sum(o.by_flops for o in split.operators) == pytest.approx(1)
        assert sum(o.by_bytes for o in split.operators) == pytest.approx(1)
        several = len(split.operators) > 1
        assert all((o.measured is None) == several for o in split.operators)


def test_bytes_of_an_operator_are_those_of_a_kernel_of_its_own() -> None:
    case = KNOWN["product and a chain of 64"]
    splits = estimated_splits(case.compile(case.whole)).values()
    (split,) = (split for split in splits if len(split.operators) > 1)  # the rest packs an operand
    product, chain = 256 * 512 + 512 * 256 + 256 * 256, 2 * 256 * 256
    assert split.operators[0].by_bytes == pytest.approx(product / (product + chain))
    flops = 2 * 256 * 256 * 512, 2 * 64 * 256 * 256
    assert split.operators[0].by_flops == pytest.approx(flops[0] / sum(flops))


def test_blame_keeps_every_sample() -> None:
    compiled = KNOWN["chains of 8 and 24"].compile(KNOWN["chains of 8 and 24"].whole)
    data = compiled.kernels[0].object_code
    for late in (False, True):
        blame = Blame(data, late)
        offsets = {i.address: n + 1 for n, i in enumerate(blame._instructions)}
        lines = blame.lines(offsets)
        assert sum(lines.values()) == pytest.approx(sum(offsets.values()))
        assert set(lines) <= set(range(1, len(compiled.kernels[0].loops.splitlines()) + 1))


def test_late_samples_are_about_the_instruction_before() -> None:
    case = KNOWN["convolution, residual, ReLU"]
    compiled = case.compile(case.whole)
    data = compiled.kernels[0].object_code
    blame, exact = Blame(data, True), Blame(data, False)
    instructions = blame._instructions
    for before, here in pairwise(instructions):
        assert exact.instruction(here.address) is here
        led_to = here.address in blame._targets or here.function != before.function
        assert blame.instruction(here.address) is (here if led_to else before)


@needs_sampling
def test_the_machine_says_whether_samples_are_late() -> None:
    assert samples_are_late() in (False, True)


@needs_sampling
def test_models_of_symbolic_sizes_and_several_segments() -> None:
    text = """
clew 1
def @main(
  %x: f32[n, 64]  // input x
) -> (f32[n, 64],) with outputs=["y"] {
  %0 = exp(%x)  // e:Exp#0
  %1 = tanh(%0)  // t:Tanh#0
  %2 = (%1,)
  return %2
}
"""
    compiled = clew.compile(clew.parse(text), threads=1)
    x = np.random.default_rng(0).random((300, 64), np.float32)
    (split,) = split_kernels(compiled, [x], seconds=0.2).values()
    assert [o.op for o in split.operators] == ["exp", "tanh"]
    with pytest.raises(InputError, match="inputs given") as error:
        split_kernels(compiled, [x, x])
    assert error.value.code == "I040"


def test_a_model_without_kernels_has_no_splits() -> None:
    text = """
clew 1
def @main(
  %x: f32[4, 6]  // input x
) -> (f32[24],) with outputs=["y"] {
  %0 = reshape(%x, shape=[24])  // r:Reshape#0
  %1 = (%0,)
  return %1
}
"""
    compiled = clew.compile(clew.parse(text), threads=1)
    assert split_kernels(compiled, [np.zeros((4, 6), np.float32)]) == {}


@needs_sampling
def test_branches_that_do_not_run_are_estimated() -> None:
    """Of two branches that hold a kernel of two operators each, inputs choose one."""
    compiled = clew.compile(clew.load(zoo.path("if_branches")), threads=1)
    feed = list(zoo.inputs("if_branches").values())
    splits = split_kernels(compiled, feed, seconds=0.1)
    assert set(splits) == {u.call.id for u in compiled.build.uses}
    ran = {c for c, use in sample_kernels(compiled, feed, seconds=0.05).uses.items() if use.total}
    for call, split in splits.items():
        if call not in ran and len(split.operators) > 1:
            assert all(o.measured is None for o in split.operators)
