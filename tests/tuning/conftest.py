"""Small models to tune, and a bench whose kernels take times by a known law."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.frontends import onnx
from clew.ir.module import Module
from clew.machine.probes.quiet import Quiet
from clew.predict.network import Network
from clew.records.trial import Outcome
from clew.tuning import screening, workbench
from clew.tuning.sequential import Demand
from clew.tuning.workbench import Workbench


def small_network(channels: int = 24, columns: int = 10, size: int = 14) -> Any:
    """Returns an ONNX model: a convolution, pooling, and a dense layer.

    The convolution has a stride: Winograd's algorithm does not compute it on any machine.
    """
    net = Network("small", channels)
    x = net.input("x", (1, 8, size, size))
    weight = net.weight(channels, 8, 3, 3, scale=0.2)
    y = net.add(
        "Conv", [x, weight, net.weight(channels)], (1, channels, size // 2, size // 2),
        pads=[1] * 4, kernel_shape=[3, 3], strides=[2, 2], group=1,
    )  # fmt: skip
    y = net.unary("Relu", y)
    y = net.add("GlobalAveragePool", [y], (1, channels, 1, 1))
    y = net.reshape(y, (1, channels))
    y = net.add("Gemm", [y, net.weight(channels, columns), net.weight(columns)], (1, columns))
    return net.model(net.unary("Softmax", y, axis=-1))


@pytest.fixture
def module() -> Module:
    return onnx.load(small_network())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    path.write_bytes(small_network().SerializeToString())
    return path


class Trusting(Quiet):
    """Says that the core is always undisturbed."""

    def __init__(self) -> None:
        pass

    def begin(self) -> bool:
        return True

    def is_so(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests disturb the core all the time."""
    trust(monkeypatch)


def trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes searches take the core for undisturbed."""
    for module in (screening, workbench):
        monkeypatch.setattr(module, "quiet", Trusting)


def law(choices: str) -> float:
    """Returns the ratio to the default's time: less for fewer lanes in a window, by the text."""
    numbers = [int(word.partition("=")[2]) for word in choices.split() if "=" in word]
    return 0.5 + 0.5 * float(np.tanh(sum(numbers) / 40.0)) if numbers else 1.0


@pytest.fixture
def lawful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of kernels follow `law` instead of being measured; all else is real."""
    follow_law(monkeypatch)


def follow_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes times of kernels follow `law`."""

    def measured(
        self: Workbench, incumbents: Any, lanes: Sequence[Any], demand: Demand,
        seconds: float = 60.0, *, until_decided: bool = True,
    ) -> list[Outcome]:  # fmt: skip
        defaults = {
            subject: str(use.source.plan.request)
            for subject, use in zip(self._of_use, self.base.uses, strict=True)
        }
        found = []
        for lane in lanes:
            for subject, choices in lane.items():
                old = law(incumbents.get(subject, defaults[subject]))
                ratio = law(choices) / old
                state = "won" if ratio < 0.99 else "lost"
                found.append(
                    Outcome(
                        subject, choices, state, ns=1e3 * ratio * old, q1_ns=900.0 * ratio * old,
                        q3_ns=1.1e3 * ratio * old, against_ns=1e3 * old, pairs=12, ratio=ratio,
                    )
                )  # fmt: skip
        return found

    monkeypatch.setattr(Workbench, "measured", measured)
    monkeypatch.setattr(
        Workbench, "screened", lambda self, subject, incumbent, candidates: (list(candidates), [])
    )
    monkeypatch.setattr(workbench, "_FINALISTS", 100)
