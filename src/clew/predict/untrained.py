"""Predicts without training, by the analytic model, with ranges from its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from clew.machine.target import Target, rates_of
from clew.predict.analytic import Analytic
from clew.predict.predicted import Predicted

Columns = Mapping[str, Any]

# Half the widths of ranges of logarithms that contain 90 % of the measured times of 40 random
# networks (benchmarks/predicting.py), by whether a kernel computes for longer than it fetches
# lines, and by whether it is long.
_SPREAD: Final = {(True, True): 0.16, (True, False): 0.49, (False, True): 0.4, (False, False): 0.51}
_LONG_NS: Final = 5000.0
# The same for the sum of a network's kernels.
_TOTAL: Final = 0.2
# The factor for rates that follow from a description: chosen, not measured.
_DESCRIBED: Final = 3.0
# Python's share of a call.
_OVERHEAD_NS: Final = 4000.0


class Untrained:
    """Predicts kernels for one target from their instructions and cache lines."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.measured = rates_of(target)[1]

    def predict(
        self, columns: Columns, *, lookup: bool = True, runs: Sequence[int] | None = None
    ) -> Predicted:
        """Returns the times of the kernels of one program; see `Predictor.predict`."""
        times, computing = Analytic.of(self.target).estimate(columns)
        wider = 1.0 if self.measured else _DESCRIBED
        kinds = zip(computing.tolist(), (times > _LONG_NS).tolist(), strict=True)
        spread = wider * np.array([_SPREAD[kind] for kind in kinds])
        times = times * (1.0 if runs is None else np.asarray(runs, float))
        total, wide = float(times.sum() + _OVERHEAD_NS), float(np.exp(wider * _TOTAL))
        return Predicted(
            times,
            times * np.exp(-spread),
            times * np.exp(spread),
            np.zeros(len(times), bool),
            _OVERHEAD_NS,
            total,
            total / wide,
            total * wide,
        )

    def unfamiliar(self, columns: Columns) -> list[str]:
        """Returns an empty text for each kernel: no kernel is unfamiliar without training."""
        return [""] * len(columns["rules"])
