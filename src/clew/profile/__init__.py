"""Where the time of a model's runs goes: kernels, operators, layers.

`modes.py` is the entry point, `timing.py` measures, `split.py` gives the shares of a kernel's
operators, `rollup.py` divides its time among operators and layers, and `report.py` has the result,
which `tables.py`, `frames.py` and `chrome.py` write.
"""
