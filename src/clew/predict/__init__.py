"""Predicts a model's latency without running it, and measures kernels into tables for that.

`plan.py` lists a model's kernels without objects; `describe.py` collects their facts:
`frequencies.py` finds how often blocks run, `assembly.py` their loops as instructions, and
`throughput.py` the cycles of these; `instructions.py` counts the instructions of the text,
`addresses.py` and `footprints.py` find the cache lines that loops touch, and `program.py` where
operands come from. `analytic.py` makes times of them, `untrained.py` predictions, and `forecast.py`
holds that of a model. `network.py`, `convnets.py` and `transformers.py` make random networks;
`measure.py` times kernels in the program, and `dataset.py` adds the times to a table (`table.py`
has its columns). `predictor.py` learns the ratio to the analytic estimate, with `features.py`,
`trees.py` and `smooth.py`.
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
