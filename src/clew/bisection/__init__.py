"""`clew.bisect`: from a wrong result to the stage, pass, node, kernel or schedule step at fault.

`search.py` has the function, and the order of the searches, from the outside in: `import_search.py`
for a layer that was read wrongly, `stage_search.py` for the node that a pass changed,
`program_search.py` for what runs, with `kernel_search.py` for one kernel and `thread_search.py` for
what threads share. All of them are functions of a `session.py`: the compiled model and what was
compared until now. `smallest.py` cuts down what they find, `facts.py` says what it is.

They ask `imports.py`, `stages.py` (values of the stages), `kernels.py` (a run, kernel by kernel)
and `inside.py` (tensor expressions, schedule steps and machine code of one kernel) what is wrong,
`references.py` and `onnx_reference.py` what should be, `numbers.py` how far off that may be.
`cases.py` has parts of graphs that run alone, `checks.py` what it means that one fails, `reduce.py`
makes it as small as it can be (`reduced.py`), `reproducer.py` writes it to a folder and runs it
again. `verdict.py` has what is said. The folder is not called `bisect`, as `clew.bisect` is the
function.
"""

from clew.bisection.reduced import Reduced
from clew.bisection.search import bisect
from clew.bisection.verdict import KINDS, Culprit, Verdict

__all__ = ["KINDS", "Culprit", "Reduced", "Verdict", "bisect"]
