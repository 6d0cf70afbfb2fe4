"""Fused kernels with a known split: by construction, or from times with and without a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import clew
from clew import te
from clew.patterns import is_constant, is_op, wildcard
from clew.profile.split import Split


@clew.register_op("known.chain", overwrite=True)
def chain(x: te.Tensor, *, steps: int = 1) -> te.Tensor:
    """`steps` multiplications and additions, each dependent on the previous one."""

    def value(*index: Any) -> Any:
        result = x[index]
        for _ in range(steps):
            result = result * 0.75 + 0.25
        return result

    return te.compute(x.shape, value, "chain")


@clew.register_op("known.exps", overwrite=True)
def exps(x: te.Tensor, *, times: int = 1) -> te.Tensor:
    """exp(-x), repeatedly."""

    def value(*index: Any) -> Any:
        result = x[index]
        for _ in range(times):
            result = te.call("exp", 0.0 - result)
        return result

    return te.compute(x.shape, value, "exps")


@clew.register_op("known.first_sum", overwrite=True)
def first_sum(x: te.Tensor, *, count: int = 1) -> te.Tensor:
    """The sum of the first `count` numbers of each row."""
    k = te.reduce_axis(count, "k")
    return te.compute((x.shape[0],), lambda i: te.sum(x[i, k], k), "first_sum")


@dataclass(frozen=True)
class KnownSplit:
    """A kernel, and the known facts about it.

    `whole` is its text, `weights` its constants, and `parts` the layer of each part. `given` has
    the parts' shares if they are known by construction. `without` has the text without a part; that
    part's share is the difference in time. `fusion` and `mode` fuse the whole into one kernel, if
    clew does not do so by default.
    """

    name: str
    whole: str
    parts: Mapping[str, str]
    given: Mapping[str, float] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)
    fusion: Any = None
    mode: Any = "stack"
    weights: Mapping[str, Any] = field(default_factory=dict)

    def compile(self, text: str, threads: int = 1) -> clew.CompiledModel:
        """Returns the whole, or the rest, compiled."""
        extend: list[Any] = []
        if self.fusion is not None:

            @clew.fusion(self.fusion, self.mode, required=False)
            def known(found: Any) -> None: ...

            extend = [known]
        return clew.compile(clew.parse(text, self.weights), threads=threads, extend=extend)

    def shares(self, split: Split) -> dict[str, float]:
        """Returns the measured share of each part."""
        return {
            part: sum(o.measured or 0.0 for o in split.operators if layer in o.layers)
            for part, layer in self.parts.items()
        }


def inputs_of(compiled: clew.CompiledModel, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Returns numbers between 0 and 1 for each input."""
    rng = np.random.default_rng(seed)
    shapes = [tuple(int(d) for d in i.shape) for i in compiled.inputs]
    return [rng.random(shape, np.float32) for shape in shapes]


def _program(
    inputs: Mapping[str, str],
    operators: Sequence[str],
    result: str,
    weights: Mapping[str, Any] | None = None,
) -> str:
    """Returns the text of a program whose operators are numbered `%0` and so on; the last gives the
    result, of type `result`.
    """
    constants = [
        f"  %{name}: f32[{', '.join(map(str, w.shape))}] = const @{name}  // parameter {name}"
        for name, w in (weights or {}).items()
    ]
    commas = [","] * (len(inputs) - 1) + [""]
    head = [
        f"  %{n}: {t}{c}  // input {n}" for (n, t), c in zip(inputs.items(), commas, strict=True)
    ]
    body = [f"  %{n} = {op}  // part{n}:Op#0" for n, op in enumerate(operators)]
    end = [f"  %{len(body)} = (%{len(body) - 1},)", f"  return %{len(body)}", "}", ""]
    start = ["clew 1", "def @main("]
    sign = f') -> ({result},) with outputs=["y"] {{'
    return "\n".join([*start, *head, sign, *constants, *body, *end])


def _chained(operators: Sequence[str], x: str, result: str = "") -> str:
    """Returns the text of a chain of operators, each of which reads the previous one (as `$`)."""
    lines = [op.replace("$", f"%{n - 1}" if n else "%x") for n, op in enumerate(operators)]
    return _program({"x": x}, lines, result or x)


