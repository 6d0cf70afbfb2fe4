"""Files of exported programs (`.pt2`), which `torch.export.save` writes.

torch's own reader runs code in such a file: it unpickles sample inputs, evaluates the expressions
of sizes, and imports and calls what names refer to. clew reads the archive itself: the graph with
`reading.py`, tensors from their bytes. Members that it does not need stay closed, and a file that
cannot be read without pickle is refused unless the user trusts it.
"""

from clew.frontends.torch.file.saved import saved_program

__all__ = ["saved_program"]
