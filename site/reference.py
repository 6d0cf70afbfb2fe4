"""The pages of the reference: clew's public names by what they are for, and its open modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Loading and compiling": (
        "load", "from_torch", "parse", "compile", "CompileOptions", "Sizes", "Precision", "Passes",
        "Limits", "Diagnostics", "Budgets", "Target", "Module", "ClewError", "ClewWarning",
        "__version__",
    ),
    "Running": (
        "CompiledModel", "load_compiled", "LoadedModel", "Inputs", "Session", "SpecializedSizes",
        "MemorySpace", "map_files", "MapReport",
    ),
    "Language models": (
        "generate", "language_model", "LanguageModel", "Generation", "Stream", "Chat",
        "text_encoder", "TextEncoder",
    ),
    "Analysis": (
        "Profile", "Kernel", "executor_graph", "ExecutorGraph", "Taps", "tap_states", "diff",
        "DiffReport", "LayerDiff", "precision_report", "PrecisionReport", "LayerError", "bisect",
        "Verdict", "advise", "Advice", "register_advice",
    ),
    "Changing models": (
        "edit", "Editor", "extract", "Part", "load_part", "CheckReport", "partition", "Partition",
        "load_partition", "quantize", "Quantized", "place", "Placement", "tune", "TuneReport",
        "tune_report",
    ),
    "Extending clew": (
        "register_op", "get_op", "all_ops", "extern_op", "Sample", "check_op", "fusion",
        "graph_pass", "schedule_for", "backend", "Backend", "RegionPattern",
    ),
}  # fmt: skip

# Modules whose names are public, and what each page is called.
ROOMS: Final = {
    "advice": "Advice (clew.advice)",
    "partitioning": "Partitions (clew.partitioning)",
    "patterns": "Patterns (clew.patterns)",
    "pipelines": "Pipelines (clew.pipelines)",
    "predict": "Predictions (clew.predict)",
    "quantization": "Quantization (clew.quantization)",
    "te": "Tensor expressions (clew.te)",
    "torch": "PyTorch (clew.torch)",
}


def pages() -> Iterator[tuple[str, str, str]]:
    """Yields the file name, the title and the Markdown text of each page."""
    for title, names in GROUPS.items():
        file = title.lower().replace(" ", "-") + ".md"
        shown = "\n\n".join(f"::: clew.{name}" for name in names)
        yield file, title, f"# {title}\n\n{shown}\n"
    for room, title in ROOMS.items():
        shown = f"::: clew.{room}\n    options:\n      heading_level: 2\n"
        yield f"clew.{room}.md", title, f"# {title}\n\n{shown}"
