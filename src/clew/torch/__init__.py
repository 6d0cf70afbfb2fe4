"""clew as a backend of `torch.compile`, and access to the compiled programs.

```python
compiled = torch.compile(model, backend="clew", options={"threads": 2})
with torch.no_grad():
    y = compiled(x)
clew.torch.last()  # the programs: kernels, trace, profile, explorer; what stayed in eager
```
"""

from __future__ import annotations

from clew.frontends.torch import from_torch
from clew.torch.backend import clew_backend
from clew.torch.programs import Programs, TorchProgram, last
from clew.torch.report import Left

__all__ = ["Left", "Programs", "TorchProgram", "clew_backend", "from_torch", "last"]
