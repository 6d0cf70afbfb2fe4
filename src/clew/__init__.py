"""clew: a deep-learning compiler that traces every value from layer to instruction.

```python
import clew

model = clew.load("model.onnx")
compiled = clew.compile(model, threads=2)
outputs = compiled.run({"input": x})
```

Names are loaded on first use, which keeps `import clew` (and `clew --help`) fast.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from clew.support.collection import no_collections_of_imports
from clew.support.errors import ClewError, ClewWarning
from clew.support.exhausted import coded_exhaustion
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING
from clew.version import VERSION as __version__

if TYPE_CHECKING:
    from clew.advice import Advice, advise, register_advice
    from clew.api.compile import compile
    from clew.api.compiled_model import CompiledModel
    from clew.api.loaded_model import LoadedModel, load_compiled
    from clew.backends.backend import Backend
    from clew.backends.compile_options import (
        CompileOptions,
        Diagnostics,
        Limits,
        Passes,
        Precision,
        Sizes,
    )
    from clew.backends.cpu.schedule_choice import schedule_for
    from clew.backends.registry import backend
    from clew.bisection import Verdict, bisect
    from clew.build.inputs import Inputs
    from clew.build.kernel import Kernel
    from clew.compare.diff import diff
    from clew.compare.precision import LayerError, PrecisionReport, precision_report
    from clew.compare.report import DiffReport
    from clew.compare.rows import LayerDiff
    from clew.compiling.operator_checks import check_op
    from clew.correlate import ExecutorGraph, executor_graph
    from clew.editing import Editor, edit
    from clew.extraction import (
        CheckReport,
        Part,
        Partition,
        extract,
        load_part,
        load_partition,
        partition,
    )
    from clew.frontends import load
    from clew.frontends.text import parse
    from clew.frontends.torch import from_torch
    from clew.generation.chat import Chat
    from clew.generation.embedding import TextEncoder, text_encoder
    from clew.generation.generating import generate
    from clew.generation.language_model import LanguageModel, language_model
    from clew.generation.result import Generation
    from clew.generation.stream import Stream
    from clew.ir.module import Module
    from clew.machine.target import Target
    from clew.mapping import MapReport, map_files
    from clew.ops.extern import extern_op
    from clew.ops.registry import Sample, all_ops, get_op, register_op
    from clew.passes.fusion.mark_fusions import fusion
    from clew.passes.placement.claims import RegionPattern
    from clew.passes.user_pass import graph_pass
    from clew.placement import Placement, place
    from clew.profile.report import Profile
    from clew.quantization import Quantized, quantize
    from clew.runtime.session import Session
    from clew.runtime.spaces import MemorySpace
    from clew.serving.often import SpecializedSizes
    from clew.support.budgets import Budgets
    from clew.tap import Taps, tap_states
    from clew.tuning import TuneReport, tune, tune_report

# Submodules available as attributes, such as `clew.pipelines.pipeline()`, without an import.
_ROOMS: Final = (
    "advice",
    "ir",
    "loop",
    "ops",
    "partitioning",
    "passes",
    "patterns",
    "pipelines",
    "predict",
    "quantization",
    "target",
    "te",
    "torch",
)
_HOMES: Final = {
    "Advice": "clew.advice",
    "Backend": "clew.backends.backend",
    "Budgets": "clew.support.budgets",
    "Chat": "clew.generation.chat",
    "CheckReport": "clew.extraction",
    "CompileOptions": "clew.backends.compile_options",
    "CompiledModel": "clew.api.compiled_model",
    "Diagnostics": "clew.backends.compile_options",
    "DiffReport": "clew.compare.report",
    "Editor": "clew.editing",
    "ExecutorGraph": "clew.correlate",
    "Generation": "clew.generation.result",
    "Inputs": "clew.build.inputs",
    "Kernel": "clew.build.kernel",
    "LanguageModel": "clew.generation.language_model",
    "LayerDiff": "clew.compare.rows",
    "LayerError": "clew.compare.precision",
    "Limits": "clew.backends.compile_options",
    "LoadedModel": "clew.api.loaded_model",
    "MapReport": "clew.mapping",
    "MemorySpace": "clew.runtime.spaces",
    "Module": "clew.ir.module",
    "Part": "clew.extraction",
    "Partition": "clew.extraction",
    "Passes": "clew.backends.compile_options",
    "Precision": "clew.backends.compile_options",
    "RegionPattern": "clew.passes.placement.claims",
    "Sample": "clew.ops.registry",
    "PrecisionReport": "clew.compare.precision",
    "Session": "clew.runtime.session",
    "Sizes": "clew.backends.compile_options",
    "SpecializedSizes": "clew.serving.often",
    "Stream": "clew.generation.stream",
    "Taps": "clew.tap",
    "TextEncoder": "clew.generation.embedding",
    "text_encoder": "clew.generation.embedding",
    "Profile": "clew.profile.report",
    "Quantized": "clew.quantization",
    "Target": "clew.machine.target",
    "Verdict": "clew.bisection",
    "advise": "clew.advice",
    "all_ops": "clew.ops.registry",
    "backend": "clew.backends.registry",
    "bisect": "clew.bisection",
    "check_op": "clew.compiling.operator_checks",
    "compile": "clew.api.compile",
    "diff": "clew.compare.diff",
    "fusion": "clew.passes.fusion.mark_fusions",
    "graph_pass": "clew.passes.user_pass",
    "schedule_for": "clew.backends.cpu.schedule_choice",
    "edit": "clew.editing",
    "executor_graph": "clew.correlate",
    "extern_op": "clew.ops.extern",
    "extract": "clew.extraction",
    "from_torch": "clew.frontends.torch",
    "generate": "clew.generation.generating",
    "get_op": "clew.ops.registry",
    "language_model": "clew.generation.language_model",
    "load": "clew.frontends",
    "load_compiled": "clew.api.loaded_model",
    "load_part": "clew.extraction",
    "load_partition": "clew.extraction",
    "map_files": "clew.mapping",
    "Placement": "clew.placement",
    "parse": "clew.frontends.text",
    "place": "clew.placement",
    "partition": "clew.extraction",
    "precision_report": "clew.compare.precision",
    "quantize": "clew.quantization",
    "register_advice": "clew.advice",
    "register_op": "clew.ops.registry",
    "tap_states": "clew.tap",
    "TuneReport": "clew.tuning",
    "tune": "clew.tuning",
    "tune_report": "clew.tuning",
}


def __getattr__(name: str) -> Any:
    """Loads a public name from its module on first access."""
    home = _HOMES.get(name)
    # An import statement asks first, and then imports a room itself. It must not wait here: its own
    # module is locked, and the thread that holds `LOADING` may be importing that one.
    imports = sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap"
    if home is None and (name not in _ROOMS or imports):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with LOADING, held_interrupts(), no_collections_of_imports():
        if home is None:
            return _imported(f"{__name__}.{name}")
        value = globals()[name] = getattr(_imported(home), name)
    return value


@coded_exhaustion
def _imported(module: str) -> ModuleType:
    """Errors: C160 to C163 if memory or files do not suffice to import it."""
    return importlib.import_module(module)


def __dir__() -> list[str]:
    """Returns all public names, including those not loaded yet, for editors and notebooks."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


