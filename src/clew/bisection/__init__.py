"""`clew.bisect`: from a wrong result to the stage, pass, node, kernel or schedule step at fault.

`search.py` goes from the outside in: the import (`imports.py`), the passes (`stages.py`), the
kernels of a run (`kernels.py`), the inside of one kernel (`inside.py`). `cases.py` has parts of
graphs that run alone, `checks.py` what it means that one fails, `reduce.py` makes it as small as it
can be, `reproducer.py` writes it to a folder and runs it again. `verdict.py` has what is said. The
folder is not called `bisect`, as `clew.bisect` is the function.
"""

from clew.bisection.search import bisect
from clew.bisection.verdict import KINDS, Culprit, Reduced, Verdict

__all__ = ["KINDS", "Culprit", "Reduced", "Verdict", "bisect"]
