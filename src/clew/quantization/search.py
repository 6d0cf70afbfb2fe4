"""Finds the smallest set of layers that must stay in floats for a bound, and proves it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.quantization.divergence import divergence
from clew.quantization.progress import Progress
from clew.quantization.simulate import Simulation
from clew.support.shown import counted

Array = NDArray[Any]
_ESTIMATED_SAMPLES: Final = 8
_COMPARED: Final = 1 << 18
"""The most elements of the outputs that are held for each layer."""


@dataclass(frozen=True)
class Put:
    """A layer of the set, and the figure if it alone of the set is quantized after all."""

    layer: str
    figure: float


@dataclass(frozen=True)
class FloatSet:
    """The layers that stay in floats so that a figure keeps its bound.

    `figure` is that of the model with them, `whole` that with all layers quantized. `proof` has,
    for each layer of the set, the figure without it, which breaks the bound: none can be left out.
    `evaluations` counts runs over all samples; `estimates` those of single layers over a few.
    `met` is False if the bound cannot be kept even in floats.
    """

    bound: float
    layers: tuple[str, ...]
    figure: float
    whole: float
    proof: tuple[Put, ...]
    evaluations: int
    estimates: int
    met: bool = True

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Returns the set and its proof in words."""
        found = [
            f"bound {self.bound:g}: {self.figure:.3g} with {len(self.layers)} in floats, "
            f"{self.whole:.3g} with none"
        ]
        found += [f"  {put.layer}: {put.figure:.3g} if quantized as well" for put in self.proof]
        runs = counted(self.evaluations, "evaluation")
        return [*found, f"{runs} over all samples, {self.estimates} of single layers over a few"]


@dataclass
class Judge:
    """Evaluates choices of layers: `figure(quantized)` is bounded; smaller is better."""

    simulation: Simulation
    bound: float
    figure: Callable[[Collection[str]], float]
    evaluations: int = 0
    known: dict[frozenset[str], float] = field(default_factory=dict)

    def of(self, floats: Collection[str]) -> float:
        """Returns the figure if these layers stay in floats."""
        key = frozenset(floats)
        if key not in self.known:
            self.evaluations += 1
            self.known[key] = self.figure([n for n in self.simulation.names if n not in key])
        return self.known[key]

    def keeps(self, floats: Collection[str]) -> bool:
        """Whether the bound is kept if these layers stay in floats."""
        return self.of(floats) <= self.bound


@dataclass(frozen=True)
class Sensitivity:
    """The change of the outputs, over a few samples, if one layer alone is quantized: a row per
    layer. Changes of several layers together are estimated by their sum. If outputs have many
    elements, a random sample is held, scaled to the length of the whole change.
    """

    names: tuple[str, ...]
    changes: Array
    length: float
    divergences: tuple[float, ...] = ()

    def alone(self) -> dict[str, float]:
        """The error of each layer alone, relative to the outputs."""
        lengths = np.linalg.norm(self.changes, axis=1) / self.length
        return dict(zip(self.names, map(float, lengths), strict=True))

    def divergence(self) -> dict[str, float]:
        """The divergence of logits that each layer alone causes; empty without logits."""
        return dict(zip(self.names, self.divergences, strict=True)) if self.divergences else {}

    def order(self) -> list[str]:
        """The layers in the order in which leaving them in floats is estimated to help most."""
        left = self.changes.sum(axis=0)
        remaining = list(range(len(self.names)))
        found: list[str] = []
        products = self.changes @ self.changes.T
        with_left = self.changes @ left
        while remaining:
            # |left - c|^2 = |left|^2 - 2 c.left + |c|^2: the smallest remainder.
            gains = [2 * with_left[n] - products[n, n] for n in remaining]
            best = remaining[int(np.argmax(gains))]
            found.append(self.names[best])
            remaining.remove(best)
            with_left = with_left - products[:, best]
        return found

    def estimate(self, floats: Collection[str]) -> float:
        """Returns the estimated error if these layers stay in floats."""
        rows = [n for n, name in enumerate(self.names) if name not in floats]
        return float(np.linalg.norm(self.changes[rows].sum(axis=0)) / self.length)


def sensitivity(
    simulation: Simulation, progress: Progress, logits: int | None = None
) -> Sensitivity:
    """Returns the sensitivity of each site. `logits` is the number of an output of logits."""
    count = min(_ESTIMATED_SAMPLES, len(simulation.exact))
    runs = simulation.exact[:count]
    exact = _stacked(simulation, runs)
    some = _some_of(exact.size)
    rows, divergences = [], []
    for name in progress.over("alone", simulation.names, "layer"):
        found = list(simulation.runs((name,), count))
        change = _stacked(simulation, found) - exact
        kept = change[some]
        length, left = (float(np.linalg.norm(x)) for x in (change, kept))
        rows.append(kept * (length / left) if left else kept)
        if logits is not None:
            pairs = ([run[logits] for run in each] for each in (runs, found))
            divergences.append(divergence(*pairs))
    changes = np.stack(rows) if rows else np.zeros((0, exact.size))
    length = max(float(np.linalg.norm(exact)), float(np.finfo(np.float32).tiny))
    return Sensitivity(tuple(simulation.names), changes, length, tuple(divergences))


