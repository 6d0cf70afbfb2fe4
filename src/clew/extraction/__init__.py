"""Parts of a model that run alone, with values captured in a run of the whole.

```python
part = clew.extract("model.onnx", start="encoder.0.query", end="encoder.0.output")
print(part.check())  # runs it, and compares with what was captured
part.save("part.onnx")  # or .txt, or .py: a program that checks and times it
```

`layers.py` finds the layers between others, `graph.py` cuts a module, `tap/capture.py` reads values
from a run, `fused.py` extracts kernels as fused, `file_form.py` cuts the model's file, and
`part.py` and `files.py` have the resulting parts.
"""

from pathlib import Path

from clew.extraction import files, partition_files
from clew.extraction.extracting import extract, extract_ranges
from clew.extraction.part import CheckReport, Part, unknown_options
from clew.extraction.partitioning import CompiledPartition, Partition, partition
from clew.extraction.stages import Stage
from clew.support.errors import InputError

__all__ = [
    "CheckReport",
    "CompiledPartition",
    "Part",
    "Partition",
    "extract",
    "extract_ranges",
    "load_part",
    "load_partition",
    "partition",
]


def load_part(path: str | Path) -> Part:
    """Returns the part written by `clew extract` or `Part.save` to this file and its `.npz`.

    Errors: P011 and I139 for files that are missing, damaged or do not contain a part; those of
    reading the module.
    """
    found = Part(**files.read(Path(path)))
    if wrong := unknown_options(found.options):
        raise InputError(
            "I139",
            f"{str(path)!r} has the option {', '.join(wrong)}, unknown to clew.compile",
            hint="it was written by another version of clew, or is damaged",
        )
    return found


def load_partition(folder: str | Path) -> Partition:
    """Returns the partition written by `clew partition` or `Partition.save` to a folder.

    Errors: I139 for a folder without a partition, I149 for options in its manifest that
    `clew.compile` does not have, P011 and those of `load_part` for its parts.
    """
    folder = Path(folder)
    found = partition_files.read(folder)
    for part in found.parts:
        if wrong := unknown_options(part.options):
            raise InputError(
                "I149",
                f"{part.file} has the option {', '.join(wrong)}, unknown to clew.compile",
                hint=f"correct it in {folder / partition_files.MANIFEST}",
            )
    stages = tuple(
        Stage(load_part(folder / p.file), p.reads, p.gives, p.options) for p in found.parts
    )
    for entry, stage in zip(found.parts, stages, strict=True):
        results = len(stage.part.outputs)
        if len(entry.gives) != results or len(entry.reads) != len(stage.part.inputs):
            raise InputError(
                "I139",
                f"{entry.file} takes {len(stage.part.inputs)} and returns {results} values, the "
                f"manifest lists {len(entry.reads)} and {len(entry.gives)}",
                hint=f"{folder / partition_files.MANIFEST} is damaged: write the partition again",
            )
    return Partition(stages, found.inputs, found.outputs, found.given, found.expected)
