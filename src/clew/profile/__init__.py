"""Where the time of a model's runs goes: kernels, operators, layers.

`modes.py` is the way in, `timing.py` measures, `split.py` says what a kernel's operators take of
it, `rollup.py` divides its time among these and the layers, `report.py` has the result, which
`tables.py`, `frames.py` and `chrome.py` write.
"""
