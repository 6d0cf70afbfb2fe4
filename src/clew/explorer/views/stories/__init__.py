"""Stories, one kind per file: `layer.py`, `kernel.py`, `code.py` (backwards from a line or node),
`stage.py`; `parts.py` holds their building blocks.
"""
