"""Predicts a model's latency without running it, and measures kernels into tables for that.

`plan.py` lists a model's kernels without linking objects, and `describe.py` collects facts about
them: `frequencies.py` finds how often blocks run, `assembly.py` reads the instructions of each
loop, and `throughput.py` computes their cycles; `instructions.py` counts the instructions of the
text, `addresses.py` and `footprints.py` find the cache lines that loops touch, and `program.py`
finds where operands come from. `analytic.py` estimates times from these facts, `untrained.py` makes
predictions from the estimates, and `forecast.py` holds the prediction for a model.

`network.py`, `convnets.py` and `transformers.py` make random networks; `measure.py` times kernels
in the program, and `dataset.py` adds the times to a table (`table.py` has its columns).
`predictor.py` learns the ratio to the analytic estimate, with `features.py`, `trees.py` and
`smooth.py`.
"""

from clew.predict.dataset import Collected, Subject, Wanted, collect
from clew.predict.forecast import Forecast, KernelForecast, forecast
from clew.predict.predictor import Predictor, load_predictors, save_predictors, train

__all__ = [
    "Collected",
    "Forecast",
    "KernelForecast",
    "Predictor",
    "Subject",
    "Wanted",
    "collect",
    "forecast",
    "load_predictors",
    "save_predictors",
    "train",
]
