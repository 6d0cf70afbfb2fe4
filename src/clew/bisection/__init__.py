"""`clew.bisect`: from a wrong result to the stage, pass, node, kernel or schedule step at fault.

`search.py` has the function and the order of the searches, from the outside in: `import_search.py`
for a layer imported incorrectly, `stage_search.py` for the node that a pass changed,
`program_search.py` for the program, with `kernel_search.py` for one kernel and `thread_search.py`
for memory shared by threads. All are functions of a `session.py`: the compiled model and the
comparisons so far. `smallest.py` reduces the fault, and `facts.py` describes it.

They find errors with `imports.py`, `stages.py` (values of the stages), `kernels.py` (a run, kernel
by kernel) and `inside.py` (tensor expressions, schedule steps and machine code of one kernel).
`references.py` gives the expected values, `numbers.py` the allowed errors.
`cases.py` has parts of graphs that run alone, `checks.py` defines when one fails, `reduce.py` makes
it as small as possible (`reduced.py`), and `reproducer.py` writes it to a folder and runs it again.
`verdict.py` has the result. The folder is not called `bisect` because `clew.bisect` is the
function.
"""

from clew.bisection.reduced import Reduced
from clew.bisection.search import bisect
from clew.bisection.verdict import KINDS, Culprit, Verdict

__all__ = ["KINDS", "Culprit", "Reduced", "Verdict", "bisect"]
