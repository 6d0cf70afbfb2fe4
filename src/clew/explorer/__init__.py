"""The explorer: a page in which every value can be followed from a layer to its instructions.

`schema.py` is the wire format, `routes.py` what can be asked; `views/` answer, each a pure function
of a `Session` (a compiled model and what was measured of it).
"""
