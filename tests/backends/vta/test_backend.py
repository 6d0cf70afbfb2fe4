"""VTA as a backend: what it takes, and its results, bit for bit those of the graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vta_networks import Network, check, module_of, operand, regions_of

import clew
from clew.backends.vta import Engine, Simulator
from clew.backends.vta.backend import Vta
from clew.backends.vta.recognize import quantized_convolution
from clew.backends.vta.regions import VtaRegion
from clew.ir.expr import Constant, Expr
from clew.ir.module import Module
from clew.ir.visit import post_order
from clew.machine.target import target_of
from clew.patterns import find_all


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("shape", "outputs", "kernel", "stride"),
    [
        ((1, 16, 8, 8), 16, 3, 1),
        ((1, 32, 7, 9), 48, 3, 2),
        ((1, 20, 5, 5), 17, 1, 1),
        ((2, 16, 6, 6), 16, 5, 1),
        ((1, 64, 14, 14), 64, 3, 1),
        ((1, 32, 9, 9), 16, 1, 2),
    ],
)
def test_a_convolution_with_its_epilogue(
    shape: tuple[int, ...], outputs: int, kernel: int, stride: int, overlap: bool
) -> None:
    net, x = Network(0), operand(*shape)
    check(module_of(x, net.conv(x, outputs, kernel, stride)), overlap=overlap)
    net = Network(1)
    check(module_of(x, net.conv(x, outputs, kernel, stride, relu=False)), overlap=overlap)


@pytest.mark.parametrize("skip_scale", [2.0**-4, 2.0**-2, 2.0**-9])
def test_an_addition_is_part_of_the_convolution(skip_scale: float) -> None:
    net, x = Network(2), operand(1, 32, 8, 8)
    first = net.conv(x, 32)
    module = module_of(x, net.conv(first, 32, skip=x, skip_scale=skip_scale))
    compiled = check(module)
    (region,) = compiled.regions
    assert region.ops.count("nn.conv2d") == 2
    assert region.ops.count("add") == 3


def test_a_chain_with_branches_is_one_region_with_several_results() -> None:
    net, x = Network(3), operand(1, 16, 8, 8)
    a = net.conv(x, 32)
    b = net.conv(a, 32, stride=2)
    c = net.conv(a, 32, kernel=1, stride=2)
    d = net.conv(b, 32, skip=c)
    check(module_of(x, d, c))


@pytest.mark.parametrize("seed", range(12))
def test_random_networks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    net, x = Network(seed), operand(1, int(rng.integers(16, 40)), *map(int, rng.integers(4, 12, 2)))
    values: list[Expr] = [x]
    for _ in range(int(rng.integers(2, 6))):
        source = values[rng.integers(len(values))]
        outputs = int(rng.integers(16, 40))
        skips = [
            v for v in values if v.tensor.concrete == (1, outputs, *source.tensor.concrete[2:])
        ]
        same = skips[0] if skips and rng.random() < 0.7 else None
        kernel = int(rng.choice([1, 3]))
        stride = 1 if same is not None else int(rng.choice([1, 2]))
        values.append(net.conv(source, outputs, kernel, stride, skip=same, relu=rng.random() < 0.7))
    check(module_of(x, *values[-2:]), seeds=2)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"out_scale": 0.1}, "the scale of the result is not a power of two"),
        ({"weight_scale": 0.01}, "the scale of the sums is not a power of two"),
        ({"quarter": 0.0}, "its sums may be midway between two integers"),
        ({"quarter": 0.3}, "f32 does not have all of its sums"),
        ({"out_scale": 2.0**-12}, "its sums are multiplied by 2**3"),
        ({"out_scale": 2.0**6}, "its sums are multiplied by 2**-15"),
    ],
)
def test_what_it_does_not_compute_exactly_stays_on_the_cpu(
    options: dict[str, float], why: str
) -> None:
    net, x = Network(4), operand(1, 16, 6, 6)
    module = module_of(x, net.conv(x, 16, **options))  # type: ignore[arg-type]
    check(module, convolutions=0)
    assert reason(module) == why


def reason(module: Module) -> str:
    """Returns why VTA does not compute a module's only convolution with all that follows it."""
    return Vta().why_not_match(find_all(quantized_convolution(), module.main)[-1])


@pytest.mark.parametrize("features", ["", "+avx512vnni", "+avx512vnni,+amx-int8,+amx-tile"])
@pytest.mark.parametrize("name", ["cpu-avx2", "cpu-avx512"])
def test_what_the_host_multiplies_changes_nothing(name: str, features: str) -> None:
    target = target_of(name)
    target = replace(target, features=",".join(filter(None, (target.features, features))))
    net, x = Network(6), operand(1, 16, 6, 6)
    module = module_of(x, net.conv(x, 16, skip=x))
    compiled = clew.compile(module, backends=[Vta()], target=target, cache=False)
    assert [op for region in compiled.regions for op in region.ops].count("nn.conv2d") == 1


def test_an_addend_with_too_large_a_scale_stays_on_the_cpu() -> None:
    net, x = Network(5), operand(1, 16, 6, 6)
    module = module_of(x, net.conv(x, 16, skip=x, skip_scale=2.0**5, out_scale=2.0**5))
    assert reason(module) == "its addend is multiplied by 2**14"
    check(module, convolutions=0)


