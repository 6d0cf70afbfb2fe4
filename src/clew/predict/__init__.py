"""Measures kernels into tables, and predicts a model's latency from these without running it.

`network.py`, `convnets.py` and `transformers.py` make random networks; `measure.py` times kernels
in the program, and `dataset.py` adds the times to a table (`table.py` has its columns). `plan.py`
lists a model's kernels without generating code; `describe.py` collects their facts:
`instructions.py` counts the instructions, `addresses.py` and `footprints.py` find the cache lines
that loops touch, and `program.py` where operands come from. `predictor.py` learns with
`features.py`, `linear.py`, `trees.py` and `smooth.py`; `forecast.py` holds its prediction for a
model.
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
