"""Stories, one kind a file: `layer.py`, `kernel.py`, `code.py` (backwards from a line or node),
`stage.py`; `parts.py` is what they are put together from.
"""