def test_sums_beyond_the_exact_numbers_of_f32_are_clipped_alike() -> None:
    """The largest shifts, with sums of up to 2**23 that an addend moves back to the border."""
    net, x = Network(6), operand(1, 512, 6, 6)
    module = module_of(
        x, net.conv(x, 512, 1, skip=x, skip_scale=2.0**4, out_scale=2.0**5, relu=False)
    )
    assert reason(module) == ""
    compiled = clew.compile(module, backends=[Vta()], cache=False)
    plain = clew.compile(module, cache=False)
    (weight,) = [n.data for n in post_order(module.main.body) if isinstance(n, Constant)
                 and n.data.dtype == np.int8 and n.data.ndim == 4]  # fmt: skip
    for row in range(0, 512, 37):  # the operand that makes one channel's sum as large as can be
        extreme = np.where(weight[row, :, 0, 0] > 0, 127, -128).astype("i1")
        value = np.broadcast_to(extreme[None, :, None, None], (1, 512, 6, 6)).copy()
        value[..., 3:] = np.random.default_rng(row).integers(-128, 128, (1, 512, 6, 3))
        np.testing.assert_array_equal(compiled(value), plain(value))


def test_few_channels_stay_on_the_cpu() -> None:
    net, x = Network(5), operand(1, 3, 8, 8)
    compiled = check(module_of(x, net.conv(net.conv(x, 16), 16)), convolutions=1)
    (region,) = compiled.regions
    assert region.ops.count("nn.conv2d") == 1
    assert region.layers[0] == "layer2"


def test_a_saved_model_runs_again(tmp_path: Path) -> None:
    net, x = Network(6), operand(1, 16, 8, 8)
    compiled = check(module_of(x, net.conv(net.conv(x, 32), 16, skip=x)))
    compiled.save(tmp_path / "model.clew")
    loaded = clew.load_compiled(tmp_path / "model.clew", backends=[Vta()])
    value = np.random.default_rng(9).integers(-128, 128, (1, 16, 8, 8)).astype("i1")
    np.testing.assert_array_equal(loaded(value), compiled(value))


def test_instructions_lead_to_layers_and_overlap_saves_cycles() -> None:
    net, x = Network(7), operand(1, 256, 14, 14)
    module = module_of(x, net.conv(net.conv(x, 256), 256, skip=x))
    found = {o: regions_of(check(module, seeds=1, overlap=o))[0] for o in (False, True)}
    timing = found[True].timing
    layers = {la for index in range(len(timing.program.instructions)) for la in
              timing.program.layers(index)}  # fmt: skip
    assert layers == {"layer1", "layer2"}
    assert timing.cycles < 0.95 * found[False].timing.cycles
    assert timing.utilization > 0.9
    assert timing.busy(Engine.COMPUTE) <= timing.cycles


def test_a_small_machine_computes_the_same() -> None:
    config = Vta().config.replace(
        block_in=4, block_out=4, inp_bytes=128 * 4, wgt_bytes=64 * 16, acc_bytes=128 * 16
    )
    net, x = Network(8), operand(1, 8, 6, 6)
    module = module_of(x, net.conv(net.conv(x, 8), 8, skip=x))
    check(module, config=config)


def test_the_simulator_runs_the_program_alone() -> None:
    net, x = Network(9), operand(1, 16, 4, 4)
    (region,) = regions_of(check(module_of(x, net.conv(x, 16))))
    assert isinstance(region, VtaRegion)
    zeros = np.zeros((16, 1, 16), np.int8)
    (found,) = Simulator(region.config).run(region.program, {"x0": zeros}).values()
    assert found.shape == (16, 1, 16)


def test_a_network_quantized_by_powers_of_two() -> None:
    """From floats to VTA: all but the first layer and the last ones."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a = torch.nn.Conv2d(3, 32, 3, padding=1)
            self.b = torch.nn.Conv2d(32, 32, 3, padding=1)
            self.c = torch.nn.Conv2d(32, 64, 3, stride=2, padding=1)
            self.d = torch.nn.Linear(64 * 36, 10)

        def forward(self, x: Any) -> Any:
            for layer in (self.a, self.b, self.c):
                x = torch.relu(layer(x))
            return self.d(x.flatten(1))

    shape = (1, 3, 12, 12)
    module = clew.from_torch(Net().eval(), (torch.zeros(shape),))
    rng = np.random.default_rng(0)
    feeds = [(rng.standard_normal(shape, np.float32),) for _ in range(4)]
    scheme = clew.quantization.Scheme(
        activations="i8", granularity="tensor", scales="power_of_two", migration=False
    )
    quantized = clew.quantize(module, feeds, scheme=scheme)
    plain = clew.compile(quantized.module, threads=1)
    compiled = clew.compile(quantized.module, threads=1, backends=["vta"])
    convolutions = [op for r in compiled.regions for op in r.ops if op == "nn.conv2d"]
    assert len(convolutions) == 2
    for (x,) in feeds:
        np.testing.assert_array_equal(compiled(x), plain(x))
