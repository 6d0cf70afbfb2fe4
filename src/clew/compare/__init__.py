"""Two builds side by side, aligned on the model's layers: `clew.diff`, `clew diff`.

`layers.py` reads a build's layers as the import gave them, `align.py` pairs those of two models,
`state.py` says what became of each, `treatment.py` what the passes did to it, `times.py` and
`values.py` run both. `diff.py` puts them together into the `report.py`, whose data `rows.py` has;
`show.py` prints it.
"""
