"""clew: a deep-learning compiler in which every value can be followed, from layer to instruction.

```python
import clew

model = clew.load("model.onnx")
compiled = clew.compile(model, threads=2)
outputs = compiled.run({"input": x})
```

Names are loaded when first used, so that `import clew` (and `clew --help`) costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from clew.support.errors import ClewError
from clew.version import VERSION as __version__

if TYPE_CHECKING:
    from clew.build.schedule_choice import schedule_for
    from clew.compiled import CompiledModel, Kernel
    from clew.compiler import compile
    from clew.editing import Editor, edit
    from clew.frontends import load
    from clew.frontends.text import parse
    from clew.ir.module import Module
    from clew.loading import LoadedModel, load_compiled
    from clew.operator_checks import check_op
    from clew.ops.extern import extern_op
    from clew.ops.registry import Sample, all_ops, get_op, register_op
    from clew.passes.mark_fusions import fusion
    from clew.passes.user_pass import graph_pass
    from clew.precision import LayerError, PrecisionReport, precision_report
    from clew.profile.report import Profile
    from clew.target import Target

_HOMES: Final = {
    "CompiledModel": "clew.compiled",
    "Editor": "clew.editing",
    "Kernel": "clew.compiled",
    "LayerError": "clew.precision",
    "LoadedModel": "clew.loading",
    "Module": "clew.ir.module",
    "Sample": "clew.ops.registry",
    "PrecisionReport": "clew.precision",
    "Profile": "clew.profile.report",
    "Target": "clew.target",
    "all_ops": "clew.ops.registry",
    "check_op": "clew.operator_checks",
    "compile": "clew.compiler",
    "fusion": "clew.passes.mark_fusions",
    "graph_pass": "clew.passes.user_pass",
    "schedule_for": "clew.build.schedule_choice",
    "edit": "clew.editing",
    "extern_op": "clew.ops.extern",
    "get_op": "clew.ops.registry",
    "load": "clew.frontends",
    "load_compiled": "clew.loading",
    "parse": "clew.frontends.text",
    "precision_report": "clew.precision",
    "register_op": "clew.ops.registry",
}


def __getattr__(name: str) -> Any:
    """Loads a public name from its module, once."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


__all__ = [
    "ClewError",
    "CompiledModel",
    "Editor",
    "Kernel",
    "LayerError",
    "LoadedModel",
    "Module",
    "PrecisionReport",
    "Profile",
    "Sample",
    "Target",
    "__version__",
    "all_ops",
    "check_op",
    "compile",
    "edit",
    "extern_op",
    "fusion",
    "get_op",
    "graph_pass",
    "load",
    "load_compiled",
    "parse",
    "precision_report",
    "register_op",
    "schedule_for",
]
