"""Measures kernels into tables, and predicts from these what a model will take, without a run.

`network.py`, `convnets.py` and `transformers.py` draw networks; `measure.py` times kernels in the
program, `dataset.py` adds them to a table (`table.py` has its columns). `plan.py` has a model's
kernels uncompiled; `describe.py` puts together what is known of them: `instructions.py` counts what
they will execute, `program.py` says from where their operands come. `features.py`, `linear.py` and
`trees.py` are what `predictor.py` learns with; `forecast.py` is what it says of a model.
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