def _some_of(size: int) -> Any:
    """Returns indices of some elements: all of them if they are few."""
    if size <= _COMPARED:
        return slice(None)
    return np.sort(np.random.default_rng(0).choice(size, _COMPARED, replace=False))


def by_local_errors(names: Sequence[str], noise: Sequence[float]) -> Sensitivity:
    """Returns a sensitivity for outputs without a distance: each layer changes them independently,
    as much as its own result.
    """
    return Sensitivity(tuple(names), np.diag(np.asarray(noise, np.float64)), 1.0)


def _stacked(simulation: Simulation, runs: Sequence[Sequence[Array]]) -> Array:
    flat = [o.reshape(-1) for run in runs for o in simulation.floats(list(run))]
    return np.concatenate(flat).astype(np.float32) if flat else np.zeros(1, np.float32)


def smallest_floats(judge: Judge, found: Sensitivity, say: Callable[[str], None]) -> FloatSet:
    """Returns a set of layers to keep in floats from which none can be left out.

    The set begins with the first layers of the estimated order that keep the bound, whose number is
    found by bracketing and bisection around the estimate. Then each layer is put back, the one with
    the least estimated effect first, and stays out if the bound holds. It ends when every layer of
    the set was put back without success.
    """
    order = found.order()
    say("all layers quantized")
    whole = judge.of(())
    if whole <= judge.bound:
        return FloatSet(judge.bound, (), whole, whole, (), judge.evaluations, len(order))
    if judge.of(order) > judge.bound:
        figure = judge.of(order)
        return FloatSet(
            judge.bound, tuple(order), figure, whole, (), judge.evaluations, len(order), met=False
        )
    count = _enough(judge, order, _estimated_count(judge, found, order), say)
    kept = _minimal(judge, order[:count], found, say)
    proof = tuple(Put(n, judge.of([k for k in kept if k != n])) for n in kept)
    return FloatSet(
        judge.bound, tuple(kept), judge.of(kept), whole, proof, judge.evaluations, len(order)
    )


def _estimated_count(judge: Judge, found: Sensitivity, order: Sequence[str]) -> int:
    whole = found.estimate(())
    scale = judge.of(()) / whole if whole else 1.0
    for count in range(1, len(order) + 1):
        if found.estimate(order[:count]) * scale <= judge.bound:
            return count
    return len(order)


def _enough(judge: Judge, order: Sequence[str], guess: int, say: Callable[[str], None]) -> int:
    """Returns a number of first layers that keeps the bound while one less does not."""
    low, high, step, number = 0, len(order), 1, guess  # `low` is too few, `high` is enough
    while high - low > 1 and low < number < high:
        say(f"the first {number} layers in floats")
        if judge.keeps(order[:number]):
            high, number = number, number - step
        else:
            low, number = number, number + step
        step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        say(f"the first {middle} layers in floats")
        if judge.keeps(order[:middle]):
            high = middle
        else:
            low = middle
    return high


def _minimal(
    judge: Judge, layers: Sequence[str], found: Sensitivity, say: Callable[[str], None]
) -> list[str]:
    kept = list(layers)

    def effect(name: str) -> float:
        return found.estimate([k for k in kept if k != name])

    changed = True
    while changed:
        changed = False
        for name in sorted(kept, key=effect):
            say(f"{name} put back")
            fewer = [k for k in kept if k != name]
            if judge.keeps(fewer):
                kept, changed = fewer, True
                break
    return kept


@dataclass(frozen=True)
class Step:
    """A step of the frontier: `layer` stays in floats as well (none in the first step), and the
    figure with it, evaluated over all samples or estimated.
    """

    layer: str
    figure: float
    evaluated: bool


def frontier(judge: Judge, found: Sensitivity) -> tuple[Step, ...]:
    """Returns the figures as one layer after the other stays in floats, in the estimated order."""
    order = found.order()
    whole = found.estimate(())
    scale = judge.known.get(frozenset(), whole) / whole if whole else 1.0
    steps = []
    for count in range(len(order) + 1):
        known = judge.known.get(frozenset(order[:count]))
        figure = found.estimate(order[:count]) * scale if known is None else known
        steps.append(Step(order[count - 1] if count else "", figure, known is not None))
    return tuple(steps)