__all__ = [
    "Advice",
    "Backend",
    "Budgets",
    "Chat",
    "CheckReport",
    "ClewError",
    "ClewWarning",
    "CompileOptions",
    "CompiledModel",
    "Diagnostics",
    "DiffReport",
    "Editor",
    "ExecutorGraph",
    "Generation",
    "Inputs",
    "Kernel",
    "LanguageModel",
    "LayerDiff",
    "LayerError",
    "Limits",
    "LoadedModel",
    "MapReport",
    "MemorySpace",
    "Module",
    "Part",
    "Partition",
    "Passes",
    "Placement",
    "Precision",
    "PrecisionReport",
    "Profile",
    "Quantized",
    "RegionPattern",
    "Sample",
    "Session",
    "Sizes",
    "SpecializedSizes",
    "Stream",
    "Taps",
    "Target",
    "TextEncoder",
    "TuneReport",
    "Verdict",
    "__version__",
    "advise",
    "all_ops",
    "backend",
    "bisect",
    "check_op",
    "compile",
    "diff",
    "edit",
    "executor_graph",
    "extern_op",
    "extract",
    "from_torch",
    "fusion",
    "generate",
    "get_op",
    "graph_pass",
    "language_model",
    "load",
    "load_compiled",
    "load_part",
    "load_partition",
    "map_files",
    "parse",
    "partition",
    "place",
    "precision_report",
    "quantize",
    "register_advice",
    "register_op",
    "schedule_for",
    "tap_states",
    "text_encoder",
    "tune",
    "tune_report",
]
