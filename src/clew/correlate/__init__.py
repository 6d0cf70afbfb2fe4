"""What the operators, kernels and values of a compiled model are, as data for other programs.

`facts.py` describes one operator or kernel; `graph.py` the whole executor. `docs/correlate.md` has
the schema.
"""

from clew.correlate.facts import describe_kernel, describe_operator, describe_type

__all__ = ["describe_kernel", "describe_operator", "describe_type"]