def known_splits() -> list[KnownSplit]:
    """Returns the kernels."""
    vector, rows = "f32[65536]", "f32[64, 4096]"
    chains = ["known.chain($, steps=8)", "known.chain($, steps=24)"]
    three = ["known.chain($, steps=4)", "known.chain($, steps=40)", "known.chain($, steps=12)"]
    exponentials = ["known.exps($, times=2)", "known.exps($, times=6)"]
    sums = [f"known.first_sum(%x, count={count})" for count in (1024, 4096)]
    product = {"x": "f32[256, 512]", "w": "f32[512, 256]"}
    tail = ["nn.matmul(%x, %w)", "known.chain(%0, steps=64)"]
    small, rng = "f32[1, 64, 28, 28]", np.random.default_rng(0)
    weights = {
        name: rng.normal(0, 0.05, (64, 64, size, size)).astype(np.float32)
        for name, size in (("w", 1), ("v", 3))
    }
    convolutions = ["nn.conv2d(%x, %w)", "nn.conv2d(%0, %v, padding=[1, 1, 1, 1])"]
    images = {"x": "f32[1, 16, 112, 112]", "w": "f32[64, 16, 1, 1]"}
    image = "f32[1, 64, 112, 112]"
    added = ["nn.conv2d(%x, %w)", "add(%0, %r)", "nn.relu(%1)"]
    smooth = ["known.chain($, steps=48)", "nn.softmax($, axis=1)"]
    any_, op = wildcard(), is_op
    return [
        KnownSplit(
            "chains of 8 and 24",
            _chained(chains, vector),
            {"8": "part0", "24": "part1"},
            given={"8": 0.25, "24": 0.75},
            without={"8": _chained(chains[1:], vector), "24": _chained(chains[:1], vector)},
        ),
        KnownSplit(
            "chains of 4, 40 and 12",
            _chained(three, vector),
            {"4": "part0", "40": "part1", "12": "part2"},
            given={"4": 4 / 56, "40": 40 / 56, "12": 12 / 56},
        ),
        KnownSplit(
            "two and six exponentials",
            _chained(exponentials, vector),
            {"2": "part0", "6": "part1"},
            given={"2": 0.25, "6": 0.75},
            without={
                "2": _chained(exponentials[1:], vector),
                "6": _chained(exponentials[:1], vector),
            },
        ),
        KnownSplit(
            "sums of 1024 and of 4096 a row",
            _program({"x": rows}, [*sums, "add(%0, %1)"], "f32[64]"),
            {"1024": "part0", "4096": "part1"},
            given={"1024": 0.2, "4096": 0.8},
            without={
                "1024": _program({"x": rows}, sums[1:], "f32[64]"),
                "4096": _program({"x": rows}, sums[:1], "f32[64]"),
            },
            fusion=op("add")(op("known.first_sum")(any_), op("known.first_sum")(any_)),
        ),
        KnownSplit(
            "product and a chain of 64",
            _program(product, tail, "f32[256, 256]"),
            {"product": "part0", "64": "part1"},
            without={
                "64": _program(product, tail[:1], "f32[256, 256]"),
                "product": _chained(["known.chain($, steps=64)"], "f32[256, 256]"),
            },
        ),
        KnownSplit(
            "convolutions of 1x1 and 3x3, stacked",
            _program({"x": small}, convolutions, small, weights),
            {"1x1": "part0", "3x3": "part1"},
            without={
                "1x1": _program(
                    {"x": small}, [convolutions[1].replace("%0", "%x")], small, weights
                ),
                "3x3": _program({"x": small}, convolutions[:1], small, weights),
            },
            fusion=op("nn.conv2d")(op("nn.conv2d")(any_, is_constant()), is_constant()),
            weights=weights,
        ),
        KnownSplit(
            "convolution, residual, ReLU",
            _program(images | {"r": image}, added, image),
            {"convolution": "part0", "residual": "part1", "ReLU": "part2"},
            without={"residual": _program(images, [added[0], "nn.relu(%0)"], image)},
        ),
        KnownSplit(
            "chain of 48, softmax",
            _chained(smooth, "f32[256, 512]"),
            {"48": "part0", "softmax": "part1"},
            without={
                "48": _chained(smooth[1:], "f32[256, 512]"),
                "softmax": _chained(smooth[:1], "f32[256, 512]"),
            },
            fusion=op("nn.softmax")(op("known.chain")(any_)),
        ),
    ]
