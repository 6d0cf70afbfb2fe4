"""Models for rules, and measurements that are stated instead of taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clew.advice import Candidate, Subject, all_rules
from clew.advice.candidate import changed
from clew.advice.race import Outcome
from clew.api.compile import compile
from clew.backends.compile_options import CompileOptions
from clew.frontends import load
from clew.predict.network import Network

RULES = {rule.name: rule for rule in all_rules()}


class Net(Network):
    """A small network."""

    def __init__(self, *shape: int, integers: bool = False) -> None:
        super().__init__("net", 0)
        self.x = self.input("x", shape, integers)

    def conv(self, x: str, weight: Any, pad: int = 0, groups: int = 1) -> str:
        """Adds a convolution with a weight, and a bias."""
        weight = np.asarray(weight, np.float32)
        batch, _, height, width = self.shapes[x]
        size = [s + 2 * pad - k + 1 for s, k in zip((height, width), weight.shape[2:], strict=True)]
        bias = self.weight(len(weight), scale=0.1)
        return self.add(
            "Conv",
            [x, self.constant(weight), bias],
            (batch, len(weight), *size),
            pads=[pad] * 4,
            group=groups,
        )

    def dense(self, x: str, weight: Any) -> str:
        """Adds a matrix product with a weight, f32[inputs, outputs]."""
        weight = np.asarray(weight, np.float32)
        shape = (*self.shapes[x][:-1], weight.shape[1])
        return self.add("MatMul", [x, self.constant(weight)], shape)


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Returns random numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 0.2


def subject_of(model: Any, **options: Any) -> Subject:
    """Returns a model under advice."""
    options.setdefault("threads", 1)
    return Subject(load(model), CompileOptions.of(options))


def found(rule: str, model: Any, **options: Any) -> tuple[Subject, list[Candidate]]:
    """Returns the candidates of a rule in a model."""
    subject = subject_of(model, **options)
    return subject, list(RULES[rule].find(subject))


def errors_of(subject: Subject, *candidates: Candidate) -> dict[str, float]:
    """Returns, by name, how far outputs move with candidates, relative to the largest value."""
    module, options = changed(
        subject.module, subject.options, [candidate.change for candidate in candidates]
    )
    made = compile(module, **options.values())
    inputs: Any = subject.inputs_of(0)
    expected = subject.compiled.run(inputs)
    for candidate in candidates:
        if candidate.change.inputs is not None:
            inputs = candidate.change.inputs(inputs)
    outputs: Any = made.run(inputs)
    for candidate in candidates:
        if candidate.change.outputs is not None:
            outputs = candidate.change.outputs(outputs)
    return {
        name: float(np.abs(value - expected[name]).max() / np.abs(expected[name]).max())
        for name, value in outputs.items()
    }


@dataclass
class Stated:
    """A runner whose outcomes are stated: the ratio for each build, in order, with its interval."""

    ratios: Sequence[tuple[float, float, float]]
    ran: list[tuple[int, float]] = field(default_factory=list)
    at: Callable[[], None] = lambda: None

    def race(
        self,
        old: Any,
        new: Any,
        calls: int,
        seconds: float,
        threads: tuple[int, int] = (1, 1),
        *,
        to_win: bool = True,
    ) -> Outcome:
        """Returns the next outcome."""
        self.at()
        ratio, low, high = self.ratios[min(len(self.ran), len(self.ratios) - 1)]
        self.ran.append((calls, seconds))
        verdict = "won" if high < 1 else "lost" if low > 1 else "undecided"
        return Outcome(verdict, 1e6, ratio, low, high, 12)  # type: ignore[arg-type]


def two_linear_layers() -> Any:
    """Returns a model of two linear layers in a row, and a slice of one row of a third."""
    net = Net(1, 64, 32)
    y = net.dense(net.x, normal(32, 256))
    y = net.dense(y, normal(256, 32, seed=1))
    y = net.unary("Relu", y)
    y = net.dense(y, normal(32, 128, seed=2))
    ends = [net.constant([n], np.int64) for n in (63, 64, 1)]
    return net.model(net.add("Slice", [y, *ends], (1, 1, 128)))
