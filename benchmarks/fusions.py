"""Times users' fusions against the default: kernels, and time of a run, measured alternately.

    python benchmarks/fusions.py

Cases: blocks of Inception v1, each stacked in one kernel; reductions around a small batched
product, melted; convolution, clip and cast, as accelerators fuse them.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

import clew
import zoo
from clew.patterns import is_constant, is_op, wildcard
from clew.profile.interleave import interleaved_ns, median_ms
from harness.report import console

MELTED = """
clew 1
def @main(
  %a: f32[16, 64, 96],  // input a
  %b: f32[16, 96, 64],  // input b
  %g: f32[96]  // input g
) -> (f32[16, 64],) with outputs=["y"] {
  %0 = multiply(%a, %g)  // scale:Mul#0
  %1 = mean(%0, axes=[2], keepdims=true)  // mean:ReduceMean#0
  %2 = subtract(%0, %1)  // center:Sub#0
  %3 = nn.matmul(%2, %b)  // scores:MatMul#0
  %4 = tanh(%3)  // act:Tanh#0
  %5 = max(%4, axes=[2], keepdims=false)  // top:ReduceMax#0
  %6 = (%5,)
  return %6
}
"""
DEVICE = """
clew 1
def @main(
  %x: i8[1, 16, 28, 28],  // input x
  %w: i8[32, 16, 3, 3]  // input w
) -> (i8[1, 32, 28, 28],) with outputs=["y"] {
  %0 = cast(%x, dtype="i32")  // widen:Cast#0
  %1 = cast(%w, dtype="i32")  // widen.w:Cast#0
  %2 = nn.conv2d(%0, %1, padding=[1, 1, 1, 1])  // conv:Conv#0
  %3 = clip(%2, min=-128, max=127)  // clip:Clip#0
  %4 = cast(%3, dtype="i8")  // narrow:Cast#0
  %5 = (%4,)
  return %5
}
"""


@dataclass(frozen=True)
class Case:
    """A model and a pattern that should become one kernel."""

    name: str
    module: Any
    pattern: Any
    mode: Any


def _convolution(x: Any) -> Any:
    return is_op("nn.relu")(is_op("add")(is_op("nn.conv2d")(x, is_constant()), is_constant()))


def _cases() -> list[Case]:
    image, rows = wildcard(), is_op("multiply")(wildcard(), wildcard())
    block = is_op("concatenate")(
        _convolution(image),
        _convolution(_convolution(image)),
        _convolution(_convolution(image)),
        _convolution(is_op("nn.max_pool2d")(image)),
    )
    centered = is_op("subtract")(rows, is_op("mean")(rows))
    scores = is_op("max")(is_op("tanh")(is_op("nn.matmul")(centered, wildcard())))
    device = is_op("cast")(is_op("clip")(is_op("nn.conv2d")(wildcard(), wildcard())))
    inception = clew.load(zoo.path("light_inception_v1"))
    return [
        Case("Inception v1, blocks", inception, block, "stack"),
        Case("rows around a product", clew.parse(MELTED), scores, "melt"),
        Case("convolution, clip, cast", clew.parse(DEVICE), device, "stack"),
    ]


def _inputs(module: Any, seed: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    found = []
    for param in module.main.params:
        values = rng.standard_normal(param.tensor.concrete)
        small = param.tensor.dtype == "i8"
        found.append((values * 20).astype("i1") if small else values.astype("f4"))
    return found


def _in_turn(model: Any, feeds: list[Any]) -> Callable[[], Any]:
    following = itertools.cycle(feeds)
    return lambda: model(*next(following))


def main(
    threads: Annotated[int, typer.Option(min=1)] = 1,
    rounds: Annotated[int, typer.Option(help="Turns of each.", min=1)] = 10,
) -> None:
    """Prints kernels and medians of both, and default ÷ fused."""
    table = Table(title=f"users' fusions, threads: {threads}", title_justify="left")
    table.add_column("case")
    table.add_column("mode")
    for column in ("kernels", "default", "ms", "default, ms", "default ÷ fused"):
        table.add_column(column, justify="right")
    for case in _cases():

        @clew.fusion(case.pattern, case.mode)
        def fused(found: Any) -> None: ...

        mine = clew.compile(case.module, extend=[fused], threads=threads)
        default = clew.compile(case.module, threads=threads)
        feeds = [_inputs(case.module, seed) for seed in range(3)]
        runners = {"fused": _in_turn(mine, feeds), "default": _in_turn(default, feeds)}
        times = {n: median_ms(t) for n, t in interleaved_ns(runners, rounds).items()}
        table.add_row(
            case.name,
            case.mode,
            str(len(mine.kernels)),
            str(len(default.kernels)),
            f"{times['fused']:.3f}",
            f"{times['default']:.3f}",
            f"{times['default'] / times['fused']:.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
