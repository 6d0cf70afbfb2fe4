"""clew as a backend of `torch.compile`, and access to the compiled programs.

```python
compiled = torch.compile(model, backend="clew", options={"threads": 2})
with torch.no_grad():
    y = compiled(x)
clew.torch.last()  # the programs: kernels, trace, profile, explorer; what stayed in eager
clew.torch.compare(compiled, model, (x,))  # which module's result is the first to differ
```
"""

from __future__ import annotations

from clew.frontends.torch import from_torch
from clew.torch.backend import clew_backend
from clew.torch.compare import EagerReport, ModuleRow, compare
from clew.torch.programs import Programs, TorchProgram, last
from clew.torch.report import Left

__all__ = [
    "EagerReport", "Left", "ModuleRow", "Programs", "TorchProgram", "clew_backend", "compare",
    "from_torch", "last",
]  # fmt: skip
