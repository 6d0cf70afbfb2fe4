"""Two builds side by side, aligned on the model's layers: `clew.diff`, `clew diff`.

`layers.py` reads a build's imported layers and `align.py` pairs those of two models. `state.py`
describes each layer in its build, `treatment.py` lists the passes' changes to it, and `times.py`
and `values.py` run both builds. `diff.py` combines the results in a report (`report.py`, with data
from `rows.py`); `show.py` prints it.
"""
